//! Taking posted receives back: cancelled ones, and those of a source that failed.
//!
//! The indexes by context and by source that this needs cost every post and every match something,
//! so they exist only while they are being used.

use super::classes::CLASSES_MAX;
use super::{CLASS, FREE, PostedQueue, ReceiveEntry};
use crate::index::SideIndex;
use crate::{PostedReceive, WithdrawnReceive};
use ferrofabric_contracts::types::FiAddr;

/// Posts without a cancellation (or failed source) after which the index for it is no longer kept
/// up to date.
const ASIDE_IDLE: u64 = if cfg!(test) { 16 } else { 4096 };

/// An index that is made when first asked for and kept up to date while it is being used.
#[derive(Default)]
struct Aside {
    on: bool,
    used_at: u64,
    index: SideIndex,
}

/// Both of them.
#[derive(Default)]
pub(super) struct Asides {
    by_context: Aside,
    by_source: Aside,
}

impl Asides {
    #[inline]
    pub(super) fn any_on(&self) -> bool {
        self.by_context.on | self.by_source.on
    }
}

impl PostedQueue {
    /// Takes the oldest receive with that context, of a collective operation or another one.
    pub(crate) fn cancel(&mut self, context: u64, is_collective: bool) -> Option<WithdrawnReceive> {
        self.settle();
        self.keep_by_context();
        let key = (context, u64::from(is_collective));
        let entries = &self.entries;
        let same = |id: u32| entries[id as usize].cancel_key() == key;
        let hash = self.seed.hash(key.0, key.1);
        let id = self.asides.by_context.index.first(hash, same)?;
        Some(self.take(id))
    }

    /// Takes all receives that only a message from `src` could match, oldest first.
    pub(crate) fn fail_source(&mut self, src: FiAddr, out: &mut Vec<WithdrawnReceive>) {
        if !src.is_some() || self.len == 0 {
            return;
        }
        self.settle();
        self.keep_by_source();
        let hash = self.seed.hash(src.0, 0);
        while let Some(id) = {
            let entries = &self.entries;
            let same = |id: u32| entries[id as usize].src == src;
            self.asides.by_source.index.first(hash, same)
        } {
            out.push(self.take(id));
        }
    }

    /// Takes any receive out as it was posted, or the rest of a multi-receive.
    #[cold]
    fn take(&mut self, id: u32) -> WithdrawnReceive {
        let ReceiveEntry {
            src, tag, order, ..
        } = self.entries[id as usize];
        let number = (order & CLASS) as usize;
        let ignore = self.ignore_of(id);
        if number < CLASSES_MAX {
            let class = self.classes.at(number);
            let key = class.key(src, tag);
            let hash = self.seed.hash(key.0.0, key.1);
            class.index.remove(&mut self.entries, hash, id);
            self.classes.emptied(number);
        } else {
            self.odd.unlink(&mut self.entries, id);
        }
        let m = self.release(id);
        let posted = PostedReceive {
            src,
            tag,
            ignore,
            buf: m.buf,
            desc: m.desc,
            context: m.context,
            flags: m.flags,
        };
        self.pieces.take_back(posted, m.piece)
    }

    /// Entries in use, oldest first, in the scratch vector.
    fn ids_by_age(&mut self) -> Vec<u32> {
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        let entries = &self.entries;
        ids.extend((0..entries.len() as u32).filter(|&id| entries[id as usize].order != FREE));
        ids.sort_unstable_by_key(|&id| entries[id as usize].order);
        ids
    }

    fn keep_by_context(&mut self) {
        self.asides.by_context.used_at = self.posts;
        if !self.asides.by_context.on {
            self.asides.by_context.on = true;
            let ids = self.ids_by_age();
            for &id in &ids {
                self.enlist_by_context(id);
            }
            self.scratch = ids;
        }
    }

    fn keep_by_source(&mut self) {
        self.asides.by_source.used_at = self.posts;
        if !self.asides.by_source.on {
            self.asides.by_source.on = true;
            let ids = self.ids_by_age();
            for &id in &ids {
                self.enlist_by_source(id);
            }
            self.scratch = ids;
        }
    }

    #[inline(never)]
    pub(super) fn enlist_aside(&mut self, id: u32) {
        let Asides {
            by_context,
            by_source,
        } = &mut self.asides;
        for aside in [by_context, by_source] {
            // Dropping reads the table, making it anew the slab: wait for posts in proportion.
            let idle = ASIDE_IDLE.max((aside.index.lines() / 2 + self.entries.len() / 4) as u64);
            if aside.on && self.posts - aside.used_at > idle {
                aside.on = false;
                aside.index.clear();
            }
        }
        if self.asides.by_context.on {
            self.enlist_by_context(id);
        }
        if self.asides.by_source.on {
            self.enlist_by_source(id);
        }
    }

    fn enlist_by_context(&mut self, id: u32) {
        let entries = &self.entries;
        let key = entries[id as usize].cancel_key();
        let same = |other: u32| entries[other as usize].cancel_key() == key;
        let seed = self.seed;
        let hash_of = |id: u32| {
            let key = entries[id as usize].cancel_key();
            seed.hash(key.0, key.1)
        };
        self.asides
            .by_context
            .index
            .insert(hash_of(id), id, same, |_| false, hash_of);
    }

    fn enlist_by_source(&mut self, id: u32) {
        let entries = &self.entries;
        let src = entries[id as usize].src;
        if src != FiAddr::UNSPEC {
            let same = |other: u32| entries[other as usize].src == src;
            let seed = self.seed;
            let hash_of = |id: u32| seed.hash(entries[id as usize].src.0, 0);
            self.asides
                .by_source
                .index
                .insert(hash_of(id), id, same, |_| false, hash_of);
        }
    }

    #[inline(never)]
    pub(super) fn delist_aside(&mut self, id: u32) {
        if self.asides.by_context.on {
            let key = self.entries[id as usize].cancel_key();
            let hash = self.seed.hash(key.0, key.1);
            self.asides.by_context.index.remove(hash, id);
        }
        let src = self.entries[id as usize].src;
        if self.asides.by_source.on && src != FiAddr::UNSPEC {
            self.asides
                .by_source
                .index
                .remove(self.seed.hash(src.0, 0), id);
        }
    }
}
