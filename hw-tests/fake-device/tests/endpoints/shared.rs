//! What all lanes of an endpoint share, and a few of them use up: bounce buffers, places in its completion queue.

use std::time::Instant;

use ferrofabric_core::error::OpError;
use ferrofabric_core::owning::OwningEndpoint;
use ferrofabric_core::types::FiAddr;
use ferrofabric_fake_device::control::FakeDevice;

use crate::party::{PATIENCE, assert_clean, check, endpoint, first, message, room, run};

/// An endpoint that is connected with others.
struct Hub {
    hub: OwningEndpoint,
    others: Vec<(OwningEndpoint, FiAddr)>,
}

impl Hub {
    fn connected(others: usize, pairs: &[(&str, &str)]) -> Self {
        let mut hub = endpoint(pairs);
        let others = (0..others).map(|_| {
            let mut other = endpoint(pairs);
            let there = hub.av().insert(&other.name().to_bytes()).unwrap();
            for tag in 0..2 {
                let posted = other.trecv(room(8), FiAddr::UNSPEC, tag, 0, 1);
                posted.map_err(first).unwrap();
                let sent = hub.tsend(message(8, tag), 8, there, tag, 2);
                sent.map_err(first).unwrap();
                run(&mut [&mut hub, &mut other], 2);
            }
            (other, there)
        });
        let others = others.collect();
        Self { hub, others }
    }
}

/// A message that found no bounce buffer goes when others have come back: by the word of a lane that is not its own.
#[test]
fn a_lane_that_found_no_buffer_goes_on_when_there_is_one() {
    // Of 256 buffers; a lane's queue takes 247 messages.
    const COUNTS: [u64; 3] = [247, 9, 1];
    const BYTES: usize = 300;
    for _ in 0..3 {
        let device = FakeDevice::take();
        let Hub {
            mut hub,
            mut others,
        } = Hub::connected(COUNTS.len(), &[]);
        device.hold(true);
        for ((_, there), count) in others.iter().zip(COUNTS) {
            for tag in 0..count {
                let sent = hub.tsend(message(BYTES, tag), BYTES, *there, tag, tag);
                sent.map_err(first).unwrap();
            }
        }
        // The last is tried, in vain.
        for _ in 0..10 {
            assert!(hub.poll().unwrap().is_none());
        }
        device.hold(false);
        let all: u64 = COUNTS.iter().sum();
        let (mut sent, mut looks) = (0, 0);
        while sent < all {
            sent += u64::from(hub.poll().unwrap().is_some());
            for (other, _) in &mut others {
                assert!(other.poll().unwrap().is_none());
            }
            // The last one is on its own then. Once a second something else would have it looked at.
            looks += u32::from(sent == all - 1);
            assert!(looks < 500, "the last waits, with all buffers there");
        }
        for ((other, _), count) in others.iter_mut().zip(COUNTS) {
            for tag in 0..count {
                let posted = other.trecv(room(BYTES), FiAddr::UNSPEC, tag, 0, tag);
                posted.map_err(first).unwrap();
                let done = run(&mut [other], 1).pop().unwrap();
                check(&done.buffer, done.token, "received");
            }
        }
        drop((hub, others));
        assert_clean(&device);
    }
}

/// Messages of which nobody wants to hear, to so many peers that no lane has a reason of its own to ask for a completion: those of all
/// together have no more room in the completion queue, and go on all the same.
#[test]
fn many_lanes_of_which_nobody_wants_to_hear() {
    // Of 16,384 places; a lane asks with the 64th at the latest.
    const PEERS: usize = 270;
    const EACH: usize = 62;
    let device = FakeDevice::take();
    let few = [
        ("FERRO_EAGER", "256"),
        ("FERRO_RX_BUFFERS", "256"),
        ("FERRO_LANE", "rc"),
    ];
    let Hub {
        mut hub,
        mut others,
    } = Hub::connected(PEERS, &few);
    let begun = Instant::now();
    for n in 0..EACH {
        for (_, there) in &others {
            let text = (n as u64).to_le_bytes();
            while hub.tinject(&text, *there, 7) == Err(OpError::Again) {
                assert!(hub.poll().unwrap().is_none());
                assert!(begun.elapsed() < PATIENCE, "no room for message {n}");
            }
        }
    }
    for (other, _) in &mut others {
        for n in 0..EACH {
            let posted = other.trecv(room(8), FiAddr::UNSPEC, 7, 0, n as u64);
            posted.map_err(first).unwrap();
            let done = run(&mut [&mut hub, other], 1).pop().unwrap();
            assert_eq!(
                done.buffer[..],
                (n as u64).to_le_bytes(),
                "{:?}",
                done.outcome
            );
        }
    }
    drop((hub, others));
    assert_clean(&device);
}
