//! The transport of one endpoint over shared memory: its links, and the calls with which its owner
//! drives them.
//!
//! The owner's domain locks the transport, so one thread at a time uses it. The service thread
//! makes links and reports the end of peers; the transport handles these reports in `progress`.

mod address_vector;
mod idle_close;
mod links;
mod poll;
mod poll_order;
mod send;
#[cfg(feature = "fuzzing")]
mod table_sizes;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::atomics::AtomicTarget;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::peer::{
    MappedCall, Owner, PEER_REPLACED, SendDone, Shortcut, Start, Token, Transport,
};
use ferrofabric_contracts::types::{
    FiAddr, GrantedMemory, IoBuf, MsgKind, RmaOp, SendOp, total_len,
};
use ferrofabric_system::random;
use slab::Slab;

use crate::cma::Cookie;
use crate::config::ShmConfig;
use crate::doorbell::Doorbell;
use crate::link::{LinkSizes, Quota, ShmLink};
use crate::outbox::Outbox;
use crate::peers::{ShmPeers, ShmRoute};
use crate::pending::{PendingSend, injected};
use crate::receive::ShmReceiver;
use crate::service::{EndpointShared, ServiceThread};
use crate::stats::{CarriedOut, ShmStats};
use crate::status::{SLEEPS, WANTS_ROOM, register, sleeper_barrier};
use idle_close::IdleCloser;
use poll_order::PollOrder;
use send::send_inline;

/// Names to try: two endpoints of a node hardly ever draw the same.
const NAMES: u32 = 16;

/// A shared-memory endpoint.
pub struct ShmTransport {
    peers: ShmPeers,
    links: Slab<Box<ShmLink>>,
    poll_order: PollOrder,
    receiver: ShmReceiver,
    outbox: Outbox,
    service: ServiceThread,
    /// Peers have been requested to wake this endpoint.
    armed: bool,
    sizes: LinkSizes,
    config: ShmConfig,
    id: u64,
    node: u64,
    unreachable: VecDeque<(FiAddr, Vec<PendingSend>)>,
    idle_closer: IdleCloser,
    carried_out: CarriedOut,
    shared: Arc<EndpointShared>,
}

impl ShmTransport {
    /// The links but the one of the endpoint with itself, whose messages nobody else takes.
    fn links_to_others(&self) -> impl Iterator<Item = &ShmLink> {
        let links = self.links.iter().map(|(_, link)| &**link);
        links.filter(|link| link.id() != self.id)
    }

