//! Endpoints to which more comes than they take in one look, without end.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};

use crate::endpoints::breakage::data_queue_pair;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, endpoint, first, message, room, stat,
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
    /// Messages that may be under way: fewer than wait at most.
    const AHEAD: u64 = 500;
    let device = FakeDevice::take();
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
