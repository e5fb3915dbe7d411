//! Unexpected messages.
//!
//! All are on one list in order of arrival. A receive that looks for one has an ignore mask and
//! names a source or not. For each such pair that searches use there is a *view*: an index of the
//! messages by the tag bits outside the mask and by the source, if named. A search that finds the
//! list long makes the view by one pass over the list. Each arrival then updates the view while
//! searches use it. The view is dropped when searches stop, or when the list runs empty. A message
//! that no search looks for costs one link.

mod claims;
mod view;

use super::Unexpected;
use super::arena::Arena;
use super::index::{Fifo, ListLink, NIL, Seed};
use claims::Claims;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::{FiAddr, is_key_source};
use view::MessageView;

/// Entries made at first.
const FIRST_ENTRIES: usize = 16;
/// Up to this many messages are searched one by one.
const SCAN_MAX: usize = 8;
/// Views that are kept at one time. Receives that go round more different masks than that, on a
/// long list, make one anew each time.
const VIEWS_MAX: usize = 8;
/// Messages queued since a view's last use after which it is dropped.
const VIEW_IDLE: u64 = if cfg!(test) { 16 } else { 4096 };

/// `MessageEntry::order` of an entry that is not in use.
const FREE: u64 = u64::MAX;

/// A message: one cache line, with a token of 16 bytes. Its links are apart, for taking it out of a
/// list writes to those of its neighbours.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct MessageEntry<T> {
    src: FiAddr,
    tag: u64,
    /// Number of the message.
    order: u64,
    len: u64,
    data: u64,
    token: T,
    /// The lower half of the flags: there is nothing above `REMOTE_CQ_DATA`.
    flags: u32,
    claimed: bool,
}

const _: () = assert!(size_of::<MessageEntry<[u64; 2]>>() == 64);

/// All unexpected messages of a matcher, claimed ones too.
pub(super) struct UnexpectedQueue<T: Copy> {
    seed: Seed,
    entries: Arena<MessageEntry<T>>,
    /// In the list of all that are queued, or of all that are claimed; the free list of those not
    /// in use.
    links: Arena<ListLink>,
    free: u32,
    /// Queued messages.
    queued: Fifo,
    len: usize,
    arrivals: u64,
    views: Vec<MessageView>,
    views_on: usize,
    claims: Claims,
    /// Messages of unknown source, queued or claimed, in order of arrival.
    unknown: Fifo,
    unknown_links: Vec<ListLink>,
    scratch: Vec<u32>,
    /// Returns the key of a message's sender as receives name it, at its arrival.
    key_of: fn(&T) -> FiAddr,
}

impl<T: Copy> UnexpectedQueue<T> {
    pub(super) fn new(seed: Seed) -> UnexpectedQueue<T> {
        UnexpectedQueue {
            seed,
            entries: Arena::new(),
            links: Arena::new(),
            free: NIL,
            queued: Fifo::EMPTY,
            len: 0,
            arrivals: 0,
            views: Vec::new(),
            views_on: 0,
            claims: Claims::default(),
            unknown: Fifo::EMPTY,
            unknown_links: Vec::new(),
            scratch: Vec::new(),
            key_of: |_| FiAddr::NOTAVAIL,
        }
    }

    pub(super) fn set_key_of(&mut self, key_of: fn(&T) -> FiAddr) {
        self.key_of = key_of;
    }

    /// Queued messages, claimed ones not counted.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Claimed messages.
    #[cfg(test)]
    pub(super) fn claimed(&self) -> usize {
        self.claims.ids(&self.links).count()
    }

    #[cfg(test)]
    pub(super) fn views(&self) -> usize {
        self.views_on
    }

    /// Adds a message behind all others.
    #[inline]
    pub(super) fn push(&mut self, a: Arrived, token: T) {
        if self.free == NIL {
            self.grow(token);
        }
        let id = self.free;
        self.free = self.links[id as usize].next;
        let entry = &mut self.entries[id as usize];
        entry.src = a.src;
        entry.tag = a.tag;
        entry.order = self.arrivals;
        entry.len = a.len;
        entry.data = a.data;
        entry.flags = a.flags.bits() as u32;
        entry.token = token;
        entry.claimed = false;
        self.arrivals += 1;
        self.len += 1;
        self.queued.push_back(&mut self.links, id);
        if self.views_on != 0 {
            self.enlist_views(id);
        }
        if a.src == FiAddr::NOTAVAIL {
            self.enlist_unknown(id);
        }
    }

