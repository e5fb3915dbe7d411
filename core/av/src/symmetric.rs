//! A table that keeps nodes and endpoints apart (`FI_SYMMETRIC`, fi_av(3), `docs/adr/0032`): an
//! address is its node's part, which lies once in a table of its own, and the endpoint's number. An
//! entry is where the node's part is and the number, 80 bits; an address that is not made up so has
//! a node's part of its own.
//!
//! It is a process's own. Readers take no lock: an entry never moves, and the removals of its line
//! say whether what was read of it is whole. Writers take turns; the table sees to that.

mod entry_lines;
mod reverse_index;

use super::arena::{ArenaPieces, PIECES, PieceArena};
use super::chunk::NameWords;
use super::column::Column;
use super::doubling::Doubling;
use super::index;
use super::store::{FEWEST, Placement, Store};
use super::version::{Busy, Version};
use entry_lines::{EntryLines, NODE_BITS, PackedName};
use ferrofabric_contracts::addr::{join, split};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::sync::Ordering::{Acquire, Relaxed, Release};
use ferrofabric_system::sync::{AtomicU64, AtomicUsize};
use reverse_index::{ReverseIndex, ReverseIndices};

/// Entries of a table at most: a place of the index holds their number.
pub(super) const MOST: usize = 1 << 30;

/// Entries, the nodes that they are of, and the index over them.
pub(super) struct Symmetric {
    nodes: Store,
    /// Entries of each node.
    users: Column,
    /// How often each entry's address was removed, where addresses have generations.
    removals: Option<Column>,
    pieces: Doubling,
    lines: ArenaPieces,
    n_pieces: AtomicUsize,
    /// Entries of each piece that are not taken.
    free: [AtomicUsize; PIECES],
    indices: ReverseIndices,
    version: AtomicU64,
    len: AtomicUsize,
    seed: u64,
}

/// A search for an address that is under way: its findings so far, at a count of changes.
#[derive(Clone, Copy)]
pub(super) struct SymmetricLookup {
    version: u64,
    number: u64,
    hash: u64,
    /// The entry that is likely to hold it.
    candidate: Option<u32>,
}

impl Symmetric {
    /// An empty table with room for `count` addresses at once, whose entries have generations or
    /// not.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no such room.
    pub(super) fn new(count: usize, generations: bool) -> Result<Self> {
        let no_room = || {
            let object = format!("address vector of {count} entries");
            Error::new(Errno::ENOMEM, "open", object)
                .mend("count is a hint: a smaller one works, the table grows")
        };
        if count > MOST {
            return Err(no_room());
        }
        let first = count.max(FEWEST).next_power_of_two();
        let table = Self {
            nodes: Store::private(0)?,
            users: Column::default(),
            removals: generations.then(Column::default),
            pieces: Doubling::new(first.trailing_zeros()),
            lines: ArenaPieces::default(),
            n_pieces: AtomicUsize::new(0),
            free: Default::default(),
            indices: ReverseIndices::new(ReverseIndex::new(count, first).map_err(|_| no_room())?),
            version: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            seed: index::seed(),
        };
        table.add_piece().map_err(|_| no_room())?;
        Ok(table)
    }

    /// Addresses that are in.
    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    fn capacity(&self) -> usize {
        self.pieces.total(self.n_pieces.load(Acquire))
    }

    /// Bytes that all takes when all entries that there is room for are used.
    pub(super) fn bytes(&self) -> usize {
        let pieces = 0..self.n_pieces.load(Acquire);
        let entries: usize = pieces.map(|k| entry_lines::bytes(self.pieces.len(k))).sum();
        let index = self.indices.last().map_or(0, ReverseIndex::bytes);
        let removals = self.removals.as_ref().map_or(0, Column::bytes);
        entries + index + removals + self.nodes.bytes() + self.users.bytes()
    }

    /// The generation of an entry and its address, where one is in.
    // A call, so that the way through an ordinary table stays short.
    #[inline(never)]
    pub(super) fn read(&self, entry: u32) -> Option<(NameWords, u32)> {
        let (lines, at) = self.locate(entry)?;
        loop {
            let seen = lines.look(at)?;
            let node = self.nodes.read(seen.key.node);
            let generation = 2 * self.removals_of(entry) + 1;
            if lines.still(at, &seen) {
                return node.map(|(node, _)| (join(&node, seen.key.number), generation));
            }
        }
    }

