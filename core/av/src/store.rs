//! The entries of a table and the index over them, in memory of the process or in a file that
//! processes share.
//!
//! Readers take no lock: an entry never moves, and its generation says whether a reader got it
//! whole. A reader that searches the index and finds nothing looks whether a writer was at work
//! meanwhile, and searches again. Writers take turns; the table sees to that.

use super::arena::{self, ArenaPieces, PIECES, PieceArena};
use super::chunk::{self, EntryChunk, GENERATION, NameWords};
use super::doubling::Doubling;
use super::head::{self, HeadWord, TableHead};
use super::index::{self, HashIndex};
use super::listing;
use super::version::{Busy, Version};
use super::words::MappedWords;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::sync::Ordering::{Acquire, Relaxed, Release};
use ferrofabric_system::sync::fence;

/// Bytes of a page, where the system has large ones.
const LARGE_PAGE: usize = 2 << 20;

/// Entries of the first piece, at least.
pub(super) const FEWEST: usize = if cfg!(loom) { 2 } else { 64 };

/// Entries of a table at most.
pub(super) const MOST: usize = 1 << 31;

// No address has the number of "none" or of "any source".
const _: () = assert!(FiAddr::UNSPEC.0 as u32 as usize >= MOST);
const _: () = assert!(FiAddr::NOTAVAIL.0 as u32 as usize >= MOST);

/// Bytes of a piece of entries from which on it is had in large pages: so long that those at its
/// ends do not count.
const LARGE_PIECE: usize = 16 * LARGE_PAGE;

/// Entries and index.
pub(super) struct Store {
    head: TableHead,
    arena: PieceArena,
    chunks: ArenaPieces,
    indices: ArenaPieces,
    pieces: Doubling,
    index_first_log2: u32,
    seed: u64,
}

impl Store {
    /// Memory of this process, with room for `count` addresses at once.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no such room.
    pub(super) fn private(count: usize) -> Result<Self> {
        let head = MappedWords::private(head::BYTES)
            .map_err(|e| Error::from_io(&e, "open", "address vector"))?;
        Self::create(TableHead(head), PieceArena::Private, count)
    }

    /// A new table with an empty head.
    pub(super) fn create(head: TableHead, arena: PieceArena, count: usize) -> Result<Self> {
        let no_room = || {
            let object = format!("address vector of {count} entries");
            Error::new(Errno::ENOMEM, "open", object)
                .mend("count is a hint: a smaller one works, the table grows")
        };
        if count > MOST {
            return Err(no_room());
        }
        let first = count.max(FEWEST).next_power_of_two();
        head.word(HeadWord::FirstLog2)
            .store(first.trailing_zeros().into(), Relaxed);
        head.word(HeadWord::IndexFirstLog2)
            .store(index::log2_for(count).into(), Relaxed);
        head.word(HeadWord::Seed).store(index::seed(), Relaxed);
        let store = Self::over(head, arena);
        let made = store.add_chunk().and_then(|()| store.add_index());
        match (made, &store.arena) {
            (Ok(()), _) => Ok(store),
            (Err(error), PieceArena::File(_)) => Err(error),
            (Err(_), PieceArena::Private) => Err(no_room()),
        }
    }

    /// A table that was made before.
    pub(super) fn over(head: TableHead, arena: PieceArena) -> Self {
        let log2 = |word, least, most| (head.word(word).load(Relaxed) as u32).clamp(least, most);
        Self {
            pieces: Doubling::new(log2(HeadWord::FirstLog2, FEWEST.trailing_zeros(), 31)),
            index_first_log2: log2(HeadWord::IndexFirstLog2, index::FEWEST_LOG2, 32),
            seed: head.word(HeadWord::Seed).load(Relaxed),
            head,
            arena,
            chunks: ArenaPieces::default(),
            indices: ArenaPieces::default(),
        }
    }

    pub(super) fn head(&self) -> &TableHead {
        &self.head
    }

    /// Where memory beside the entries comes from.
    pub(super) fn arena(&self) -> &PieceArena {
        &self.arena
    }

    /// Addresses that are in.
    pub(super) fn len(&self) -> usize {
        self.head.word(HeadWord::Len).load(Relaxed) as usize
    }

