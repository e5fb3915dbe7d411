//! The asynchronous events of a device, and their effects on the endpoints on it.

use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, NetworkFaults, QueuePairView, ROCE};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_system::clock::HandClock;
use ferrofabric_verbs::device::{DeviceContext, EventSubject};
use ferrofabric_verbs_sys::{ibv_event_type as Event, ibv_qp_type};

use crate::endpoints::breakage::connections;
use crate::endpoints::dgram;
use crate::endpoints::nic::{has_plain_datagrams, nic};
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, domain_at, first, message, pending_operations, room, run,
    stat,
};

const SECOND: Duration = Duration::from_secs(1);

/// A network on which nothing arrives.
const DEAD_NETWORK: NetworkFaults = NetworkFaults {
    seed: 1,
    lost: 100,
    repeated: 0,
    delayed: 0,
};

/// The events that say that addresses or paths may have changed.
const CHANGES: [Event; 5] = [
    Event::IBV_EVENT_LID_CHANGE,
    Event::IBV_EVENT_GID_CHANGE,
    Event::IBV_EVENT_PKEY_CHANGE,
    Event::IBV_EVENT_SM_CHANGE,
    Event::IBV_EVENT_CLIENT_REREGISTER,
];

/// Raises an event of the port or the device, and waits until all endpoints have it.
fn raise_for(device: &FakeDevice, ends: &[&OwningEndpoint], kind: Event, counter: &str) {
    let before: Vec<_> = ends.iter().map(|end| stat(end, counter)).collect();
    device.raise(kind, None);
    let begun = Instant::now();
    while ends
        .iter()
        .zip(&before)
        .any(|(end, &before)| stat(end, counter) == before)
    {
        assert!(begun.elapsed() < PATIENCE, "{counter} does not change");
        std::thread::yield_now();
    }
}

/// Polls both ends until something holds. Nothing completes meanwhile.
fn drive_until(pair: &mut PeerPair, what: &str, so: impl Fn(&PeerPair) -> bool) {
    let begun = Instant::now();
    while !so(pair) {
        let ends = [&pair.a, &pair.b];
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: {}",
            pending_operations(ends)
        );
        for end in [&mut pair.a, &mut pair.b] {
            assert!(end.poll().unwrap().is_none());
        }
    }
}

/// Two endpoints at a clock, with a lane between them that breaks on a network on which nothing
/// arrives, and a send that waits for another lane.
fn pair_without_a_lane(device: &FakeDevice, clock: &HandClock, port_down: bool) -> PeerPair {
    let settings = [("FERRO_LANE", "rc"), ("FERRO_RECONNECT_TIMEOUT", "10s")];
    let open = || OwningEndpoint::open(&*domain_at(clock, &settings), &AvAttr::default()).unwrap();
    let (a, b) = (open(), open());
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    let mut pair = PeerPair { a, b, to_b, to_a };
    pair.exchange(8, 1);
    device.network(&DEAD_NETWORK);
    if port_down {
        let ends = [&pair.a, &pair.b];
        raise_for(
            device,
            &ends,
            Event::IBV_EVENT_PORT_ERR,
            "device_events_port_down",
        );
        // The service threads have handled it, once they have handled the time.
        clock.advance(Duration::from_millis(1));
    }
    device.hold(true);
    let sent = pair.a.tsend(message(8, 7), 8, pair.to_b, 7, 7);
    sent.map_err(first).unwrap();
    let before = connections(device);
    before.iter().for_each(|&qp| device.break_queue_pair(qp));
    device.hold(false);
    drive_until(&mut pair, "the lane breaks", |_| {
        if !nic().announces_last_receive {
            // The endpoint waits for receives that may still come.
            clock.advance(Duration::from_millis(1));
        }
        connections(device).iter().all(|qp| !before.contains(qp))
    });
    pair
}

