//! Sends whose peer goes, or does what it must not, at an awkward moment: each ends, as it should.

use std::time::Instant;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint, QueuePairView};
use ferrofabric_runtime::owning::{OwnedCompletion, OwningEndpoint};
use ferrofabric_verbs_sys::{ibv_qp_state, ibv_qp_type, ibv_wc_status as Status};

use crate::endpoints::breakage::data_queue_pair;
use crate::endpoints::datagrams::HubPeer;
use crate::endpoints::nic::nic;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, endpoint, first, message, pending_operations, room, run, stat,
};

/// Length of a message that goes over RC only.
const LARGE: usize = 600_000;

/// Token of a message that its receiver has taken.
const TAKEN: u64 = 1;

/// Token of a message that was announced to it.
const TOLD: u64 = 2;

/// A message that the peer took counts as sent; one that it did not take ends with the goodbye, and
/// so does each later one.
fn ends_with_the_close(end: &mut OwningEndpoint, to: FiAddr, done: Vec<OwnedCompletion>) {
    for done in done {
        match (done.token, done.outcome) {
            (TAKEN, Ok(_)) => {}
            (TOLD, Err(error)) => assert_eq!(error.errno, Errno::ESHUTDOWN, "{}", error.why),
            (token, outcome) => panic!("send {token}: {outcome:?}"),
        }
    }
    let next = end.tsend(room(8), 8, to, 1, 3).map_err(first);
    assert_eq!(next, Err(OpError::Failed(Errno::ESHUTDOWN)));
}

/// A peer says goodbye, and before its lane is given up, for others have much to say, the session
/// is to move to an RC lane.
#[test]
fn a_close_that_meets_a_promotion() {
    /// So many completions come before the lane is given up: no more than receives of the lanes.
    const BACKLOG: u64 = 200;
    let device = FakeDevice::take();
    let mut hub = endpoint(&[
        ("FERRO_LANE", "ud"),
        ("FERRO_RX_BUFFERS", "1024"),
        ("FERRO_RECONNECT_TIMEOUT", "500ms"),
    ]);
    let is_small = u64::from(nic().requests) < 2 * BACKLOG;
    if is_small || device.live().shared_receive_queues == 0 {
        // The queue of this NIC, or that of a single lane, has no room for the backlog.
        return;
    }
    let [mut busy, mut leaves] =
        ["rc", "ud"].map(|lane| HubPeer::of(&hub, &[("FERRO_LANE", lane)]));
    for spoke in [&mut busy, &mut leaves] {
        (hub.trecv(room(8), spoke.from_hub, 0, 0, 8))
            .map_err(first)
            .unwrap();
        (spoke.end.tsend(message(8, 0), 8, spoke.to_hub, 0, 9))
            .map_err(first)
            .unwrap();
        for done in run(&mut [&mut hub, &mut spoke.end], 2) {
            assert!(done.outcome.is_ok(), "{:?}", done.outcome);
        }
    }
    for _ in 0..BACKLOG {
        (busy.end.tsend(message(8, 0), 8, busy.to_hub, 1, 9))
            .map_err(first)
            .unwrap();
    }
    run(&mut [&mut busy.end], BACKLOG as usize);
    // Its acknowledgement lies behind all that.
    (leaves.end.trecv(room(8), leaves.to_hub, 2, 0, 8))
        .map_err(first)
        .unwrap();
    (hub.tsend(message(8, 2), 8, leaves.from_hub, 2, TAKEN))
        .map_err(first)
        .unwrap();
    assert!(run(&mut [&mut leaves.end], 1)[0].outcome.is_ok());
    let to = leaves.from_hub;
    // At return, the hub's service thread has handled the close message of the peer.
    drop(leaves);
    (hub.tsend(message(LARGE, 3), LARGE, to, 3, TOLD))
        .map_err(first)
        .unwrap();
    let done = run(&mut [&mut hub], 2);
    ends_with_the_close(&mut hub, to, done);
    drop((hub, busy.end));
    assert_clean(&device);
}

/// A peer closes before it has learnt that the session moves to an RC lane.
#[test]
fn a_close_that_crosses_a_promotion() {
    close_in_a_promotion(false);
}

/// A peer says goodbye on the RC lane, which its service thread has made while it computed.
#[test]
fn a_close_on_the_lane_of_a_promotion() {
    close_in_a_promotion(true);
}

