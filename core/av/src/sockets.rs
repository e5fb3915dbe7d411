//! The socket addresses by which endpoints were inserted (fi_av(3)): beside the entries, in memory
//! of the same kind, which is taken when the first comes.
//!
//! A slot names the generation of its entry, so it goes with that; of an unresolved entry, the
//! generation that it will have. A map of this process leads from a socket address to its entry; it
//! learns of the entries of other processes in a named table by the changes of that.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::arena::{ArenaPieces, PieceArena};
use super::doubling::Doubling;
use super::head::HeadWord;
use super::storage::Storage;
use super::words::MappedWords;
use ferrofabric_contracts::error::Result;
use ferrofabric_system::sync::Ordering::{Acquire, Relaxed, Release};
use ferrofabric_system::sync::{AtomicU64, Mutex, fence};

const PIECES: Doubling = Doubling::new(if cfg!(loom) { 1 } else { 10 });

/// Words of a slot: its owner (generation, count of changes, family, port), scope and flow, and the
/// IP address.
const SLOT_WORDS: usize = 4;

/// Where a slot's first word has its family, and its count of changes: not every table counts an
/// entry's generations.
const FAMILY_AT: u32 = 16;
const CHANGES_AT: u32 = 19;
const CHANGES: u64 = (1 << 32) - (1 << CHANGES_AT);

/// Addresses that the map of a process may have beyond twice those that it had when it was cleared
/// of old ones.
const SPARE: usize = 64;

/// The socket addresses of one table.
#[derive(Default)]
pub(super) struct Sockets {
    pieces: ArenaPieces,
    known: Mutex<Known>,
}

/// Where an address was when this process last saw it.
#[derive(Default)]
struct Known {
    entries: HashMap<SocketAddr, u32>,
    /// Addresses that were in the table when it was cleared of others.
    kept: usize,
    /// Changes of a shared table that are in it.
    seen: u64,
}

impl Sockets {
    /// The piece of this number, if one was made.
    fn piece(&self, store: &Storage, number: usize) -> Option<&MappedWords> {
        if let Some(piece) = self.pieces.get(number)?.get() {
            return Some(piece);
        }
        // Another process may have made it.
        let (arena, head) = store.shared()?;
        let offset = head.sockets_at(number);
        let piece = arena.piece(&self.pieces, number, bytes(number), offset);
        piece.ok()
    }

    /// The same, made where there is none. For writers.
    fn make(&self, store: &Storage, number: usize) -> Result<&MappedWords> {
        let bytes = bytes(number);
        match store.shared() {
            Some((arena, head)) => {
                let places = (head.word(HeadWord::End), head.sockets_at(number));
                arena.create(&self.pieces, number, bytes, places)
            }
            None => {
                let made = (&AtomicU64::new(0), &AtomicU64::new(0));
                PieceArena::Private.create(&self.pieces, number, bytes, made)
            }
        }
    }

    /// The address of an entry, as long as the entry is of this generation.
    pub(super) fn of(&self, store: &Storage, entry: u32, generation: u32) -> Option<SocketAddr> {
        let (number, at) = PIECES.place(entry);
        let piece = self.piece(store, number)?;
        let [first, rest @ ..] = slot(piece, number, at);
        // Pairs with the Release store in `set`.
        let what = first.load(Acquire);
        let rest = rest.each_ref().map(|word| word.load(Relaxed));
        // Pairs with the Release fence in `set`.
        fence(Acquire);
        let whole = first.load(Relaxed) == what && (what >> 32) as u32 == generation;
        whole.then(|| unpacked(what, rest))
    }