    /// Entries that there is room for without growing.
    pub(super) fn capacity(&self) -> usize {
        self.pieces.total(self.n_chunks())
    }

    /// Bytes that entries and index take when all of their room is used.
    pub(super) fn bytes(&self) -> usize {
        let entries: usize = (0..self.n_chunks())
            .map(|k| chunk::bytes(self.pieces.len(k)))
            .sum();
        entries + index::bytes(self.index_log2())
    }

    /// Bytes that the index takes.
    #[cfg(test)]
    pub(super) fn index_bytes(&self) -> usize {
        index::bytes(self.index_log2())
    }

    /// The address of an entry and its incarnation, where one is in.
    #[inline(always)]
    pub(super) fn read(&self, entry: u32) -> Option<(NameWords, u32)> {
        let (chunk, at) = self.locate(entry)?;
        chunk.read(at)
    }

    /// The generation of an entry, odd while an address is in.
    #[inline]
    pub(super) fn generation(&self, entry: u32) -> u32 {
        self.incarnation(entry) & GENERATION
    }

    /// The generation of an entry, and above it how often the address in the entry was replaced.
    #[inline]
    pub(super) fn incarnation(&self, entry: u32) -> u32 {
        self.locate(entry)
            .map_or(0, |(chunk, at)| chunk.incarnation(at))
    }

    /// Has an entry brought closer that will be looked at soon.
    #[inline]
    pub(super) fn prefetch(&self, entry: u32) {
        if let Some((chunk, at)) = self.locate(entry) {
            chunk.prefetch(at);
        }
    }

    /// The entry of an address and its incarnation. `Err`: writers were at work all the time.
    #[inline]
    pub(super) fn find(&self, name: &NameWords) -> Result<Option<(u32, u32)>, Busy> {
        self.find_hashed(index::hash(name, self.seed), name)
    }

    /// The same of an address whose hash is known.
    #[inline]
    pub(super) fn find_hashed(
        &self,
        hash: u32,
        name: &NameWords,
    ) -> Result<Option<(u32, u32)>, Busy> {
        match self.search(hash, name) {
            None => self.find_none(hash, name),
            found => Ok(found),
        }
    }

    /// Whether an address that was not found is not there, or is where a writer was at work.
    #[cold]
    fn find_none(&self, hash: u32, name: &NameWords) -> Result<Option<(u32, u32)>, Busy> {
        self.version().read(|| self.search(hash, name))
    }

    /// The entry of an address and its incarnation. Readers may miss an entry while a writer is at
    /// work.
    #[inline]
    pub(super) fn search(&self, hash: u32, name: &NameWords) -> Option<(u32, u32)> {
        self.index()?.find(hash, |entry| {
            let (chunk, at) = self.locate(entry)?;
            Some((entry, chunk.incarnation_of(at, name)?))
        })
    }

    #[inline]
    pub(super) fn hash(&self, name: &NameWords) -> u32 {
        index::hash(name, self.seed)
    }

    /// Has the places of the index brought closer where an address with this hash will be searched
    /// for.
    #[inline]
    pub(super) fn prefetch_places(&self, hash: u32) {
        if let Some(index) = self.index() {
            index.prefetch(hash);
        }
    }

    /// The entry that an address with this hash is likely to be in.
    #[inline]
    pub(super) fn candidate(&self, hash: u32) -> Option<u32> {
        self.index()?.find(hash, Some)
    }

    /// The incarnation with which this address is in an entry; `None` when it is not.
    #[inline]
    pub(super) fn incarnation_of(&self, entry: u32, name: &NameWords) -> Option<u32> {
        let (chunk, at) = self.locate(entry)?;
        chunk.incarnation_of(at, name)
    }

