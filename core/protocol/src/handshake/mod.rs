//! Establishing, keeping and ending RC lanes over the lossy UD channel.
//!
//! [`Connector`] is the machine; its owner is the service thread. Lane in, lane out:
//!
//! ```text
//!   initiator                                       responder
//!     MakeLane … lane_made
//!        ──────────── Hello (repeated) ────────────►  MakeLane … lane_made
//!                                                     ConnectLane … lane_connected
//!                                                     LaneUp { may_send: false }
//!     ConnectLane … ◄── HelloAck (repeated) ────────
//!     lane_connected, LaneUp { may_send: true }
//!        ──────────── Ready, or data on the lane ──►  MaySend
//! ```
//!
//! Invariants, for every loss, repeat, delay and change of order:
//!
//! * A lane is named by its initiator, the initiator's epoch (never used twice) and a nonce of each
//!   side. A packet about another lane than the one at hand changes nothing but, at most, makes its
//!   sender drop that other lane.
//! * Both initiate at once: the lower key's attempt stands, the other side turns responder with the
//!   queue pair that it has begun to make.
//! * A Hello is void once its sender has sent a newer epoch, so an old Hello cannot end a lane that
//!   came after it.
//! * A third party can end nothing that is established: the packets that could must prove that they
//!   are the peer's (`proof.rs`).
//! * Another incarnation is another peer until it has proven by an answer that it lives. Only then
//!   has the old one failed.
//! * Silence for a moment is not death: tries continue at a capped interval. They end with the peer
//!   timeout; without one, if no session is to go on, with the limit for peers that are reached by
//!   datagrams (the service thread of a living peer answers, whatever its application does); and if
//!   the engine has evidence that the peer may be dead, with its wait limit.

mod admission;
mod connector;
mod link;
mod peer;
mod proof;
mod receive;
mod registry;
mod send;
mod steps;

pub use connector::Connector;

use std::time::Duration;

use super::PeerKey;
use super::secrets::SecretSeed;
use super::table::Key;
use super::wire::SessionId;
use super::wire::control::{
    CONTROL_BYTES, Keys, LaneKind, LaneLimits, LaneParameters, RejectReason,
};

/// A lane at this end, that is: one queue pair. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey(pub(crate) Key);

impl LaneKey {
    /// The session that starts with this lane, as data packets towards us name it.
    #[must_use]
    pub fn session(self) -> SessionId {
        SessionId::of(self.0)
    }

    /// As a number, for work request IDs and maps.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// The lane that [`LaneKey::to_bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        LaneKey(Key::from_bits(bits))
    }
}

/// How a [`Connector`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeConfig {
    /// Seed of nonces, proofs and packet sequence numbers; from the system's random source.
    pub seed: SecretSeed,
    /// Keys of our queue pairs; a peer's must be the same (of the P_Key, the membership bit aside).
    pub keys: Keys,
    /// Name of our shared memory, 0 for none. Peers receive it and can compose our whole native
    /// address.
    pub shm_name: u64,
    /// Limits of our end of each lane.
    pub limits: LaneLimits,
    /// How long it waits between tries.
    pub intervals: Intervals,
    /// A peer without a packet for this time has failed; `None`: never.
    pub peer_timeout: Option<Duration>,
    /// The same where `peer_timeout` is not set, for peers with a UD lane and for those without a
    /// lane or a session, because no device reports the death of such a peer.
    pub datagram_timeout: Option<Duration>,
    /// Attempts begun at a time; more wait in line. An attempt that goes unanswered long leaves its
    /// place to others.
    pub max_initiating: usize,
    /// Maximum number of lanes that peers began, that are not up, and that this side did not
    /// request.
    pub max_half_open: usize,
    /// When `max_half_open` is reached, the oldest is dropped if it is older than this; else the
    /// newcomer is sent away.
    pub half_open_min_age: Duration,
    /// Whether lanes of the UD kind are allowed. A peer that requests one in vain gets a request
    /// for a lane of the RC kind.
    pub datagrams: bool,
    /// Lanes in all; at most [`SessionId::LIMIT`].
    pub max_lanes: usize,
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        HandshakeConfig {
            seed: SecretSeed::default(),
            keys: Keys::default(),
            shm_name: 0,
            limits: LaneLimits::default(),
            intervals: Intervals::default(),
            peer_timeout: None,
            datagram_timeout: None,
            max_initiating: 512,
            max_half_open: 1024,
            half_open_min_age: Duration::from_secs(1),
            datagrams: true,
            max_lanes: SessionId::LIMIT,
        }
    }
}

