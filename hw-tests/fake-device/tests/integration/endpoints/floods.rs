//! Endpoints to which more comes than they take in one look, without end.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};

use crate::endpoints::breakage::data_queue_pair;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, endpoint, first, message, pending_operations, room,
    stat,
};
use crate::endpoints::revivals::control_queue_pair;

/// A flood that ends when this is dropped, so that the endpoint that it keeps busy can be closed
/// then.
struct Flood<'d>(&'d FakeDevice);

impl<'d> Flood<'d> {
    fn of(device: &'d FakeDevice, qp: u32) -> Self {
        device.flood(Some(qp));
        Self(device)
    }
}

impl Drop for Flood<'_> {
    fn drop(&mut self) {
        self.0.flood(None);
    }
}

/// A peer changes lanes while its receiver never finds the end of its completion queue. It has sent
/// much, and nothing that the receiver itself wants another lane for.
#[test]
fn a_peer_changes_lanes_to_a_busy_endpoint() {
    a_peer_changes_lanes_on("generous");
}

/// The same with a completion queue that is empty after few polls.
#[test]
fn a_peer_changes_lanes_to_a_busy_endpoint_of_short_queues() {
    a_peer_changes_lanes_on("worst-with-srq");
}

fn a_peer_changes_lanes_on(nic: &str) {
    /// Messages that may be under way: fewer than wait at most.
    const AHEAD: u64 = 500;
    let device = FakeDevice::take();
    device.become_nic(nic);
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "auto")]);
    pair.rest(|_| true);
    let flood = Flood::of(&device, data_queue_pair(&device, &pair.b));
    let (mut sent, mut over) = (0, 0);
    let begun = Instant::now();
    while stat(&pair.a, "verbs_ud_promotions") == 0 {
        assert!(begun.elapsed() < PATIENCE, "no promotion after {sent}");
        if sent < over / 2 + AHEAD {
            let receive = pair.b.trecv(room(8), pair.to_a, sent, 0, sent);
            receive.map_err(first).unwrap();
            let message = message(8, sent);
            (pair.a.tsend(message, 8, pair.to_b, sent, sent))
                .map_err(first)
                .unwrap();
            sent += 1;
        }
        for end in [&mut pair.a, &mut pair.b] {
            over += end.poll().unwrap().is_some() as u64;
        }
    }
    assert!(over < 2 * sent, "nothing is left for the next lane");
    println!("{over} of {} are over at the change", 2 * sent);
    for done in pair.run((2 * sent - over) as usize) {
        assert!(done.outcome.is_ok(), "{}: {:?}", done.token, done.outcome);
    }
    drop(flood);
    pair.exchange(8, 1);
    drop(pair);
    assert_clean(&device);
}

/// A peer sends over a connection without end, faster than its receiver takes its messages. Another
/// one gets a connection meanwhile, and its messages come.
#[test]
fn a_busy_connection_leaves_receives_to_others() {
    for nic in ["generous", "worst-with-srq"] {
        a_busy_connection_leaves_receives_on(nic);
    }
}

fn a_busy_connection_leaves_receives_on(nic: &str) {
    /// Messages of the busy peer that are under way: more than its receiver has receives.
    const AHEAD: usize = 1000;
    /// Its messages that may come before one of the other peer.
    const AT_MOST: u64 = 1_000_000;
    const BUSY: u64 = u64::MAX;
    const OTHERS: u64 = 1000;
    /// So many at a time that it gets a connection.
    const OTHERS_AHEAD: u64 = 100;
    let device = FakeDevice::take();
    device.become_nic(nic);
    let mut hub = endpoint(&[("FERRO_LANE", "auto")]);
    let mut busy = endpoint(&[("FERRO_LANE", "rc")]);
    let mut other = endpoint(&[("FERRO_LANE", "auto")]);
    let to_hub = [&busy, &other].map(|peer| peer.av().insert(&hub.name().to_bytes()).unwrap());
    let from = [&busy, &other].map(|peer| hub.av().insert(&peer.name().to_bytes()).unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut under_way = 0;
            while !is_over.load(Relaxed) {
                if under_way < AHEAD {
                    let sending = busy.tsend(message(8, 0), 8, to_hub[0], BUSY, BUSY);
                    sending.map_err(first).unwrap();
                    under_way += 1;
                }
                under_way -= usize::from(busy.poll().unwrap().is_some());
            }
        });
        for _ in 0..2 * AHEAD {
            let receive = hub.trecv(room(8), from[0], BUSY, 0, BUSY);
            receive.map_err(first).unwrap();
        }
        let (mut sent, mut others, mut came, mut came_at_last) = (0, 0, 0, 0);
        while others < OTHERS {
            if came > 0 && sent < others + OTHERS_AHEAD {
                let receive = hub.trecv(room(8), from[1], sent, 0, sent);
                receive.map_err(first).unwrap();
                let sending = other.tsend(message(8, sent), 8, to_hub[1], sent, sent);
                sending.map_err(first).unwrap();
                sent += 1;
            }
            while other.poll().unwrap().is_some() {}
            if let Some(done) = hub.poll().unwrap() {
                assert!(done.outcome.is_ok(), "{nic}: {done:?}");
                match done.token {
                    BUSY => {
                        let receive = hub.trecv(room(8), from[0], BUSY, 0, BUSY);
                        receive.map_err(first).unwrap();
                        came += 1;
                    }
                    _ => {
                        check(&done.buffer[..8], others, "of the other");
                        (others, came_at_last) = (others + 1, came);
                    }
                }
            }
            let starves = came - came_at_last > AT_MOST;
            is_over.fetch_or(starves, Relaxed);
            assert!(
                !starves,
                "{nic}: message {others} of the other one does not come, {came} of the busy one did; {}",
                pending_operations([&hub, &other])
            );
        }
        println!("{nic}: {came} of the busy one");
        is_over.store(true, Relaxed);
    });
    assert_eq!(stat(&other, "verbs_rc_lanes_now"), 1, "{nic}");
    drop((hub, busy, other));
    assert_clean(&device);
}

/// Control packets come without end, and the endpoint is closed.
#[test]
fn an_endpoint_closes_under_a_flood_of_control_packets() {
    let device = FakeDevice::take();
    let end = endpoint(&[]);
    let flood = Flood::of(&device, control_queue_pair(&end));
    let (closed, is_closed) = channel();
    let closing = thread::spawn(move || {
        drop(end);
        closed.send(()).unwrap();
    });
    let in_time = is_closed.recv_timeout(PATIENCE);
    drop(flood);
    closing.join().unwrap();
    assert_eq!(in_time, Ok(()), "it closed when the flood was over");
    assert_clean(&device);
}

/// Control packets come without end to an endpoint that has to look at its timers: the first packet
/// of its own is lost.
#[test]
fn an_endpoint_connects_under_a_flood_of_control_packets() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::open(&[]);
    let control = control_queue_pair(&pair.a);
    device.script(Fault::new(FaultPoint::Datagram, FaultEffect::Lose).on(control));
    let flood = Flood::of(&device, control);
    pair.exchange(8, 1);
    drop(flood);
    drop(pair);
    assert_clean(&device);
}
