//! Hash of intrusive FIFO lists: one list per key, entries named by their slab index.
//!
//! Each key owns one 16-byte slot (full hash, head, tail) of an open-addressed table with linear probing, so a
//! key with a hundred thousand entries costs its neighbours nothing, and growth never touches the entries. The
//! entries live in the caller's slab; the table sees their [`Link`]s only.
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

    /// Hash of two words: the folded 128-bit product of both, each masked by its secret.
    #[inline]
    pub(super) fn hash(self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.0) * u128::from(b ^ self.1);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

#[derive(Clone, Copy)]
struct Slot {
    hash: u64,
    list: Fifo,
}

const VACANT: Slot = Slot {
    hash: 0,
    list: Fifo::EMPTY,
};

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
    /// The list of a key and its place: `same(id)` says whether entry `id` has that key.
    #[inline]
    pub(super) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<(usize, Fifo)> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.list.is_empty() {
                return None;
            }
            if slot.hash == hash && same(slot.list.head) {
                return Some((at, slot.list));
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds an entry to the list of its key, before those at its end that are `later`.
    #[inline]
    pub(super) fn insert<N: Linked>(
        &mut self,
        nodes: &mut [N],
        hash: u64,
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
            if slot.list.is_empty() {
                *nodes[id as usize].link_mut() = Link::LOOSE;
                *slot = Slot {
                    hash,
                    list: Fifo { head: id, tail: id },
                };
                self.keys += 1;
                return;
            }
            if slot.hash == hash && same(nodes, slot.list.head) {
                slot.list.insert_ordered(nodes, id, later);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Takes entry `id` out of the list at `at`, where `find` saw it.
    #[inline]
    pub(super) fn remove_at<N: Linked>(&mut self, nodes: &mut [N], at: usize, id: u32) {
        let list = &mut self.slots[at].list;
        list.unlink(nodes, id);
        if list.is_empty() {
            self.vacate(at);
        }
    }

    /// Takes entry `id`, which is on the list of a key with that hash, out of it.
    pub(super) fn remove<N: Linked>(&mut self, nodes: &mut [N], hash: u64, id: u32) {
        let Link { next, prev } = nodes[id as usize].link();
        if next != NIL && prev != NIL {
            nodes[next as usize].link_mut().prev = prev;
            nodes[prev as usize].link_mut().next = next;
            return;
        }
        // At an end of its list, which tells the list apart from others with the same hash.
        if let Some(mask) = self.slots.len().checked_sub(1) {
            let mut at = hash as usize & mask;
            while !self.slots[at].list.is_empty() {
                let list = self.slots[at].list;
                if list.head == id || list.tail == id {
                    self.remove_at(nodes, at, id);
                    return;
                }
                at = (at + 1) & mask;
            }
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
            if slot.list.is_empty() {
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
        for slot in old.into_iter().filter(|slot| !slot.list.is_empty()) {
            let mut at = slot.hash as usize & (slots - 1);
            while !self.slots[at].list.is_empty() {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = slot;
        }
    }
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
        hash: u64,
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
    pub(super) fn first(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        self.index.find(hash, same).map(|(_, list)| list.head)
    }

    /// The entry behind `id` on the same list, or [`NIL`].
    pub(super) fn next(&self, id: u32) -> u32 {
        self.links[id as usize].next
    }

    /// Takes out an entry that is in.
    pub(super) fn remove(&mut self, hash: u64, id: u32) {
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
mod tests {
    use super::*;

    /// Ids with equal `id % 7` share a key; hashes collide on purpose.
    fn colliding(id: u32) -> u64 {
        u64::from(id % 7 % 3)
    }

    fn lists(index: &Index, links: &[Link]) -> Vec<Vec<u32>> {
        (0..7)
            .map(|key| {
                let mut ids = Vec::new();
                if let Some((_, list)) = index.find(colliding(key), |id| id % 7 == key) {
                    let (mut at, mut back) = (list.head, NIL);
                    while at != NIL {
                        assert_eq!(links[at as usize].prev, back);
                        ids.push(at);
                        back = at;
                        at = links[at as usize].next;
                    }
                    assert_eq!(list.tail, back);
                }
                ids
            })
            .collect()
    }

    /// Keys whose hashes are equal keep lists of their own, in order, across growth and removal anywhere.
    #[test]
    fn equal_hashes_do_not_mix() {
        let mut links = vec![Link::LOOSE; 210];
        let mut index = Index::default();
        let mut model: Vec<Vec<u32>> = vec![Vec::new(); 7];
        for id in 0..210 {
            let same = |_: &[Link], other: u32| other % 7 == id % 7;
            index.insert(&mut links, colliding(id), id, same, |_| false);
            model[(id % 7) as usize].push(id);
        }
        assert_eq!(lists(&index, &links), model);
        // 101 is coprime to 210: every id once, in a scattered order.
        for step in 0..210 {
            let id = step * 101 % 210;
            index.remove(&mut links, colliding(id), id);
            model[(id % 7) as usize].retain(|&other| other != id);
            assert_eq!(lists(&index, &links), model);
        }
        assert_eq!(index.keys, 0);
        assert!(index.slots.iter().all(|slot| slot.list.is_empty()));
    }

    /// A probe run that wraps around the end of the table survives a removal in its middle.
    #[test]
    fn runs_wrap_around() {
        let mut links = vec![Link::LOOSE; 8];
        let mut index = Index::default();
        let hash = |id: u32| [14, 15, 15, 14, 0, 1, 15, 0][id as usize];
        for id in 0..8 {
            index.insert(&mut links, hash(id), id, |_, other| other == id, |_| false);
        }
        for gone in [1, 3, 0, 6, 2, 7] {
            index.remove(&mut links, hash(gone), gone);
            assert!(index.find(hash(gone), |id| id == gone).is_none());
            links[gone as usize] = Link { next: 99, prev: 99 };
            for id in (0..8).filter(|&id| links[id as usize].next != 99) {
                assert!(index.find(hash(id), |other| other == id).is_some(), "{id}");
            }
        }
    }

    /// Sequential, strided and high-bit-only keys spread: no probe run grows out of proportion.
    #[test]
    fn regular_keys_spread() {
        for stride in [1, 2, 64, 1 << 16, 1 << 32, 1 << 48] {
            let mut links = vec![Link::LOOSE; 4096];
            let mut index = Index::default();
            let seed = Seed::random();
            for id in 0..4096u32 {
                let hash = seed.hash(7, u64::from(id) * stride);
                index.insert(&mut links, hash, id, |_, other| other == id, |_| false);
            }
            let mut run = 0;
            let mut longest = 0;
            for slot in &index.slots {
                run = if slot.list.is_empty() { 0 } else { run + 1 };
                longest = longest.max(run);
            }
            assert!(longest < 256, "stride {stride}: a run of {longest}");
        }
    }
}
