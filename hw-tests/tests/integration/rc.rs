//! Messages over reliable connections.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use ferrofabric_contracts::error::OpError;
use ferrofabric_hw_tests::{DeviceBuffer, Rig, completions, one_completion};
use ferrofabric_verbs::device::Quirks;
use ferrofabric_verbs::raw::cq::{CompChannel, Cq, CqConfig};
use ferrofabric_verbs::raw::post::{RecvRequest, SendFlags, SendRequest, inline_sge};
use ferrofabric_verbs::raw::qp::{RcQp, SendOps};
use ferrofabric_verbs_sys::{ibv_qp_state, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use serial_test::file_serial;

const SIZES: [usize; 8] = [0, 1, 63, 64, 1024, 4096, 4097, 65536];

fn post_receive(qp: &RcQp, buffer: &DeviceBuffer, wr_id: u64, len: usize) {
    let entry = buffer.region().sge(0, len as u32).expect("within");
    // SAFETY: registered, and left alone until the completion.
    unsafe { RecvRequest::new(wr_id, [entry]).post(qp) }.unwrap();
}

#[test]
#[file_serial(verbs)]
fn ping_pong() {
    let Some(rig) = Rig::open() else { return };
    let (left_cq, right_cq) = (rig.cq(64, false), rig.cq(64, false));
    let (left, right) = rig.connected_pair(
        &rig.config(&left_cq, None, None),
        &rig.config(&right_cq, None, None),
    );
    let (sent, received, back) = (rig.buffer(65536), rig.buffer(65536), rig.buffer(65536));
    for (round, len) in SIZES.into_iter().cycle().take(64).enumerate() {
        let message = DeviceBuffer::pattern(round as u32, len);
        sent.write(0, &message);
        received.fill(0xee);
        back.fill(0xdd);
        post_receive(&right, &received, 1, len);
        post_receive(&left, &back, 2, len);
        for (qp, cq, from, wr_id) in [
            (&left, &left_cq, &sent, 3),
            (&right, &right_cq, &received, 4),
        ] {
            let entry = from.region().sge(0, len as u32).expect("within");
            // SAFETY: registered, and left alone until the completion.
            unsafe {
                SendRequest::send(wr_id, [entry])
                    .flags(SendFlags::SIGNALED)
                    .post(qp)
            }
            .unwrap();
            let wc = one_completion(cq);
            assert_eq!((wc.wr_id, wc.opcode), (wr_id, ibv_wc_opcode::IBV_WC_SEND));
            let (at, at_cq) = if wr_id == 3 {
                (&right, &right_cq)
            } else {
                (&left, &left_cq)
            };
            let wc = one_completion(at_cq);
            assert_eq!(
                (wc.opcode, wc.qp_num),
                (ibv_wc_opcode::IBV_WC_RECV, at.number())
            );
            assert_eq!(wc.byte_len as usize, len);
        }
        assert_eq!(received.read(0, len), message);
        assert_eq!(back.read(0, len), message);
    }
}

#[test]
#[file_serial(verbs)]
fn ping_pong_extended() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, true);
    let config = rig.config(&cq, None, Some(SendOps::SEND | SendOps::SEND_IMMEDIATE));
    let (left, right) = rig.connected_pair(&config, &config);
    let (sent, received) = (rig.buffer(65536), rig.buffer(65536));
    for (round, len) in SIZES.into_iter().cycle().take(32).enumerate() {
        let message = DeviceBuffer::pattern(round as u32, len);
        let immediate = (round as u32 + 7).to_be();
        sent.write(0, &message);
        received.fill(0xee);
        post_receive(&right, &received, 100 + round as u64, len);
        let entry = sent.region().sge(0, len as u32).expect("within");
        let mut batch = left.start_batch().expect("created extended");
        // SAFETY: created for the operation; the memory is left alone until the completion.
        unsafe {
            batch
                .send_immediate(round as u64, SendFlags::SIGNALED, immediate)
                .entry(entry)
        };
        batch.complete().unwrap();

        let (mut sends, mut receives) = (0, 0);
        while (sends, receives) != (1, 1) {
            let Some(poll) = cq.start_poll().unwrap() else {
                std::thread::yield_now();
                continue;
            };
            let mut at = Some(poll);
            while let Some(here) = at {
                assert_eq!(here.status(), ibv_wc_status::IBV_WC_SUCCESS);
                match here.opcode() {
                    ibv_wc_opcode::IBV_WC_SEND => {
                        assert_eq!((here.wr_id(), here.qp_num()), (round as u64, left.number()));
                        sends += 1;
                    }
                    ibv_wc_opcode::IBV_WC_RECV => {
                        assert_eq!(
                            (here.wr_id(), here.qp_num()),
                            (100 + round as u64, right.number())
                        );
                        assert_eq!(
                            (here.byte_len() as usize, here.imm_data()),
                            (len, immediate)
                        );
                        assert_ne!(here.wc_flags() & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
                        receives += 1;
                    }
                    other => panic!("{other:?}"),
                }
                at = here.advance().unwrap();
            }
        }
        assert_eq!(received.read(0, len), message);
    }
    assert!(cq.start_poll().unwrap().is_none());
}

