//! The users' own IDs of addresses (`FI_AV_USER_ID`, fi_av(3)), which completions report in place
//! of an address. They are a process's own, also where it shares the addresses.

use super::chunk::GENERATION;
use super::column::Column;
use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::sync::{AtomicBool, Mutex, Ordering};

/// The IDs of one address vector, by entry.
pub(super) struct Ids {
    /// Inverted: 0 is "none".
    inverted: Column,
    any: AtomicBool,
    /// Every address has one; until it is set it is [`FiAddr::NOTAVAIL`].
    all: bool,
    /// The generations that IDs were set for, where those tell one address in an entry from the
    /// next: in maps, whose addresses hold them, and where other processes change entries. There
    /// this process learns of a change later than of the next address, whose ID may be set by then.
    generations: Option<Column>,
    /// For those who change both.
    writers: Mutex<()>,
}

impl Ids {
    /// No IDs yet. With `all` (the flag at opening) completions never report an address.
    pub(super) fn new(all: bool) -> Self {
        Self {
            inverted: Column::default(),
            any: AtomicBool::new(all),
            all,
            generations: None,
            writers: Mutex::default(),
        }
    }

    /// The same, and each ID counts for the generation of its entry that it was set for.
    pub(super) fn by_generation(all: bool) -> Self {
        Self {
            generations: Some(Column::default()),
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

    /// The ID of an address in an entry; `addr` if it has none. `is_of` says whether the address is
    /// of a generation.
    pub(super) fn of(&self, entry: u32, addr: FiAddr, is_of: impl Fn(u32) -> bool) -> FiAddr {
        match self.inverted_of(entry, is_of) {
            0 if self.all => FiAddr::NOTAVAIL,
            0 => addr,
            inverted => FiAddr(!inverted),
        }
    }

    fn inverted_of(&self, entry: u32, is_of: impl Fn(u32) -> bool) -> u64 {
        let Some(generations) = &self.generations else {
            return self.inverted.get(entry);
        };
        let (Some(generation), Some(inverted)) =
            (generations.there(entry), self.inverted.there(entry))
        else {
            return 0;
        };
        // A writer takes the ID away before it changes the generation.
        let before = generation.load(Ordering::Acquire);
        let id = inverted.load(Ordering::Acquire);
        match generation.load(Ordering::Relaxed) == before && is_of(before as u32) {
            true => id,
            false => 0,
        }
    }

    /// Gives an entry an ID, as long as it is of this generation.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory.
    pub(super) fn set(&self, entry: u32, generation: u32, id: FiAddr) -> Result<()> {
        let word = self.inverted.make(entry)?;
        let _turn = self.writers.lock();
        if let Some(all) = &self.generations {
            let of = all.make(entry)?;
            word.store(0, Ordering::Relaxed);
            of.store(generation.into(), Ordering::Release);
        }
        word.store(!id.0, Ordering::Release);
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// An entry is of this generation: an ID of an earlier one is no more.
    pub(super) fn forget_before(&self, entry: u32, generation: u32) {
        let _turn = self.writers.lock();
        let of = self.generations.as_ref().map_or(0, |all| all.get(entry)) as u32;
        // Generations wrap around.
        let ahead = generation.wrapping_sub(of) << GENERATION.leading_zeros();
        if (ahead as i32) > 0 {
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
    use ferrofabric_system::sync::explore;

    /// An address that was removed is never reported by the ID of the next one in its entry, nor
    /// the other way round, beside a thread that sets that one. Fails where the writer does not
    /// take the first ID away before it changes the generation.
    #[test]
    fn an_id_of_another_generation_is_never_seen() {
        explore(3, || {
            let ids = Arc::new(Ids::by_generation(false));
            ids.set(0, 1, FiAddr(5)).unwrap();
            let theirs = Arc::clone(&ids);
            let other = thread::spawn(move || theirs.set(0, 3, FiAddr(7)).unwrap());
            let of = |generation, addr| ids.of(0, addr, |one| one == generation);
            assert!([FiAddr(5), FiAddr(100)].contains(&of(1, FiAddr(100))));
            assert!([FiAddr(7), FiAddr(300)].contains(&of(3, FiAddr(300))));
            other.join().unwrap();
            assert_eq!(of(3, FiAddr(300)), FiAddr(7));
            assert_eq!(of(1, FiAddr(100)), FiAddr(100));
        });
    }

    /// IDs are there once they are set, also where two threads are the first to set one, and no
    /// reader sees another entry's. Fails where each thread keeps the piece that it has made.
    #[test]
    fn ids_that_are_set_at_once_are_all_there() {
        explore(3, || {
            let ids = Arc::new(Ids::new(false));
            let addr = |entry: u32| FiAddr(entry.into());
            let id = |entry: u32| FiAddr(u64::from(entry) + 5);
            let theirs = Arc::clone(&ids);
            let other = thread::spawn(move || {
                theirs.set(1, 1, id(1)).unwrap();
                let seen = theirs.of(0, addr(0), |_| true);
                assert!([addr(0), id(0)].contains(&seen), "{seen:?}");
            });
            ids.set(0, 1, id(0)).unwrap();
            let seen = ids.of(1, addr(1), |_| true);
            assert!([addr(1), id(1)].contains(&seen), "{seen:?}");
            other.join().unwrap();
            assert!(ids.are_any());
            assert_eq!(
                [0, 1].map(|entry| ids.of(entry, addr(entry), |_| true)),
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
            assert_eq!(ids.of(entry, addr, |_| true), addr);
            ids.set(entry, 1, id).unwrap();
            assert_eq!(ids.of(entry, addr, |_| true), id);
        }
        assert!(ids.are_any());
        for entry in entries {
            assert_eq!(
                ids.of(entry, FiAddr(9), |_| true),
                FiAddr(u64::from(entry) + 5)
            );
            ids.forget(entry);
            assert_eq!(ids.of(entry, FiAddr(9), |_| true), FiAddr(9));
        }
        assert_eq!(Ids::new(true).of(7, FiAddr(7), |_| true), FiAddr::NOTAVAIL);
    }

    #[test]
    fn an_id_is_its_generations_alone() {
        for all in [false, true] {
            let ids = Ids::by_generation(all);
            let without = |addr| if all { FiAddr::NOTAVAIL } else { addr };
            let of = |generation: u32| {
                let addr = FiAddr((u64::from(generation) << 32) | 3);
                (ids.of(3, addr, |one| one == generation), addr)
            };
            ids.set(3, 1, FiAddr(9)).unwrap();
            assert_eq!(of(1).0, FiAddr(9));
            assert_eq!(of(3).0, without(of(3).1));
            ids.set(3, 3, FiAddr(11)).unwrap();
            assert_eq!(of(3).0, FiAddr(11));
            assert_eq!(of(1).0, without(of(1).1));
        }
    }

    #[test]
    fn an_id_stays_until_its_address_goes_whenever_the_removal_is_seen() {
        let (addr, id) = (FiAddr(3), FiAddr(9));
        for own in [1, 0x7fff_ffff, u32::MAX] {
            let ids = Ids::by_generation(false);
            ids.set(3, own, id).unwrap();
            for before in [own.wrapping_sub(2), own.wrapping_sub(1), own] {
                ids.forget_before(3, before);
                assert_eq!(ids.of(3, addr, |_| true), id, "{before} of {own}");
            }
            ids.forget_before(3, own.wrapping_add(1));
            assert_eq!(ids.of(3, addr, |_| true), addr, "{own}");
        }
    }
}
