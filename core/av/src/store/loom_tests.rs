//! Every interleaving of a process that follows the changes of a table and one that makes them.
//! (The ring is shorter there than elsewhere: `cfg(loom)`.)

use loom::sync::Arc;
use loom::thread;

use super::*;
use ferrofabric_system::sync::explore;

/// The entry that a change is of.
fn of(change: u64) -> u32 {
    (change % 2) as u32
}

/// A follower gets every change, also while the ring is written over. Fails without either fence or
/// the second look at the number of changes.
#[test]
fn no_change_is_missed() {
    explore(3, || {
        let head = MappedWords::private(head::SHARED_BYTES).unwrap();
        let store = Arc::new(Store::create(TableHead(head), PieceArena::Private, 0).unwrap());
        store.note(of(0));
        let theirs = Arc::clone(&store);
        let writer = thread::spawn(move || {
            let last = head::RING as u64 + 1;
            (1..=last).for_each(|change| theirs.note(of(change)));
        });
        let (now, listed) = store.changed_since(1);
        assert!(
            (1..now).all(|change| listed.contains(&of(change))),
            "{listed:?}"
        );
        writer.join().unwrap();
        let (end, listed) = store.changed_since(now);
        assert!((now..end).all(|change| listed.contains(&of(change))));
    });
}
