//! The choice of peers that get an RC lane, and of the lane that makes room for another at the
//! limit.
//!
//! A peer begins on UD. It is promoted once it was sent enough messages or bytes in a short time,
//! or at once for a transfer that needs RC. At the limit the lane that was used least recently
//! goes, if it is idle; its peer falls back to UD. Two rules keep peers from taking the lanes from
//! one another in turns: a lane is idle only if it was not used for a while, and a peer that has
//! lost its lane is not promoted for its traffic before a pause, which doubles each time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::Time;

/// When lanes are made and given up.
#[derive(Clone, Copy, Debug)]
pub struct LanePolicyConfig {
    /// Messages to a peer within [`LanePolicyConfig::within`] that promote it. 0 counts as 1.
    pub messages: u32,
    /// Bytes to a peer within [`LanePolicyConfig::within`] that promote it. 0 counts as 1.
    pub bytes: u64,
    /// The time in which those are counted.
    pub within: Duration,
    /// RC lanes at most, those included that are being made.
    pub max_lanes: usize,
    /// A lane without use for this time gives way to a peer with traffic.
    pub idle: Duration,
    /// How long a peer that has lost its lane, or got none, is not promoted for its traffic;
    /// doubled each time.
    pub promotion_pause: Duration,
}

impl Default for LanePolicyConfig {
    fn default() -> Self {
        LanePolicyConfig {
            messages: 64,
            bytes: 256 << 10,
            within: Duration::from_millis(100),
            max_lanes: 4096,
            idle: Duration::from_secs(1),
            promotion_pause: Duration::from_secs(1),
        }
    }
}

/// Why a peer is to have a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It would be faster.
    Traffic,
    /// The peer cannot continue without the lane: a rendezvous or a one-sided operation waits, or
    /// the peer itself requests the lane.
    Bulk,
}

/// Whether there is room for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneAdmission {
    /// Make it.
    Make,
    /// Close the lane of this peer, which is [`LanePolicy::down`] now, and make it.
    Recycle(u32),
    /// No lane is idle. Traffic stays on UD, and is counted again after a pause; for [`Need::Bulk`]
    /// call again when a lane has gone quiet.
    Full,
}

/// Number of times that a pause doubles at most.
const MAX_DOUBLINGS: u32 = 6;

/// Number of busy lanes that are checked before the policy answers that there is no room.
const MAX_BUSY: usize = 16;

/// How long peers that can not go on without an RC lane wait for one that is quiet, before one goes
/// that is not.
const FAIR_SHARE: Duration = Duration::from_millis(100);

/// The peers of an endpoint, numbered densely.
#[derive(Clone, Debug)]
pub struct LanePolicy {
    config: LanePolicyConfig,
    peers: Vec<PolicyPeer>,
    lanes: usize,
    /// One item for each lane: when it was used, as far as was known when it was put in.
    by_use: BinaryHeap<Reverse<(Time, u32)>>,
    /// Since when somebody waits for room, and no lane was quiet.
    wanted_room: Option<Time>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PolicyPeer {
    /// Begin of the count on UD; last use on RC.
    at: Time,
    messages: u32,
    bytes: u64,
    no_promotion_before: Time,
    /// How often the pause has doubled.
    doublings: u8,
    has_rc_lane: bool,
    queued: bool,
}

impl LanePolicy {
    /// No peer has a lane.
    #[must_use]
    pub fn new(config: LanePolicyConfig) -> Self {
        LanePolicy {
            config,
            peers: Vec::new(),
            lanes: 0,
            by_use: BinaryHeap::new(),
            wanted_room: None,
        }
    }

    /// A message of `bytes` goes to a peer, on any lane. Returns whether the peer should be
    /// promoted: then call [`LanePolicy::admit`] for [`Need::Traffic`].
    #[inline]
    pub fn message(&mut self, peer: u32, bytes: u64, now: Time) -> bool {
        let config = self.config;
        let entry = self.peer_or_new(peer);
        if entry.has_rc_lane {
            entry.at = now;
            return false;
        }
        if now - entry.at > config.within {
            (entry.at, entry.messages, entry.bytes) = (now, 0, 0);
        }
        entry.messages = entry.messages.saturating_add(1);
        entry.bytes = entry.bytes.saturating_add(bytes);
        (entry.messages >= config.messages || entry.bytes >= config.bytes)
            && now >= entry.no_promotion_before
    }

    /// Takes room for a lane to a peer that has none. `is_quiet`: whether nothing is under way on a
    /// peer's lane.
    pub fn admit(
        &mut self,
        peer: u32,
        need: Need,
        now: Time,
        mut is_quiet: impl FnMut(u32) -> bool,
    ) -> LaneAdmission {
        self.peer_or_new(peer);
        if self.peers[peer as usize].has_rc_lane {
            return LaneAdmission::Make;
        }
        if self.lanes < self.config.max_lanes {
            self.enter(peer, now);
            return LaneAdmission::Make;
        }
        let Some(victim) = self.least_recent(need, now, &mut is_quiet) else {
            if need == Need::Traffic {
                self.defer_promotion(peer, now);
            }
            return LaneAdmission::Full;
        };
        self.down(victim, now);
        self.enter(peer, now);
        LaneAdmission::Recycle(victim)
    }

