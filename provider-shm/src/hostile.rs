//! Tests with a peer that writes arbitrary data into the segment. Nothing that it can write makes
//! the endpoint panic, hang, or touch foreign memory; invalid data ends the link with `EPROTO`.

#![allow(clippy::unwrap_used, reason = "a test")]

mod board;
mod memory;
mod quotas;
mod random;
mod vanishing;

use std::sync::Arc;
use std::time::Instant;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::{FiAddr, MsgKind};

use crate::board::PeerBoard;
use crate::cma::CmaPeer;
use crate::link::CloseMessage;
use crate::owner::{Ep, TIMEOUT};
use crate::ring::{PAYLOAD_BYTES, SLOTS};
use crate::segment::{SegmentSide, ShmSegment};
use crate::service::{NewLink, PeerRegions};
use crate::wire::{
    CHUNK, CLOSE, EAGER, GO, INLINE, READ, SHORT, START, TAGGED, UNDER_WAY_MAX, WANTS_DELIVERED,
    pack,
};
use crate::{Cma, ShmConfig};

/// The id of the hostile peer's endpoint.
const ID: u64 = 0x0bad_0bad;

/// The proof of the peer's identity: its memory is that of this process.
static COOKIE: [u8; 16] = [1; 16];

/// The hostile peer, which is the acceptor; the endpoint under test is the initiator.
struct HostilePeer {
    segment: Arc<ShmSegment>,
    position: u64,
}

impl HostilePeer {
    fn connect(ep: &mut Ep) -> (Self, FiAddr) {
        Self::connect_as(ep, ID)
    }

    fn connect_as(ep: &mut Ep, id: u64) -> (Self, FiAddr) {
        Self::connect_with(ep, id, None)
    }

    /// A peer with a board, and the rights to the regions on it.
    fn connect_with(ep: &mut Ep, id: u64, board: Option<(PeerBoard, Rights)>) -> (Self, FiAddr) {
        let native = NativeAddr {
            incarnation: 1,
            node: ep.name().node,
            shm: Some(id),
            verbs: None,
        };
        let addr = ep.insert(&native);
        let segment = Arc::new(ShmSegment::create().unwrap().0);
        let link = NewLink {
            native,
            id,
            segment: Arc::clone(&segment),
            side: SegmentSide::Initiator,
            cma: CmaPeer::probe(std::process::id() as i32, COOKIE.as_ptr() as u64, COOKIE),
            offers_cma: true,
            fence: false,
            regions: board.map(|(board, rights)| PeerRegions {
                board,
                rights,
                pid: std::process::id() as i32,
            }),
            watch: None,
        };
        ep.shm.new_link(link, &mut ep.owner);
        (
            Self {
                segment,
                position: 0,
            },
            addr,
        )
    }

    fn publish(&mut self, kind: u8, flags: u8, len: u32, body: [u64; 7]) {
        let slot = self.position as usize % SLOTS;
        let lap = self.position / SLOTS as u64 + 1;
        let head =
            lap | (u64::from(kind) << 16) | (u64::from(flags) << 24) | (u64::from(len) << 32);
        // SAFETY: words of the mapped slot; nobody else runs.
        unsafe {
            for (i, word) in body.into_iter().enumerate() {
                self.segment
                    .slot_word(SegmentSide::Acceptor, slot, i + 1)
                    .write_volatile(word);
            }
            self.segment
                .slot_word(SegmentSide::Acceptor, slot, 0)
                .write_volatile(head);
        }
        self.position += 1;
    }

    /// The first words of each slot of this kind that the hostile peer was sent.
    fn got(&self, kind: u8) -> Vec<[u64; 2]> {
        let word = |slot, word| {
            let at = self.segment.slot_word(SegmentSide::Initiator, slot, word);
            // SAFETY: a word of the mapped slot; nobody else runs.
            unsafe { at.read_volatile() }
        };
        (0..SLOTS)
            .filter(|slot| (word(*slot, 0) >> 16) & 0xff == u64::from(kind))
            .map(|slot| [word(slot, 1), word(slot, 2)])
            .collect()
    }

    /// Whether the endpoint requested envelopes only.
    fn has_back_pressure(&self) -> bool {
        let word = self.segment.progress_word(SegmentSide::Acceptor);
        // SAFETY: the mapped word; nobody else runs.
        unsafe { word.read_volatile() >> 63 != 0 }
    }

