//! The transport of one endpoint over shared memory: its links, and what its owner drives them with.

mod farewell;
#[cfg(feature = "fuzzing")]
mod kept;
mod turns;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferrofabric_contracts::addr::{NativeAddr, VerbsAddr};
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::peer::{Owner, PeerAv, PeerSrx, SendDone, Start, Token, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp, total_len};
use slab::Slab;

use crate::cma::Cookie;
use crate::config::{ShmConfig, Unreachable};
use crate::doorbell::Doorbell;
use crate::link::{Announced, Link, Quota, Sizes};
use crate::outbox::Outbox;
use crate::peers::{Peer, Peers};
use crate::pending::{PendingSend, Source};
use crate::receive::{NO_LINK, Receiver};
use crate::ring::SLOTS;
use crate::segment::Segment;
use crate::service::{Command, Event, NewLink, Service, Shared};
use crate::stats::ShmStats;
use crate::status::{SLEEPS, WANTS_ROOM, register, sleeper_barrier};
use farewell::Departures;
use turns::Turns;

/// Messages of one link that are taken before the next one gets its turn.
const BATCH: usize = 32;
/// Looks that a call takes beyond the first while short messages come and go.
const LINGER_LOOKS: usize = 7;
/// Names that are tried: two endpoints of a node hardly ever draw the same.
const NAMES: u32 = 16;

/// A shared-memory endpoint.
pub struct ShmTransport {
    peers: Peers,
    links: Slab<Box<Link>>,
    turns: Turns,
    receiver: Receiver,
    outbox: Outbox,
    service: Service,
    /// Peers were asked to wake us.
    armed: bool,
    sizes: Sizes,
    config: ShmConfig,
    id: u64,
    node: u64,
    unreachable: VecDeque<(FiAddr, Vec<PendingSend>)>,
    departures: Departures,
    shared: Arc<Shared>,
}

impl ShmTransport {
    /// Opens an endpoint that others find by its address ([`native`](Self::native)): that of a new endpoint of `node` with the
    /// queue pair `verbs`. Starts its service thread. `number` is what tokens of this transport carry.
    ///
    /// # Errors
    ///
    /// When a socket or the thread can not be had.
    pub fn open(
        config: ShmConfig,
        node: u64,
        verbs: Option<VerbsAddr>,
        number: u32,
    ) -> Result<Self> {
        Self::open_drawn(config, number, || {
            let mut drawn = [0; 8];
            random(&mut drawn)?;
            let drawn = u64::from_le_bytes(drawn);
            Ok(NativeAddr::of_new(node, verbs, true, drawn))
        })
    }

    /// Draws names until one is free on this node.
    pub(crate) fn open_drawn(
        config: ShmConfig,
        number: u32,
        mut draw: impl FnMut() -> Result<NativeAddr>,
    ) -> Result<Self> {
        let mut tries = 1;
        loop {
            match Self::open_named(config.clone(), draw()?, number) {
                Err(error) if error.errno() == Errno::EADDRINUSE && tries < NAMES => tries += 1,
                opened => return opened,
            }
        }
    }

    /// As [`open`](Self::open), by an address that its owner has made up.
    ///
    /// # Errors
    ///
    /// As there; `EADDRINUSE` when another endpoint of this node has the name.
    pub fn open_named(config: ShmConfig, name: NativeAddr, number: u32) -> Result<Self> {
        let mut cookie = Cookie::default();
        random(&mut cookie)?;
        let (id, node) = (name.shm.unwrap_or_default(), name.node);
        let shared = Shared::new(name, cookie, register(), Doorbell::open(id)?)?;
        let shared = Arc::new(shared);
        let service = Service::start(id, Arc::clone(&shared), &config)?;
        Ok(Self {
            peers: Peers::new(),
            links: Slab::new(),
            turns: Turns::default(),
            receiver: Receiver::new(number, Quota::of_endpoint(&config)),
            outbox: Outbox::default(),
            service,
            armed: false,
            sizes: Sizes::new(&config),
            config,
            id,
            node,
            unreachable: VecDeque::new(),
            departures: Departures::default(),
            shared,
        })
    }

