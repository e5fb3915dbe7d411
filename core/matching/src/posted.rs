//! Posted receives.
//!
//! Receives with the same ignore mask that all name a source, or all name none, are one *class*.
//! Within a class a message matches the receives of one key, and the oldest of them is the head of
//! that key's list. An arrival looks into each class that has receives (a bit set lists these
//! classes) and takes the oldest of the heads.

mod classes;
mod extra;
mod pieces;
mod ring;
mod withdraw;

use super::arena::Arena;
use super::index::{Fifo, IndexPlace, Linked, ListLink, NIL, Seed};
use super::{MatchedReceive, MultiReceiveState, PostedReceive, ReceiveBuffers};
use classes::{CLASSES_MAX, Class, MaskClasses};
use extra::Extra;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Piece};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc};
use pieces::Pieces;
use ring::ReceiveRing;
use withdraw::Asides;

/// Entries made at first.
const FIRST_ENTRIES: usize = 16;
/// `ReceiveEntry::order` of an entry that is not in use.
const FREE: u64 = u64::MAX;
/// In `ReceiveEntry::order`: the number of the class.
const CLASS: u64 = 0x7f;
/// In `ReceiveEntry::order`: there is an [`Extra`] beside the entry.
const EXTRA: u64 = 0x80;
const POST_SHIFT: u32 = 8;

const _: () = assert!(CLASSES_MAX as u64 <= CLASS);

/// A posted receive: the one cache line that a search reads and a match hands out. Rare properties
/// are in an [`Extra`] beside it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct ReceiveEntry {
    src: FiAddr,
    tag: u64,
    /// Number of the post, above [`EXTRA`] and the number of the class ([`CLASSES_MAX`]: none).
    order: u64,
    /// In the list of its key; the free list while not in use.
    link: ListLink,
    context: u64,
    buf: IoBuf,
    /// The lower half of the flags; all of them, but for an [`Extra`].
    flags: u32,
    /// The multi-receive that it is, if it is one.
    piece: Piece,
}

const _: () = assert!(size_of::<ReceiveEntry>() == 64);

impl ReceiveEntry {
    /// The values that a match takes of the entry. Those of an [`Extra`] are not among them.
    #[inline]
    fn matched(&self) -> MatchedReceive {
        MatchedReceive {
            context: self.context,
            buf: ReceiveBuffers::One(self.buf),
            flags: Flags::from_bits_retain(u64::from(self.flags)),
            desc: MrDesc::NONE,
            piece: self.piece,
        }
    }

    /// The key of a cancellation: the context, and 1 for a receive of a collective operation,
    /// whose contexts are not the application's.
    fn cancel_key(&self) -> (u64, u64) {
        const COLLECTIVE: u32 = Flags::COLLECTIVE.bits() as u32;
        (self.context, u64::from(self.flags & COLLECTIVE != 0))
    }
}

impl Linked for ReceiveEntry {
    #[inline]
    fn link(&self) -> ListLink {
        self.link
    }

    #[inline]
    fn link_mut(&mut self) -> &mut ListLink {
        &mut self.link
    }
}

/// Where the receive for a message is: at the head of a list.
struct FoundReceive {
    number: usize,
    /// Unless `number` is [`CLASSES_MAX`].
    place: Option<IndexPlace>,
    head: u32,
}

/// How the entries that match follow each other in memory.
#[derive(Default)]
struct Stride {
    matched: u32,
    step: u32,
}

impl Stride {
    /// An entry matches. Returns the entry that will probably match some matches later, if the last
    /// two entries are as far apart as those before.
    #[inline]
    fn ahead(&mut self, id: u32) -> Option<u32> {
        let step = id.wrapping_sub(self.matched);
        let is_steady = step == self.step;
        (self.matched, self.step) = (id, step);
        is_steady.then_some(id.wrapping_add(step.wrapping_mul(6)))
    }
}

/// All posted receives of a matcher.
pub(super) struct PostedQueue {
    seed: Seed,
    entries: Arena<ReceiveEntry>,
    extras: Vec<Extra>,
    free: u32,
    len: usize,
    /// Holds either all receives or none.
    ring: ReceiveRing,
    posts: u64,
    classes: MaskClasses,
    stride: Stride,
    /// Receives whose mask has no class.
    odd: Fifo,
    asides: Asides,
    /// A multi-receive buffer with fewer bytes left is done.
    pub(super) min_multi_recv: usize,
    pieces: Pieces,
    scratch: Vec<u32>,
}

