//! The state of a [`super::Connector`] for one incarnation of one peer.

use super::super::table::Key;
use super::super::wire::control::{ControlPacket, LaneKind, LaneName, LaneParameters};
use super::super::{PeerKey, Time};
use super::{HandshakeConfig, LaneKey};
use std::collections::HashMap;
use std::time::Duration;

/// Where the lane to a peer stands. The initiator's way is `Queued`, `Making`, `HelloSent`,
/// `Connecting`, `Up`; the responder's `Answering`, `Joining`, `HalfOpen`, `Up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LanePhase {
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
pub(super) struct HandshakePeer {
    pub(super) key: PeerKey,
    /// The next peer at the same place (another incarnation).
    pub(super) next_at_place: Option<Key>,
    pub(super) phase: LanePhase,
    pub(super) engine: EngineSide,
    /// Counts among those that initiate.
    pub(super) has_place: bool,
    /// Counts among the half-open.
    pub(super) uninvited: bool,
    /// Time at which it became uninvited; for a closed peer, the end of the close timeout.
    pub(super) since: Time,
    /// Name of the lane at hand: which side we are, epoch, nonces (0 if not known yet).
    pub(super) name: LaneName,
    /// The other end of the attempt at hand is the peer, and no third party in its name.
    pub(super) proven: bool,
    /// The proof in our Hello or Bye; 0 for none.
    pub(super) proof: u64,
    /// The proof that our Challenge gave to the peer; 0 where there was none.
    pub(super) challenge: u64,
    pub(super) own: OwnEnd,
    pub(super) remote: RemoteEnd,
    pub(super) life: Life,
    /// Number of tries of the packet that is being repeated.
    pub(super) tries: u32,
}

/// The engine's request for a lane, and the state of the session.
#[derive(Clone, Debug)]
pub(super) struct EngineSide {
    /// It requested a lane and has not got it.
    pub(super) requested: bool,
    /// Lane kind of our own attempts.
    pub(super) requested_kind: LaneKind,
    /// Attempts in a row for which there was no room, here or at the peer.
    pub(super) refusals: u32,
    /// It knows the lane ([`super::HandshakeAction::LaneUp`]).
    pub(super) reported_up: bool,
    /// The number that its session expected next when the endpoint closed.
    pub(super) taken: Option<u32>,
}

/// Our end of the lane at hand.
#[derive(Clone, Debug)]
pub(super) struct OwnEnd {
    pub(super) lane: Option<LaneKey>,
    /// The kind of the lane.
    pub(super) kind: LaneKind,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    /// Quota that the peer is granted with this lane.
    pub(super) granted_units: u16,
    /// The engine holds a session, as of when the lane was begun.
    pub(super) holds_session: bool,
}

impl OwnEnd {
    /// The queue pair is there.
    pub(super) fn made(&mut self, qpn: u32, psn: u32, granted_units: u16) {
        (self.qpn, self.psn, self.granted_units) = (qpn, psn, granted_units);
    }
}

/// The peer's description of its end.
#[derive(Clone, Debug, Default)]
pub(super) struct RemoteEnd {
    pub(super) parameters: LaneParameters,
    /// Stamp of the newest Hello, to be echoed.
    pub(super) stamp_ns: u64,
    /// The peer's attempts up to this epoch are void.
    void_epochs: u64,
}

impl RemoteEnd {
    /// Whether an attempt of the peer is void.
    pub(super) fn is_void(&self, epoch: u64) -> bool {
        epoch <= self.void_epochs
    }

    /// The peer's attempts up to this epoch are void.
    pub(super) fn make_void(&mut self, epoch: u64) {
        self.void_epochs = self.void_epochs.max(epoch);
    }
}

/// Packets without an answer, in the second half of the silence limit, before the peer's silence
/// counts. If our own process was stopped, it received nothing meanwhile, so it first sends some
/// again.
const MIN_UNANSWERED: u32 = 4;

/// Evidence that the peer lives, from its packets, and the limit of the engine's wait.
#[derive(Clone, Debug)]
pub(super) struct Life {
    /// Time of the last packet from the peer, or of the first packet to it.
    last_arrival: Time,
    /// Packets sent since, in the second half of the limit, that request an answer.
    unanswered: u32,
    /// End of the engine's wait for a lane, and the limit; every packet from the peer moves it on.
    wait_end: Option<(Time, Duration)>,
}

impl Life {
    fn new(now: Time) -> Self {
        Self {
            last_arrival: now,
            unanswered: 0,
            wait_end: None,
        }
    }

    /// The peer gave a sign of life.
    pub(super) fn mark_alive(&mut self, now: Time) {
        self.last_arrival = now;
        self.unanswered = 0;
        if let Some((until, wait_limit)) = &mut self.wait_end {
            *until = now + *wait_limit;
        }
    }

    /// The first packet of an attempt goes to the peer: its silence begins.
    pub(super) fn begin_silence(&mut self, now: Time) {
        self.last_arrival = now;
        self.unanswered = 0;
    }

    /// A packet that requests an answer goes to the peer.
    pub(super) fn count_unanswered(&mut self) {
        self.unanswered += 1;
    }

    pub(super) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    pub(super) fn last_arrival(&self) -> Time {
        self.last_arrival
    }

    /// How long nothing has come.
    pub(super) fn silence(&self, now: Time) -> Duration {
        now - self.last_arrival
    }