    /// The address.
    pub fn native(&self) -> NativeAddr {
        self.shared.name()
    }

    /// Becomes readable when somebody should call progress, once [`Transport::arm`] has said true.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }

    /// What it has done.
    pub fn stats(&self) -> ShmStats {
        self.receiver.stats
    }

    /// Answers that wait for room in rings, and bytes that are held of unexpected messages.
    #[cfg(test)]
    pub(crate) fn burden(&self) -> (usize, usize) {
        let links = self.links.iter().map(|(_, link)| link);
        links.fold((0, 0), |(answers, bytes), link| {
            (answers + link.control.len(), bytes + link.held.bytes)
        })
    }

    /// The doorbell, to ring at others by hand.
    #[cfg(test)]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.shared.doorbell
    }

    /// Sends to a peer that shared memory does not reach, in their order, to be sent some other way
    /// ([`Unreachable::HandBack`]).
    pub fn take_unreachable(&mut self) -> Option<(FiAddr, Vec<PendingSend>)> {
        self.unreachable.pop_front()
    }

    /// Whether there is a link with `addr`, for owners that choose between paths.
    pub fn is_connected(&self, addr: FiAddr) -> bool {
        self.peers.route(addr).is_some()
    }

    /// Sends what does not go in one slot, or not now.
    ///
    /// # Safety
    ///
    /// As for [`Transport::send`].
    #[inline(never)]
    unsafe fn send_long<O: Owner>(
        &mut self,
        key: usize,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        let link = &mut *self.links[key];
        let stats = &mut self.receiver.stats;
        if link.pending.is_empty() && !link.asked {
            // SAFETY: the caller's promise.
            match unsafe { link.announce(op, iov, stats) } {
                Ok(Announced::Done) => {
                    owner.complete_send(&SendDone::of(op, total_len(iov)));
                    return Ok(());
                }
                Ok(Announced::Started(begun)) => {
                    // SAFETY: the caller's promise.
                    let source = unsafe { Source::new(op.flags, iov) };
                    link.keep(op, source, begun, &mut self.outbox);
                    self.rouse(key);
                    return Ok(());
                }
                Ok(Announced::Full) => {}
                Err(broken) => {
                    self.fail_link(key, Errno::EPROTO, broken.0, owner);
                    return Err(OpError::Failed(Errno::EPROTO));
                }
            }
        }
        stats.queued += 1;
        // SAFETY: the caller's promise.
        unsafe { link.enqueue(op, iov, &mut self.outbox) }.map_err(|()| OpError::Again)?;
        self.rouse(key);
        Ok(())
    }

    /// Has those who sleep look again, if there is something to push now: they asked to be woken for less.
    #[inline]
    fn rouse(&self, key: usize) {
        if self.armed && self.links.get(key).is_some_and(|link| link.busy) {
            self.shared.ring(self.id);
        }
    }

    /// Where there is room again for unexpected messages, all links hear of it.
    #[inline]
    fn relieve(&mut self) {
        if self.receiver.take_relief() {
            for (_, link) in &mut self.links {
                self.receiver.ease(link);
            }
        }
    }

    /// Sends to an address that is not known to lead to a link.
    ///
    /// # Safety
    ///
    /// As for [`Transport::send`].
    #[cold]
    #[inline(never)]
    unsafe fn send_first<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        let id = match self.peers.id(op.dest) {
            Some(id) if !self.peers.needs_link(id) => id,
            _ => {
                let native = owner
                    .av()
                    .lookup(op.dest)
                    .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
                let id = native.shm.ok_or(OpError::Failed(Errno::EHOSTUNREACH))?;
                if native.node != self.node && native.node != 0 && self.node != 0 {
                    return Err(OpError::Failed(Errno::EHOSTUNREACH));
                }
                self.peers.set_id(op.dest, id);
                if self.peers.needs_link(id) {
                    self.peers.set(id, Peer::Connecting(VecDeque::new()));
                    if let Err(error) = self.connect(id, native, owner) {
                        self.peers.remove(id);
                        return Err(error);
                    }
                }
                id
            }
        };
        match self.peers.get_mut(id) {
            Some(Peer::Up(key)) => {
                let key = *key;
                if !self.links[key].asked {
                    self.peers.learn(op.dest, key, self.links.len());
                }
                // SAFETY: the caller's promise.
                unsafe { self.send_long(key, op, iov, owner) }
            }
            Some(Peer::Connecting(queue)) => {
                if queue.len() >= self.config.queue_sends {
                    return Err(OpError::Again);
                }
                self.receiver.stats.queued += 1;
                // SAFETY: the caller's promise.
                queue.push_back(unsafe { PendingSend::new(op, iov) });
                Ok(())
            }
            Some(Peer::Gone(errno)) => Err(OpError::Failed(*errno)),
            Some(Peer::Left(_)) | None => Err(OpError::Again),
        }
    }

    /// Makes a link with a peer that counts as connecting; one with oneself is there at once.
    fn connect<O: Owner>(
        &mut self,
        id: u64,
        native: NativeAddr,
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        if id != self.id {
            self.service.tell(Command::Connect(native));
            return Ok(());
        }
        let (segment, _) = Segment::create().map_err(|e| OpError::Failed(e.errno()))?;
        let link = Link::loopback(segment, native, id, &self.shared, self.sizes);
        self.link_up(link, owner);
        Ok(())
    }

    fn link_up<O: Owner>(&mut self, mut link: Link, owner: &mut O) {
        self.receiver.stats.links += 1;
        link.addr = owner.av().find(&link.native);
        let (id, addr) = (link.id, link.addr);
        let before = self.peers.remove(id);
        if let Some(Peer::Connecting(queue)) = before {
            link.busy = !queue.is_empty();
            link.pending = queue;
        }
        if self.armed {
            link.own_status().sleep(SLEEPS | WANTS_ROOM);
        }
        let key = self.links.insert(Box::new(link));
        self.peers.set(id, Peer::Up(key));
        self.turns.join(key);
        if addr.is_some() {
            self.peers.set_id(addr, id);
            self.peers.learn(addr, key, self.links.len());
        } else {
            self.watch_stranger(key);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_events<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut did = 0;
        self.service.lower_flag();
        while let Some(event) = self.service.next_event() {
            did += 1;
            match event {
                Event::Up(new) => self.new_link(new, owner),
                Event::Gone(id, segment, said_so) => self.gone(id, segment, said_so, owner),
                Event::Look => self.look(owner),
                Event::Unreachable(id, errno, why) => self.give_up(id, errno, why, owner),
            }
        }
        did
    }

    pub(crate) fn new_link<O: Owner>(&mut self, new: NewLink, owner: &mut O) {
        if let Some(&mut Peer::Up(key)) = self.peers.get_mut(new.id) {
            // Its end was overtaken by a new beginning.
            self.drain(key, owner);
            self.fail_link(key, Errno::ECONNRESET, "the peer has connected anew", owner);
        }
        let link = Link::new(new, &self.shared, self.sizes);
        self.link_up(link, owner);
    }

    /// No link can be had with a peer.
    fn give_up<O: Owner>(&mut self, id: u64, errno: Errno, why: &'static str, owner: &mut O) {
        let Some(Peer::Connecting(queue)) = self.peers.get_mut(id) else {
            return;
        };
        let queue = std::mem::take(queue);
        self.peers.remove(id);
        // Nobody waits: the peer was removed.
        let Some(first) = queue.front() else { return };
        // A peer that does not answer may do so later; one that is not there will not come.
        if errno == Errno::EHOSTUNREACH {
            self.peers.set_gone(id, errno, first.op.dest);
        }
        tracing::info!(peer = id, why, "no shared-memory link");
        match self.config.unreachable {
            Unreachable::HandBack => {
                self.unreachable.push_back((first.op.dest, queue.into()));
            }
            Unreachable::Fail => {
                for send in queue {
                    owner.fail_send(&SendDone::of(&send.op, 0), errno, 0, why);
                }
            }
        }
    }

    /// Takes what a peer that is gone has left in its ring: no more than the ring holds, should it still be writing. If that is its
    /// farewell, the link has ended in good order.
    fn drain<O: Owner>(&mut self, key: usize, owner: &mut O) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        for _ in 0..SLOTS {
            let Some(seen) = link.rx.peek() else { break };
            if self
                .receiver
                .take(key, link, &mut self.outbox, seen, owner)
                .is_err()
            {
                break;
            }
        }
        if (self.links.get(key)).is_some_and(|link| link.asked && link.heard.is_some()) {
            self.hear_farewell(key, owner);
        }
    }

    /// Takes a link out. What hangs on it is the caller's.
    fn remove_link(&mut self, key: usize) -> Option<Box<Link>> {
        let link = self.links.try_remove(key)?;
        self.watch_no_more(key);
        self.peers.unlearn();
        self.turns.leave(key);
        Some(link)
    }

    /// Ends a link: what waits for its peer fails, everybody else goes on.
    #[cold]
    #[inline(never)]
    fn fail_link<O: Owner>(&mut self, key: usize, errno: Errno, why: &'static str, owner: &mut O) {
        let Some(mut link) = self.remove_link(key) else {
            return;
        };
        tracing::info!(peer = %link.native, why, "shared-memory link ended");
        self.receiver.stats.links_failed += 1;
        if errno == Errno::EPROTO {
            let segment = Some(link.segment.clone());
            self.service.tell(Command::Forget(link.id, segment, false));
        }
        self.peers.set_gone(link.id, errno, link.addr);
        let sends = link.take_unfinished(&mut self.outbox);
        let receives = self.receiver.take_unfinished(&mut link);
        self.receiver.outlives(key, &link);
        let addr = link.addr;
        // Says that we are through with it, before anybody gets back the memory that the peer may be reading.
        drop(link);
        for done in sends {
            owner.fail_send(&done, errno, 0, why);
        }
        for (kind, matched, arrived) in receives {
            owner.fail_recv(kind, &matched, &arrived, errno, 0, why);
        }
        // What arrived whole can still be received; of the rest, the owner forgets.
        let (number, held) = (self.receiver.number, &self.receiver.held);
        let lost = |token: Token| {
            token.transport == number
                && held
                    .get(token.value as usize)
                    .is_some_and(|h| h.link == key && h.is_partial())
        };
        owner.srx().fail_source(addr, errno, why, lost);
        self.receiver.forget_parts(key);
        self.relieve();
    }

    /// Looks a few times more for the next of an exchange of short messages, where the last one came from: nearer by than
    /// through another call.
    #[inline(always)]
    fn linger<O: Owner>(&mut self, owner: &mut O) -> usize {
        let Some(key) = self.turns.first() else {
            return 0;
        };
        let Some(link) = self.links.get(key) else {
            return 0;
        };
        for _ in 0..LINGER_LOOKS {
            breathe();
            if link.rx.peek().is_some() {
                return self.poll(key, owner);
            }
        }
        breathe();
        0
    }

    /// Looks after one link. Returns how many things it did.
    #[inline(always)]
    fn poll<O: Owner>(&mut self, key: usize, owner: &mut O) -> usize {
        let Some(link) = self.links.get_mut(key) else {
            return 0;
        };
        let link = &mut **link;
        let mut did = 0;
        while let Some(seen) = link.rx.peek() {
            link.rx.prefetch();
            if let Err(broken) = self.receiver.take(key, link, &mut self.outbox, seen, owner) {
                self.fail_link(key, Errno::EPROTO, broken.0, owner);
                return did + 1;
            }
            did += 1;
            if did == BATCH {
                break;
            }
        }
        if did == 0 {
            link.idle = link.idle.saturating_add(1);
            if link.rx.has_unpublished_tail() {
                link.tell(&mut self.receiver.stats);
            }
        } else {
            (link.idle, link.sent_last) = (0, false);
        }
        if link.busy {
            return did + self.push(key, owner);
        }
        did
    }

    #[inline(never)]
    fn push<O: Owner>(&mut self, key: usize, owner: &mut O) -> usize {
        let Some(link) = self.links.get_mut(key) else {
            return 0;
        };
        if link.heard.is_some() {
            return self.hear_farewell(key, owner);
        }
        let read = match link.reading.is_empty() {
            true => Ok(0),
            false => self.receiver.read(link, owner),
        };
        let pushed = read
            .and_then(|n| Ok(n + link.push(&mut self.outbox, owner, &mut self.receiver.stats)?));
        pushed.unwrap_or_else(|broken| {
            self.fail_link(key, Errno::EPROTO, broken.0, owner);
            1
        })
    }

    #[cold]
    fn disarm(&mut self) {
        self.armed = false;
        self.shared.wakes_up();
        for (_, link) in &self.links {
            link.own_status().awake();
        }
    }
}

