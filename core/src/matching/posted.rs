//! Posted receives.
//!
//! Receives with the same ignore mask, directed or not, are one *class*: within it a message matches those of one
//! key, and the oldest of them heads that key's list. An arrival asks each class that holds receives (a bit set
//! tells which) and takes the oldest of the heads. What a search reads is apart from what a match hands out.

use super::index::{Fifo, Index, Link, Linked, NIL, Seed, SideIndex};
use super::{Buffers, Matched, Posted};
use crate::peer::Arrived;
use crate::types::FiAddr;

/// Classes with a table of their own. An application that has receives with more different masks than that posted
/// at one time gets the others on a list that arrivals walk.
const CLASSES_MAX: usize = 64;
/// `Hot::order` of an entry that is not in use.
const FREE: u64 = u64::MAX;
/// Posts without a cancellation (or failed source) after which the index for it is no longer kept up to date.
const ASIDE_IDLE: u64 = if cfg!(test) { 16 } else { 4096 };

/// The half of an entry that searches read. 32 bytes, two to a cache line.
struct Hot {
    src: FiAddr,
    tag: u64,
    /// Number of the post, above the number of the class ([`CLASSES_MAX`]: none) in the low 8 bits.
    order: u64,
    /// In the list of its key; the free list while not in use.
    link: Link,
}

impl Linked for Hot {
    #[inline]
    fn link(&self) -> Link {
        self.link
    }