    /// A lane exists that this side did not request: the peer initiated it.
    pub fn took(&mut self, peer: u32, now: Time) {
        if !self.peer_or_new(peer).has_rc_lane {
            self.enter(peer, now);
        }
    }

    /// The lane that may go, which is [`LanePolicy::down`] now.
    fn recycle(&mut self, now: Time, mut is_quiet: impl FnMut(u32) -> bool) -> Option<u32> {
        let victim = self.least_recent(Need::Bulk, now, &mut is_quiet)?;
        self.down(victim, now);
        Some(victim)
    }

    /// A transfer that needs RC has found no room. Returns the lane that goes, which is
    /// [`LanePolicy::down`] now. A lane that is not quiet goes only after 100 ms without a quiet
    /// one.
    pub fn make_room(&mut self, now: Time, is_quiet: impl FnMut(u32) -> bool) -> Option<u32> {
        let quiet = self.recycle(now, is_quiet);
        if quiet.is_some() {
            self.wanted_room = None;
            return quiet;
        }
        let since = *self.wanted_room.get_or_insert(now);
        if now - since < FAIR_SHARE {
            return None;
        }
        self.wanted_room = Some(now);
        self.recycle(now, |_| true)
    }

    /// A lane is used for something else than a message: a read, a write.
    pub fn used(&mut self, peer: u32, now: Time) {
        self.peer_or_new(peer).at = now;
    }

    /// The lane of a peer is gone, or did not come about.
    pub fn down(&mut self, peer: u32, now: Time) {
        let entry = self.peer_or_new(peer);
        if !entry.has_rc_lane {
            return;
        }
        entry.has_rc_lane = false;
        self.lanes -= 1;
        self.defer_promotion(peer, now);
    }

    /// A peer is no more, nor is its lane. The next peer with its number begins anew.
    pub fn forget(&mut self, peer: u32) {
        if let Some(entry) = self.peers.get_mut(peer as usize) {
            self.lanes -= usize::from(entry.has_rc_lane);
            // An item of it may be in line still.
            *entry = PolicyPeer {
                queued: entry.queued,
                ..PolicyPeer::default()
            };
        }
    }

    /// Whether an RC lane could be made without another going.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.lanes < self.config.max_lanes
    }

    /// RC lanes that are there or being made.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Whether a peer has an RC lane, or one is being made.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn has_rc_lane(&self, peer: u32) -> bool {
        self.peers
            .get(peer as usize)
            .is_some_and(|peer| peer.has_rc_lane)
    }

    /// The record of a peer; a number that was not seen before gets a new one.
    #[inline]
    fn peer_or_new(&mut self, peer: u32) -> &mut PolicyPeer {
        let at = peer as usize;
        if self.peers.len() <= at {
            self.peers.resize(at + 1, PolicyPeer::default());
        }
        &mut self.peers[at]
    }

    fn enter(&mut self, peer: u32, now: Time) {
        self.lanes += 1;
        let entry = self.peer_or_new(peer);
        (entry.has_rc_lane, entry.at) = (true, now);
        if !entry.queued {
            entry.queued = true;
            self.by_use.push(Reverse((now, peer)));
        }
    }

    /// Promotes a peer no more for its traffic before a pause. The pause of a peer that did without
    /// an RC lane for long has not doubled.
    fn defer_promotion(&mut self, peer: u32, now: Time) {
        let pause = self.config.promotion_pause;
        let entry = self.peer_or_new(peer);
        if now - entry.no_promotion_before > pause * (1 << MAX_DOUBLINGS) {
            entry.doublings = 0;
        }
        entry.no_promotion_before =
            now + pause * (1 << u32::from(entry.doublings).min(MAX_DOUBLINGS));
        entry.doublings = entry.doublings.saturating_add(1);
        (entry.at, entry.messages, entry.bytes) = (now, 0, 0);
    }

    /// The lane that was used least recently, of those that may go.
    fn least_recent(
        &mut self,
        need: Need,
        now: Time,
        is_quiet: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut busy = Vec::new();
        let mut found = None;
        while let Some(&Reverse((used, peer))) = self.by_use.peek() {
            let entry = &mut self.peers[peer as usize];
            if entry.has_rc_lane && entry.at == used {
                let is_idle = need == Need::Bulk || now - used >= self.config.idle;
                if !is_idle || busy.len() >= MAX_BUSY {
                    break; // and all others were used later
                }
            }
            self.by_use.pop();
            if !entry.has_rc_lane {
                entry.queued = false;
            } else if entry.at != used {
                self.by_use.push(Reverse((entry.at, peer)));
            } else if is_quiet(peer) {
                entry.queued = false;
                found = Some(peer);
                break;
            } else {
                busy.push(Reverse((used, peer)));
            }
        }
        self.by_use.extend(busy);
        found
    }
}

#[cfg(test)]
mod tests;
