//! The state machine of the handshake: the events that its owner passes in. The steps of a lane are
//! in `steps.rs`; `receive.rs` judges packets.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;

use super::super::credit::MAX_QUOTA_UNITS;
use super::super::rtt::RttEstimator;
use super::super::secrets::SecretNumbers;
use super::super::table::{Key, KeyedTable};
use super::super::timers::Timers;
use super::super::wire::SessionId;
use super::super::wire::control::{ControlBody, LaneKind, LaneName, RejectReason};
use super::super::{PLACE_BYTES, PeerKey, Time};
use super::admission::{HalfOpen, Initiators};
use super::peer::{Carried, HandshakePeer, LanePhase, proof_of};
use super::{EndReason, HandshakeAction, HandshakeConfig, HandshakeCounters, LaneError, LaneKey};

/// The state of the endpoint, and of the port below it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// The endpoint closes.
    pub(super) closing: bool,
    /// The port carries no packets ([`Connector::port_down`]).
    pub(super) link_down: bool,
}

/// The lanes of one endpoint.
///
/// Every method that takes `out` adds the actions to carry out to it; look at
/// [`Connector::next_timeout`] afterwards.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(super) me: PeerKey,
    pub(super) config: HandshakeConfig,
    /// Numbers that only the two ends of a lane know.
    pub(super) secrets: SecretNumbers,
    /// Spreads the tries of many endpoints.
    pub(super) jitter: Rng,
    pub(super) rtt: RttEstimator,
    /// The newest epoch of ours.
    pub(super) epoch: u64,
    pub(super) peers: KeyedTable<HandshakePeer>,
    pub(super) by_place: HashMap<[u8; PLACE_BYTES], Key>,
    /// The peer of each lane.
    pub(super) lanes: KeyedTable<Key>,
    pub(super) timers: Timers<Key>,
    /// Peers with which the engine holds a session, and the lane that carried it last.
    pub(super) sessions: HashMap<PeerKey, Carried>,
    pub(super) initiators: Initiators,
    pub(super) half_open: HalfOpen,
    pub(super) standing: Standing,
    pub(super) counters: HandshakeCounters,
}

impl Connector {
    /// The machine of the endpoint `me`.
    #[must_use]
    pub fn new(me: PeerKey, config: HandshakeConfig) -> Self {
        let mut secrets = SecretNumbers::new(config.seed);
        Connector {
            me,
            jitter: Rng::with_seed(secrets.number()),
            secrets,
            rtt: RttEstimator::new(
                config.intervals.initial_timeout,
                config.intervals.min_timeout,
                config.intervals.max_interval,
            ),
            epoch: 0,
            peers: KeyedTable::new(u32::MAX as usize),
            by_place: HashMap::new(),
            lanes: KeyedTable::new(config.max_lanes.min(SessionId::LIMIT)),
            timers: Timers::default(),
            sessions: HashMap::new(),
            initiators: Initiators::new(config.max_initiating),
            half_open: HalfOpen::new(config.max_half_open),
            standing: Standing::default(),
            counters: HandshakeCounters::default(),
            config,
        }
    }

    /// The engine requests a lane of a kind to `peer`. The request ends in
    /// [`HandshakeAction::LaneUp`] and [`HandshakeAction::MaySend`], or in
    /// [`HandshakeAction::ConnectFailed`]. A lane that exists or is in the making serves the
    /// request, also if it is of the other kind; but an attempt of this side without an answer yet
    /// begins anew if its kind differs. A lane to the endpoint itself is a queue pair connected to
    /// itself.
    ///
    /// A `wait_limit` means evidence that the peer may be dead (its lane broke). Tries then come
    /// closer together, and the request fails with [`EndReason::Timeout`] when no packet has come
    /// for that time.
    pub fn connect(
        &mut self,
        now: Time,
        peer: PeerKey,
        kind: LaneKind,
        wait_limit: Option<Duration>,
        out: &mut Vec<HandshakeAction>,
    ) {
        if self.standing.closing {
            out.push(HandshakeAction::ConnectFailed {
                peer,
                reason: EndReason::ShuttingDown,
            });
            return;
        }
        match self
            .find(&peer)
            .and_then(|key| Some((key, self.peers.get_mut(key)?)))
        {
            None => {
                if let Some(key) = self.add(peer, now) {
                    self.begin(key, kind, wait_limit, now, out);
                }
            }
            Some((_, state)) if state.phase == LanePhase::Up => {}
            Some((key, state)) => {
                state.engine.requested = true;
                state.engine.requested_kind = kind;
                let begins_anew = match state.phase {
                    LanePhase::Making | LanePhase::HelloSent => state.own.kind != kind,
                    // There is always room for the UD kind.
                    LanePhase::Waiting => kind == LaneKind::Ud,
                    _ => false,
                };
                if begins_anew {
                    self.drop_lane(key, EndReason::PeerReset, out);
                    self.begin(key, kind, wait_limit, now, out);
                } else {
                    self.set_wait_limit(key, now, wait_limit);
                    self.invite(key);
                }
            }
        }
        self.settle(now, out);
    }

