//! The board of a domain: its regions, where peers can read of them (`docs/adr/0062`).
//!
//! A peer that has a key looks up on the board where the region lies, and copies to or from that
//! memory by itself, or maps it where the board says how. The owner alone can write to the board.
//! The entry of a region is one line; a key has one [bucket](bucket_of) of entries. A region whose
//! bucket is full is not on the board.

#[cfg(all(test, loom))]
#[allow(unsafe_code, reason = "plays the memory of a region")]
mod loom_tests;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "places the entries in the mapping")]
mod memory;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub(crate) use self::memory::{BoardMemory, PeerBoard, SEAL_FUTURE_WRITE};
use crate::sync::{AtomicU64, Ordering, fence};
use ferrofabric_contracts::atomics::Datatype;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_system::shared_memory::MemoryBacking;

/// The entries of a bucket.
pub(crate) const WAYS: usize = 8;
const BUCKETS: usize = 64;
/// The entries of a board.
pub(crate) const ENTRIES: usize = WAYS * BUCKETS;

/// Rights, as entries have them: peers may read.
pub(crate) const MAY_READ: u64 = 1;
/// Peers may write.
pub(crate) const MAY_WRITE: u64 = 2;

/// The rights of peers among these flags, as entries have them.
pub(crate) fn rights_of(flags: Flags) -> u64 {
    let right = |flag, right| if flags.contains(flag) { right } else { 0 };
    right(Flags::REMOTE_READ, MAY_READ) | right(Flags::REMOTE_WRITE, MAY_WRITE)
}

/// A region, as its entry describes it. A peer may write anything to a board of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BoardRegion {
    pub(crate) key: u64,
    /// Its memory, in the process of its owner.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The place of its first byte.
    pub(crate) first_place: u64,
    /// `MAY_READ`, `MAY_WRITE`.
    pub(crate) rights: u64,
    /// The elements for which it alone is, as [`elements_of`] numbers them.
    pub(crate) elements: u64,
    /// Where it lies in memory that peers may map, if it does.
    pub(crate) backing: Option<MemoryBacking>,
}

/// The access of an operation to its part of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoardAccess {
    /// The rights that it needs.
    pub(crate) rights: u64,
    /// Its elements, as [`elements_of`] numbers them.
    pub(crate) elements: u64,
}

/// The number of a type of elements on the board; 0 for a region of bytes, and for an operation
/// that is not atomic.
pub(crate) fn elements_of(datatype: Option<Datatype>) -> u64 {
    datatype.map_or(0, |datatype| datatype as u64 + 1)
}

/// The rights and the elements in their word of an entry. Above them are a descriptor and 1, 0 for
/// no memory that peers may map.
const RIGHTS_MASK: u64 = 0xff;
const ELEMENTS_SHIFT: u32 = 8;
const ELEMENTS_MASK: u64 = 0xff;
const DESCRIPTOR_SHIFT: u32 = 32;

impl BoardRegion {
    /// The address of `len` bytes from `place` on, for an operation.
    pub(crate) fn part(&self, place: u64, len: u64, access: BoardAccess) -> Option<u64> {
        let start = place.checked_sub(self.first_place)?;
        let end = start.checked_add(len)?;
        let has_rights = self.rights & access.rights == access.rights;
        let is_for_it = self.elements == 0 || self.elements == access.elements;
        (end <= self.len && has_rights && is_for_it).then_some(())?;
        self.addr.checked_add(end)?;
        Some(self.addr + start)
    }

    /// Where a [part](Self::part) at this address lies in the memory that peers may map.
    pub(crate) fn backing_at(&self, addr: u64) -> Option<MemoryBacking> {
        let backing = self.backing?;
        let start = addr.checked_sub(self.addr)?;
        let offset = backing.offset.checked_add(start)?;
        Some(MemoryBacking { offset, ..backing })
    }

    /// The last words of its entry.
    fn backing_words(&self) -> [u64; 3] {
        let elements = (self.elements & ELEMENTS_MASK) << ELEMENTS_SHIFT;
        let rights = (self.rights & RIGHTS_MASK) | elements;
        let above = |backing: MemoryBacking| Some((backing, backing.descriptor.checked_add(1)?));
        match self.backing.and_then(above) {
            Some((backing, above @ 1..)) => {
                let word = rights | ((above as u64) << DESCRIPTOR_SHIFT);
                [word, backing.inode, backing.offset]
            }
            _ => [rights, 0, 0],
        }
    }

    /// The backing that words say.
    fn backing_of([rights, inode, offset]: [u64; 3]) -> Option<MemoryBacking> {
        let descriptor = (rights >> DESCRIPTOR_SHIFT) as u32;
        let backing = i32::try_from(descriptor).ok().filter(|above| *above != 0);
        backing.map(|above| MemoryBacking {
            descriptor: above - 1,
            inode,
            offset,
        })
    }
}

/// An entry, in a line of its own. All zeroes is an entry without a region.
#[repr(C, align(64))]
pub(crate) struct BoardEntry {
    /// Odd while the entry has a region. Each change makes it one more.
    generation: AtomicU64,
    words: [AtomicU64; 7],
}

impl BoardEntry {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Owner: whether it has no region.
    pub(crate) fn is_free(&self) -> bool {
        self.generation.load(Ordering::Relaxed) % 2 == 0
    }

    /// Owner: shows a region in a free entry.
    pub(crate) fn show(&self, region: &BoardRegion) {
        let BoardRegion {
            key,
            addr,
            len,
            first_place,
            ..
        } = *region;
        let words = [key, addr, len, first_place].into_iter();
        let words = words.chain(region.backing_words());
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        // Pairs with `read`: its words are those stored above.
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation + 1, Ordering::Release);
    }

    /// Owner: takes the region off. A peer that finds the entry [as it was](Self::is_still) after
    /// this has set its hazard before this, so a look at the hazards must follow.
    pub(crate) fn hide(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation + 1, Ordering::Relaxed);
        // Pairs with the fence of `Hazard::protect`. It also keeps the words of the next region
        // behind this store.
        fence(Ordering::SeqCst);
    }

    /// Peer: the region with a key, if the entry has that one, and the entry's generation. The
    /// words count only if the entry [is still](Self::is_still) the same afterwards.
    pub(crate) fn read(&self, key: u64) -> Option<(u64, BoardRegion)> {
        let generation = self.generation.load(Ordering::Acquire);
        if generation % 2 == 0 {
            return None;
        }
        let word = |at: usize| self.words[at].load(Ordering::Relaxed);
        if word(0) != key {
            return None;
        }
        let last = [word(4), word(5), word(6)];
        let region = BoardRegion {
            key,
            addr: word(1),
            len: word(2),
            first_place: word(3),
            rights: last[0] & RIGHTS_MASK,
            elements: (last[0] >> ELEMENTS_SHIFT) & ELEMENTS_MASK,
            backing: BoardRegion::backing_of(last),
        };
        Some((generation, region))
    }

    /// Peer: whether the entry has the same region as at an earlier `read`. The caller has set its
    /// hazard, and run a fence, in between.
    pub(crate) fn is_still(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Relaxed) == generation
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl BoardEntry {
    /// Writes a word as a hostile owner may, the generation first.
    pub(crate) fn write_word(&self, word: usize, value: u64) {
        match word {
            0 => self.generation.store(value, Ordering::SeqCst),
            _ => self.words[word - 1].store(value, Ordering::SeqCst),
        }
    }
}

/// The entries that a region with this key may have.
pub(crate) fn bucket_of(key: u64) -> std::ops::Range<usize> {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    let first = hash as usize % BUCKETS * WAYS;
    first..first + WAYS
}
