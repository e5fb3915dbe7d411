//! Several senders flood a receiver that posts nothing: its memory is bounded, counted to the byte,
//! and all messages come once it posts receives.

use std::time::{Duration, Instant};

use crate::owner::Ep;
use ferrofabric_conformance::steady::allocated_bytes;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, SendOp};
use ferrofabric_shm::ShmConfig;

const SENDERS: usize = 3;
const BYTES: usize = 64 << 10;
const MESSAGES: usize = 2000;
const UNDER_WAY: usize = 4096;

/// Largest memory that a receiver uses for one sender: the sender's quota, the content of the ring
/// at the request for envelopes only, and the envelopes. An unexpected message takes
/// less than 250 bytes besides its data.
const PER_SENDER: usize = BYTES + 64 * 65_536 + (MESSAGES + 64 + UNDER_WAY) * 250;

struct FloodSender {
    ep: Ep,
    to: FiAddr,
    sent: u64,
}

impl FloodSender {
    /// Sends copies until a send is refused.
    fn flood(&mut self, len: impl Fn(u64) -> usize) {
        let mut bytes = vec![0u8; 64 << 10];
        loop {
            bytes[..8].copy_from_slice(&self.sent.to_le_bytes());
            let op = SendOp {
                kind: MsgKind::Tagged,
                dest: self.to,
                tag: 5,
                data: 0,
                desc: MrDesc::NONE,
                context: 0,
                flags: Flags::INJECT,
            };
            let iov = [IoBuf::new(bytes.as_ptr(), len(self.sent))];
            // SAFETY: an inject is over at return.
            match unsafe { self.ep.send_op(&op, &iov) } {
                Ok(()) => self.sent += 1,
                Err(OpError::Again) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

/// Senders send until nothing moves any more; returns the most memory allocated meanwhile.
fn flood(
    senders: &mut [FloodSender],
    receiver: &mut Ep,
    len: impl Fn(u64) -> usize + Copy,
) -> usize {
    let (mut most, mut quiet) = (0, 0);
    let end = Instant::now() + Duration::from_secs(60);
    while quiet < 100 {
        let before: u64 = senders.iter().map(|s| s.sent).sum();
        for sender in &mut *senders {
            sender.flood(len);
            sender.ep.progress();
        }
        receiver.progress();
        most = most.max(allocated_bytes());
        let after: u64 = senders.iter().map(|s| s.sent).sum();
        quiet = if before == after { quiet + 1 } else { 0 };
        assert!(Instant::now() < end, "{after} messages, and no end");
    }
    most
}

fn flooded_and_recovered(len: impl Fn(u64) -> usize + Copy) {
    let config = ShmConfig {
        unexpected_bytes: BYTES,
        unexpected_messages: MESSAGES,
        queue_sends: 64,
        under_way: UNDER_WAY,
        ..ShmConfig::default()
    };
    let mut receiver = Ep::open(config.clone());
    let mut senders: Vec<FloodSender> = (0..SENDERS)
        .map(|_| {
            let mut ep = Ep::open(config.clone());
            let to = ep.insert(&receiver.name());
            FloodSender { ep, to, sent: 0 }
        })
        .collect();
    let addrs: Vec<FiAddr> = senders
        .iter()
        .map(|s| receiver.insert(&s.ep.name()))
        .collect();
    let before = allocated_bytes();
    let most = flood(&mut senders, &mut receiver, len) - before;
    let sent: Vec<u64> = senders.iter().map(|s| s.sent).collect();
    // Senders keep copies of started messages, too, as long as their messages are.
    let longest = (0..8).map(len).max().unwrap_or_default();
    let theirs = (64 + 4096) * (longest + 300);
    let bound = SENDERS * (PER_SENDER + theirs);
    assert!(
        most < bound,
        "{most} bytes for {sent:?} messages, bound {bound}"
    );

    // After receives are posted, all messages come, in each sender's order.
    let mut into = vec![0u8; 64 << 10];
    let end = Instant::now() + Duration::from_secs(60);
    for number in 0..*sent.iter().max().unwrap() {
        for (addr, &sent) in addrs.iter().zip(&sent) {
            if number >= sent {
                continue;
            }
            let got = receiver.owner.rx.ok;
            receiver.recv_from(MsgKind::Tagged, *addr, 5, 0, &mut into, 1);
            while receiver.owner.rx.ok == got {
                receiver.progress();
                for sender in &mut senders {
                    sender.ep.progress();
                }
                assert!(Instant::now() < end, "message {number} does not come");
            }
            if len(number) >= 8 {
                assert_eq!(into[..8], number.to_le_bytes());
            }
            while let Some(done) = receiver.poll() {
                assert_eq!(done.unwrap().len, len(number));
            }
        }
    }
    let stats = receiver.shm.stats();
    assert_eq!((stats.links, stats.links_failed), (SENDERS as u64, 0));

    // The flood can be repeated: the memory of unexpected messages was freed.
    let again = flood(&mut senders, &mut receiver, len) - before;
    assert!(again < bound, "{again} bytes, bound {bound}");
}

/// One test, since the memory of the process is counted.
#[test]
fn a_flood_stays_within_bounds_and_is_received_later() {
    flooded_and_recovered(|_| 8);
    flooded_and_recovered(|_| 0);
    flooded_and_recovered(|n| [8, 3000, 0, 20_000, 48, 100, 60_000, 9000][n as usize % 8]);
}