    /// The oldest message that a receive matches, or [`NIL`].
    #[inline]
    pub(super) fn find(&mut self, src: FiAddr, tag: u64, ignore: u64) -> u32 {
        debug_assert_ne!(src, FiAddr::NOTAVAIL, "a receive from nobody");
        let directed = src != FiAddr::UNSPEC;
        if ignore == u64::MAX && !directed {
            return self.queued.head;
        }
        if is_key_source(src) {
            return self.find_by_key(src, tag, ignore);
        }
        let mut id = self.queued.head;
        if self.len <= SCAN_MAX {
            while id != NIL {
                let entry = &self.entries[id as usize];
                if (!directed || entry.src == src) && (entry.tag ^ tag) & !ignore == 0 {
                    break;
                }
                id = self.links[id as usize].next;
            }
            return id;
        }
        let view = self.view(directed, ignore);
        let view = &self.views[view];
        let same = |other: u32| {
            let other = &self.entries[other as usize];
            (!directed || other.src == src) && (other.tag ^ tag) & !ignore == 0
        };
        view.index
            .first(view.hash(self.seed, src, tag), same)
            .unwrap_or(NIL)
    }

    /// As `find`, of messages that came with an authorization key. Looks at one after the other:
    /// few endpoints have several keys, and receives that name one are rare.
    #[cold]
    #[inline(never)]
    fn find_by_key(&self, key: FiAddr, tag: u64, ignore: u64) -> u32 {
        let mut id = self.queued.head;
        while id != NIL {
            let entry = &self.entries[id as usize];
            if (entry.tag ^ tag) & !ignore == 0 && (self.key_of)(&entry.token) == key {
                break;
            }
            id = self.links[id as usize].next;
        }
        id
    }

    /// A copy of a message.
    #[inline]
    pub(super) fn copy(&self, id: u32) -> Unexpected<T> {
        let entry = &self.entries[id as usize];
        Unexpected {
            arrived: Arrived {
                src: entry.src,
                tag: entry.tag,
                len: entry.len,
                data: entry.data,
                flags: Flags::from_bits_retain(u64::from(entry.flags)),
            },
            token: entry.token,
        }
    }

    /// Takes a message out, queued or claimed.
    #[inline]
    pub(super) fn take(&mut self, id: u32) -> Unexpected<T> {
        let message = self.copy(id);
        match self.entries[id as usize].claimed {
            false => self.unqueue(id),
            true => self.claims.remove(self.seed, &mut self.links, id),
        }
        if message.arrived.src == FiAddr::NOTAVAIL {
            self.unknown.unlink(&mut self.unknown_links, id);
        }
        self.entries[id as usize].order = FREE;
        self.links[id as usize].next = self.free;
        self.free = id;
        message
    }

    /// Moves a queued message to the claimed ones.
    #[cold]
    pub(super) fn claim(&mut self, id: u32, context: u64) {
        self.unqueue(id);
        self.entries[id as usize].claimed = true;
        self.claims.add(self.seed, &mut self.links, id, context);
    }

    /// The message that was claimed with a context (the first of several), or [`NIL`].
    pub(super) fn claimed_with(&self, context: u64) -> u32 {
        self.claims.first(self.seed, context)
    }

    /// The oldest message of unknown source, or [`NIL`].
    pub(super) fn unknown_first(&self) -> u32 {
        self.unknown.head
    }

    /// The next one.
    pub(super) fn unknown_next(&self, id: u32) -> u32 {
        self.unknown_links[id as usize].next
    }

    /// Gives a message of unknown source its source. Says whether it is queued, so that receives
    /// can match it.
    pub(super) fn set_source(&mut self, id: u32, src: FiAddr) -> bool {
        self.unknown.unlink(&mut self.unknown_links, id);
        self.entries[id as usize].src = src;
        let queued = !self.entries[id as usize].claimed;
        if queued {
            for view in self.views.iter_mut().filter(|v| v.on && v.directed) {
                view.insert(self.seed, &self.entries, id);
            }
        }
        queued
    }

    /// Makes the source of all messages from `src` unknown.
    pub(super) fn forget_source(&mut self, src: FiAddr) {
        if src == FiAddr::NOTAVAIL {
            return;
        }
        let ids = self.ids_from(src);
        for &id in &ids {
            if !self.entries[id as usize].claimed {
                for view in self.views.iter_mut().filter(|v| v.on && v.directed) {
                    view.remove(self.seed, &self.entries[id as usize], id);
                }
            }
            self.entries[id as usize].src = FiAddr::NOTAVAIL;
            self.enlist_unknown(id);
        }
        self.scratch = ids;
    }

    /// Takes the messages from `src`, or of unknown source, that are `lost`, oldest first.
    pub(super) fn fail_source(
        &mut self,
        src: FiAddr,
        mut lost: impl FnMut(&Unexpected<T>) -> bool,
        out: &mut Vec<Unexpected<T>>,
    ) {
        let ids = self.ids_from(src);
        for &id in &ids {
            if lost(&self.copy(id)) {
                out.push(self.take(id));
            }
        }
        self.scratch = ids;
    }

