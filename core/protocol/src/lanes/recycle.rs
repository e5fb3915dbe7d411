//! Promotion from datagrams to an RC lane, and recycling of RC lanes at the limit.
//!
//! The session leaves its lane and is resumed on the next one, as after a lane that broke. So no
//! packet under way is lost, and none comes twice.

use std::collections::BTreeMap;

use ferrofabric_contracts::config::LaneChoice;

use super::end::CHANGE;
use super::{
    Facts, LaneEntry, LaneOrder, LaneStage, OrderEvents, Parked, PeerEntry, PeerLanes, PeerLink,
};
use crate::Time;
use crate::lane_policy::{LaneAdmission, Need};
use crate::wire::SessionId;
use crate::wire::control::LaneKind;

impl PeerLanes {
    /// Whether traffic promotes peers: else messages need not be counted.
    #[inline]
    #[must_use]
    pub fn counts_traffic(&self) -> bool {
        self.config.choice != LaneChoice::Ud
    }

    /// A message of `bytes` goes to a peer by datagrams. Returns whether the peer has traffic
    /// enough for an RC lane: then call [`OrderEvents::has_traffic`].
    #[inline]
    pub fn message(&mut self, peer: u32, bytes: u64, now: Time) -> bool {
        self.counts_traffic() && self.policy.message(peer, bytes, now)
    }

    /// There was no room for an RC lane, here or at the peer.
    pub fn no_room(&mut self, peer: Option<u32>, here: bool, facts: &mut impl Facts, now: Time) {
        if here {
            self.look_at_use(facts, now);
            let Self {
                policy,
                peers,
                lanes,
                ..
            } = self;
            let victim = policy.make_room(now, |at| is_quiet(peers, lanes, at, facts));
            if let Some(victim) = victim {
                self.recycle(victim, now);
            }
        }
        let Some(peer) = peer.filter(|&peer| self.at(peer).link == PeerLink::Connecting) else {
            return;
        };
        self.peer(peer).falls_back = true;
        let demand = facts.demand(peer);
        if self.kind_for(peer, demand) == LaneKind::Ud {
            self.policy.down(peer, now);
            self.connect(peer, demand);
        }
    }

    /// Gives up a peer's RC lane.
    fn recycle(&mut self, peer: u32, now: Time) {
        let Some((id, lane)) = up(&self.peers, &self.lanes, peer) else {
            return;
        };
        if lane.kind != LaneKind::Rc || !matches!(lane.stage, LaneStage::Carries(_)) {
            return;
        }
        let lane = lane.key;
        self.peer(peer).falls_back = true;
        self.act(LaneOrder::ReportRecycled { lane });
        self.give_up(id, CHANGE, now);
    }

    /// Reports to the policy which lanes were used since the last report.
    pub fn look_at_use(&mut self, facts: &mut impl Facts, now: Time) {
        for lane in self.lanes.values_mut() {
            if lane.kind != LaneKind::Rc || !matches!(lane.stage, LaneStage::Carries(_)) {
                continue;
            }
            let used = facts.used(lane.key);
            if used != lane.used {
                lane.used = used;
                self.policy.used(lane.peer, now);
            }
        }
    }
}

impl OrderEvents<'_> {
    /// A peer has traffic enough for an RC lane. Says whether there is room for one, which may
    /// recycle another: then call [`OrderEvents::promote`] as soon as its session can leave.
    pub fn has_traffic(&mut self, peer: u32, facts: &mut impl Facts, now: Time) -> bool {
        self.0.look_at_use(facts, now);
        let PeerLanes {
            policy,
            peers,
            lanes,
            ..
        } = &mut *self.0;
        let is_quiet = |at| is_quiet(peers, lanes, at, facts);
        match policy.admit(peer, Need::Traffic, now, is_quiet) {
            LaneAdmission::Full => return false,
            LaneAdmission::Make => {}
            LaneAdmission::Recycle(victim) => self.0.recycle(victim, now),
        }
        true
    }

    /// Has the session on a lane of the UD kind leave for an RC lane. Says whether it does: a lane
    /// that is down already has its end decide what becomes of the session.
    pub fn promote(&mut self, id: SessionId, facts: &mut impl Facts) -> bool {
        let life = &mut *self.0;
        let Some(&LaneEntry {
            key,
            peer,
            stage,
            kind,
            down,
            ..
        }) = life.lanes.get(&id)
        else {
            return false;
        };
        let (LaneStage::Carries(session), LaneKind::Ud, None) = (stage, kind, down) else {
            return false;
        };
        life.lanes.remove(&id);
        let session_facts = facts.carried(key);
        // The handshake still has the lane, and makes no other beside it until it learns that the
        // session has left this one. For an unused session, silence of the peer means nothing.
        let limited = !session_facts.is_unused;
        let entry = life.peer(peer);
        entry.parked = Some(Parked {
            session,
            is_unused: session_facts.is_unused,
            rests: false,
        });
        entry.last_lane = Some(key);
        entry.link = PeerLink::Connecting;
        entry.falls_back = false;
        life.act(LaneOrder::Park { peer, lane: key });
        life.act(LaneOrder::Promote {
            peer,
            lane: key,
            limited,
        });
        true
    }
}

fn up<'l>(
    peers: &[PeerEntry],
    lanes: &'l BTreeMap<SessionId, LaneEntry>,
    peer: u32,
) -> Option<(SessionId, &'l LaneEntry)> {
    let PeerLink::Up(id) = peers.get(peer as usize)?.link else {
        return None;
    };
    Some((id, lanes.get(&id)?))
}

/// Whether nothing is under way on a peer's RC lane that could not go on over datagrams, and
/// nothing waits for it.
fn is_quiet(
    peers: &[PeerEntry],
    lanes: &BTreeMap<SessionId, LaneEntry>,
    peer: u32,
    facts: &mut impl Facts,
) -> bool {
    let lane = up(peers, lanes, peer).filter(|(_, lane)| lane.kind == LaneKind::Rc);
    lane.is_some_and(|(_, lane)| !facts.waits(peer) && facts.is_quiet(lane.key))
}