/// An extended queue can be polled the legacy way too.
#[test]
#[file_serial(verbs)]
fn inline_payloads_are_free_at_once() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, true);
    let config = rig.config(&cq, None, Some(SendOps::SEND));
    let (left, right) = rig.connected_pair(&config, &config);
    assert!(left.caps().inline_bytes >= 128);
    let received = rig.buffer(4096);
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    for (round, len) in [1usize, 17, 64, 128].into_iter().enumerate() {
        for extended in [false, true] {
            let message = DeviceBuffer::pattern(round as u32 + 50, len);
            post_receive(&right, &received, 1, len);
            let mut payload = message.clone();
            if extended {
                let mut batch = left.start_batch().expect("created extended");
                // SAFETY: created for the operation.
                unsafe { batch.send(9, flags).inline(&payload) };
                batch.complete().unwrap();
            } else {
                let (head, tail) = payload.split_at(len / 2);
                let mut request =
                    SendRequest::send(9, [inline_sge(head), inline_sge(tail)]).flags(flags);
                // SAFETY: inline: readable now.
                unsafe { request.post(&left) }.unwrap();
            }
            payload.fill(0xaa);
            drop(payload);
            for wc in completions(&cq, 2) {
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
            }
            assert_eq!(received.read(0, len), message, "extended: {extended}");
        }
    }
}

#[test]
#[file_serial(verbs)]
fn an_aborted_batch_posts_nothing() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, true);
    let config = rig.config(&cq, None, Some(SendOps::SEND));
    let (left, right) = rig.connected_pair(&config, &config);
    let received = rig.buffer(4096);
    post_receive(&right, &received, 1, 64);
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let mut batch = left.start_batch().expect("created extended");
    // SAFETY: created for the operation.
    unsafe { batch.send(1, flags).inline(b"not this") };
    drop(batch);
    let mut batch = left.start_batch().expect("created extended");
    // SAFETY: as above.
    unsafe { batch.send(2, flags).inline(b"but that") };
    batch.complete().unwrap();
    let ids: Vec<_> = completions(&cq, 2)
        .iter()
        .map(|wc| (wc.opcode, wc.wr_id))
        .collect();
    assert!(ids.contains(&(ibv_wc_opcode::IBV_WC_SEND, 2)), "{ids:?}");
    assert_eq!(received.read(0, 8), b"but that");
}

