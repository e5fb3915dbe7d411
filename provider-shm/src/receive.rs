//! The receiving side of a link: what to do with each slot.

use std::time::Instant;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx, Piece, Start, Token, parts};
use ferrofabric_contracts::types::{IoBuf, MsgKind};
use slab::Slab;

use crate::cma::Read;
use crate::copy::{copy_bulk, copy_short, copy_soon, copy_to_list};
use crate::incoming::Incoming;
use crate::link::{Control, Farewell, Link, Quota, SPARE_BUFFERS, SPARE_BYTES, Used};
use crate::outbox::Outbox;
use crate::paths::{self, Moved, Trial};
use crate::ring::{Broken, Seen};
use crate::stats::ShmStats;
use crate::wire::{
    CHUNK, DATA, DELIVERED, EAGER, FAREWELL, GO, INLINE, INLINE_BYTES, INLINE_DATA_WORD,
    MAX_WINDOW, READ, START, TAGGED, TOLD, UNDER_WAY_MAX, unpack,
};

/// Most that one call reads of a peer by CMA before others get their turn, in bytes: the domain is locked meanwhile.
const CMA_TURN_BYTES: usize = 256 << 10;

/// Whose link is gone, of a message that is kept.
pub(crate) const NO_LINK: usize = usize::MAX;

/// A message on its way into a receive.
struct Delivery {
    kind: MsgKind,
    matched: Matched,
    arrived: Arrived,
    /// Bytes that came, and that will come, through the ring.
    got: usize,
    expected: usize,
    cma: Option<CmaRead>,
    /// Of one whose way is measured.
    trial: Option<Trial>,
    /// Nobody wants it: it is only taken out of the ring.
    dropped: bool,
    /// Its sender wants to know when it is done with.
    told: bool,
}

struct CmaRead {
    addr: u64,
    next: usize,
    end: usize,
}

/// An unexpected message.
pub(crate) struct Held {
    /// Whose it is.
    pub(crate) link: usize,
    /// What came of it.
    bytes: Vec<u8>,
    /// How more comes.
    rest: Option<Rest>,
    /// Its id, where it is all here and its sender wants to know when it is delivered.
    tells: Option<u32>,
    /// Who has sent it, where the link is gone.
    sender: Option<Box<NativeAddr>>,
}

impl Held {
    /// Its link is gone.
    fn outlives(&mut self, link: &Link) {
        self.link = NO_LINK;
        self.sender = Some(Box::new(link.native));
    }

    /// Whether it came over this link, or over one with `name` that is gone.
    pub(crate) fn is_of(&self, link: Option<usize>, name: &NativeAddr) -> bool {
        link == Some(self.link) || self.sender.as_deref() == Some(name)
    }

    /// Whether it is lost if its sender is.
    pub(crate) fn is_partial(&self) -> bool {
        self.rest.is_some()
    }
}

#[derive(Clone, Copy)]
struct Rest {
    id: u32,
    /// Length of the whole message, and how much of that comes unasked.
    total: u64,
    window: usize,
    /// Where it lies in its sender's memory, if it is to be read.
    read_from: Option<u64>,
    told: bool,
}

/// What all links of an endpoint receive with.
pub(crate) struct Receiver {
    /// Our number among the endpoint's transports.
    pub(crate) number: u32,
    pub(crate) held: Slab<Held>,
    /// How many of them have outlived their link.
    left_behind: usize,
    /// What all of them take, and may take together. Above, no peer may send more than envelopes,
    /// until half of it is free.
    used: Used,
    quota: Quota,
    is_over: bool,
    /// It was, and links have not heard yet that it is not.
    is_relieved: bool,
    deliveries: Slab<Delivery>,
    moved: Moved,
    pub(crate) stats: ShmStats,
    /// The last message came within its slot.
    pub(crate) last_was_short: bool,
    spare: Vec<Vec<u8>>,
}

impl Receiver {
    /// `quota` is for all links together.
    pub(crate) fn new(number: u32, quota: Quota) -> Self {
        Self {
            number,
            held: Slab::new(),
            left_behind: 0,
            used: Used::default(),
            quota,
            is_over: false,
            is_relieved: false,
            deliveries: Slab::new(),
            moved: Moved::default(),
            stats: ShmStats::default(),
            last_was_short: true,
            spare: Vec::new(),
        }
    }

