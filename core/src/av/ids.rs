//! The users' own IDs of addresses (`FI_AV_USER_ID`, fi_av(3)): what completions report in place of an address. They are a
//! process's own, also where it shares the addresses.

use super::column::Column;
use crate::error::Result;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::types::FiAddr;

/// The IDs of one address vector, by entry.
pub(super) struct Ids {
    /// Inverted: 0 is "none".
    inverted: Column,
    any: AtomicBool,
    /// Every address has one; until it is set it is [`FiAddr::NOTAVAIL`].
    all: bool,
    /// Where other processes change entries, the generations that IDs were set for: this process
    /// learns of a change later than of the next address in the same entry, whose ID may be set by
    /// then.
    generations: Option<Mutex<Column>>,
}

impl Ids {
    /// No IDs yet. With `all` (the flag at opening) completions never report an address.
    pub(super) fn new(all: bool) -> Self {
        Self {
            inverted: Column::default(),
            any: AtomicBool::new(all),
            all,
            generations: None,
        }
    }

    /// The same for a table that other processes change, too.
    pub(super) fn of_shared(all: bool) -> Self {
        Self {
            generations: Some(Mutex::default()),
            ..Self::new(all)
        }
    }

    /// Whether every address has one.
    pub(super) fn are_all(&self) -> bool {
        self.all
    }

    /// Whether completions report other than addresses. Costs a load.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The ID of an entry; `addr` if it has none of its own.
    pub(super) fn of(&self, entry: u32, addr: FiAddr) -> FiAddr {
        match self.inverted.get(entry) {
            0 if self.all => FiAddr::NOTAVAIL,
            0 => addr,
            inverted => FiAddr(!inverted),
        }
    }

    /// Gives an entry an ID, as long as it is of this generation.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory.
    pub(super) fn set(&self, entry: u32, generation: u32, id: FiAddr) -> Result<()> {
        let word = self.inverted.make(entry)?;
        let generations = self.generations.as_ref().map(|all| all.lock());
        if let Some(all) = &generations {
            all.make(entry)?.store(generation.into(), Ordering::Relaxed);
        }
        word.store(!id.0, Ordering::Relaxed);
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// An entry is of this generation: an ID of an earlier one is no more.
    pub(super) fn forget_before(&self, entry: u32, generation: u32) {
        let generations = self.generations.as_ref().map(|all| all.lock());
        let of = generations.as_ref().map_or(0, |all| all.get(entry)) as u32;
        // Generations wrap around.
        if (generation.wrapping_sub(of) as i32) > 0 {
            self.forget(entry);
        }
    }

    /// An entry has another address now, or none.
    pub(super) fn forget(&self, entry: u32) {
        if let Some(word) = self.inverted.there(entry) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::explore;

    /// IDs are there once they are set, also where two threads are the first to set one, and no reader sees another entry's.
    /// Fails where each thread keeps the piece that it has made.
    #[test]
    fn ids_that_are_set_at_once_are_all_there() {
        explore(3, || {
            let ids = Arc::new(Ids::new(false));
            let addr = |entry: u32| FiAddr(entry.into());
            let id = |entry: u32| FiAddr(u64::from(entry) + 5);
            let theirs = Arc::clone(&ids);
            let other = thread::spawn(move || {
                theirs.set(1, 1, id(1)).unwrap();
                let seen = theirs.of(0, addr(0));
                assert!([addr(0), id(0)].contains(&seen), "{seen:?}");
            });
            ids.set(0, 1, id(0)).unwrap();
            let seen = ids.of(1, addr(1));
            assert!([addr(1), id(1)].contains(&seen), "{seen:?}");
            other.join().unwrap();
            assert!(ids.are_any());
            assert_eq!(
                [0, 1].map(|entry| ids.of(entry, addr(entry))),
                [0, 1].map(id)
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_entrys_alone() {
        let ids = Ids::new(false);
        assert!(!ids.are_any());
        let entries = [0, 1, 1023, 1024, 2047, 2048, 4096, 1 << 20];
        for entry in entries {
            let (addr, id) = (FiAddr(entry.into()), FiAddr(u64::from(entry) + 5));
            assert_eq!(ids.of(entry, addr), addr);
            ids.set(entry, 1, id).unwrap();
            assert_eq!(ids.of(entry, addr), id);
        }
        assert!(ids.are_any());
        for entry in entries {
            assert_eq!(ids.of(entry, FiAddr(9)), FiAddr(u64::from(entry) + 5));
            ids.forget(entry);
            assert_eq!(ids.of(entry, FiAddr(9)), FiAddr(9));
        }
        assert_eq!(Ids::new(true).of(7, FiAddr(7)), FiAddr::NOTAVAIL);
    }

    #[test]
    fn an_id_stays_until_its_address_goes_whenever_that_is_heard_of() {
        let (addr, id) = (FiAddr(3), FiAddr(9));
        for own in [1, 0x7fff_ffff, u32::MAX] {
            let ids = Ids::of_shared(false);
            ids.set(3, own, id).unwrap();
            for before in [own.wrapping_sub(2), own.wrapping_sub(1), own] {
                ids.forget_before(3, before);
                assert_eq!(ids.of(3, addr), id, "{before} of {own}");
            }
            ids.forget_before(3, own.wrapping_add(1));
            assert_eq!(ids.of(3, addr), addr, "{own}");
        }
    }
}
