//! Peers that close in order while sends wait for them.

use std::time::{Duration, Instant};

use ferrofabric_conformance::ends::{self, any_tagged};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::SendOp;
use ferrofabric_fake_device::control::FakeDevice;

use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, domain, first, message, room, run,
};

/// More than goes out at once.
const SENDS: u64 = 900;

/// Nobody waits so long for a connection to come back.
const PROMPT: Duration = Duration::from_secs(8);

#[test]
fn operations_with_a_peer_that_closes_end() {
    for lane in ["rc", "ud", "auto"] {
        println!("{lane}");
        let _device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", lane)]);
        for token in 0..SENDS {
            let sent = (pair.a).tsend(message(8, token), 8, pair.to_b, token, token);
            sent.map_err(first).unwrap();
        }
        let receive = pair.a.trecv(room(8), pair.to_b, 1, 0, SENDS);
        receive.map_err(first).unwrap();
        let PeerPair { mut a, b, to_b, .. } = pair;
        let begun = Instant::now();
        drop(b);
        let done = run(&mut [&mut a], SENDS as usize + 1);
        assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
        let mut shut_down = 0;
        for done in done {
            if let Err(error) = done.outcome {
                assert_eq!(error.errno, Errno::ESHUTDOWN, "{error:?}");
                shut_down += 1;
            } else {
                assert_ne!(done.token, SENDS, "a message that nobody sent");
            }
        }
        assert!(shut_down > 1, "nothing waited");
        let refused = a.tsend(room(8), 8, to_b, 1, 1).map_err(first);
        assert_eq!(refused, Err(OpError::Failed(Errno::ESHUTDOWN)));
    }
}

fn until(mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < PATIENCE);
    }
}

/// The device writes an injected message from memory of the endpoint: while the device may still
/// read this memory, it is not given back, though the endpoint is being closed and the registration
/// is kept.
#[test]
fn the_device_writes_injects_of_a_closing_endpoint() {
    for kept in ["on", "off"] {
        let device = FakeDevice::take();
        let settings = [
            ("FERRO_LANE", "rc"),
            ("FERRO_RENDEZVOUS", "write"),
            ("FERRO_MR_CACHE", kept),
            // The close does not wait until the device goes on.
            ("FERRO_CLOSE_TIMEOUT", "1ms"),
        ];
        let domains = [(); 2].map(|()| domain(&settings));
        let len = domains[0].info().tx.inject_size;
        let pair = ends::QueuedPair::open(&*domains[0], &*domains[1]);
        drop(domains);
        let into = pair.b.memory(len, 0);
        let receive = any_tagged(pair.b.context());
        pair.b.recv(&receive, &[into]).unwrap();
        let op = SendOp {
            flags: Flags::INJECT | Flags::DELIVERY_COMPLETE,
            ..pair.tagged(0)
        };
        pair.a.send_alone(op, len, 0x5a);
        // The other one says where it may be written.
        let posted = || device.calls("ibv_post_send");
        let before = posted();
        until(|| {
            pair.b.rx.pump();
            posted() > before
        });
        device.hold(true);
        until(|| {
            pair.a.tx.pump();
            device.queue_pairs().iter().any(|qp| qp.waiting != 0)
        });
        let ends::QueuedPair { a, b, .. } = pair;
        // It comes to its requests when their queue pair is about to be destroyed.
        drop(a);
        device.hold(false);
        let mut completion = None;
        until(|| {
            b.rx.pump();
            completion = b.rx.take_of(receive.context);
            completion.is_some()
        });
        assert_eq!(completion.unwrap().unwrap().len, len);
        assert_eq!(b.bytes(into.addr, len), vec![0x5a; len], "{kept}");
        drop(b);
        assert_clean(&device);
    }
}
