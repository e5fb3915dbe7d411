//! Lanes as they come up, complete their requests, break and go.

use ferrofabric_core::error::Errno;
use ferrofabric_core::peer::{Owner, PeerAv, PeerSrx};
use ferrofabric_core::protocol::handshake::{LaneUp, Reason};
use ferrofabric_core::protocol::rendezvous::{FetchLimits, Fetcher, ReadFailed, SendTable};
use ferrofabric_core::protocol::session::Session;
use ferrofabric_core::protocol::wire::SessionId;
use ferrofabric_core::types::FiAddr;
use ferrofabric_verbs_sys::ibv_wc_status;
use std::sync::Arc;

use super::{QUOTA_UNITS, RdmTransport, TRANSPORT};
use crate::connect::{ToEngine, ToService, native_addr};
use crate::post::{SendFlags, SendRequest, inline_sge};
use crate::qp::RcQp;
use crate::session::{Body, Lane, Link, SendSlot, Wqe, WqeKind};

/// Rendezvous sends that one peer may have to read, at a time.
const MAX_REQUESTS: usize = 1 << 16;

impl RdmTransport {
    /// Takes what the service thread has to say.
    #[cold]
    pub(super) fn take_messages<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        while let Some(message) = self.service.message() {
            done += 1;
            match message {
                ToEngine::LaneUp { up, qp } => self.lane_up(&up, qp, owner),
                ToEngine::MaySend(key) => {
                    if let Some(lane) = self.lanes.of(key.session()) {
                        lane.may_send = true;
                        self.list(key.session());
                    }
                }
                ToEngine::LaneDown { lane, peer, reason } => {
                    tracing::debug!("lane to {peer:?} is down: {reason:?}");
                    let (errno, why) = evidence(reason);
                    if let Some(lane) = self.lanes.of(lane.session()) {
                        lane.closed_by_peer = reason == Reason::PeerClosed;
                    }
                    self.give_up(lane.session(), errno, why);
                }
                ToEngine::Probe => self.probe_idle_lanes(),
                ToEngine::ConnectFailed { peer, reason } => {
                    let (errno, why) = evidence(reason);
                    if let Some(at) = self.peers.find(&peer) {
                        self.peers.at(at).link = Link::Idle;
                        self.fail_pending(at, errno, why, owner);
                        self.fail_receives(at, None, errno, why, owner);
                    }
                }
            }
        }
        done
    }

    /// A lane on which nothing is under way would never learn that its peer has died: whoever waits for that peer would wait
    /// for ever. So each gets a packet that says nothing new: the peer's device acknowledges it as long as the queue pair
    /// exists, whatever its process does; when it is gone, the lane fails by retries exhausted.
    fn probe_idle_lanes(&mut self) {
        let mut broken = Vec::new();
        for lane in self.lanes.iter_mut() {
            let idle = lane.may_send && lane.failing.is_none() && lane.queue.is_empty();
            if idle && self.poster.probe(lane).is_err() {
                broken.push(lane.key.session());
            }
        }
        for session in broken {
            self.lane_broke(session);
        }
    }

    fn lane_up<O: Owner>(&mut self, up: &LaneUp, qp: Arc<RcQp>, owner: &mut O) {
        let addr = native_addr(&up.peer, up.remote_shm_name)
            .map_or(FiAddr::NOTAVAIL, |name| owner.av().find(&name));
        let peer = self.peers.peer_of(up.peer, addr);
        let session = up.lane.session();
        self.peers.at(peer).link = Link::Up(session);
        let tuning = &self.poster.tuning;
        self.lanes.insert(Lane {
            qp,
            key: up.lane,
            peer,
            session: Session::new(
                up.remote_session,
                up.epoch,
                up.remote_limits.quota_units,
                QUOTA_UNITS,
            ),
            may_send: up.may_send,
            peer_receive_bytes: up.remote_limits.receive_bytes as usize,
            heard: false,
            sends: SendTable::new(MAX_REQUESTS),
            fetches: Fetcher::new(FetchLimits {
                chunk_bytes: tuning.read_chunk,
                reads_per_lane: u32::from(tuning.reads_per_lane),
                reads_per_op: tuning.reads_per_message,
                ..FetchLimits::default()
            }),
            queue: std::collections::VecDeque::with_capacity(tuning.send_depth),
            depth: tuning.send_depth,
            next_number: 0,
            unsignaled: 0,
            fins: std::collections::VecDeque::new(),
            failing: None,
            closed_by_peer: false,
            unflushed: false,
            refused: false,
            listed: false,
        });
        self.list(session);
    }

    /// A request of a lane has completed, and with it all that were posted before.
    #[inline]
    pub(super) fn sent<O: Owner>(
        &mut self,
        session: SessionId,
        number: u32,
        error: Option<ibv_wc_status>,
        owner: &mut O,
    ) {
        if let Some(status) = error {
            self.request_failed(session, number, status);
        }
        loop {
            let Some(lane) = self.lanes.of(session) else {
                return;
            };
            let Some(wqe) = lane.queue.pop_front() else {
                return;
            };
            self.poster.outstanding -= 1;
            let last = wqe.number == number;
            let failed = last && error.is_some();
            if let SendSlot(Some(slot)) = wqe.slot {
                self.poster.bounces.give(slot);
            }
            if let (Some(sequence), false) = (wqe.sequence, failed) {
                // Our own numbers, in order: never refused.
                let _ = lane.session.confirm(sequence.wrapping_add(1));
            }
            match wqe.kind {
                WqeKind::Message(done) if !failed => owner.complete_send(&done),
                WqeKind::Message(done) => {
                    let (errno, why) = lane.failing.unwrap_or(BROKEN);
                    owner.fail_send(&done, errno, error.map_or(0, |s| s.0 as i32), why);
                }
                WqeKind::Notice => {}
                WqeKind::Read(key) => {
                    let result = if failed { Err(ReadFailed) } else { Ok(()) };
                    if let Some(fetched) = lane.fetches.on_read(key, result) {
                        self.fetched(session, fetched, owner);
                    }
                    self.run_reads(session);
                }
                WqeKind::Marker => return self.drained(session, owner),
            }
            if last {
                break;
            }
        }
        self.list_if_busy(session);
    }

    #[cold]
    fn request_failed(&mut self, session: SessionId, number: u32, status: ibv_wc_status) {
        let Some(lane) = self.lanes.of(session) else {
            return;
        };
        if lane.failing.is_none() {
            tracing::debug!(
                "request {number} on {} failed: {}",
                **lane.qp,
                lane.qp.pd().context().status_text(status)
            );
            let (errno, why) = match status {
                ibv_wc_status::IBV_WC_RETRY_EXC_ERR => (
                    Errno::EHOSTUNREACH,
                    "the peer does not acknowledge any more: its process or its network is gone",
                ),
                ibv_wc_status::IBV_WC_REM_ACCESS_ERR => (
                    Errno::EREMOTEIO,
                    "the peer does not let its memory be read (any more): its process may be gone",
                ),
                _ => BROKEN,
            };
            self.break_lane(session, errno, why);
        }
    }

    /// Posting has failed.
    #[cold]
    pub(super) fn lane_broke(&mut self, session: SessionId) {
        self.break_lane(session, BROKEN.0, BROKEN.1);
    }

    /// We have evidence that a lane is dead: gives it up, and has the service thread drop it.
    #[cold]
    pub(super) fn break_lane(&mut self, session: SessionId, errno: Errno, why: &'static str) {
        if let Some(lane) = self.lanes.of(session) {
            if lane.failing.is_none() {
                let key = lane.key;
                self.service.request(ToService::LaneBroken(key));
                self.give_up(session, errno, why);
            }
        }
    }

    /// Moves a lane's queue pair to error; what was posted is flushed, and once that is done the lane goes.
    fn give_up(&mut self, session: SessionId, errno: Errno, why: &'static str) {
        let Some(lane) = self.lanes.of(session) else {
            return;
        };
        if lane.failing.is_some() {
            return;
        }
        self.poster.counters.lanes_failed += 1;
        lane.failing = Some((errno, why));
        let moved = lane.qp.to_error();
        let (wr_id, _) = lane.next(true);
        let mut marker = SendRequest::send(wr_id, [inline_sge(&[])])
            .flags(SendFlags::SIGNALED | SendFlags::INLINE);
        // SAFETY: an empty inline message names no memory.
        let posted = unsafe { marker.post(&lane.qp) };
        lane.queue.push_back(Wqe {
            number: lane.next_number.wrapping_sub(1),
            kind: WqeKind::Marker,
            slot: SendSlot(None),
            sequence: None,
        });
        self.poster.outstanding += 1;
        if moved.is_err() || posted.is_err() || lane.refused {
            // Nothing will be flushed; the queue pair itself has to go.
            lane.unflushed = true;
        }
        self.list(session);
    }

    /// Everything that a dead lane had is flushed: ends what hung on it.
    #[cold]
    fn drained<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        let Some(mut lane) = self.lanes.remove(session) else {
            return;
        };
        let (errno, why) = lane.failing.unwrap_or(BROKEN);
        for wqe in lane.queue.drain(..) {
            self.poster.outstanding -= 1;
            if let SendSlot(Some(slot)) = wqe.slot {
                self.poster.bounces.give(slot);
            }
            if let WqeKind::Message(done) = wqe.kind {
                owner.fail_send(&done, errno, 0, why);
            }
        }
        for send in lane.sends.drain() {
            owner.fail_send(&send.done, errno, 0, why);
        }
        for fetched in lane.fetches.drain() {
            let f = fetched.receive;
            owner.fail_recv(f.kind, &f.matched, &f.arrived, errno, 0, why);
        }
        let peer = self.peers.at(lane.peer);
        if peer.link == Link::Up(session) {
            peer.link = Link::Idle;
        }
        if lane.closed_by_peer {
            // It may come back: what waits for it is not lost. What it did not let us read is.
            self.lose_requests(lane.peer, session, owner);
            self.reconnect_if_wanted(lane.peer);
        } else {
            self.fail_pending(lane.peer, errno, why, owner);
            self.fail_receives(lane.peer, Some(session), errno, why, owner);
        }
    }

    /// Fails what waits to be sent to a peer.
    pub(super) fn fail_pending<O: Owner>(
        &mut self,
        peer: u32,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        while let Some(pending) = self.peers.at(peer).pending.pop_front() {
            owner.fail_send(&pending.done(), errno, 0, why);
        }
    }

    /// Fails the receives that only this peer could have matched, and drops the messages that can not be read any more.
    fn fail_receives<O: Owner>(
        &mut self,
        peer: u32,
        session: Option<SessionId>,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let addr = self.peers.at(peer).addr;
        let held = &mut self.held;
        owner.srx().fail_source(addr, errno, why, |token| {
            token.transport == TRANSPORT && lost(held, token.value, session)
        });
    }

    /// Drops the messages of a session that can not be read any more.
    fn lose_requests<O: Owner>(&mut self, peer: u32, session: SessionId, owner: &mut O) {
        let addr = self.peers.at(peer).addr;
        let held = &mut self.held;
        owner.srx().lose_messages(addr, |token| {
            token.transport == TRANSPORT && lost(held, token.value, Some(session))
        });
    }

    fn reconnect_if_wanted(&mut self, at: u32) {
        let peer = self.peers.at(at);
        if !peer.pending.is_empty() && peer.link == Link::Idle {
            peer.link = Link::Connecting;
            let key = peer.key;
            self.service.request(ToService::Connect(key));
        }
    }

    /// Puts a lane in the list of those with work.
    #[inline]
    pub(super) fn list(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.of(session) {
            if !lane.listed {
                lane.listed = true;
                self.work.push_back(session);
            }
        }
    }

    #[inline]
    fn list_if_busy(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.of(session) {
            let busy = !lane.fins.is_empty()
                || !lane.fetches.is_empty()
                || !self.peers.at(lane.peer).pending.is_empty();
            if busy {
                self.list(session);
            }
        }
    }

    /// Gives each listed lane a turn: notices first, so that they never wait behind bulk data.
    pub(super) fn run_work<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        for _ in 0..self.work.len() {
            let Some(session) = self.work.pop_front() else {
                break;
            };
            let Some(lane) = self.lanes.of(session) else {
                continue;
            };
            lane.listed = false;
            if lane.unflushed {
                // The queue pair is destroyed with the last that holds it: the service thread drops its own.
                if Arc::strong_count(&lane.qp) == 1 {
                    self.drained(session, owner);
                } else {
                    self.list(session);
                }
                continue;
            }
            done += self.run_notices(session);
            done += self.run_reads(session);
            done += self.run_pending(session, owner);
        }
        done
    }
}

