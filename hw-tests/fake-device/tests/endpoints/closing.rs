//! Peers that close in order while sends wait for them.

use std::time::{Duration, Instant};

use ferrofabric_core::error::{Errno, OpError};
use ferrofabric_fake_device::control::FakeDevice;

use crate::party::{Pair, first, message, room, run};

/// More than goes out at once.
const SENDS: u64 = 900;

/// Nobody waits so long for a connection to come back.
const PROMPT: Duration = Duration::from_secs(8);

#[test]
fn what_waits_for_a_peer_that_closes_ends() {
    for lane in ["rc", "ud", "auto"] {
        println!("{lane}");
        let _device = FakeDevice::take();
        let mut pair = Pair::connected(&[("FERRO_LANE", lane)]);
        for token in 0..SENDS {
            let sent = (pair.a).tsend(message(8, token), 8, pair.to_b, token, token);
            sent.map_err(first).unwrap();
        }
        let receive = pair.a.trecv(room(8), pair.to_b, 1, 0, SENDS);
        receive.map_err(first).unwrap();
        let Pair { mut a, b, to_b, .. } = pair;
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
