//! Endpoints to which more comes than they take in one look, without end.

use std::sync::mpsc::channel;
use std::thread;

use ferrofabric_fake_device::control::{Effect, FakeDevice, Fault, Point};

use crate::party::{PATIENCE, Pair, assert_clean, endpoint};
use crate::revivals::control_queue_pair;

/// A flood, which ends with this: what it keeps busy can be closed then.
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

/// Control packets come without end to an endpoint that has to look at its timers: the first packet of its own is lost.
#[test]
fn an_endpoint_connects_under_a_flood_of_control_packets() {
    let device = FakeDevice::take();
    let mut pair = Pair::open(&[]);
    let control = control_queue_pair(&pair.a);
    device.script(Fault::new(Point::Datagram, Effect::Lose).on(control));
    let flood = Flood::of(&device, control);
    pair.exchange(8, 1);
    drop(flood);
    drop(pair);
    assert_clean(&device);
}
