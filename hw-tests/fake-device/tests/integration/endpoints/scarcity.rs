//! More lanes than a device has queue pairs for: endpoints of one device take turns at them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_fake_device::profile::DeviceProfile;
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_system::clock::HandClock;

use crate::endpoints::party::{
    PATIENCE, assert_clean, check, domain_at, first, message, pending_operations, room,
};

/// A NIC with few queue pairs.
const NIC: &str = "worst";

/// So long that only a connection carries it.
const LONG: usize = 100_000;

/// Nobody loses patience by the clock that the test sets.
const PATIENT: [(&str, &str); 2] = [
    ("FERRO_RECONNECT_TIMEOUT", "off"),
    ("FERRO_PEER_TIMEOUT", "off"),
];

/// Endpoints of a device that has few queue pairs left for lanes.
struct Crowd {
    // The endpoints close before their device.
    endpoints: Vec<OwningEndpoint>,
    clock: Arc<HandClock>,
    device: FakeDevice,
}

impl Crowd {
    fn open(left: usize) -> Self {
        let device = FakeDevice::take();
        device.become_nic(NIC);
        let clock = Arc::new(HandClock::new());
        let queue_pairs = DeviceProfile::named(NIC).unwrap().queue_pairs as usize;
        let open = || OwningEndpoint::open(&*domain_at(&clock, &PATIENT), &AvAttr::default());
        let mut endpoints = vec![open().unwrap()];
        let of_each = device.queue_pairs().len();
        endpoints.extend((1..(queue_pairs - left) / of_each).map(|_| open().unwrap()));
        assert_eq!(device.queue_pairs().len(), queue_pairs - left);
        Self {
            endpoints,
            clock,
            device,
        }
    }

    /// One endpoint has a message for another. Both know each other: neither closes the lane
    /// because it is idle.
    fn send(&mut self, from: usize, to: usize, seed: u64) {
        let [source, name] = [from, to].map(|at| self.endpoints[at].name().to_bytes());
        self.endpoints[to].av().insert(&source).unwrap();
        let receive = self.endpoints[to].trecv(room(LONG), FiAddr::UNSPEC, seed, 0, seed);
        receive.map_err(first).unwrap();
        let from = &mut self.endpoints[from];
        let to = from.av().insert(&name).unwrap();
        let sent = from.tsend(message(LONG, seed), LONG, to, seed, u64::MAX);
        sent.map_err(first).unwrap();
    }

    /// Drives all endpoints until so many messages were sent and received.
    fn run(&mut self, messages: usize) {
        let (begun, mut over) = (Instant::now(), 0);
        while over < 2 * messages {
            assert!(
                begun.elapsed() < PATIENCE,
                "{over} of {} operations are over: {}",
                2 * messages,
                pending_operations(&self.endpoints)
            );
            for endpoint in &mut self.endpoints {
                while let Some(done) = endpoint.poll().unwrap() {
                    assert!(done.outcome.is_ok(), "{done:?}");
                    if done.token != u64::MAX {
                        check(&done.buffer, done.token, "what was received");
                    }
                    over += 1;
                }
            }
            self.clock.advance(Duration::from_millis(1));
        }
    }

    fn close(self) {
        drop(self.endpoints);
        assert_clean(&self.device);
    }
}

/// An endpoint begins two lanes at once, and takes the last two queue pairs for it. Both peers lack
/// one.
#[test]
fn lanes_that_are_begun_keep_no_queue_pair_from_one_another() {
    let mut crowd = Crowd::open(2);
    crowd.send(0, 1, 1);
    crowd.send(0, 2, 2);
    crowd.run(2);
    crowd.close();
}

/// Two endpoints have the last queue pairs, and use them no more. Two others, which have no lane to
/// give up, get them.
#[test]
fn lanes_that_others_do_not_use_make_room() {
    let mut crowd = Crowd::open(2);
    crowd.send(0, 1, 1);
    crowd.run(1);
    crowd.send(2, 3, 2);
    crowd.run(1);
    crowd.close();
}

/// All want to send to the next one.
#[test]
fn a_circle_of_peers_takes_turns() {
    let mut crowd = Crowd::open(4);
    let all = crowd.endpoints.len();
    for at in 0..all {
        crowd.send(at, (at + 1) % all, at as u64);
    }
    crowd.run(all);
    crowd.close();
}
