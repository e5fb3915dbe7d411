//! Failures without a request of ours: queue pairs, completion queues, lost datagrams.

use std::time::Instant;

use ferrofabric_contracts::error::Errno;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint, QueuePairView};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs_sys::ibv_qp_type;

use crate::endpoints::party::{PATIENCE, PeerPair, assert_clean, first, message, room, run};

/// The RC queue pairs there are.
pub(crate) fn connections(device: &FakeDevice) -> Vec<u32> {
    let all = device.queue_pairs().into_iter();
    let connected = all.filter(|qp| qp.kind == ibv_qp_type::IBV_QPT_RC.0);
    connected.map(|qp| qp.number).collect()
}

/// One side's queue pair breaks while messages of all kinds are under way: all of them arrive,
/// once.
#[test]
fn a_queue_pair_that_breaks() {
    for side in [0, 1] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[]);
        let lane = connections(&device)[side];
        let traffic = pair.traffic(100, 15, || device.break_queue_pair(lane));
        assert_eq!((traffic.sent, traffic.received), (30, 30), "{traffic:?}");
        pair.settle(&device);
        pair.exchange(8, 1);
        pair.exchange(80_000, 2);
        pair.close(&device);
    }
}

/// It breaks with requests posted that were not carried out: they are, over the next one.
#[test]
fn a_queue_pair_that_breaks_with_requests_under_way() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[]);
    let lane = connections(&device);
    device.hold(true);
    for at in 0..20 {
        pair.b
            .trecv(room(8), pair.to_a, at, 0, 100 + at)
            .map_err(first)
            .unwrap();
        pair.a
            .tsend(message(8, at), 8, pair.to_b, at, at)
            .map_err(first)
            .unwrap();
    }
    for qp in &lane {
        device.break_queue_pair(*qp);
    }
    device.hold(false);
    let done = pair.run(40);
    for done in done {
        assert!(done.outcome.is_ok(), "{}: {:?}", done.token, done.outcome);
    }
    pair.settle(&device);
    pair.exchange(8, 1000);
    pair.close(&device);
}

/// The handshake loses packets: it is tried again.
#[test]
fn datagrams_that_are_lost() {
    for after in 0..4 {
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(&[]);
        device.script(
            Fault::new(FaultPoint::Datagram, FaultEffect::Lose)
                .after(after)
                .times(2),
        );
        pair.exchange(8, 1);
        pair.exchange(80_000, 2);
        drop(pair);
        device.reset();
        assert_clean(&device);
    }
}

/// Control packets with wrong lengths or wrong bytes, which may well say something else: every
/// operation ends, and the next ones succeed.
#[test]
fn datagrams_that_make_no_sense() {
    let strange = [
        FaultEffect::ByteLen(0),
        FaultEffect::ByteLen(40),
        FaultEffect::ByteLen(41),
        FaultEffect::ByteLen(u32::MAX),
        FaultEffect::Corrupt(40),
        FaultEffect::Corrupt(48),
        FaultEffect::Corrupt(60),
    ];
    for effect in strange {
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(&[]);
        device.script(Fault::new(FaultPoint::DatagramReceive, effect).times(2));
        pair.corrupt_traffic(100, 5);
        device.reset();
        // A packet that named somebody else may have begun a session with nobody.
        pair.rest(|_| true);
        pair.exchange(8, 1);
        pair.close(&device);
    }
}

/// The completion queue of an endpoint overflows: nothing completes any more, and its operations
/// end with errors.
#[test]
fn a_completion_queue_that_is_overrun() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[]);
    let lane = connections(&device)[0];
    let traffic = pair.traffic(100, 15, || device.overrun(lane));
    assert!(!traffic.send_errors.is_empty(), "{traffic:?}");
    drop(pair);
    device.reset();
    assert_clean(&device);
}

/// The queue pair through which an endpoint's datagram lanes go.
pub(crate) fn data_queue_pair(device: &FakeDevice, end: &OwningEndpoint) -> u32 {
    let control = end.name().verbs.unwrap().qpn;
    let all = device.queue_pairs();
    let domain = all.iter().find(|qp| qp.number == control).unwrap().pd;
    let is_it = |qp: &&QueuePairView| {
        qp.pd == domain && qp.kind == ibv_qp_type::IBV_QPT_UD.0 && qp.number != control
    };
    all.iter().find(is_it).unwrap().number
}

/// So does it while a session has no lane, or one that has yet to carry it.
#[test]
fn a_completion_queue_that_is_overrun_between_two_lanes() {
    for resumes in [false, true] {
        println!("a next lane is there: {resumes}");
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[]);
        let before = connections(&device);
        let data = data_queue_pair(&device, &pair.a);
        device.hold(true);
        for at in 0..20 {
            let bytes = [8, 50_000][at as usize % 2];
            pair.a
                .tsend(message(bytes, at), bytes, pair.to_b, at, at)
                .map_err(first)
                .unwrap();
        }
        if !resumes {
            device.script(Fault::new(FaultPoint::Datagram, FaultEffect::Lose).times(u32::MAX));
        }
        before.iter().for_each(|&qp| device.break_queue_pair(qp));
        let begun = Instant::now();
        let is_between = || {
            let now = device.queue_pairs();
            // The first that each side says on the next lane is held back.
            let next = now.iter().filter(|qp| qp.remote != 0 && qp.waiting > 0);
            now.iter().all(|qp| !before.contains(&qp.number)) && (!resumes || next.count() == 2)
        };
        while !is_between() {
            assert!(begun.elapsed() < PATIENCE, "{:?}", device.queue_pairs());
            for end in [&mut pair.a, &mut pair.b] {
                assert!(end.poll().unwrap().is_none(), "it goes on");
            }
        }
        device.overrun(data);
        for done in run(&mut [&mut pair.a], 20) {
            let error = done.outcome.unwrap_err();
            // The attempt to connect may find the queue overrun before the endpoint does: no queue
            // pair can be made with it.
            let is_of_attempt = !resumes && error.errno == Errno::EINVAL;
            assert!(error.errno == Errno::EIO || is_of_attempt, "{error:?}");
        }
        // Word of the peer changes nothing.
        device.reset();
        pair.rest(|_| true);
        drop(pair);
        assert_clean(&device);
    }
}

/// A look at a completion queue fails, once: the next one finds everything.
#[test]
fn a_completion_queue_that_fails_for_a_moment() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[]);
    device.fail_call("ibv_poll_cq", 3, 2, libc::EIO);
    let traffic = pair.traffic(100, 15, || ());
    assert_eq!(traffic.sent, 30, "{traffic:?}");
    pair.close(&device);
}
