//! Peers made of the protocol's state machine, all behind one queue pair for control packets and
//! one for datagrams.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_fake_device::control::ROCE;
use ferrofabric_protocol::handshake::{Connector, HandshakeAction, HandshakeConfig, LaneUp};
use ferrofabric_protocol::wire::control::{ControlPacket, Keys, LaneKind, LaneLimits};
use ferrofabric_protocol::wire::data::{DataPacket, Header, MAX_NOTICE_BYTES};
use ferrofabric_protocol::wire::datagram::{self, Ack, DatagramPrefix};
use ferrofabric_protocol::{PeerKey, Time};
use ferrofabric_verbs::device::{DeviceContext, Gid};
use ferrofabric_verbs::raw::ah::{Ah, PortPath};
use ferrofabric_verbs::raw::cq::{Cq, CqConfig};
use ferrofabric_verbs::raw::mr::{Access, Mr};
use ferrofabric_verbs::raw::pd::Pd;
use ferrofabric_verbs::raw::post::{RecvRequest, SendFlags, SendRequest, inline_sge};
use ferrofabric_verbs::raw::qp::{QpCaps, QpConfig, UdInit, UdQp};

/// Receives that a queue pair has posted: room for two packets to each peer of a round. A packet
/// that is lost for want of room is not sent again once the endpoint has left a lane.
const DEPTH: usize = 1 << 15;

/// For each: a routing header, and a packet of the endpoint.
const SLOT: usize = 512;

/// How often timers are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Peers that probe their lanes in one tick. The endpoint has room for this number of packets at a
/// time; further packets get lost, also those which say that it has left a lane.
const ASK_AT_ONCE: usize = 100;

/// A queue pair for datagrams.
struct DatagramPort {
    qp: UdQp,
    sent: Arc<Cq>,
    came: Arc<Cq>,
    mr: Mr,
    memory: Box<[u8]>,
}

impl DatagramPort {
    fn open(pd: &Arc<Pd>, qkey: u32) -> Self {
        let queue = |depth| {
            let config = CqConfig {
                depth,
                ..CqConfig::default()
            };
            Cq::create(pd.context(), &config).unwrap()
        };
        let (sent, came) = (queue(8), queue(DEPTH as u32));
        let config = QpConfig {
            send_cq: sent.clone(),
            recv_cq: came.clone(),
            srq: None,
            caps: QpCaps {
                send_depth: 4,
                recv_depth: DEPTH as u32,
                send_entries: 1,
                recv_entries: 1,
                inline_bytes: 256,
            },
            signal_all: true,
            extended: None,
        };
        let qp = UdQp::create(pd, &config).unwrap();
        let mut memory = vec![0; DEPTH * SLOT].into_boxed_slice();
        // SAFETY: the memory is freed after the region, and read only where a receive is over.
        let mr =
            unsafe { Mr::register(pd, memory.as_mut_ptr(), memory.len(), Access::LOCAL_WRITE) };
        let this = Self {
            qp,
            sent,
            came,
            mr: mr.unwrap(),
            memory,
        };
        this.qp
            .activate(&UdInit {
                port: 1,
                pkey_index: 0,
                qkey,
                psn: 0,
            })
            .unwrap();
        (0..DEPTH).for_each(|slot| this.post(slot));
        this
    }

    fn post(&self, slot: usize) {
        let entry = self.mr.sge(slot * SLOT, SLOT as u32).unwrap();
        // SAFETY: nobody looks at the slot until the receive is over.
        unsafe { RecvRequest::new(slot as u64, [entry]).post(&self.qp) }.unwrap();
    }

    /// Packets that have come, without their routing headers.
    fn take(&self) -> Vec<Vec<u8>> {
        let mut room = [MaybeUninit::uninit(); 64];
        let mut all = Vec::new();
        loop {
            let completions = self.came.poll(&mut room).unwrap();
            if completions.is_empty() {
                return all;
            }
            for completion in completions {
                let slot = completion.wr_id as usize;
                let bytes =
                    &self.memory[slot * SLOT..][UdQp::HEADER_BYTES..completion.byte_len as usize];
                all.push(bytes.to_vec());
                self.post(slot);
            }
        }
    }

