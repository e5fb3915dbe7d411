//! The life of lanes: the choice of the lane that carries the session with a peer, and the fate of
//! lane and session when a lane breaks, is recycled, is promoted from, or is closed because it is
//! idle.
//!
//! [`PeerLanes`] takes events and returns [`LaneAction`]s. The endpoint carries them out in order
//! and decides nothing itself. [`PeerLanes`] sees no packet that carries a message: sends and
//! receives use the lane that [`LaneOrder::Enter`] named last. It reads the state of sessions from
//! [`Facts`].
//!
//! Invariants:
//!
//! * A session is in one place: on one lane, or parked at its peer.
//! * A lane that came up ends with exactly one of [`LaneOrder::Park`], [`Settlement::EndCarried`]
//!   (the session leaves it) and [`LaneOrder::Release`] (it never carried one).
//! * A session leaves a lane only once all its arrivals were taken, and all requests posted on it
//!   are flushed. So nothing of the old lane comes after anything of the next.
//! * One lane at a time: of the lanes on which a session is to be resumed, the next has its turn
//!   when the one before it is no more.
//!
//! `connect` requests lanes. `carry` has the lanes that come up, break and are left, and with
//! `next_lane` the replacement of a broken one. `resume` has the sessions that go on over another
//! lane; `idle_close` and `recycle` end lanes that nobody needs.

mod action;
mod carry;
mod connect;
mod end;
mod idle_close;
mod order_events;
mod recycle;
mod resume;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ferrofabric_contracts::config::LaneChoice;

use super::Time;
use super::handshake::{EndReason, LaneKey};
use super::lane_policy::{self, LanePolicy};
use super::session::ResumeState;
use super::wire::SessionId;
use super::wire::control::LaneKind;

pub use action::{Demand, Facts, LaneAction, LaneOrder, SessionFacts, Settlement};
pub use end::{AfterLane, BROKEN, LaneEnd, evidence, protocol_broken};
pub use order_events::OrderEvents;

use idle_close::IdleWatch;

/// How an endpoint makes and changes lanes.
#[derive(Clone, Copy, Debug)]
pub struct LanesConfig {
    /// The setting that chooses the kind of lane.
    pub choice: LaneChoice,
    /// Whether lanes of the UD kind can be had.
    pub datagrams: bool,
    /// Whether a rendezvous request fits a datagram.
    pub requests_fit_datagrams: bool,
    /// When peers are promoted, and how many RC lanes there may be.
    pub policy: lane_policy::LanePolicyConfig,
}

/// How a peer is reached at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PeerLink {
    /// Not at all, and no lane was requested.
    #[default]
    Idle,
    /// A lane was requested.
    Connecting,
    /// A lane is there, on which the session has yet to be resumed.
    Resuming(SessionId),
    /// By this lane, which may be in its end.
    Up(SessionId),
}

/// The lanes' record of a session. It moves with the session.
#[derive(Clone, Copy, Debug)]
struct SessionRecord {
    /// Lanes lost in a row, and the progress either way when the last of them broke.
    breaks: u32,
    progress: (u32, u32, u64),
    /// Why it left its last lane.
    broken_by: LaneEnd,
}

impl SessionRecord {
    fn new() -> Self {
        SessionRecord {
            breaks: 0,
            progress: (0, 0, 0),
            broken_by: BROKEN,
        }
    }
}

/// A session that has no lane.
#[derive(Clone, Copy, Debug)]
struct Parked {
    session: SessionRecord,
    /// No packet has gone either way.
    is_unused: bool,
    /// All packets are settled: the session requests no lane.
    rests: bool,
}

/// The close of a peer's endpoint, as its Bye reported it.
#[derive(Clone, Copy, Debug)]
struct PeerClose {
    /// The lane that it named; `None` for the one that carried the peer's session last.
    lane: Option<LaneKey>,
    /// The next number that the peer expected of the session there.
    expected: Option<u32>,
}

impl PeerClose {
    /// The reason for which a session ends that has left its last lane.
    fn reason(&self, left: LaneKey) -> EndReason {
        let is_named = self.lane.is_none_or(|lane| lane == left);
        EndReason::PeerClosed {
            expected: self.expected.filter(|_| is_named),
        }
    }
}

