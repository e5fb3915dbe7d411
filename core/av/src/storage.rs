//! The storage of a table's entries, as the table uses it: each address whole, or nodes and
//! endpoints apart.
//!
//! Both kinds keep the same contract: readers take no lock, and writers hold the table's turn.

use super::arena::PieceArena;
use super::chunk::NameWords;
use super::head::TableHead;
use super::store::{Placement, Store};
use super::symmetric::Symmetric;
use super::version::Busy;
use ferrofabric_contracts::error::Result;

/// Entries and index.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one a table, and the ordinary kind is found without a further pointer"
)]
pub(super) enum Storage {
    /// Each address is whole; processes may share it.
    Ordinary(Store),
    /// Nodes and endpoints are apart (`FI_SYMMETRIC`).
    Symmetric(Box<Symmetric>),
}

/// The same of either kind.
macro_rules! of_either {
    ($storage:expr, $one:ident => $of_one:expr) => {
        match $storage {
            Storage::Ordinary($one) => $of_one,
            Storage::Symmetric($one) => $of_one,
        }
    };
}

impl Storage {
    /// Addresses that are in.
    pub(super) fn len(&self) -> usize {
        of_either!(self, one => one.len())
    }

    /// Bytes that all takes when all entries that there is room for are used.
    pub(super) fn bytes(&self) -> usize {
        of_either!(self, one => one.bytes())
    }

    /// Where memory beside the entries comes from, and the words of a table in a file; `None` where
    /// it is a process's own.
    pub(super) fn shared(&self) -> Option<(&PieceArena, &TableHead)> {
        match self {
            Storage::Ordinary(store) => Some((store.arena(), store.head())),
            Storage::Symmetric(_) => None,
        }
    }

    /// The address of an entry and its incarnation, where one is in.
    #[inline(always)]
    pub(super) fn read(&self, entry: u32) -> Option<(NameWords, u32)> {
        of_either!(self, one => one.read(entry))
    }

    /// The generation of an entry, odd while an address is in.
    #[inline]
    pub(super) fn generation(&self, entry: u32) -> u32 {
        of_either!(self, one => one.generation(entry))
    }

    /// The generation of an entry, and above it how often the address in the entry was replaced.
    /// Only processes that share a table need the latter.
    pub(super) fn incarnation(&self, entry: u32) -> u32 {
        match self {
            Storage::Ordinary(store) => store.incarnation(entry),
            Storage::Symmetric(table) => table.generation(entry),
        }
    }

    /// The entry of an address and its generation. `Err`: writers were at work all the time.
    #[inline]
    pub(super) fn find(&self, name: &NameWords) -> Result<Option<(u32, u32)>, Busy> {
        of_either!(self, one => one.find(name))
    }

    /// Every entry that has an address, from the lowest.
    pub(super) fn entries(&self) -> Box<dyn Iterator<Item = (u32, u32, NameWords)> + '_> {
        of_either!(self, one => Box::new(one.entries()))
    }

    /// Number of changes so far, of a table that processes share.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        match self {
            Storage::Ordinary(store) => store.changes(),
            Storage::Symmetric(_) => 0,
        }
    }

    /// Number of changes so far, and the entries that changed since there were `seen`.
    pub(super) fn changed_since(&self, seen: u64) -> (u64, Vec<u32>) {
        match self {
            Storage::Ordinary(store) => store.changed_since(seen),
            Storage::Symmetric(_) => (0, Vec::new()),
        }
    }

    /// Whether a writer is at work, or died at it.
    pub(super) fn is_torn(&self) -> bool {
        match self {
            Storage::Ordinary(store) => store.is_torn(),
            Storage::Symmetric(_) => false,
        }
    }

    // The methods below are for writers.

    /// The entry of an address and its generation.
    pub(super) fn search(&self, name: &NameWords) -> Option<(u32, u32)> {
        match self {
            Storage::Ordinary(store) => store.search(store.hash(name), name),
            Storage::Symmetric(table) => table.search(name),
        }
    }

    /// Puts an address in a reserved entry or in the lowest free one, unless it is there already.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(super) fn place(&self, name: &NameWords, reserved: Option<u32>) -> Result<Placement> {
        of_either!(self, one => one.place(name, reserved))
    }

    /// Takes the lowest free entry.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(super) fn take(&self) -> Result<u32> {
        match self {
            Storage::Ordinary(store) => store.take().inspect(|_| store.settle()),
            Storage::Symmetric(table) => table.take(),
        }
    }

    /// Gives back an entry that was taken.
    pub(super) fn give_back(&self, entry: u32) {
        of_either!(self, one => one.give_back(entry));
    }

    /// Makes sure that an entry can be cleared.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory for its generation.
    pub(super) fn make_removable(&self, entry: u32) -> Result<()> {
        match self {
            Storage::Ordinary(_) => Ok(()),
            Storage::Symmetric(table) => table.make_removable(entry),
        }
    }

    /// Takes the address out of an entry that was [made removable](Self::make_removable), if one is
    /// in: it may be unresolved. The entry is free afterwards if `reusable` says so of its new
    /// generation.
    pub(super) fn clear(&self, entry: u32, reusable: impl Fn(u32) -> bool) {
        of_either!(self, one => one.clear(entry, reusable));
    }

    /// Takes the address out of an entry, which stays taken and keeps its generation: another
    /// address is put in.
    pub(super) fn vacate(&self, entry: u32) {
        of_either!(self, one => one.vacate(entry));
    }

    /// Lists a change of an entry that stays as it is, for the other processes: its socket address.
    pub(super) fn list_change(&self, entry: u32) {
        if let Storage::Ordinary(store) = self {
            store.list_change(entry);
        }
    }

    /// Mends what a writer left that was killed, and says which entry it was at. `is_taken` says
    /// whether an entry is.
    pub(super) fn mend(&self, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
        match self {
            Storage::Ordinary(store) if store.is_torn() => store.mend(is_taken),
            _ => None,
        }
    }
}
