//! The peers of a [`Connector`]: found by place and incarnation, counted against the limits.

use std::time::Duration;

use super::super::table::{Key, KeyedTable};
use super::super::wire::control::{LaneLimits, LaneParameters};
use super::super::{PeerKey, Time};
use super::peer::{HandshakePeer, LanePhase};
use super::{Connector, EndReason, HandshakeAction};

impl Connector {
    pub(super) fn find(&self, key: &PeerKey) -> Option<Key> {
        let mut at = self.by_place.get(&key.place).copied();
        while let Some(candidate) = at {
            let peer = self.peers.get(candidate)?;
            if peer.key.incarnation == key.incarnation {
                return Some(candidate);
            }
            at = peer.next_at_place;
        }
        None
    }

    /// Another incarnation at the place of a peer whose lane is up.
    pub(super) fn predecessor(&self, key: Key) -> Option<Key> {
        let place = self.peers.get(key)?.key.place;
        let mut at = self.by_place.get(&place).copied();
        while let Some(other) = at {
            let state = self.peers.get(other)?;
            if other != key && state.phase == LanePhase::Up {
                return Some(other);
            }
            at = state.next_at_place;
        }
        None
    }

    pub(super) fn add(&mut self, key: PeerKey, now: Time) -> Option<Key> {
        let mut peer = HandshakePeer::new(key, now);
        peer.next_at_place = self.by_place.get(&key.place).copied();
        let added = self.peers.insert(peer).ok()?;
        self.timers.begin(added);
        self.by_place.insert(key.place, added);
        Some(added)
    }

    pub(super) fn remove(&mut self, key: Key) {
        self.leave_place(key);
        self.invite(key);
        let Some(gone) = self.peers.remove(key) else {
            return;
        };
        self.timers.set(key, None);
        let place = gone.key.place;
        if self.by_place.get(&place) == Some(&key) {
            match gone.next_at_place {
                Some(next) => self.by_place.insert(place, next),
                None => self.by_place.remove(&place),
            };
            return;
        }
        let mut at = self.by_place.get(&place).copied();
        while let Some(before) = at.and_then(|at| self.peers.get_mut(at)) {
            if before.next_at_place == Some(key) {
                before.next_at_place = gone.next_at_place;
                return;
            }
            at = before.next_at_place;
        }
    }

    /// The peer counts no longer among those that initiate.
    pub(super) fn leave_place(&mut self, key: Key) {
        if let Some(peer) = self.peers.get_mut(key) {
            if std::mem::take(&mut peer.has_place) {
                self.initiators.leave();
            }
        }
    }

    /// The peer counts no longer among the half-open.
    pub(super) fn invite(&mut self, key: Key) {
        if let Some(peer) = self.peers.get_mut(key) {
            if std::mem::take(&mut peer.uninvited) {
                self.half_open.leave();
            }
        }
    }

    /// Makes room for an uninvited peer; `false` if those that are there are too young to go.
    pub(super) fn admit_uninvited(&mut self, now: Time, out: &mut Vec<HandshakeAction>) -> bool {
        while self.half_open.is_full() {
            let Some((since, key)) = self.half_open.oldest() else {
                return true;
            };
            if is_uninvited(&self.peers, since, key) {
                if now - since < self.config.half_open_min_age {
                    return false;
                }
                self.counters.evicted += 1;
                if self
                    .peers
                    .get(key)
                    .is_some_and(|peer| peer.phase == LanePhase::HalfOpen)
                {
                    self.reject_ended_lane(key, out);
                }
                self.fail(key, EndReason::PeerReset, out);
            }
            self.half_open.drop_oldest();
        }
        true
    }

    pub(super) fn count_uninvited(&mut self, key: Key, now: Time) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        peer.uninvited = true;
        peer.since = now;
        let peers = &self.peers;
        (self.half_open).enter(now, key, |since, key| is_uninvited(peers, since, key));
    }

    /// Sets a peer's timer to `wait` from now, or to the end of its peer timeout or of the engine's
    /// wait if that is earlier.
    pub(super) fn arm(&mut self, key: Key, now: Time, wait: Duration) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let silent_at = self.config.silent_at(peer);
        let wait_ends_at = peer.life.wait_ends_at();
        let ends = match self.standing.link_down {
            true => None,
            false => [silent_at, wait_ends_at].into_iter().flatten().min(),
        };
        let at = ends.map_or(now + wait, |end| end.min(now + wait));
        self.timers.set(key, Some(at));
    }

    pub(super) fn local_parameters(&self, key: Key) -> LaneParameters {
        let Some((peer, lane)) = self
            .peers
            .get(key)
            .and_then(|peer| Some((peer, peer.own.lane?)))
        else {
            return LaneParameters::default();
        };
        LaneParameters {
            kind: peer.own.kind,
            qpn: peer.own.qpn,
            psn: peer.own.psn,
            session: lane.session(),
            shm_name: self.config.shm_name,
            limits: LaneLimits {
                quota_units: peer.own.granted_units,
                ..self.config.limits
            },
            holds_session: peer.own.holds_session,
        }
    }
}

/// Whether a peer that was uninvited at a time is so since then.
fn is_uninvited(peers: &KeyedTable<HandshakePeer>, since: Time, key: Key) -> bool {
    (peers.get(key)).is_some_and(|peer| peer.uninvited && peer.since == since)
}
