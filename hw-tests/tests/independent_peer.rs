//! Our layer against another implementation: one end of a connection is ours, the other the
//! `ibverbs` crate's.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use ferrofabric_hw_tests::{DeviceBuffer, Rig, one_completion};
use ferrofabric_verbs::device::Gid;
use ferrofabric_verbs::raw::ah::PortPath;
use ferrofabric_verbs::raw::mr::Access;
use ferrofabric_verbs::raw::post::{RecvRequest, SendFlags, SendRequest};
use ferrofabric_verbs::raw::qp::{RcConnect, RcInit, RcQp, RcTimers};
use serial_test::file_serial;

const LEN: usize = 10_000;
const ROUNDS: u32 = 50;

#[test]
#[file_serial(verbs)]
fn rc_ping_pong_with_another_implementation() {
    let Some(rig) = Rig::open() else { return };
    assert_eq!(
        rig.port.number, 1,
        "the other implementation knows port 1 only"
    );

    // Theirs.
    let devices = ibverbs::devices().unwrap();
    let device = devices
        .iter()
        .find(|device| {
            device
                .name()
                .is_some_and(|name| name.to_bytes() == rig.context.name().as_bytes())
        })
        .unwrap();
    let context = device.open().unwrap();
    let their_cq = context.create_cq(64, 0).unwrap();
    let their_pd = context.alloc_pd().unwrap();
    let prepared = their_pd
        .create_qp(&their_cq, &their_cq, ibverbs::ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(u32::from(rig.gid_index))
        .set_max_send_wr(4)
        .set_max_recv_wr(4)
        .build()
        .unwrap();
    let theirs = prepared.endpoint();

    // Ours.
    let cq = rig.cq(64, false);
    let ours = RcQp::create(&rig.pd, &rig.config(&cq, None, None)).unwrap();
    let their_gid = theirs.gid.expect("asked for by index");
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&their_gid.subnet_prefix().to_be_bytes());
    gid[8..].copy_from_slice(&their_gid.interface_id().to_be_bytes());
    assert_eq!(Gid(gid), rig.gid);
    let mtu = rig.port.active_mtu;
    ours.to_init(&RcInit {
        port: 1,
        pkey_index: 0,
        access: Access::REMOTE_WRITE,
    })
    .unwrap();
    ours.to_rtr(&RcConnect {
        path: PortPath::to_gid(1, rig.gid_index, Gid(gid)),
        mtu,
        remote_qp: theirs.num,
        remote_psn: 0,
        reads_as_target: 1,
        receiver_not_ready_code: 12,
    })
    .unwrap();
    ours.to_rts(&RcTimers {
        psn: 0,
        timeout_exponent: 17,
        retries: 7,
        receiver_not_ready_retries: 7,
        reads_as_initiator: 1,
    })
    .unwrap();
    let our_end = ibverbs::QueuePairEndpoint {
        num: ours.number(),
        lid: rig.port.lid,
        gid: Some(their_gid),
    };
    let mut their_qp = prepared.handshake(our_end).unwrap();

    let mut their_memory = their_pd.allocate::<u8>(LEN).unwrap();
    let (sent, received) = (rig.buffer(LEN), rig.buffer(LEN));
    for round in 0..ROUNDS {
        let message = DeviceBuffer::pattern(round, LEN);
        sent.write(0, &message);
        received.fill(0);
        // SAFETY: the memory is left alone until each completion.
        unsafe {
            their_qp.post_receive(&mut their_memory, .., 1).unwrap();
            RecvRequest::new(2, [received.region().sge(0, LEN as u32).unwrap()])
                .post(&ours)
                .unwrap();
            SendRequest::send(3, [sent.region().sge(0, LEN as u32).unwrap()])
                .flags(SendFlags::SIGNALED)
                .post(&ours)
                .unwrap();
        }
        assert_eq!(one_completion(&cq).wr_id, 3);
        assert_eq!(their_completion(&their_cq), 1);
        assert_eq!(&their_memory[..], message);
        // They answer with every bit turned.
        their_memory.iter_mut().for_each(|byte| *byte = !*byte);
        // SAFETY: as above.
        unsafe { their_qp.post_send(&mut their_memory, .., 4) }.unwrap();
        assert_eq!(their_completion(&their_cq), 4);
        assert_eq!(one_completion(&cq).wr_id, 2);
        let turned: Vec<_> = message.iter().map(|byte| !byte).collect();
        assert_eq!(received.read(0, LEN), turned);
    }
}

fn their_completion(cq: &ibverbs::CompletionQueue<'_>) -> u64 {
    let mut room = [ibverbs::ibv_wc::default()];
    let began = Instant::now();
    loop {
        if let Some(wc) = cq.poll(&mut room).unwrap().first() {
            assert!(wc.is_valid(), "{:?}", wc.error());
            return wc.wr_id();
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no completion came"
        );
        std::thread::yield_now();
    }
}
