//! The simulated world: both ends, the pairs of peers, the clock, and the events that happen to
//! them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use ferrofabric_contracts::config::LaneChoice;

use super::end::{EndFacts, LanesEnd, SimPeer, id, next_packet};
use super::link::{LanePacket, PeerPair, SimLane, SimLaneState, key, place};
use crate::handshake::{EndReason, LaneUp};
use crate::lane_policy;
use crate::lanes::{
    BROKEN, LaneAction, LaneOrder, LanesConfig, OrderEvents, PeerLanes, Settlement, protocol_broken,
};
use crate::session::{Accept, Origin, ResumeOutcome, ResumeState, Session, SessionStart};
use crate::wire::control::{LaneKind, LaneLimits};
use crate::wire::data::Resume;
use crate::{PeerKey, Time};
use fastrand::Rng;

/// Pairs of peers, one at each end: more than there may be RC lanes.
pub(super) const PAIRS: usize = 3;

/// RC queue pairs of an end, at most.
const MAX_LANES: usize = 2;

/// Of so many messages one goes by RC lanes alone.
pub(super) const LARGE: u64 = 32;

thread_local! {
    /// Lanes that broke, promotions, lanes recycled, lanes closed when idle, sessions resumed,
    /// sessions on older lanes.
    static COUNTS: RefCell<[u64; 6]> = const { RefCell::new([0; 6]) };
}

/// The counts of events since the last call.
pub(super) fn take_counts() -> [u64; 6] {
    COUNTS.take()
}

fn count(what: usize) {
    COUNTS.with_borrow_mut(|counts| counts[what] += 1);
}

pub(super) struct LanesWorld {
    rng: Rng,
    now: Time,
    origin: Origin,
    ends: [LanesEnd; 2],
    pairs: [PeerPair; PAIRS],
    next_message: u64,
    /// The last message that each end has delivered, of each pair.
    delivered: [[u64; PAIRS]; 2],
    /// The delivered messages whose senders do not know it yet, and where they came to.
    unconfirmed: HashMap<u64, usize>,
    /// Ends give sessions up now and then.
    amnesia: bool,
    lost: u64,
}

fn start(pair: usize, lane: usize) -> SessionStart {
    SessionStart {
        name: key(pair, lane).to_bits(),
        remote: id(pair, lane),
        peer_grants_units: 4096,
        we_grant_units: 4096,
    }
}

impl LanesWorld {
    pub(super) fn new(seed: u64, amnesia: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let near = [0, 1 << 31][rng.u64(..2) as usize];
        let origin = Origin {
            sequence: u32::wrapping_sub(near, rng.u64(..20) as u32),
            ..Origin::default()
        };
        let choices = [LaneChoice::Auto, LaneChoice::Rc, LaneChoice::Ud];
        let mut end = || LanesEnd {
            life: PeerLanes::new(LanesConfig {
                choice: choices[rng.u64(..3) as usize],
                datagrams: true,
                requests_fit_datagrams: rng.u64(..2) == 0,
                policy: lane_policy::LanePolicyConfig {
                    messages: 8,
                    max_lanes: MAX_LANES,
                    idle: Duration::from_millis(100),
                    promotion_pause: Duration::from_millis(100),
                    ..lane_policy::LanePolicyConfig::default()
                },
            }),
            peers: Default::default(),
        };
        let ends = [end(), end()];
        Self {
            rng,
            now: Time(1),
            origin,
            ends,
            pairs: Default::default(),
            next_message: 1,
            delivered: [[0; PAIRS]; 2],
            unconfirmed: HashMap::new(),
            amnesia,
            lost: 0,
        }
    }

