//! Messages that both sides send before either receives: all of them are taken, and wait.

use std::time::Instant;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{PATIENCE, QueuedEndpoint, QueuedPair, any_tagged};

/// One side: its endpoint, its peer, and a buffer for its receives.
struct Side<'a> {
    end: &'a QueuedEndpoint,
    peer: FiAddr,
    into: IoBuf,
}

impl<'a> Side<'a> {
    fn both(pair: &'a QueuedPair) -> [Self; 2] {
        [(&pair.a, pair.to_b), (&pair.b, pair.to_a)].map(|(end, peer)| Side {
            end,
            peer,
            into: end.memory(8, 0),
        })
    }

    /// Injects message number `n`, whose tag and bytes are its number, while both sides are driven.
    fn send(&self, pair: &QueuedPair, n: u64, flags: Flags, from: IoBuf) {
        let op = SendOp {
            dest: self.peer,
            context: n,
            flags,
            ..pair.tagged(n)
        };
        let until = Instant::now() + PATIENCE;
        // SAFETY: the memory lives as long as the endpoint.
        while let Err(error) = unsafe { self.end.endpoint.send(&op, &[from]) } {
            assert_eq!(error, OpError::Again);
            pair.drive();
            assert!(
                Instant::now() < until,
                "message {n} is refused while none is received"
            );
        }
    }

    /// Receives message number `n`.
    fn receive(&self, pair: &QueuedPair, n: u64) {
        let op = RecvOp {
            tag: n,
            ignore: 0,
            ..any_tagged(self.end.context())
        };
        self.end.recv(&op, &[self.into]).unwrap();
        let came = pair.until("a message does not come", || {
            self.end.rx.take_of(op.context)
        });
        assert_eq!(came.unwrap().len, 8);
        assert_eq!(self.end.bytes(self.into.addr, 8), n.to_le_bytes());
    }
}

/// Each side sends so many messages before it posts a receive. Then it receives the last one first,
/// if that is wanted: the receiver knows of all of them.
pub fn of_messages(domain_a: &dyn Domain, domain_b: &dyn Domain, count: u64, last_first: bool) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let sides = Side::both(&pair);
    for side in &sides {
        let from = side.end.memory(8, 0);
        for n in 0..count {
            // SAFETY: the memory is the endpoint's, and an inject has copied it at its return.
            unsafe { from.as_mut_ptr().cast::<u64>().write_unaligned(n.to_le()) };
            side.send(&pair, n, Flags::INJECT, from);
        }
    }
    let first = u64::from(last_first);
    for n in (count - first..count).chain(0..count - first) {
        for side in &sides {
            side.receive(&pair, n);
        }
    }
}

/// The same of sends that are not injected: all of them complete once they are received.
pub fn of_sends(domain_a: &dyn Domain, domain_b: &dyn Domain, count: u64) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let sides = Side::both(&pair);
    for side in &sides {
        let from = side.end.memory(8 * usize::try_from(count).unwrap(), 0);
        for n in 0..count {
            let at = from.part(8 * n as usize, 8);
            // SAFETY: the memory is the endpoint's, and no send has this part.
            unsafe { at.as_mut_ptr().cast::<u64>().write_unaligned(n.to_le()) };
            side.send(&pair, n, Flags::COMPLETION, at);
        }
    }
    for n in 0..count {
        for side in &sides {
            side.receive(&pair, n);
        }
    }
    for side in &sides {
        let mut done = 0;
        pair.until("sends do not complete", || {
            let ended = std::iter::from_fn(|| side.end.tx.take());
            done += ended.map(Result::unwrap).count() as u64;
            (done >= count).then_some(())
        });
    }
}

/// Messages of all lengths behind a backlog, with and without a report of their delivery: a receive
/// for the last finds it first, into buffers of any length, and so do a peek and a discard.
pub fn of_all_lengths(domain_a: &dyn Domain, domain_b: &dyn Domain, backlog: u64) {
    const LENS: [usize; 6] = [8, 0, 3000, 100_000, 1, 20_000];
    const LEVELS: [Flags; 2] = [Flags::empty(), Flags::DELIVERY_COMPLETE];
    let pair = QueuedPair::open(domain_a, domain_b);
    let [from_a, at_b] = Side::both(&pair);
    let from = from_a.end.memory(8, 0);
    for n in 0..backlog {
        // SAFETY: the memory is the endpoint's, and an inject has copied it at its return.
        unsafe { from.as_mut_ptr().cast::<u64>().write_unaligned(n.to_le()) };
        from_a.send(&pair, n, Flags::INJECT, from);
    }
    let kinds = (LENS.iter()).flat_map(|len| LEVELS.map(|level| (*len, level)));
    let kinds: Vec<_> = kinds.chain([(5000, Flags::empty()); 3]).collect();
    for (n, (len, level)) in (backlog..).zip(&kinds) {
        let from = from_a.end.memory(*len, n as u8);
        from_a.send(&pair, n, Flags::COMPLETION | *level, from);
    }
    // The last three are discarded, received in part, and received without a byte.
    let probed = |n: u64, flags: Flags| RecvOp {
        tag: n,
        ignore: 0,
        flags,
        ..any_tagged(pair.b.context())
    };
    let last = backlog + kinds.len() as u64;
    let found = probed(last - 1, Flags::PEEK | Flags::DISCARD);
    pair.until("an envelope does not come", || pair.b.probe(&found).ok());
    for (n, len) in [(last - 2, 100), (last - 3, 0)] {
        let op = probed(n, Flags::COMPLETION);
        let into = pair.b.memory(len, 0);
        pair.b.recv(&op, &[into]).unwrap();
        let error = pair.wait(&pair.b.rx, op.context).unwrap_err();
        assert_eq!(error.errno, Errno::ETRUNC);
        assert_eq!(pair.b.bytes(into.addr, len), vec![n as u8; len]);
    }
    for (at, (len, _)) in kinds[..kinds.len() - 3].iter().enumerate().rev() {
        let n = backlog + at as u64;
        let op = probed(n, Flags::COMPLETION);
        let into = pair.b.memory(*len, 0);
        pair.b.recv(&op, &[into]).unwrap();
        let came = pair.wait(&pair.b.rx, op.context).unwrap();
        assert_eq!((came.len, came.tag), (*len, n));
        assert!(
            pair.b
                .bytes(into.addr, *len)
                .iter()
                .all(|byte| *byte == n as u8)
        );
    }
    let mut done = 0;
    pair.until("sends do not complete", || {
        let ended = std::iter::from_fn(|| pair.a.tx.take());
        done += ended.map(Result::unwrap).count();
        (done >= kinds.len()).then_some(())
    });
    for n in 0..backlog {
        at_b.receive(&pair, n);
    }
}
