//! DGRAM endpoints and queue pairs that speak plain verbs: the frames on the wire, and the handling
//! of frames that break the rules.

use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::dgram::{PATIENCE, PrefixRoom, count, domain, endpoint, next, quiet};
use ferrofabric_hw_tests::{DeviceBuffer as Registered, Rig, completions, one_completion, party};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_verbs::raw::ah::Ah;
use ferrofabric_verbs::raw::cq::Cq;
use ferrofabric_verbs::raw::post::{RecvRequest, SendFlags, SendRequest};
use ferrofabric_verbs::raw::qp::{UdInit, UdQp};
use ferrofabric_verbs_sys::{ibv_wc, ibv_wc_flags};
use serial_test::file_serial;

/// The key of libfabric's verbs provider, and of ours.
const QKEY: u32 = 0x1111_1111;

/// A queue pair that is not one of ours.
struct ForeignQueuePair<'a> {
    rig: &'a Rig,
    qp: UdQp,
    cq: Arc<Cq>,
    handle: Ah,
    memory: Registered,
}

impl<'a> ForeignQueuePair<'a> {
    fn new(rig: &'a Rig) -> Self {
        let cq = rig.cq(64, false);
        let qp = UdQp::create(&rig.pd, &rig.config(&cq, None, None)).unwrap();
        qp.activate(&UdInit {
            port: rig.port.number,
            pkey_index: 0,
            qkey: QKEY,
            psn: 0x1234,
        })
        .unwrap();
        Self {
            rig,
            qp,
            cq,
            handle: Ah::create(&rig.pd, &rig.path()).unwrap(),
            memory: rig.buffer(8192),
        }
    }

    /// Sends a frame, of which there need not be a byte, and waits until it has left.
    fn send(&self, to: &NativeAddr, qkey: u32, frame: &[u8], immediate: Option<u32>) {
        self.memory.write(0, frame);
        let entry = self.memory.region().sge(0, frame.len() as u32).unwrap();
        let mut request = SendRequest::send(8, [entry])
            .to(&self.handle, to.verbs.unwrap().qpn, qkey)
            .flags(SendFlags::SIGNALED);
        if let Some(data) = immediate {
            request = request.immediate(data.to_be());
        }
        // SAFETY: registered, and memory and handle are left alone until the completion.
        unsafe { request.post(&self.qp) }.unwrap();
        assert_eq!(one_completion(&self.cq).wr_id, 8);
    }

    fn post_receive(&self) {
        let entry = self.memory.region().sge(0, 8192).unwrap();
        // SAFETY: registered, and left alone until the completion.
        unsafe { RecvRequest::new(7, [entry]).post(&self.qp) }.unwrap();
    }

    fn receive(&self) -> ibv_wc {
        completions(&self.cq, 1)[0]
    }

    /// How an endpoint of ours addresses it.
    fn name(&self, like: &NativeAddr) -> NativeAddr {
        let mut verbs = like.verbs.unwrap();
        verbs.qpn = self.qp.number();
        verbs.qkey = QKEY;
        assert_eq!(verbs.gid, self.rig.gid.0);
        NativeAddr {
            incarnation: 0,
            verbs: Some(verbs),
            ..*like
        }
    }
}

fn open(prefix: PrefixRoom) -> OwningEndpoint {
    endpoint(&*domain(&[], prefix))
}

fn post(endpoint: &mut OwningEndpoint, len: usize) {
    let into = Buffer::new(len).unwrap();
    endpoint.recv(into, FiAddr::UNSPEC, 1).unwrap();
}

/// Drives an endpoint at which nothing completes until it has sent enough.
fn drive(ours: &mut OwningEndpoint, enough: impl Fn(u64) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !enough(count(ours, "dgram_messages_sent")) {
        assert!(ours.poll().unwrap().is_none());
        assert!(Instant::now() < until, "it does not send");
    }
}

/// Covers: AV-25
#[test]
#[file_serial(verbs)]
fn frames_of_a_plain_queue_pair_are_received() {
    let Some(rig) = Rig::open() else { return };
    let stranger = ForeignQueuePair::new(&rig);
    let mtu = rig.port.active_mtu.bytes();
    for prefix in [PrefixRoom::None, PrefixRoom::Room] {
        let mut ours = open(prefix);
        let name = ours.name();
        let room = prefix.bytes();
        let known = ours.av().insert(&stranger.name(&name).to_bytes()).unwrap();
        for (len, immediate) in [(0, None), (0, Some(9)), (1, None), (mtu, Some(u32::MAX))] {
            let mut frame = vec![0; len];
            party::fill(&mut frame, len as u64);
            post(&mut ours, room + mtu);
            stranger.send(&name, QKEY, &frame, immediate);
            let done = next(&mut ours, "the frame");
            let completion = done.outcome.unwrap();
            assert_eq!((completion.len, completion.src), (room + len, known));
            assert_eq!(done.buffer[room..room + len], frame[..]);
            let flags = completion.flags - Flags::MSG - Flags::RECV;
            match immediate {
                None => assert_eq!((completion.data, flags), (0, Flags::empty())),
                Some(data) => assert_eq!(
                    (completion.data, flags),
                    (data.into(), Flags::REMOTE_CQ_DATA)
                ),
            }
        }
        ours.av().remove(known).unwrap();
        post(&mut ours, room);
        stranger.send(&name, QKEY, &[], None);
        assert_eq!(
            next(&mut ours, "the frame").outcome.unwrap().src,
            FiAddr::NOTAVAIL
        );
    }
}