    /// The engine has left a lane, and requests one of another kind to its peer: as
    /// [`Connector::connect`]. The request also notifies the peer that the old lane is no more.
    pub fn change_lane(
        &mut self,
        now: Time,
        (lane, peer): (LaneKey, PeerKey),
        kind: LaneKind,
        wait_limit: Option<Duration>,
        out: &mut Vec<HandshakeAction>,
    ) {
        match peer_of(&self.lanes, &mut self.peers, lane) {
            Some((key, state)) if !self.standing.closing => {
                state.engine.reported_up = false;
                state.tries = 0;
                self.drop_lane(key, EndReason::Recycled, out);
                self.leave_place(key);
                self.invite(key);
                self.begin(key, kind, wait_limit, now, out);
            }
            // It is down already: the engine will be notified.
            _ => return self.connect(now, peer, kind, wait_limit, out),
        }
        self.settle(now, out);
    }

    /// Begins an attempt of ours.
    pub(super) fn begin(
        &mut self,
        key: Key,
        kind: LaneKind,
        wait_limit: Option<Duration>,
        now: Time,
        out: &mut Vec<HandshakeAction>,
    ) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.engine.requested_kind = kind;
        }
        self.set_wait_limit(key, now, wait_limit);
        self.initiate(key, now, out);
    }

    /// The engine's session that the lane carried is over: the next lane to its peer starts a new
    /// one.
    pub fn session_ended(&mut self, peer: &PeerKey, lane: LaneKey) {
        if (self.sessions.get(peer)).is_some_and(|carried| carried.lane == lane) {
            self.sessions.remove(peer);
        }
    }

    /// The engine no longer needs `peer`. The lane is released at once and the peer notified. Ends
    /// in [`HandshakeAction::Closed`].
    pub fn close(&mut self, now: Time, peer: &PeerKey, out: &mut Vec<HandshakeAction>) {
        if let Some(key) = self.find(peer) {
            self.close_key(key, now, out);
        }
        self.settle(now, out);
    }

    /// The endpoint closes: as [`Connector::close`] for all peers, also for those that hold a
    /// session without a lane, and no new lanes. Done when [`Connector::is_idle`]. `taken` holds,
    /// for each peer with a session, the number that the session expects next
    /// ([`Session::expected`]), whichever lane is at hand; the peers receive it.
    ///
    /// [`Session::expected`]: super::super::session::Session::expected
    pub fn shutdown(
        &mut self,
        now: Time,
        taken: &HashMap<PeerKey, u32>,
        out: &mut Vec<HandshakeAction>,
    ) {
        self.standing.closing = true;
        let keys: Vec<Key> = self.peers.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(peer) = self.peers.get_mut(key) {
                peer.engine.taken = taken.get(&peer.key).copied();
            }
            self.close_key(key, now, out);
        }
        let without_lane: Vec<PeerKey> = (self.sessions.keys())
            .filter(|peer| self.find(peer).is_none())
            .copied()
            .collect();
        for peer in without_lane {
            if let Some(key) = self.add(peer, now) {
                if let Some(added) = self.peers.get_mut(key) {
                    added.engine.taken = taken.get(&peer).copied();
                }
                self.close_key(key, now, out);
            }
        }
    }

    /// From now on peers are granted `quota_units` for each session ([`Limits::quota_units`]). A
    /// peer with an earlier grant keeps it.
    ///
    /// [`Limits::quota_units`]: super::super::wire::control::LaneLimits::quota_units
    pub fn grant(&mut self, quota_units: u16) {
        self.config.limits.quota_units = quota_units.min(MAX_QUOTA_UNITS);
    }

    /// `MakeLane` was carried out: `made` is the number of the queue pair.
    pub fn lane_made(
        &mut self,
        now: Time,
        lane: LaneKey,
        made: Result<u32, LaneError>,
        out: &mut Vec<HandshakeAction>,
    ) {
        let Some((key, peer)) = peer_of(&self.lanes, &mut self.peers, lane) else {
            return;
        };
        let phase = peer.phase;
        match (phase, made) {
            (LanePhase::Making, Ok(qpn)) => {
                let psn = first_psn(peer.own.kind, &mut self.secrets);
                peer.own.made(qpn, psn, self.config.limits.quota_units);
                peer.life.begin_silence(now);
                peer.tries = 0;
                self.epoch += 1;
                peer.name = LaneName {
                    from_initiator: true,
                    epoch: self.epoch,
                    initiator_nonce: self.secrets.number(),
                    responder_nonce: 0,
                };
                peer.proof = proof_of(&self.sessions, &peer.key);
                if peer.key == self.me {
                    self.use_own_parameters(key);
                    self.join(key, LanePhase::Connecting, out);
                } else {
                    peer.phase = LanePhase::HelloSent;
                    self.send_hello(key, now, out);
                }
            }
            (LanePhase::Answering, Ok(qpn)) => {
                let psn = first_psn(peer.own.kind, &mut self.secrets);
                peer.own.made(qpn, psn, self.config.limits.quota_units);
                self.join(key, LanePhase::Joining, out);
            }
            (LanePhase::Making | LanePhase::Answering, Err(error)) => {
                peer.own.lane = None;
                self.lanes.remove(lane.0);
                self.lane_failed(key, phase, error, now, out);
            }
            _ => {}
        }
        self.settle(now, out);
    }

    /// `ConnectLane` was carried out.
    pub fn lane_connected(
        &mut self,
        now: Time,
        lane: LaneKey,
        result: Result<(), LaneError>,
        out: &mut Vec<HandshakeAction>,
    ) {
        let Some((key, peer)) = peer_of(&self.lanes, &mut self.peers, lane) else {
            return;
        };
        let phase = peer.phase;
        match (phase, result) {
            (LanePhase::Connecting, Ok(())) => {
                self.report_lane_up(key, true, out);
                self.up(key, now, out);
                self.send_ready(key, out);
            }
            (LanePhase::Joining, Ok(())) => {
                peer.phase = LanePhase::HalfOpen;
                peer.tries = 0;
                peer.life.begin_silence(now);
                self.report_lane_up(key, false, out);
                self.send_hello_ack(key, now, out);
            }
            (LanePhase::Connecting | LanePhase::Joining, Err(error)) => {
                self.drop_lane(key, EndReason::PeerReset, out);
                self.lane_failed(key, phase, error, now, out);
            }
            _ => {}
        }
        self.settle(now, out);
    }

    /// The engine received a packet on a lane that it may not send on yet (or any other, where a
    /// peer timeout is set).
    pub fn lane_received(&mut self, now: Time, lane: LaneKey, out: &mut Vec<HandshakeAction>) {
        let Some((key, peer)) = peer_of(&self.lanes, &mut self.peers, lane) else {
            return;
        };
        peer.life.mark_alive(now);
        // A third party at the peer's port may be at the other end of an RC lane. Only a Ready
        // proves that another incarnation has followed.
        if peer.phase == LanePhase::HalfOpen && self.predecessor(key).is_none() {
            out.push(HandshakeAction::MaySend { lane });
            self.up(key, now, out);
        }
        self.settle(now, out);
    }

    /// The engine has evidence that a lane is dead (retries exhausted, queue pair in error, session
    /// broken). The lane is released and the peer notified, if a packet can still reach it.
    pub fn lane_broken(&mut self, now: Time, lane: LaneKey, out: &mut Vec<HandshakeAction>) {
        if let Some((key, peer)) = peer_of(&self.lanes, &mut self.peers, lane) {
            // The lane never came up, so a request of the engine for one is still to be served.
            let goes_on = peer.engine.requested;
            self.reject_ended_lane(key, out);
            match goes_on {
                true => {
                    self.drop_lane(key, EndReason::Broken, out);
                    self.wait(key, now);
                }
                false => self.fail(key, EndReason::Broken, out),
            }
        }
        self.settle(now, out);
    }

    /// The engine has given up an idle lane because queue pairs ran out. The lane is released and
    /// the peer notified.
    pub fn lane_recycled(&mut self, now: Time, lane: LaneKey, out: &mut Vec<HandshakeAction>) {
        let (reported, reason) = (RejectReason::Recycled, EndReason::Recycled);
        self.give_up(now, lane, reported, reason, out);
    }

    /// The engine has given up a lane that has nothing more to carry. The lane is released and the
    /// peer notified. The session rests at both ends until one of them requests another lane.
    pub fn lane_left(&mut self, now: Time, lane: LaneKey, out: &mut Vec<HandshakeAction>) {
        self.give_up(now, lane, RejectReason::Left, EndReason::Left, out);
    }

    fn give_up(
        &mut self,
        now: Time,
        lane: LaneKey,
        reported: RejectReason,
        reason: EndReason,
        out: &mut Vec<HandshakeAction>,
    ) {
        if let Some((key, _)) = peer_of(&self.lanes, &mut self.peers, lane) {
            self.reject_attempt(key, reported, out);
            self.fail(key, reason, out);
        }
        self.settle(now, out);
    }

    /// The engine no longer needs the lane that it requested. An attempt of this side ends, and the
    /// engine gets no further event for it. A lane that the peer has begun, or has answered to,
    /// comes up all the same.
    pub fn cancel(&mut self, now: Time, peer: &PeerKey, out: &mut Vec<HandshakeAction>) {
        let found = self.find(peer);
        if let Some((key, state)) = found.and_then(|key| Some((key, self.peers.get_mut(key)?))) {
            let was_requested = std::mem::take(&mut state.engine.requested);
            state.life.clear_wait_limit();
            match state.phase {
                LanePhase::Queued
                | LanePhase::Making
                | LanePhase::HelloSent
                | LanePhase::Waiting => {
                    self.reject_ended_lane(key, out);
                    self.drop_lane(key, EndReason::ShuttingDown, out);
                    self.remove(key);
                }
                LanePhase::Answering | LanePhase::Joining | LanePhase::HalfOpen
                    if was_requested =>
                {
                    self.count_uninvited(key, now);
                }
                _ => {}
            }
        }
        self.settle(now, out);
    }

    /// The peer of a UD lane does not confirm packets. Checks with a packet whether the peer still
    /// has the lane. If the peer has not, the lane is down; without an answer nothing changes.
    pub fn check_lane(&mut self, now: Time, lane: LaneKey, out: &mut Vec<HandshakeAction>) {
        if let Some((_, peer)) = peer_of(&self.lanes, &mut self.peers, lane) {
            if peer.phase == LanePhase::Up && peer.key != self.me {
                let (to, name) = (peer.key, peer.name);
                self.send(to, name, ControlBody::KeepAlive { stamp_ns: now.0 }, out);
            }
        }
    }

    /// Requests from a peer whose lane is up that its endpoint be driven. The packet may get lost.
    pub fn request_drive(&mut self, peer: &PeerKey, out: &mut Vec<HandshakeAction>) {
        let found = self.find(peer).and_then(|key| self.peers.get(key));
        if let Some(state) = found.filter(|state| state.phase == LanePhase::Up) {
            let name = state.name;
            self.send(*peer, name, ControlBody::Drive, out);
        }
    }

    /// The owner has evidence that `peer` cannot be reached (no address handle, no route). A
    /// request with a wait limit continues until that limit, because a link that is down may come
    /// up again; and while the link here is down, nothing is evidence.
    pub fn unreachable(&mut self, now: Time, peer: &PeerKey, out: &mut Vec<HandshakeAction>) {
        if let (Some(key), false) = (self.find(peer), self.standing.link_down) {
            if self
                .peers
                .get(key)
                .is_none_or(|peer| !peer.life.has_wait_limit())
            {
                self.fail(key, EndReason::Unreachable, out);
            }
        }
        self.settle(now, out);
    }

    /// Time has come: call when [`Connector::next_timeout`] has passed (earlier does no harm).
    pub fn timeout(&mut self, now: Time, out: &mut Vec<HandshakeAction>) {
        while let Some(key) = self.timers.pop(now) {
            self.wake(key, now, out);
        }
        self.settle(now, out);
    }

    /// When to call [`Connector::timeout`]; `None`: nothing waits for time.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Counts of the events so far.
    #[must_use]
    pub fn counters(&self) -> &HandshakeCounters {
        &self.counters
    }

    /// Whether a peer has a lane, has a lane in the making or in the closing, or holds a session.
    /// All other senders are unknown sources: they get answers to their packets and nothing else.
    #[must_use]
    pub fn has_peer(&self, peer: &PeerKey) -> bool {
        self.find(peer).is_some() || self.sessions.contains_key(peer)
    }

    /// The peers that have a lane, or with which there is one to be made or to be closed.
    pub fn peers(&self) -> impl Iterator<Item = &PeerKey> {
        self.peers.iter().map(|(_, peer)| &peer.key)
    }

    /// Whether the table of peers is empty: every lane is released, every Bye sent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.peers.is_empty()
    }

    /// Lanes that were requested and not yet released.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }
}

/// Where the numbers of an RC queue pair begin.
fn first_psn(kind: LaneKind, secrets: &mut SecretNumbers) -> u32 {
    match kind {
        LaneKind::Rc => secrets.packet_sequence_number(),
        LaneKind::Ud => 0,
    }
}

fn peer_of<'a>(
    lanes: &KeyedTable<Key>,
    peers: &'a mut KeyedTable<HandshakePeer>,
    lane: LaneKey,
) -> Option<(Key, &'a mut HandshakePeer)> {
    let key = *lanes.get(lane.0)?;
    peers.get_mut(key).map(|peer| (key, peer))
}
