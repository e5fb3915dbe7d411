//! The RDM endpoint over verbs: the engine that runs under the domain's lock.
//!
//! One completion queue serves all peers, and one shared receive queue all lanes. Each peer with
//! traffic has a lane (an RC queue pair, made by the service thread). Small messages travel eagerly
//! into the receive buffers. For a large message (rendezvous) a request to send travels, upon which
//! the receiver reads the data, or the sender writes it. A lane that breaks is replaced, and the
//! session goes on.

mod bounces;
mod chunks;
mod closes;
mod complete;
mod completions;
mod control_messages;
mod counters;
mod dead_queue;
mod endings;
mod lane_ends;
mod lane_life;
mod lanes;
mod one_sided;
mod open;
mod poster;
mod received_counts;
mod recv;
mod replay;
mod send;
mod session_end;
mod sessions;
mod turns;
mod ud;
mod waits;

use std::mem::MaybeUninit;
use std::time::Duration;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::peer::{
    Owner, PEER_REMOVED, PEER_REPLACED, PeerAv, PeerSrx, Shortcut, Start, Token, Transport,
};
use ferrofabric_contracts::types::{FiAddr, GrantedMemory, IoBuf, MsgKind, RmaOp, SendOp};
use ferrofabric_protocol::Time;
use ferrofabric_protocol::lanes::PeerLanes;
use ferrofabric_verbs_sys::{ibv_wc, ibv_wc_status};

use crate::connect::{ServiceHandle, ToService, peer_key};
use crate::gather::Readable;
use crate::lane::{LaneTable, ResumeSlots, TurnQueue, WrId};
use crate::session::{
    Grants, PeerRoute, PeerTable, Pending, RdmPeer, RdmUnexpectedMessages, SessionState,
};

pub(crate) use crate::session::TRANSPORT;
pub(crate) use open::{PeerTimeouts, RdmConfig};

use completions::Completions;
use endings::Endings;
use poster::Poster;
use recv::ReceivePool;
use ud::UdShared;

/// Completions taken in one poll.
const POLL: usize = 16;

/// The engine of an RDM endpoint.
pub(crate) struct RdmTransport {
    // The queue pairs go first: from then on the device reads no more memory for its sends.
    service: ServiceHandle,
    lanes: LaneTable,
    ud: UdShared,
    /// Decides which lane carries a session, and how a lane ends.
    life: PeerLanes,
    /// Objects that end once the completion queue is empty.
    ending: Endings,
    // Behind the queue pairs: Resumes may lie in these slots.
    resume_slots: ResumeSlots,
    /// How long a session waits for a lane; `None`: for ever.
    reconnect_timeout: Option<Duration>,
    receives: ReceivePool,
    completions: Completions,
    poster: Poster,
    peers: PeerTable,
    unexpected: RdmUnexpectedMessages,
    grants: Grants,
    turns: TurnQueue,
    /// While this endpoint closes: when it requests again that its peers be driven, and the pause
    /// after that.
    drives_due: Option<(Time, Duration)>,
    #[cfg(feature = "fault-injection")]
    faults: crate::fault::SeenBreaks,
}

impl RdmTransport {
    /// Makes each send complete soon at the device: sends without a completion for the application
    /// are signaled, too.
    pub(crate) fn count_sends(&mut self) {
        self.poster.count_sends();
    }

