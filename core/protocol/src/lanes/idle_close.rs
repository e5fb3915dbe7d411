//! Idle close: the lanes of peers that were removed from the address vector, or were never in it,
//! go once nothing happens on them.
//!
//! The session stays, and rests: nothing is lost that is on its way, and nothing comes twice. The
//! side that has something to say next goes on with it over another lane. A removed peer that talks
//! to us keeps its lane as long as it does, and longer each time that it comes back.

use std::collections::BTreeMap;

use super::end::REST;
use super::{Facts, LaneOrder, PeerLanes, PeerLink};
use crate::Time;
use crate::handshake::LaneKey;
use crate::wire::SessionId;
use crate::wire::control::LaneKind;

/// A lane closes after one check without a new packet. The number of checks doubles each time that
/// its peer comes back, at most this number of times. There is a check each second.
const MAX_DOUBLINGS: u32 = 6;

/// The removed peers that have a lane, or will have one.
#[derive(Debug, Default)]
pub(super) struct IdleClose {
    watched: BTreeMap<u32, IdleWatch>,
}

impl IdleClose {
    pub(super) fn forget(&mut self, peer: u32) {
        self.watched.remove(&peer);
    }
}

/// Observations of a removed peer's lane.
#[derive(Clone, Copy, Debug, Default)]
struct IdleWatch {
    /// Packets that the peer was sent, and that were taken from it; `None`: it was not looked at.
    seen: Option<(u32, u32)>,
    /// Looks in a row that found no other.
    quiet: u32,
}

impl PeerLanes {
    /// A peer was removed from the address vector. Replies to it may still wait for a lane.
    pub fn removed(&mut self, peer: u32, facts: &mut impl Facts, now: Time) {
        let entry = self.peer(peer);
        entry.removed = true;
        match entry.link {
            PeerLink::Idle => self.became_idle(peer, now),
            PeerLink::Connecting if entry.goes_on() => self.watch_if_removed(peer),
            PeerLink::Connecting if facts.waits(peer) => {
                // The attempt gets a limit.
                self.connect(peer, facts.demand(peer));
                self.watch_if_removed(peer);
            }
            PeerLink::Connecting => {
                entry.link = PeerLink::Idle;
                self.act(LaneOrder::Cancel { peer });
                self.became_idle(peer, now);
            }
            _ => self.watch_if_removed(peer),
        }
    }

    /// A peer has a lane, or will have one: if it was removed, the lane is not to stay for ever.
    pub(super) fn watch_if_removed(&mut self, peer: u32) {
        if self.at(peer).removed {
            self.idle_close.watched.insert(peer, IdleWatch::default());
        }
    }

    /// Closes the lanes of removed peers on which nothing has happened for long enough. To be
    /// called each second.
    pub fn close_idle(&mut self, facts: &mut impl Facts) {
        for (peer, watch) in std::mem::take(&mut self.idle_close.watched) {
            if let Some(watch) = self.close_if_idle(peer, watch, facts) {
                self.idle_close.watched.insert(peer, watch);
            }
        }
    }

    /// Looks at a removed peer's lane, and closes it if it is idle. Returns what was seen if the
    /// peer is to be looked at again.
    fn close_if_idle(
        &mut self,
        peer: u32,
        mut watch: IdleWatch,
        facts: &mut impl Facts,
    ) -> Option<IdleWatch> {
        let entry = self.at(peer);
        let id = match entry.link {
            PeerLink::Up(id) if entry.removed => id,
            PeerLink::Connecting | PeerLink::Resuming(_) if entry.removed => return Some(watch),
            // It was inserted again, or has no lane: the next one is watched from its beginning.
            _ => return None,
        };
        let lane = *self.lanes.get(&id)?;
        let session = facts.carried(lane.key);
        let now = Some((session.sent, session.expected));
        watch.quiet = if now == watch.seen {
            watch.quiet + 1
        } else {
            0
        };
        watch.seen = now;
        let is_idle = watch.quiet >= 1 << entry.returns.min(MAX_DOUBLINGS)
            && session.is_settled
            && !facts.waits(peer)
            && facts.is_empty(lane.key);
        if !is_idle {
            return Some(watch);
        }
        self.close(id, lane.key, lane.kind, facts);
        None
    }

    /// Closes a lane in good order, and notifies the peer.
    fn close(&mut self, id: SessionId, lane: LaneKey, kind: LaneKind, facts: &mut impl Facts) {
        // The queue pair of an RC lane goes after the peer was notified: a packet from the peer
        // before that would break its lane, and make it reconnect.
        self.act(LaneOrder::ReportLeft { lane });
        if kind == LaneKind::Ud {
            self.datagrams_down(id, REST, facts);
        }
    }
}