    fn claim_progress(&self, word: u64) {
        // SAFETY: the mapped word; nobody else runs.
        unsafe {
            self.segment
                .progress_word(SegmentSide::Initiator)
                .write_volatile(word);
        }
    }
}

fn ends_with_eproto(what: &str, attack: impl FnOnce(&mut HostilePeer, &mut Ep, FiAddr)) {
    let mut ep = Ep::open(ShmConfig::default());
    let (mut enemy, addr) = HostilePeer::connect(&mut ep);
    // Receives for messages with tag 1; no receive takes tag 2.
    let mut into = vec![0u8; 1000];
    let waiting = vec![0u8; 1 << 20];
    ep.trecv(1, 0, &mut into, 1);
    ep.tsend(addr, 5, &waiting, 2).unwrap();
    attack(&mut enemy, &mut ep, addr);
    for _ in 0..10 {
        ep.progress();
    }
    assert_eq!(ep.shm.stats().links_failed, 1, "{what}");
    let send = loop {
        if let Some(Err(error)) = ep.poll() {
            if error.completion.context == 2 {
                break error;
            }
        }
    };
    assert_eq!(send.errno, Errno::EPROTO, "{what}");
}

#[test]
fn nonsense_ends_the_link() {
    const PAYLOAD: u64 = PAYLOAD_BYTES as u64;
    let slots: &[(&str, u8, u32, [u64; 7])] = &[
        ("kind 0", 0, 0, [0; 7]),
        ("kind 200", 200, 0, [0; 7]),
        ("inline too long", INLINE, 49, [1; 7]),
        ("inline far too long", INLINE, u32::MAX, [1; 7]),
        (
            "record beyond the end",
            EAGER,
            100,
            [1, PAYLOAD - 99, 0, 0, 0, 0, 0],
        ),
        (
            "record far out",
            EAGER,
            1,
            [1, u32::MAX as u64, 0, 0, 0, 0, 0],
        ),
        ("record too long", EAGER, u32::MAX, [1, 0, 0, 0, 0, 0, 0]),
        (
            "more before `GO` than the message",
            START,
            10,
            [1, 0, 10, 0, 11, 0, 0],
        ),
        (
            "more before `GO` than the limit",
            START,
            10,
            [1, 0, 1 << 30, 0, 65_537, 0, 0],
        ),
        (
            "a piece beyond the bytes before `GO`",
            START,
            11,
            [1, 0, 100, 0, 10, 0, 0],
        ),
        ("endless message", START, 0, [1, 0, u64::MAX, 0, 0, 0, 0]),
        ("id out of line", START, 0, [2, pack(1, 0), 100, 0, 0, 0, 0]),
        (
            "id far out of line",
            START,
            0,
            [2, pack(u32::MAX, 0), 100, 0, 0, 0, 0],
        ),
        (
            "first piece outside",
            START,
            100,
            [2, pack(0, 1 << 20), 100, 0, 100, 0, 0],
        ),
        (
            "piece of nothing",
            CHUNK,
            10,
            [pack(0, 0), 0, 0, 0, 0, 0, 0],
        ),
        ("go for nothing", GO, 0, [7, 0, 0, 0, 0, 0, 0]),
        ("go too far", GO, 0, [0, (1 << 20) + 1, 0, 0, 0, 0, 0]),
        ("go far too far", GO, 0, [0, u64::MAX, 0, 0, 0, 0, 0]),
        (
            "an answer to no question",
            CLOSE,
            0,
            [CloseMessage::Agree as u64, 0, 0, 0, 0, 0, 0],
        ),
        (
            "another answer to no question",
            CLOSE,
            0,
            [CloseMessage::Refuse as u64, 0, 0, 0, 0, 0, 0],
        ),
        ("short too long", SHORT, 33, [1, 0, 0, 0, 0, 0, 0]),
        ("short far too long", SHORT, u32::MAX, [1, 0, 0, 0, 0, 0, 0]),
        ("short, id out of line", SHORT, 8, [1, 1, 0, 0, 0, 0, 0]),
        (
            "short, id far out of line",
            SHORT,
            8,
            [2, u64::from(u32::MAX), 0, 0, 0, 0, 0],
        ),
        ("an unknown close message", CLOSE, 0, [3, 0, 0, 0, 0, 0, 0]),
    ];
    for (what, kind, len, body) in slots {
        ends_with_eproto(what, |enemy, _, _| {
            enemy.publish(*kind, TAGGED, *len, *body)
        });
    }
    // Sequences.
    let start = |tag, total, before_go| [tag, 0, total, 0, before_go, 0, 0];
    ends_with_eproto("an id twice", |enemy, _, _| {
        enemy.publish(START, TAGGED, 0, start(2, 100, 0));
        enemy.publish(START, TAGGED, 0, start(2, 100, 0));
    });
    for tag in [1, 2] {
        ends_with_eproto("more than the bytes before `GO`", |enemy, _, _| {
            enemy.publish(START, TAGGED, 100, start(tag, 5000, 150));
            enemy.publish(CHUNK, 0, 51, [0; 7]);
            enemy.publish(CHUNK, 0, 5000, [0; 7]);
        });
        ends_with_eproto("empty pieces", |enemy, _, _| {
            enemy.publish(START, TAGGED, 100, start(tag, 5000, 150));
            enemy.publish(CHUNK, 0, 0, [0; 7]);
        });
        ends_with_eproto("a piece after the end", |enemy, _, _| {
            enemy.publish(START, TAGGED, 100, start(tag, 200, 200));
            enemy.publish(CHUNK, 0, 100, [0; 7]);
            enemy.publish(CHUNK, 0, 100, [0; 7]);
        });
    }
    ends_with_eproto("an id of a short one twice", |enemy, _, _| {
        enemy.publish(SHORT, TAGGED, 8, [2, 0, 0, 0, 0, 0, 0]);
        enemy.publish(SHORT, TAGGED, 8, [2, 0, 0, 0, 0, 0, 0]);
    });
    ends_with_eproto("a piece of a short one that waits", |enemy, _, _| {
        enemy.publish(SHORT, TAGGED, 8, [2, 0, 0, 0, 0, 0, 0]);
        enemy.publish(CHUNK, 0, 8, [0; 7]);
    });
    // All of the message is here, and its sender awaits `DELIVERED`.
    ends_with_eproto("a piece after the end of one that waits", |enemy, _, _| {
        enemy.publish(START, TAGGED | WANTS_DELIVERED, 100, start(2, 100, 100));
        enemy.publish(CHUNK, 0, 100, [0; 7]);
    });
    ends_with_eproto("pieces after the end of one that waits", |enemy, _, _| {
        enemy.publish(START, TAGGED | WANTS_DELIVERED, 50, start(2, 100, 100));
        for _ in 0..3 {
            enemy.publish(CHUNK, 0, 50, [0; 7]);
        }
    });
    ends_with_eproto("a second close request before the answer", |enemy, _, _| {
        for _ in 0..2 {
            enemy.publish(
                CLOSE,
                0,
                0,
                [CloseMessage::Request as u64, 0, 0, 0, 0, 0, 0],
            );
        }
    });
    ends_with_eproto("go twice", |enemy, _, _| {
        enemy.publish(GO, 0, 0, [0, 100_000, 0, 0, 0, 0, 0]);
        enemy.publish(GO, 0, 0, [0, 100_000, 0, 0, 0, 0, 0]);
    });
    for consumed in [4000, u64::from(u32::MAX)] {
        ends_with_eproto("consumed more than was sent", |enemy, ep, addr| {
            enemy.claim_progress(consumed);
            for _ in 0..SLOTS {
                let _ = ep.tsend(addr, 3, &[], 3);
            }
        });
    }
}