    /// Makes entries, as many again as there are. `token` fills them.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, token: T) {
        let len = self.entries.len();
        let more = len.max(FIRST_ENTRIES);
        assert!(len + more < NIL as usize, "2^32 unexpected messages");
        let free = self.free;
        self.links.grow(len + more, |id| ListLink {
            next: if id + 1 < len + more {
                id as u32 + 1
            } else {
                free
            },
            prev: NIL,
        });
        self.entries.grow(len + more, |_| MessageEntry {
            src: FiAddr::NOTAVAIL,
            tag: 0,
            order: FREE,
            len: 0,
            data: 0,
            token,
            flags: 0,
            claimed: false,
        });
        self.free = len as u32;
    }

    #[inline(never)]
    fn enlist_views(&mut self, id: u32) {
        for view in self.views.iter_mut().filter(|view| view.on) {
            // Dropping reads the table, making it anew the list: wait for messages in proportion.
            let idle = VIEW_IDLE.max((view.index.lines() / 2 + self.len / 4) as u64);
            if self.arrivals - view.used_at > idle {
                view.drop_all();
                self.views_on -= 1;
            } else {
                view.insert(self.seed, &self.entries, id);
            }
        }
    }

    #[inline(never)]
    fn enlist_unknown(&mut self, id: u32) {
        if self.unknown_links.len() <= id as usize {
            let len = self.entries.len().next_power_of_two();
            self.unknown_links.resize(len, ListLink::LOOSE);
        }
        let entries = &self.entries;
        let order = entries[id as usize].order;
        let later = |other: u32| entries[other as usize].order > order;
        self.unknown
            .insert_ordered(&mut self.unknown_links, id, later);
    }

    #[inline]
    fn unqueue(&mut self, id: u32) {
        self.queued.unlink(&mut self.links, id);
        self.len -= 1;
        if self.views_on != 0 {
            for view in self.views.iter_mut().filter(|view| view.on) {
                view.remove(self.seed, &self.entries[id as usize], id);
                // Dropping an empty table costs nothing, and the next burst may need a table for
                // another mask.
                view.on = self.len != 0;
            }
            if self.len == 0 {
                self.views_on = 0;
            }
        }
    }

    /// The number of the view for such receives.
    #[inline]
    fn view(&mut self, directed: bool, ignore: u64) -> usize {
        let wanted = |v: &MessageView| v.on && v.ignore == ignore && v.directed == directed;
        let number = match self.views.iter().position(wanted) {
            Some(number) => number,
            None => self.make_view(directed, ignore),
        };
        self.views[number].used_at = self.arrivals;
        number
    }

    #[cold]
    #[inline(never)]
    fn make_view(&mut self, directed: bool, ignore: u64) -> usize {
        let number = match self.views.iter().position(|view| !view.on) {
            Some(number) => number,
            None if self.views.len() < VIEWS_MAX => {
                self.views.push(MessageView::default());
                self.views.len() - 1
            }
            None => {
                let oldest = (0..self.views.len()).min_by_key(|&v| self.views[v].used_at);
                let oldest = oldest.unwrap_or(0);
                self.views[oldest].drop_all();
                self.views_on -= 1;
                oldest
            }
        };
        let view = &mut self.views[number];
        (view.on, view.directed, view.ignore) = (true, directed, ignore);
        self.views_on += 1;
        let mut id = self.queued.head;
        while id != NIL {
            view.insert(self.seed, &self.entries, id);
            id = self.links[id as usize].next;
        }
        number
    }

    /// All messages from `src`, or of unknown source, queued and claimed, oldest first, in the
    /// scratch vector.
    fn ids_from(&mut self, src: FiAddr) -> Vec<u32> {
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        if src == FiAddr::NOTAVAIL {
            let mut id = self.unknown_first();
            while id != NIL {
                ids.push(id);
                id = self.unknown_next(id);
            }
            return ids;
        }
        let mut id = self.find(src, 0, u64::MAX);
        let by_view = self.len > SCAN_MAX;
        while id != NIL {
            if self.entries[id as usize].src == src {
                ids.push(id);
            }
            id = if by_view {
                let view = self.view(true, u64::MAX);
                self.views[view].index.next(id)
            } else {
                self.links[id as usize].next
            };
        }
        let claimed = self.claims.ids(&self.links);
        ids.extend(claimed.filter(|&id| self.entries[id as usize].src == src));
        ids.sort_unstable_by_key(|&id| self.entries[id as usize].order);
        ids
    }
}
