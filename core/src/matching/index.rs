//! Hash of intrusive FIFO lists: one list per key, entries named by their slab index.
//!
//! Each key owns one 8-byte slot (hash, head) of an open-addressed table with linear probing, so a key with a
//! hundred thousand entries costs its neighbours nothing, eight keys share a cache line, and growth never touches the
//! entries. The entries live in the caller's slab; the table sees their [`Link`]s only.
//!
//! Tags come from peers, so the hash is keyed with random secrets per matcher. Expected cost is O(1). The worst
//! case, every key on one probe run, is linear in the number of distinct keys (never of entries with one key);
//! to bring it about a peer would have to know the secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// No entry.
pub(super) const NIL: u32 = u32::MAX;

/// Neighbours in a list.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) next: u32,
    pub(super) prev: u32,
}

impl Link {
    pub(super) const LOOSE: Link = Link {
        next: NIL,
        prev: NIL,
    };
}

/// What can be on a list: anything that has a [`Link`] inside.
pub(super) trait Linked {
    fn link(&self) -> Link;
    fn link_mut(&mut self) -> &mut Link;
}

impl Linked for Link {
    #[inline]
    fn link(&self) -> Link {
        *self
    }

    #[inline]
    fn link_mut(&mut self) -> &mut Link {
        self
    }
}