    /// Sends an operation that was accepted before: it is queued even if others wait before it.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    ///
    /// # Errors
    ///
    /// As [`Transport::send`], but never [`OpError::Again`].
    pub(crate) unsafe fn enqueue_accepted<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let peer = self.peer_for(op.dest, owner)?;
        // SAFETY: the caller's promise.
        self.enqueue(peer, op, unsafe { Readable::new(iov) })
    }

    #[cold]
    fn find_route<O: Owner>(
        &mut self,
        dest: FiAddr,
        route: &mut PeerRoute,
        owner: &O,
    ) -> Result<u32, OpError> {
        let peer = self.peer_for(dest, owner)?;
        *route = self.peers.route_to(peer);
        Ok(peer)
    }

    fn peer_for<O: Owner>(&mut self, dest: FiAddr, owner: &O) -> Result<u32, OpError> {
        self.check_works()?;
        if let Some(peer) = self.peers.routed(dest) {
            return Ok(peer);
        }
        let name = owner
            .av()
            .lookup(dest)
            .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        self.add_route(dest, &name)
    }

    /// No operation to an address goes to its peer any more: those that wait for a lane fail.
    #[cold]
    fn unroute<O: Owner>(&mut self, addr: FiAddr, errno: Errno, why: &'static str, owner: &mut O) {
        if let Some(peer) = self.peers.unroute(addr) {
            self.fail_pending(peer, |op| op.dest == addr, errno, why, owner);
            if !self.peers.at(peer).is_routed() {
                self.apply(owner, |life, view, now| life.removed(peer, view, now));
            }
        }
        if self.peers.need_sorting() {
            self.sort_peers();
        }
    }

    #[inline]
    fn poll<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut room = [MaybeUninit::<ibv_wc>::uninit(); POLL];
        let Ok(completions) = self.completions.poll(&mut room) else {
            return self.queue_failed(owner);
        };
        for completion in completions {
            let ok = completion.status == ibv_wc_status::IBV_WC_SUCCESS;
            match WrId::parse(completion.wr_id) {
                WrId::Receive(slot) if !self.receives.has(slot) => self.unknown_receive(slot),
                WrId::Receive(slot) if ok => {
                    self.received(slot, completion.byte_len, completion.qp_num, owner);
                }
                WrId::Receive(slot) => self.receives.flushed(slot),
                WrId::Send(session, number) => {
                    let status = (!ok).then_some(completion.status);
                    self.sent(session, number, status, owner);
                }
            }
        }
        if !completions.is_empty() && self.receives.post_if_enough() {
            self.request_search();
        }
        completions.len()
    }

    /// A completion names a receive that was never posted.
    #[cold]
    fn unknown_receive(&mut self, slot: u32) {
        self.poster.counters.received.dropped += 1;
        tracing::warn!(
            "{} completed receive {slot}, which there is not",
            self.completions.device()
        );
    }

    /// The grant of new peers may have changed.
    #[cold]
    fn publish_grant(&mut self) {
        if let Some(quota_units) = self.grants.changed() {
            self.service.request(ToService::Grant(quota_units));
        }
    }
}

impl Drop for RdmTransport {
    fn drop(&mut self) {
        if !self.completions.is_own() {
            return;
        }
        self.post_held_back();
        self.report_received_counts();
        self.service.close();
        self.end_queue_pairs();
    }
}

impl Transport for RdmTransport {
    type Route = PeerRoute;