/// Whether a kept message can not be delivered any more, as a request of this session; it is let go then.
fn lost(held: &mut crate::session::Held, token: u64, session: Option<SessionId>) -> bool {
    let lost = held.message(token).is_some_and(|message| {
        matches!(message.body, Body::Request { .. }) && Some(message.session) == session
    });
    if lost {
        held.take(token);
    }
    lost
}

const BROKEN: (Errno, &str) = (Errno::ECONNRESET, "the connection to the peer broke");

/// What a lane's end means to its operations.
fn evidence(reason: Reason) -> (Errno, &'static str) {
    match reason {
        Reason::PeerRestarted { .. } => (
            Errno::ECONNRESET,
            "the peer's process was restarted: its address is another one now",
        ),
        Reason::PeerReset => (Errno::ECONNRESET, "the peer dropped the connection"),
        Reason::PeerClosed | Reason::PeerShuttingDown => {
            (Errno::ESHUTDOWN, "the peer closed its endpoint")
        }
        Reason::Version => (
            Errno::EPROTO,
            "the peer speaks another version of the protocol",
        ),
        Reason::Keys => (
            Errno::EKEYREJECTED,
            "the peer's partition key or queue key is another one",
        ),
        Reason::Timeout => (
            Errno::ETIMEDOUT,
            "the peer was silent for longer than peer_timeout",
        ),
        Reason::Broken => BROKEN,
        Reason::Unreachable => (
            Errno::EHOSTUNREACH,
            "there is no path to the peer from this port",
        ),
        Reason::Local(errno) => (Errno(errno), "a queue pair to the peer could not be made"),
        Reason::ShuttingDown => (Errno::ESHUTDOWN, "the endpoint is closing"),
    }
}
