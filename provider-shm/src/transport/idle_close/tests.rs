//! Tests of the close handshake with two sides, of which at times only one is driven. The link ends
//! in good order in each case.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Transport;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RemoteKind, SendOp};

use crate::ShmConfig;
use crate::link::ShmLink;
use crate::owner::Ep;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Drives some until something is so.
fn drive(eps: &mut [&mut Ep], what: &str, mut reached: impl FnMut(&[&mut Ep]) -> bool) {
    let begun = Instant::now();
    while !reached(eps) {
        for ep in eps.iter_mut() {
            ep.progress();
        }
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        std::thread::yield_now();
    }
}

/// The one link of an endpoint.
fn link(ep: &Ep) -> Option<&ShmLink> {
    assert!(ep.shm.links.len() < 2);
    ep.shm.links.iter().next().map(|(_, link)| &**link)
}

fn has_requested(ep: &Ep) -> bool {
    link(ep).is_some_and(|link| link.has_requested_close())
}

struct WatchedPair {
    a: Ep,
    b: Ep,
    to_a: FiAddr,
    to_b: FiAddr,
}

impl WatchedPair {
    /// A message from `a` has arrived, and no receive has matched it.
    fn connected() -> Self {
        let config = ShmConfig {
            sweep_interval: Duration::from_millis(5),
            ..ShmConfig::default()
        };
        let (mut a, mut b) = (Ep::open(config.clone()), Ep::open(config));
        let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
        a.tsend(to_b, 7, &[7; 8], 1).unwrap();
        drive(&mut [&mut a, &mut b], "no message comes", |eps| {
            eps[1].shm.stats().unexpected == 1
        });
        a.wait().unwrap();
        Self { a, b, to_a, to_b }
    }

    fn receive(&mut self) {
        let mut into = [0; 8];
        self.b.trecv(7, 0, &mut into, 2);
        assert_eq!(self.b.wait().unwrap().context, 2);
        assert_eq!(into, [7; 8]);
    }

    /// `a` removes `b`, and requests the close; `b` is not driven.
    fn a_requests_close(&mut self) {
        self.a.remove(self.to_b);
        drive(&mut [&mut self.a], "it does not ask", |eps| {
            has_requested(eps[0])
        });
    }

    fn left(&self) -> (u64, u64) {
        let (a, b) = (self.a.shm.stats(), self.b.shm.stats());
        assert_eq!((a.links_failed, b.links_failed), (0, 0));
        (a.links_left, b.links_left)
    }
}

/// A side refuses to close a link, and requests the close before the other side has its refusal.
#[test]
fn an_answer_and_a_question_come_at_once() {
    let mut pair = WatchedPair::connected();
    pair.a_requests_close();
    // The message waits for a receive: the link stays.
    pair.b.progress();
    pair.b.remove(pair.to_a);
    pair.receive();
    drive(&mut [&mut pair.b], "it does not ask", |eps| {
        has_requested(eps[0])
    });
    pair.a.progress();
    assert_eq!(pair.left(), (1, 0));
    pair.b.progress();
    assert_eq!(pair.left(), (1, 1));
}

/// The peer sends a request, and agrees to the close before the request is taken. It gets its reply
/// over another link.
#[test]
fn a_request_before_the_agreement_gets_its_reply() {
    let part = |kind, dest| SendOp {
        kind: MsgKind::Remote(kind),
        dest,
        tag: 1,
        data: 0,
        desc: MrDesc::NONE,
        context: 3,
        flags: Flags::RMA | Flags::REMOTE_CQ_DATA | Flags::INJECT,
    };
    let mut pair = WatchedPair::connected();
    pair.receive();
    pair.a_requests_close();
    let bytes = [7; 16];
    let iov = [IoBuf::new(bytes.as_ptr(), bytes.len())];
    for _ in 0..2 {
        let read = part(RemoteKind::Read, pair.to_a);
        // SAFETY: the bytes live until return.
        unsafe { pair.b.send_op(&read, &iov) }.unwrap();
    }
    pair.b.progress();
    let source = link(&pair.a).unwrap().requester();
    pair.a.progress();
    assert_eq!(pair.left(), (1, 1));
    let Ep { shm, owner, .. } = &mut pair.a;
    let reply = part(RemoteKind::Reply, source);
    for _ in 0..2 {
        // SAFETY: as above.
        unsafe { shm.reply(&reply, &iov, owner) }.unwrap();
    }
    drive(&mut [&mut pair.a, &mut pair.b], "no reply comes", |eps| {
        eps[1].shm.stats().received == 1 + 2
    });
    assert!(pair.a.shm.idle_closer.unanswered.is_empty());
    let Ep { shm, owner, .. } = &mut pair.a;
    // SAFETY: as above.
    let another = unsafe { shm.reply(&reply, &iov, owner) };
    assert_eq!(another, Err(OpError::Failed(Errno::ECONNRESET)));
}

impl WatchedPair {
    /// `waiting` has a receive that only `gone` could match; `gone` closes.
    fn fails_with_the_peer(mut waiting: Ep, gone: Ep, addr: FiAddr) {
        let mut into = [0; 8];
        waiting.recv_from(MsgKind::Tagged, addr, 1, 0, &mut into, 3);
        assert!(waiting.poll().is_none());
        drop(gone);
        let begun = Instant::now();
        let error = loop {
            if let Some(found) = waiting.poll() {
                break found.unwrap_err();
            }
            assert!(begun.elapsed() < TIMEOUT, "the receive does not fail");
            std::thread::yield_now();
        };
        assert_eq!(
            (error.errno, error.completion.context),
            (Errno::ECONNRESET, 3)
        );
    }
}

