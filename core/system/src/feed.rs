//! A list that one thread writes and any number of others follow, each at its own pace. None of
//! them waits for another, and the writer allocates nothing. Who falls far behind does not learn
//! what it has missed, only that it has.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering, fence};

/// Entries that are kept.
const KEPT: u64 = if cfg!(loom) { 2 } else { 1024 };

/// Entries that are listed at a time, at most.
pub const AT_A_TIME: usize = if cfg!(loom) { 1 } else { 64 };

/// In the state: entries are being listed. Above it stands how many were.
const LISTING: u64 = 1;

#[derive(Debug)]
struct Shared {
    state: AtomicU64,
    slots: Box<[Slot]>,
}

/// An entry, two words.
#[derive(Debug)]
struct Slot([AtomicU64; 2]);

/// The side that lists.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    listed: u64,
}

/// A side that follows.
#[derive(Clone, Debug)]
pub struct Follower {
    shared: Arc<Shared>,
    seen: u64,
}

/// What a follower is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// An entry.
    Entry([u64; 2]),
    /// Entries have been missed.
    Missed,
}

/// An empty list.
pub fn feed() -> (Writer, Follower) {
    let slots = (0..KEPT).map(|_| Slot([AtomicU64::new(0), AtomicU64::new(0)]));
    let shared = Arc::new(Shared {
        state: AtomicU64::new(0),
        slots: slots.collect(),
    });
    let writer = Writer {
        shared: Arc::clone(&shared),
        listed: 0,
    };
    (writer, Follower { shared, seen: 0 })
}

impl Writer {
    /// Begins to list. Until that ends, followers hear that something is under way: so what becomes
    /// known to others between here and the end is either told or waited for, never overlooked.
    pub fn begin(&mut self) -> Listing<'_> {
        (self.shared.state).store((self.listed << 1) | LISTING, Ordering::Relaxed);
        // Before the entries, and before whatever makes them known to others.
        fence(Ordering::SeqCst);
        Listing {
            from: self.listed,
            writer: self,
        }
    }
}

/// Entries are being listed; it ends when this is dropped.
#[derive(Debug)]
pub struct Listing<'a> {
    writer: &'a mut Writer,
    from: u64,
}

impl Listing<'_> {
    /// Lists an entry.
    ///
    /// # Panics
    ///
    /// Above [`AT_A_TIME`].
    pub fn add(&mut self, entry: [u64; 2]) {
        let Writer { shared, listed } = &mut *self.writer;
        assert!(*listed - self.from < AT_A_TIME as u64, "too many at a time");
        let Slot(words) = &shared.slots[(*listed % KEPT) as usize];
        for (word, value) in words.iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
        *listed += 1;
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let Writer { shared, listed } = &*self.writer;
        shared.state.store(*listed << 1, Ordering::Release);
    }
}

impl Follower {
    /// Whether something was listed that it was not told, or is being listed.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) != self.seen << 1
    }

    /// Tells what was listed since the last time. `false`, and nothing is told, while something is
    /// being listed.
    #[must_use]
    pub fn catch_up(&mut self, mut tell: impl FnMut(Told)) -> bool {
        let state = self.shared.state.load(Ordering::Acquire);
        if state & LISTING != 0 {
            return false;
        }
        let (from, listed) = (self.seen, state >> 1);
        self.seen = listed;
        if Self::is_lost(from, listed) {
            tell(Told::Missed);
            return true;
        }
        for number in from..listed {
            let Slot(words) = &self.shared.slots[(number % KEPT) as usize];
            let [a, b] = words;
            tell(Told::Entry([
                a.load(Ordering::Relaxed),
                b.load(Ordering::Relaxed),
            ]));
        }
        // Written over meanwhile, what was told may be of two entries.
        fence(Ordering::Acquire);
        let now = self.shared.state.load(Ordering::Relaxed) >> 1;
        if from != listed && Self::is_lost(from, now) {
            tell(Told::Missed);
        }
        true
    }

    /// Whether the entry may have been written over when so many were listed and further ones
    /// perhaps begun.
    fn is_lost(entry: u64, listed: u64) -> bool {
        listed - entry > KEPT - AT_A_TIME as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn told(follower: &mut Follower) -> Vec<Told> {
        let mut told = Vec::new();
        assert!(follower.catch_up(|what| told.push(what)));
        told
    }

    #[test]
    fn each_follower_is_told_all_of_it_once() {
        let (mut writer, mut one) = feed();
        let mut other = one.clone();
        let mut listing = writer.begin();
        listing.add([1, 2]);
        assert!(one.is_behind());
        assert!(!one.catch_up(|_| panic!("told before it is whole")));
        listing.add([3, 4]);
        drop(listing);
        let all = [Told::Entry([1, 2]), Told::Entry([3, 4])];
        assert_eq!(told(&mut one), all);
        assert_eq!(told(&mut one), []);
        assert!(!one.is_behind());
        writer.begin().add([5, 6]);
        assert_eq!(told(&mut one), [Told::Entry([5, 6])]);
        assert_eq!(
            told(&mut other),
            [&all[..], &[Told::Entry([5, 6])]].concat()
        );
    }

    #[test]
    fn who_is_far_behind_hears_that_it_has_missed_some() {
        let (mut writer, mut follower) = feed();
        for number in 0..KEPT {
            writer.begin().add([number, number]);
        }
        assert_eq!(told(&mut follower), [Told::Missed]);
        writer.begin().add([7, 7]);
        assert_eq!(told(&mut follower), [Told::Entry([7, 7])]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::sync::explore;

    /// Whatever was listed before a follower looks it is told, or that it missed some, also while
    /// the writer writes over it. Fails without either fence, and without the second look at how
    /// many were listed.
    #[test]
    fn no_entry_is_torn_or_missed() {
        explore(3, || {
            let (mut writer, mut follower) = feed();
            writer.begin().add([1, 1]);
            let listing = thread::spawn(move || (2..=4).for_each(|n| writer.begin().add([n, n])));
            let (mut last, mut missed, mut torn) = (0, false, false);
            let looked = follower.catch_up(|told| match told {
                Told::Missed => missed = true,
                Told::Entry([a, b]) => {
                    torn |= a != b || a != last + 1;
                    last = a;
                }
            });
            assert!(missed || !torn);
            assert!(!looked || missed || last >= 1);
            listing.join().unwrap();
            let mut missed_later = false;
            let looked_later = follower.catch_up(|told| match told {
                Told::Missed => missed_later = true,
                Told::Entry([a, _]) => last = a,
            });
            assert!(looked_later && (missed_later || last == 4));
        });
    }

    /// What others know of because it was listed is told: the writer says it between beginning and
    /// end, as the kernel does when an event is read. Fails if a look ignores that something is
    /// being listed.
    #[test]
    fn what_is_known_is_told_or_waited_for() {
        explore(3, || {
            let (mut writer, mut follower) = feed();
            let known = loom::sync::Arc::new(AtomicU64::new(0));
            let theirs = loom::sync::Arc::clone(&known);
            let listing = thread::spawn(move || {
                let mut listing = writer.begin();
                theirs.store(1, Ordering::Release);
                listing.add([1, 1]);
            });
            let is_known = known.load(Ordering::Acquire) == 1;
            let mut told = 0;
            let looked = follower.catch_up(|_| told += 1);
            assert!(!is_known || !looked || told == 1);
            listing.join().unwrap();
        });
    }
}
