//! Runs of operations that are posted with `MORE` (fi_msg(3), `FI_MORE`): they may be held back
//! until the run ends, but not for longer, and not for ever if it does not end.

use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{BLANK, PATIENCE, QueuedPair, any_tagged};
use crate::fabric::Fabric;

/// Messages of a run: more than any transport holds back at a time.
const RUN: u64 = 70;

/// Sizes of the messages of a run, by turns: in the request, in a buffer of the transport, fetched
/// by the receiver.
const SIZES: [usize; 3] = [8, 1500, 40_000];

/// `a` starts a run of so many messages, all with `MORE`; `b` has posted receives for them. Returns
/// the contexts of both.
fn begin(pair: &QueuedPair, count: u64, sizes: &[usize]) -> Vec<(SendOp, RecvOp, IoBuf, u8)> {
    (0..count)
        .map(|n| {
            let len = sizes[n as usize % sizes.len()];
            let into = pair.b.memory(len, 0);
            let recv = RecvOp {
                tag: n,
                ignore: 0,
                flags: Flags::COMPLETION | Flags::MORE,
                ..any_tagged(pair.b.context())
            };
            pair.b.recv(&recv, &[into]).unwrap();
            let fill = n as u8 + 1;
            let from = pair.a.memory(len, fill);
            let mut send = pair.tagged(n);
            send.flags |= Flags::MORE;
            pair.send_list(&send, &[from]);
            (send, recv, into, fill)
        })
        .collect()
}

/// All messages of a run have come as they were sent, and both sides have a completion of each.
fn ended(pair: &QueuedPair, run: &[(SendOp, RecvOp, IoBuf, u8)]) {
    for (send, recv, into, fill) in run {
        let c = pair.wait(&pair.b.rx, recv.context).unwrap();
        assert_eq!((c.len, c.tag), (into.len, send.tag));
        let came = pair.b.bytes(into.addr, into.len);
        assert!(came.iter().all(|byte| byte == fill), "message {}", c.tag);
        let c = pair.wait(&pair.a.tx, send.context).unwrap();
        assert_eq!(c.flags, MsgKind::Tagged.send_flags());
    }
}

/// Messages of all sizes, and one without the flag that ends the run.
pub fn a_run_that_ends(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    for sizes in [&SIZES[..1], &SIZES] {
        let run = begin(&pair, RUN, sizes);
        pair.barrier();
        ended(&pair, &run);
    }
}

/// Nobody ends the run: looking at the queue does, a look of the sender's alone.
pub fn a_run_without_an_end(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    for count in [1, RUN] {
        let run = begin(&pair, count, &SIZES);
        pair.a.tx.pump();
        ended(&pair, &run);
    }
}

/// Nor does it wait for ever for somebody who waits for it.
pub fn a_run_that_is_waited_for(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    begin(&pair, 3, &SIZES[..1]);
    let mut out = [BLANK];
    let until = Instant::now() + PATIENCE;
    let mut ended = 0;
    while ended < 3 {
        // Datagrams are confirmed when the receiver is driven.
        pair.b.rx.pump();
        match pair
            .a
            .tx
            .cq
            .sread(&mut out, Some(Duration::from_millis(10)))
        {
            Ok(n) => ended += n,
            Err(error) => assert_eq!(error, OpError::Again),
        }
        assert!(Instant::now() < until, "{ended} sends have ended");
    }
    let nothing = pair.a.tx.cq.sread(&mut out, Some(Duration::ZERO));
    assert_eq!(nothing, Err(OpError::Again));
}

/// A call that returns an error ends the run: the posts that were held back go out, though no call
/// drives the sender. Where packets are lost, calls have to drive the sender all the same, to
/// repeat them.
pub fn an_error_ends_a_run(fabric: &Fabric) {
    for (a, b) in fabric.paths() {
        an_error_ends_it(fabric.domain(a), fabric.domain(b), fabric.silence.is_some());
    }
}

fn an_error_ends_it(domain_a: &dyn Domain, domain_b: &dyn Domain, loses: bool) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let info = domain_a.info();
    let long = pair.a.memory(info.tx.inject_size + 1, 0);
    let inject = SendOp {
        flags: Flags::INJECT | Flags::MORE,
        ..pair.tagged(0)
    };
    let to_nobody = SendOp {
        dest: ferrofabric_contracts::types::FiAddr(1 << 20),
        ..pair.tagged(0)
    };
    let short = pair.a.memory(1, 0);
    for (op, iov, errno) in [
        (inject, long, Errno::EMSGSIZE),
        (to_nobody, short, Errno::EADDRNOTAVAIL),
    ] {
        let run = begin(&pair, 2, &SIZES[..1]);
        let refused = pair.try_send(&op, &[iov]);
        assert_eq!(refused, Err(OpError::Failed(errno)));
        for (.., into, fill) in &run {
            let received = match loses {
                true => pair.next(&pair.b.rx),
                false => pair.b.next_alone(),
            };
            assert!(received.is_ok());
            assert_eq!(pair.b.bytes(into.addr, 1), [*fill]);
        }
        for (send, ..) in &run {
            pair.wait(&pair.a.tx, send.context).unwrap();
        }
    }
}

/// A run that goes to several peers by turns, of injects and sends: each gets its own, in order.
pub fn a_run_to_several_peers(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let other = crate::ends::QueuedEndpoint::open(domain_b);
    let to_other = pair.a.av.insert(&other.endpoint.name().to_bytes()).unwrap();
    let ends = [(&pair.b, pair.to_b), (&other, to_other)];
    let each = RUN / 2;
    for (end, _) in ends {
        for _ in 0..each {
            let recv = any_tagged(end.context());
            end.recv(&recv, &[end.memory(8, 0)]).unwrap();
        }
    }
    let from = pair.a.memory(8, 7);
    let mut told = Vec::new();
    for n in 0..each {
        for (_, dest) in ends {
            let mut send = SendOp {
                dest,
                ..pair.tagged(n)
            };
            send.flags = match n % 3 {
                0 => Flags::INJECT | Flags::MORE,
                _ if n == each - 1 => Flags::COMPLETION,
                _ => Flags::COMPLETION | Flags::MORE,
            };
            pair.send_list(&send, &[from]);
            if send.flags.contains(Flags::COMPLETION) {
                told.push(send.context);
            }
        }
    }
    for (end, _) in ends {
        for n in 0..each {
            let came = pair.until("a message of the run does not come", || {
                end.rx.pump();
                end.rx.take()
            });
            assert_eq!(came.unwrap().tag, n);
        }
    }
    for context in told {
        pair.wait(&pair.a.tx, context).unwrap();
    }
}