/// The sweep finds that the other side has closed before its last message is taken.
#[test]
fn the_sweep_comes_before_the_last_message() {
    let mut pair = WatchedPair::connected();
    pair.receive();
    pair.a_requests_close();
    pair.to_b = pair.a.insert(&pair.b.name());
    pair.b.progress();
    assert_eq!(pair.left(), (0, 1));
    // The report of the sweep, and the time of another look.
    let begun = Instant::now();
    while pair.a.shm.service.waiting() < 2 {
        assert!(begun.elapsed() < TIMEOUT, "nothing is found");
        std::thread::yield_now();
    }
    pair.a.progress();
    assert_eq!(pair.left(), (1, 1));
    WatchedPair::fails_with_the_peer(pair.a, pair.b, pair.to_b);
}

/// The sweep finds that the other side has closed before it has our agreement.
#[test]
fn the_sweep_finds_the_end_of_a_link_under_idle_close() {
    let mut pair = WatchedPair::connected();
    pair.receive();
    pair.a_requests_close();
    let segment = link(&pair.b).map(|link| link.segment().clone());
    pair.b.progress();
    pair.a.progress();
    assert_eq!(pair.left(), (1, 1));
    let Ep { shm, owner, .. } = &mut pair.b;
    shm.peer_gone(pair.a.name().shm.unwrap(), segment, true, owner);
    // It exists, and messages to it arrive.
    pair.b.tsend(pair.to_a, 8, &[8; 8], 4).unwrap();
    drive(&mut [&mut pair.a, &mut pair.b], "no message comes", |eps| {
        eps[0].shm.stats().unexpected == 1
    });
}

/// The peer is gone whose link was closed idle, and the address vector does not find its endpoint
/// any more, because another endpoint of the domain has noticed that before (`docs/adr/0087`).
/// Receives from it fail all the same.
#[test]
fn receives_fail_from_a_peer_that_another_endpoint_has_lost() {
    let mut pair = WatchedPair::connected();
    pair.receive();
    pair.a_requests_close();
    pair.b.progress();
    pair.a.progress();
    assert_eq!(pair.left(), (1, 1));
    let mut into = [0; 8];
    (pair.b).recv_from(MsgKind::Tagged, pair.to_a, 9, 0, &mut into, 5);
    pair.b.owner.av.remove(pair.to_a).unwrap();
    let Ep { shm, owner, .. } = &mut pair.b;
    shm.peer_gone(pair.a.name().shm.unwrap(), None, false, owner);
    let failed = pair.b.wait().unwrap_err();
    assert_eq!(failed.completion.context, 5);
    assert_eq!(failed.errno, Errno::ECONNRESET);
}

/// The endpoint keeps nothing of a peer that is in no address vector and has no link. No insertion
/// concerns it.
fn knows_no_peer(ep: &Ep) {
    assert_eq!(ep.shm.peers.known(), 0);
    assert!(!ep.shm.has_unknown_sources());
}

#[test]
fn nothing_is_kept_of_a_removed_peer_after_idle_close() {
    let mut pair = WatchedPair::connected();
    pair.receive();
    pair.a_requests_close();
    pair.b.progress();
    pair.a.progress();
    assert_eq!(pair.left(), (1, 1));
    knows_no_peer(&pair.a);
    // The link of a peer that comes back is watched all the same.
    pair.b.tsend(pair.to_a, 8, &[8; 8], 4).unwrap();
    let mut into = [0; 8];
    pair.a.trecv(8, 0, &mut into, 5);
    drive(&mut [&mut pair.a, &mut pair.b], "no message comes", |eps| {
        eps[0].shm.stats().received == 1
    });
    assert!(pair.a.shm.has_unknown_sources());
    drive(&mut [&mut pair.a, &mut pair.b], "the link stays", |eps| {
        eps.iter().all(|ep| ep.shm.stats().links_left == 2)
    });
    knows_no_peer(&pair.a);
}

/// Peers that were never in the address vector, or not for long, are gone or were unreachable.
#[test]
fn nothing_is_kept_of_dead_unknown_sources() {
    let mut a = Ep::open(ShmConfig::default());
    for is_inserted in [false, true] {
        let mut b = Ep::open(ShmConfig::default());
        let to_a = b.insert(&a.name());
        b.tsend(to_a, 7, &[7; 8], 1).unwrap();
        let before = a.shm.stats();
        drive(&mut [&mut a, &mut b], "no message comes", |eps| {
            eps[0].shm.stats().received > before.received
        });
        let to_b = is_inserted.then(|| a.insert(&b.name()));
        drop(b);
        drive(&mut [&mut a], "its end is not found", |eps| {
            eps[0].shm.stats().links_failed > before.links_failed
        });
        // Its message has outlived the peer.
        let mut into = [0; 8];
        a.trecv(7, 0, &mut into, 2);
        assert_eq!(a.wait().unwrap().len, 8);
        if let Some(to_b) = to_b {
            a.remove(to_b);
        }
        knows_no_peer(&a);
    }
    let mut nobody = a.name();
    nobody.shm = nobody.shm.map(|id| !id);
    let to_nobody = a.insert(&nobody);
    a.tsend(to_nobody, 7, &[7; 8], 1).unwrap();
    a.remove(to_nobody);
    assert_eq!(a.wait().unwrap_err().errno, Errno::ECANCELED);
    drive(&mut [&mut a], "somebody is there", |eps| {
        eps[0].shm.peers.needs_link(nobody.shm.unwrap())
    });
    knows_no_peer(&a);
}