    pub(super) fn sent(&self) -> u64 {
        self.next_message - 1
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// One event, drawn.
    pub(super) fn step(&mut self) {
        let (at, pair) = (
            self.rng.u64(..2) as usize,
            self.rng.u64(..PAIRS as u64) as usize,
        );
        let Some(lane) = self.some_lane(pair) else {
            return match self.rng.u64(..8) {
                0 => self.submit(at, pair),
                _ => self.handshake(pair),
            };
        };
        match self.rng.u64(..128) {
            0..=1 => self.break_lane(at, pair, lane),
            2..=9 => self.handshake(pair),
            10..=17 => self.come_up(at, pair, lane),
            18..=23 => self.receive_end(at, pair, lane),
            24..=29 => self.drain(at, pair, lane),
            30..=35 => self.taken(at, pair, lane),
            36..=41 => self.may_send(at, pair, lane),
            42..=46 => self.repeat_resume(at, pair, lane),
            47..=52 => self.repeat(at, pair),
            53..=54 if self.is_lossy(pair, lane) => {
                let _ = next_packet(&mut self.pairs[pair], lane, at);
            }
            55..=64 => self.submit(at, pair),
            65 => self.close_idle(at),
            66 => {
                let removed = self.rng.u64(..2) == 0;
                self.set_removed(at, pair, removed);
            }
            67 => self.forget(at, pair),
            68 if self.amnesia && self.rng.u64(..8) == 0 => self.give_up(at, pair, lane),
            71..=74 => self.close_idle(at),
            69..=70 => self.now = self.now + Duration::from_millis(self.rng.u64(..60)),
            _ => self.arrive(at, pair, lane),
        }
    }

    /// One of the last lanes of a pair.
    fn some_lane(&mut self, pair: usize) -> Option<usize> {
        let count = self.pairs[pair].lanes.len() as u64;
        let back = self.rng.u64(..4).min(self.rng.u64(..4)) + 1;
        count
            .checked_sub(back.min(count).max(1))
            .map(|lane| lane as usize)
    }

    fn lane(&mut self, pair: usize, lane: usize) -> &mut SimLane {
        &mut self.pairs[pair].lanes[lane]
    }

    fn is_lossy(&self, pair: usize, lane: usize) -> bool {
        self.pairs[pair].lanes[lane].kind == LaneKind::Ud
    }

    /// An event of an end's lanes, and the actions that follow.
    fn event<R>(
        &mut self,
        at: usize,
        event: impl FnOnce(&mut PeerLanes, &mut EndFacts<'_>, Time) -> R,
    ) -> R {
        let LanesEnd { life, peers } = &mut self.ends[at];
        let pairs = &self.pairs;
        let result = event(life, &mut EndFacts { at, peers, pairs }, self.now);
        self.carry_out(at);
        result
    }

    fn carry_out(&mut self, at: usize) {
        loop {
            let LanesEnd { life, peers } = &mut self.ends[at];
            let pairs = &self.pairs;
            let Some(action) = life.next_action(&mut EndFacts { at, peers, pairs }, self.now)
            else {
                return;
            };
            match action {
                LaneAction::Order(order) => self.order(at, order),
                LaneAction::Settle(settlement) => self.settlement(at, settlement),
            }
        }
    }

    /// An event that ends no operation, and the orders that follow: nothing else does.
    fn order_event<R>(
        &mut self,
        at: usize,
        event: impl FnOnce(&mut OrderEvents<'_>, &mut EndFacts<'_>, Time) -> R,
    ) -> R {
        let LanesEnd { life, peers } = &mut self.ends[at];
        let pairs = &self.pairs;
        let mut facts = EndFacts { at, peers, pairs };
        let result = event(&mut life.orders(), &mut facts, self.now);
        loop {
            let LanesEnd { life, peers } = &mut self.ends[at];
            let pairs = &self.pairs;
            let Some(order) = life.next_order(&mut EndFacts { at, peers, pairs }, self.now) else {
                assert!(!life.has_actions(), "an order has ended operations");
                return result;
            };
            self.order(at, order);
        }
    }

    fn submit(&mut self, at: usize, pair: usize) {
        self.ends[at].peers[pair]
            .waiting
            .push_back(self.next_message);
        self.next_message += 1;
        if self.ends[at].peers[pair].on.is_some() {
            return self.send(at, pair);
        }
        self.order_event(at, |life, view, _| life.request_lane(pair as u32, view));
    }

    /// The handshake makes a lane if one was requested.
    fn handshake(&mut self, pair: usize) {
        let PeerPair {
            requested, last_up, ..
        } = &self.pairs[pair];
        let kind = match requested {
            [None, None] => return,
            [a, b] if [a, b].contains(&&Some(LaneKind::Rc)) => LaneKind::Rc,
            _ => LaneKind::Ud,
        };
        if self.pairs[pair].has_lane() {
            return;
        }
        let resumes = *last_up != [None; 2];
        if kind == LaneKind::Rc {
            if let Some(full) = (0..2).find(|&at| self.queue_pairs(at) >= MAX_LANES) {
                for at in 0..2 {
                    let peer = Some(pair as u32);
                    self.event(at, |life, view, now| {
                        life.no_room(peer, at == full, view, now)
                    });
                }
                return;
            }
        }
        if let Some(last) = self.pairs[pair].lanes.last_mut() {
            (0..2).for_each(|at| {
                last.notify(at);
            });
        }
        self.pairs[pair].lanes.push(SimLane::new(kind, resumes));
    }

    fn queue_pairs(&self, at: usize) -> usize {
        let lanes = self.pairs.iter().flat_map(|pair| &pair.lanes);
        let count = lanes.filter(|lane| lane.has_queue_pair(at)).count();
        assert!(count <= MAX_LANES);
        count
    }

    fn come_up(&mut self, at: usize, pair: usize, lane: usize) {
        let this = &self.pairs[pair].lanes[lane];
        if this.state[at] != SimLaneState::Absent || this.dropped != [None; 2] {
            return;
        }
        // Word of the end of earlier lanes comes before.
        (0..lane).for_each(|before| self.receive_end(at, pair, before));
        let this = self.lane(pair, lane);
        this.state[at] = SimLaneState::Up;
        this.may_send[at] = this.state[1 - at] != SimLaneState::Absent;
        this.handshake_knows[at] = this.may_send[at];
        let up = LaneUp {
            lane: key(pair, lane),
            kind: this.kind,
            remote_qpn: 0,
            peer: PeerKey {
                place: [0; crate::PLACE_BYTES],
                incarnation: 0,
            },
            remote_session: id(pair, lane),
            name: start(pair, lane).name,
            resumes: this.resumes,
            remote_shm_name: 0,
            remote_limits: LaneLimits::default(),
            local_quota_units: 4096,
            may_send: this.may_send[at],
        };
        // A request that fails with its lane ends the session, so there are none without amnesia.
        if up.may_send || !self.amnesia {
            self.pairs[pair].requested[at] = None;
        }
        self.pairs[pair].last_up[at] = Some(lane);
        self.event(at, |life, view, now| {
            life.lane_up(pair as u32, &up, view, now)
        });
    }

    /// The handshake learns that the other end has dropped a lane, and notifies the owner.
    fn receive_end(&mut self, at: usize, pair: usize, lane: usize) {
        let this = self.lane(pair, lane);
        this.notify(at);
        if let Some(reason) = this.down[at].take() {
            if this.state[at] != SimLaneState::Gone {
                let peer = Some(pair as u32);
                self.event(at, |life, _, now| {
                    life.lane_down(key(pair, lane), peer, reason, now);
                });
            }
        }
        if let Some(reason) = self.pairs[pair].failed[at].take() {
            self.event(at, |life, _, now| {
                life.connect_failed(pair as u32, reason, now)
            });
            if !self.ends[at].life.is_linked(pair as u32) {
                self.fail_waiting(at, pair);
            }
        }
    }

    /// The messages that wait for a lane fail.
    fn fail_waiting(&mut self, at: usize, pair: usize) {
        let waiting = std::mem::take(&mut self.ends[at].peers[pair].waiting);
        assert!(self.amnesia || waiting.is_empty(), "{waiting:?} lost");
        self.lost += waiting.len() as u64;
    }

    fn break_lane(&mut self, at: usize, pair: usize, lane: usize) {
        if self.lane(pair, lane).state[at] == SimLaneState::Up {
            count(0);
            // A completion reports it, behind all packets that have arrived; or an event does.
            if self.lane(pair, lane).kind == LaneKind::Rc && self.rng.bool() {
                let arrived = self.rng.usize(..4);
                self.lane(pair, lane).close(at, arrived);
                return self
                    .order_event(at, |life, _, now| life.failed(id(pair, lane), BROKEN, now));
            }
            self.event(at, |life, view, now| {
                life.broke(id(pair, lane), BROKEN, view, now)
            });
        }
    }

    /// An end gives its session up, with all that was under way.
    fn give_up(&mut self, at: usize, pair: usize, lane: usize) {
        if self.lane(pair, lane).state[at] == SimLaneState::Up {
            let end = protocol_broken("given up");
            self.event(at, |life, view, now| {
                life.broke(id(pair, lane), end, view, now)
            });
        }
    }

    /// All requests posted on an RC lane are flushed.
    fn drain(&mut self, at: usize, pair: usize, lane: usize) {
        let this = &self.pairs[pair].lanes[lane];
        if this.kind == LaneKind::Rc && this.state[at] == SimLaneState::Failed {
            self.lane(pair, lane).drained[at] = true;
            self.event(at, |life, view, _| life.drained(key(pair, lane), view));
        }
    }

    fn taken(&mut self, at: usize, pair: usize, lane: usize) {
        if !self.lane(pair, lane).take_all[at] {
            return;
        }
        for _ in 0..self.rng.u64(..4) {
            self.arrive(at, pair, lane);
        }
        let this = self.lane(pair, lane);
        this.take_all[at] = false;
        if this.state[at] != SimLaneState::Gone {
            self.event(at, |life, view, now| life.taken(key(pair, lane), view, now));
        }
    }

    fn may_send(&mut self, at: usize, pair: usize, lane: usize) {
        let this = self.lane(pair, lane);
        if this.state[at] == SimLaneState::Up && this.state[1 - at] != SimLaneState::Absent {
            (this.may_send[at], this.handshake_knows[at]) = (true, true);
            self.has_lane_that_sends(at, pair, lane);
            self.event(at, |life, view, _| life.peer_is_up(id(pair, lane), view));
            self.send(at, pair);
        }
    }

    /// An end may send on a lane. If its handshake still has the lane, no request is left.
    fn has_lane_that_sends(&mut self, at: usize, pair: usize, lane: usize) {
        if self.lane(pair, lane).dropped[at].is_none() {
            self.pairs[pair].requested[at] = None;
        }
    }

    fn repeat_resume(&mut self, at: usize, pair: usize, lane: usize) {
        let this = self.lane(pair, lane);
        if this.repeats[at] && this.state[at] == SimLaneState::Up {
            self.event(at, |life, _, _| life.resume_is_due(id(pair, lane)));
        }
    }

    fn close_idle(&mut self, at: usize) {
        self.event(at, |life, view, now| {
            life.look_at_use(view, now);
            life.close_idle(view);
        });
    }

    fn set_removed(&mut self, at: usize, pair: usize, removed: bool) {
        // The owner fails the messages that wait for a removed peer.
        if removed && !self.amnesia && !self.ends[at].peers[pair].waiting.is_empty() {
            return;
        }
        self.event(at, |life, view, now| match removed {
            true => life.removed(pair as u32, view, now),
            false => life.inserted(pair as u32),
        });
    }

    /// A session at rest is forgotten: all that either end said was confirmed, and neither has a
    /// lane.
    fn forget(&mut self, at: usize, pair: usize) {
        let is_over = |end: &LanesEnd| {
            let peer = &end.peers[pair];
            peer.kept.is_empty()
                && peer.waiting.is_empty()
                && peer.older.is_empty()
                && !end.life.is_linked(pair as u32)
        };
        if !self.ends.iter().all(is_over) || self.pairs[pair].has_lane() {
            return;
        }
        self.order_event(at, |life, _, _| life.rest(pair as u32));
        if let Some(lane) = self.ends[at].life.forget(pair as u32) {
            self.session_ended(at, pair, lane);
        }
        self.ends[at].peers[pair] = SimPeer::default();
    }

    fn post(&mut self, at: usize, pair: usize, lane: usize, packet: LanePacket) {
        let lane = self.lane(pair, lane);
        if lane.closed == [false; 2] {
            lane.to[1 - at].push_back(packet);
        }
    }

    fn send(&mut self, at: usize, pair: usize) {
        while let Some(lane) = self.ends[at].peers[pair].on {
            let this = &self.pairs[pair].lanes[lane];
            let is_ud = this.kind == LaneKind::Ud;
            if this.state[at] != SimLaneState::Up || !this.may_send[at] {
                return;
            }
            let peer = &mut self.ends[at].peers[pair];
            if is_ud && (peer.waits_for_rc() || this.outgrown[at]) {
                count(1);
                self.order_event(at, |life, view, _| life.promote(id(pair, lane), view));
                return;
            }
            let (Some(session), Some(message)) = (&mut peer.session, peer.waiting.pop_front())
            else {
                return;
            };
            let sequence = session.stamp().unwrap().sequence;
            peer.kept.push_back((sequence, message));
            self.post(at, pair, lane, LanePacket::Data { sequence, message });
            let now = self.now;
            if is_ud && self.ends[at].life.message(pair as u32, 8, now) {
                let promotes = self.order_event(at, |life, view, now| {
                    life.has_traffic(pair as u32, view, now)
                });
                self.lane(pair, lane).outgrown[at] |= promotes;
            }
        }
    }

    fn repeat(&mut self, at: usize, pair: usize) {
        if let Some(lane) = self.ends[at].peers[pair].on {
            let this = &self.pairs[pair].lanes[lane];
            if this.kind == LaneKind::Ud && this.state[at] == SimLaneState::Up && this.may_send[at]
            {
                self.replay(at, pair, lane);
            }
        }
    }

    fn replay(&mut self, at: usize, pair: usize, lane: usize) {
        for (sequence, message) in self.ends[at].peers[pair].kept.clone() {
            self.post(at, pair, lane, LanePacket::Data { sequence, message });
        }
    }

    fn arrive(&mut self, at: usize, pair: usize, lane: usize) {
        let Some(packet) = next_packet(&mut self.pairs[pair], lane, at) else {
            return;
        };
        let this = &mut self.pairs[pair].lanes[lane];
        let (carries, kind) = (this.carries[at], this.kind);
        let is_taken = carries || matches!(packet, LanePacket::Resume(_));
        let is_news = is_taken && !std::mem::replace(&mut this.may_send[at], true);
        if carries && !std::mem::replace(&mut this.handshake_knows[at], true) {
            self.has_lane_that_sends(at, pair, lane);
        }
        if carries && is_news {
            self.send(at, pair);
        }
        match packet {
            LanePacket::Resume(received) if !carries => {
                self.event(at, |life, view, _| {
                    life.resume_arrived(id(pair, lane), received, view)
                });
            }
            LanePacket::Resume(_) => self.answer(at, pair, lane),
            _ if !carries => assert_eq!(kind, LaneKind::Ud, "it is lost for good"),
            LanePacket::Data { sequence, message } => {
                self.deliver((at, pair, lane), sequence, message)
            }
            LanePacket::Ack { expected } => {
                let (session, _) = self.ends[at].peers[pair].carried(lane);
                let confirmed = session.confirm(expected).unwrap();
                self.arrived((at, pair, lane), confirmed);
            }
        }
    }

    /// The other side may lack our Resume: sends it again, with the current session.
    fn answer(&mut self, at: usize, pair: usize, lane: usize) {
        let (session, _) = self.ends[at].peers[pair].carried(lane);
        let (held, expected) = (session.held(), session.expected());
        self.post(
            at,
            pair,
            lane,
            LanePacket::Resume(ResumeState { held, expected }),
        );
    }

    fn deliver(&mut self, (at, pair, lane): (usize, usize, usize), sequence: u32, message: u64) {
        let peer = &mut self.ends[at].peers[pair];
        let (session, _) = peer.carried(lane);
        let is_next = session.accept(sequence) == Accept::Deliver;
        let expected = session.expected();
        if is_next {
            // The peer has given an older session up: its messages may come after newer ones.
            let older = peer.older.iter_mut().find(|older| older.lane == lane);
            let last = older.map_or(&mut self.delivered[at][pair], |older| &mut older.delivered);
            assert!(*last < message, "{message} is out of order, or twice there");
            *last = message;
            self.unconfirmed.insert(message, at);
        }
        self.post(at, pair, lane, LanePacket::Ack { expected });
    }

    /// The oldest messages of an end are said to have arrived: so they have.
    fn arrived(&mut self, (at, pair, lane): (usize, usize, usize), count: u32) {
        let (_, kept) = self.ends[at].peers[pair].carried(lane);
        for (_, message) in kept.drain(..count as usize) {
            let to = self.unconfirmed.remove(&message);
            assert_eq!(to, Some(1 - at), "message {message}");
        }
    }
}

mod actions;
mod quiet;
