//! Datagrams.

use std::sync::Arc;

use ferrofabric_hw_tests::{DeviceBuffer, Rig, completions, one_completion};
use ferrofabric_verbs::device::{Gid, LinkLayer};
use ferrofabric_verbs::raw::ah::{Ah, PortPath};
use ferrofabric_verbs::raw::cq::Cq;
use ferrofabric_verbs::raw::post::{RecvRequest, SendFlags, SendRequest, inline_sge};
use ferrofabric_verbs::raw::qp::{SendOps, UdInit, UdQp};
use ferrofabric_verbs_sys::{ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use serial_test::file_serial;

const QKEY: u32 = 0x1122_3344;

fn endpoint(rig: &Rig, cq: &Arc<Cq>, qkey: u32, extended: bool) -> UdQp {
    let ops = extended.then_some(SendOps::SEND | SendOps::SEND_IMMEDIATE);
    let qp = UdQp::create(&rig.pd, &rig.config(cq, None, ops)).unwrap();
    let init = UdInit {
        port: rig.port.number,
        pkey_index: 0,
        qkey,
        psn: 0x1234,
    };
    qp.activate(&init).unwrap();
    qp
}

fn post_receive(qp: &UdQp, buffer: &DeviceBuffer, wr_id: u64, len: usize) {
    let entry = buffer
        .region()
        .sge(0, (UdQp::HEADER_BYTES + len) as u32)
        .expect("within");
    // SAFETY: registered, and left alone until the completion.
    unsafe { RecvRequest::new(wr_id, [entry]).post(qp) }.unwrap();
}

#[test]
#[file_serial(verbs)]
fn ping_pong() {
    let Some(rig) = Rig::open() else { return };
    let mtu = rig.port.active_mtu.bytes();
    let (left_cq, right_cq) = (rig.cq(64, false), rig.cq(64, false));
    let (left, right) = (
        endpoint(&rig, &left_cq, QKEY, false),
        endpoint(&rig, &right_cq, QKEY, false),
    );
    let handle = Ah::create(&rig.pd, &rig.path()).unwrap();
    let (sent, received) = (rig.buffer(8192), rig.buffer(8192));
    for (round, len) in [0, 1, 64, 1000, mtu]
        .into_iter()
        .cycle()
        .take(50)
        .enumerate()
    {
        let message = DeviceBuffer::pattern(round as u32, len);
        sent.write(0, &message);
        let ends = [(&left, &left_cq), (&right, &right_cq)];
        for turn in [0, 1] {
            let ((from, from_cq), (to, to_cq)) = (ends[turn], ends[1 - turn]);
            received.fill(0xee);
            post_receive(to, &received, 7, mtu);
            let entry = sent.region().sge(0, len as u32).expect("within");
            let mut request = SendRequest::send(8, [entry])
                .to(&handle, to.number(), QKEY)
                .flags(SendFlags::SIGNALED);
            // SAFETY: registered, and memory and handle are left alone until the completion.
            unsafe { request.post(from) }.unwrap();
            assert_eq!(one_completion(from_cq).wr_id, 8);
            let wc = one_completion(to_cq);
            assert_eq!(
                (wc.wr_id, wc.opcode, wc.src_qp),
                (7, ibv_wc_opcode::IBV_WC_RECV, from.number())
            );
            assert_eq!(wc.byte_len as usize, UdQp::HEADER_BYTES + len);
            assert_eq!(received.read(UdQp::HEADER_BYTES, len), message);
            if rig.port.link_layer == LinkLayer::Ethernet {
                assert_ne!(wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0, 0);
            }
        }
    }
}

#[test]
#[file_serial(verbs)]
fn extended_with_immediate_and_inline() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, true);
    let (left, right) = (
        endpoint(&rig, &cq, QKEY, true),
        endpoint(&rig, &cq, QKEY, true),
    );
    let handle = Ah::create(&rig.pd, &rig.path()).unwrap();
    let received = rig.buffer(8192);
    for round in 0..20u32 {
        let message = DeviceBuffer::pattern(round, 100);
        post_receive(&right, &received, 7, 100);
        let mut batch = left.start_batch().expect("created extended");
        // SAFETY: created for the operation; the handle lives till the end.
        unsafe {
            batch
                .send_immediate(8, SendFlags::SIGNALED | SendFlags::INLINE, round.to_be())
                .to(&handle, right.number(), QKEY)
                .inline(&message);
        }
        batch.complete().unwrap();
        let mut seen = 0;
        while seen < 2 {
            let Some(poll) = cq.start_poll().unwrap() else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(poll.status(), ibv_wc_status::IBV_WC_SUCCESS);
            if poll.opcode() == ibv_wc_opcode::IBV_WC_RECV {
                assert_eq!(
                    (poll.src_qp(), u32::from_be(poll.imm_data())),
                    (left.number(), round)
                );
                assert_eq!(poll.byte_len(), 140);
            }
            seen += 1;
        }
        assert_eq!(received.read(UdQp::HEADER_BYTES, 100), message);
    }
}