/// A peer that was never in the address vector is treated as if it had come back this often: it may
/// be quiet for longer.
const RETURNS_OF_UNKNOWN: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct PeerEntry {
    link: PeerLink,
    parked: Option<Parked>,
    /// The lane that carried the parked session last.
    last_lane: Option<LaneKey>,
    /// There was no room for an RC lane, or the last one was recycled: the next lane is of the UD
    /// kind, if that will do.
    falls_back: bool,
    /// The last lane was of the RC kind, and broke.
    lost_rc: bool,
    /// Its endpoint has closed: it will never have a lane again.
    closed: Option<PeerClose>,
    /// It is not in the address vector, or not any more: its lane is closed when idle.
    removed: bool,
    /// The attempt to connect has a limit.
    limited: bool,
    /// Times that it came back after its lane was closed for that.
    returns: u32,
}

const UNKNOWN: PeerEntry = PeerEntry {
    link: PeerLink::Idle,
    parked: None,
    last_lane: None,
    falls_back: false,
    lost_rc: false,
    closed: None,
    removed: true,
    limited: false,
    returns: RETURNS_OF_UNKNOWN,
};

impl PeerEntry {
    /// Whether it has a session that needs a lane to continue, apart from messages that wait.
    fn goes_on(&self) -> bool {
        self.parked
            .is_some_and(|parked| !parked.is_unused && !parked.rests)
    }
}

#[derive(Clone, Copy, Debug)]
struct LaneEntry {
    key: LaneKey,
    peer: u32,
    kind: LaneKind,
    stage: LaneStage,
    /// It is down, and ends once all that has come was taken.
    down: Option<LaneEnd>,
    /// Requests posted and completions taken at the last check of its use.
    used: (u32, u32),
    /// If its peer was removed: whether anything happens on it.
    watch: IdleWatch,
}

#[derive(Clone, Copy, Debug)]
enum LaneStage {
    Resuming(Resuming),
    Carries(SessionRecord),
    /// In error, until what was posted is flushed.
    Ending(SessionRecord, LaneEnd),
}

/// A lane that does not carry the session yet.
#[derive(Clone, Copy, Debug, Default)]
struct Resuming {
    /// Number of Resumes that this side sent: over datagrams they may get lost.
    sent_resumes: u32,
    /// The peer's session, and what it has taken of it.
    received: Option<ResumeState>,
}

/// A decision that follows once all actions before it were carried out.
#[derive(Clone, Copy, Debug)]
enum PendingStep {
    /// A peer's lane is no more: the next one has its turn, or is requested.
    Next(u32),
    /// Both sides may have sent their Resume on a lane.
    Meet(SessionId),
}

/// The lanes of an endpoint's peers. The owner numbers peers densely.
#[derive(Debug)]
pub struct PeerLanes {
    config: LanesConfig,
    policy: LanePolicy,
    peers: Vec<PeerEntry>,
    lanes: BTreeMap<SessionId, LaneEntry>,
    actions: VecDeque<LaneAction>,
    steps: VecDeque<PendingStep>,
}

impl PeerLanes {
    /// No peer has a lane.
    #[must_use]
    pub fn new(config: LanesConfig) -> Self {
        PeerLanes {
            config,
            policy: LanePolicy::new(config.policy),
            peers: Vec::new(),
            lanes: BTreeMap::new(),
            actions: VecDeque::new(),
            steps: VecDeque::new(),
        }
    }

    /// The next action. The caller carries each out before it takes the next; carrying it out may
    /// be an event. Call this after each event until it returns none.
    pub fn next_action(&mut self, facts: &mut impl Facts, now: Time) -> Option<LaneAction> {
        self.decide(facts, now);
        self.actions.pop_front()
    }

    /// The next action if it is an order. Else it and all actions behind it wait for the next call
    /// of [`PeerLanes::next_action`].
    pub fn next_order(&mut self, facts: &mut impl Facts, now: Time) -> Option<LaneOrder> {
        self.decide(facts, now);
        match *self.actions.front()? {
            LaneAction::Order(order) => {
                self.actions.pop_front();
                Some(order)
            }
            LaneAction::Settle(_) => None,
        }
    }