/// Intervals between the tries of a [`Connector`].
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// First wait for an answer, before any was measured.
    pub initial_timeout: Duration,
    /// Shortest wait for an answer.
    pub min_timeout: Duration,
    /// Longest wait between tries.
    pub max_interval: Duration,
    /// Longest wait between tries of a request with a wait limit.
    pub max_limited_interval: Duration,
    /// First wait after a lack of resources, here or at the peer.
    pub busy_interval: Duration,
    /// How long a closed lane's Bye is repeated.
    pub close_timeout: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Intervals {
            initial_timeout: Duration::from_millis(200),
            min_timeout: Duration::from_millis(5),
            max_interval: Duration::from_secs(5),
            max_limited_interval: Duration::from_millis(200),
            busy_interval: Duration::from_millis(20),
            close_timeout: Duration::from_secs(1),
        }
    }
}

/// Requests to the owner, in the order in which it carries them out. [`Connector::lane_made`] and
/// [`Connector::lane_connected`] answer `MakeLane` and `ConnectLane`, also if `ReleaseLane` was
/// queued in between (the answer is then ignored).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeAction {
    /// Send a datagram on the UD queue pair; it may get lost.
    SendControl {
        /// To whom.
        to: PeerKey,
        /// The payload.
        bytes: [u8; CONTROL_BYTES],
    },
    /// Create a queue pair (state INIT) for a lane; for one of the UD kind only its number is
    /// needed.
    MakeLane {
        /// The lane.
        lane: LaneKey,
        /// For which peer.
        peer: PeerKey,
        /// The kind of the lane.
        kind: LaneKind,
    },
    /// Take a lane's queue pair to ready-to-send; for one of the UD kind get the address handle.
    ConnectLane(ConnectLane),
    /// Tell the engine: the lane can receive, and send if `may_send`. To be known to the engine
    /// before a later `SendControl` goes out, since that lets the peer send.
    LaneUp(LaneUp),
    /// Tell the engine: the peer's end of the lane is up, send.
    MaySend {
        /// The lane.
        lane: LaneKey,
    },
    /// Tell the engine: a lane that was up is no more. Unless `reason` says otherwise, its
    /// operations failed.
    LaneDown {
        /// The lane.
        lane: LaneKey,
        /// Its peer.
        peer: PeerKey,
        /// Why.
        reason: EndReason,
    },
    /// Destroy the lane's queue pair, if it was made.
    ReleaseLane {
        /// The lane.
        lane: LaneKey,
    },
    /// Notify the engine: the lane that it requested did not come about.
    ConnectFailed {
        /// To whom.
        peer: PeerKey,
        /// Why.
        reason: EndReason,
    },
    /// Tell the engine: a lane of the RC kind can not be had at the moment; it is tried again.
    NoRoom {
        /// To whom.
        peer: PeerKey,
        /// There is no room here, rather than at the peer.
        here: bool,
    },
    /// A peer that closes an endpoint or a region waits: drive the endpoint, if the application
    /// does not.
    Drive,
    /// The exchange with a closed peer is over: the peer has answered, or the close timeout
    /// has passed.
    Closed {
        /// The peer.
        peer: PeerKey,
    },
}

/// The other end of a lane, and the parameters that both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectLane {
    /// The lane.
    pub lane: LaneKey,
    /// The kind of the lane.
    pub kind: LaneKind,
    /// Its peer; this endpoint itself for a queue pair to be connected to itself.
    pub peer: PeerKey,
    /// Queue pair number of the other end.
    pub remote_qpn: u32,
    /// First packet sequence number to send.
    pub local_psn: u32,
    /// First packet sequence number to expect.
    pub remote_psn: u32,
    /// Path MTU as verbs encode it: the smaller of the two.
    pub path_mtu: u8,
    /// RDMA reads and atomics to have outstanding towards the peer.
    pub max_rd_atomic: u8,
    /// RDMA reads and atomics to hold for the peer.
    pub max_dest_rd_atomic: u8,
}