#[test]
#[file_serial(verbs)]
fn a_plain_queue_pair_receives_nothing_but_the_message() {
    let Some(rig) = Rig::open() else { return };
    let stranger = ForeignQueuePair::new(&rig);
    for prefix in [PrefixRoom::None, PrefixRoom::Room] {
        let mut ours = open(prefix);
        let mut before = 0;
        let to = ours.av().insert(&stranger.name(&ours.name()).to_bytes());
        let to = to.unwrap();
        let room = prefix.bytes();
        for (len, data) in [
            (0, None),
            (5, Some(0x0102_0304)),
            (2000, None),
            (3000, Some(1)),
        ] {
            if len > rig.port.active_mtu.bytes() {
                continue;
            }
            let mut message = vec![0xcc; room + len];
            party::fill(&mut message[room..], 3);
            stranger.post_receive();
            ours.inject(&message, to, data).unwrap();
            // A first send waits for its handle, and goes when we look.
            drive(&mut ours, |sent| sent > before);
            before = count(&ours, "dgram_messages_sent");
            let wc = stranger.receive();
            assert_eq!(wc.byte_len as usize, UdQp::HEADER_BYTES + len);
            assert_eq!(wc.src_qp, ours.name().verbs.unwrap().qpn);
            let with_data = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            assert_eq!(with_data, data.is_some());
            if let Some(data) = data {
                // SAFETY: plain bytes.
                let immediate = unsafe { wc.__bindgen_anon_1.imm_data };
                assert_eq!(u64::from(u32::from_be(immediate)), data);
            }
            let got = stranger.memory.read(UdQp::HEADER_BYTES, len);
            assert_eq!(got, message[room..]);
        }
    }
}

/// Covers: AV-21
#[test]
#[file_serial(verbs)]
fn frames_with_a_wrong_key_are_dropped() {
    let Some(rig) = Rig::open() else { return };
    let stranger = ForeignQueuePair::new(&rig);
    let mut ours = open(PrefixRoom::None);
    let name = ours.name();
    assert_eq!(name.verbs.unwrap().qkey, QKEY);
    post(&mut ours, 100);
    for wrong in [QKEY ^ 1, 0, u32::MAX >> 1] {
        stranger.send(&name, wrong, b"wrong", None);
    }
    quiet(&mut [&mut ours]);
    stranger.send(&name, QKEY, b"right", None);
    let done = next(&mut ours, "the frame");
    assert_eq!(done.outcome.unwrap().len, 5);
    assert_eq!(done.buffer[..5], *b"right");
}

/// Each receive ends with one frame, whatever the frame holds, and frames without a receive are
/// lost.
#[test]
#[file_serial(verbs)]
fn a_flood_of_frames_takes_the_posted_receives_alone() {
    let Some(rig) = Rig::open() else { return };
    let stranger = ForeignQueuePair::new(&rig);
    let mut ours = open(PrefixRoom::None);
    let mtu = rig.port.active_mtu.bytes();
    let mut rng = Rng::with_seed(5);
    for round in 0..10 {
        let receives = round % 4;
        for _ in 0..receives {
            post(&mut ours, 300);
        }
        for _ in 0..20 {
            let mut frame = vec![0; party::size(&mut rng, 0, mtu)];
            party::fill(&mut frame, rng.u64(..));
            stranger.send(&ours.name(), QKEY, &frame, None);
        }
        for _ in 0..receives {
            let done = next(&mut ours, "a frame");
            match done.outcome {
                Ok(completion) => assert!(completion.len <= 300),
                Err(error) => assert_eq!((error.errno, error.completion.len), (Errno::ETRUNC, 300)),
            }
        }
        quiet(&mut [&mut ours]);
    }
    assert_eq!(
        count(&ours, "dgram_messages_received"),
        1 + 2 + 3 + 1 + 2 + 3 + 1
    );
    assert_eq!(count(&ours, "dgram_resets"), 0);
}

/// RDM endpoints have a queue pair for datagrams, too: a frame that is sent there by mistake
/// changes nothing.
#[test]
#[file_serial(verbs)]
fn frames_at_the_wrong_endpoint_do_no_harm() {
    if Rig::open().is_none() {
        return;
    }
    let verbs = [("FERRO_SHM", "off")];
    let (mut a, mut b) = (party::endpoint(&verbs), party::endpoint(&verbs));
    let mut ours = open(PrefixRoom::None);
    let rdm = ours.av().insert(&b.name().to_bytes()).unwrap();
    let frames = [0, 1, NATIVE_LEN, 128, 1000];
    for len in frames {
        ours.inject(&vec![0xfe; len], rdm, Some(1)).unwrap();
    }
    drive(&mut ours, |sent| sent == frames.len() as u64);
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    b.trecv(Buffer::new(5).unwrap(), FiAddr::UNSPEC, 1, 0, 1)
        .unwrap();
    a.tsend(Buffer::new(5).unwrap(), 5, to_b, 1, 2).unwrap();
    let (mut sent, mut received) = (false, false);
    let until = Instant::now() + party::PATIENCE;
    while !(sent && received) {
        sent |= a.poll().unwrap().is_some();
        received |= b.poll().unwrap().is_some();
        assert!(Instant::now() < until, "the message is lost");
    }
}
