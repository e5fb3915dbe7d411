use super::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Steps until the writer comes to its end, and the kind of end.
type Sentence = (u32, fn());

thread_local! {
    /// None: it lives.
    static LEFT: Cell<Option<Sentence>> = const { Cell::new(None) };
}

struct Killed;

pub(super) fn step() {
    match LEFT.get() {
        None => {}
        Some((0, end)) => end(),
        Some((n, end)) => LEFT.set(Some((n - 1, end))),
    }
}

pub(crate) fn die() {
    resume_unwind(Box::new(Killed));
}

/// Does something whose writer comes to `end` after so many steps. False: it has fewer.
pub(crate) fn ended_after(steps: u32, end: fn(), operation: impl FnOnce()) -> bool {
    LEFT.set(Some((steps, end)));
    let ended = catch_unwind(AssertUnwindSafe(operation)).is_err();
    LEFT.set(None);
    ended
}

fn name(n: u8) -> NameWords {
    [u64::from(n); 8]
}

fn insert(store: &Store, n: u8) -> u32 {
    match store.place(&name(n), None).unwrap() {
        Placement::New(entry) => entry,
        Placement::Found(entry) => panic!("{n} is in entry {entry}"),
    }
}

/// All that is in, by entry, after a look at whether all ways lead there.
fn contents(store: &Store) -> BTreeMap<u32, u8> {
    let all: BTreeMap<_, _> = store
        .entries()
        .map(|(entry, generation, found)| {
            assert_eq!((found, generation & 1), (name(found[0] as u8), 1));
            assert_eq!(store.find(&found).unwrap(), Some((entry, generation)));
            (entry, found[0] as u8)
        })
        .collect();
    assert_eq!(store.len(), all.len());
    for n in 0..=u8::MAX {
        let found = store.find(&name(n)).unwrap();
        assert_eq!(found.is_some(), all.values().any(|m| *m == n), "{n}");
    }
    all
}

/// A writer is killed at each of its steps; the next one finds the state before or after the
/// change, and every index.
///
/// Covers: AV-4
#[test]
fn the_next_writer_mends_the_table_of_a_killed_one() {
    let operations: [fn(&Store); 3] = [
        |store| {
            insert(store, 100);
        },
        |store| store.clear(7, |_| true),
        |store| store.clear(7, |_| false),
    ];
    for (number, operation) in operations.into_iter().enumerate() {
        let mut kills = 0;
        loop {
            let store = Store::private(0).unwrap();
            for n in 0..50 {
                insert(&store, n);
            }
            store.clear(3, |_| true);
            let before = contents(&store);
            let killed = ended_after(kills, die, || operation(&store));
            assert_eq!(store.is_torn(), killed, "operation {number} step {kills}");
            if killed {
                store.mend(|entry| store.generation(entry) & 1 == 1);
            }
            assert!(!store.is_torn());
            let mut after = before.clone();
            match number {
                0 => after.insert(3, 100),
                _ => after.remove(&7),
            };
            let now = contents(&store);
            assert!(
                now == before || now == after,
                "operation {number} step {kills}"
            );
            // Every entry that has no address can be had, but one that is not to be used again.
            for n in now.len() as u8..80 {
                let entry = insert(&store, 150 + n);
                assert!(!now.contains_key(&entry));
                assert!(
                    entry < 80 + u32::from(number == 2),
                    "entry {entry}, step {kills}"
                );
            }
            if !killed {
                assert_eq!(now, after);
                break;
            }
            kills += 1;
        }
        assert!(kills >= 4, "{kills} steps in operation {number}");
    }
}
