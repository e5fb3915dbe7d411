//! An end: its lanes' life, and the sessions with its peers as lists.

use std::collections::VecDeque;

use super::link::{LanePacket, PeerPair, SimLaneState, key, place};
use super::world::{LARGE, PAIRS};
use crate::handshake::LaneKey;
use crate::lanes::{Demand, Facts, PeerLanes, SessionFacts};
use crate::session::Session;

/// The state of an end for one peer.
#[derive(Default)]
pub(super) struct SimPeer {
    pub(super) session: Option<Session>,
    /// The lane that carries it.
    pub(super) on: Option<usize>,
    /// Sent and not confirmed, with their numbers, oldest first.
    pub(super) kept: VecDeque<(u32, u64)>,
    /// Not sent yet.
    pub(super) waiting: VecDeque<u64>,
    pub(super) lent: bool,
    /// Sessions on older lanes, beside which another session has begun.
    pub(super) older: Vec<OlderSession>,
}

/// A session on an older lane.
pub(super) struct OlderSession {
    pub(super) lane: usize,
    pub(super) session: Session,
    pub(super) kept: VecDeque<(u32, u64)>,
    /// The last message that it has delivered.
    pub(super) delivered: u64,
}

pub(super) struct LanesEnd {
    pub(super) life: PeerLanes,
    pub(super) peers: [SimPeer; PAIRS],
}

impl SimPeer {
    /// Whether only an RC lane carries a message that is under way.
    pub(super) fn outgrows(&self) -> bool {
        outgrow(&self.kept)
    }

    /// The session that a lane carries, and its messages that are not confirmed.
    pub(super) fn carried(&mut self, lane: usize) -> (&mut Session, &mut VecDeque<(u32, u64)>) {
        let older = self.older.iter_mut().find(|older| older.lane == lane);
        match older {
            Some(older) => (&mut older.session, &mut older.kept),
            None => (self.session.as_mut().unwrap(), &mut self.kept),
        }
    }

    pub(super) fn waits_for_rc(&self) -> bool {
        self.outgrows()
            || self
                .waiting
                .front()
                .is_some_and(|message| message % LARGE == 0)
    }

    fn facts(&self) -> SessionFacts {
        let session = self.session.as_ref();
        session.map_or_else(SessionFacts::default, |session| {
            facts_of(session, &self.kept)
        })
    }
}

fn facts_of(session: &Session, kept: &VecDeque<(u32, u64)>) -> SessionFacts {
    SessionFacts {
        is_unused: session.is_unused(),
        is_settled: kept.is_empty(),
        sent: session.sent(),
        expected: session.expected(),
        confirmed: session.oldest_unconfirmed(),
        moved: 0,
    }
}

fn outgrow(kept: &VecDeque<(u32, u64)>) -> bool {
    kept.iter().any(|(_, message)| message % LARGE == 0)
}

/// The facts about an end that [`PeerLanes`](crate::lanes::PeerLanes) reads.
pub(super) struct EndFacts<'w> {
    pub(super) at: usize,
    pub(super) peers: &'w [SimPeer; PAIRS],
    pub(super) pairs: &'w [PeerPair; PAIRS],
}

impl EndFacts<'_> {
    /// The session that a lane carries, its messages that are not confirmed, and its pair.
    fn carrier(&self, lane: LaneKey) -> (&Session, &VecDeque<(u32, u64)>, usize) {
        let (pair, at) = (lane.to_bits() as u32 as usize % PAIRS, place(lane));
        let peer = &self.peers[pair];
        if let Some(older) = peer.older.iter().find(|older| older.lane == at) {
            return (&older.session, &older.kept, pair);
        }
        assert_eq!(peer.on, Some(at), "{lane:?} carries nothing");
        (peer.session.as_ref().unwrap(), &peer.kept, pair)
    }
}

impl Facts for EndFacts<'_> {
    fn waits(&mut self, peer: u32) -> bool {
        !self.peers[peer as usize].waiting.is_empty()
    }

    fn demand(&mut self, peer: u32) -> Demand {
        let peer = &self.peers[peer as usize];
        Demand {
            by_session: peer.outgrows(),
            by_message: peer.waits_for_rc(),
        }
    }

    fn carried(&mut self, lane: LaneKey) -> SessionFacts {
        let (session, kept, _) = self.carrier(lane);
        facts_of(session, kept)
    }

    fn parked(&mut self, peer: u32) -> SessionFacts {
        let peer = &self.peers[peer as usize];
        assert!(peer.on.is_none() && peer.session.is_some());
        peer.facts()
    }

    fn used(&mut self, lane: LaneKey) -> (u32, u32) {
        let facts = self.carried(lane);
        (facts.sent, facts.expected)
    }

    fn is_quiet(&mut self, lane: LaneKey) -> bool {
        !outgrow(self.carrier(lane).1)
    }

    fn is_empty(&mut self, lane: LaneKey) -> bool {
        let (_, kept, pair) = self.carrier(lane);
        let lane = &self.pairs[pair].lanes[place(lane)];
        lane.state[self.at] == SimLaneState::Up && lane.may_send[self.at] && kept.is_empty()
    }

    fn may_send(&mut self, lane: LaneKey) -> bool {
        let pair = lane.to_bits() as u32 as usize % PAIRS;
        self.pairs[pair].lanes[place(lane)].may_send[self.at]
    }
}

/// The lane that an end is at, with a packet for it.
pub(super) fn next_packet(pair: &mut PeerPair, lane: usize, at: usize) -> Option<LanePacket> {
    let lane = pair.lanes.get_mut(lane)?;
    match lane.state[at] {
        SimLaneState::Up => lane.to[at].pop_front(),
        _ => None,
    }
}

/// The lane's session ID, as the life of lanes names it.
pub(super) fn id(pair: usize, lane: usize) -> crate::wire::SessionId {
    key(pair, lane).session()
}
