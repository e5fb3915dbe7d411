//! Sessions that move from datagrams to an RC lane and back.
//!
//! The session leaves its lane and is taken up again on the next one, as after a lane that broke
//! (`resume.rs`): so nothing is lost and nothing comes twice, whatever was under way.

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::lane_policy::{Admission, Need};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::control::LaneKind;
use ferrofabric_protocol::wire::data::MAX_RTS_BYTES;
use ferrofabric_protocol::{PeerKey, Time, datagram_lane};

use ferrofabric_contracts::config::LaneChoice;

use super::super::RdmTransport;
use super::super::lane_ends::CHANGE;
use super::super::poster::TELLS;
use crate::connect::ToService;
use crate::session::{AfterLane, LaneEnd, Link, Pending, SessionState};

impl RdmTransport {
    /// The kind of lane that a peer is to have next.
    pub(in super::super) fn kind_for(&mut self, at: u32) -> LaneKind {
        if !self.has_datagrams() {
            return LaneKind::Rc;
        }
        let packet_bytes = self.ud.packet_bytes();
        let eager_bytes = self.poster.tuning.eager_bytes;
        let peer = self.peers.at(at);
        let outgrown =
            |pending: &Pending| pending.len() > eager_bytes || pending.op.flags.intersects(TELLS);
        let waits = peer.pending.front().is_some_and(outgrown);
        let room = !peer.falls_back && self.policy.has_room();
        // Word of a large message goes by datagrams, too, if they are not all too short.
        let must = (peer.parked.as_ref()).is_some_and(|s| s.outgrows(packet_bytes))
            || waits && (room || packet_bytes < MAX_RTS_BYTES);
        if must {
            return LaneKind::Rc;
        }
        let rc = match self.poster.tuning.lane {
            LaneChoice::Ud => false,
            LaneChoice::Rc => room,
            LaneChoice::Auto => peer.lost_rc && !peer.falls_back,
        };
        match rc {
            true => LaneKind::Rc,
            false => LaneKind::Ud,
        }
    }

    /// A message goes by datagrams: enough of them promote the peer.
    pub(super) fn count_message(&mut self, session: SessionId, bytes: usize, now: Time) {
        if self.poster.tuning.lane == LaneChoice::Ud {
            return;
        }
        let Some(lane) = self.ud.lanes.of(session) else {
            return;
        };
        let peer = lane.peer;
        if self.policy.message(peer, bytes as u64, now) {
            self.look_at_use(now);
            let (lanes, peers) = (&mut self.lanes, &mut self.peers);
            let admission =
                (self.policy).admit(peer, Need::Traffic, now, |at| is_quiet(lanes, peers, at));
            match admission {
                Admission::Full => return,
                Admission::Make => {}
                Admission::Recycle(victim) => self.recycle(victim),
            }
            self.outgrow(session);
        }
    }

    /// A session is to have an RC lane.
    pub(super) fn outgrow(&mut self, session: SessionId) {
        if let Some(lane) = self.ud.lanes.of(session) {
            lane.outgrown = true;
            self.list(session);
        }
    }

    /// Moves a session from datagrams to an RC lane.
    #[cold]
    pub(super) fn promote<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> usize {
        if self.is_ending(session) {
            // How it has ended decides what becomes of the session: the peer may have said goodbye.
            return 0;
        }
        let Some((peer, key, state)) = self.leave_ud_lane(session) else {
            return 0;
        };
        self.poster.counters.lanes.promotions += 1;
        if self.newer_lane(peer).is_some() {
            // What is sent on the next lane is chosen by what waits.
            self.session_left_lane(peer, key, state, CHANGE, owner);
            return 1;
        }
        // The service thread still has the lane, and makes no other beside it until it learns that
        // the engine has left this one. Of a peer that we had no quarrel with silence means
        // nothing.
        let patience = self.resuming.patience().filter(|_| !state.is_unused());
        let at = self.peers.at(peer);
        at.parked = Some(Box::new(state));
        at.last_lane = Some(key);
        at.link = Link::Connecting;
        at.falls_back = false;
        let request = ToService::Promote {
            peer: at.key,
            lane: key,
            patience,
        };
        self.service.request(request);
        1
    }

