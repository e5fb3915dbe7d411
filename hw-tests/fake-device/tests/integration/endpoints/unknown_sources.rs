//! Control packets of those who have no business here.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Instant;

use ferrofabric_contracts::addr::{NativeAddr, VerbsAddr};
use ferrofabric_fake_device::control::{FakeDevice, ROCE};
use ferrofabric_protocol::PeerKey;
use ferrofabric_protocol::wire::control::{ControlBody, ControlPacket, Keys, LaneName};
use ferrofabric_verbs::device::{DeviceContext, Gid};
use ferrofabric_verbs::raw::ah::{Ah, PortPath};
use ferrofabric_verbs::raw::cq::{Cq, CqConfig};
use ferrofabric_verbs::raw::mr::{Access, Mr};
use ferrofabric_verbs::raw::pd::Pd;
use ferrofabric_verbs::raw::post::{SendFlags, SendRequest};
use ferrofabric_verbs::raw::qp::{QpCaps, QpConfig, UdInit, UdQp};
use ferrofabric_verbs_sys::ibv_sge;

use crate::endpoints::party::{PATIENCE, PeerPair, assert_clean};

/// Handles that an endpoint may hold beside those of its peers: some in reserve, some being made,
/// some of datagrams under way.
const SPARE: u32 = 512;

/// A queue pair that sends what it likes.
pub(crate) struct UnknownSender {
    qp: UdQp,
    cq: Arc<Cq>,
    handle: Ah,
    // Registered: not each NIC takes so much inline. The region goes before its memory.
    mr: Mr,
    memory: RefCell<Box<[u8]>>,
    to: NativeAddr,
}

/// Bytes of the longest datagram.
const MOST: usize = 4096;

impl UnknownSender {
    /// A sender of control packets to this endpoint.
    pub(crate) fn of(to: NativeAddr) -> Self {
        let verbs = to.verbs.unwrap();
        let context = DeviceContext::open(ROCE).unwrap();
        let pd = Pd::allocate(&context).unwrap();
        let depth = CqConfig {
            depth: 8,
            ..CqConfig::default()
        };
        let cq = Cq::create(&context, &depth).unwrap();
        let config = QpConfig {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                send_depth: 4,
                recv_depth: 1,
                send_entries: 1,
                recv_entries: 1,
                inline_bytes: 0,
            },
            signal_all: true,
            extended: None,
        };
        let qp = UdQp::create(&pd, &config).unwrap();
        let in_use = |slot: &u16| context.pkey(1, *slot).unwrap() != 0;
        qp.activate(&UdInit {
            port: 1,
            pkey_index: (0..).find(in_use).unwrap(),
            qkey: verbs.qkey,
            psn: 0,
        })
        .unwrap();
        let handle = Ah::create(&pd, &PortPath::to_gid(1, 0, Gid(verbs.gid))).unwrap();
        let mut memory = vec![0; MOST].into_boxed_slice();
        // SAFETY: the memory is freed after the region, and written only while no send reads it.
        let mr = unsafe { Mr::register(&pd, memory.as_mut_ptr(), MOST, Access::LOCAL_WRITE) };
        Self {
            qp,
            cq,
            handle,
            mr: mr.unwrap(),
            memory: RefCell::new(memory),
            to,
        }
    }

    /// Sends a keep-alive for a lane that does not exist, as a peer with a path of its own.
    fn ask(&self, number: u16) {
        let mut verbs = self.to.verbs.unwrap();
        // The device ignores the LID, and has a path to each queue pair with its own GID.
        verbs.lid = number;
        verbs.qpn = 0x7f_ffff;
        let from = NativeAddr {
            incarnation: 0,
            shm: None,
            verbs: Some(verbs),
            ..self.to
        };
        let packet = ControlPacket {
            from: PeerKey {
                place: from.to_bytes(),
                incarnation: 7,
            },
            to_incarnation: self.to.incarnation,
            lane: LaneName {
                epoch: 1,
                initiator_nonce: 1,
                ..LaneName::default()
            },
            newest_epoch: 0,
            keys: Keys {
                p_key: verbs.pkey,
                q_key: None,
            },
            body: ControlBody::KeepAlive { stamp_ns: 0 },
        }
        .to_bytes();
        self.send(verbs_of(&self.to).qpn, &packet);
    }

    /// Sends a datagram to a queue pair of the endpoint.
    pub(crate) fn send(&self, qpn: u32, datagram: &[u8]) {
        let qkey = verbs_of(&self.to).qkey;
        let mut memory = self.memory.borrow_mut();
        memory[..datagram.len()].copy_from_slice(datagram);
        let entry = ibv_sge {
            addr: memory.as_ptr() as u64,
            length: datagram.len() as u32,
            lkey: self.mr.lkey(),
        };
        let mut request = SendRequest::send(1, [entry])
            .to(&self.handle, qpn, qkey)
            .flags(SendFlags::SIGNALED);
        // SAFETY: memory and handle are there until the completion.
        unsafe { request.post(&self.qp) }.unwrap();
        let mut room = [MaybeUninit::uninit(); 4];
        while self.cq.poll(&mut room).unwrap().is_empty() {}
    }
}

fn verbs_of(name: &NativeAddr) -> VerbsAddr {
    name.verbs.unwrap()
}

/// Answers to unknown sources take no lasting resources, however many there are, and other peers
/// are served as before.
#[test]
fn unknown_sources_that_forge_addresses() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::open(&[]);
    let stranger = UnknownSender::of(pair.a.name());
    let before = device.live().handles;
    let (begun, answered) = (Instant::now(), device.calls("ibv_create_ah"));
    // Those for which there is no room get lost.
    for number in (1..=u16::MAX).cycle() {
        stranger.ask(number);
        let kept = device.live().handles - before;
        assert!(kept <= SPARE, "{kept} handles for {number} unknown sources");
        if device.calls("ibv_create_ah") - answered >= 3000 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody is answered");
        std::thread::yield_now();
    }
    for (tag, bytes) in [8, 80_000].into_iter().enumerate() {
        pair.exchange(bytes, tag as u64);
    }
    drop((pair, stranger));
    assert_clean(&device);
}