#[test]
#[file_serial(verbs)]
fn several_with_one_doorbell_arrive_in_order() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, false);
    let (left, right) =
        rig.connected_pair(&rig.config(&cq, None, None), &rig.config(&cq, None, None));
    let (sent, received) = (rig.buffer(4096), rig.buffer(4096));
    sent.write(0, &DeviceBuffer::pattern(3, 4096));
    let mut receives: [_; 8] = std::array::from_fn(|i| {
        RecvRequest::new(
            i as u64,
            [received.region().sge(i * 512, 512).expect("within")],
        )
    });
    let mut sends: [_; 8] = std::array::from_fn(|i| {
        let flags = if i == 7 {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let halves = [0, 256].map(|half| sent.region().sge(i * 512 + half, 256).expect("within"));
        SendRequest::send(100 + i as u64, halves).flags(flags)
    });
    // SAFETY: registered, and left alone until the completions.
    unsafe {
        RecvRequest::post_all(&mut receives, &right).unwrap();
        SendRequest::post_all(&mut sends, &left).unwrap();
        RecvRequest::<1>::post_all(&mut [], &right).unwrap();
        SendRequest::<1>::post_all(&mut [], &left).unwrap();
    }
    let done = completions(&cq, 9);
    let received_ids: Vec<_> = done
        .iter()
        .filter(|wc| wc.opcode == ibv_wc_opcode::IBV_WC_RECV)
        .map(|wc| wc.wr_id)
        .collect();
    assert_eq!(received_ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    // Only the last send was signalled.
    let sent_ids: Vec<_> = done
        .iter()
        .filter(|wc| wc.opcode == ibv_wc_opcode::IBV_WC_SEND)
        .map(|wc| wc.wr_id)
        .collect();
    assert_eq!(sent_ids, [107]);
    assert_eq!(received.read(0, 4096), sent.read(0, 4096));
}

#[test]
#[file_serial(verbs)]
fn a_full_queue_pushes_back_and_says_how_far_it_came() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(1024, false);
    let (left, _right) =
        rig.connected_pair(&rig.config(&cq, None, None), &rig.config(&cq, None, None));
    let received = rig.buffer(4096);
    let granted = left.caps().recv_depth as usize;
    assert!(granted >= 32);
    let entry = received.region().sge(0, 64).expect("within");
    let mut requests = vec![RecvRequest::new(0, [entry]); 4 * granted];
    // SAFETY: registered, and nothing is sent to it.
    let outcome = unsafe { RecvRequest::post_all(&mut requests, &left) };
    let (reason, posted) = outcome.expect_err("more than fit");
    assert_eq!(reason, OpError::Again);
    assert!(
        posted >= granted && posted < 4 * granted,
        "{posted} of {granted}"
    );
    // SAFETY: as above.
    let one_more = unsafe { RecvRequest::new(0, [entry]).post(&left) };
    assert_eq!(one_more, Err(OpError::Again));
}

#[test]
#[file_serial(verbs)]
fn the_error_state_flushes_what_is_posted() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, false);
    let (left, _right) =
        rig.connected_pair(&rig.config(&cq, None, None), &rig.config(&cq, None, None));
    let received = rig.buffer(4096);
    assert_eq!(left.state().unwrap(), ibv_qp_state::IBV_QPS_RTS);
    post_receive(&left, &received, 41, 64);
    post_receive(&left, &received, 42, 64);
    left.to_error().unwrap();
    assert_eq!(left.state().unwrap(), ibv_qp_state::IBV_QPS_ERR);
    let flushed = completions(&cq, 2);
    for (wc, wr_id) in flushed.iter().zip([41, 42]) {
        assert_eq!(
            (wc.status, wc.wr_id),
            (ibv_wc_status::IBV_WC_WR_FLUSH_ERR, wr_id)
        );
    }
    left.to_reset().unwrap();
    assert_eq!(left.state().unwrap(), ibv_qp_state::IBV_QPS_RESET);
}