    /// Opens an endpoint that peers find by its address ([`native`](Self::native)): that of a new
    /// endpoint of `node` without a queue pair. Starts its service thread. The tokens of this
    /// transport contain `number`.
    ///
    /// # Errors
    ///
    /// If no socket or thread can be made.
    pub fn open(config: ShmConfig, node: u64, number: u32) -> Result<Self> {
        Self::open_drawn(config, number, || {
            let drawn = random::number()?;
            Ok(NativeAddr::of_new(node, None, true, drawn))
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

    /// As [`open`](Self::open), with an address that the owner chose.
    ///
    /// # Errors
    ///
    /// As there; `EADDRINUSE` if another endpoint of this node has the name.
    pub fn open_named(config: ShmConfig, name: NativeAddr, number: u32) -> Result<Self> {
        let mut cookie = Cookie::default();
        random::fill(&mut cookie)?;
        let (id, node) = (name.shm.unwrap_or_default(), name.node);
        let shared = EndpointShared::new(
            name,
            cookie,
            register(),
            Doorbell::open(id)?,
            config.shown.clone(),
        )?;
        let shared = Arc::new(shared);
        let service = ServiceThread::start(id, Arc::clone(&shared), &config)?;
        Ok(Self {
            peers: ShmPeers::default(),
            links: Slab::new(),
            poll_order: PollOrder::default(),
            receiver: ShmReceiver::new(number, Quota::of_endpoint(&config)),
            outbox: Outbox::default(),
            service,
            armed: false,
            sizes: LinkSizes::new(&config),
            config,
            id,
            node,
            unreachable: VecDeque::new(),
            idle_closer: IdleCloser::default(),
            carried_out: CarriedOut::default(),
            shared,
        })
    }

    /// The address.
    pub fn native(&self) -> NativeAddr {
        self.shared.name()
    }

    /// Becomes readable when the owner must call progress, once [`Transport::arm`] returned true.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }

    /// The counters of the transport.
    pub fn stats(&self) -> ShmStats {
        *self.receiver.stats()
    }

    /// Answers that wait for room in rings, and bytes of unexpected messages.
    #[cfg(test)]
    pub(crate) fn burden(&self) -> (usize, usize) {
        let links = self.links.iter().map(|(_, link)| link);
        links.fold((0, 0), |(answers, bytes), link| {
            let (more_answers, more_bytes) = link.burden();
            (answers + more_answers, bytes + more_bytes)
        })
    }

    /// The doorbell, so that tests can ring others.
    #[cfg(test)]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.shared.doorbell
    }

    /// Sends to a peer that shared memory does not reach, in their order, for another transport
    /// ([`Unreachable::HandBack`](crate::Unreachable::HandBack)).
    pub fn take_unreachable(&mut self) -> Option<(FiAddr, Vec<PendingSend>)> {
        self.unreachable.pop_front()
    }

    /// Whether a route still leads to a link.
    #[inline(always)]
    pub fn is_current(&self, route: &ShmRoute) -> bool {
        self.peers.link(route).is_some()
    }
}

impl Transport for ShmTransport {
    type Route = ShmRoute;

    #[inline(always)]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut ShmRoute,
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        let Some(key) = self.peers.link(route) else {
            // SAFETY: the caller's contract.
            return unsafe { self.send_first(op, iov, route, owner) };
        };
        let link = &mut *self.links[key];
        let len = total_len(iov);
        if link.takes_inline(op, len) {
            // SAFETY: `takes_inline` returned true; the buffers are the caller's contract.
            unsafe { send_inline(link, op, iov, len, self.receiver.stats_mut()) };
            owner.complete_send(&SendDone::of(op, len));
            return Ok(());
        }
        // SAFETY: the caller's contract.
        unsafe { self.send_long(key, op, iov, owner) }
    }

    unsafe fn reply<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        // SAFETY: the caller's contract.
        unsafe { self.send_reply(op, iov, owner) }
    }

    unsafe fn shortcut<O: Owner>(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        _granted: Option<&GrantedMemory>,
        route: &mut ShmRoute,
        owner: &mut O,
    ) -> Shortcut {
        let Some(key) = self.peers.link(route) else {
            return Shortcut::Impossible;
        };
        let counts = &mut self.carried_out;
        // SAFETY: the caller's contract.
        match unsafe { self.links[key].carry_out(op, iov, counts, owner) } {
            true => Shortcut::Done,
            false => Shortcut::Impossible,
        }
    }

    /// A peer may be reading a reply out of the region's memory: its link ends.
    fn end_parts<O: Owner>(&mut self, parts: &[u64], owner: &mut O) {
        const CLOSED: &str = "a region closed with a part of an operation under way";
        for (kind, matched, arrived) in self.receiver.refuse_writes(parts) {
            owner.fail_recv(kind, &matched, &arrived, Errno::ECANCELED, 0, CLOSED);
        }
        let links = (self.links.iter()).filter(|(_, link)| link.has_reply(parts, &self.outbox));
        let links: Vec<_> = links.map(|(key, _)| key).collect();
        for key in links {
            self.fail_link(key, Errno::ECONNRESET, CLOSED, owner);
        }
    }

