//! Messages both ways while a fault strikes, and the rules that hold all the same: every send ends,
//! the received bytes are those that were sent, nothing comes twice, and a send fails although its
//! message arrived only if there is a reason.

use std::collections::BTreeSet;
use std::time::Instant;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;

use crate::endpoints::party::{
    PATIENCE, PeerPair, check, first, message, pending_operations, room,
};

/// Sizes of all protocols: inline, eager, read in one piece and in several.
pub(crate) const SIZES: [usize; 5] = [8, 700, 5000, 20_000, 600_000];

/// The results of the messages.
#[derive(Debug, Default)]
pub(crate) struct TrafficResult {
    pub(crate) sent: usize,
    pub(crate) received: usize,
    /// Why sends failed, by side.
    pub(crate) send_errors: Vec<Errno>,
    pub(crate) receive_errors: Vec<Errno>,
}

/// High bit of a token: a send.
const SEND: u64 = 1 << 63;

/// Next bit: a receive in the place of one that failed with its connection, for the message may
/// come with the next one.
const AGAIN: u64 = 1 << 62;

impl PeerPair {
    /// Sends so many messages each way, with receives that name their senders posted before, and
    /// lets `strike` do its worst once the first have come. Tags from `from` on.
    pub(crate) fn traffic(
        &mut self,
        from: u64,
        count: u64,
        strike: impl FnOnce(),
    ) -> TrafficResult {
        self.run_traffic(from, count, true, strike)
    }

    /// As [`traffic`](Self::traffic), with packets whose bytes are corrupted: the only rule is that
    /// every send ends.
    pub(crate) fn corrupt_traffic(&mut self, from: u64, count: u64) -> TrafficResult {
        self.run_traffic(from, count, false, || ())
    }

    fn run_traffic(
        &mut self,
        from: u64,
        count: u64,
        sound: bool,
        strike: impl FnOnce(),
    ) -> TrafficResult {
        let size = |tag: u64| SIZES[tag as usize % SIZES.len()];
        let tags = from..from + count;
        for tag in tags.clone() {
            let bytes = size(tag);
            self.a
                .trecv(room(bytes), self.to_b, tag, 0, tag)
                .map_err(first)
                .unwrap();
            self.b
                .trecv(room(bytes), self.to_a, tag, 0, tag)
                .map_err(first)
                .unwrap();
        }
        let mut traffic = TrafficResult::default();
        let mut strike = Some(strike);
        let mut sends_over = 0;
        for tag in tags {
            let bytes = size(tag);
            for (endpoint, to, seed) in [
                (&mut self.a, self.to_b, tag),
                (&mut self.b, self.to_a, !tag),
            ] {
                let sent = endpoint.tsend(message(bytes, seed), bytes, to, tag, tag | SEND);
                if let Err((OpError::Failed(errno), _)) = sent {
                    sends_over += 1;
                    traffic.send_errors.push(errno);
                } else {
                    sent.map_err(first).unwrap();
                }
            }
        }
        let mut seen = [BTreeSet::new(), BTreeSet::new()];
        let (mut told, mut got) = (BTreeSet::new(), BTreeSet::new());
        let begun = Instant::now();
        // Messages whose sends succeeded come; others may never come.
        while sends_over < 2 * count || (sound && !told.is_subset(&got)) {
            assert!(
                begun.elapsed() < PATIENCE,
                "{sends_over} of {} sends are over, and of those that succeeded these were not received: {:?}; {traffic:?}; {}",
                2 * count,
                told.difference(&got),
                pending_operations([&self.a, &self.b])
            );
            for (side, endpoint) in [&mut self.a, &mut self.b].into_iter().enumerate() {
                let Some(done) = endpoint.poll().unwrap() else {
                    continue;
                };
                let tag = done.token & !(SEND | AGAIN);
                assert!(
                    done.token & AGAIN != 0 || seen[side].insert(done.token),
                    "operation {:#x} ended twice",
                    done.token
                );
                match done.outcome {
                    Ok(completion) if completion.flags.contains(Flags::RECV) => {
                        let what = format!("message {tag}, received by {}", ["a", "b"][side]);
                        if sound {
                            assert_eq!(completion.len, size(tag), "{what}");
                            check(&done.buffer, if side == 1 { tag } else { !tag }, &what);
                        }
                        got.insert((side, tag));
                        traffic.received += 1;
                    }
                    Ok(_) => {
                        sends_over += 1;
                        told.insert((1 - side, tag));
                        traffic.sent += 1;
                    }
                    Err(error) if done.token & SEND != 0 => {
                        sends_over += 1;
                        traffic.send_errors.push(error.errno);
                    }
                    Err(error) => {
                        // It failed with its connection: so much its sender can not know.
                        got.insert((side, tag));
                        traffic.receive_errors.push(error.errno);
                        let from = [self.to_b, self.to_a][side];
                        endpoint
                            .trecv(room(size(tag)), from, tag, 0, tag | AGAIN)
                            .map_err(first)
                            .unwrap();
                    }
                }
                if traffic.received >= 2 {
                    if let Some(strike) = strike.take() {
                        strike();
                    }
                }
            }
        }
        traffic
    }
}