    /// Gives an entry of this generation an address. For writers.
    pub(super) fn set(
        &self,
        store: &Storage,
        entry: u32,
        generation: u32,
        at: &SocketAddr,
    ) -> Result<()> {
        let (number, index) = PIECES.place(entry);
        let piece = self.make(store, number)?;
        let [first, rest @ ..] = slot(piece, number, index);
        let (what, values) = packed(generation, at);
        let changes = first.load(Relaxed).wrapping_add(1 << CHANGES_AT) & CHANGES;
        first.store(changes, Relaxed);
        // Pairs with the Acquire fence in `of`.
        fence(Release);
        for (word, value) in rest.iter().zip(values) {
            word.store(value, Relaxed);
        }
        // Pairs with the Acquire load in `of`.
        first.store(what | changes, Release);
        self.known.lock().note(*at, entry, store, self);
        Ok(())
    }

    /// An entry has no address any more; not every table counts its generations. For writers.
    pub(super) fn forget(&self, store: &Storage, entry: u32) {
        let (number, at) = PIECES.place(entry);
        if let Some(piece) = self.piece(store, number) {
            let first = &slot(piece, number, at)[0];
            first.store(first.load(Relaxed) & CHANGES, Relaxed);
        }
    }

    /// Whether this process has seen none.
    pub(super) fn is_empty(&self) -> bool {
        self.known.lock().entries.is_empty()
    }

    /// The entry of an address and the generation that it has or, unresolved, will have.
    pub(super) fn find(&self, store: &Storage, at: &SocketAddr) -> Option<(u32, u32)> {
        let mut known = self.known.lock();
        known.catch_up(store, self);
        let entry = *known.entries.get(at)?;
        let generation = store.generation(entry) | 1;
        (self.of(store, entry, generation)? == *at).then_some((entry, generation))
    }
}

impl Known {
    fn note(&mut self, at: SocketAddr, entry: u32, store: &Storage, sockets: &Sockets) {
        if self.entries.len() > 2 * self.kept + SPARE {
            self.entries.retain(|at, entry| {
                let generation = store.generation(*entry) | 1;
                sockets.of(store, *entry, generation) == Some(*at)
            });
            self.kept = self.entries.len();
        }
        self.entries.insert(at, entry);
    }

    /// Enters what has come to a shared table since the last time.
    fn catch_up(&mut self, store: &Storage, sockets: &Sockets) {
        if store.changes() == self.seen {
            return;
        }
        let (now, changed) = store.changed_since(self.seen);
        self.seen = now;
        for entry in changed {
            let generation = store.generation(entry) | 1;
            if let Some(at) = sockets.of(store, entry, generation) {
                self.note(at, entry, store, sockets);
            }
        }
    }
}

fn packed(generation: u32, at: &SocketAddr) -> (u64, [u64; SLOT_WORDS - 1]) {
    let (family, ip, scope, flow) = match at {
        SocketAddr::V4(at) => (4u64, at.ip().to_ipv6_mapped(), 0, 0),
        SocketAddr::V6(at) => (6, *at.ip(), at.scope_id(), at.flowinfo()),
    };
    let ip = u128::from(ip);
    (
        (u64::from(generation) << 32) | (family << FAMILY_AT) | u64::from(at.port()),
        [
            (u64::from(scope) << 32) | u64::from(flow),
            (ip >> 64) as u64,
            ip as u64,
        ],
    )
}

fn unpacked(what: u64, [scope_and_flow, high, low]: [u64; SLOT_WORDS - 1]) -> SocketAddr {
    let (family, port) = ((what & !CHANGES) as u32 >> FAMILY_AT, what as u16);
    let ip = Ipv6Addr::from((u128::from(high) << 64) | u128::from(low));
    match family {
        4 => SocketAddr::new(IpAddr::V6(ip).to_canonical(), port),
        _ => {
            let (scope, flow) = ((scope_and_flow >> 32) as u32, scope_and_flow as u32);
            SocketAddrV6::new(ip, port, flow, scope).into()
        }
    }
}

fn bytes(number: usize) -> usize {
    8 * SLOT_WORDS * PIECES.len(number)
}