    /// Has an entry brought closer that will be looked at soon. The nodes are few, and looked at
    /// all the time.
    #[inline]
    pub(super) fn prefetch(&self, entry: u32) {
        if let Some((lines, at)) = self.locate(entry) {
            lines.prefetch(at);
        }
        if let Some(removals) = &self.removals {
            removals.prefetch(entry);
        }
    }

    /// The generation of an entry, odd while an address is in.
    #[inline]
    pub(super) fn generation(&self, entry: u32) -> u32 {
        let there = self
            .locate(entry)
            .is_some_and(|(lines, at)| lines.has_address(at));
        2 * self.removals_of(entry) + u32::from(there)
    }

    #[inline]
    fn removals_of(&self, entry: u32) -> u32 {
        self.removals
            .as_ref()
            .map_or(0, |removals| removals.get(entry) as u32)
    }

    /// The entry of an address and its generation. `Err`: writers were at work all the time.
    #[inline(never)]
    pub(super) fn find(&self, name: &NameWords) -> Result<Option<(u32, u32)>, Busy> {
        let ((_, number), hash) = (split(name), self.hash(name));
        Version(&self.version).read(|| self.holder(name, number, hash))
    }

    /// Begins to search for an address. `None`: that is left to the end.
    #[inline]
    pub(super) fn begin_to_find(&self, name: &NameWords) -> Option<SymmetricLookup> {
        let version = Version(&self.version).now()?;
        let hash = self.hash(name);
        self.indices.last()?.prefetch(hash);
        Some(SymmetricLookup {
            version,
            number: split(name).1,
            hash,
            candidate: None,
        })
    }

    /// Goes on to the entry that is likely to be the one.
    #[inline]
    pub(super) fn go_on(&self, search: &mut SymmetricLookup) {
        let index = self.indices.last();
        search.candidate = index.and_then(|index| index.find(search.hash, |_| true));
        if let Some(entry) = search.candidate {
            self.prefetch(entry);
        }
    }

    /// The result of [`find`](Self::find), at the end of a search that was begun.
    #[inline]
    pub(super) fn end_to_find(
        &self,
        name: &NameWords,
        search: Option<&SymmetricLookup>,
    ) -> Result<Option<(u32, u32)>, Busy> {
        if let Some(search) = search {
            let likely = search
                .candidate
                .filter(|entry| self.is_entry_of(*entry, name, search.number));
            let found = match likely {
                Some(entry) => Some((entry, 2 * self.removals_of(entry) + 1)),
                None => self.holder(name, search.number, search.hash),
            };
            // Then all that was read since the search began is of one moment, as in `find`.
            if Version(&self.version).is_still(search.version) {
                return Ok(found);
            }
        }
        self.find(name)
    }

    /// The entry of an address and its generation, for a writer.
    pub(super) fn search(&self, name: &NameWords) -> Option<(u32, u32)> {
        self.holder(name, split(name).1, self.hash(name))
    }

    /// The entry that holds this address, whose number and hash are these, and its generation.
    #[inline]
    fn holder(&self, name: &NameWords, number: u64, hash: u64) -> Option<(u32, u32)> {
        let is_it = |entry| self.is_entry_of(entry, name, number);
        let entry = self.indices.last()?.find(hash, is_it)?;
        Some((entry, 2 * self.removals_of(entry) + 1))
    }

    /// Whether an entry, which may be changing, holds this address, whose number is this.
    #[inline]
    fn is_entry_of(&self, entry: u32, name: &NameWords, number: u64) -> bool {
        let Some((lines, at)) = self.locate(entry) else {
            return false;
        };
        let node = lines.node_of(at, number);
        let node = node.and_then(|node| self.nodes.read(node));
        node.is_some_and(|(node, _)| {
            // By the word: a comparison of arrays is a call.
            let there = join(&node, number);
            let differ = there.iter().zip(name).map(|(a, b)| a ^ b);
            differ.fold(0, |all, word| all | word) == 0
        })
    }

