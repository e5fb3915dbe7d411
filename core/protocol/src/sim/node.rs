//! One endpoint: a connector, model queue pairs, and the engine's view. Every action is checked
//! against the contract.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use crate::handshake::{
    ConnectLane, Connector, EndReason, HandshakeAction, HandshakeConfig, LaneError, LaneKey, LaneUp,
};
use crate::wire::control::LaneKind;
use crate::{PLACE_BYTES, PeerKey, Time};

/// The key of node `index` in its life number `life`.
pub(super) fn key_of(index: usize, life: u64) -> PeerKey {
    let mut place = [0; PLACE_BYTES];
    place[..8].copy_from_slice(&(index as u64).to_be_bytes());
    PeerKey {
        place,
        incarnation: 100 + life,
    }
}

/// The node at a key's place.
pub(super) fn index_of(key: &PeerKey) -> usize {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key.place[..8]);
    u64::from_be_bytes(bytes) as usize
}

#[derive(Clone, Debug, Default)]
pub(super) struct NodeLane {
    pub(super) peer: Option<PeerKey>,
    pub(super) kind: LaneKind,
    pub(super) qpn: Option<u32>,
    pub(super) connected: Option<ConnectLane>,
    pub(super) up: Option<LaneUp>,
    pub(super) may_send: bool,
}

/// An action that a node carries out at once or later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeEffect {
    Send { to: PeerKey, bytes: Vec<u8> },
    Make(LaneKey),
    Connect(LaneKey),
}

#[derive(Clone, Debug)]
pub(super) struct SimNode {
    pub(super) key: PeerKey,
    pub(super) connector: Connector,
    pub(super) lanes: BTreeMap<LaneKey, NodeLane>,
    /// The peers to which the engine requested a lane and has none yet.
    pub(super) requested: BTreeSet<PeerKey>,
    pub(super) failures: Vec<(PeerKey, EndReason)>,
    /// Requests of peers to drive the endpoint.
    pub(super) drives: usize,
    pub(super) downs: Vec<(PeerKey, EndReason)>,
    pub(super) closed: Vec<PeerKey>,
    pub(super) makes: usize,
    pub(super) max_lanes_seen: usize,
    /// Queue pairs that can still be made.
    pub(super) queue_pairs_left: usize,
    /// Those of a device that other nodes have, too.
    pub(super) of_device: Option<Rc<Cell<usize>>>,
    next_qpn: u32,
    closing: BTreeSet<PeerKey>,
}

impl SimNode {
    pub(super) fn new(index: usize, life: u64, config: HandshakeConfig) -> Self {
        let key = key_of(index, life);
        SimNode {
            key,
            connector: Connector::new(key, config),
            lanes: BTreeMap::new(),
            requested: BTreeSet::new(),
            failures: Vec::new(),
            drives: 0,
            downs: Vec::new(),
            closed: Vec::new(),
            makes: 0,
            max_lanes_seen: 0,
            queue_pairs_left: usize::MAX,
            of_device: None,
            // Different at each node and in each life, so that any mix shows.
            next_qpn: 2 + ((index as u32 % 200) << 14) + ((life as u32 % 4) << 22),
            closing: BTreeSet::new(),
        }
    }

    pub(super) fn connect(&mut self, now: Time, peer: PeerKey) -> Vec<NodeEffect> {
        self.connect_by(now, peer, LaneKind::Rc)
    }

    pub(super) fn connect_by(
        &mut self,
        now: Time,
        peer: PeerKey,
        kind: LaneKind,
    ) -> Vec<NodeEffect> {
        if !self
            .lanes
            .values()
            .any(|lane| lane.peer == Some(peer) && lane.may_send)
        {
            self.requested.insert(peer);
        }
        self.closing.remove(&peer);
        let mut out = Vec::new();
        self.connector.connect(now, peer, kind, None, &mut out);
        self.perform(out)
    }

    /// Leaves a lane that is up for one of the other kind.
    pub(super) fn change(&mut self, now: Time, lane: LaneKey) -> Vec<NodeEffect> {
        let Some(state) = self.lanes.get_mut(&lane) else {
            return Vec::new();
        };
        let (Some(peer), Some(_)) = (state.peer, state.up.take()) else {
            return Vec::new();
        };
        state.may_send = false;
        let kind = match state.kind {
            LaneKind::Rc => LaneKind::Ud,
            LaneKind::Ud => LaneKind::Rc,
        };
        self.requested.insert(peer);
        let mut out = Vec::new();
        (self.connector).change_lane(now, (lane, peer), kind, None, &mut out);
        self.perform(out)
    }