/// The peer's memory becomes unreadable: the ring takes over each message that was to be read.
#[test]
fn reads_that_fail_all_go_on_by_the_ring() {
    const LEN: usize = 100_000;
    const PIECES: usize = 4;
    let mut ep = Ep::open(ShmConfig {
        cma: Cma::On,
        ..ShmConfig::default()
    });
    let (mut enemy, _) = HostilePeer::connect(&mut ep);
    let mut into = vec![vec![1u8; LEN]; 2];
    for (tag, into) in into.iter_mut().enumerate() {
        ep.trecv(tag as u64, 0, into, tag as u64);
    }
    for id in 0..2 {
        let nowhere = 1;
        let start = [u64::from(id), pack(id, 0), LEN as u64, 0, 0, nowhere, 0];
        enemy.publish(START, TAGGED | READ, 0, start);
    }
    for _ in 0..10 {
        ep.progress();
    }
    assert_eq!(enemy.got(GO), [[0, LEN as u64], [1, LEN as u64]]);
    for id in 0..2 {
        for _ in 0..PIECES {
            let piece = [pack(id, 0), 0, 0, 0, 0, 0, 0];
            enemy.publish(CHUNK, 0, (LEN / PIECES) as u32, piece);
        }
        ep.progress();
        assert_eq!(ep.poll().unwrap().unwrap().context, u64::from(id));
    }
    assert!(into.iter().flatten().all(|byte| *byte == 0));
}