    #[inline]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut PeerRoute,
        owner: &mut O,
    ) -> Result<(), OpError> {
        let peer = match self.peers.follow(route) {
            Some(peer) => peer,
            None => self.find_route(op.dest, route, owner)?,
        };
        // A peer that learns by the message that pages have changed may reach them at once.
        self.poster.registrations.end_changed();
        // SAFETY: the caller's promise.
        self.send_to(peer, op, unsafe { Readable::new(iov) })
    }

    unsafe fn reply<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        _owner: &mut O,
    ) -> Result<(), OpError> {
        self.check_works()?;
        self.poster.registrations.end_changed();
        let peer = self.peers.of_requester(op.dest);
        let peer = peer.ok_or(OpError::Failed(Errno::ECONNRESET))?;
        // SAFETY: the caller's promise.
        self.send_to(peer, op, unsafe { Readable::new(iov) })
    }

    unsafe fn shortcut<O: Owner>(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        memory: Option<&GrantedMemory>,
        route: &mut PeerRoute,
        _owner: &mut O,
    ) -> Shortcut {
        // As in `send`.
        self.poster.registrations.end_changed();
        match self.peers.follow(route) {
            // SAFETY: the caller's promise.
            Some(peer) => unsafe { self.one_sided(peer, op, iov, memory) },
            None => Shortcut::Impossible,
        }
    }

    fn cut_off<O: Owner>(&mut self, peer: FiAddr, _owner: &mut O) -> bool {
        self.cut_off_peer(peer)
    }

    fn request_drive(&mut self, peer: FiAddr) {
        self.request_drive_of(peer);
    }

    fn end_parts<O: Owner>(&mut self, parts: &[u64], owner: &mut O) {
        self.end_sessions_with(parts, owner);
    }

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        self.post_held_back();
        self.start_unexpected(start, owner);
    }

    fn discard<O: Owner>(&mut self, _kind: MsgKind, token: Token, _owner: &mut O) {
        self.discard_unexpected(token);
    }

    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        #[cfg(feature = "fault-injection")]
        if self.faults.take() {
            for lane in self.lanes.rc_lanes() {
                let _ = lane.qp.to_error();
            }
        }
        self.post_held_back();
        let mut done = 0;
        if self.service.has_messages() {
            done += self.take_messages(owner);
        }
        let ending = self.ending.len();
        let polled = self.poll(owner);
        done += polled;
        if polled > 0 && self.turns.has_stalled() {
            self.list_stalled();
        }
        if ending > 0 && self.completions.has_polled() && self.ending.looked(ending, polled) {
            done += self.end_taken(owner);
        }
        if self.ud.wait_for_time() {
            done += self.run_deadlines(owner);
        }
        if !self.turns.is_empty() {
            done += self.run_work(owner);
        }
        if self.peers.need_sorting() {
            self.sort_peers();
        }
        self.poster.registrations.tidy();
        done
    }

    fn flush<O: Owner>(&mut self, _owner: &mut O) {
        self.post_held_back();
    }

    fn drain<O: Owner>(&mut self, _owner: &mut O) {
        self.post_held_back();
        self.probe_lanes_with_requests();
        self.request_drive_of_all();
    }

    fn is_drained(&self) -> bool {
        let is_peer_drained = |peer: &RdmPeer| {
            peer.pending.is_empty() && peer.parked.as_deref().is_none_or(SessionState::is_drained)
        };
        self.lanes
            .carried()
            .all(|(_, session)| session.is_drained())
            && self.peers.iter().all(is_peer_drained)
    }

    fn report_undelivered(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        for lane in self.lanes.iter() {
            match lane.undelivered() {
                0 => {}
                count => report(self.peers.addr(lane.head().peer), count),
            }
        }
        for peer in self.peers.iter() {
            let is_injected = |waits: &&Pending| waits.op.kind.is_taken_for_sent(waits.op.flags);
            let parked = peer.parked.as_deref().map_or(0, SessionState::undelivered);
            match parked + peer.pending.iter().filter(is_injected).count() {
                0 => {}
                count => report(peer.addr, count),
            }
        }
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        let Some(peer) = self.peers.find(&peer_key(name)) else {
            return;
        };
        self.peers.route(addr, name);
        self.life.inserted(peer);
        let unexpected = &self.unexpected;
        owner.srx().resolve(addr, |token| {
            token.transport == TRANSPORT
                && unexpected
                    .message(token.value)
                    .is_some_and(|m| m.peer == peer)
        });
    }

    fn has_unknown_sources(&self) -> bool {
        self.peers.has_unknown_sources()
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.unroute(addr, Errno::ECANCELED, PEER_REMOVED, owner);
        owner.srx().forget_source(addr);
    }

    fn peer_replaced<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.unroute(addr, Errno::ECONNRESET, PEER_REPLACED, owner);
    }

    fn arm(&mut self) -> Result<bool> {
        self.service.drain_wakeup();
        self.post_held_back();
        if self.service.has_messages() || !self.turns.is_empty() || !self.ending.is_empty() {
            return Ok(false);
        }
        if !self.ud.arm()? {
            return Ok(false);
        }
        self.completions.arm()
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.report(report);
    }
}
