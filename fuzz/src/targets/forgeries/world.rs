//! Two endpoints that have a session with each other, as handshakes see them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::LazyLock;
use std::time::Duration;

use ferrofabric_contracts::listed_enum;
use ferrofabric_protocol::handshake::{
    Connector, HandshakeAction, HandshakeConfig, LaneKey, LaneUp,
};
use ferrofabric_protocol::secrets::SecretSeed;
use ferrofabric_protocol::wire::control::{
    CONTROL_BYTES, ControlBody, ControlPacket, Keys, LaneKind,
};
use ferrofabric_protocol::{PLACE_BYTES, PeerKey, Time};

listed_enum! {
    /// Where the two stand.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(super) enum Scene: u8 {
        /// A lane carries the session.
        Up = 0,
        /// The same, over datagrams.
        UpByDatagrams = 1,
        /// No lane carries it.
        Rests = 2,
        /// One end requests a lane for it, and its first Hello is lost.
        Requests = 3,
        /// One end has answered a request, and its first HelloAck is lost.
        Answers = 4,
    }
}

/// The key of one of the two, or of the third party (2). No number of theirs is in another packet
/// by chance.
pub(super) fn key_of(party: usize) -> PeerKey {
    let number = party as u64 + 1;
    PeerKey {
        place: [0xd0 + number as u8; PLACE_BYTES],
        incarnation: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

const KEYS: Keys = Keys {
    p_key: 0x8001,
    q_key: Some(0x5ec2_e7a1),
};

/// Packets between the two at most until they are quiet.
const MOST_PACKETS: usize = 200;

#[derive(Clone)]
struct Party {
    connector: Connector,
    /// The lanes, with their peers.
    lanes: HashMap<LaneKey, PeerKey>,
    /// The lane to the other of the two that is up.
    up: Option<LaneUp>,
    may_send: bool,
    /// Ends of lanes, sessions and requests with the other of the two.
    ends: Vec<HandshakeAction>,
}

/// The two, and the network between them.
#[derive(Clone)]
pub(super) struct World {
    now: Time,
    parties: [Party; 2],
    /// Packets under way, with their destination.
    under_way: VecDeque<(usize, [u8; CONTROL_BYTES])>,
    /// Packets that went to the third party.
    to_stranger: Vec<[u8; CONTROL_BYTES]>,
    next_qpn: u32,
    /// Numbers that only the two know: incarnations, nonces, proofs.
    secrets: BTreeSet<u64>,
    first_psns: BTreeSet<u32>,
}

impl World {
    /// The two, as they stand in a scene.
    pub(super) fn of(scene: Scene) -> Self {
        static ALL: LazyLock<Vec<World>> =
            LazyLock::new(|| Scene::ALL.iter().map(|&scene| World::make(scene)).collect());
        ALL[scene as usize].clone()
    }

    fn make(scene: Scene) -> Self {
        let party = |at: usize| {
            let config = HandshakeConfig {
                seed: SecretSeed([at as u8 + 1; 32]),
                keys: KEYS,
                ..HandshakeConfig::default()
            };
            Party {
                connector: Connector::new(key_of(at), config),
                lanes: HashMap::new(),
                up: None,
                may_send: false,
                ends: Vec::new(),
            }
        };
        let mut world = World {
            now: Time(1_000_000),
            parties: [party(0), party(1)],
            under_way: VecDeque::new(),
            to_stranger: Vec::new(),
            next_qpn: 100,
            secrets: [0, 1].map(|at| key_of(at).incarnation).into(),
            first_psns: BTreeSet::new(),
        };
        let kind = match scene {
            Scene::UpByDatagrams => LaneKind::Ud,
            _ => LaneKind::Rc,
        };
        world.connect(kind);
        world.exchange();
        assert!(world.is_up());
        match scene {
            Scene::Up | Scene::UpByDatagrams => {}
            Scene::Rests => world.leave(),
            Scene::Requests => {
                world.leave();
                world.connect(kind);
                world.under_way.clear();
            }
            Scene::Answers => {
                world.leave();
                world.connect(kind);
                world.step();
                assert!(world.parties[1].up.is_some() && !world.under_way.is_empty());
                world.under_way.clear();
            }
        }
        for party in &mut world.parties {
            party.ends.clear();
        }
        world
    }

    fn connect(&mut self, kind: LaneKind) {
        self.act(0, |connector, now, out| {
            connector.connect(now, key_of(1), kind, None, out)
        });
    }

    fn leave(&mut self) {
        let lane = self.parties[0].up.expect("a lane").lane;
        self.act(0, |connector, now, out| connector.lane_left(now, lane, out));
        self.exchange();
        assert!(self.parties.iter().all(|party| party.up.is_none()));
    }

    pub(super) fn keys(&self) -> Keys {
        KEYS
    }

    fn is_up(&self) -> bool {
        (self.parties.iter()).all(|party| party.up.is_some() && party.may_send)
    }

    /// An event of an endpoint, and all that follows at once.
    fn act(
        &mut self,
        at: usize,
        event: impl FnOnce(&mut Connector, Time, &mut Vec<HandshakeAction>),
    ) {
        let mut actions = Vec::new();
        event(&mut self.parties[at].connector, self.now, &mut actions);
        let mut due = VecDeque::from(actions);
        while let Some(action) = due.pop_front() {
            let mut more = Vec::new();
            self.carry_out(at, action, &mut more);
            due.extend(more);
        }
    }

    fn carry_out(&mut self, at: usize, action: HandshakeAction, out: &mut Vec<HandshakeAction>) {
        let other = key_of(1 - at);
        let party = &mut self.parties[at];
        match action {
            HandshakeAction::SendControl { to, bytes } => {
                match (0..3).find(|&party| key_of(party).place == to.place) {
                    Some(2) => self.to_stranger.push(bytes),
                    Some(to) => {
                        if at != to {
                            self.keep_secrets(&bytes);
                        }
                        self.under_way.push_back((to, bytes));
                    }
                    None => {}
                }
            }
            HandshakeAction::MakeLane { lane, peer, .. } => {
                party.lanes.insert(lane, peer);
                self.next_qpn += 1;
                let qpn = self.next_qpn;
                party.connector.lane_made(self.now, lane, Ok(qpn), out);
            }
            HandshakeAction::ConnectLane(connect) => {
                party
                    .connector
                    .lane_connected(self.now, connect.lane, Ok(()), out);
            }
            HandshakeAction::LaneUp(up) if up.peer == other => {
                party.up = Some(up);
                party.may_send = up.may_send;
            }
            HandshakeAction::MaySend { lane } => {
                party.may_send |= party.up.is_some_and(|up| up.lane == lane);
            }
            HandshakeAction::LaneDown { lane, peer, .. } if peer == other => {
                if party.up.is_some_and(|up| up.lane == lane) {
                    (party.up, party.may_send) = (None, false);
                }
                party.ends.push(action);
            }
            HandshakeAction::ConnectFailed { peer, .. } | HandshakeAction::Closed { peer }
                if peer == other =>
            {
                party.ends.push(action);
            }
            HandshakeAction::ReleaseLane { lane } => {
                party.lanes.remove(&lane);
            }
            _ => {}
        }
    }

    /// Keeps the numbers that the sender of a packet between the two has drawn for the other one.
    fn keep_secrets(&mut self, bytes: &[u8; CONTROL_BYTES]) {
        let Ok(packet) = ControlPacket::parse(bytes) else {
            return;
        };
        match packet.body {
            ControlBody::Hello { parameters, .. } => {
                self.secrets.insert(packet.lane.initiator_nonce);
                self.first_psns.insert(parameters.psn);
            }
            ControlBody::HelloAck { parameters, .. } => {
                self.secrets.insert(packet.lane.responder_nonce);
                self.first_psns.insert(parameters.psn);
            }
            ControlBody::Challenge { proof } => {
                self.secrets.insert(proof);
            }
            // All else repeats what somebody has sent.
            _ => {}
        }
    }

    /// Delivers one packet.
    fn step(&mut self) -> bool {
        let Some((to, bytes)) = self.under_way.pop_front() else {
            return false;
        };
        self.act(to, |connector, now, out| {
            connector.receive(now, &bytes, out)
        });
        true
    }

    /// Delivers all packets between the two.
    fn exchange(&mut self) {
        let steps = (0..MOST_PACKETS).take_while(|_| self.step()).count();
        assert!(steps < MOST_PACKETS, "the two never fall silent");
    }

    /// Time passes, and timers fire.
    pub(super) fn pass(&mut self, pause: Duration) {
        let until = self.now + pause;
        let next = |world: &World, at: usize| world.parties[at].connector.next_timeout();
        while let Some((due, at)) = (0..2)
            .filter_map(|at| Some((next(self, at)?, at)))
            .min()
            .filter(|(due, _)| *due <= until)
        {
            self.now = self.now.max(due);
            self.act(at, |connector, now, out| connector.timeout(now, out));
            self.exchange();
        }
        self.now = until;
    }

    /// Delivers a forged packet, and all that follows. Returns what went to the third party in
    /// answer.
    pub(super) fn deliver_forged(
        &mut self,
        to: usize,
        bytes: &[u8; CONTROL_BYTES],
    ) -> Vec<[u8; CONTROL_BYTES]> {
        // Repeats of earlier answers, which timers have caused.
        self.to_stranger.clear();
        self.act(to, |connector, now, out| connector.receive(now, bytes, out));
        self.exchange();
        std::mem::take(&mut self.to_stranger)
    }

    /// Data comes on every lane that an endpoint has with anybody but the other of the two: a third
    /// party may be there.
    pub(super) fn hear_strange_lanes(&mut self, at: usize) {
        let other = key_of(1 - at);
        let strange: Vec<_> = (self.parties[at].lanes.iter())
            .filter(|(_, peer)| **peer != other)
            .map(|(lane, _)| *lane)
            .collect();
        for lane in strange {
            self.act(at, |connector, now, out| {
                connector.lane_received(now, lane, out)
            });
        }
        self.exchange();
    }

    /// An answer has no secret of the two but those that the forged packet had.
    pub(super) fn assert_says_nothing_new(
        &self,
        answer: &[u8; CONTROL_BYTES],
        forged: &[u8; CONTROL_BYTES],
    ) {
        let says = |bytes: &[u8], secret: &[u8]| bytes.windows(secret.len()).any(|w| w == secret);
        for secret in &self.secrets {
            let secret = secret.to_le_bytes();
            let disclosed = says(answer, &secret) && !says(forged, &secret);
            assert!(!disclosed, "an answer discloses {secret:x?}: {answer:x?}");
        }
        let Some(q_key) = KEYS.q_key else { return };
        // The highest byte has the mark.
        let q_key = &q_key.to_le_bytes()[..3];
        let disclosed = says(answer, q_key) && !says(forged, q_key);
        assert!(!disclosed, "an answer discloses the Q_Key: {answer:x?}");
        let body = ControlPacket::parse(answer).map(|packet| packet.body);
        if let Ok(
            ControlBody::Hello { parameters, .. } | ControlBody::HelloAck { parameters, .. },
        ) = body
        {
            let known = self.first_psns.contains(&parameters.psn) && parameters.psn != 0;
            assert!(!known, "an answer discloses a packet sequence number");
        }
    }

    /// No lane, session or request of the two has ended.
    pub(super) fn assert_nothing_ended(&self) {
        for party in &self.parties {
            assert!(party.ends.is_empty(), "{:?}", party.ends);
        }
    }

    /// The two get another lane, and it carries the session that they had.
    pub(super) fn assert_session_goes_on(&mut self) {
        let before = self.parties[0].up;
        match before {
            Some(up) => self.act(0, |connector, now, out| {
                connector.change_lane(now, (up.lane, up.peer), up.kind, None, out);
            }),
            None => self.connect(LaneKind::Rc),
        }
        let goes_on = |world: &World| {
            let changed = world.parties[0].up.map(|up| up.name) != before.map(|up| up.name);
            world.is_up() && changed
        };
        self.exchange();
        for _ in 0..20 {
            if goes_on(self) {
                break;
            }
            self.pass(Duration::from_secs(5));
        }
        assert!(goes_on(self), "the two get no lane any more");
        let [one, other] = [0, 1].map(|at| self.parties[at].up.expect("a lane"));
        assert_eq!(one.name, other.name);
        assert!(one.resumes && other.resumes, "the session is lost");
        let over = |action: &HandshakeAction| !matches!(action, HandshakeAction::LaneDown { .. });
        for party in &self.parties {
            assert!(!party.ends.iter().any(over), "{:?}", party.ends);
        }
    }
}