    /// The index goes by whole addresses: a search need not know the address's node.
    #[inline]
    fn hash(&self, name: &NameWords) -> u64 {
        index::wide_hash(name, self.seed)
    }

    /// The hash of an entry's address, for a writer.
    fn hash_of(&self, entry: u32) -> u64 {
        let name = self.locate(entry).and_then(|(lines, at)| {
            let PackedName { node, number } = lines.key(at);
            Some(join(&self.nodes.read(node)?.0, number))
        });
        name.map_or(0, |name| self.hash(&name))
    }

    #[inline]
    fn locate(&self, entry: u32) -> Option<(EntryLines<'_>, usize)> {
        let (piece, at) = self.pieces.place(entry);
        Some((self.piece(piece)?, at))
    }

    #[inline]
    fn piece(&self, piece: usize) -> Option<EntryLines<'_>> {
        let words = self.lines.get(piece)?.get()?;
        Some(EntryLines::new(words, self.pieces.len(piece)))
    }

    /// Every entry that has an address, from the lowest.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, u32, NameWords)> + '_ {
        (0..self.capacity() as u32).filter_map(|entry| {
            let (name, generation) = self.read(entry)?;
            Some((entry, generation, name))
        })
    }

    // The methods below are for writers.

    /// Puts an address in a reserved entry or in the lowest free one, unless it is there already.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(super) fn place(&self, name: &NameWords, reserved: Option<u32>) -> Result<Placement> {
        let ((node, number), hash) = (split(name), self.hash(name));
        if let Some((entry, _)) = self.holder(name, number, hash) {
            return Ok(Placement::Found(entry));
        }
        let node_hash = self.nodes.hash(&node);
        let known = self.nodes.search(node_hash, &node).map(|(node, _)| node);
        let entry = match reserved {
            Some(entry) => entry,
            None => self.take()?,
        };
        let ready = self.make_room(entry).and_then(|()| match known {
            Some(node) => Ok(node),
            None => self.add_node(&node, node_hash),
        });
        match ready {
            Ok(node) => self.put(entry, PackedName { node, number }, hash),
            Err(error) => {
                if reserved.is_none() {
                    self.give_back(entry);
                }
                return Err(error);
            }
        }
        Ok(Placement::New(entry))
    }

    fn put(&self, entry: u32, key: PackedName, hash: u64) {
        let (Some((lines, at)), Some(index)) = (self.locate(entry), self.indices.last()) else {
            return;
        };
        Version(&self.version).begin();
        if let Some(users) = self.users.there(key.node) {
            users.store(users.load(Relaxed) + 1, Relaxed);
        }
        lines.put(at, key);
        index.insert(hash, entry);
        self.len.store(self.len() + 1, Relaxed);
        Version(&self.version).end();
    }

    /// Makes sure that an entry can be cleared.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory for its generation.
    pub(super) fn make_removable(&self, entry: u32) -> Result<()> {
        match &self.removals {
            Some(removals) => removals.make(entry).map(drop),
            None => Ok(()),
        }
    }

    /// Takes the address out of an entry that was [made removable](Self::make_removable), if one is
    /// in; it is free afterwards if `reusable` says so of its new generation.
    pub(super) fn clear(&self, entry: u32, reusable: impl Fn(u32) -> bool) {
        self.empty(entry, || {
            let removals = self.removals.as_ref().and_then(|all| all.there(entry));
            if let Some(removals) = removals {
                removals.store(removals.load(Relaxed) + 1, Relaxed);
            }
            reusable(self.generation(entry))
        });
    }

    /// Takes the address out of an entry, which stays taken and keeps its generation: another
    /// address is put in.
    pub(super) fn vacate(&self, entry: u32) {
        self.empty(entry, || false);
    }

    /// Empties an entry. `change` counts that, and says whether the entry is free afterwards.
    fn empty(&self, entry: u32, change: impl FnOnce() -> bool) {
        let Some((lines, at)) = self.locate(entry) else {
            return;
        };
        Version(&self.version).begin();
        let left = lines.has_address(at).then(|| {
            let key = lines.key(at);
            if let Some(index) = self.indices.last() {
                let hash = self.hash_of(entry);
                index.following(hash, entry, |other| self.prefetch(other));
                index.remove(hash, entry, |other| self.hash_of(other));
            }
            lines.clear(at);
            key.node
        });
        let is_free = change();
        if let Some(node) = left {
            self.leave_node(node);
            self.len.store(self.len().saturating_sub(1), Relaxed);
        }
        if is_free {
            self.give_back(entry);
        }
        Version(&self.version).end();
    }

    fn add_node(&self, node: &NameWords, hash: u32) -> Result<u32> {
        self.nodes.make_room()?;
        let number = self.nodes.take()?;
        let ready = match number >> NODE_BITS {
            0 => self.users.make(number).map(drop),
            _ => Err(
                Error::new(Errno::ENOSPC, "insert", "address of yet another node")
                    .mend("a symmetric address vector is for endpoints that share nodes"),
            ),
        };
        match ready {
            Ok(()) => self.nodes.put(number, hash, node),
            Err(error) => {
                self.nodes.give_back(number);
                return Err(error);
            }
        }
        Ok(number)
    }

    /// A node has an entry less; with its last one it goes.
    fn leave_node(&self, node: u32) {
        if let Some(users) = self.users.there(node) {
            let left = users.load(Relaxed).saturating_sub(1);
            users.store(left, Relaxed);
            if left == 0 {
                self.nodes.clear(node, |_| true);
            }
        }
    }

    /// Takes the lowest free entry.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(super) fn take(&self) -> Result<u32> {
        let pieces = self.n_pieces.load(Relaxed);
        if let Some(entry) = (0..pieces).find_map(|piece| self.take_in(piece)) {
            return Ok(entry);
        }
        self.add_piece()?;
        self.take_in(pieces)
            .ok_or_else(|| Error::new(Errno::ENOSPC, "grow", "address vector"))
    }

    fn take_in(&self, piece: usize) -> Option<u32> {
        let free = self.free[piece].load(Relaxed).checked_sub(1)?;
        let marks = self.piece(piece)?.marks();
        let at = marks.lowest_free()?;
        marks.mark(at, true);
        self.free[piece].store(free, Relaxed);
        Some((self.pieces.first(piece) + at) as u32)
    }

    /// Gives back an entry that was taken.
    pub(super) fn give_back(&self, entry: u32) {
        let (piece, at) = self.pieces.place(entry);
        if let Some(lines) = self.piece(piece) {
            lines.marks().mark(at, false);
            let free = &self.free[piece];
            free.store(free.load(Relaxed) + 1, Relaxed);
        }
    }

    fn add_piece(&self) -> Result<()> {
        let piece = self.n_pieces.load(Relaxed);
        let len = self.pieces.len(piece);
        if piece >= PIECES || self.pieces.first(piece) + len > MOST {
            return Err(Error::new(Errno::ENOSPC, "grow", "address vector"));
        }
        let made = (&AtomicU64::new(0), &AtomicU64::new(0));
        PieceArena::Private.create(&self.lines, piece, entry_lines::bytes(len), made)?;
        self.free[piece].store(len, Relaxed);
        self.n_pieces.store(piece + 1, Release);
        Ok(())
    }

    /// Makes room in the index for one more, which is to be in this entry.
    fn make_room(&self, entry: u32) -> Result<()> {
        let grown = || Error::new(Errno::ENOSPC, "grow", "the index of an address vector");
        let index = self.indices.last().ok_or_else(grown)?;
        if index.has_room(self.len()) && index.takes(entry) {
            return Ok(());
        }
        let larger = index.larger(self.len(), self.capacity())?;
        for entry in 0..self.capacity() as u32 {
            if let Some((lines, at)) = self.locate(entry) {
                if lines.has_address(at) {
                    larger.insert(self.hash_of(entry), entry);
                }
            }
        }
        // A reader that still searches the old one finds nothing, then sees that something has
        // changed.
        self.indices
            .replace(larger, || Version(&self.version).pass())
    }
}

#[cfg(test)]
mod tests;