fn close_in_a_promotion(is_heard: bool) {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "ud")]);
    let lose = |from| {
        let all = Fault::new(FaultPoint::Datagram, FaultEffect::Lose).times(u32::MAX);
        all.on(from)
    };
    device.script(lose(data_queue_pair(&device, &pair.b)));
    if !is_heard {
        device.script(lose(pair.a.name().verbs.unwrap().qpn));
    }
    (pair.b.trecv(room(8), pair.to_a, 2, 0, 8))
        .map_err(first)
        .unwrap();
    (pair.a.tsend(message(8, 2), 8, pair.to_b, 2, TAKEN))
        .map_err(first)
        .unwrap();
    assert!(run(&mut [&mut pair.b], 1)[0].outcome.is_ok());
    (pair.a.tsend(message(LARGE, 3), LARGE, pair.to_b, 3, TOLD))
        .map_err(first)
        .unwrap();
    let begun = Instant::now();
    while stat(&pair.a, "verbs_ud_promotions") == 0 {
        assert!(
            begun.elapsed() < PATIENCE,
            "{}",
            pending_operations([&pair.a])
        );
        assert!(pair.a.poll().unwrap().is_none());
    }
    while is_heard
        && ![&pair.a, &pair.b]
            .into_iter()
            .all(|end| is_connected(&device, end))
    {
        assert!(
            begun.elapsed() < PATIENCE,
            "{}",
            pending_operations([&pair.a])
        );
        std::thread::yield_now();
    }
    let PeerPair { mut a, b, to_b, .. } = pair;
    drop(b);
    let done = run(&mut [&mut a], 2);
    ends_with_the_close(&mut a, to_b, done);
    device.reset();
    drop(a);
    assert_clean(&device);
}

/// A peer says goodbye while its lane is given up, because a message failed that it has received.
#[test]
fn a_close_on_a_lane_that_breaks() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc")]);
    let all = Fault::new(FaultPoint::Datagram, FaultEffect::Lose).times(u32::MAX);
    device.script(all.on(pair.a.name().verbs.unwrap().qpn));
    let fails = FaultEffect::FailAfterwards(Status::IBV_WC_RETRY_EXC_ERR);
    device.script(Fault::new(FaultPoint::Send, fails).on(connection_of(&device, &pair.a)));
    (pair.b.trecv(room(8), pair.to_a, 2, 0, 8))
        .map_err(first)
        .unwrap();
    (pair.a.tsend(message(8, 2), 8, pair.to_b, 2, TAKEN))
        .map_err(first)
        .unwrap();
    assert!(run(&mut [&mut pair.b], 1)[0].outcome.is_ok());
    let begun = Instant::now();
    // Some devices flush nothing that is posted later: there a lane has ended within one poll.
    let breaks = |end: &OwningEndpoint| {
        stat(end, "verbs_lanes_ending_now") > 0 || stat(end, "verbs_lanes_failed") > 0
    };
    while !breaks(&pair.a) {
        assert!(
            begun.elapsed() < PATIENCE,
            "{}",
            pending_operations([&pair.a])
        );
        assert!(pair.a.poll().unwrap().is_none());
    }
    let PeerPair { mut a, b, to_b, .. } = pair;
    drop(b);
    (a.tsend(message(8, 3), 8, to_b, 3, TOLD))
        .map_err(first)
        .unwrap();
    let done = run(&mut [&mut a], 2);
    ends_with_the_close(&mut a, to_b, done);
    device.reset();
    drop(a);
    assert_clean(&device);
}

/// The RC queue pair of an endpoint, if it has one.
fn connection(device: &FakeDevice, end: &OwningEndpoint) -> Option<QueuePairView> {
    let all = device.queue_pairs();
    let control = end.name().verbs.unwrap().qpn;
    let domain = all.iter().find(|qp| qp.number == control).unwrap().pd;
    let is_it = |qp: &&QueuePairView| qp.pd == domain && qp.kind == ibv_qp_type::IBV_QPT_RC.0;
    all.iter().find(is_it).copied()
}

fn connection_of(device: &FakeDevice, end: &OwningEndpoint) -> u32 {
    connection(device, end).unwrap().number
}

fn is_connected(device: &FakeDevice, end: &OwningEndpoint) -> bool {
    let ready = ibv_qp_state::IBV_QPS_RTS.0;
    connection(device, end).is_some_and(|qp| qp.state == ready)
}

/// A receiver that grants more room than the sender wanted breaks the rules: the session ends, and
/// with it the send that was to be written there.
#[test]
fn a_grant_that_makes_no_sense_ends_its_send() {
    /// In the length that may be written, behind the header and two numbers of eight bytes.
    const OF_THE_LENGTH: u32 = 24 + 16 + 4;
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc"), ("FERRO_RENDEZVOUS", "write")]);
    let sender = connection_of(&device, &pair.a);
    device.script(Fault::new(FaultPoint::Receive, FaultEffect::Corrupt(OF_THE_LENGTH)).on(sender));
    (pair.b.trecv(room(LARGE), pair.to_a, 5, 0, 1))
        .map_err(first)
        .unwrap();
    (pair.a.tsend(message(LARGE, 5), LARGE, pair.to_b, 5, 2))
        .map_err(first)
        .unwrap();
    for done in pair.run(2) {
        let error = done.outcome.unwrap_err();
        match done.token {
            1 => assert_eq!(error.errno, Errno::ECONNRESET, "{}", error.why),
            _ => assert_eq!(error.errno, Errno::EPROTO, "{}", error.why),
        }
    }
    assert_eq!(device.faults_left(), 0, "nothing was granted");
    pair.settle(&device);
    pair.exchange(80_000, 6);
    pair.close(&device);
}
