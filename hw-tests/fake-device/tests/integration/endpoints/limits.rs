//! The limits of a device, and the choices among what it has several of.

use ferrofabric_fake_device::control::{FakeDevice, VECTORS};
use ferrofabric_system::process_number::process_number;

use crate::endpoints::party::{PeerPair, assert_clean, stat};

/// The device refuses requests of more than 1 MiB. Messages are longer, and so is the length that
/// the settings allow for one request.
#[test]
fn a_request_is_no_longer_than_a_port_allows() {
    for rendezvous in ["read", "write"] {
        let device = FakeDevice::take();
        device.become_nic("worst-with-srq");
        let mut pair = PeerPair::connected(&[
            ("FERRO_LANE", "rc"),
            ("FERRO_READ_CHUNK", "1G"),
            ("FERRO_RENDEZVOUS", rendezvous),
        ]);
        pair.exchange((5 << 20) + 3, 7);
        assert_eq!(stat(&pair.a, "verbs_lanes_failed"), 0);
        drop(pair);
        assert_clean(&device);
    }
}

/// All completion queues of a process are at the vector that its number on the node gives.
#[test]
fn processes_take_completion_vectors_in_turn() {
    let device = FakeDevice::take();
    let pair = PeerPair::open(&[("FERRO_LANE", "rc")]);
    let vectors = device.vectors();
    assert!(vectors.len() >= 2, "{vectors:?}");
    let own = process_number() as u32 % VECTORS;
    assert!(
        vectors.iter().all(|vector| *vector == own),
        "{vectors:?}, not {own}"
    );
    drop(pair);
    assert_clean(&device);
}
