//! Indexes of unexpected messages.

use super::MessageEntry;
use crate::index::{Ahead, Seed, SideIndex};
use ferrofabric_contracts::types::FiAddr;

/// An index of the queued messages by the tag bits outside an ignore mask, and by source if
/// receives name one.
#[derive(Default)]
pub(super) struct MessageView {
    pub(super) on: bool,
    pub(super) ignore: u64,
    pub(super) directed: bool,
    pub(super) used_at: u64,
    pub(super) index: SideIndex,
    /// Prefetchers for the keys of later arrivals and of later matches.
    arriving: Ahead,
    taking: Ahead,
}

impl MessageView {
    /// Adds a message at its place by age.
    #[inline]
    pub(super) fn insert<T: Copy>(&mut self, seed: Seed, entries: &[MessageEntry<T>], id: u32) {
        let MessageEntry {
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
        let (src, tag) = self.key(src, tag);
        if self.index.is_deep() {
            if let Some(next) = self.arriving.after(seed, src.0, tag) {
                self.index.prefetch(next);
            }
        }
        let hash_of = |other: u32| {
            let other = &entries[other as usize];
            let src = if directed { other.src } else { FiAddr::UNSPEC };
            seed.hash(src.0, other.tag & !ignore)
        };
        let hash = seed.hash(src.0, tag);
        self.index.insert(hash, id, same, later, hash_of);
    }

    #[inline]
    pub(super) fn remove<T: Copy>(&mut self, seed: Seed, entry: &MessageEntry<T>, id: u32) {
        if self.directed && entry.src == FiAddr::NOTAVAIL {
            return;
        }
        let (src, tag) = self.key(entry.src, entry.tag);
        if self.index.is_deep() {
            if let Some(next) = self.taking.after(seed, src.0, tag) {
                self.index.prefetch(next);
            }
        }
        self.index.remove(seed.hash(src.0, tag), id);
    }

    #[inline]
    pub(super) fn hash(&self, seed: Seed, src: FiAddr, tag: u64) -> u32 {
        let (src, tag) = self.key(src, tag);
        seed.hash(src.0, tag)
    }

    /// Source and tag as this view sees them.
    #[inline]
    fn key(&self, src: FiAddr, tag: u64) -> (FiAddr, u64) {
        let src = if self.directed { src } else { FiAddr::UNSPEC };
        (src, tag & !self.ignore)
    }

    #[cold]
    pub(super) fn drop_all(&mut self) {
        self.on = false;
        self.index.clear();
    }
}