/// A doubly linked list through a slab.
#[derive(Clone, Copy)]
pub(super) struct Fifo {
    pub(super) head: u32,
    pub(super) tail: u32,
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
        *nodes[id as usize].link_mut() = Link { next, prev: at };
    }

    /// Takes an entry of this list out of it.
    #[inline]
    pub(super) fn unlink<N: Linked>(&mut self, nodes: &mut [N], id: u32) {
        let Link { next, prev } = nodes[id as usize].link();
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

    /// Hash of two words, each masked by its secret. One folded product would leave a run of tags an arithmetic
    /// sequence, which for some secrets falls on few slots: so two.
    #[inline]
    pub(super) fn hash(self, a: u64, b: u64) -> u32 {
        fold(fold(a ^ self.0, b ^ self.1), FOLD) as u32
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

/// A key's list: `prev` of the first entry is the last one, `next` of the last is [`NIL`].
#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    head: u32,
}

const VACANT: Slot = Slot { hash: 0, head: NIL };

/// Slots of a table when it is first used.
const FIRST_SLOTS: usize = 16;

/// Lists by key. The keys are the caller's: it gives their hash, and says which entries are of the same key.
#[derive(Default)]
pub(super) struct Index {
    /// Empty, or a power of two.
    slots: Vec<Slot>,
    keys: usize,
}

impl Index {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// The place of a key, and its first entry: `same(id)` says whether entry `id` has that key.
    #[inline]
    pub(super) fn find(&self, hash: u32, same: impl Fn(u32) -> bool) -> Option<(usize, u32)> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.head == NIL {
                return None;
            }
            if slot.hash == hash && same(slot.head) {
                return Some((at, slot.head));
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds an entry to the list of its key, before those at its end that are `later`.
    #[inline(always)]
    pub(super) fn insert<N: Linked>(
        &mut self,
        nodes: &mut [N],
        hash: u32,
        id: u32,
        same: impl Fn(&[N], u32) -> bool,
        later: impl Fn(u32) -> bool,
    ) {
        if self.keys * 2 >= self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.head == NIL {
                let link = Link {
                    next: NIL,
                    prev: id,
                };
                *nodes[id as usize].link_mut() = link;
                *slot = Slot { hash, head: id };
                self.keys += 1;
                return;
            }
            if slot.hash == hash && same(nodes, slot.head) {
                slot.head = enlist(nodes, slot.head, id, later);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Takes the first entry of a key out, which `find` has just seen.
    #[inline]
    pub(super) fn pop<N: Linked>(&mut self, nodes: &mut [N], at: usize, head: u32) {
        let Link { next, prev } = nodes[head as usize].link();
        if next == NIL {
            self.vacate(at);
        } else {
            nodes[next as usize].link_mut().prev = prev;
            self.slots[at].head = next;
        }
    }

    /// Takes entry `id`, which is on the list of a key with that hash, out of it.
    pub(super) fn remove<N: Linked>(&mut self, nodes: &mut [N], hash: u32, id: u32) {
        let Link { next, prev } = nodes[id as usize].link();
        let first = nodes[prev as usize].link().next != id;
        if !first && next != NIL {
            nodes[prev as usize].link_mut().next = next;
            nodes[next as usize].link_mut().prev = prev;
            return;
        }
        // At an end of its list, which tells the list apart from others with the same hash.
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = hash as usize & mask;
        while let Some(&Slot { head, .. }) = self.slots.get(at) {
            if head == NIL {
                break;
            }
            if head == id {
                return self.pop(nodes, at, id);
            }
            if !first && nodes[head as usize].link().prev == id {
                nodes[prev as usize].link_mut().next = NIL;
                nodes[head as usize].link_mut().prev = prev;
                return;
            }
            at = (at + 1) & mask;
        }
        debug_assert!(false, "entry {id} is on no list");
    }

    /// Forgets all entries and keeps the memory. Linear in the size of the table, free when it is empty.
    pub(super) fn clear(&mut self) {
        if self.keys != 0 {
            self.slots.fill(VACANT);
            self.keys = 0;
        }
    }

    /// Number of slots, the cost of [`Index::clear`].
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Closes the gap that a key leaves, so that no probe run is cut.
    #[inline]
    fn vacate(&mut self, at: usize) {
        let mask = self.slots.len() - 1;
        let mut hole = at;
        let mut next = (at + 1) & mask;
        loop {
            let slot = self.slots[next];
            if slot.head == NIL {
                break;
            }
            let home = slot.hash as usize & mask;
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = VACANT;
        self.keys -= 1;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(FIRST_SLOTS);
        let old = std::mem::replace(&mut self.slots, vec![VACANT; slots]);
        for slot in old.into_iter().filter(|slot| slot.head != NIL) {
            let mut at = slot.hash as usize & (slots - 1);
            while self.slots[at].head != NIL {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = slot;
        }
    }
}

/// Puts an entry on a key's list, before those at its end that are `later`. Returns the first entry.
#[inline]
fn enlist<N: Linked>(nodes: &mut [N], head: u32, id: u32, later: impl Fn(u32) -> bool) -> u32 {
    let tail = nodes[head as usize].link().prev;
    let (mut prev, mut next) = (tail, NIL);
    while later(prev) {
        next = prev;
        prev = nodes[prev as usize].link().prev;
        if next == head {
            // Before all others; `prev` is the last one.
            *nodes[id as usize].link_mut() = Link { next, prev };
            nodes[head as usize].link_mut().prev = id;
            return id;
        }
    }
    *nodes[id as usize].link_mut() = Link { next, prev };
    nodes[prev as usize].link_mut().next = id;
    let behind = if next == NIL { head } else { next };
    nodes[behind as usize].link_mut().prev = id;
    head
}

/// An [`Index`] with links of its own, beside those inside the slab it is about: for entries that are on
/// several lists at once.
#[derive(Default)]
pub(super) struct SideIndex {
    index: Index,
    links: Vec<Link>,
}

impl SideIndex {
    /// Adds an entry to the list of its key, before those at its end that are `later`.
    #[inline]
    pub(super) fn insert(
        &mut self,
        hash: u32,
        id: u32,
        same: impl Fn(u32) -> bool,
        later: impl Fn(u32) -> bool,
    ) {
        if self.links.len() <= id as usize {
            self.reserve(id);
        }
        self.index
            .insert(&mut self.links, hash, id, |_, other| same(other), later);
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

    /// As [`Index::clear`].
    pub(super) fn clear(&mut self) {
        self.index.clear();
    }

    /// As [`Index::slots`].
    pub(super) fn slots(&self) -> usize {
        self.index.slots()
    }

    #[cold]
    #[inline(never)]
    fn reserve(&mut self, id: u32) {
        let len = (id as usize + 1).next_power_of_two().max(FIRST_SLOTS);
        self.links.resize(len, Link::LOOSE);
    }
}

#[cfg(test)]
mod tests;
