//! Shared receive queues.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use ferrofabric_contracts::error::OpError;
use ferrofabric_hw_tests::{DeviceBuffer, Rig, completions, one_completion};
use ferrofabric_verbs::device::{DeviceEvent, EventSubject};
use ferrofabric_verbs::raw::post::{RecvRequest, SendFlags, SendRequest};
use ferrofabric_verbs::raw::srq::{Srq, SrqConfig};
use ferrofabric_verbs_sys::{ibv_event_type, ibv_wc_status};
use serial_test::file_serial;

fn queue(rig: &Rig, depth: u32, entries: u32) -> Arc<Srq> {
    Srq::create(&rig.pd, &SrqConfig { depth, entries }).unwrap()
}

#[test]
#[file_serial(verbs)]
fn many_connections_receive_from_one_queue() {
    let Some(rig) = Rig::open() else { return };
    let srq = queue(&rig, 16, 2);
    let (send_cq, recv_cq) = (rig.cq(64, false), rig.cq(64, false));
    let (plain, shared) = (
        rig.config(&send_cq, None, None),
        rig.config(&recv_cq, Some(&srq), None),
    );
    let pairs: Vec<_> = (0..3)
        .map(|_| rig.connected_pair(&plain, &shared))
        .collect();
    let (sent, received) = (rig.buffer(4096), rig.buffer(4096));
    for round in 0..10u32 {
        received.fill(0);
        let mut receives: [_; 3] = std::array::from_fn(|i| {
            // In two pieces.
            let halves =
                [0, 100].map(|half| received.region().sge(i * 200 + half, 100).expect("within"));
            RecvRequest::new(i as u64, halves)
        });
        // SAFETY: registered, and left alone until the completions.
        unsafe { RecvRequest::post_all_shared(&mut receives, &srq) }.unwrap();
        for (i, (left, right)) in pairs.iter().enumerate() {
            let message = DeviceBuffer::pattern(round * 3 + i as u32, 150);
            sent.write(0, &message);
            let entry = sent.region().sge(0, 150).expect("within");
            // SAFETY: as above.
            unsafe {
                SendRequest::send(9, [entry])
                    .flags(SendFlags::SIGNALED)
                    .post(left)
            }
            .unwrap();
            one_completion(&send_cq);
            let wc = one_completion(&recv_cq);
            assert_eq!(
                (wc.wr_id, wc.qp_num, wc.byte_len),
                (i as u64, right.number(), 150)
            );
            assert_eq!(received.read(i * 200, 150), message);
        }
    }
}

#[test]
#[file_serial(verbs)]
fn a_full_queue_pushes_back() {
    let Some(rig) = Rig::open() else { return };
    let srq = queue(&rig, 8, 1);
    let granted = srq.granted().depth as usize;
    assert!(granted >= 8);
    let received = rig.buffer(4096);
    let entry = received.region().sge(0, 64).expect("within");
    let mut requests = vec![RecvRequest::new(0, [entry]); 4 * granted];
    // SAFETY: registered, and nothing is sent to it.
    let outcome = unsafe { RecvRequest::post_all_shared(&mut requests, &srq) };
    let (reason, posted) = outcome.expect_err("more than fit");
    assert_eq!(reason, OpError::Again);
    assert!(
        posted >= granted && posted < 4 * granted,
        "{posted} of {granted}"
    );
    // SAFETY: as above.
    let one_more = unsafe { RecvRequest::new(0, [entry]).post_shared(&srq) };
    assert_eq!(one_more, Err(OpError::Again));
}

#[test]
#[file_serial(verbs)]
fn an_armed_limit_reports_once() {
    let Some(rig) = Rig::open() else { return };
    let fd = rig.context.as_fd().as_raw_fd();
    rig.context.set_events_nonblocking().unwrap();
    let next = || rig.context.take_event(|event| event).unwrap();
    while next().is_some() {}

    let srq = queue(&rig, 8, 1);
    let (send_cq, recv_cq) = (rig.cq(64, false), rig.cq(64, false));
    let (left, _right) = rig.connected_pair(
        &rig.config(&send_cq, None, None),
        &rig.config(&recv_cq, Some(&srq), None),
    );
    let buffer = rig.buffer(4096);
    let entry = buffer.region().sge(0, 16).expect("within");
    for wr_id in 0..4 {
        // SAFETY: the memory is registered, and its content does not matter.
        unsafe { RecvRequest::new(wr_id, [entry]).post_shared(&srq) }.unwrap();
    }
    srq.arm_limit(3).unwrap();
    assert_eq!(next(), None);
    for _ in 0..3 {
        // SAFETY: as above.
        unsafe {
            SendRequest::send(9, [entry])
                .flags(SendFlags::SIGNALED)
                .post(&left)
        }
        .unwrap();
        assert_eq!(
            completions(&send_cq, 1)[0].status,
            ibv_wc_status::IBV_WC_SUCCESS
        );
        one_completion(&recv_cq);
    }
    let mut wanted = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which is open.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, 60_000) };
    assert_eq!(ready, 1, "no event came");
    let expected = DeviceEvent {
        kind: ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
        subject: EventSubject::SharedReceiveQueue(srq.id()),
    };
    assert_eq!(next(), Some(expected));
    assert_eq!(next(), None);
    assert_eq!(rig.context.event_text(expected.kind), "SRQ limit reached");
}

#[test]
#[file_serial(verbs)]
fn a_queue_can_grow_and_has_limits() {
    let Some(rig) = Rig::open() else { return };
    let srq = queue(&rig, 8, 1);
    srq.resize(500).unwrap();
    let received = rig.buffer(4096);
    let entry = received.region().sge(0, 64).expect("within");
    let mut requests = vec![RecvRequest::new(0, [entry]); 500];
    // SAFETY: registered, and nothing is sent to it.
    unsafe { RecvRequest::post_all_shared(&mut requests, &srq) }.unwrap();
    let limits = rig.context.limits();
    let config = SrqConfig {
        depth: 8,
        entries: limits.shared_receive_entries + 1,
    };
    let error = Srq::create(&rig.pd, &config).expect_err("too many entries");
    assert!(
        error
            .to_string()
            .contains(&format!("up to {} entries", limits.shared_receive_entries)),
        "{error}"
    );
}

#[test]
#[file_serial(verbs)]
fn a_queue_pair_with_a_shared_queue_has_none_of_its_own() {
    let Some(rig) = Rig::open() else { return };
    let srq = queue(&rig, 8, 1);
    let cq = rig.cq(64, false);
    let (left, _right) = rig.connected_pair(
        &rig.config(&cq, Some(&srq), None),
        &rig.config(&cq, None, None),
    );
    let received = rig.buffer(4096);
    let entry = received.region().sge(0, 64).expect("within");
    // SAFETY: refused before the memory is used.
    let refused = unsafe { RecvRequest::new(0, [entry]).post(&left) };
    assert!(matches!(refused, Err(OpError::Failed(_))), "{refused:?}");
}
