//! Hash of intrusive FIFO lists: one list per key, entries named by their slab index.
//!
//! The table is made of cache lines of twelve slots: the first entries of twelve lists, and a byte
//! of each key's hash, all of which are compared at once. A key that finds its line full goes to
//! the next one, and the full one counts it: a search goes on behind a line only if some key did.
//! So most searches, insertions and removals touch one line, with no branch that depends on the
//! data, and a key with a hundred thousand entries costs its neighbours nothing. The entries live
//! in the caller's slab; the table sees their [`ListLink`]s only.
//!
//! Keys whose source and tag differ in the lowest bits alone share a line: applications count in
//! tags and go round their peers, so with a hundred thousand keys eight messages in a row cost one
//! cache miss, not eight.
//!
//! Tags come from peers, so the hash is keyed with random secrets per matcher. Expected cost is
//! O(1). The worst case, every key in one line, is linear in the number of distinct keys (never of
//! entries with one key); to bring it about a peer would have to know the secrets.

mod ahead;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use super::arena::Arena;
pub(super) use ahead::Ahead;

/// No entry.
pub(super) const NIL: u32 = u32::MAX;

/// Neighbours in a list.
#[derive(Clone, Copy)]
pub(super) struct ListLink {
    pub(super) next: u32,
    pub(super) prev: u32,
}

impl ListLink {
    pub(super) const LOOSE: ListLink = ListLink {
        next: NIL,
        prev: NIL,
    };
}

/// An element of a list: any type that has a [`ListLink`] inside.
pub(super) trait Linked {
    fn link(&self) -> ListLink;
    fn link_mut(&mut self) -> &mut ListLink;
}

impl Linked for ListLink {
    #[inline]
    fn link(&self) -> ListLink {
        *self
    }

    #[inline]
    fn link_mut(&mut self) -> &mut ListLink {
        self
    }
}

/// A doubly linked list through a slab.
#[derive(Clone, Copy)]
pub(super) struct Fifo {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Fifo {
    pub(super) const EMPTY: Fifo = Fifo {
        head: NIL,
        tail: NIL,
    };

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.head == NIL
    }

    /// Adds at the end.
    #[inline]
    pub(super) fn push_back<N: Linked>(&mut self, nodes: &mut [N], id: u32) {
        self.insert_after(nodes, self.tail, id);
    }

    /// Adds before all entries at the end that are `later`.
    #[inline]
    pub(super) fn insert_ordered<N: Linked>(
        &mut self,
        nodes: &mut [N],
        id: u32,
        later: impl Fn(u32) -> bool,
    ) {
        let mut at = self.tail;
        while at != NIL && later(at) {
            at = nodes[at as usize].link().prev;
        }
        self.insert_after(nodes, at, id);
    }

    /// Adds behind `at`, or at the front when that is [`NIL`].
    #[inline]
    fn insert_after<N: Linked>(&mut self, nodes: &mut [N], at: u32, id: u32) {
        let next = if at == NIL {
            std::mem::replace(&mut self.head, id)
        } else {
            std::mem::replace(&mut nodes[at as usize].link_mut().next, id)
        };
        if next == NIL {
            self.tail = id;
        } else {
            nodes[next as usize].link_mut().prev = id;
        }
        *nodes[id as usize].link_mut() = ListLink { next, prev: at };
    }

    /// Takes an entry of this list out of it.
    #[inline]
    pub(super) fn unlink<N: Linked>(&mut self, nodes: &mut [N], id: u32) {
        let ListLink { next, prev } = nodes[id as usize].link();
        if prev == NIL {
            self.head = next;
        } else {
            nodes[prev as usize].link_mut().next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            nodes[next as usize].link_mut().prev = prev;
        }
    }
}

/// Random secrets of one matcher's hashes.
#[derive(Clone, Copy)]
pub(super) struct Seed(u64, u64);

impl Seed {
    pub(super) fn random() -> Seed {
        let draw = || RandomState::new().build_hasher().finish();
        Seed(draw(), draw())
    }