    /// Takes a session off its lane of the UD kind.
    pub(in super::super) fn leave_ud_lane(
        &mut self,
        session: SessionId,
    ) -> Option<(u32, LaneKey, SessionState)> {
        self.say_last_word(session);
        let mut lane = self.ud.lanes.remove(session)?;
        self.peers.end_lane(lane.peer);
        self.ud.deadlines.set(session, None);
        let slots = lane.window.release(&lane.session.numbers);
        for (slot, _) in slots {
            self.ud.held_slots -= 1;
            self.receives.give_back(slot);
        }
        Some((lane.peer, lane.key, lane.session))
    }

    /// A lane of the UD kind is no more.
    #[cold]
    pub(in super::super) fn ud_lane_down<O: Owner>(
        &mut self,
        session: SessionId,
        end: LaneEnd,
        owner: &mut O,
    ) {
        let Some((peer, key, mut state)) = self.leave_ud_lane(session) else {
            return;
        };
        state.broken_by = (end.errno, end.why, end.status);
        // The peer may only have moved to an RC lane.
        let end = match end.then {
            AfterLane::Resume => LaneEnd {
                then: AfterLane::Change,
                ..end
            },
            _ => end,
        };
        self.session_left_lane(peer, key, state, end, owner);
    }

    /// There was no room for an RC lane.
    #[cold]
    pub(in super::super) fn no_room(&mut self, key: PeerKey, here: bool) {
        let now = self.ud.now();
        if here {
            self.look_at_use(now);
            let (lanes, peers) = (&mut self.lanes, &mut self.peers);
            let victim = (self.policy).make_room(now, |at| is_quiet(lanes, peers, at));
            if let Some(victim) = victim {
                self.recycle(victim);
            }
        }
        let Some(at) = self.peers.find(&key) else {
            return;
        };
        if self.peers.at(at).link != Link::Connecting {
            return;
        }
        self.peers.at(at).falls_back = true;
        if self.kind_for(at) == LaneKind::Ud {
            self.policy.down(at, now);
            self.connect(at);
        }
    }

    /// Gives up a peer's RC lane.
    fn recycle(&mut self, peer: u32) {
        let Link::Up(session) = self.peers.at(peer).link else {
            return;
        };
        let Some(lane) = self.lanes.of(session).filter(|lane| lane.end.is_none()) else {
            return;
        };
        let key = lane.key;
        self.poster.counters.lanes.recycled += 1;
        self.peers.at(peer).falls_back = true;
        self.service.request(ToService::Recycled(key));
        self.give_up(session, CHANGE);
    }

    /// Tells the policy which lanes were used since it was told last.
    pub(in super::super) fn look_at_use(&mut self, now: Time) {
        for lane in self.lanes.iter_mut() {
            let used = (lane.queue.next_number(), lane.session.numbers.expected());
            if used != lane.used && lane.end.is_none() {
                lane.used = used;
                self.policy.used(lane.peer, now);
            }
        }
    }

    /// Whether lanes of the UD kind can be had.
    pub(in super::super) fn has_datagrams(&self) -> bool {
        self.ud.queue_pair.is_some()
    }

    /// What the lanes of the UD kind have done together.
    pub(in super::super) fn datagram_counters(&self) -> datagram_lane::Counters {
        self.ud.shared.counters
    }
}

fn is_quiet(lanes: &mut crate::session::Lanes, peers: &mut crate::session::Peers, at: u32) -> bool {
    let peer = peers.at(at);
    let Link::Up(session) = peer.link else {
        return false;
    };
    peer.pending.is_empty() && lanes.of(session).is_some_and(|lane| lane.is_quiet())
}
