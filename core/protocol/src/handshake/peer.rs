//! What a [`super::Connector`] knows of one incarnation of one peer.

use super::super::table::Key;
use super::super::timers::{Deadline, Timed};
use super::super::wire::control::{Control, LaneKind, LaneName, LaneParameters};
use super::super::{PeerKey, Time};
use super::{Config, LaneKey};
use std::time::Duration;

/// Where the lane to a peer stands. The initiator's way is `Queued`, `Making`, `HelloSent`, `Connecting`, `Up`; the
/// responder's `Answering`, `Joining`, `HalfOpen`, `Up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// In line for a place among those that initiate.
    Queued,
    /// `MakeLane` is out; no Hello has been sent.
    Making,
    /// There were no resources, or the attempt was lost: begins anew when the timer says.
    Waiting,
    /// Hello is out, and repeated.
    HelloSent,
    /// HelloAck came; `ConnectLane` is out.
    Connecting,
    /// Hello came; `MakeLane` is out.
    Answering,
    /// `ConnectLane` is out.
    Joining,
    /// HelloAck is out, and repeated; the lane can receive.
    HalfOpen,
    /// Both ends can send.
    Up,
    /// Closed here, the lane released; Bye is out, and repeated.
    Closing,
}

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) key: PeerKey,
    /// The next peer at the same place (another incarnation).
    pub(super) next_at_place: Option<Key>,
    pub(super) phase: Phase,
    /// The engine asked for a lane and has not got it.
    pub(super) wanted: bool,
    /// The engine knows the lane ([`super::Action::LaneUp`]).
    pub(super) announced: bool,
    /// Counts among those that initiate.
    pub(super) has_place: bool,
    /// Counts among the half-open.
    pub(super) uninvited: bool,
    pub(super) lane: Option<LaneKey>,
    /// What the lane at hand is made of.
    pub(super) kind: LaneKind,
    /// What attempts of ours are to be made of.
    pub(super) wanted_kind: LaneKind,
    /// Name of the lane at hand: which side we are, epoch, nonces (0 if not known yet).
    pub(super) name: LaneName,
    pub(super) local_qpn: u32,
    pub(super) local_psn: u32,
    /// What it is granted with the lane at hand.
    pub(super) granted_units: u16,
    pub(super) remote: LaneParameters,
    /// The peer's attempts up to this epoch are void.
    pub(super) void_epochs: u64,
    /// Stamp of the newest Hello, to be echoed.
    pub(super) stamp_ns: u64,
    /// Tries of what is being repeated.
    pub(super) tries: u32,
    /// When it became uninvited; for a closed one, when the linger time is over.
    pub(super) since: Time,
    /// When the peer was heard last, or first spoken to.
    pub(super) heard: Time,
    /// Keep-alives sent since.
    pub(super) unanswered: u32,
    /// When the engine gives up on a lane that it wants, if no word comes; moved on by every word.
    pub(super) give_up: Option<(Time, Duration)>,
    /// The engine holds a session, as of when the lane at hand was begun.
    pub(super) holds_session: bool,
    /// What our session had taken when the endpoint closed.
    pub(super) taken: Option<u32>,
    pub(super) deadline: Deadline,
}

/// The lane that carried a session last; it may be gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    pub(super) lane: LaneKey,
    pub(super) name: LaneName,
}

impl Carried {
    /// Whether `packet` is about that lane, named in full.
    pub(super) fn is_named_by(&self, packet: &Control) -> bool {
        let named = LaneName {
            from_initiator: !packet.lane.from_initiator,
            ..packet.lane
        };
        named == self.name
    }
}

impl Peer {
    pub(super) fn new(key: PeerKey, now: Time) -> Self {
        Peer {
            key,
            next_at_place: None,
            phase: Phase::Waiting,
            wanted: false,
            announced: false,
            has_place: false,
            uninvited: false,
            lane: None,
            kind: LaneKind::Rc,
            wanted_kind: LaneKind::Rc,
            name: LaneName::default(),
            local_qpn: 0,
            local_psn: 0,
            granted_units: 0,
            remote: LaneParameters::default(),
            void_epochs: 0,
            stamp_ns: 0,
            tries: 0,
            since: now,
            heard: now,
            unanswered: 0,
            give_up: None,
            holds_session: false,
            taken: None,
            deadline: Deadline::default(),
        }
    }

    /// The peer gave a sign of life.
    pub(super) fn heard_from(&mut self, now: Time) {
        self.heard = now;
        self.unanswered = 0;
        if let Some((until, patience)) = &mut self.give_up {
            *until = now + *patience;
        }
    }

    /// Whether `packet` is about the lane at hand, named in full.
    pub(super) fn is_named_by(&self, packet: &Control) -> bool {
        self.is_attempt_of(packet) && packet.lane.responder_nonce == self.name.responder_nonce
    }

    /// Whether `packet` is about the attempt at hand; its responder's nonce may be another.
    pub(super) fn is_attempt_of(&self, packet: &Control) -> bool {
        packet.lane.from_initiator != self.name.from_initiator
            && packet.lane.epoch == self.name.epoch
            && packet.lane.initiator_nonce == self.name.initiator_nonce
            && self.name.initiator_nonce != 0
    }
}

/// Keep-alives that a peer has not answered before its silence counts: who was stopped himself, and heard nothing for that, asks
/// first.
const MIN_UNANSWERED: u32 = 4;

impl Config {
    /// How long a peer may be silent; `None`: for ever.
    pub(super) fn silence_limit(&self, peer: &Peer) -> Option<Duration> {
        let by_datagrams = peer.phase == Phase::Up && peer.kind == LaneKind::Ud;
        let of_datagrams = self.datagram_timeout.filter(|_| by_datagrams);
        self.peer_timeout.or(of_datagrams)
    }

    /// When a peer has been silent for too long; `None`: never.
    pub(super) fn silent_at(&self, peer: &Peer) -> Option<Time> {
        if peer.phase == Phase::Up && peer.unanswered < MIN_UNANSWERED {
            return None;
        }
        Some(peer.heard + self.silence_limit(peer)?)
    }
}

impl Timed for Peer {
    fn deadline(&mut self) -> &mut Deadline {
        &mut self.deadline
    }
}
