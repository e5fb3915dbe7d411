//! Making lanes. A service thread exchanges handshakes over the UD queue pair and makes the RC
//! queue pairs, so that no slow verb runs on a caller's path. The thread and the engine exchange
//! messages.

mod ah_cache;
mod datagrams;
mod service;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_contracts::addr::{DRAWN_QKEY, NativeAddr};
use ferrofabric_protocol::PeerKey;
use ferrofabric_protocol::handshake::{EndReason, LaneKey, LaneUp};
use ferrofabric_protocol::wire::control::LaneKind;

use crate::ah::Ah;
use crate::qp::RcQp;

pub(crate) use ah_cache::{AhCache, PathOutcome};
pub(crate) use datagrams::ControlQueuePair;
pub(crate) use service::{ServiceConfig, ServiceHandle};

/// The queue pair, or the path, through which a lane sends.
#[derive(Clone)]
pub(crate) enum LaneCarrier {
    /// An RC queue pair, ready to send.
    Rc(Arc<RcQp>),
    /// The endpoint's data queue pair, along a path.
    Ud(UdDestination),
}

/// The path of a lane's datagrams, and the key that they carry.
#[derive(Clone)]
pub(crate) struct UdDestination {
    /// The path.
    pub(crate) handle: Arc<Ah>,
    /// Queue key of the peer's data queue pair.
    pub(crate) qkey: u32,
}

