//! The close of a region beside a peer's copy, in every order of their steps.

use super::{BoardEntry, BoardRegion};
use crate::hazard::Hazard;
use crate::sync::UnsafeCell;
use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::region_window::{Elements, RegionWindow};
use loom::sync::Arc;
use loom::thread;

const KEY: u64 = 7;

fn region(addr: u64) -> BoardRegion {
    BoardRegion {
        key: KEY,
        window: RegionWindow {
            address: addr,
            len: 10 * addr,
            first_place: 0,
            rights: Rights::WRITE,
            elements: Elements::BYTES,
        },
        backing: None,
    }
}

struct Shared {
    entry: BoardEntry,
    hazard: Hazard,
    /// The memory of the region: loom finds accesses that are not apart.
    memory: UnsafeCell<u64>,
}

// SAFETY: shared as memory of two processes is; loom checks the accesses.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn shared() -> Arc<Shared> {
    let shared = Arc::new(Shared {
        entry: BoardEntry::new(),
        hazard: Hazard::new(),
        memory: UnsafeCell::new(0),
    });
    shared.entry.show(&region(1));
    shared
}

/// The peer's write is over when the close is, or does not begin.
#[test]
fn no_byte_comes_after_the_close() {
    loom::model(|| {
        let shared = shared();
        let theirs = Arc::clone(&shared);
        let peer = thread::spawn(move || {
            let Some((generation, _)) = theirs.entry.read(KEY) else {
                return;
            };
            let is_still = || theirs.entry.is_still(generation);
            if let Some(_protection) = theirs.hazard.protect(0, is_still) {
                // SAFETY: the region is open.
                theirs.memory.with_mut(|at| unsafe { *at = 5 });
            }
        });
        shared.entry.hide();
        while shared.hazard.names(Some(0)) {
            thread::yield_now();
        }
        // SAFETY: the region is closed, and its memory is the application's again.
        shared.memory.with_mut(|at| unsafe { *at = 9 });
        peer.join().unwrap();
    });
}

/// A peer never takes the words of two regions for those of one.
#[test]
fn an_entry_that_is_used_again_is_read_whole() {
    loom::model(|| {
        let shared = shared();
        let theirs = Arc::clone(&shared);
        let peer = thread::spawn(move || {
            let Some((generation, found)) = theirs.entry.read(KEY) else {
                return;
            };
            let is_still = || theirs.entry.is_still(generation);
            if theirs.hazard.protect(0, is_still).is_some() {
                assert_eq!(found, region(found.window.address));
            }
        });
        shared.entry.hide();
        shared.entry.show(&region(2));
        peer.join().unwrap();
    });
}

/// The end of a link: the peer sees that the link has ended, or the owner sees the hazard.
#[test]
fn a_link_that_ends_leaves_no_copy_unseen() {
    loom::model(|| {
        let shared = Arc::new((Hazard::new(), crate::status::Status::new()));
        let theirs = Arc::clone(&shared);
        let peer = thread::spawn(move || {
            let is_open = || theirs.1.load() & crate::status::CLOSED == 0;
            let protection = theirs.0.protect(3, is_open);
            let copies = protection.is_some();
            // It is still at work when the owner looks.
            std::mem::forget(protection);
            copies
        });
        shared.1.close();
        crate::sync::fence(crate::sync::Ordering::SeqCst);
        let is_seen = shared.0.names(None);
        let copies = peer.join().unwrap();
        assert!(is_seen || !copies);
    });
}
