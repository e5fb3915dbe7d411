//! Messages that were flushed reach their peers, though the endpoint closes at once.

use std::sync::mpsc::channel;
use std::time::Duration;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::FakeDevice;

use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, endpoint, first, message, room,
};

/// Goes as a request, which the receiver answers.
const LONG: usize = 1 << 20;

const LANES: [&str; 3] = ["rc", "ud", "auto"];

/// Injects a message, and sends another, with no connection before; and closes.
fn last_messages(lane: &'static str, bytes: usize) {
    let settings = [("FERRO_LANE", lane)];
    let (to_sender, from_receiver) = channel();
    let receiver = std::thread::spawn(move || {
        let mut receiver = endpoint(&settings);
        to_sender.send(receiver.name()).unwrap();
        for (token, bytes) in [(0, 8), (1, bytes)] {
            let posted = receiver.recv(room(bytes), FiAddr::UNSPEC, token);
            posted.map_err(first).unwrap();
        }
        for token in 0..2 {
            let done = receiver.wait(Some(PATIENCE)).unwrap().unwrap();
            let len = done.outcome.unwrap().len;
            check(&done.buffer[..len], token, "a message");
        }
    });
    let mut sender = endpoint(&settings);
    let name = from_receiver.recv().unwrap();
    let to_receiver = sender.av().insert(&name.to_bytes()).unwrap();
    sender.inject(&message(8, 0), to_receiver, None).unwrap();
    let sent = sender.send(message(bytes, 1), bytes, to_receiver, None, 1);
    sent.map_err(first).unwrap();
    sender.flush(Some(PATIENCE)).unwrap();
    drop(sender);
    receiver.join().unwrap();
}

#[test]
fn messages_that_were_flushed_outlive_their_sender() {
    for lane in LANES {
        for bytes in [8, LONG] {
            println!("{lane}, {bytes} bytes");
            let device = FakeDevice::take();
            last_messages(lane, bytes);
            assert_clean(&device);
        }
    }
}

/// The device writes the message after the flush has begun: a flush waits for the peer's
/// acknowledgement, which the inject did not request.
#[test]
fn a_flush_waits_for_the_device() {
    let device = FakeDevice::take();
    let pair = PeerPair::connected(&[("FERRO_LANE", "rc")]);
    device.hold(true);
    pair.a.inject(&message(8, 1), pair.to_b, None).unwrap();
    let soon = Some(Duration::from_millis(30));
    assert_eq!(pair.a.flush(soon), Err(OpError::Again));
    device.hold(false);
    pair.a.flush(Some(PATIENCE)).unwrap();
    pair.close(&device);
}