/// The own port is down for much longer than a peer may be silent: the peer is not given up, and
/// once the port is up again, the message arrives.
#[test]
fn a_port_that_is_down_gives_no_peer_up() {
    extern "C" fn at_once(_micros: u64) {}
    let device = FakeDevice::take();
    // The peer's time runs by a clock that does not wait for the device.
    device.control_calls(0, Some(at_once));
    let clock = HandClock::new();
    let mut pair = pair_without_a_lane(&device, &clock, true);
    for _ in 0..60 {
        clock.advance(SECOND);
        for end in [&mut pair.a, &mut pair.b] {
            let ended = end.poll().unwrap();
            assert!(ended.is_none(), "{ended:?}");
        }
    }
    device.network(&NetworkFaults::default());
    let ends = [&pair.a, &pair.b];
    raise_for(
        &device,
        &ends,
        Event::IBV_EVENT_PORT_ACTIVE,
        "device_events_port_active",
    );
    let receive = pair.b.trecv(room(8), pair.to_a, 7, 0, 8);
    receive.map_err(first).unwrap();
    let (begun, mut seen) = (Instant::now(), Duration::ZERO);
    let mut done = 0;
    while done < 2 {
        assert!(
            begun.elapsed() < PATIENCE,
            "{}",
            pending_operations([&pair.a, &pair.b])
        );
        // No faster than the threads of the services may follow.
        let now = begun.elapsed();
        clock.advance((now - seen) * 4);
        seen = now;
        for end in [&mut pair.a, &mut pair.b] {
            if let Some(ended) = end.poll().unwrap() {
                assert!(ended.outcome.is_ok(), "{ended:?}");
                done += 1;
            }
        }
    }
    drop(pair);
    assert_clean(&device);
}

/// Without the event, the same peer is given up: the port has nothing to do with its silence.
#[test]
fn a_silent_peer_is_given_up_while_the_port_is_active() {
    for down_and_up in [false, true] {
        let device = FakeDevice::take();
        let clock = HandClock::new();
        let mut pair = pair_without_a_lane(&device, &clock, down_and_up);
        if down_and_up {
            clock.advance(60 * SECOND);
            let ends = [&pair.a, &pair.b];
            raise_for(
                &device,
                &ends,
                Event::IBV_EVENT_PORT_ACTIVE,
                "device_events_port_active",
            );
        }
        let begun = Instant::now();
        let ended = loop {
            assert!(
                begun.elapsed() < PATIENCE,
                "{}",
                pending_operations([&pair.a])
            );
            clock.advance(SECOND);
            if let Some(ended) = pair.a.poll().unwrap() {
                break ended;
            }
        };
        assert!(ended.outcome.is_err(), "{ended:?}");
        drop(pair);
        device.reset();
        assert_clean(&device);
    }
}

/// After each change of addresses or paths the handles of UD lanes are others, and messages go on.
#[test]
fn changes_of_paths_renew_the_handles_of_lanes() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "ud")]);
    for (round, kind) in CHANGES.into_iter().enumerate() {
        let made = device.calls("ibv_create_ah");
        device.raise(kind, None);
        // One end may have made both its handles while the other has yet to take the event.
        let events = round as u64 + 1;
        drive_until(&mut pair, "handles are made anew", |pair| {
            let counted = [&pair.a, &pair.b].map(|end| stat(end, "device_events_path_change"));
            device.calls("ibv_create_ah") >= made + 2 && counted == [events; 2]
        });
        for tag in 0..3 {
            pair.exchange(3000, 10 * round as u64 + tag);
        }
        assert_eq!(stat(&pair.a, "device_events_path_change"), round as u64 + 1);
    }
    pair.rest(|_| true);
    assert_eq!(stat(&pair.a, "verbs_ud_lanes"), 1, "still the same lane");
    // A handle goes with the last posted datagram that uses it, and not all are signaled.
    assert!(device.live().handles <= 4, "{:?}", device.live());
    drop(pair);
    assert_clean(&device);
}

/// A lane that is made after a change of addresses has its control packets sent by new handles.
#[test]
fn a_change_of_paths_renews_the_handles_of_control_packets() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc")]);
    let made = device.calls("ibv_create_ah");
    let ends = [&pair.a, &pair.b];
    raise_for(
        &device,
        &ends,
        Event::IBV_EVENT_GID_CHANGE,
        "device_events_path_change",
    );
    connections(&device)
        .iter()
        .for_each(|&qp| device.break_queue_pair(qp));
    pair.exchange(8, 3);
    pair.settle(&device);
    assert_eq!(device.calls("ibv_create_ah"), made + 2);
    drop(pair);
    assert_clean(&device);
}

