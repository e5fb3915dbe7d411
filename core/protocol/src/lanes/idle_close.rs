//! Idle close: the lanes of peers that were removed from the address vector, or were never in it,
//! go once nothing happens on them.
//!
//! The session stays, and rests: nothing is lost that is on its way, and nothing comes twice. The
//! side that has something to say next goes on with it over another lane. A removed peer that talks
//! to us keeps its lane as long as it does, and longer each time that it comes back.

use super::end::REST;
use super::{Facts, LaneEntry, LaneOrder, PeerLanes, PeerLink, UNKNOWN};
use crate::Time;
use crate::handshake::LaneKey;
use crate::wire::SessionId;
use crate::wire::control::LaneKind;

/// A lane closes after one check without a new packet. The number of checks doubles each time that
/// its peer comes back, at most this number of times. There is a check each second.
const MAX_DOUBLINGS: u32 = 6;

/// Observations of a removed peer's lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleWatch {
    /// Packets that the peer was sent, and that were taken from it; `None`: it was not looked at.
    seen: Option<(u32, u32)>,
    /// Looks in a row that found no other.
    quiet: u32,
    /// It was closed: its end follows.
    is_closed: bool,
}

impl PeerLanes {
    /// A peer was removed from the address vector. Replies to it may still wait for a lane.
    pub fn removed(&mut self, peer: u32, facts: &mut impl Facts, now: Time) {
        let entry = self.peer(peer);
        entry.removed = true;
        match entry.link {
            PeerLink::Idle => self.became_idle(peer, now),
            PeerLink::Connecting if entry.goes_on() => {}
            // The attempt gets a limit.
            PeerLink::Connecting if facts.waits(peer) => self.connect(peer, facts.demand(peer)),
            PeerLink::Connecting => {
                entry.link = PeerLink::Idle;
                self.act(LaneOrder::Cancel { peer });
                self.became_idle(peer, now);
            }
            PeerLink::Resuming(_) => {}
            PeerLink::Up(id) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.watch = IdleWatch::default();
                }
            }
        }
    }

    /// Closes the lanes of removed peers on which nothing has happened for long enough. To be
    /// called each second.
    pub fn close_idle(&mut self, facts: &mut impl Facts) {
        let of_removed = |(id, lane): &(&SessionId, &LaneEntry)| {
            let peer = self.peers.get(lane.peer as usize).unwrap_or(&UNKNOWN);
            peer.removed && peer.link == PeerLink::Up(**id) && !lane.watch.is_closed
        };
        let lanes = self.lanes.iter().filter(of_removed);
        for id in lanes.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.close_if_idle(id, facts);
        }
    }

    /// Looks at a removed peer's lane, and closes it if it is idle.
    fn close_if_idle(&mut self, id: SessionId, facts: &mut impl Facts) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let session = facts.carried(lane.key);
        let now = Some((session.sent, session.expected));
        let watch = &mut lane.watch;
        watch.quiet = if now == watch.seen {
            watch.quiet + 1
        } else {
            0
        };
        watch.seen = now;
        let LaneEntry {
            key, kind, peer, ..
        } = *lane;
        let quiet = watch.quiet;
        let is_idle = quiet >= 1 << self.at(peer).returns.min(MAX_DOUBLINGS)
            && session.is_settled
            && !facts.waits(peer)
            && facts.is_empty(key);
        if is_idle {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.watch.is_closed = true;
            }
            self.close(id, key, kind, facts);
        }
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