/// A lane that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneUp {
    /// The lane; [`LaneKey::session`] is our name of the session.
    pub lane: LaneKey,
    /// The kind of the lane.
    pub kind: LaneKind,
    /// Queue pair number of the other end.
    pub remote_qpn: u32,
    /// Its peer.
    pub peer: PeerKey,
    /// The peer's name of the session.
    pub remote_session: SessionId,
    /// The lane's name, the same at both ends and never used again: that of a session which starts
    /// with it. Not 0.
    pub name: u64,
    /// One end holds a session from an earlier lane: both say with a Resume what they have, before
    /// anything else.
    pub resumes: bool,
    /// Name of the peer's shared memory, 0 for none.
    pub remote_shm_name: u64,
    /// Limits of the peer's end.
    pub remote_limits: LaneLimits,
    /// Quota that the peer was granted for a session that starts with this lane
    /// ([`Connector::grant`]).
    pub local_quota_units: u16,
    /// Whether to send at once, or first to wait for [`HandshakeAction::MaySend`].
    pub may_send: bool,
}

/// Why the owner could not make or connect a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneError {
    /// Not now: out of queue pairs, memory or the like. It is tried again.
    NoResources,
    /// Not ever; the errno.
    Fatal(i32),
}

/// Why a lane is no more, or did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The peer's process is another one now.
    PeerRestarted,
    /// The peer lives and has no such lane any more.
    PeerReset,
    /// The peer closed the lane.
    PeerClosed {
        /// The number that the peer's session expected next, if the peer gave one.
        expected: Option<u32>,
    },
    /// The peer is closing and takes no new lanes.
    PeerShuttingDown,
    /// The peer speaks another version of the protocol.
    Version,
    /// The peer's P_Key or Q_Key differs.
    Keys,
    /// The peer timeout, or the wait limit of a [`Connector::connect`], passed without a packet.
    Timeout,
    /// The lane broke: [`Connector::lane_broken`].
    Broken,
    /// The peer needs its queue pair elsewhere: [`Connector::lane_recycled`].
    Recycled,
    /// The peer has no more to say: [`Connector::lane_left`].
    Left,
    /// The peer cannot be reached: [`Connector::unreachable`].
    Unreachable,
    /// A verb failed here; the errno.
    Local(i32),
    /// We are closing.
    ShuttingDown,
}

impl EndReason {
    fn of_reject(reason: RejectReason) -> Self {
        match reason {
            RejectReason::Version => EndReason::Version,
            RejectReason::Keys => EndReason::Keys,
            RejectReason::ShuttingDown => EndReason::PeerShuttingDown,
            RejectReason::StaleIncarnation => EndReason::PeerRestarted,
            RejectReason::Recycled => EndReason::Recycled,
            RejectReason::Left => EndReason::Left,
            RejectReason::Busy | RejectReason::NoSuchLane => EndReason::PeerReset,
        }
    }
}

/// Counts of the events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeCounters {
    /// Control packets sent.
    pub sent: u64,
    /// Of those: repeats that a timer caused.
    pub resent: u64,
    /// Control packets received that were well-formed and for us.
    pub received: u64,
    /// Datagrams dropped: not a packet of ours, or damaged.
    pub malformed: u64,
    /// Packets dropped: about what is long over, or settled otherwise.
    pub stale: u64,
    /// Packets refused with a Reject.
    pub rejected: u64,
    /// Packets that would have ended something and proved nothing.
    pub challenged: u64,
    /// Half-open lanes dropped for newer ones.
    pub evicted: u64,
    /// Lanes that came up.
    pub lanes_up: u64,
}

fn connect_lane(
    lane: LaneKey,
    peer: PeerKey,
    local: &LaneParameters,
    remote: &LaneParameters,
) -> HandshakeAction {
    HandshakeAction::ConnectLane(ConnectLane {
        lane,
        kind: remote.kind,
        peer,
        remote_qpn: remote.qpn,
        local_psn: local.psn,
        remote_psn: remote.psn,
        path_mtu: local.limits.path_mtu.min(remote.limits.path_mtu),
        max_rd_atomic: local.limits.rd_atomic_out.min(remote.limits.rd_atomic_in),
        max_dest_rd_atomic: local.limits.rd_atomic_in.min(remote.limits.rd_atomic_out),
    })
}