fn slot(piece: &MappedWords, number: usize, at: usize) -> &[AtomicU64; SLOT_WORDS] {
    let words = piece.u64s(0, SLOT_WORDS * PIECES.len(number));
    match words[SLOT_WORDS * at..].first_chunk() {
        Some(slot) => slot,
        None => unreachable!("a piece has whole slots"),
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::store::Store;
    use ferrofabric_system::sync::explore;

    /// A reader gets an entry of this generation whole or not at all while it becomes another's, of
    /// this generation.
    fn read_while_replaced(generation: u32, by: u32) {
        explore(1, move || {
            let store = Storage::Ordinary(Store::private(0).unwrap());
            let known = Arc::new((store, Sockets::default()));
            let [before, after] = [1, 2].map(|n| SocketAddr::from(([n; 16], 7)));
            known.1.set(&known.0, 0, 1, &before).unwrap();
            let theirs = Arc::clone(&known);
            let writer = thread::spawn(move || {
                let (store, sockets) = &*theirs;
                sockets.forget(store, 0);
                sockets.set(store, 0, by, &after).unwrap();
            });
            let (store, sockets) = &*known;
            let may_be = [(1, before), (by, after)];
            let seen = sockets.of(store, 0, generation);
            let is_whole = |seen| may_be.contains(&(generation, seen));
            assert!(seen.is_none_or(is_whole), "{seen:?}");
            writer.join().unwrap();
            assert_eq!(sockets.of(store, 0, by), Some(after));
        });
    }

    /// Fails without the second look at a slot's first word and without the fence before it.
    #[test]
    fn a_socket_address_is_read_whole_while_it_goes() {
        read_while_replaced(1, 3);
    }

    /// Fails without the pair of orderings that publishes the address.
    #[test]
    fn a_socket_address_is_read_whole_as_it_comes() {
        read_while_replaced(3, 3);
    }

    /// Where entries have no generations, and both are of one port. Fails where slots do not count
    /// their changes.
    #[test]
    fn a_socket_address_is_read_whole_though_its_entry_has_no_generations() {
        read_while_replaced(1, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AvAttr;
    use crate::format::{AddrTarget, ParsedAddr};
    use crate::table::{AvTable, Placed};
    use ferrofabric_contracts::addr::NativeAddr;
    use ferrofabric_contracts::error::{Errno, Error};
    use ferrofabric_contracts::types::{AvType, FiAddr};

    fn name(incarnation: u64) -> NativeAddr {
        NativeAddr {
            incarnation,
            node: 1,
            shm: Some(2),
            verbs: None,
        }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn tables() -> Vec<AvTable> {
        let table = |(av_type, symmetric)| {
            AvTable::new(&AvAttr {
                av_type: Some(av_type),
                symmetric,
                ..AvAttr::default()
            })
            .unwrap()
        };
        [false, true]
            .into_iter()
            .flat_map(|symmetric| [(AvType::Map, symmetric), (AvType::Table, symmetric)])
            .map(table)
            .collect()
    }

    fn insert(table: &AvTable, incarnation: u64, by: &SocketAddr) -> Placed {
        let sought = ParsedAddr::from(AddrTarget::Socket(*by));
        let placed = table.insertion().unwrap().enter(Ok(sought), None).unwrap();
        if placed.new {
            let batch = table.next_batch().unwrap();
            let outcome = table.complete_attempt(&batch.all[0], Ok(name(incarnation)));
            assert_eq!(outcome.new, Some(placed.addr));
        }
        placed
    }

    /// The endpoint that is in by a socket address.
    fn known(table: &AvTable, by: &SocketAddr) -> Option<NativeAddr> {
        let (entry, generation) = table.sockets.find(&table.store, by)?;
        table.name(table.addr_of(entry, generation))
    }

    /// Covers: AV-18, AV-23
    #[test]
    fn an_endpoint_is_found_by_the_socket_address_it_was_inserted_by() {
        for table in tables() {
            let mut scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 3, 9);
            scoped.set_flowinfo(0x1234);
            let all = [
                at("10.1.0.1:5000"),
                at("[2001:db8::1]:65535"),
                at("[::ffff:10.1.0.1]:5000"),
                scoped.into(),
            ];
            let placed: Vec<_> = (1..)
                .zip(&all)
                .map(|(i, at)| insert(&table, i, at))
                .collect();
            for (i, (placed, by)) in placed.iter().zip(&all).enumerate() {
                assert!(placed.new);
                assert_eq!(table.socket(placed.addr), Some(*by));
                assert_eq!(known(&table, by), Some(name(i as u64 + 1)));
            }
            assert_eq!(known(&table, &at("10.9.9.9:1")), None);
            let again = insert(&table, 1, &all[0]);
            assert_eq!((again.addr, again.new), (placed[0].addr, false));
        }
    }

    /// Covers: AV-17, AV-23
    #[test]
    fn the_socket_address_goes_with_the_entry() {
        for table in tables() {
            let by = at("10.1.0.1:5000");
            let first = insert(&table, 1, &by);
            table.remove(first.addr).unwrap();
            assert_eq!(table.socket(first.addr), None);
            assert_eq!(known(&table, &by), None);
            // The next one in the entry came by its native address.
            let next = table.insert(&name(2)).unwrap();
            assert_eq!(table.socket(next.addr), None);
            assert_eq!(known(&table, &by), None);
            let restarted = insert(&table, 3, &by);
            assert_eq!(known(&table, &by), Some(name(3)));
            assert_eq!(table.socket(restarted.addr), Some(by));
        }
    }

    #[test]
    fn a_process_forgets_addresses_that_are_gone() {
        let table = tables().remove(0);
        for i in 0..10_000 {
            let by = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), i);
            let placed = insert(&table, i.into(), &by);
            table.remove(placed.addr).unwrap();
        }
        assert!(table.sockets.known.lock().entries.len() <= 2 * SPARE + 1);
    }

    #[test]
    fn slots_of_all_pieces_are_their_entries_alone() {
        let table = tables().remove(1);
        let by = |i: u32| SocketAddr::new(IpAddr::V4(i.into()), 7);
        for i in 0..5000u32 {
            let placed = insert(&table, i.into(), &by(i));
            assert_eq!(placed.addr, FiAddr(i.into()));
        }
        for i in 0..5000u32 {
            assert_eq!(table.socket(FiAddr(i.into())), Some(by(i)));
        }
    }

    /// Covers: AV-4, AV-18, AV-23
    #[test]
    fn processes_that_share_a_table_see_each_others_insertions() {
        let attr = AvAttr {
            name: Some(format!("sockets-{}", std::process::id())),
            ..AvAttr::default()
        };
        let [one, other] = [0; 2].map(|_| AvTable::open(&attr, "tests of sockets").unwrap());
        for i in 0..2000u16 {
            let by = SocketAddr::from(([10, 1, 0, 1], i));
            let placed = insert(&one, i.into(), &by);
            assert_eq!(other.socket(placed.addr), Some(by));
            if i % 100 == 0 {
                assert_eq!(known(&other, &by), Some(name(i.into())));
                assert_eq!(known(&other, &at("10.1.0.2:1")), None);
                other.remove(placed.addr).unwrap();
                assert_eq!(known(&one, &by), None);
            }
        }
        let by = SocketAddr::from(([10, 1, 0, 1], 150));
        assert_eq!(known(&other, &by), Some(name(150)));
    }

    #[test]
    fn holes_have_none() {
        let table = tables().remove(1);
        let mut insertion = table.insertion().unwrap();
        let bad = insertion.place(Err(Error::new(Errno::EINVAL, "insert", "address")));
        assert!(bad.is_err());
        drop(insertion);
        assert_eq!(table.socket(FiAddr(0)), None);
        assert_eq!(table.socket(FiAddr::NOTAVAIL), None);
    }
}
