//! Queue pairs for datagrams that fail: they work again, whether their endpoint has something to
//! send or only takes what comes.

use ferrofabric_contracts::error::Errno;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs_sys::ibv_wc_status as Status;

use crate::endpoints::breakage::data_queue_pair;
use crate::endpoints::party::{PeerPair, assert_clean, check, first, message, room, run};

/// How a queue pair fails.
#[derive(Clone, Copy, Debug)]
enum QueuePairFailure {
    /// With a datagram that it is to send.
    Sending,
    /// With nothing under way, so that no completion reports it.
    Silent,
}

impl QueuePairFailure {
    const ALL: [Self; 2] = [Self::Sending, Self::Silent];

    fn strike(self, device: &FakeDevice, qp: u32) {
        match self {
            Self::Sending => {
                let fails = FaultEffect::Fail(Status::IBV_WC_GENERAL_ERR);
                device.script(Fault::new(FaultPoint::Datagram, fails).on(qp));
            }
            Self::Silent => device.break_queue_pair(qp),
        }
    }
}

/// The queue pair by which peers reach an endpoint.
pub(crate) fn control_queue_pair(end: &OwningEndpoint) -> u32 {
    end.name().verbs.unwrap().qpn
}

/// `a` sends so many messages, and `b` receives them.
fn stream(pair: &mut PeerPair, messages: u64) {
    for tag in 0..messages {
        let receive = pair.b.trecv(room(8), pair.to_a, tag, 0, 100 + tag);
        receive.map_err(first).unwrap();
        let sent = pair.a.tsend(message(8, tag), 8, pair.to_b, tag, tag);
        sent.map_err(first).unwrap();
    }
    for done in pair.run(2 * messages as usize) {
        let outcome = done.outcome;
        assert!(outcome.is_ok(), "{}: {outcome:?}", done.token);
        if done.token >= 100 {
            check(&done.buffer, done.token - 100, "received");
        }
    }
}

/// A receiver over datagrams has nothing to send but acknowledgements. Where its queue pair fails
/// nothing comes any more, and no acknowledgement falls due.
#[test]
fn a_receiver_whose_data_queue_pair_fails() {
    for failure in QueuePairFailure::ALL {
        println!("{failure:?}");
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", "ud")]);
        pair.rest(|_| true);
        failure.strike(&device, data_queue_pair(&device, &pair.b));
        stream(&mut pair, 4);
        pair.exchange(8, 9);
        pair.close(&device);
    }
}

/// So does a sender's, while its messages are under way.
#[test]
fn a_sender_whose_data_queue_pair_fails() {
    for failure in QueuePairFailure::ALL {
        println!("{failure:?}");
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", "ud")]);
        pair.rest(|_| true);
        failure.strike(&device, data_queue_pair(&device, &pair.a));
        stream(&mut pair, 4);
        pair.exchange(8, 9);
        pair.close(&device);
    }
}

/// A local error stops the send queue alone. It goes on without a reset, which would drop packets:
/// one call changes the state of the queue pair.
#[test]
fn a_send_queue_that_fails_alone() {
    for (at, of) in [
        ("data", data_queue_pair as QueuePairOf),
        ("control", of_control),
    ] {
        println!("{at}");
        let device = FakeDevice::take();
        device.become_nic("mlx5-ib");
        let lane = if at == "data" { "ud" } else { "auto" };
        let mut pair = match at {
            "data" => PeerPair::connected(&[("FERRO_LANE", lane)]),
            _ => PeerPair::open(&[("FERRO_LANE", lane)]),
        };
        pair.rest(|_| true);
        let failing = of(&device, &pair.b);
        let changes = device.calls("ibv_modify_qp");
        QueuePairFailure::Sending.strike(&device, failing);
        stream(&mut pair, 4);
        pair.exchange(8, 9);
        assert_eq!(device.faults_left(), 0, "it did not fail");
        assert_eq!(device.calls("ibv_modify_qp") - changes, 1);
        pair.close(&device);
    }
}

/// Names a queue pair of an endpoint.
type QueuePairOf = fn(&FakeDevice, &OwningEndpoint) -> u32;

fn of_control(_: &FakeDevice, end: &OwningEndpoint) -> u32 {
    control_queue_pair(end)
}

/// Packets that came before the queue pair failed lie in the completion queue with the receive
/// buffers of the endpoint. However often that happens, none of these is lost.
#[test]
fn a_data_queue_pair_that_fails_again_and_again() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "ud"), ("FERRO_RX_BUFFERS", "16")]);
    for round in 0..20 {
        for tag in 0..8 {
            let receive = pair.b.trecv(room(8), pair.to_a, tag, 0, 100);
            receive.map_err(first).unwrap();
            let sent = pair.a.tsend(message(8, tag), 8, pair.to_b, tag, 1);
            sent.map_err(first).unwrap();
        }
        device.break_queue_pair(data_queue_pair(&device, &pair.b));
        for done in pair.run(16) {
            assert!(done.outcome.is_ok(), "round {round}: {:?}", done.outcome);
        }
    }
    pair.close(&device);
}

/// An endpoint that waits for others to connect sends nothing but answers.
#[test]
fn a_server_whose_control_queue_pair_fails() {
    for failure in QueuePairFailure::ALL {
        println!("{failure:?}");
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(&[]);
        failure.strike(&device, control_queue_pair(&pair.b));
        stream(&mut pair, 4);
        pair.close(&device);
    }
}

/// The queue in which control packets complete fails for good: attempts to connect fail with an
/// error.
#[test]
fn a_control_queue_that_fails_for_good() {
    for before in [true, false] {
        println!("it fails before the first message: {before}");
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(&[]);
        let control = control_queue_pair(&pair.a);
        if before {
            device.overrun(control);
        } else {
            // A connection that is being made gets no answer.
            device.script(Fault::new(FaultPoint::Datagram, FaultEffect::Lose).times(u32::MAX));
        }
        for token in 0..3 {
            let sent = pair.a.tsend(message(8, 1), 8, pair.to_b, 1, token);
            sent.map_err(first).unwrap();
        }
        if !before {
            pair.rest(|_| true);
            device.overrun(control);
        }
        for done in run(&mut [&mut pair.a], 3) {
            let error = done.outcome.unwrap_err();
            assert_eq!(error.errno, Errno::EIO, "{}", error.why);
        }
        // So does who comes later.
        let sent = pair.a.tsend(message(8, 1), 8, pair.to_b, 1, 9);
        sent.map_err(first).unwrap();
        let done = run(&mut [&mut pair.a], 1).pop().unwrap();
        assert_eq!(done.outcome.unwrap_err().errno, Errno::EIO);
        drop(pair);
        device.reset();
        assert_clean(&device);
    }
}

/// Arming the queue fails for a while: the endpoint looks by itself meanwhile.
#[test]
fn a_control_queue_that_can_not_be_armed() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::open(&[]);
    device.fail_call("ibv_req_notify_cq", 0, u32::MAX, libc::EIO);
    // The threads that make connections wake, and find that they can not arm.
    stream(&mut pair, 4);
    drop(pair);
    device.reset();
    assert_clean(&device);
}