    /// Makes the decisions that are due: all actions before them were carried out.
    fn decide(&mut self, facts: &mut impl Facts, now: Time) {
        while self.actions.is_empty() {
            match self.steps.pop_front() {
                Some(PendingStep::Next(peer)) => self.next_lane(peer, facts, now),
                Some(PendingStep::Meet(lane)) => self.meet(lane, now),
                None => return,
            }
        }
    }

    /// Whether an action or a decision is outstanding.
    #[inline]
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty() || !self.steps.is_empty()
    }

    /// A peer is in the address vector.
    pub fn inserted(&mut self, peer: u32) {
        let entry = self.peer(peer);
        (entry.removed, entry.returns) = (false, 0);
    }

    /// A peer is forgotten, and its session with it. Its number may be another peer's next. Returns
    /// the lane that carried the session last.
    pub fn forget(&mut self, peer: u32) -> Option<LaneKey> {
        let entry = std::mem::replace(self.peer(peer), UNKNOWN);
        self.policy.forget(peer);
        entry.parked.and(entry.last_lane)
    }

    /// Whether a peer has a lane, or one was requested.
    #[must_use]
    pub fn is_linked(&self, peer: u32) -> bool {
        self.at(peer).link != PeerLink::Idle
    }

    /// Whether a peer has a session that needs a lane to continue.
    #[must_use]
    pub fn goes_on(&self, peer: u32) -> bool {
        self.at(peer).goes_on()
    }

    /// Whether a peer's endpoint has closed.
    #[must_use]
    pub fn is_closed(&self, peer: u32) -> bool {
        self.at(peer).closed.is_some()
    }

    /// Whether a lane is there that does not carry its session yet.
    #[must_use]
    pub fn is_resuming(&self, lane: SessionId) -> bool {
        let lane = self.lanes.get(&lane);
        lane.is_some_and(|lane| matches!(lane.stage, LaneStage::Resuming(_)))
    }

    /// Whether an RC lane could be made without another going.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.policy.has_room()
    }

    /// Number of peers for which a lane was requested, and number of peers whose session is being
    /// resumed.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        let count =
            |is_so: fn(PeerLink) -> bool| self.peers.iter().filter(|p| is_so(p.link)).count();
        (
            count(|link| link == PeerLink::Connecting),
            count(|link| matches!(link, PeerLink::Resuming(_))),
        )
    }

    /// The peers that have no lane, and something that waits for one or rests.
    #[must_use]
    pub fn without_lane(&self) -> Vec<u32> {
        let peers = self.peers.iter().enumerate();
        let without = peers.filter(|(_, peer)| match peer.link {
            PeerLink::Idle => peer.parked.is_some(),
            PeerLink::Connecting => true,
            PeerLink::Resuming(_) | PeerLink::Up(_) => false,
        });
        without.map(|(at, _)| at as u32).collect()
    }

    /// No lane is there, nor counted.
    #[cfg(test)]
    pub(crate) fn check_nothing_is_left(&self) {
        assert!(self.lanes.is_empty(), "{:?}", self.lanes);
        assert!(!self.has_actions());
        assert_eq!(self.policy.lanes(), 0);
    }

    fn at(&self, peer: u32) -> PeerEntry {
        self.peers.get(peer as usize).copied().unwrap_or(UNKNOWN)
    }

    fn peer(&mut self, peer: u32) -> &mut PeerEntry {
        let at = peer as usize;
        if self.peers.len() <= at {
            self.peers.resize(at + 1, UNKNOWN);
        }
        &mut self.peers[at]
    }

    fn act(&mut self, action: impl Into<LaneAction>) {
        self.actions.push_back(action.into());
    }
}

impl OrderEvents<'_> {
    /// Nothing but its session keeps a peer: that rests from here on, also if it was never used.
    pub fn rest(&mut self, peer: u32) {
        if let Some(parked) = &mut self.0.peer(peer).parked {
            if !std::mem::replace(&mut parked.rests, true) {
                self.0.act(LaneOrder::LendCredit { peer });
            }
        }
    }
}

/// First wait for the peer's Resume, before ours is repeated.
const RESUME_INTERVAL: Duration = Duration::from_millis(10);

/// Longest such wait.
const MAX_RESUME_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