    /// Hash of two words, each masked by its secret. One folded product would leave a run of tags
    /// an arithmetic sequence, which for some secrets falls on few slots: so two.
    ///
    /// The words without their lowest bits choose a line of the table; the lowest bits, turned by
    /// three of the hash, tell the keys of a line apart: eight `a`, eight `b`, or both counting at
    /// once, have different ones.
    #[inline]
    pub(super) fn hash(self, a: u64, b: u64) -> u32 {
        let line = fold(
            fold((a >> GROUP_SHIFT) ^ self.0, (b >> GROUP_SHIFT) ^ self.1),
            FOLD,
        );
        // `b` times x, modulo x³ + x + 1: neither that nor its sum with `b` takes a value twice.
        let low = a ^ (b << 1) ^ (((b >> 2) & 1) * 0b11) ^ (line >> 61);
        ((line as u32) << GROUP_SHIFT) | (low as u32 & GROUP_MASK)
    }
}

/// An odd number with its bits well mixed: 2^64 over the golden ratio.
const FOLD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of the product, one laid over the other.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Keys that differ in the lowest bits only, this many of them, fall on one line.
const GROUP_SHIFT: u32 = 3;
const GROUP_MASK: u32 = (1 << GROUP_SHIFT) - 1;

/// Slots of a line.
const SLOTS: usize = 12;
/// Keys that a table has room for, for each line: half of its slots are free.
const LINE_KEYS: usize = SLOTS / 2;
/// Lines of a table when it is first used.
const FIRST_LINES: usize = 16;
/// A table from this size on does not stay in the nearer caches, beside what it names.
const DEEP_LINES: usize = 1 << 11;

/// A cache line of the table.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct IndexLine {
    /// A byte for each slot, 0 for a free one; in the upper half of the second word the number of
    /// keys that found this line full and went on.
    tags: [u64; 2],
    /// The first entry of each key's list. `prev` of that is the last entry, `next` of the last is
    /// [`NIL`].
    heads: [u32; SLOTS],
}

const _: () = assert!(size_of::<IndexLine>() == 64);

const BYTES: u64 = 0x0101_0101_0101_0101;
const PASSED: u64 = 1 << 32;

impl IndexLine {
    const FREE: IndexLine = IndexLine {
        tags: [0; 2],
        heads: [NIL; SLOTS],
    };

    /// The byte that stands for a hash: its lowest bits, for those that share a line by design, and
    /// its highest ones, which choose the line in no table that memory has room for.
    #[inline(always)]
    fn tag(hash: u32) -> u64 {
        let tag = (hash & GROUP_MASK) | ((hash >> 27) << GROUP_SHIFT);
        u64::from(tag.max(1))
    }

    /// The slots with a tag (0: free ones).
    #[inline(always)]
    fn with(&self, tag: u64) -> Slots {
        const LOW: u64 = 0x7f * BYTES;
        let zeroes = |word: u64| !(((word & LOW) + LOW) | word | LOW);
        let wanted = tag * BYTES;
        let first = zeroes(self.tags[0] ^ wanted) >> 7;
        let second = zeroes(self.tags[1] ^ wanted) as u32 >> 7;
        Slots(first | (u64::from(second) << 1))
    }

    #[inline(always)]
    fn set(&mut self, slot: usize, tag: u64, head: u32) {
        let shift = slot % 8 * 8;
        let word = &mut self.tags[slot / 8];
        *word = (*word & !(0xff << shift)) | (tag << shift);
        self.heads[slot] = head;
    }

    /// Whether keys went on from here.
    #[inline(always)]
    fn is_passed(&self) -> bool {
        self.tags[1] >= PASSED
    }
}

/// Some of a line's slots: number n below 8 is bit 8n, from 8 on bit 8(n - 8) + 1.
#[derive(Clone, Copy)]
struct Slots(u64);

impl Slots {
    #[inline(always)]
    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Slots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit / 8 + bit % 2 * 8)
    }
}

/// Where a key's list is named.
#[derive(Clone, Copy)]
pub(super) struct IndexPlace {
    /// Where the search for the key begins.
    home: usize,
    line: usize,
    slot: usize,
}

/// Lists by key. The keys are the caller's: it gives their hash, and says which entries are of the
/// same key.
#[derive(Default)]
pub(super) struct Index {
    /// Empty, or a power of two of them.
    lines: Arena<IndexLine>,
    keys: usize,
}

impl Index {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Whether it is worth while to look ahead.
    #[inline(always)]
    pub(super) fn is_deep(&self) -> bool {
        self.lines.len() >= DEEP_LINES
    }

