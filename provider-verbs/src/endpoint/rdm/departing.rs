//! Peers that were removed from the address vector, or were never in it: the connection goes, too,
//! once nothing happens on it.
//!
//! The session stays, and rests: nothing is lost that is on its way, and nothing comes twice.
//! Whoever has something to say next, we or the peer, goes on with it over another lane
//! (`resume.rs`). A removed peer that talks to us keeps its lane as long as it does, and longer
//! each time that it comes back.
//!
//! In the end the peer itself is forgotten, once nothing leads to it (`session/peers.rs`).

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;
use super::lane_ends::REST;
use crate::connect::ToService;
use crate::session::{Fate, Link};

/// Looks without anything new after which a lane goes, doubled each time that its peer comes back,
/// so many times at most. There is a look each second.
const MAX_DOUBLINGS: u32 = 6;

/// Sessions at rest that end in one call, at most: each costs a system call.
const FORGOTTEN_AT_ONCE: usize = 64;

/// What was seen of a removed peer's lane.
#[derive(Default)]
pub(super) struct Watch {
    /// Packets that the peer was sent, and that were taken from it; `None`: it was not looked at.
    seen: Option<(u32, u32)>,
    /// Looks in a row that found no other.
    quiet: u32,
}

impl RdmTransport {
    /// A peer was removed from the address vector.
    pub(super) fn depart(&mut self, peer: u32) {
        let at = self.peers.at(peer);
        at.removed = true;
        match at.link {
            Link::Idle => self.lies_idle(peer),
            Link::Connecting if !at.goes_on() => {
                at.link = Link::Idle;
                let request = ToService::Cancel(at.key);
                self.service.request(request);
                self.lies_idle(peer);
            }
            _ => self.watch_removed(peer),
        }
    }

    /// A peer has a lane, or will have one: if it was removed, the lane is not to stay for ever.
    pub(super) fn watch_removed(&mut self, peer: u32) {
        if self.peers.at(peer).removed {
            self.departing.insert(peer, Watch::default());
        }
    }

    /// Gives up the lanes of removed peers on which nothing has happened for long enough.
    pub(super) fn see_off<O: Owner>(&mut self, owner: &mut O) {
        for (peer, mut watch) in std::mem::take(&mut self.departing) {
            let at = self.peers.at(peer);
            let doublings = at.returns.min(MAX_DOUBLINGS);
            let session = match at.link {
                Link::Up(session) if at.removed => session,
                Link::Connecting | Link::Resuming(_) if at.removed => {
                    self.departing.insert(peer, watch);
                    continue;
                }
                // It was inserted again, or has no lane: the next one is watched from its
                // beginning.
                _ => continue,
            };
            let state = self.state_of(session);
            let now = state.map(|state| (state.numbers.sent(), state.numbers.expected()));
            watch.quiet = if now == watch.seen {
                watch.quiet + 1
            } else {
                0
            };
            watch.seen = now;
            if watch.quiet >= 1 << doublings && self.is_over(peer, session) {
                self.leave(session, owner);
            } else {
                self.departing.insert(peer, watch);
            }
        }
    }

    /// Whether nothing is under way on a lane, and nothing waits for it.
    fn is_over(&mut self, peer: u32, session: SessionId) -> bool {
        if !self.peers.at(peer).pending.is_empty() {
            return false;
        }
        match self.lanes.of(session) {
            Some(lane) => lane.open && lane.queue.is_empty() && lane.session.is_settled(),
            None => (self.ud.lanes.of(session))
                .is_some_and(|lane| lane.is_usable() && lane.session.is_settled()),
        }
    }

    /// Gives a lane up in good order, and tells the peer.
    fn leave<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        self.poster.counters.lanes.left += 1;
        if let Some(lane) = self.lanes.of(session).map(|lane| lane.key) {
            // The queue pair goes when the peer has been told: what it says until then would break
            // its lane, and have it come back.
            self.service.request(ToService::Left(lane));
        } else if let Some(lane) = self.ud.lanes.of(session).map(|lane| lane.key) {
            self.service.request(ToService::Left(lane));
            self.ud_lane_down(session, REST, owner);
        }
    }

    /// If a peer has no lane any more and nobody asks for one, its place among those with RC lanes
    /// is free, should it have been promised one; and if it was removed, nothing is kept that leads
    /// to it.
    pub(super) fn lies_idle(&mut self, peer: u32) {
        let at = self.peers.at(peer);
        if at.link != Link::Idle {
            return;
        }
        if at.removed {
            let request = ToService::Parted(at.key);
            self.service.request(request);
        }
        let now = self.ud.now();
        self.policy.down(peer, now);
        self.peers.list(peer);
    }

    /// Forgets the peers that nothing leads to any more, and of those that are kept for a session
    /// that rests the oldest if there are too many. For the ends of calls: nobody who is under way
    /// names a peer by its place then.
    #[cold]
    pub(super) fn sort_peers(&mut self) {
        let now = self.ud.now();
        while let Some((peer, fate)) = self.peers.next_listed() {
            match fate {
                Fate::Stays => {}
                Fate::Goes => self.forget_peer(peer),
                Fate::Rests => {
                    if let Some(state) = &self.peers.at(peer).parked {
                        // One that was never used rests from here on.
                        let credit = &state.numbers.receive_credit;
                        let (granted, held) = (credit.quota_units(), credit.held_units());
                        self.lay_to_rest(peer, granted, held);
                    }
                    self.peers.keep(peer, now);
                }
            }
        }
        for _ in 0..FORGOTTEN_AT_ONCE {
            match self.peers.too_many(now) {
                Some(peer) => self.forget_peer(peer),
                None => break,
            }
        }
    }

    /// Forgets a peer. If it has a session, that rests.
    fn forget_peer(&mut self, peer: u32) {
        let Some(gone) = self.peers.forget(peer) else {
            return;
        };
        self.policy.forget(peer);
        self.departing.remove(&peer);
        let Some(state) = gone.parked else {
            return;
        };
        // What it kept of its credit when it came to rest, for messages that have been received
        // since.
        self.grants.take_back(gone.rests.unwrap_or(0));
        let credit = &state.numbers.receive_credit;
        (self.grants).end(credit.quota_units(), credit.held_units());
        self.tell_grant();
        if let Some(lane) = gone.last_lane {
            let peer = gone.key;
            self.service.request(ToService::SessionEnded { peer, lane });
        }
    }

    /// The session of a peer begins to rest: what it was granted and has not used others may have
    /// meanwhile.
    pub(super) fn lay_to_rest(&mut self, peer: u32, granted_units: u16, held_units: u32) {
        let at = self.peers.at(peer);
        if at.rests.is_none() {
            at.rests = Some(u32::from(granted_units).saturating_sub(held_units));
            self.grants.end(granted_units, held_units);
            self.tell_grant();
        }
    }

    /// The session of a peer, if it rests, goes on, or ends.
    pub(super) fn awaken(&mut self, peer: u32) {
        let at = self.peers.at(peer);
        if let Some(units) = at.rests.take() {
            at.returns = at.returns.saturating_add(u32::from(at.removed));
            self.grants.take_back(units);
            self.tell_grant();
        }
    }
}