/// On RoCE v2 over IPv4 the routing header is an IPv4 header in its last 20 bytes, with the
/// sender's address.
#[test]
#[file_serial(verbs)]
fn the_routing_header_names_the_sender() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, false);
    let (left, right) = (
        endpoint(&rig, &cq, QKEY, false),
        endpoint(&rig, &cq, QKEY, false),
    );
    let handle = Ah::create(&rig.pd, &rig.path()).unwrap();
    let received = rig.buffer(4096);
    post_receive(&right, &received, 7, 64);
    let mut request = SendRequest::send(8, [inline_sge(b"who?")])
        .to(&handle, right.number(), QKEY)
        .flags(SendFlags::INLINE);
    // SAFETY: inline; the handle lives till the end.
    unsafe { request.post(&left) }.unwrap();
    one_completion(&cq);
    let header = received.read(0, UdQp::HEADER_BYTES);
    let v4 = rig.gid.0[12..].to_vec();
    let (in_v4, in_v6) = (header[32..36] == v4[..], header[8..24] == rig.gid.0[..]);
    assert!(in_v4 || in_v6, "{header:02x?} does not name {}", rig.gid);
}

#[test]
#[file_serial(verbs)]
fn a_wrong_key_is_dropped() {
    let Some(rig) = Rig::open() else { return };
    let (left_cq, right_cq) = (rig.cq(64, false), rig.cq(64, false));
    let (left, right) = (
        endpoint(&rig, &left_cq, QKEY, false),
        endpoint(&rig, &right_cq, QKEY, false),
    );
    let handle = Ah::create(&rig.pd, &rig.path()).unwrap();
    let received = rig.buffer(4096);
    post_receive(&right, &received, 7, 64);
    for (qkey, text) in [(QKEY ^ 1, b"wrong"), (QKEY, b"right")] {
        let mut request = SendRequest::send(8, [inline_sge(text)])
            .to(&handle, right.number(), qkey)
            .flags(SendFlags::SIGNALED | SendFlags::INLINE);
        // SAFETY: inline; the handle lives till the end.
        unsafe { request.post(&left) }.unwrap();
    }
    completions(&left_cq, 2);
    // One receive is posted: the first datagram takes it.
    assert_eq!(one_completion(&right_cq).byte_len, 45);
    assert_eq!(received.read(UdQp::HEADER_BYTES, 5), b"right");
}

#[test]
#[file_serial(verbs)]
fn a_handle_to_nowhere_is_refused() {
    let Some(rig) = Rig::open() else { return };
    let to_nothing = PortPath {
        gid_index: 200,
        ..rig.path()
    };
    let error = Ah::create(&rig.pd, &to_nothing).expect_err("that GID slot is empty");
    assert!(error.to_string().contains("GID index 200"), "{error}");
    if rig.port.link_layer == LinkLayer::Ethernet {
        let nowhere = rig.path_to(Gid([0; 16]));
        assert!(Ah::create(&rig.pd, &nowhere).is_err());
    }
}