    /// Has the line of a hash brought closer.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        self.lines.prefetch(self.home(hash));
    }

    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        (hash >> GROUP_SHIFT) as usize & self.lines.len().wrapping_sub(1)
    }

    /// The line behind another.
    #[inline(always)]
    fn behind(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    /// The place of a key, and its first entry: `same(id)` says whether entry `id` has that key.
    #[inline]
    pub(super) fn find(&self, hash: u32, same: impl Fn(u32) -> bool) -> Option<(IndexPlace, u32)> {
        let home = self.home(hash);
        let mut at = home;
        let mut line = self.lines.get(at)?;
        loop {
            for slot in line.with(IndexLine::tag(hash)) {
                let head = line.heads[slot];
                if same(head) {
                    let line = at;
                    return Some((IndexPlace { home, line, slot }, head));
                }
            }
            if !line.is_passed() {
                return None;
            }
            at = self.behind(at);
            if at == home {
                return None;
            }
            line = &self.lines[at];
        }
    }

    /// Adds an entry to the list of its key, before those at its end that are `later`. `hash_of`
    /// gives the hash of entries that are in, when the table grows.
    #[inline(always)]
    pub(super) fn insert<N: Linked>(
        &mut self,
        nodes: &mut [N],
        hash: u32,
        id: u32,
        same: impl Fn(&[N], u32) -> bool,
        later: impl Fn(u32) -> bool,
        hash_of: impl Fn(&[N], u32) -> u32,
    ) {
        let room = self.keys < self.lines.len() * LINE_KEYS;
        let home = self.home(hash);
        if let Some(line) = self.lines.get_mut(home).filter(|_| room) {
            let tag = IndexLine::tag(hash);
            if line.with(tag).is_empty() && !line.is_passed() {
                if let Some(slot) = line.with(0).next() {
                    line.set(slot, tag, id);
                    self.keys += 1;
                    *nodes[id as usize].link_mut() = ListLink {
                        next: NIL,
                        prev: id,
                    };
                    return;
                }
            }
        }
        self.insert_anywhere(nodes, hash, id, same, later, hash_of);
    }

    #[inline(never)]
    fn insert_anywhere<N: Linked>(
        &mut self,
        nodes: &mut [N],
        hash: u32,
        id: u32,
        same: impl Fn(&[N], u32) -> bool,
        later: impl Fn(u32) -> bool,
        hash_of: impl Fn(&[N], u32) -> u32,
    ) {
        if let Some((place, head)) = self.find(hash, |other| same(nodes, other)) {
            self.lines[place.line].heads[place.slot] = enlist(nodes, head, id, later);
            return;
        }
        if self.keys >= self.lines.len() * LINE_KEYS {
            self.grow(|id| hash_of(nodes, id));
        }
        *nodes[id as usize].link_mut() = ListLink {
            next: NIL,
            prev: id,
        };
        self.add_key(hash, id);
    }

    /// Adds a key that is not in. There is a free slot.
    #[inline]
    fn add_key(&mut self, hash: u32, head: u32) {
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            if let Some(slot) = line.with(0).next() {
                line.set(slot, IndexLine::tag(hash), head);
                self.keys += 1;
                return;
            }
            line.tags[1] += PASSED;
            at = self.behind(at);
        }
    }

    /// Takes the first entry of a key out, which `find` has just seen.
    #[inline]
    pub(super) fn pop<N: Linked>(&mut self, nodes: &mut [N], place: IndexPlace, head: u32) {
        let ListLink { next, prev } = nodes[head as usize].link();
        if next == NIL {
            self.remove_key(place);
        } else {
            nodes[next as usize].link_mut().prev = prev;
            self.lines[place.line].heads[place.slot] = next;
        }
    }

    #[inline]
    fn remove_key(&mut self, place: IndexPlace) {
        self.lines[place.line].set(place.slot, 0, NIL);
        self.keys -= 1;
        let mut passed = place.home;
        while passed != place.line {
            self.lines[passed].tags[1] -= PASSED;
            passed = self.behind(passed);
        }
    }

    /// Takes entry `id`, which is on the list of a key with that hash, out of it.
    #[inline]
    pub(super) fn remove<N: Linked>(&mut self, nodes: &mut [N], hash: u32, id: u32) {
        let ListLink { next, prev } = nodes[id as usize].link();
        let first = nodes[prev as usize].link().next != id;
        if !first && next != NIL {
            nodes[prev as usize].link_mut().next = next;
            nodes[next as usize].link_mut().prev = prev;
            return;
        }
        // The element is at an end of its list. That distinguishes the list from others with the
        // same hash.
        let at_end = |head: u32| head == id || !first && nodes[head as usize].link().prev == id;
        match self.find(hash, at_end) {
            Some((place, head)) if head == id => self.pop(nodes, place, id),
            Some((_, head)) => {
                nodes[prev as usize].link_mut().next = NIL;
                nodes[head as usize].link_mut().prev = prev;
            }
            None => debug_assert!(false, "entry {id} is on no list"),
        }
    }

    /// Forgets all entries and keeps the memory. Linear in the size of the table, free when it is
    /// empty.
    pub(super) fn clear(&mut self) {
        if self.keys != 0 {
            self.lines.fill(IndexLine::FREE);
            self.keys = 0;
        }
    }

    /// Number of lines, the cost of [`Index::clear`].
    pub(super) fn lines(&self) -> usize {
        self.lines.len()
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, hash_of: impl Fn(u32) -> u32) {
        let lines = (self.lines.len() * 2).max(FIRST_LINES);
        let old = std::mem::replace(&mut self.lines, Arena::filled(lines, IndexLine::FREE));
        self.keys = 0;
        for head in old.iter().flat_map(|line| line.heads) {
            if head != NIL {
                self.add_key(hash_of(head), head);
            }
        }
    }
}