    /// Gives a lane up for want of queue pairs.
    pub(super) fn recycle(&mut self, now: Time, lane: LaneKey) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.lane_recycled(now, lane, &mut out);
        self.perform(out)
    }

    /// Gives a lane up because there is no more to say.
    pub(super) fn leave(&mut self, now: Time, lane: LaneKey) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.lane_left(now, lane, &mut out);
        self.perform(out)
    }

    /// The engine cancels its request.
    pub(super) fn cancel(&mut self, now: Time, peer: PeerKey) -> Vec<NodeEffect> {
        self.requested.remove(&peer);
        let mut out = Vec::new();
        self.connector.cancel(now, &peer, &mut out);
        self.perform(out)
    }

    pub(super) fn close(&mut self, now: Time, peer: PeerKey) -> Vec<NodeEffect> {
        self.requested.remove(&peer);
        self.closing.insert(peer);
        let mut out = Vec::new();
        self.connector.close(now, &peer, &mut out);
        self.perform(out)
    }

    pub(super) fn shutdown(&mut self, now: Time) -> Vec<NodeEffect> {
        self.shutdown_having(now, &HashMap::new())
    }

    /// The same, when the sessions with peers have taken so much.
    pub(super) fn shutdown_having(
        &mut self,
        now: Time,
        taken: &HashMap<PeerKey, u32>,
    ) -> Vec<NodeEffect> {
        self.requested.clear();
        self.closing
            .extend(self.lanes.values().filter_map(|lane| lane.peer));
        let mut out = Vec::new();
        self.connector.shutdown(now, taken, &mut out);
        self.perform(out)
    }

    pub(super) fn receive(&mut self, now: Time, bytes: &[u8]) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.receive(now, bytes, &mut out);
        self.perform(out)
    }

    pub(super) fn timeout(&mut self, now: Time) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.timeout(now, &mut out);
        self.perform(out)
    }

    pub(super) fn heard(&mut self, now: Time, lane: LaneKey) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.lane_received(now, lane, &mut out);
        self.perform(out)
    }

    pub(super) fn request_drive(&mut self, peer: PeerKey) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.request_drive(&peer, &mut out);
        self.perform(out)
    }

    pub(super) fn broken(&mut self, now: Time, lane: LaneKey) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.lane_broken(now, lane, &mut out);
        self.perform(out)
    }

    pub(super) fn unreachable(&mut self, now: Time, peer: PeerKey) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.unreachable(now, &peer, &mut out);
        self.perform(out)
    }

    /// Carries out a `MakeLane`. A lane released meanwhile is made and destroyed: only the answer
    /// is left.
    pub(super) fn make(&mut self, now: Time, lane: LaneKey) -> Vec<NodeEffect> {
        let is_rc = (self.lanes.get(&lane)).is_some_and(|lane| lane.kind == LaneKind::Rc);
        let device_is_full = self.of_device.as_ref().is_some_and(|left| left.get() == 0);
        let made = if is_rc && (self.queue_pairs_left == 0 || device_is_full) {
            Err(LaneError::NoResources)
        } else {
            self.next_qpn += 1;
            Ok(self.next_qpn)
        };
        match (self.lanes.get_mut(&lane), made) {
            (Some(state), Ok(qpn)) => {
                assert_eq!(state.qpn, None, "made twice");
                state.qpn = Some(qpn);
                self.queue_pairs_left -= usize::from(is_rc);
                if let (Some(left), true) = (&self.of_device, is_rc) {
                    left.set(left.get() - 1);
                }
            }
            (Some(_), Err(_)) => {
                self.lanes.remove(&lane);
            }
            (None, _) => {}
        }
        let mut out = Vec::new();
        self.connector.lane_made(now, lane, made, &mut out);
        self.perform(out)
    }

    /// Carries out a `ConnectLane`.
    pub(super) fn connect_lane(&mut self, now: Time, lane: LaneKey) -> Vec<NodeEffect> {
        let mut out = Vec::new();
        self.connector.lane_connected(now, lane, Ok(()), &mut out);
        self.perform(out)
    }

    pub(super) fn perform(&mut self, actions: Vec<HandshakeAction>) -> Vec<NodeEffect> {
        let mut effects = Vec::new();
        for action in actions {
            match action {
                HandshakeAction::SendControl { to, bytes } => {
                    assert_ne!(to, self.key, "a datagram to oneself");
                    effects.push(NodeEffect::Send {
                        to,
                        bytes: bytes.to_vec(),
                    });
                }
                HandshakeAction::MakeLane { lane, peer, kind } => {
                    let fresh = NodeLane {
                        peer: Some(peer),
                        kind,
                        ..NodeLane::default()
                    };
                    assert!(
                        self.lanes.insert(lane, fresh).is_none(),
                        "lane key used twice"
                    );
                    self.makes += 1;
                    self.max_lanes_seen = self.max_lanes_seen.max(self.lanes.len());
                    effects.push(NodeEffect::Make(lane));
                }
                HandshakeAction::ConnectLane(connect) => {
                    let lane = self
                        .lanes
                        .get_mut(&connect.lane)
                        .expect("connect of no lane");
                    assert!(
                        lane.qpn.is_some() && lane.connected.is_none(),
                        "not connectable"
                    );
                    assert_eq!((lane.peer, lane.kind), (Some(connect.peer), connect.kind));
                    lane.connected = Some(connect);
                    effects.push(NodeEffect::Connect(connect.lane));
                }
                HandshakeAction::LaneUp(up) => {
                    let others = self.lanes.iter().any(|(&key, lane)| {
                        key != up.lane && lane.peer == Some(up.peer) && lane.up.is_some()
                    });
                    assert!(!others, "two lanes up to one peer");
                    let lane = self.lanes.get_mut(&up.lane).expect("up of no lane");
                    assert!(lane.connected.is_some() && lane.up.is_none());
                    lane.up = Some(up);
                    if up.may_send {
                        lane.may_send = true;
                        self.requested.remove(&up.peer);
                    }
                }
                HandshakeAction::MaySend { lane } => {
                    let lane = self.lanes.get_mut(&lane).expect("may send on no lane");
                    assert!(lane.up.is_some() && !lane.may_send);
                    lane.may_send = true;
                    if let Some(peer) = lane.peer {
                        self.requested.remove(&peer);
                    }
                }
                HandshakeAction::LaneDown { lane, peer, reason } => {
                    let lane = self.lanes.get_mut(&lane).expect("down of no lane");
                    assert!(lane.up.take().is_some(), "down but never up");
                    lane.may_send = false;
                    self.downs.push((peer, reason));
                }
                HandshakeAction::ReleaseLane { lane } => {
                    let lane = self.lanes.remove(&lane).expect("released twice");
                    let peer = lane.peer.expect("lane of no peer");
                    assert!(
                        lane.up.is_none() || self.closing.contains(&peer),
                        "released while up"
                    );
                    if lane.qpn.is_some() && lane.kind == LaneKind::Rc {
                        self.queue_pairs_left = self.queue_pairs_left.saturating_add(1);
                        if let Some(left) = &self.of_device {
                            left.set(left.get() + 1);
                        }
                    }
                }
                HandshakeAction::ConnectFailed { peer, reason } => {
                    // A session may be over that has no lane, before anybody wants one.
                    let over = matches!(reason, EndReason::PeerClosed { .. });
                    assert!(
                        self.requested.remove(&peer) || over,
                        "a connection failed that no engine had requested"
                    );
                    self.failures.push((peer, reason));
                }
                HandshakeAction::NoRoom { .. } => {}
                HandshakeAction::Drive => self.drives += 1,
                HandshakeAction::Closed { peer } => {
                    self.closing.remove(&peer);
                    self.closed.push(peer);
                }
            }
        }
        assert_eq!(self.lanes.len(), self.connector.lanes(), "lane count");
        effects
    }

    /// The lane to `peer` that can be used, if there is one.
    pub(super) fn usable(&self, peer: &PeerKey) -> Option<(LaneKey, &NodeLane)> {
        self.lanes
            .iter()
            .find(|(_, lane)| lane.peer.as_ref() == Some(peer) && lane.may_send)
            .map(|(&key, lane)| (key, lane))
    }
}

/// Checks that two ends are ends of one lane: numbers crossed, sessions crossed, one name.
pub(super) fn assert_one_lane(a: (LaneKey, &NodeLane), b: (LaneKey, &NodeLane)) {
    let ((a_key, a), (b_key, b)) = (a, b);
    assert_eq!(a.kind, b.kind);
    let (a_joined, b_joined) = (
        a.connected.expect("a connected"),
        b.connected.expect("b connected"),
    );
    let (a_up, b_up) = (a.up.expect("a up"), b.up.expect("b up"));
    assert_eq!(
        (Some(a_joined.remote_qpn), Some(b_joined.remote_qpn)),
        (b.qpn, a.qpn)
    );
    assert_eq!(
        (a_joined.remote_psn, b_joined.remote_psn),
        (b_joined.local_psn, a_joined.local_psn)
    );
    assert_eq!(
        (a_up.remote_session, b_up.remote_session),
        (b_key.session(), a_key.session())
    );
    assert_eq!((a_up.name, a_up.resumes), (b_up.name, b_up.resumes));
    assert_eq!(a_joined.max_rd_atomic, b_joined.max_dest_rd_atomic);
}
