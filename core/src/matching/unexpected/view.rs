//! Indexes of unexpected messages.

use super::Entry;
use crate::matching::index::{Seed, SideIndex};
use crate::types::FiAddr;

/// An index of the queued messages by what an ignore mask leaves of the tag, and by source or not.
#[derive(Default)]
pub(super) struct View {
    pub(super) on: bool,
    pub(super) ignore: u64,
    pub(super) directed: bool,
    pub(super) used_at: u64,
    pub(super) index: SideIndex,
}

impl View {
    /// Adds a message at its place by age.
    #[inline]
    pub(super) fn insert<T>(&mut self, seed: Seed, entries: &[Entry<T>], id: u32) {
        let Entry {
            src, tag, order, ..
        } = entries[id as usize];
        let (directed, ignore) = (self.directed, self.ignore);
        if directed && src == FiAddr::NOTAVAIL {
            return;
        }
        let same = |other: u32| {
            let other = &entries[other as usize];
            (!directed || other.src == src) && (other.tag ^ tag) & !ignore == 0
        };
        let later = |other: u32| entries[other as usize].order > order;
        self.index
            .insert(self.hash(seed, src, tag), id, same, later);
    }

    #[inline]
    pub(super) fn remove<T>(&mut self, seed: Seed, entry: &Entry<T>, id: u32) {
        if !self.directed || entry.src != FiAddr::NOTAVAIL {
            self.index.remove(self.hash(seed, entry.src, entry.tag), id);
        }
    }

    #[inline]
    pub(super) fn hash(&self, seed: Seed, src: FiAddr, tag: u64) -> u32 {
        let src = if self.directed { src } else { FiAddr::UNSPEC };
        seed.hash(src.0, tag & !self.ignore)
    }

    #[cold]
    pub(super) fn drop_all(&mut self) {
        self.on = false;
        self.index.clear();
    }
}
