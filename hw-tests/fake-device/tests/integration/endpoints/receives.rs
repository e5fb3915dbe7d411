//! Receive buffers of lanes that break in mid-message: each of them comes back, however many break.

use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_verbs_sys::ibv_wc_status as Status;

use crate::endpoints::party::{PeerPair, check, first, message, room};

/// Few buffers: fewer than lanes that break.
const BUFFERS: &str = "16";

/// Lanes that break.
const ROUNDS: u64 = 24;

/// A message stops in its middle, and goes over the next lane.
fn break_inside_a_message(device: &FakeDevice, pair: &mut PeerPair, round: u64) {
    let stops = FaultEffect::StopInside(Status::IBV_WC_RETRY_EXC_ERR);
    device.script(Fault::new(FaultPoint::Send, stops));
    let receive = pair.b.trecv(room(700), pair.to_a, round, 0, 1);
    receive.map_err(first).unwrap();
    let sent = pair.a.tsend(message(700, round), 700, pair.to_b, round, 2);
    sent.map_err(first).unwrap();
    for done in pair.run(2) {
        assert!(done.outcome.is_ok(), "round {round}: {:?}", done.outcome);
        if done.token == 1 {
            check(&done.buffer, round, "received");
        }
    }
}

fn lanes_break(nic: Option<&str>) {
    let device = FakeDevice::take();
    if let Some(nic) = nic {
        device.become_nic(nic);
    }
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc"), ("FERRO_RX_BUFFERS", BUFFERS)]);
    for round in 0..ROUNDS {
        break_inside_a_message(&device, &mut pair, round);
        if round % 8 == 7 {
            pair.balance(&device);
        }
    }
    pair.settle(&device);
    pair.exchange(8, 1);
    pair.close(&device);
}

#[test]
fn lanes_that_break_in_mid_message() {
    lanes_break(None);
}

/// The device never gives the receive back. The endpoint finds out which one it was.
#[test]
fn receives_that_the_device_loses() {
    lanes_break(Some("bnxt"));
}

/// The device flushes the receive behind all requests of the send queue.
#[test]
fn receives_that_are_flushed_late() {
    for nic in ["mlx5-ib", "worst-with-srq"] {
        println!("{nic}");
        lanes_break(Some(nic));
    }
}
