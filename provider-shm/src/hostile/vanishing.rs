//! Tests of memory that is present when the endpoint looks at it, and missing when it copies. A
//! fault there waits for a handler of userfaultfd(2) that does not exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::peer::Shortcut;
use ferrofabric_contracts::region_window::{Elements, RegionWindow};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, RmaKind, RmaOp};

use super::{COOKIE, HostilePeer, ID};
use crate::board::{BoardMemory, BoardRegion, PeerBoard};
use crate::cma::{CmaPeer, CopyOutcome, CopyWay};
use crate::missing_pages::MissingPages;
use crate::owner::Ep;
use crate::wire::{GO, READ, START, TAGGED, pack};
use crate::{Cma, ShmConfig};

const KEY: u64 = 9;
/// Copies by either call.
const LENGTHS: [usize; 4] = [64, 16_384, 65_536, 1 << 20];

/// Runs `act` in a thread. Fails if that does not end: the wait ends with the pages.
fn returns<T: Send + 'static>(
    what: &str,
    pages: &Arc<MissingPages>,
    act: impl FnOnce(&MissingPages) -> T + Send + 'static,
) -> T {
    let (done, is_done) = channel();
    let theirs = Arc::clone(pages);
    thread::spawn(move || {
        let _ = done.send(act(&theirs));
    });
    is_done
        .recv_timeout(Duration::from_secs(60))
        .unwrap_or_else(|_| panic!("{what} does not return"))
}

/// Pages that come and go all the time until this is dropped.
struct Flicker {
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flicker {
    fn of(pages: &Arc<MissingPages>) -> Self {
        let (ends, pages) = (Arc::new(AtomicBool::new(false)), Arc::clone(pages));
        let until = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            // Each state lasts for about as long as a copy.
            let stays = || (0..100).for_each(|_| std::hint::spin_loop());
            while !until.load(Ordering::Relaxed) {
                pages.come();
                stays();
                pages.leave();
                stays();
            }
        });
        Self {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Flicker {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn open() -> Ep {
    Ep::open(ShmConfig {
        cma: Cma::On,
        ..ShmConfig::default()
    })
}

/// An endpoint, and a peer whose board shows these pages as a region.
struct Initiator {
    ep: Ep,
    dest: FiAddr,
    _board: BoardMemory,
    _enemy: HostilePeer,
}

impl Initiator {
    fn of(pages: &MissingPages, len: usize) -> Self {
        let mut ep = open();
        let board = BoardMemory::create().unwrap();
        let theirs = PeerBoard::accept(board.fd()).unwrap();
        let shown = Some((theirs, Rights::all()));
        let (enemy, dest) = HostilePeer::connect_with(&mut ep, ID, shown);
        // From now on there is a route.
        ep.tsend(dest, 1, &[1; 8], 1).unwrap();
        let region = BoardRegion {
            key: KEY,
            window: RegionWindow {
                address: pages.addr(),
                len: len as u64,
                first_place: 0,
                rights: Rights::all(),
                elements: Elements::BYTES,
            },
            backing: None,
        };
        board.show(&region).unwrap();
        Self {
            ep,
            dest,
            _board: board,
            _enemy: enemy,
        }
    }

    fn carry_out(&mut self, kind: RmaKind, bytes: &mut [u8]) -> Shortcut {
        let op = RmaOp {
            kind,
            dest: self.dest,
            key: KEY,
            place: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: 1,
            flags: Flags::COMPLETION,
        };
        let buf = IoBuf::new(bytes.as_mut_ptr(), bytes.len());
        let ep = &mut self.ep;
        // SAFETY: the buffer is there until the operation is over.
        unsafe { ep.shm.shortcut(&op, &[buf], None, &mut ep.owner) }
    }
}

/// A first message is read. The pages are missing for a second one, right behind it: `progress`
/// returns, and requests that message through the ring.
#[test]
fn memory_that_goes_between_two_messages_does_not_hang_progress() {
    for len in LENGTHS {
        // A call reads 256 KiB at most, and the pages stay for one message.
        let Some(pages) = MissingPages::map(len).map(Arc::new) else {
            return;
        };
        let asked = returns("progress", &pages, move |pages| {
            let mut ep = open();
            let (mut enemy, _) = HostilePeer::connect(&mut ep);
            let mut into = vec![vec![1u8; len]; 2];
            for (tag, into) in into.iter_mut().enumerate() {
                ep.trecv(tag as u64, 0, into, tag as u64);
            }
            let at = pages.addr();
            let offer = |id| [id, pack(id as u32, 0), len as u64, 0, 0, at, 0];
            pages.come();
            enemy.publish(START, TAGGED | READ, 0, offer(0));
            while ep.shm.stats().received_cma == 0 {
                ep.progress();
            }
            pages.leave();
            enemy.publish(START, TAGGED | READ, 0, offer(1));
            while enemy.got(GO).len() < 2 {
                ep.progress();
            }
            enemy.got(GO)
        });
        assert_eq!(asked, [[0, 0], [1, len as u64]]);
    }
}

/// The same with one-sided operations, which the kernel carries out in the initiator's call.
#[test]
fn memory_that_goes_between_two_one_sided_operations_does_not_hang_the_call() {
    for kind in [RmaKind::Read, RmaKind::Write] {
        for len in LENGTHS {
            let Some(pages) = MissingPages::map(len).map(Arc::new) else {
                return;
            };
            let second = returns("the call", &pages, move |pages| {
                let mut initiator = Initiator::of(pages, len);
                let mut bytes = vec![3u8; len];
                pages.come();
                while initiator.carry_out(kind, &mut bytes) != Shortcut::Done {}
                pages.leave();
                initiator.carry_out(kind, &mut bytes)
            });
            assert_eq!(second, Shortcut::Impossible, "{kind:?} of {len}");
        }
    }
}

/// At no time does a short copy wait for a page: the pages come and go meanwhile.
#[test]
fn short_copies_never_wait_for_pages_that_come_and_go() {
    const COPIES: usize = 50_000;
    let Some(pages) = MissingPages::map(LENGTHS[1]).map(Arc::new) else {
        return;
    };
    let _flicker = Flicker::of(&pages);
    let own = std::process::id() as i32;
    for way in [CopyWay::Read, CopyWay::Write] {
        for len in [8, 4096, LENGTHS[1]] {
            let came = returns("the copy", &pages, move |pages| {
                let at = COOKIE.as_ptr() as u64;
                let mut peer = CmaPeer::probe(own, at, COOKIE).unwrap();
                let mut bytes = vec![3u8; len];
                let buffers = [IoBuf::new(bytes.as_mut_ptr(), len)];
                // SAFETY: the buffer has as many bytes.
                let mut copy =
                    || unsafe { peer.copy_list(way, pages.addr(), &buffers, Instant::now()) };
                (0..COPIES)
                    .filter(|_| copy() == CopyOutcome::Complete)
                    .count()
            });
            println!("{way:?} of {len}: {came} of {COPIES} complete");
        }
    }
}

/// Nor does the service thread, which reads the proof of a peer's identity.
#[test]
fn a_probe_never_waits_for_a_page_that_comes_and_goes() {
    const PROBES: usize = 50_000;
    let Some(pages) = MissingPages::map(4096).map(Arc::new) else {
        return;
    };
    let _flicker = Flicker::of(&pages);
    let own = std::process::id() as i32;
    let found = returns("the probe", &pages, move |pages| {
        let probe = |_: &usize| CmaPeer::probe(own, pages.addr(), [0; 16]).is_some();
        (0..PROBES).filter(probe).count()
    });
    assert_eq!(found, PROBES, "a missing proof counts against the peer");
}