impl Transport for ShmTransport {
    #[inline]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        let Some(key) = self.peers.route(op.dest) else {
            // SAFETY: the caller's promise.
            return unsafe { self.send_first(op, iov, owner) };
        };
        let link = &mut *self.links[key];
        let len = total_len(iov);
        if link.takes_inline(op, len) {
            // SAFETY: `takes_inline` said so; the buffers are the caller's promise.
            unsafe { link.send_inline(op, iov, len) };
            let stats = &mut self.receiver.stats;
            link.nudge(stats);
            stats.sent += 1;
            stats.sent_bytes += len as u64;
            stats.sent_inline += 1;
            owner.complete_send(&SendDone::of(op, len));
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.send_long(key, op, iov, owner) }
    }

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        let key = self
            .receiver
            .held
            .get(start.token.value as usize)
            .map_or(NO_LINK, |held| held.link);
        let link = self.links.get_mut(key).map(|link| &mut **link);
        // SAFETY: the caller's promise.
        unsafe { self.receiver.start(link, start, owner) };
        self.relieve();
        self.rouse(key);
    }

    fn discard<O: Owner>(&mut self, kind: MsgKind, token: Token, owner: &mut O) {
        let key = self
            .receiver
            .held
            .get(token.value as usize)
            .map_or(NO_LINK, |held| held.link);
        let link = self.links.get_mut(key).map(|link| &mut **link);
        self.receiver.discard(link, kind, token, owner);
        self.relieve();
        self.rouse(key);
    }

    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut did = 0;
        if self.service.has_events() {
            did += self.take_events(owner);
        }
        if self.armed {
            self.disarm();
        }
        let mut at = 0;
        while let Some(key) = self.turns.each_call(at) {
            did += self.poll(key, owner);
            at += 1;
        }
        if self.turns.are_many() {
            did += self.poll_others(owner);
        }
        if did == 0 && self.receiver.last_was_short {
            did += self.linger(owner);
        }
        did
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        let Some(id) = name.shm else { return };
        let mut met = None;
        if let Some(&mut Peer::Up(key)) = self.peers.get_mut(id) {
            let link = &mut *self.links[key];
            if link.native == *name && !link.addr.is_some() {
                link.addr = addr;
                self.peers.set_id(addr, id);
                self.watch_no_more(key);
                met = Some(key);
            }
        }
        if met.is_none() && !self.receiver.has_left_behind() {
            return;
        }
        let (number, held) = (self.receiver.number, &self.receiver.held);
        owner.srx().resolve(addr, |token| {
            token.transport == number
                && held
                    .get(token.value as usize)
                    .is_some_and(|h| h.is_of(met, name))
        });
    }

    fn has_strangers(&self) -> bool {
        self.receiver.has_left_behind() || self.links.iter().any(|(_, link)| !link.addr.is_some())
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        let mut id = self.peers.forget_addr(addr);
        for (_, link) in self.links.iter_mut().filter(|(_, l)| l.addr == addr) {
            link.addr = FiAddr::NOTAVAIL;
            id = Some(link.id);
        }
        owner.srx().forget_source(addr);
        let Some(id) = id else { return };
        let mut is_connecting = false;
        let queue = match self.peers.get_mut(id) {
            Some(Peer::Connecting(queue)) => {
                is_connecting = true;
                queue
            }
            Some(&mut Peer::Up(key)) => {
                if !self.links[key].addr.is_some() {
                    self.watch_removed(key);
                }
                &mut self.links[key].pending
            }
            Some(Peer::Left(_)) => {
                self.peers.remove(id);
                self.service.tell(Command::Forget(id, None, false));
                return;
            }
            Some(Peer::Gone(_)) => {
                self.peers.remove(id);
                return;
            }
            None => return,
        };
        let (dropped, kept) = std::mem::take(queue)
            .into_iter()
            .partition::<VecDeque<_>, _>(|send| send.op.dest == addr);
        if is_connecting && kept.is_empty() {
            self.peers.remove(id);
            self.service.tell(Command::Cancel(id));
        } else {
            *queue = kept;
        }
        for send in dropped {
            owner.fail_send(
                &SendDone::of(&send.op, 0),
                Errno::ECANCELED,
                0,
                "the peer was removed from the address vector",
            );
        }
    }

    fn arm(&mut self) -> Result<bool> {
        // What was rung before now is for nothing that can be missed: everything is looked at once more below.
        self.shared.doorbell.drain();
        self.armed = true;
        self.shared.goes_to_sleep();
        for (_, link) in &mut self.links {
            if link.rx.has_unpublished_tail() {
                link.tell(&mut self.receiver.stats);
            }
            let wish = match link.busy {
                true => SLEEPS | WANTS_ROOM,
                false => SLEEPS,
            };
            link.own_status().sleep(wish);
        }
        // Who can not be sure to be woken stays awake.
        let is_sure = sleeper_barrier(self.shared.registered);
        let mut quiet = is_sure && !self.service.has_events();
        for (_, link) in &mut self.links {
            let more_room = link.busy && (link.tx.moved() || !link.reading.is_empty());
            quiet &= link.rx.peek().is_none() && !more_room;
        }
        Ok(quiet)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let s = &self.receiver.stats;
        report("shm_messages_sent", s.sent);
        report("shm_bytes_sent", s.sent_bytes);
        report("shm_messages_received", s.received);
        report("shm_bytes_received", s.received_bytes);
        report("shm_sent_inline", s.sent_inline);
        report("shm_sent_eager", s.sent_eager);
        report("shm_sent_pipe", s.sent_pipe);
        report("shm_sent_cma", s.sent_cma);
        report("shm_received_cma", s.received_cma);
        report("shm_unexpected", s.unexpected);
        report("shm_queued", s.queued);
        report("shm_doorbells", s.doorbells);
        report("shm_links", s.links);
        report("shm_links_failed", s.links_failed);
        report("shm_links_left", s.links_left);
    }
}

