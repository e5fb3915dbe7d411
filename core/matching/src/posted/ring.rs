//! Receives that stand in no table, oldest first: a few of any kind, or many that are alike. An
//! exchange of messages that keeps a receive or two posted costs a comparison or two, and so does a
//! stream into a window of receives.

use crate::{MatchedReceive, PostedReceive, ReceiveBuffers};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Piece};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc};

/// Receives up to which looking at each is cheaper than any table.
const FEW: usize = 4;
/// Receives that are alike, at most: when another one comes, all of them move into a table at one
/// go.
const ALIKE: usize = if cfg!(test) { 16 } else { 256 };

/// A ring of receives. Where there are more than [`FEW`], all have the same source, tag and mask.
pub(super) struct ReceiveRing {
    /// A power of two of them.
    slots: Box<[PostedReceive]>,
    first: usize,
    len: usize,
}

impl ReceiveRing {
    pub(super) fn new() -> ReceiveRing {
        ReceiveRing {
            slots: (0..FEW).map(|_| blank()).collect(),
            first: 0,
            len: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn place(&self, number: usize) -> usize {
        (self.first + number) & (self.slots.len() - 1)
    }

    /// Whether a receive like this one may stand behind the others. False: it belongs into a table,
    /// as do the others then.
    #[inline(always)]
    pub(super) fn makes_room_for(&mut self, src: FiAddr, tag: u64, ignore: u64) -> bool {
        if self.len < FEW {
            return true;
        }
        let alike = |number| {
            let other = &self.slots[self.place(number)];
            (other.src == src) & (other.tag == tag) & (other.ignore == ignore)
        };
        // More than a few are alike already.
        if !alike(0) || (self.len == FEW && !(1..FEW).all(alike)) {
            return false;
        }
        self.len < self.slots.len() || self.grow()
    }

    /// Adds a receive behind the others, who make room for it.
    #[inline(always)]
    pub(super) fn push(&mut self, p: PostedReceive) {
        let at = self.place(self.len);
        // Field by field, here and below: a struct put together on the stack and then copied waits
        // for its stores.
        let new = &mut self.slots[at];
        new.src = p.src;
        new.tag = p.tag;
        new.ignore = p.ignore;
        new.buf.set(p.buf);
        new.desc = p.desc;
        new.context = p.context;
        new.flags = p.flags;
        self.len += 1;
    }

    /// Takes the oldest receive that the message matches.
    #[inline(always)]
    pub(super) fn arrive(&mut self, a: &Arrived) -> Option<MatchedReceive> {
        if !matches(&self.slots[self.place(0)], a) {
            // Pass a copy: the usual case then needs no message in memory.
            self.bring_forward(&{ *a })?;
        }
        let next = self.place(1);
        let p = &mut self.slots[std::mem::replace(&mut self.first, next)];
        self.len -= 1;
        Some(MatchedReceive {
            buf: p.buf.take(),
            desc: p.desc,
            context: p.context,
            flags: p.flags,
            piece: Piece::NONE,
        })
    }

    /// Makes the oldest receive that the message matches the first, the others keep their order.
    #[inline(never)]
    fn bring_forward(&mut self, a: &Arrived) -> Option<()> {
        if self.len > FEW {
            return None;
        }
        let at = (1..self.len).find(|&i| matches(&self.slots[self.place(i)], a))?;
        for i in (0..at).rev() {
            self.slots.swap(self.place(i), self.place(i + 1));
        }
        Some(())
    }

    /// Takes the oldest receive.
    pub(super) fn pop(&mut self) -> Option<PostedReceive> {
        self.len = self.len.checked_sub(1)?;
        let first = std::mem::replace(&mut self.slots[self.first], blank());
        self.first = self.place(1);
        Some(first)
    }

    /// Makes the ring longer, unless it is as long as it may be.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        if self.len >= ALIKE {
            return false;
        }
        self.slots.rotate_left(self.first);
        self.first = 0;
        let more = (0..self.slots.len()).map(|_| blank());
        self.slots = std::mem::take(&mut self.slots)
            .into_iter()
            .chain(more)
            .collect();
        true
    }
}

#[inline(always)]
fn matches(p: &PostedReceive, a: &Arrived) -> bool {
    let from = (p.src == FiAddr::UNSPEC) | (p.src == a.src);
    from & ((p.tag ^ a.tag) & !p.ignore == 0)
}

fn blank() -> PostedReceive {
    PostedReceive {
        src: FiAddr::UNSPEC,
        tag: 0,
        ignore: 0,
        buf: ReceiveBuffers::One(IoBuf::EMPTY),
        desc: MrDesc::NONE,
        context: 0,
        flags: Flags::empty(),
    }
}