/// A message crosses the endpoint's request to close the link. The message survives, and has a
/// source once its sender is inserted again.
#[test]
fn a_message_that_crosses_a_close_request_keeps_its_source() {
    let mut ep = Ep::open(ShmConfig::default());
    let (mut enemy, addr) = HostilePeer::connect(&mut ep);
    let name = ep.owner.av.lookup(addr).unwrap();
    let until = |ep: &mut Ep, done: &dyn Fn(&Ep) -> bool| {
        let end = Instant::now() + TIMEOUT;
        while !done(ep) {
            ep.progress();
            assert!(Instant::now() < end, "{:?}", ep.shm.stats());
            std::thread::yield_now();
        }
    };
    ep.remove(addr);
    until(&mut ep, &|_| !enemy.got(CLOSE).is_empty());
    enemy.publish(INLINE, TAGGED, 8, [5, 7, 0, 0, 0, 0, 0]);
    enemy.publish(CLOSE, 0, 0, [CloseMessage::Agree as u64, 0, 0, 0, 0, 0, 0]);
    until(&mut ep, &|ep| ep.shm.stats().links_left == 1);
    let from = ep.insert(&name);
    let mut into = [0u8; 8];
    ep.recv_from(MsgKind::Tagged, from, 5, 0, &mut into, 1);
    let done = ep.poll().expect("it is here").unwrap();
    assert_eq!((done.context, done.src), (1, from));
    assert_eq!(u64::from_ne_bytes(into), 7);
}

/// Each accepted send completes, in order, also the send that was about to start when the ring
/// turned out to be broken.
#[test]
fn no_send_is_forgotten_where_the_ring_is_broken() {
    let mut ep = Ep::open(ShmConfig::default());
    let (enemy, addr) = HostilePeer::connect(&mut ep);
    let (out, mut taken) = ([1u8; 8], 0);
    while ep.shm.stats().queued < 2 {
        ep.tsend(addr, 1, &out, taken).unwrap();
        taken += 1;
    }
    enemy.claim_progress(4000);
    ep.progress();
    let ends: Vec<_> = std::iter::from_fn(|| ep.poll())
        .map(|end| match end {
            Ok(done) => (done.context, None),
            Err(error) => (error.completion.context, Some(error.errno)),
        })
        .collect();
    let queued = |context| (context >= taken - 2).then_some(Errno::EPROTO);
    let all: Vec<_> = (0..taken)
        .map(|context| (context, queued(context)))
        .collect();
    assert_eq!(ends, all);
}

/// A peer that ignores the request for envelopes only, or sends ever more envelopes, loses its
/// link; the error names the reason. All other peers go on.
#[test]
fn a_flood_beyond_the_quota_ends_the_link() {
    const ENVELOPES: u64 = UNDER_WAY_MAX as u64;
    for (what, len, most, why) in [
        ("messages", 8, 1000, "more unexpected messages"),
        ("envelopes", 0, ENVELOPES + 1000, "more messages at a time"),
    ] {
        let mut ep = Ep::open(ShmConfig {
            unexpected_messages: 100,
            ..ShmConfig::default()
        });
        let (mut enemy, addr) = HostilePeer::connect(&mut ep);
        let mut into = [0u8; 8];
        ep.recv_from(MsgKind::Tagged, addr, 7, 0, &mut into, 3);
        let mut sent = 0;
        while ep.shm.stats().links_failed == 0 {
            for _ in 0..SLOTS / 2 {
                match len {
                    0 => enemy.publish(START, TAGGED, 0, [5, sent, 1 << 20, 0, 0, 0, 0]),
                    _ => enemy.publish(INLINE, TAGGED, len, [5; 7]),
                }
                sent += 1;
            }
            ep.progress();
            assert!(sent < most, "{sent} {what} are taken");
        }
        assert!(sent > 100);
        let error = ep.poll().unwrap().unwrap_err();
        assert_eq!((error.completion.context, error.errno), (3, Errno::EPROTO));
        assert!(error.why.contains(why), "{}", error.why);
        let own = ep.name();
        let me = ep.insert(&own);
        ep.trecv(9, 0, &mut into, 4);
        ep.tsend(me, 9, &[6; 8], 5).unwrap();
        while ep.poll().is_some() {}
        assert_eq!(into, [6; 8]);
    }
}
