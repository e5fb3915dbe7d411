//! Look-ups of many at a time.
//!
//! In a large table each look-up waits for memory, and it is so long that a processor does not come
//! to the next one meanwhile. So a group of them goes through the table in steps: before a step
//! runs for the first, the memory that it needs is prefetched for all. Only the last step decides,
//! as a single look-up does; the steps before it only say where to look first.

use super::chunk::NameWords;
use super::storage::Storage;
use super::store::Store;
use super::symmetric::{Symmetric, SymmetricLookup};
use super::table::{AvTable, Insertion};
use super::version::Busy;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::types::FiAddr;

/// Look-ups that go step by step together: as many lines as a processor fetches at a time, and
/// some.
const GROUP: usize = 32;

impl AvTable {
    /// As [`name`](Self::name) of each address. Passes each to `found` by its number, in order. In
    /// a table too large for the processor's caches a look-up takes a fraction of the time that it
    /// takes alone, best with 32 or more.
    pub fn lookup_all(&self, addrs: &[FiAddr], mut found: impl FnMut(usize, Option<NativeAddr>)) {
        let mut number = 0;
        for group in addrs.chunks(GROUP) {
            for entry in group.iter().filter_map(|addr| self.model.entry(*addr)) {
                self.store.prefetch(entry);
            }
            for addr in group {
                found(number, self.name(*addr));
                number += 1;
            }
        }
    }

    /// As [`addr`](Self::addr) of each address. Passes each to `found` by its number, in order. In
    /// a table too large for the processor's caches a look-up takes a fraction of the time that it
    /// takes alone, best with 32 or more.
    pub fn find_all(&self, names: &[NativeAddr], mut found: impl FnMut(usize, FiAddr)) {
        let mut number = 0;
        for group in names.chunks(GROUP) {
            self.store.find_all(group, |name, entry| {
                found(number, self.addr_found(name, entry));
                number += 1;
            });
        }
    }
}

impl Insertion<'_> {
    /// Has what the insertion of these will look at first brought closer, before the first of them
    /// is put in.
    pub fn expect<'a>(&self, names: impl Iterator<Item = &'a NativeAddr>) {
        for name in names {
            let name = name.to_words();
            match &self.table.store {
                Storage::Ordinary(store) => store.prefetch_places(store.hash(&name)),
                Storage::Symmetric(table) => drop(table.begin_to_find(&name)),
            }
        }
    }
}

/// The outcome of the search for an address: the entry and its generation.
type LookupOutcome = Result<Option<(u32, u32)>, Busy>;

impl Storage {
    /// Has an entry brought closer that will be looked at soon.
    #[inline]
    fn prefetch(&self, entry: u32) {
        match self {
            Storage::Ordinary(store) => store.prefetch(entry),
            Storage::Symmetric(table) => table.prefetch(entry),
        }
    }

    /// Searches for up to [`GROUP`] addresses.
    #[inline]
    fn find_all(&self, names: &[NativeAddr], found: impl FnMut(&NameWords, LookupOutcome)) {
        match self {
            Storage::Ordinary(store) => find_in_store(store, names, found),
            Storage::Symmetric(table) => find_in_symmetric(table, names, found),
        }
    }
}

/// A search in an ordinary table that is under way.
#[derive(Clone, Copy)]
struct BatchLookup {
    name: NameWords,
    hash: u32,
    /// The entry that is likely to hold it.
    candidate: Option<u32>,
}

fn find_in_store(
    store: &Store,
    names: &[NativeAddr],
    mut found: impl FnMut(&NameWords, LookupOutcome),
) {
    let nothing = BatchLookup {
        name: [0; 8],
        hash: 0,
        candidate: None,
    };
    let mut under_way = [nothing; GROUP];
    let under_way = &mut under_way[..names.len().min(GROUP)];
    for (search, wanted) in under_way.iter_mut().zip(names) {
        search.name = wanted.to_words();
        search.hash = store.hash(&search.name);
        store.prefetch_places(search.hash);
    }
    for search in &mut *under_way {
        search.candidate = store.candidate(search.hash);
        if let Some(entry) = search.candidate {
            store.prefetch(entry);
        }
    }
    for BatchLookup {
        name,
        hash,
        candidate,
    } in &*under_way
    {
        let held = candidate.and_then(|entry| Some((entry, store.incarnation_of(entry, name)?)));
        found(
            name,
            match held {
                Some(found) => Ok(Some(found)),
                None => store.find_hashed(*hash, name),
            },
        );
    }
}

fn find_in_symmetric(
    table: &Symmetric,
    names: &[NativeAddr],
    mut found: impl FnMut(&NameWords, LookupOutcome),
) {
    let mut under_way: [(NameWords, Option<SymmetricLookup>); GROUP] = [([0; 8], None); GROUP];
    let under_way = &mut under_way[..names.len().min(GROUP)];
    for ((name, search), wanted) in under_way.iter_mut().zip(names) {
        *name = wanted.to_words();
        *search = table.begin_to_find(name);
    }
    for search in under_way
        .iter_mut()
        .filter_map(|(_, search)| search.as_mut())
    {
        table.go_on(search);
    }
    for (name, search) in &*under_way {
        found(name, table.end_to_find(name, search.as_ref()));
    }
}