/// A datagram after a change goes by a new handle.
#[test]
fn a_change_of_paths_renews_the_handles_of_datagram_endpoints() {
    if !has_plain_datagrams() {
        return;
    }
    let device = FakeDevice::take();
    let mut pair = dgram::pair(&[]);
    pair.exchange_untagged(1);
    let made = device.calls("ibv_create_ah");
    for (round, kind) in CHANGES.into_iter().enumerate() {
        let ends = [&pair.a, &pair.b];
        raise_for(&device, &ends, kind, "device_events_path_change");
        // An endpoint handles the event when it is driven.
        for end in [&mut pair.a, &mut pair.b] {
            assert!(end.poll().unwrap().is_none());
        }
        pair.exchange_untagged(round as u64);
        assert_eq!(device.calls("ibv_create_ah"), made + 2 * (round as u64 + 1));
    }
    drop(pair);
    assert_clean(&device);
}

/// The RC queue pair of an endpoint with a domain of its own.
fn lane_of(device: &FakeDevice, end: &OwningEndpoint) -> u32 {
    let all = device.queue_pairs();
    let control = end.name().verbs.unwrap().qpn;
    let domain = all.iter().find(|qp| qp.number == control).unwrap().pd;
    let is_it = |qp: &&QueuePairView| qp.pd == domain && qp.kind == ibv_qp_type::IBV_QPT_RC.0;
    all.iter().find(is_it).unwrap().number
}

/// Checks that each operation has ended with the failure of the device.
fn assert_failed(outcomes: Vec<ferrofabric_runtime::owning::OwnedCompletion>, remedy: &str) {
    for done in outcomes {
        let error = done.outcome.unwrap_err();
        assert_eq!(error.errno, Errno::EIO, "{}", error.why);
        assert!(
            error.why.contains(ROCE) && error.why.contains(remedy),
            "{}",
            error.why
        );
    }
}

/// Sends that wait for the device, and receives from the peer.
fn post_operations(pair: &mut PeerPair) {
    for at in 0..5 {
        let sent = pair.a.tsend(message(8, at), 8, pair.to_b, at, at);
        sent.map_err(first).unwrap();
        // A rendezvous: its request waits, and so does the message.
        let sent = pair
            .a
            .tsend(message(80_000, at), 80_000, pair.to_b, 100, 10 + at);
        sent.map_err(first).unwrap();
        let receive = pair.a.trecv(room(8), pair.to_b, 1000 + at, 0, 20 + at);
        receive.map_err(first).unwrap();
    }
}

/// The device fails: each pending operation ends once, with an error that names the device and the
/// remedy, and later ones fail at once.
#[test]
fn a_device_that_fails() {
    for lane in ["rc", "ud"] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", lane)]);
        device.hold(true);
        device.network(&DEAD_NETWORK);
        post_operations(&mut pair);
        device.raise(Event::IBV_EVENT_DEVICE_FATAL, None);
        assert_failed(run(&mut [&mut pair.a], 15), "reset or replace it");
        pair.rest(|_| true);
        assert_eq!(pair.a.in_flight(), 0);
        for bytes in [8, 80_000] {
            let refused = pair.a.tsend(message(bytes, 1), bytes, pair.to_b, 1, 1);
            assert_eq!(refused.map_err(first), Err(OpError::Failed(Errno::EIO)));
        }
        assert_eq!(stat(&pair.a, "device_events_device_failed"), 1);
        drop(pair);
        device.reset();
        assert_clean(&device);
    }
}

/// The device fails while the session is between two lanes.
#[test]
fn a_device_that_fails_between_two_lanes() {
    let device = FakeDevice::take();
    let clock = HandClock::new();
    let mut pair = pair_without_a_lane(&device, &clock, false);
    device.raise(Event::IBV_EVENT_DEVICE_FATAL, None);
    assert_failed(run(&mut [&mut pair.a], 1), "reset or replace it");
    drop(pair);
    device.reset();
    assert_clean(&device);
}