    /// Limits the engine's wait for the lane that it requested.
    pub(super) fn set_wait_limit(&mut self, now: Time, wait_limit: Option<Duration>) {
        self.wait_end = wait_limit.map(|wait_limit| (now + wait_limit, wait_limit));
    }

    /// The engine waits no more.
    pub(super) fn clear_wait_limit(&mut self) {
        self.wait_end = None;
    }

    /// Whether there is a limit to the engine's wait.
    pub(super) fn has_wait_limit(&self) -> bool {
        self.wait_end.is_some()
    }

    /// How long the engine waits for a packet of the peer, if that has a limit.
    pub(super) fn wait_limit(&self) -> Option<Duration> {
        self.wait_end.map(|(_, wait_limit)| wait_limit)
    }

    /// When the engine gives up.
    pub(super) fn wait_ends_at(&self) -> Option<Time> {
        self.wait_end.map(|(until, _)| until)
    }
}

/// The lane that carried a session last; it may be gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    pub(super) lane: LaneKey,
    pub(super) name: LaneName,
    /// As [`HandshakePeer::proven`].
    pub(super) proven: bool,
    /// As [`HandshakePeer::challenge`], where the peer has no state.
    pub(super) challenge: u64,
}

impl Carried {
    /// Whether `packet` is about that lane, named in full.
    pub(super) fn is_named_by(&self, packet: &ControlPacket) -> bool {
        let named = LaneName {
            from_initiator: !packet.lane.from_initiator,
            ..packet.lane
        };
        named == self.name
    }
}

/// The proof that a Hello or Bye to a peer carries; 0 for none.
pub(super) fn proof_of(sessions: &HashMap<PeerKey, Carried>, peer: &PeerKey) -> u64 {
    (sessions.get(peer)).map_or(0, |carried| carried.name.to_number())
}

impl HandshakePeer {
    pub(super) fn new(key: PeerKey, now: Time) -> Self {
        HandshakePeer {
            key,
            next_at_place: None,
            phase: LanePhase::Waiting,
            engine: EngineSide {
                requested: false,
                requested_kind: LaneKind::Rc,
                refusals: 0,
                reported_up: false,
                taken: None,
            },
            has_place: false,
            uninvited: false,
            since: now,
            name: LaneName::default(),
            proven: false,
            proof: 0,
            challenge: 0,
            own: OwnEnd {
                lane: None,
                kind: LaneKind::Rc,
                qpn: 0,
                psn: 0,
                granted_units: 0,
                holds_session: false,
            },
            remote: RemoteEnd::default(),
            life: Life::new(now),
            tries: 0,
        }
    }

    /// There is no attempt at hand; the next one will be ours.
    pub(super) fn forget_attempt(&mut self) {
        self.name = LaneName {
            from_initiator: true,
            ..LaneName::default()
        };
        self.proven = false;
    }

    /// Whether `packet` is about the lane at hand, named in full.
    pub(super) fn is_named_by(&self, packet: &ControlPacket) -> bool {
        self.is_attempt_of(packet) && packet.lane.responder_nonce == self.name.responder_nonce
    }

    /// Whether `packet`, a Bye, is about the lane at hand. One of the two ends may have begun it
    /// without having learnt the responder's nonce.
    pub(super) fn is_named_by_bye(&self, packet: &ControlPacket) -> bool {
        let nonce = packet.lane.responder_nonce;
        self.is_attempt_of(packet)
            && (nonce == self.name.responder_nonce || nonce == 0 || self.name.responder_nonce == 0)
    }

    /// Whether the attempt that is being answered is newer than one with this epoch. (Whose attempt
    /// it is may not be sure, so it makes none void.)
    pub(super) fn answers_newer_than(&self, epoch: u64) -> bool {
        use LanePhase::{Answering, HalfOpen, Joining};
        matches!(self.phase, Answering | Joining | HalfOpen)
            && !self.name.from_initiator
            && epoch < self.name.epoch
    }

    /// Whether `packet` is about the attempt at hand; its responder's nonce may be another.
    pub(super) fn is_attempt_of(&self, packet: &ControlPacket) -> bool {
        packet.lane.from_initiator != self.name.from_initiator
            && packet.lane.epoch == self.name.epoch
            && packet.lane.initiator_nonce == self.name.initiator_nonce
            && self.name.initiator_nonce != 0
    }
}

impl HandshakeConfig {
    /// How long a peer may be silent; `None`: for ever.
    pub(super) fn silence_limit(&self, peer: &HandshakePeer) -> Option<Duration> {
        let by_datagrams = match peer.phase {
            LanePhase::Up => peer.own.kind == LaneKind::Ud,
            // No device reports the death of a peer without a lane. The lane that continues a
            // session has the engine's wait limit instead.
            _ => !peer.own.holds_session,
        };
        let of_datagrams = self.datagram_timeout.filter(|_| by_datagrams);
        self.peer_timeout.or(of_datagrams)
    }

    /// When a peer has been silent for too long; `None`: never.
    pub(super) fn silent_at(&self, peer: &HandshakePeer) -> Option<Time> {
        if peer.life.unanswered < MIN_UNANSWERED {
            return None;
        }
        Some(peer.life.last_arrival + self.silence_limit(peer)?)
    }
}