    #[inline]
    fn version(&self) -> Version<'_> {
        Version(self.head.word(HeadWord::Version))
    }

    /// Whether a writer is at work, or died at it.
    pub(super) fn is_torn(&self) -> bool {
        self.version().is_odd() || self.head.word(HeadWord::Journal).load(Relaxed) != 0
    }

    fn n_chunks(&self) -> usize {
        (self.head.word(HeadWord::Chunks).load(Acquire) as usize).min(PIECES)
    }

    #[inline]
    fn locate(&self, entry: u32) -> Option<(EntryChunk<'_>, usize)> {
        let (number, at) = self.pieces.place(entry);
        Some((self.chunk(number)?, at))
    }

    #[inline]
    fn chunk(&self, number: usize) -> Option<EntryChunk<'_>> {
        let words = match self.chunks.get(number)?.get() {
            Some(words) => words,
            None => self.map_chunk(number)?,
        };
        Some(EntryChunk::new(words, self.pieces.len(number)))
    }

    /// A piece that another process has made.
    #[cold]
    fn map_chunk(&self, number: usize) -> Option<&MappedWords> {
        if number >= self.n_chunks() {
            return None;
        }
        let bytes = chunk::bytes(self.pieces.len(number));
        let at = self.head.entries_at(number);
        let mapped = self.arena.piece(&self.chunks, number, bytes, at);
        mapped.inspect_err(|error| tracing::warn!("{error}")).ok()
    }

    fn index_log2(&self) -> u32 {
        let number = self.head.word(HeadWord::Index).load(Relaxed) as u32;
        (self.index_first_log2 + number.saturating_sub(1)).min(32)
    }

    #[inline]
    fn index(&self) -> Option<HashIndex<'_>> {
        let number = self.head.word(HeadWord::Index).load(Acquire) as usize;
        let at = number.checked_sub(1)?;
        let log2 = self.index_first_log2 + at as u32;
        let words = match self.indices.get(at)?.get() {
            Some(words) => words,
            None => {
                let offset = self.head.index_at(at);
                let bytes = index::bytes(log2.min(32));
                self.arena.piece(&self.indices, at, bytes, offset).ok()?
            }
        };
        Some(HashIndex::new(words.u64s(0, 1 << log2), log2))
    }

    // The methods below are for writers.

    /// Says which entry a writer is about: if it dies, the next one sees to that.
    fn intend(&self, entry: u32) {
        self.head
            .word(HeadWord::Journal)
            .store(u64::from(entry) + 1, Release);
    }

    /// The change of the writer is complete.
    pub(super) fn settle(&self) {
        self.head.word(HeadWord::Journal).store(0, Release);
    }

    /// It has changed something.
    fn end(&self) {
        self.version().end();
        self.settle();
    }

    /// Puts an address in a reserved entry or in the lowest free one, unless it is there already.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(super) fn place(&self, name: &NameWords, reserved: Option<u32>) -> Result<Placement> {
        let hash = self.hash(name);
        if let Some((entry, _)) = self.search(hash, name) {
            return Ok(Placement::Found(entry));
        }
        self.make_room()?;
        let entry = match reserved {
            Some(entry) => entry,
            None => self.take()?,
        };
        self.put(entry, hash, name);
        Ok(Placement::New(entry))
    }

    /// Takes the lowest free entry. It is the writer's until that settles: if it dies before, the
    /// entry is free again.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(super) fn take(&self) -> Result<u32> {
        for number in 0..self.n_chunks() {
            if self.head.free_in(number).load(Relaxed) != 0 {
                if let Some(entry) = self.take_in(number) {
                    return Ok(entry);
                }
            }
        }
        self.add_chunk()?;
        self.take_in(self.n_chunks() - 1)
            .ok_or_else(|| Error::new(Errno::ENOSPC, "grow", "address vector"))
    }

    fn take_in(&self, number: usize) -> Option<u32> {
        let chunk = self.chunk(number)?;
        let at = chunk.marks().lowest_free()?;
        let entry = u32::try_from(self.pieces.first(number) + at).ok()?;
        self.intend(entry);
        step();
        chunk.marks().mark(at, true);
        step();
        let free = self.head.free_in(number);
        free.store(free.load(Relaxed).saturating_sub(1), Relaxed);
        Some(entry)
    }

    /// Gives back an entry that was taken.
    pub(super) fn give_back(&self, entry: u32) {
        self.intend(entry);
        if let Some((chunk, at)) = self.locate(entry) {
            step();
            chunk.marks().mark(at, false);
            step();
            let free = self.head.free_in(self.pieces.piece(entry));
            free.store(free.load(Relaxed) + 1, Relaxed);
        }
        self.settle();
    }

    /// Makes room in the index for one more.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: it can not grow.
    pub(super) fn make_room(&self) -> Result<()> {
        match index::is_full(self.len(), self.index_log2()) {
            true => self.add_index(),
            false => Ok(()),
        }
    }

    /// Puts an address in an entry that was taken; the index has room.
    pub(super) fn put(&self, entry: u32, hash: u32, name: &NameWords) {
        let Some((chunk, at)) = self.locate(entry) else {
            return;
        };
        self.intend(entry);
        self.version().begin();
        self.note(entry);
        step();
        chunk.put(at, name);
        step();
        if let Some(index) = self.index() {
            index.insert(hash, entry);
        }
        step();
        let len = self.head.word(HeadWord::Len);
        len.store(len.load(Relaxed) + 1, Relaxed);
        self.note(entry);
        self.end();
    }

    /// Takes the address out of an entry, if one is in; the entry is free afterwards if `reusable`
    /// says so of its new generation.
    pub(super) fn clear(&self, entry: u32, reusable: impl Fn(u32) -> bool) {
        self.empty(entry, |chunk, at| reusable(chunk.clear(at)));
    }

    /// Takes the address out of an entry, which stays taken and keeps its generation: another
    /// address is put in.
    pub(super) fn vacate(&self, entry: u32) {
        self.empty(entry, |chunk, at| {
            chunk.vacate(at);
            false
        });
    }

    /// Empties an entry by `change`, which says whether the entry is free afterwards.
    fn empty(&self, entry: u32, change: impl FnOnce(&EntryChunk<'_>, usize) -> bool) {
        let Some((chunk, at)) = self.locate(entry) else {
            return;
        };
        let hash = self.hash(&chunk.name(at));
        let has_address = chunk.incarnation(at) & 1 == 1;
        self.intend(entry);
        self.version().begin();
        self.note(entry);
        step();
        let is_free = change(&chunk, at);
        step();
        if let Some(index) = self.index().filter(|_| has_address) {
            index.remove(hash, entry);
        }
        step();
        let len = self.head.word(HeadWord::Len);
        let gone = u64::from(has_address);
        len.store(len.load(Relaxed).saturating_sub(gone), Relaxed);
        if is_free {
            self.give_back(entry);
        }
        step();
        self.note(entry);
        self.end();
    }

    fn add_chunk(&self) -> Result<()> {
        let number = self.n_chunks();
        let len = self.pieces.len(number);
        if number >= PIECES || self.pieces.first(number) + len > MOST {
            return Err(Error::new(Errno::ENOSPC, "grow", "address vector"));
        }
        let end = self.head.word(HeadWord::End);
        let at = (end, self.head.entries_at(number));
        let bytes = chunk::bytes(len);
        if let PieceArena::File(file) = &self.arena {
            let (from, room) = listing::room(self.pieces.first(number), len);
            let allocated = self.arena.allocate(from, room);
            allocated.map_err(|e| arena::no_room(&e, file))?;
        }
        let words = self.arena.create(&self.chunks, number, bytes, at)?;
        if bytes >= LARGE_PIECE {
            words.prefer_large_pages();
        }
        self.head.free_in(number).store(len as u64, Relaxed);
        self.head
            .word(HeadWord::Chunks)
            .store(number as u64 + 1, Release);
        Ok(())
    }

    /// A larger index, into which what the last one has is copied.
    fn add_index(&self) -> Result<()> {
        let number = self.head.word(HeadWord::Index).load(Relaxed) as usize;
        let log2 = self.index_first_log2 + number as u32;
        if log2 > 32 {
            return Err(Error::new(Errno::ENOSPC, "grow", "address vector"));
        }
        let at = (self.head.word(HeadWord::End), self.head.index_at(number));
        let words = self
            .arena
            .create(&self.indices, number, index::bytes(log2), at)?;
        // Its entries are spread all over it.
        if index::bytes(log2) >= LARGE_PAGE {
            words.prefer_large_pages();
        }
        let larger = HashIndex::new(words.u64s(0, 1 << log2), log2);
        // A writer that died may have begun it.
        if matches!(self.arena, PieceArena::File(_)) {
            larger.clear();
        }
        if let Some(index) = self.index() {
            index.copy_to(&larger);
        }
        self.head
            .word(HeadWord::Index)
            .store(number as u64 + 1, Release);
        if let Some(before) = number.checked_sub(1).and_then(|n| self.indices[n].get()) {
            // A reader that still searches there may miss entries of the other one, then sees that
            // a writer was at work.
            self.version().pass();
            if let PieceArena::Private = self.arena {
                before.discard();
            }
            // In a file it stays: a reader that touches what was given back gets it anew, or is
            // killed if there is no room.
        }
        Ok(())
    }

    /// Lists a change for the other processes: before it is made, so that they look whether its
    /// writer comes to the end of it, and once it is.
    fn note(&self, entry: u32) {
        let changes = self.head.word(HeadWord::Changes);
        let number = changes.load(Relaxed);
        if let Some(place) = self.head.ring(number) {
            // Pairs with the Acquire fence in `changed_since`.
            fence(Release);
            place.store(entry, Relaxed);
            // Pairs with the Acquire load in `changes`.
            changes.store(number + 1, Release);
        }
    }

    /// Number of changes so far, of a table in a file.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.head.word(HeadWord::Changes).load(Acquire)
    }

    /// Number of changes so far, and the entries that changed since there were `seen`; each may be
    /// there several times.
    pub(super) fn changed_since(&self, seen: u64) -> (u64, Vec<u32>) {
        let now = self.changes();
        let listed: Vec<_> = (seen..now)
            .take(head::RING)
            .filter_map(|number| Some(self.head.ring(number)?.load(Relaxed)))
            .collect();
        // Pairs with the Release fence in `note`: entries that were written over since are not
        // trusted.
        fence(Acquire);
        let newest = self.head.word(HeadWord::Changes).load(Relaxed);
        // The oldest that is listed may be one that is being written over.
        if seen != 0 && newest.saturating_sub(seen) < head::RING as u64 {
            return (now, listed);
        }
        (now, (0..self.capacity() as u32).collect())
    }

    /// Lists a change of an entry that stays as it is.
    pub(super) fn list_change(&self, entry: u32) {
        self.note(entry);
    }

    /// Mends what a writer left that died at work. `is_taken` says whether an entry is. Returns the
    /// entry that the writer was at.
    pub(super) fn mend(&self, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
        self.version().begin();
        if let Some(index) = self.index() {
            index.clear();
            let mut len = 0;
            for entry in 0..self.capacity() as u32 {
                if let Some((name, _)) = self.read(entry) {
                    index.insert(self.hash(&name), entry);
                    len += 1;
                }
            }
            self.head.word(HeadWord::Len).store(len, Relaxed);
        }
        let journal = self.head.word(HeadWord::Journal).load(Relaxed);
        let torn = journal.checked_sub(1).map(|entry| entry as u32);
        if let Some(entry) = torn {
            if let Some((chunk, at)) = self.locate(entry) {
                chunk.marks().mark(at, is_taken(entry));
            }
        }
        for number in 0..self.n_chunks() {
            if let Some(chunk) = self.chunk(number) {
                let free = chunk.marks().recount() as u64;
                self.head.free_in(number).store(free, Relaxed);
            }
        }
        // A follower of the changes looks at all.
        let changes = self.head.word(HeadWord::Changes);
        let all = changes.load(Relaxed) + head::RING as u64;
        changes.store(all, Release);
        self.end();
        torn
    }

    /// Every entry that has an address, from the lowest.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, u32, NameWords)> + '_ {
        (0..self.capacity() as u32).filter_map(|entry| {
            let (name, incarnation) = self.read(entry)?;
            Some((entry, incarnation, name))
        })
    }
}

/// Where an address was put.
pub(super) enum Placement {
    /// In this entry, just now.
    New(u32),
    /// In this entry, before.
    Found(u32),
}

/// A point at which a writer may be killed.
#[cfg(not(test))]
#[inline(always)]
fn step() {}

#[cfg(test)]
use tests::step;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
pub(super) mod tests;