impl PostedQueue {
    pub(super) fn new(seed: Seed, min_multi_recv: usize) -> PostedQueue {
        PostedQueue {
            seed,
            entries: Arena::new(),
            extras: Vec::new(),
            free: NIL,
            len: 0,
            ring: ReceiveRing::new(),
            posts: 0,
            classes: MaskClasses::default(),
            stride: Stride::default(),
            odd: Fifo::EMPTY,
            asides: Asides::default(),
            min_multi_recv,
            pieces: Pieces::default(),
            scratch: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Adds a receive for one message behind all others.
    #[inline(always)]
    pub(super) fn push(&mut self, p: PostedReceive) {
        if self.len == self.ring.len() && self.ring.makes_room_for(p.src, p.tag, p.ignore) {
            self.ring.push(p);
            self.len += 1;
        } else {
            // Another one: `p` itself stays in registers, as nobody takes its address.
            self.push_indexed(PostedReceive { ..p }, Piece::NONE);
        }
    }

    /// Begins a multi-receive.
    pub(super) fn open_multi(&mut self) -> Piece {
        self.pieces.open()
    }

    /// Adds what is left of a multi-receive behind all others.
    pub(super) fn push_multi(&mut self, p: PostedReceive, piece: Piece) {
        self.push_indexed(p, piece);
    }

    /// A transport gets a piece of a multi-receive; `last` when nothing is left behind it.
    pub(super) fn hand_out(&mut self, piece: Piece, last: bool) {
        self.pieces.hand_out(piece, last);
    }

    /// A transport has completed a piece.
    pub(super) fn complete_piece(&mut self, piece: Piece) -> MultiReceiveState {
        self.pieces.complete(piece)
    }

    #[inline(never)]
    fn push_indexed(&mut self, p: PostedReceive, piece: Piece) {
        self.settle();
        self.enter(p, piece);
    }

    /// Enters a receive in the table of its class.
    #[inline]
    fn enter(&mut self, p: PostedReceive, piece: Piece) {
        let (src, tag) = (p.src, p.tag);
        let directed = src != FiAddr::UNSPEC;
        let number = self.classes.number_for(p.ignore, directed);
        if self.free == NIL {
            self.grow();
        }
        let id = self.free;
        let buf = match p.buf {
            ReceiveBuffers::One(buf) => buf,
            ReceiveBuffers::Many(_) => IoBuf::EMPTY,
        };
        let extra = number == CLASSES_MAX || Extra::is_needed(&p);
        let entry = &mut self.entries[id as usize];
        self.free = entry.link.next;
        entry.src = src;
        entry.tag = tag;
        entry.order = (self.posts << POST_SHIFT) | number as u64;
        entry.context = p.context;
        entry.buf = buf;
        entry.flags = p.flags.bits() as u32;
        entry.piece = piece;
        if extra {
            entry.order |= EXTRA;
            self.put_extra(id, p);
        }
        self.posts += 1;
        self.len += 1;
        if self.asides.any_on() {
            self.enlist_aside(id);
        }
        let Some(class) = self.classes.get_mut(number) else {
            return self.odd.push_back(&mut self.entries, id);
        };
        let (src, tag) = class.key(src, tag);
        let ignore = class.ignore;
        let same = |entries: &[ReceiveEntry], other: u32| {
            let other = &entries[other as usize];
            other.src == src && other.tag & !ignore == tag
        };
        let (seed, directed) = (self.seed, class.directed);
        let hash_of = |entries: &[ReceiveEntry], other: u32| {
            let other = &entries[other as usize];
            let src = if directed { other.src } else { FiAddr::UNSPEC };
            seed.hash(src.0, other.tag & !ignore)
        };
        let hash = seed.hash(src.0, tag);
        class.expect_post(seed, (src, tag));
        class
            .index
            .insert(&mut self.entries, hash, id, same, |_| false, hash_of);
        self.classes.filled(number);
    }

    /// Takes the oldest receive that the message matches, or the next piece of it if it is a
    /// multi-receive.
    #[inline]
    pub(super) fn arrive(&mut self, a: &Arrived) -> Option<MatchedReceive> {
        if self.ring.len() == 0 {
            // A copy, as in the ring.
            return self.arrive_indexed(&{ *a });
        }
        let matched = self.ring.arrive(a)?;
        self.len -= 1;
        Some(matched)
    }

    fn arrive_indexed(&mut self, a: &Arrived) -> Option<MatchedReceive> {
        let found = match self.classes.only_one() {
            Some(number) if self.odd.is_empty() => {
                let class = self.classes.get(number)?;
                let (place, head) = self.find_in(class, a)?;
                FoundReceive {
                    number,
                    place: Some(place),
                    head,
                }
            }
            _ => self.find_among_many(a)?,
        };
        self.take_found(found, a)
    }

    /// As `arrive`, of a message that receives with the source `key` match, too.
    pub(super) fn arrive_with_key(&mut self, a: &Arrived, key: FiAddr) -> Option<MatchedReceive> {
        self.settle();
        let keyed = Arrived { src: key, ..*a };
        let age = |found: &Option<FoundReceive>| match found {
            Some(found) => self.entries[found.head as usize].order,
            None => FREE,
        };
        // Both find a receive of any source; it is the same then.
        let (by_source, by_key) = (self.find_among_many(a), self.find_among_many(&keyed));
        match age(&by_key) < age(&by_source) {
            true => self.take_found(by_key?, &keyed),
            false => self.take_found(by_source?, a),
        }
    }

    #[inline(always)]
    fn take_found(&mut self, found: FoundReceive, a: &Arrived) -> Option<MatchedReceive> {
        let id = found.head;
        if self.entries[id as usize].piece != Piece::NONE {
            if let Some(piece) = self.piece(id, a.len) {
                return Some(piece);
            }
        }
        if let Some(place) = found.place {
            let class = self.classes.at(found.number);
            class.expect_match(self.seed, a);
            if let Some(ahead) = self.stride.ahead(id) {
                self.entries.prefetch(ahead as usize);
            }
            class.index.pop(&mut self.entries, place, id);
            self.classes.emptied(found.number);
        } else {
            self.odd.unlink(&mut self.entries, id);
        }
        Some(self.release(id))
    }

    /// Puts what stands in the ring, if anything does, into the tables.
    #[inline]
    fn settle(&mut self) {
        if self.ring.len() != 0 {
            self.settle_ring();
        }
    }

    #[inline(never)]
    fn settle_ring(&mut self) {
        self.len = 0;
        while let Some(p) = self.ring.pop() {
            self.enter(p, Piece::NONE);
        }
    }

    /// Makes entries, as many again as there are.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let len = self.entries.len();
        let more = len.max(FIRST_ENTRIES);
        assert!(len + more < NIL as usize, "a receive queue of 2^32 entries");
        let free = self.free;
        self.entries.grow(len + more, |id| ReceiveEntry {
            src: FiAddr::UNSPEC,
            tag: 0,
            order: FREE,
            link: ListLink {
                next: if id + 1 < len + more {
                    id as u32 + 1
                } else {
                    free
                },
                prev: NIL,
            },
            context: 0,
            buf: IoBuf::EMPTY,
            flags: 0,
            piece: Piece::NONE,
        });
        self.free = len as u32;
    }

    /// Takes a receive that is off its class's lists out of the slab.
    #[inline]
    fn release(&mut self, id: u32) -> MatchedReceive {
        if self.asides.any_on() {
            self.delist_aside(id);
        }
        let entry = &mut self.entries[id as usize];
        let order = std::mem::replace(&mut entry.order, FREE);
        entry.link.next = self.free;
        self.free = id;
        self.len -= 1;
        let matched = entry.matched();
        match order & EXTRA {
            0 => matched,
            _ => self.extras[id as usize].take(matched),
        }
    }

    /// Cuts the next piece off a multi-receive; `None` when nothing useful is left behind it: then
    /// the piece is all of it.
    #[cold]
    #[inline(never)]
    fn piece(&mut self, id: u32, len: u64) -> Option<MatchedReceive> {
        let entry = &mut self.entries[id as usize];
        let cut = match self.extras.get(id as usize) {
            Some(extra) if entry.order & EXTRA != 0 && extra.is_list() => None,
            _ => super::split_piece(entry.buf, len, self.min_multi_recv),
        };
        self.pieces.hand_out(entry.piece, cut.is_none());
        let (part, left) = cut?;
        entry.buf = left;
        let matched = MatchedReceive {
            buf: ReceiveBuffers::One(part),
            ..entry.matched()
        };
        Some(match entry.order & EXTRA {
            0 => matched,
            _ => self.extras[id as usize].add_to(matched),
        })
    }

    /// The list of a class that has what the message matches.
    #[inline]
    fn find_in(&self, class: &Class, a: &Arrived) -> Option<(IndexPlace, u32)> {
        let (src, tag) = class.key(a.src, a.tag);
        let same = |id: u32| {
            let entry = &self.entries[id as usize];
            entry.src == src && entry.tag & !class.ignore == tag
        };
        class.index.find(self.seed.hash(src.0, tag), same)
    }

    /// As `find_in`, in all classes: the list with the oldest head.
    #[inline(never)]
    fn find_among_many(&self, a: &Arrived) -> Option<FoundReceive> {
        let mut oldest = FREE;
        let mut found = None;
        for (number, class) in self.classes.all_filled() {
            if let Some((place, head)) = self.find_in(class, a) {
                let order = self.entries[head as usize].order;
                if order < oldest {
                    oldest = order;
                    found = Some(FoundReceive {
                        number,
                        place: Some(place),
                        head,
                    });
                }
            }
        }
        if !self.odd.is_empty() {
            let id = self.find_odd(a);
            if id != NIL && self.entries[id as usize].order < oldest {
                found = Some(FoundReceive {
                    number: CLASSES_MAX,
                    place: None,
                    head: id,
                });
            }
        }
        found
    }

    #[cold]
    fn find_odd(&self, a: &Arrived) -> u32 {
        let mut id = self.odd.head;
        while id != NIL {
            let entry = &self.entries[id as usize];
            let ignore = self.extras[id as usize].ignore();
            let from = entry.src == FiAddr::UNSPEC || entry.src == a.src;
            if from && (entry.tag ^ a.tag) & !ignore == 0 {
                break;
            }
            id = entry.link.next;
        }
        id
    }
}