    fn send(&self, handle: &Ah, qpn: u32, qkey: u32, bytes: &[u8]) {
        let mut request = SendRequest::send(1, [inline_sge(bytes)])
            .to(handle, qpn, qkey)
            .flags(SendFlags::INLINE | SendFlags::SIGNALED);
        // SAFETY: inline data is copied before the call returns; the handle is there until the
        // completion.
        unsafe { request.post(&self.qp) }.unwrap();
        let mut room = [MaybeUninit::uninit(); 4];
        while self.sent.poll(&mut room).unwrap().is_empty() {}
    }
}

/// How a peer goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerEnding {
    /// It closes.
    Closes,
    /// The endpoint removes it, and it stays.
    Removed,
    /// It was never known, connects, and closes.
    Unknown,
    /// It was never known, and says no more than hello.
    Silent,
}

impl PeerEnding {
    pub(crate) fn of(number: usize) -> Self {
        match number % 2 {
            0 => Self::Closes,
            _ => Self::Removed,
        }
    }
}

struct PeerScript {
    connector: Connector,
    end: PeerEnding,
    up: Option<LaneUp>,
    /// Packets taken.
    taken: u32,
    gone: bool,
}

/// All of them.
pub(crate) struct Scripted {
    control: DatagramPort,
    data: DatagramPort,
    handle: Ah,
    hub: NativeAddr,
    peers: HashMap<u64, PeerScript>,
    /// Those that have yet to see the end of their connection.
    here: usize,
    /// The peers probe their lanes.
    asks: bool,
    origin: Instant,
    ticked: Instant,
}

impl Scripted {
    /// Those that speak to this endpoint.
    pub(crate) fn new(hub: &NativeAddr) -> Self {
        let verbs = hub.verbs.unwrap();
        let context = DeviceContext::open(ROCE).unwrap();
        let pd = Pd::allocate(&context).unwrap();
        let now = Instant::now();
        Self {
            control: DatagramPort::open(&pd, verbs.qkey),
            data: DatagramPort::open(&pd, verbs.qkey),
            handle: Ah::create(&pd, &PortPath::to_gid(1, 0, Gid(verbs.gid))).unwrap(),
            hub: *hub,
            peers: HashMap::new(),
            here: 0,
            asks: false,
            origin: now,
            ticked: now,
        }
    }

    fn now(&self) -> Time {
        Time(1 + self.origin.elapsed().as_nanos() as u64)
    }

    /// Adds a peer that has sent nothing yet.
    pub(crate) fn add(&mut self, number: u64, end: PeerEnding) -> NativeAddr {
        let mut verbs = self.hub.verbs.unwrap();
        verbs.qpn = self.control.qp.number();
        let name = NativeAddr {
            incarnation: number,
            node: number,
            shm: None,
            verbs: Some(verbs),
        };
        let config = HandshakeConfig {
            seed: number.into(),
            keys: Keys {
                p_key: verbs.pkey,
                q_key: None,
            },
            limits: LaneLimits {
                quota_units: 64,
                receive_bytes: SLOT as u32,
                path_mtu: 1,
                ..LaneLimits::default()
            },
            ..HandshakeConfig::default()
        };
        let script = PeerScript {
            connector: Connector::new(key_of(&name), config),
            end,
            up: None,
            taken: 0,
            gone: end == PeerEnding::Silent,
        };
        self.here += usize::from(!script.gone);
        self.peers.insert(number, script);
        name
    }

    /// A peer that is unknown to the endpoint begins a handshake with it.
    pub(crate) fn come(&mut self, number: u64, end: PeerEnding) {
        self.add(number, end);
        let hub = key_of(&self.hub);
        let now = self.now();
        self.with(number, |script, out| {
            script.connector.connect(now, hub, LaneKind::Ud, None, out);
        });
    }