/// Puts an entry on a key's list, before those at its end that are `later`. Returns the first
/// entry.
#[inline]
fn enlist<N: Linked>(nodes: &mut [N], head: u32, id: u32, later: impl Fn(u32) -> bool) -> u32 {
    let tail = nodes[head as usize].link().prev;
    let (mut prev, mut next) = (tail, NIL);
    while later(prev) {
        next = prev;
        prev = nodes[prev as usize].link().prev;
        if next == head {
            // Before all others; `prev` is the last one.
            *nodes[id as usize].link_mut() = ListLink { next, prev };
            nodes[head as usize].link_mut().prev = id;
            return id;
        }
    }
    *nodes[id as usize].link_mut() = ListLink { next, prev };
    nodes[prev as usize].link_mut().next = id;
    let behind = if next == NIL { head } else { next };
    nodes[behind as usize].link_mut().prev = id;
    head
}

/// Links that a [`SideIndex`] begins with.
const FIRST_LINKS: usize = 16;

/// An [`Index`] with links of its own, beside those inside the slab it is about: for entries that
/// are on several lists at once.
#[derive(Default)]
pub(super) struct SideIndex {
    index: Index,
    links: Arena<ListLink>,
}

impl SideIndex {
    /// Adds an entry to the list of its key, before those at its end that are `later`. `hash_of` as
    /// in [`Index::insert`].
    #[inline]
    pub(super) fn insert(
        &mut self,
        hash: u32,
        id: u32,
        same: impl Fn(u32) -> bool,
        later: impl Fn(u32) -> bool,
        hash_of: impl Fn(u32) -> u32,
    ) {
        if self.links.len() <= id as usize {
            self.reserve(id);
        }
        self.index.insert(
            &mut self.links,
            hash,
            id,
            |_, other| same(other),
            later,
            |_, other| hash_of(other),
        );
    }

    /// First entry with a key.
    #[inline]
    pub(super) fn first(&self, hash: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        self.index.find(hash, same).map(|(_, head)| head)
    }

    /// The entry behind `id` on the same list, or [`NIL`].
    pub(super) fn next(&self, id: u32) -> u32 {
        self.links[id as usize].next
    }

    /// Takes out an entry that is in.
    pub(super) fn remove(&mut self, hash: u32, id: u32) {
        self.index.remove(&mut self.links, hash, id);
    }

    /// As [`Index::is_deep`].
    #[inline(always)]
    pub(super) fn is_deep(&self) -> bool {
        self.index.is_deep()
    }

    /// As [`Index::prefetch`].
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        self.index.prefetch(hash);
    }

    /// As [`Index::clear`].
    pub(super) fn clear(&mut self) {
        self.index.clear();
    }

    /// As [`Index::lines`].
    pub(super) fn lines(&self) -> usize {
        self.index.lines()
    }

    #[cold]
    #[inline(never)]
    fn reserve(&mut self, id: u32) {
        let len = (id as usize + 1).next_power_of_two().max(FIRST_LINKS);
        self.links.grow(len, |_| ListLink::LOOSE);
    }
}

#[cfg(test)]
mod tests;