    /// Takes one slot of the link with the key `key`.
    #[inline(always)]
    pub(crate) fn take<O: Owner>(
        &mut self,
        key: usize,
        link: &mut Link,
        outbox: &mut Outbox,
        seen: Seen,
        owner: &mut O,
    ) -> Result<(), Broken> {
        self.last_was_short = seen.head.kind() == INLINE;
        if self.last_was_short {
            self.take_inline(key, link, seen, owner)
        } else {
            self.take_other(key, link, outbox, seen, owner)
        }
    }

    #[inline(always)]
    fn take_inline<O: Owner>(
        &mut self,
        key: usize,
        link: &mut Link,
        seen: Seen,
        owner: &mut O,
    ) -> Result<(), Broken> {
        let len = seen.head.len();
        if len > INLINE_BYTES {
            return Err(Broken("it sent a short message that is too long"));
        }
        let (kind, flags) = kind_and_flags(seen);
        let (tag, data) = seen.with_body(|body| {
            // SAFETY: a body has these words; volatile, for the other process may write to them.
            unsafe {
                (
                    body.read_volatile(),
                    match flags.is_empty() {
                        true => 0,
                        false => body.add(INLINE_DATA_WORD).read_volatile(),
                    },
                )
            }
        });
        let arrived = Arrived {
            src: link.addr,
            tag,
            len: len as u64,
            data,
            flags,
        };
        self.stats.received += 1;
        self.stats.received_bytes += len as u64;
        let from = seen.with_body(|body| body.wrapping_add(1).cast::<u8>());
        match owner.srx().arrive(kind, &arrived) {
            Some(matched) => {
                let fit = len.min(matched.buf.len);
                match matched.piece.is_of_list() {
                    // SAFETY: the slot has `INLINE_BYTES` there; whoever posted the receive vouched
                    // for its buffer.
                    false => unsafe { copy_short(from, matched.buf.as_mut_ptr(), fit) },
                    // SAFETY: as above.
                    true => unsafe { put_in_list(owner, &matched, 0, from, fit) },
                }
                self.consume(link, 0);
                owner.complete_recv(kind, &matched, &arrived, || Some(link.native));
            }
            None => {
                // SAFETY: the slot has `INLINE_BYTES` there.
                unsafe { self.hold(key, link, kind, arrived, from, len, None, owner)? };
                self.consume(link, 0);
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn take_other<O: Owner>(
        &mut self,
        key: usize,
        link: &mut Link,
        outbox: &mut Outbox,
        seen: Seen,
        owner: &mut O,
    ) -> Result<(), Broken> {
        match seen.head.kind() {
            EAGER => self.take_eager(key, link, seen, owner),
            CHUNK => self.take_chunk(link, seen, owner),
            START => self.take_start(key, link, seen, owner),
            GO => {
                let [id, until, advice] = seen.words();
                self.consume(link, 0);
                link.go(id as u32, until, advice, outbox, owner)
            }
            DELIVERED => {
                let [id] = seen.words();
                self.consume(link, 0);
                link.delivered(id as u32, outbox, owner)
            }
            FAREWELL => {
                let what = Farewell::read(seen)?;
                self.consume(link, 0);
                link.hears(what)
            }
            _ => Err(Broken("it sent a slot of no known kind")),
        }
    }

    /// The slot is done with.
    #[inline(always)]
    fn consume(&mut self, link: &mut Link, record_bytes: usize) {
        if link.rx.consume(record_bytes) {
            link.tell(&mut self.stats);
        }
    }

    #[inline(always)]
    fn take_eager<O: Owner>(
        &mut self,
        key: usize,
        link: &mut Link,
        seen: Seen,
        owner: &mut O,
    ) -> Result<(), Broken> {
        let len = seen.head.len();
        let [tag, offset, data] = seen.words();
        let from = link.rx.record(offset as u32, len)?;
        let (kind, flags) = kind_and_flags(seen);
        let arrived = Arrived {
            src: link.addr,
            tag,
            len: len as u64,
            data: if flags.is_empty() { 0 } else { data },
            flags,
        };
        self.stats.received += 1;
        self.stats.received_bytes += len as u64;
        match owner.srx().arrive(kind, &arrived) {
            Some(matched) => {
                let (into, fit) = (matched.buf.as_mut_ptr(), len.min(matched.buf.len));
                let trial = (len >= paths::LEAST && link.cma.is_some() && link.paths.times(len))
                    .then(|| Trial::begin(self.moved));
                match (matched.piece.is_of_list(), link.takes_turns(len)) {
                    // SAFETY: the record was checked; whoever posted the receive vouched for its buffer.
                    (false, true) => unsafe { copy_soon(from, into, fit) },
                    // SAFETY: as above.
                    (false, false) => unsafe { copy_bulk(from, into, fit) },
                    // SAFETY: as above.
                    (true, _) => unsafe { put_in_list(owner, &matched, 0, from, fit) },
                }
                if let Some(trial) = trial {
                    self.moved.ring_bytes += len as u64;
                    link.paths.has_come(&trial, len, 1, self.moved);
                }
                self.consume(link, len);
                owner.complete_recv(kind, &matched, &arrived, || Some(link.native));
            }
            None => {
                // SAFETY: the record was checked.
                unsafe { self.hold(key, link, kind, arrived, from, len, None, owner)? };
                self.consume(link, len);
            }
        }
        Ok(())
    }

    fn take_start<O: Owner>(
        &mut self,
        key: usize,
        link: &mut Link,
        seen: Seen,
        owner: &mut O,
    ) -> Result<(), Broken> {
        let len = seen.head.len();
        let [tag, place, total, data, window, address] = seen.words();
        let (id, offset) = unpack(place);
        let from = link.rx.record(offset, len)?;
        if window > MAX_WINDOW || window > total || len as u64 > window {
            return Err(Broken("it announced a message with an impossible window"));
        }
        if total > isize::MAX as u64 {
            return Err(Broken("it announced a message that is too long"));
        }
        let read_from = (seen.head.flags() & READ != 0).then_some(address);
        if read_from.is_some() && window != 0 {
            return Err(Broken("it sends a message that is to be read"));
        }
        link.incoming.begin(id)?;
        if link.control.len() >= 2 * UNDER_WAY_MAX {
            // It has no more messages under way, and each has two answers at most.
            return Err(Broken("it takes no answers"));
        }
        let (kind, flags) = kind_and_flags(seen);
        let arrived = Arrived {
            src: link.addr,
            tag,
            len: total,
            data: if flags.is_empty() { 0 } else { data },
            flags,
        };
        self.stats.received += 1;
        self.stats.received_bytes += total;
        let rest = Rest {
            id,
            total,
            window: window as usize,
            read_from,
            told: seen.head.flags() & TOLD != 0,
        };
        match owner.srx().arrive(kind, &arrived) {
            Some(matched) => {
                // The sender is told to go on before the first piece is copied.
                self.deliver(link, kind, matched, arrived, 0, rest);
                // SAFETY: the record was checked; whoever posted the receive vouched for its buffer.
                unsafe { put(owner, &matched, 0, from, len) };
                self.moved.ring_bytes += len as u64;
                self.consume(link, len);
                self.got(link, id, len, owner)
            }
            None => {
                // SAFETY: the record was checked.
                let held =
                    unsafe { self.hold(key, link, kind, arrived, from, len, Some(rest), owner)? };
                link.incoming.set(id, Incoming::Held(held as u32));
                self.consume(link, len);
                self.arrived_whole(link, id);
                Ok(())
            }
        }
    }

    fn take_chunk<O: Owner>(
        &mut self,
        link: &mut Link,
        seen: Seen,
        owner: &mut O,
    ) -> Result<(), Broken> {
        let len = seen.head.len();
        let [place] = seen.words();
        let (id, offset) = unpack(place);
        let from = link.rx.record(offset, len)?;
        self.moved.ring_bytes += len as u64;
        match link.incoming.get(id) {
            Some(Incoming::Matched(key)) => {
                let d = &self.deliveries[key as usize];
                if len == 0 || len > d.expected.saturating_sub(d.got) {
                    return Err(Broken("it sent a piece of no message"));
                }
                // SAFETY: the record was checked; whoever posted the receive vouched for its
                // buffer.
                unsafe { put(owner, &d.matched, d.got, from, len) };
                self.consume(link, len);
                self.got(link, id, len, owner)
            }
            Some(Incoming::Held(held)) => {
                let held = &mut self.held[held as usize];
                // One that is all here keeps its id until it is delivered, where its sender wants
                // to hear of that.
                let missing = held
                    .rest
                    .map_or(0, |rest| rest.window.saturating_sub(held.bytes.len()));
                if len == 0 || len > missing {
                    return Err(Broken("it sent more of a message than was asked for"));
                }
                // SAFETY: the record was checked.
                unsafe { append(&mut held.bytes, from, len) };
                self.consume(link, len);
                self.arrived_whole(link, id);
                Ok(())
            }
            _ => Err(Broken("it sent a piece of no message")),
        }
    }

    /// Sets out to deliver a message into a receive: decides how the rest of it comes. `got` bytes are there.
    #[allow(clippy::too_many_arguments, reason = "what a delivery consists of")]
    fn deliver(
        &mut self,
        link: &mut Link,
        kind: MsgKind,
        matched: Matched,
        arrived: Arrived,
        got: usize,
        rest: Rest,
    ) {
        let mut delivery = Delivery {
            kind,
            matched,
            arrived,
            got,
            expected: rest.window,
            cma: None,
            trial: None,
            dropped: false,
            told: rest.told,
        };
        let wanted = (matched.buf.len as u64).min(rest.total) as usize;
        match rest.read_from {
            Some(addr) if wanted > 0 && link.cma.is_some() && link.paths.reads() => {
                delivery.cma = Some(CmaRead {
                    addr,
                    next: 0,
                    end: wanted,
                });
                link.reading.push_back(rest.id);
                link.busy = true;
            }
            _ => {
                if link.cma.is_some() && got == 0 && link.paths.times(rest.total as usize) {
                    delivery.trial = Some(Trial::begin(self.moved));
                }
                if rest.window as u64 != rest.total {
                    delivery.expected = wanted.max(rest.window);
                    self.say_go(link, rest.id, wanted);
                }
            }
        }
        let key = self.deliveries.insert(delivery);
        link.incoming.set(rest.id, Incoming::Matched(key as u32));
    }

    fn say_go(&mut self, link: &mut Link, id: u32, until: usize) {
        let until = until as u64;
        self.say(link, Control::Go { id, until });
    }

    fn say(&mut self, link: &mut Link, what: Control) {
        link.control.push_back(what);
        link.busy = true;
        // At once if it can be; what the other side did wrong is found when it is next pushed.
        let _ = link.push_control(&mut self.stats);
    }

    /// More of a message has been delivered.
    fn got<O: Owner>(
        &mut self,
        link: &mut Link,
        id: u32,
        len: usize,
        owner: &mut O,
    ) -> Result<(), Broken> {
        let Some(Incoming::Matched(key)) = link.incoming.get(id) else {
            return Err(Broken("it sent a piece of no message"));
        };
        let d = &mut self.deliveries[key as usize];
        d.got += len;
        if d.got < d.expected || d.cma.is_some() {
            return Ok(());
        }
        link.incoming.set(id, Incoming::Free);
        let d = self.deliveries.remove(key as usize);
        if let Some(trial) = d.trial.as_ref().filter(|_| !d.dropped) {
            let (len, pieces) = (d.arrived.len as usize, link.sizes.pieces(d.got));
            link.paths.has_come(trial, len, pieces, self.moved);
        }
        if !d.dropped {
            owner.complete_recv(d.kind, &d.matched, &d.arrived, || Some(link.native));
        }
        if d.told {
            self.say(link, Control::Delivered { id });
        }
        Ok(())
    }

    /// Reads what is to be read by CMA, for a while. Returns how many things it did.
    #[cold]
    pub(crate) fn read<O: Owner>(
        &mut self,
        link: &mut Link,
        owner: &mut O,
    ) -> Result<usize, Broken> {
        let (mut did, mut left) = (0, CMA_TURN_BYTES);
        while left > 0 {
            let Some(id) = link.reading.pop_front() else {
                break;
            };
            left -= self.read_some(link, id, left, owner)?;
            did += 1;
        }
        Ok(did)
    }

    /// Reads up to `most` bytes of a message; returns how many. If that fails, the ring takes over.
    fn read_some<O: Owner>(
        &mut self,
        link: &mut Link,
        id: u32,
        most: usize,
        owner: &mut O,
    ) -> Result<usize, Broken> {
        let Some(Incoming::Matched(key)) = link.incoming.get(id) else {
            return Ok(0);
        };
        let d = &mut self.deliveries[key as usize];
        let (Some(cma), Some(read)) = (link.cma.as_mut(), d.cma.as_mut()) else {
            return Ok(0);
        };
        let most = most.min(read.end - read.next);
        let into = match d.matched.piece.is_of_list() {
            false => d.matched.buf.part(read.next, most),
            // One buffer at a time.
            true => {
                let segments = owner.srx().segments(d.matched.piece);
                let first = parts(segments, read.next, most).next();
                first.map_or(IoBuf::EMPTY, |(part, _)| part)
            }
        };
        let since = Instant::now();
        // SAFETY: `part` is within the buffer, for which whoever posted it vouched.
        let came = unsafe { cma.read(read.addr.wrapping_add(read.next as u64), into, since) };
        if link.peer_status().has_closed_by_now() {
            // What came may be anything. The receives fail with the link, once what lies in the ring is taken.
            link.reading.clear();
            return Ok(0);
        }
        match came {
            Read::Came => {}
            // Its sender copies it, and waits itself if it has to.
            Read::NotThere => {
                self.ask_for(link, id);
                return Ok(0);
            }
            Read::Refused => {
                link.cma = None;
                self.ask_for(link, id);
                while let Some(id) = link.reading.pop_front() {
                    self.ask_for(link, id);
                }
                return Ok(0);
            }
        }
        let took = since.elapsed();
        self.moved.reading += took;
        link.paths
            .has_read(d.arrived.len as usize, into.len as u64, took);
        read.next += into.len;
        if read.next < read.end {
            link.reading.push_back(id);
        } else {
            self.stats.received_cma += 1;
            d.cma = None;
            self.say_go(link, id, 0);
            self.got(link, id, 0, owner)?;
        }
        Ok(into.len)
    }

    /// Asks for a message through the ring that was to be read by CMA.
    fn ask_for(&mut self, link: &mut Link, id: u32) {
        let Some(Incoming::Matched(key)) = link.incoming.get(id) else {
            return;
        };
        let d = &mut self.deliveries[key as usize];
        let Some(read) = d.cma.take() else { return };
        d.expected = read.end;
        self.say_go(link, id, read.end);
    }

    /// Keeps a message that no receive matches.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `len` bytes.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "what a message consists of")]
    unsafe fn hold<O: Owner>(
        &mut self,
        key: usize,
        link: &mut Link,
        kind: MsgKind,
        arrived: Arrived,
        from: *const u8,
        len: usize,
        rest: Option<Rest>,
        owner: &mut O,
    ) -> Result<usize, Broken> {
        if link.pressed && link.held.is_beyond_what_follows(link.pressed_at) {
            return Err(Broken(
                "it sent far more unexpected messages than it was asked for",
            ));
        }
        self.stats.unexpected += 1;
        // Room for all that comes unasked is taken, and counted, at once.
        let room = rest.map_or(len, |rest| rest.window);
        let mut bytes = match room {
            1..=SPARE_BYTES => self.spare.pop().unwrap_or_default(),
            _ => Vec::new(),
        };
        bytes.reserve_exact(room);
        // SAFETY: the caller's promise.
        unsafe { append(&mut bytes, from, len) };
        let taken = Used::of(bytes.capacity());
        link.held.add(taken);
        self.used.add(taken);
        self.is_over |= self.quota.is_exceeded(self.used);
        let index = self.held.insert(Held {
            link: key,
            bytes,
            rest,
            tells: None,
            sender: None,
        });
        self.ease(link);
        let token = Token {
            transport: self.number,
            value: index as u64,
        };
        owner.srx().queue(kind, arrived, token);
        Ok(index)
    }

    /// If all of a held message is there now, its id is free again, unless the sender waits to hear of it.
    fn arrived_whole(&mut self, link: &mut Link, id: u32) {
        let Some(Incoming::Held(index)) = link.incoming.get(id) else {
            return;
        };
        let held = &mut self.held[index as usize];
        if held
            .rest
            .is_some_and(|rest| held.bytes.len() as u64 == rest.total)
        {
            match held.rest.take() {
                // Its sender keeps the id until it is told.
                Some(rest) if rest.told => held.tells = Some(id),
                _ => link.incoming.set(id, Incoming::Free),
            }
        }
        self.ease(link);
    }

    /// Asks the peer for envelopes only when too much is held, of it or of all, and lifts that
    /// again.
    pub(crate) fn ease(&mut self, link: &mut Link) {
        let quota = link.sizes.quota;
        let change = match link.pressed {
            false => self.is_over || quota.is_exceeded(link.held),
            true => !self.is_over && quota.is_half_free(link.held),
        };
        if change {
            link.pressed = !link.pressed;
            link.pressed_at = link.held;
            link.rx.set_back_pressure(link.pressed);
            link.tell(&mut self.stats);
        }
    }

    /// Whether there are messages whose link is gone.
    pub(crate) fn has_left_behind(&self) -> bool {
        self.left_behind != 0
    }

    /// Messages on their way into receives, messages whose link is gone, and what all that are
    /// held take.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn kept(&self) -> (usize, usize, Used) {
        (self.deliveries.len(), self.left_behind, self.used)
    }

    /// Takes a held message out.
    fn take_held(&mut self, token: Token) -> Option<Held> {
        let held = self.held.try_remove(token.value as usize)?;
        self.left_behind -= usize::from(held.link == NO_LINK);
        Some(held)
    }

    /// Messages take no memory of ours any more.
    fn give_back(&mut self, freed: Used) {
        self.used.take(freed);
        if self.is_over && self.quota.is_half_free(self.used) {
            self.is_over = false;
            self.is_relieved = true;
        }
    }

    /// Whether there is room again for messages of all links, which [`Self::ease`] lets them know.
    pub(crate) fn take_relief(&mut self) -> bool {
        std::mem::take(&mut self.is_relieved)
    }

    /// What is held in part of messages of a link that is no more is lost.
    pub(crate) fn forget_parts(&mut self, key: usize) {
        let mut lost = Used::default();
        self.held.retain(|_, held| {
            let stays = held.link != key || !held.is_partial();
            if !stays {
                lost.add(Used::of(held.bytes.capacity()));
            }
            stays
        });
        self.give_back(lost);
    }

    /// A held message is done with.
    fn release(&mut self, link: Option<&mut Link>, mut held: Held) {
        let freed = Used::of(held.bytes.capacity());
        self.give_back(freed);
        if let Some(link) = link {
            link.held.take(freed);
            self.ease(link);
            if let Some(id) = held.tells {
                link.incoming.set(id, Incoming::Free);
                self.say(link, Control::Delivered { id });
            }
        }
        if self.spare.len() < SPARE_BUFFERS && held.bytes.capacity() <= SPARE_BYTES {
            held.bytes.clear();
            self.spare.push(held.bytes);
        }
    }

    /// Delivers a held message into the receive that has matched it.
    ///
    /// # Safety
    ///
    /// The receive's buffer is valid for writes.
    pub(crate) unsafe fn start<O: Owner>(
        &mut self,
        link: Option<&mut Link>,
        start: Start,
        owner: &mut O,
    ) {
        let Some(held) = self.take_held(start.token) else {
            return;
        };
        let len = held.bytes.len();
        // SAFETY: `bytes` has `len` bytes; the buffer is the caller's promise.
        unsafe { put(owner, &start.matched, 0, held.bytes.as_ptr(), len) };
        match (held.rest, link) {
            (Some(rest), Some(link)) => {
                self.deliver(link, start.kind, start.matched, start.arrived, len, rest);
                // Nothing more may be wanted. (The id is one that `deliver` has just filled.)
                let _ = self.got(link, rest.id, 0, owner);
                self.release(Some(link), held);
            }
            (None, link) => {
                let sender = match &link {
                    Some(link) => Some(link.native),
                    None => held.sender.as_deref().copied(),
                };
                self.release(link, held);
                owner.complete_recv(start.kind, &start.matched, &start.arrived, || sender);
            }
            (Some(_), None) => {
                self.release(None, held);
                owner.fail_recv(
                    start.kind,
                    &start.matched,
                    &start.arrived,
                    ferrofabric_contracts::error::Errno::ECONNRESET,
                    0,
                    "the sender is gone",
                );
            }
        }
    }

    /// Drops a held message.
    pub(crate) fn discard<O: Owner>(
        &mut self,
        link: Option<&mut Link>,
        kind: MsgKind,
        token: Token,
        owner: &mut O,
    ) {
        let Some(held) = self.take_held(token) else {
            return;
        };
        let got = held.bytes.len();
        match (held.rest, link) {
            (Some(rest), Some(link)) => {
                let nowhere = Matched {
                    buf: IoBuf::EMPTY,
                    desc: 0,
                    context: 0,
                    flags: Flags::empty(),
                    piece: Piece::NONE,
                };
                let arrived = Arrived {
                    src: link.addr,
                    tag: 0,
                    len: rest.total,
                    data: 0,
                    flags: Flags::empty(),
                };
                self.deliver(link, kind, nowhere, arrived, got, rest);
                if let Some(Incoming::Matched(key)) = link.incoming.get(rest.id) {
                    self.deliveries[key as usize].dropped = true;
                }
                let _ = self.got(link, rest.id, 0, owner);
                self.release(Some(link), held);
            }
            (_, link) => self.release(link, held),
        }
    }

    /// A link is no more: what came whole over it can still be received.
    pub(crate) fn outlives(&mut self, key: usize, link: &Link) {
        let whole = |held: &&mut Held| held.link == key && !held.is_partial();
        for held in self.held.iter_mut().map(|(_, held)| held).filter(whole) {
            held.outlives(link);
            self.left_behind += 1;
        }
    }

    /// Receives that wait for more of a message, when the link fails.
    pub(crate) fn take_unfinished(&mut self, link: &mut Link) -> Vec<(MsgKind, Matched, Arrived)> {
        link.reading.clear();
        link.incoming
            .drain()
            .filter_map(|incoming| match incoming {
                Incoming::Matched(key) => {
                    let d = self.deliveries.remove(key as usize);
                    (!d.dropped).then_some((d.kind, d.matched, d.arrived))
                }
                _ => None,
            })
            .collect()
    }
}

/// Copies `len` bytes of a message, from `offset` of it on, into the receive that it has met, as
/// far as there is room.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes, the receive's buffers for writes.
#[inline]
unsafe fn put<O: Owner>(
    owner: &mut O,
    matched: &Matched,
    offset: usize,
    from: *const u8,
    len: usize,
) {
    let to = matched.buf.part(offset, len);
    match matched.piece.is_of_list() {
        // SAFETY: the caller's promise; `part` is within the buffer.
        false => unsafe { copy_bulk(from, to.as_mut_ptr(), to.len) },
        // SAFETY: the caller's promise.
        true => unsafe { put_in_list(owner, matched, offset, from, to.len) },
    }
}

/// As [`put`], of a list of buffers.
///
/// # Safety
///
/// As there.
#[cold]
unsafe fn put_in_list<O: Owner>(
    owner: &mut O,
    matched: &Matched,
    offset: usize,
    from: *const u8,
    len: usize,
) {
    let segments = owner.srx().segments(matched.piece);
    // SAFETY: the caller's promise.
    unsafe { copy_to_list(from, segments, offset, len) };
}

#[inline(always)]
fn kind_and_flags(seen: Seen) -> (MsgKind, Flags) {
    let bits = seen.head.flags();
    (
        match bits & TAGGED != 0 {
            true => MsgKind::Tagged,
            false => MsgKind::Msg,
        },
        match bits & DATA != 0 {
            true => Flags::REMOTE_CQ_DATA,
            false => Flags::empty(),
        },
    )
}

/// Appends bytes that another process may be writing to.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes.
unsafe fn append(bytes: &mut Vec<u8>, from: *const u8, len: usize) {
    bytes.reserve(len);
    // SAFETY: there is room for `len` more, which the copy fills.
    unsafe {
        copy_bulk(from, bytes.as_mut_ptr().add(bytes.len()), len);
        bytes.set_len(bytes.len() + len);
    }
}
