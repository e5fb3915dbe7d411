//! Peers that close in order while sends wait for them.

use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends::{self, any_tagged};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::SendOp;
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::owning::OwningEndpoint;

use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, domain, endpoint, first, message, room, run,
    serialized,
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

/// A long message promotes the lane, and the peer closes in the midst of that. It has taken a short
/// message before, which counts as sent.
#[test]
fn a_close_in_a_promotion() {
    /// Polls of both ends between the short message and the close.
    const POLLS: [(u32, u32); 14] = [
        (0, 0),
        (0, 5),
        (0, 50),
        (0, 500),
        (0, 5000),
        (1, 0),
        (5, 5),
        (5, 50),
        (50, 0),
        (50, 5),
        (50, 50),
        (5, 500),
        (500, 0),
        (500, 500),
    ];
    for (lane, is_known) in [("ud", true), ("ud", false), ("auto", true), ("auto", false)] {
        for (of_a, of_b) in POLLS {
            let what = format!("{lane}, known {is_known}, {of_a} and {of_b} polls");
            let device = FakeDevice::take();
            let mut pair = PeerPair::open(&[("FERRO_LANE", lane)]);
            if is_known {
                pair.exchange(8, 0);
            }
            let receive = pair.b.trecv(room(8), pair.to_a, 2, 0, 100);
            receive.map_err(first).unwrap();
            for (bytes, tag) in [(8, 2), (600_000, 3)] {
                let sent = (pair.a).tsend(message(bytes, tag), bytes, pair.to_b, tag, tag);
                sent.map_err(first).unwrap();
            }
            let PeerPair { mut a, mut b, .. } = pair;
            let mut ended = Vec::new();
            let mut poll_a = |a: &mut OwningEndpoint| ended.extend(a.poll().unwrap());
            until(|| {
                if !is_known {
                    poll_a(&mut a);
                }
                b.poll().unwrap().is_some()
            });
            for at in 0..of_a.max(of_b) {
                if at < of_a {
                    poll_a(&mut a);
                }
                if at < of_b {
                    assert!(b.poll().unwrap().is_none(), "{what}");
                }
            }
            drop(b);
            until(|| {
                ended.extend(a.poll().unwrap());
                ended.len() == 2
            });
            let short = ended.iter().find(|done| done.token == 2).unwrap();
            assert!(short.outcome.is_ok(), "{what}: {:?}", short.outcome);
            drop(a);
            assert_clean(&device);
        }
    }
}

/// A peer injects messages and closes, while the receiver makes no call: all are in its memory
/// when the close returns.
#[test]
fn messages_come_while_their_receiver_makes_no_calls() {
    const BYTES: usize = 128;
    /// More than there are receive buffers, and less than a peer may have unexpected.
    const MESSAGES: u64 = 1200;
    for (nic, lane) in [
        ("mlx5-ib", "rc"),
        ("worst-with-srq", "rc"),
        ("mlx5-ib", "ud"),
        ("worst", "ud"),
        ("mlx5-ib", "auto"),
    ] {
        for knows in [false, true] {
            let what = format!("{nic}, {lane}, connected before: {knows}");
            let device = FakeDevice::take();
            device.become_nic(nic);
            let settings = [("FERRO_LANE", lane), ("FERRO_CLOSE_TIMEOUT", "100s")];
            let a = endpoint(&settings);
            let b = OwningEndpoint::open(&*serialized(&settings), &AvAttr::default()).unwrap();
            let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
            let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
            let mut pair = PeerPair { a, b, to_b, to_a };
            if knows {
                pair.exchange(8, MESSAGES);
            }
            let PeerPair { a, mut b, .. } = pair;
            for number in 0..MESSAGES {
                let bytes = message(BYTES, number);
                while let Err(error) = a.tinject(&bytes, to_b, number) {
                    assert_eq!(error, OpError::Again, "{what}");
                }
            }
            drop(a);
            for number in 0..MESSAGES {
                let receive = b.trecv(room(BYTES), to_a, number, 0, number);
                receive.map_err(first).unwrap();
            }
            for done in run(&mut [&mut b], MESSAGES as usize) {
                assert!(
                    done.outcome.is_ok(),
                    "{what}, {}: {:?}",
                    done.token,
                    done.outcome
                );
                check(&done.buffer, done.token, &what);
            }
            drop(b);
            assert_clean(&device);
        }
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
            // The close does not wait until the device goes on, and has nobody drive the peer.
            ("FERRO_CLOSE_TIMEOUT", "0s"),
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
