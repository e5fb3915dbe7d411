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
use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::region_window::{Elements, RegionWindow};
use ferrofabric_system::shared_memory::MemoryBacking;

/// The entries of a bucket.
pub(crate) const WAYS: usize = 8;
const BUCKETS: usize = 64;
/// The entries of a board.
pub(crate) const ENTRIES: usize = WAYS * BUCKETS;

/// A region, as its entry describes it. A peer may write anything to a board of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BoardRegion {
    pub(crate) key: u64,
    pub(crate) window: RegionWindow,
    /// Where it lies in memory that peers may map, if it does.
    pub(crate) backing: Option<MemoryBacking>,
}

/// The rights and the elements in their word of an entry. Above them are a descriptor and 1, 0 for
/// no memory that peers may map.
const ELEMENTS_SHIFT: u32 = 8;
const DESCRIPTOR_SHIFT: u32 = 32;

impl BoardRegion {
    /// Where an address of its [window](RegionWindow::address_of) is in the memory that peers may
    /// map.
    pub(crate) fn backing_at(&self, address: u64) -> Option<MemoryBacking> {
        let backing = self.backing?;
        let start = address.checked_sub(self.window.address)?;
        let offset = backing.offset.checked_add(start)?;
        Some(MemoryBacking { offset, ..backing })
    }

    /// The last words of its entry.
    fn backing_words(&self) -> [u64; 3] {
        let RegionWindow {
            rights, elements, ..
        } = self.window;
        let rights = u64::from(rights.bits()) | (u64::from(elements.number()) << ELEMENTS_SHIFT);
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
        let RegionWindow {
            address,
            len,
            first_place,
            ..
        } = region.window;
        let words = [region.key, address, len, first_place].into_iter();
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
            window: RegionWindow {
                address: word(1),
                len: word(2),
                first_place: word(3),
                rights: Rights::from_bits_retain(last[0] as u8),
                elements: Elements::from_number((last[0] >> ELEMENTS_SHIFT) as u8),
            },
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