    #[inline]
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// The half that a match hands out.
#[repr(align(64))]
struct Cold {
    buf: Buffers,
    desc: u64,
    context: u64,
    flags: crate::flags::Flags,
    ignore: u64,
    multi: bool,
}

struct Class {
    ignore: u64,
    directed: bool,
    len: usize,
    index: Index,
}

impl Class {
    /// Source and tag as this class sees them.
    #[inline]
    fn key(&self, src: FiAddr, tag: u64) -> (FiAddr, u64) {
        let src = if self.directed { src } else { FiAddr::UNSPEC };
        (src, tag & !self.ignore)
    }
}

/// An index that is made when first asked for and kept up to date while it is being used.
#[derive(Default)]
struct Aside {
    on: bool,
    used_at: u64,
    index: SideIndex,
}

/// All posted receives of a matcher.
pub(super) struct PostedQueue {
    seed: Seed,
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    free: u32,
    len: usize,
    len_max: usize,
    posts: u64,
    classes: Vec<Class>,
    /// Bit n: `classes[n]` holds receives.
    filled: u64,
    /// Class of the last post.
    recent: usize,
    /// Receives whose mask has no class.
    odd: Fifo,
    /// For cancellation, and for sources that fail.
    by_context: Aside,
    by_source: Aside,
    /// A multi-receive buffer with fewer bytes left is done.
    pub(super) min_multi_recv: usize,
    scratch: Vec<u32>,
}

impl PostedQueue {
    pub(super) fn new(seed: Seed, min_multi_recv: usize) -> PostedQueue {
        PostedQueue {
            seed,
            hot: Vec::new(),
            cold: Vec::new(),
            free: NIL,
            len: 0,
            len_max: 0,
            posts: 0,
            classes: Vec::new(),
            filled: 0,
            recent: 0,
            odd: Fifo::EMPTY,
            by_context: Aside::default(),
            by_source: Aside::default(),
            min_multi_recv,
            scratch: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn len_max(&self) -> usize {
        self.len_max
    }

    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Adds a receive behind all others.
    #[inline]
    pub(super) fn push(&mut self, p: Posted, multi: bool) {
        let directed = p.src != FiAddr::UNSPEC;
        let class = match self.classes.get(self.recent) {
            Some(c) if c.ignore == p.ignore && c.directed == directed => self.recent,
            _ => self.class_for(p.ignore, directed),
        };
        let order = (self.posts << 8) | class as u64;
        self.posts += 1;
        let hot = Hot {
            src: p.src,
            tag: p.tag,
            order,
            link: Link::LOOSE,
        };
        let cold = Cold {
            buf: p.buf,
            desc: p.desc,
            context: p.context,
            flags: p.flags,
            ignore: p.ignore,
            multi,
        };
        let id = self.free;
        if id == NIL {
            return self.push_new(class, hot, cold);
        }
        self.free = self.hot[id as usize].link.next;
        self.hot[id as usize] = hot;
        self.cold[id as usize] = cold;
        self.enlist(class, id);
    }

    /// Takes the oldest receive that the message matches, or the next piece of it if it is a multi-receive.
    #[inline]
    pub(super) fn arrive(&mut self, a: &Arrived) -> Option<Matched> {
        let mut rest = self.filled;
        let mut oldest = FREE;
        let mut found = (NIL, 0);
        while rest != 0 {
            let class = &self.classes[rest.trailing_zeros() as usize];
            rest &= rest - 1;
            let (src, tag) = class.key(a.src, a.tag);
            let hash = self.seed.hash(src.0, tag);
            let same = |id: u32| {
                let hot = &self.hot[id as usize];
                hot.src == src && hot.tag & !class.ignore == tag
            };
            if let Some((at, list)) = class.index.find(hash, same) {
                let order = self.hot[list.head as usize].order;
                if order < oldest {
                    (oldest, found) = (order, (list.head, at));
                }
            }
        }
        if !self.odd.is_empty() {
            let id = self.find_odd(a);
            if id != NIL && self.hot[id as usize].order < oldest {
                return Some(self.hand_out_odd(id, a.len));
            }
        }
        let (id, at) = found;
        if id == NIL {
            return None;
        }
        if self.cold[id as usize].multi {
            if let Some(piece) = self.piece(id, a.len) {
                return Some(piece);
            }
        }
        let number = (oldest & 0xff) as usize;
        let class = &mut self.classes[number];
        class.index.remove_at(&mut self.hot, at, id);
        class.len -= 1;
        if class.len == 0 {
            self.filled &= !(1 << number);
        }
        Some(self.release(id))
    }

    /// Takes the oldest receive with that context.
    pub(super) fn cancel(&mut self, context: u64) -> Option<Posted> {
        self.keep_by_context();
        let cold = &self.cold;
        let same = |id: u32| cold[id as usize].context == context;
        let id = self
            .by_context
            .index
            .first(self.seed.hash(context, 0), same)?;
        Some(self.take(id))
    }

    /// Takes all receives that only a message from `src` could match, oldest first.
    pub(super) fn fail_source(&mut self, src: FiAddr, out: &mut Vec<Posted>) {
        if src == FiAddr::UNSPEC || self.len == 0 {
            return;
        }
        self.keep_by_source();
        let hash = self.seed.hash(src.0, 0);
        while let Some(id) = {
            let hot = &self.hot;
            let same = |id: u32| hot[id as usize].src == src;
            self.by_source.index.first(hash, same)
        } {
            out.push(self.take(id));
        }
    }

    /// Takes everything, oldest first.
    pub(super) fn drain(&mut self, out: &mut Vec<Posted>) {
        let ids = self.ids_by_age();
        out.extend(ids.iter().map(|&id| self.take(id)));
        self.scratch = ids;
    }

    /// Puts a filled-in entry on the lists where it belongs.
    #[inline]
    fn enlist(&mut self, number: usize, id: u32) {
        if number < CLASSES_MAX {
            let class = &mut self.classes[number];
            let hot = &self.hot[id as usize];
            let (src, tag) = class.key(hot.src, hot.tag);
            let ignore = class.ignore;
            let same = |hot: &[Hot], other: u32| {
                let hot = &hot[other as usize];
                hot.src == src && hot.tag & !ignore == tag
            };
            let hash = self.seed.hash(src.0, tag);
            class.index.insert(&mut self.hot, hash, id, same, |_| false);
            class.len += 1;
            self.filled |= 1 << number;
            self.recent = number;
        } else {
            self.odd.push_back(&mut self.hot, id);
        }
        if self.by_context.on | self.by_source.on {
            self.enlist_aside(id);
        }
        self.len += 1;
        self.len_max = self.len_max.max(self.len);
    }

    #[cold]
    #[inline(never)]
    fn push_new(&mut self, class: usize, hot: Hot, cold: Cold) {
        let id = self.hot.len() as u32;
        assert!(id < NIL, "receive contexts are smaller than 2^32 entries");
        self.hot.push(hot);
        self.cold.push(cold);
        self.enlist(class, id);
    }

    /// The class of a mask; [`CLASSES_MAX`] when there are too many in use.
    #[inline(never)]
    fn class_for(&mut self, ignore: u64, directed: bool) -> usize {
        let same = |c: &Class| c.ignore == ignore && c.directed == directed;
        if let Some(number) = self.classes.iter().position(same) {
            return number;
        }
        if self.classes.len() < CLASSES_MAX {
            self.classes.push(Class {
                ignore,
                directed,
                len: 0,
                index: Index::default(),
            });
            return self.classes.len() - 1;
        }
        match self.classes.iter().position(|c| c.len == 0) {
            Some(number) => {
                self.classes[number].ignore = ignore;
                self.classes[number].directed = directed;
                number
            }
            None => CLASSES_MAX,
        }
    }

    /// Takes a receive that is off its class's lists out of the slab.
    #[inline]
    fn release(&mut self, id: u32) -> Matched {
        if self.by_context.on | self.by_source.on {
            self.delist_aside(id);
        }
        let hot = &mut self.hot[id as usize];
        hot.order = FREE;
        hot.link.next = self.free;
        self.free = id;
        self.len -= 1;
        let cold = &mut self.cold[id as usize];
        Matched {
            buf: cold.buf.take(),
            desc: cold.desc,
            context: cold.context,
            flags: cold.flags,
            last: cold.multi,
        }
    }

    /// Takes any receive out, as it was posted (a multi-receive: what is left of it).
    #[cold]
    fn take(&mut self, id: u32) -> Posted {
        let Hot {
            src, tag, order, ..
        } = self.hot[id as usize];
        let number = (order & 0xff) as usize;
        if number < CLASSES_MAX {
            let class = &mut self.classes[number];
            let key = class.key(src, tag);
            let hash = self.seed.hash(key.0.0, key.1);
            class.index.remove(&mut self.hot, hash, id);
            class.len -= 1;
            if class.len == 0 {
                self.filled &= !(1 << number);
            }
        } else {
            self.odd.unlink(&mut self.hot, id);
        }
        let ignore = self.cold[id as usize].ignore;
        let m = self.release(id);
        Posted {
            src,
            tag,
            ignore,
            buf: m.buf,
            desc: m.desc,
            context: m.context,
            flags: m.flags,
        }
    }

    /// Cuts the next piece off a multi-receive; `None` when nothing useful is left behind it.
    #[cold]
    #[inline(never)]
    fn piece(&mut self, id: u32, len: u64) -> Option<Matched> {
        let cold = &mut self.cold[id as usize];
        let Buffers::One(buf) = &mut cold.buf else {
            return None;
        };
        let (piece, left) = super::cut(*buf, len, self.min_multi_recv)?;
        *buf = left;
        Some(Matched {
            buf: Buffers::One(piece),
            desc: cold.desc,
            context: cold.context,
            flags: cold.flags,
            last: false,
        })
    }

    #[cold]
    fn find_odd(&self, a: &Arrived) -> u32 {
        let mut id = self.odd.head;
        while id != NIL {
            let hot = &self.hot[id as usize];
            let ignore = self.cold[id as usize].ignore;
            let from = hot.src == FiAddr::UNSPEC || hot.src == a.src;
            if from && (hot.tag ^ a.tag) & !ignore == 0 {
                break;
            }
            id = hot.link.next;
        }
        id
    }

    #[cold]
    fn hand_out_odd(&mut self, id: u32, len: u64) -> Matched {
        if self.cold[id as usize].multi {
            if let Some(piece) = self.piece(id, len) {
                return piece;
            }
        }
        self.odd.unlink(&mut self.hot, id);
        self.release(id)
    }

    /// Entries in use, oldest first, in the scratch vector.
    fn ids_by_age(&mut self) -> Vec<u32> {
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        let hot = &self.hot;
        ids.extend((0..hot.len() as u32).filter(|&id| hot[id as usize].order != FREE));
        ids.sort_unstable_by_key(|&id| hot[id as usize].order);
        ids
    }

    fn keep_by_context(&mut self) {
        self.by_context.used_at = self.posts;
        if !self.by_context.on {
            self.by_context.on = true;
            let ids = self.ids_by_age();
            for &id in &ids {
                self.enlist_by_context(id);
            }
            self.scratch = ids;
        }
    }

    fn keep_by_source(&mut self) {
        self.by_source.used_at = self.posts;
        if !self.by_source.on {
            self.by_source.on = true;
            let ids = self.ids_by_age();
            for &id in &ids {
                self.enlist_by_source(id);
            }
            self.scratch = ids;
        }
    }

    #[inline(never)]
    fn enlist_aside(&mut self, id: u32) {
        for aside in [&mut self.by_context, &mut self.by_source] {
            // Dropping reads the table, making it anew the slab: wait for posts in proportion.
            let idle = ASIDE_IDLE.max((aside.index.slots() / 16 + self.hot.len() / 4) as u64);
            if aside.on && self.posts - aside.used_at > idle {
                aside.on = false;
                aside.index.clear();
            }
        }
        if self.by_context.on {
            self.enlist_by_context(id);
        }
        if self.by_source.on {
            self.enlist_by_source(id);
        }
    }

    fn enlist_by_context(&mut self, id: u32) {
        let cold = &self.cold;
        let context = cold[id as usize].context;
        let same = |other: u32| cold[other as usize].context == context;
        let hash = self.seed.hash(context, 0);
        self.by_context.index.insert(hash, id, same, |_| false);
    }

    fn enlist_by_source(&mut self, id: u32) {
        let hot = &self.hot;
        let src = hot[id as usize].src;
        if src != FiAddr::UNSPEC {
            let same = |other: u32| hot[other as usize].src == src;
            let hash = self.seed.hash(src.0, 0);
            self.by_source.index.insert(hash, id, same, |_| false);
        }
    }

    #[inline(never)]
    fn delist_aside(&mut self, id: u32) {
        if self.by_context.on {
            let hash = self.seed.hash(self.cold[id as usize].context, 0);
            self.by_context.index.remove(hash, id);
        }
        let src = self.hot[id as usize].src;
        if self.by_source.on && src != FiAddr::UNSPEC {
            self.by_source.index.remove(self.seed.hash(src.0, 0), id);
        }
    }
}