/// The device of datagram endpoints fails.
#[test]
fn a_device_of_datagram_endpoints_that_fails() {
    if !has_plain_datagrams() {
        return;
    }
    let device = FakeDevice::take();
    let mut pair = dgram::pair(&[]);
    pair.exchange_untagged(1);
    for token in 0..5 {
        let receive = pair.a.recv(room(8), FiAddr::UNSPEC, token);
        receive.map_err(first).unwrap();
    }
    device.raise(Event::IBV_EVENT_DEVICE_FATAL, None);
    assert_failed(run(&mut [&mut pair.a], 5), "reset or replace it");
    let refused = pair.a.send(message(8, 1), 8, pair.to_b, None, 1);
    assert_eq!(refused.map_err(first), Err(OpError::Failed(Errno::EIO)));
    let refused = pair.a.recv(room(8), FiAddr::UNSPEC, 1);
    assert_eq!(refused.map_err(first), Err(OpError::Failed(Errno::EIO)));
    drop(pair);
    assert_clean(&device);
}

/// The device reports that a queue of an endpoint has failed, though each poll succeeds: the
/// endpoint's operations end, and those of another endpoint go on.
#[test]
fn a_queue_that_the_device_reports_as_failed() {
    for kind in [Event::IBV_EVENT_CQ_ERR, Event::IBV_EVENT_SRQ_ERR] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc")]);
        if kind == Event::IBV_EVENT_SRQ_ERR && device.live().shared_receive_queues == 0 {
            println!("the device has no shared receive queue that could fail");
            continue;
        }
        let of_a = lane_of(&device, &pair.a);
        device.hold(true);
        post_operations(&mut pair);
        device.raise(kind, Some(of_a));
        assert_failed(run(&mut [&mut pair.a], 15), "close the endpoint");
        let refused = pair.a.tsend(message(8, 1), 8, pair.to_b, 1, 1);
        assert_eq!(refused.map_err(first), Err(OpError::Failed(Errno::EIO)));
        device.hold(false);
        drop(pair.a);
        let mut others = PeerPair::connected(&[]);
        others.exchange(8, 5);
        drop((pair.b, others));
        device.reset();
        assert_clean(&device);
    }
}

/// The queue pair of an idle lane fails, and no completion reports it: the lane is replaced.
#[test]
fn a_queue_pair_that_the_device_reports_as_failed() {
    for kind in [
        Event::IBV_EVENT_QP_FATAL,
        Event::IBV_EVENT_QP_REQ_ERR,
        Event::IBV_EVENT_QP_ACCESS_ERR,
    ] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc")]);
        let before = connections(&device);
        device.raise(kind, Some(before[0]));
        drive_until(&mut pair, "the lane ends", |_| {
            connections(&device).iter().all(|qp| !before.contains(qp))
        });
        pair.exchange(8, 2);
        pair.settle(&device);
        let counted = [&pair.a, &pair.b].map(|end| stat(end, "device_events_queue_pair_failed"));
        assert_eq!(counted.iter().sum::<u64>(), 1);
        drop(pair);
        assert_clean(&device);
    }
}

/// Events without an effect do no harm, and are counted.
#[test]
fn events_without_an_effect() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc")]);
    let lane = lane_of(&device, &pair.a);
    device.raise(Event::IBV_EVENT_COMM_EST, Some(lane));
    device.raise(Event::IBV_EVENT_SRQ_LIMIT_REACHED, Some(lane));
    device.raise(Event::IBV_EVENT_QP_LAST_WQE_REACHED, Some(lane));
    pair.exchange(8, 1);
    pair.exchange(80_000, 2);
    drive_until(&mut pair, "events are counted", |pair| {
        stat(&pair.a, "device_events_other") == 2
            && stat(&pair.a, "device_events_last_receive") == 1
    });
    pair.exchange(8, 3);
    assert_eq!(connections(&device).len(), 2, "still the same lane");
    drop(pair);
    assert_clean(&device);
}

/// A program that reads the events of a device itself sees their subjects.
#[test]
fn subjects_of_events() {
    let device = FakeDevice::take();
    let context = DeviceContext::open(ROCE).unwrap();
    for (kind, subject) in [
        (Event::IBV_EVENT_PORT_ERR, EventSubject::Port(1)),
        (Event::IBV_EVENT_PORT_ACTIVE, EventSubject::Port(1)),
        (Event::IBV_EVENT_GID_CHANGE, EventSubject::Port(1)),
        (Event::IBV_EVENT_DEVICE_FATAL, EventSubject::Device),
    ] {
        device.raise(kind, None);
        let event = context.take_event(|event| event).unwrap().unwrap();
        assert_eq!((event.kind, event.subject), (kind, subject));
    }
    drop(context);
    assert_clean(&device);
}