    pub(crate) fn close_those_that_close(&mut self) {
        let closing = self
            .peers
            .iter()
            .filter(|(_, script)| script.end == PeerEnding::Closes);
        for number in closing.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.close(number);
        }
    }

    fn close(&mut self, number: u64) {
        let now = self.now();
        self.with(number, |script, out| {
            let taken = script
                .up
                .map(|up| (up.peer, script.taken))
                .into_iter()
                .collect();
            script.connector.shutdown(now, &taken, out);
        });
    }

    /// All were removed: from now on they probe their lanes.
    pub(crate) fn begin_to_probe(&mut self) {
        self.asks = true;
    }

    /// How many have yet to see the end of their connection.
    pub(crate) fn here(&self) -> usize {
        self.here
    }

    pub(crate) fn forget_all(&mut self) {
        self.peers = HashMap::new();
        (self.here, self.asks) = (0, false);
    }

    /// Takes what has come, and answers.
    pub(crate) fn drive(&mut self) {
        for packet in self.control.take() {
            let Ok(control) = ControlPacket::parse(&packet) else {
                continue;
            };
            let now = self.now();
            let number = control.to_incarnation;
            if self
                .peers
                .get(&number)
                .is_some_and(|script| script.end != PeerEnding::Silent)
            {
                self.with(number, |script, out| {
                    script.connector.receive(now, &packet, out)
                });
            }
        }
        for packet in self.data.take() {
            self.acknowledge(&packet);
        }
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            let now = self.now();
            let due =
                |script: &PeerScript| script.connector.next_timeout().is_some_and(|at| at <= now);
            let due: Vec<u64> = (self.peers.iter())
                .filter(|(_, script)| script.end != PeerEnding::Silent && due(script))
                .map(|(number, _)| *number)
                .collect();
            for number in due {
                self.with(number, |script, out| script.connector.timeout(now, out));
            }
            if self.asks {
                self.ask(now);
            }
        }
    }

    /// Some of those that wait to be left ask whether they were.
    fn ask(&mut self, now: Time) {
        let waiting = self.peers.iter().filter(|(_, script)| !script.gone);
        let waiting = waiting.filter_map(|(number, script)| Some((*number, script.up?.lane)));
        for (number, lane) in waiting.take(ASK_AT_ONCE).collect::<Vec<_>>() {
            self.with(number, |script, out| {
                script.connector.check_lane(now, lane, out)
            });
        }
    }

    /// Each message says in its tag whose it is.
    fn acknowledge(&mut self, packet: &[u8]) {
        let Ok((_, header, DataPacket::Eager { envelope, .. })) = datagram::parse(packet) else {
            return;
        };
        let number = envelope.tag.unwrap();
        let Some(script) = self.peers.get_mut(&number) else {
            return;
        };
        let Some(up) = script.up else { return };
        script.taken = header.sequence + 1;
        let answer = Header {
            session: up.remote_session,
            sequence: script.taken,
            credit: 0,
        };
        let prefix = DatagramPrefix {
            ack_at_once: false,
            cookie: up.name as u32,
            ack: Ack {
                expected: script.taken,
                held: 0,
            },
            credit: 0,
        };
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = answer.write_ack(&mut bytes);
        let datagram = [&prefix.to_bytes(), &bytes[..len]].concat();
        let qkey = self.hub.verbs.unwrap().qkey;
        self.data.send(&self.handle, up.remote_qpn, qkey, &datagram);
        let now = self.now();
        self.with(number, |script, out| {
            script.connector.lane_received(now, up.lane, out)
        });
    }

    /// Lets one have an event, and does what it wants.
    fn with(
        &mut self,
        number: u64,
        event: impl FnOnce(&mut PeerScript, &mut Vec<HandshakeAction>),
    ) {
        let now = self.now();
        let Some(script) = self.peers.get_mut(&number) else {
            return;
        };
        let mut actions = Vec::new();
        event(script, &mut actions);
        let mut closes = false;
        let hub = self.hub.verbs.unwrap();
        let mut at = 0;
        while at < actions.len() {
            let action = actions[at];
            at += 1;
            match action {
                HandshakeAction::SendControl { bytes, .. } => {
                    self.control.send(&self.handle, hub.qpn, hub.qkey, &bytes);
                }
                HandshakeAction::MakeLane { lane, .. } => {
                    let made = Ok(self.data.qp.number());
                    script.connector.lane_made(now, lane, made, &mut actions);
                }
                HandshakeAction::ConnectLane(connect) => {
                    (script.connector).lane_connected(now, connect.lane, Ok(()), &mut actions);
                }
                HandshakeAction::LaneUp(up) => {
                    script.up = Some(up);
                    closes |= script.end == PeerEnding::Unknown;
                }
                HandshakeAction::LaneDown { .. } | HandshakeAction::Closed { .. } => {
                    self.here -= usize::from(!std::mem::replace(&mut script.gone, true));
                }
                HandshakeAction::ConnectFailed { reason, .. } => panic!("{number}: {reason:?}"),
                HandshakeAction::MaySend { .. }
                | HandshakeAction::ReleaseLane { .. }
                | HandshakeAction::Drive
                | HandshakeAction::NoRoom { .. } => {}
            }
        }
        if closes {
            self.close(number);
        }
    }
}

fn key_of(name: &NativeAddr) -> PeerKey {
    PeerKey {
        place: name.place(),
        incarnation: name.incarnation,
    }
}