#[test]
#[file_serial(verbs)]
fn an_armed_queue_wakes_its_reader() {
    let Some(rig) = Rig::open() else { return };
    let channel = CompChannel::create(&rig.context).unwrap();
    let config = CqConfig {
        depth: 64,
        channel: Some(Arc::clone(&channel)),
        ..CqConfig::default()
    };
    let recv_cq = Cq::create(&rig.context, &config).unwrap();
    let send_cq = rig.cq(64, false);
    let (left, right) = rig.connected_pair(
        &rig.config(&send_cq, None, None),
        &rig.config(&recv_cq, None, None),
    );
    let received = rig.buffer(4096);
    let send = |flags: SendFlags| {
        post_receive(&right, &received, 1, 64);
        let mut request = SendRequest::send(2, [inline_sge(b"wake")])
            .flags(flags | SendFlags::SIGNALED | SendFlags::INLINE);
        // SAFETY: inline: readable now.
        unsafe { request.post(&left) }.unwrap();
        one_completion(&send_cq);
    };

    assert_eq!(channel.take_event().unwrap(), None);
    recv_cq.arm(false).unwrap();
    send(SendFlags::empty());
    wait_readable(&channel);
    assert_eq!(channel.take_event().unwrap(), Some(recv_cq.id()));
    one_completion(&recv_cq);

    // Armed for solicited messages, only such a one wakes.
    recv_cq.arm(true).unwrap();
    send(SendFlags::empty());
    one_completion(&recv_cq);
    assert_eq!(channel.take_event().unwrap(), None);
    send(SendFlags::SOLICITED);
    wait_readable(&channel);
    assert_eq!(channel.take_event().unwrap(), Some(recv_cq.id()));
    one_completion(&recv_cq);
}

fn wait_readable(channel: &CompChannel) {
    let mut wanted = libc::pollfd {
        fd: channel.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which is open.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, 60_000) };
    assert_eq!(ready, 1, "no event came");
}

#[test]
#[file_serial(verbs)]
fn a_queue_can_grow_and_polls_of_no_room_take_nothing() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(8, false);
    cq.resize(200).unwrap();
    assert!(cq.depth() >= 200);
    assert!(cq.resize(0).is_err());
    assert!(
        cq.resize(rig.context.limits().completion_depth + 1)
            .is_err()
    );
    assert!(cq.poll(&mut []).unwrap().is_empty());
    assert!(cq.poll(&mut [MaybeUninit::uninit(); 4]).unwrap().is_empty());
}

#[test]
#[file_serial(verbs)]
fn a_message_that_is_too_long_is_an_error_on_both_sides() {
    let Some(rig) = Rig::open() else { return };
    let (left_cq, right_cq) = (rig.cq(64, false), rig.cq(64, false));
    let (left, right) = rig.connected_pair(
        &rig.config(&left_cq, None, None),
        &rig.config(&right_cq, None, None),
    );
    let (sent, received) = (rig.buffer(4096), rig.buffer(4096));
    received.fill(0xcc);
    post_receive(&right, &received, 1, 100);
    let entry = sent.region().sge(0, 200).expect("within");
    // SAFETY: registered, and left alone until the completion.
    unsafe {
        SendRequest::send(2, [entry])
            .flags(SendFlags::SIGNALED)
            .post(&left)
    }
    .unwrap();
    let (at_sender, at_receiver) = (
        completions(&left_cq, 1)[0].status,
        completions(&right_cq, 1)[0].status,
    );
    let standard = (
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR,
    );
    let quirk = (
        ibv_wc_status::IBV_WC_REM_OP_ERR,
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
    );
    if rig
        .context
        .quirks()
        .contains(Quirks::SHORT_RECEIVE_STATUS_WRONG)
    {
        assert_eq!((at_sender, at_receiver), quirk);
    } else {
        assert_eq!((at_sender, at_receiver), standard);
    }
    assert_eq!(
        received.read(100, 100),
        [0xcc; 100],
        "nothing past the receive"
    );
}