/// Messages from the service thread to the engine.
pub(crate) enum ToEngine {
    /// A lane is up; from now on it belongs to the engine.
    LaneUp {
        /// The result of the handshake.
        up: LaneUp,
        /// The queue pair or the path of the lane.
        carrier: LaneCarrier,
    },
    /// The peer's end is up: messages may be sent.
    MaySend(LaneKey),
    /// A lane has ended.
    LaneDown {
        /// The lane.
        lane: LaneKey,
        /// Its peer.
        peer: PeerKey,
        /// The reason.
        reason: EndReason,
    },
    /// It is time to check that the peers of idle lanes still exist.
    Probe,
    /// An RC lane is not possible at the moment; the service thread tries again.
    NoRoom {
        /// The peer of the lane; `None`: another endpoint of the device has no room for its lane.
        peer: Option<PeerKey>,
        /// Whether this side has no room, rather than the peer.
        here: bool,
    },
    /// A requested lane was not made.
    ConnectFailed {
        /// The peer of the lane.
        peer: PeerKey,
        /// The reason.
        reason: EndReason,
    },
    /// The device reported that a lane's queue pair has failed.
    LaneFailed(LaneKey),
    /// The path of a UD lane has another address handle.
    NewPath {
        /// The lane.
        lane: LaneKey,
        /// The path from now on.
        destination: UdDestination,
    },
    /// The device, or a queue of the endpoint, has failed for good: all operations end for this
    /// reason.
    Failed(&'static str),
}

/// Messages from the engine to the service thread.
pub(crate) enum ToService {
    /// Make a lane to a peer.
    Connect {
        /// The peer.
        peer: PeerKey,
        /// The kind of the lane.
        kind: LaneKind,
        /// How long to try while the peer is silent; `None`: for ever.
        timeout: Option<Duration>,
    },
    /// The session has left a lane, and needs one of the RC kind.
    Promote {
        /// The peer.
        peer: PeerKey,
        /// The lane that it has left.
        lane: LaneKey,
        /// How long to try while the peer is silent; `None`: for ever.
        timeout: Option<Duration>,
    },
    /// A lane was closed because queue pairs are scarce.
    Recycled(LaneKey),
    /// A lane was closed because its peer was removed from the address vector and nothing is under
    /// way.
    Left(LaneKey),
    /// The engine cancels its request for a lane to a peer.
    Cancel(PeerKey),
    /// A peer that was removed from the address vector has no lane any more, so its lane needs no
    /// path.
    PathRetired(PeerKey),
    /// The peer of a UD lane confirms nothing.
    ProbePeer(LaneKey),
    /// This side closes an endpoint or a region, and waits for a peer: have its endpoint driven
    /// there.
    RequestDrive(PeerKey),
    /// The session on a lane of the peer is over.
    SessionEnded {
        /// The peer.
        peer: PeerKey,
        /// The lane.
        lane: LaneKey,
    },
    /// The grant of new peers, in units, from now on.
    Grant(u16),
    /// A packet came on a lane that may not send yet.
    LaneHeard(LaneKey),
    /// A lane is dead.
    LaneBroken(LaneKey),
    /// The port carries no packets.
    PortDown,
    /// The port carries packets again.
    PortActive,
    /// The addresses of the port, or the paths from it, may have changed.
    PathsChanged,
    /// No control packet can be sent or received any more.
    Failed,
    /// Send the last message to each peer and end. The map holds the number of packets that the
    /// session with each peer has received.
    Close(HashMap<PeerKey, u32>),
}

/// Where the incarnation lies in a native address's bytes.
const INCARNATION: std::ops::Range<usize> = 32..40;

/// Where the Q_Key lies.
const QKEY: std::ops::Range<usize> = 8..12;

/// The peer that a native address names.
pub(crate) fn peer_key(name: &NativeAddr) -> PeerKey {
    PeerKey {
        place: name.place(),
        incarnation: name.incarnation,
    }
}

/// The native address of a peer whose shared-memory endpoint has this name; `None` when the bytes
/// are no address (an attacker can send any bytes).
pub(crate) fn native_addr(key: &PeerKey, shm_name: u64) -> Option<NativeAddr> {
    let mut bytes = key.place;
    bytes[INCARNATION].copy_from_slice(&key.incarnation.to_le_bytes());
    if bytes[QKEY] == DRAWN_QKEY.to_le_bytes() {
        let qkey = NativeAddr::drawn_qkey(key.incarnation);
        bytes[QKEY].copy_from_slice(&qkey.to_le_bytes());
    }
    let name = NativeAddr::from_bytes(&bytes).ok()?;
    Some(NativeAddr {
        shm: name.shm.map(|_| shm_name),
        ..name
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::addr::{GidKind, VerbsAddr};

    #[test]
    fn a_peer_key_gives_the_address_back() {
        let name = NativeAddr {
            incarnation: 0x1122_3344_5566_7788,
            node: 9,
            shm: Some(3),
            verbs: Some(VerbsAddr {
                gid: [7; 16],
                gid_kind: GidKind::RoceV2,
                qpn: 17,
                qkey: 18,
                lid: 19,
                pkey: 0xffff,
                sl: 0,
                port: 1,
                mtu_bytes: 1024,
            }),
        };
        assert_eq!(native_addr(&peer_key(&name), 3), Some(name));
        let restarted = NativeAddr {
            incarnation: 5,
            shm: Some(4),
            ..name
        };
        assert_eq!(peer_key(&restarted).place, peer_key(&name).place);
    }

    /// A process that follows another at its queue pair has the same place, whatever its Q_Key.
    #[test]
    fn a_place_has_no_drawn_q_key() {
        let drawn = |incarnation: u64| {
            let verbs = VerbsAddr {
                gid: [7; 16],
                gid_kind: GidKind::RoceV2,
                qpn: 17,
                qkey: NativeAddr::drawn_qkey(incarnation),
                lid: 19,
                pkey: 0xffff,
                sl: 0,
                port: 1,
                mtu_bytes: 1024,
            };
            NativeAddr::of_new(9, Some(verbs), false, incarnation)
        };
        let (one, other) = (drawn(0x8123_4567), drawn(0x1111_1111));
        assert_eq!(peer_key(&one).place, peer_key(&other).place);
        for name in [one, other] {
            assert_eq!(native_addr(&peer_key(&name), 0), Some(name));
        }
    }
}
