//! Rare properties of a receive: a memory descriptor, a list of buffers, flags of the upper half, a
//! mask with no class. They are stored beside the entries, so that an entry fits one cache line.

use super::{PostedQueue, PostedReceive, ReceiveEntry};
use crate::{MatchedReceive, ReceiveBuffers};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc};

/// Beside the entry with the same number.
pub(super) struct Extra {
    desc: MrDesc,
    /// All of them.
    flags: Flags,
    ignore: u64,
    list: Option<Box<[IoBuf]>>,
}

impl Extra {
    const NONE: Extra = Extra {
        desc: MrDesc::NONE,
        flags: Flags::empty(),
        ignore: 0,
        list: None,
    };

    /// Whether an entry does not hold all of a receive that has a class.
    #[inline]
    pub(super) fn is_needed(p: &PostedReceive) -> bool {
        !p.desc.is_none()
            || p.flags.bits() > u64::from(u32::MAX)
            || matches!(p.buf, ReceiveBuffers::Many(_))
    }

    /// The ignore mask.
    pub(super) fn ignore(&self) -> u64 {
        self.ignore
    }

    pub(super) fn is_list(&self) -> bool {
        self.list.is_some()
    }

    /// Makes a match whole that is a piece of the receive. (A list is never cut into pieces.)
    pub(super) fn add_to(&self, matched: MatchedReceive) -> MatchedReceive {
        MatchedReceive {
            desc: self.desc,
            flags: self.flags,
            ..matched
        }
    }

    /// Makes a match whole that is all of the receive.
    #[inline(never)]
    pub(super) fn take(&mut self, matched: MatchedReceive) -> MatchedReceive {
        let mut matched = self.add_to(matched);
        if let Some(list) = self.list.take() {
            matched.buf = ReceiveBuffers::Many(list);
        }
        matched
    }
}

impl PostedQueue {
    #[inline(never)]
    pub(super) fn put_extra(&mut self, id: u32, p: PostedReceive) {
        if self.extras.len() < self.entries.len() {
            self.extras.resize_with(self.entries.len(), || Extra::NONE);
        }
        self.extras[id as usize] = Extra {
            desc: p.desc,
            flags: p.flags,
            ignore: p.ignore,
            list: match p.buf {
                ReceiveBuffers::One(_) => None,
                ReceiveBuffers::Many(list) => Some(list),
            },
        };
    }

    /// The ignore mask of an entry in use.
    pub(super) fn ignore_of(&self, id: u32) -> u64 {
        let ReceiveEntry { order, .. } = self.entries[id as usize];
        match self.classes.get((order & super::CLASS) as usize) {
            Some(class) => class.ignore,
            None => self.extras[id as usize].ignore,
        }
    }
}