    #[inline]
    fn with_mapped(
        &mut self,
        target: &AtomicTarget,
        route: &mut ShmRoute,
        act: impl FnOnce(NonNull<u8>),
    ) -> MappedCall {
        let Some(key) = self.peers.link(route) else {
            return MappedCall::Impossible;
        };
        self.links[key].with_mapped(target, act)
    }

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        let key = self.receiver.link_of(start.token);
        let link = self.links.get_mut(key).map(|link| &mut **link);
        // SAFETY: the caller's contract.
        unsafe { self.receiver.start(link, start, owner) };
        self.lift_back_pressure();
        self.wake_progress(key);
    }

    fn discard<O: Owner>(&mut self, kind: MsgKind, token: Token, owner: &mut O) {
        let key = self.receiver.link_of(token);
        let link = self.links.get_mut(key).map(|link| &mut **link);
        self.receiver.discard(link, kind, token, owner);
        self.lift_back_pressure();
        self.wake_progress(key);
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
        while let Some(key) = self.poll_order.each_call(at) {
            did += self.poll(key, owner);
            at += 1;
        }
        if self.poll_order.are_many() {
            did += self.poll_others(owner);
        }
        if did == 0 && self.receiver.last_was_short() {
            did += self.spin(owner);
        }
        did
    }

    /// Where the peer does not drive its endpoint, its service thread sees this.
    #[cold]
    fn drain<O: Owner>(&mut self, _owner: &mut O) {
        for link in self.links_to_others() {
            let waits = link.undelivered(&self.outbox).next().is_some();
            link.own_status().set_delivers(waits);
        }
    }

    fn is_drained(&self) -> bool {
        let links_are = self.links.iter().all(|(_, link)| link.is_drained());
        links_are && !self.peers.have_waiting_sends() && self.unreachable.is_empty()
    }

    fn report_undelivered(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        let links = self.links_to_others();
        let by_links = links.map(|link| (link.addr(), link.undelivered(&self.outbox).count()));
        let connecting = self.peers.waiting_sends().map(|line| {
            let peer = line.front().map_or(FiAddr::NOTAVAIL, |send| send.op.dest);
            (peer, injected(line.iter()).count())
        });
        let unreachable = self.unreachable.iter();
        let unreachable = unreachable.map(|(peer, line)| (*peer, injected(line).count()));
        let all = by_links.chain(connecting).chain(unreachable);
        for (peer, count) in all.filter(|(_, count)| *count != 0) {
            report(peer, count);
        }
    }

    fn has_undelivered(&self) -> bool {
        let mut links = self.links_to_others();
        let mut unreachable = self.unreachable.iter();
        links.any(|link| link.undelivered(&self.outbox).next().is_some())
            || (self.peers.waiting_sends()).any(|line| injected(line.iter()).next().is_some())
            || unreachable.any(|(_, line)| injected(line).next().is_some())
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        self.inserted(addr, name, owner);
    }

    fn has_unknown_sources(&self) -> bool {
        self.receiver.has_linkless() || self.links.iter().any(|(_, link)| !link.addr().is_some())
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.removed(addr, owner);
    }

    fn peer_replaced<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.unroute(addr, Errno::ECONNRESET, PEER_REPLACED, owner);
    }

    fn arm(&mut self) -> Result<bool> {
        // Rings of before now may be dropped: the checks below cover all that they could report.
        self.shared.doorbell.drain();
        self.armed = true;
        self.shared.goes_to_sleep();
        for (_, link) in &mut self.links {
            link.publish_rest(self.receiver.stats_mut());
            let wish = match link.is_busy() {
                true => SLEEPS | WANTS_ROOM,
                false => SLEEPS,
            };
            link.own_status().sleep(wish);
        }
        // An endpoint that can not be sure to be woken stays awake.
        let is_sure = sleeper_barrier(self.shared.registered);
        let mut quiet = is_sure && !self.service.has_events();
        for (_, link) in &mut self.links {
            let has_more = link.can_go_on();
            quiet &= link.peek().is_none() && !has_more;
        }
        Ok(quiet)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let s = self.receiver.stats();
        report("shm_messages_sent", s.sent);
        report("shm_bytes_sent", s.sent_bytes);
        report("shm_messages_received", s.received);
        report("shm_bytes_received", s.received_bytes);
        report("shm_sent_inline", s.sent_inline);
        report("shm_sent_eager", s.sent_eager);
        report("shm_sent_pipe", s.sent_pipe);
        report("shm_sent_cma", s.sent_cma);
        report("shm_received_cma", s.received_cma);
        report("shm_rma_written", self.carried_out.written);
        report("shm_rma_read", self.carried_out.read);
        report("shm_rma_mapped", self.carried_out.mapped);
        report("shm_unexpected", s.unexpected);
        report("shm_queued", s.queued);
        report("shm_doorbells", s.doorbells);
        report("shm_links", s.links);
        report("shm_links_failed", s.links_failed);
        report("shm_links_left", s.links_left);
    }
}

#[cfg(test)]
mod tests;