/// Waits some nanoseconds, with no load under way. A processor that finds nothing runs ahead and looks at the same line
/// several times at once; looks that the sender's store overtakes are undone, and take the line from the sender once more
/// (`docs/adr/0012-polling-takes-its-time.md`). Where the last message had a record, running ahead is a gain: slot and record
/// come over together.
#[inline(always)]
fn breathe() {
    #[cfg(target_arch = "x86_64")]
    for _ in 0..2 {
        // SAFETY: every x86-64 processor has it.
        unsafe { std::arch::x86_64::_mm_lfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::spin_loop();
}

fn random(bytes: &mut [u8]) -> Result<()> {
    // SAFETY: the buffer is ours, with its length. (Short requests are answered whole or not at all.)
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match n == bytes.len() as isize {
        true => Ok(()),
        false => Err(Error::from_io(
            &std::io::Error::last_os_error(),
            "draw",
            "random bytes",
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// Covers: AV-9
    #[test]
    fn who_finds_its_name_taken_draws_another() {
        let node = crate::node_id();
        let first = ShmTransport::open(ShmConfig::default(), node, None, 0).unwrap();
        let taken = first.native();
        assert_eq!(taken.shm, Some(taken.incarnation));
        let free = NativeAddr::of_new(node, None, true, taken.incarnation ^ 1);
        let mut names = [taken, taken, free].into_iter();
        let second =
            ShmTransport::open_drawn(ShmConfig::default(), 0, || Ok(names.next().unwrap()));
        assert_eq!(second.unwrap().native(), free);
        let never = ShmTransport::open_drawn(ShmConfig::default(), 0, || Ok(taken));
        assert_eq!(never.err().unwrap().errno(), Errno::EADDRINUSE);
    }
}
