//! Waiting for datagrams: in a call, and on descriptors (fi_cq(3), fi_cntr(3), fi_trywait(3)).

use std::time::Duration;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;

use super::pair::{DatagramForm, DatagramPair, Room, SEND, any, send_op};
use crate::descriptors::{poll, wait_on};
use crate::ends::{BLANK, PATIENCE};
use crate::fabric::Fabric;
use crate::waiting::{in_time, while_asleep};

const ROUNDS: u64 = 20;

/// `a` sends to `b`, with nobody driven but `a`.
fn send_alone(pair: &DatagramPair<'_>) {
    let form = DatagramForm {
        flags: Flags::COMPLETION | Flags::INJECT,
        ..SEND
    };
    let op = send_op(form, pair.to_b, pair.a.context(), 0);
    pair.a.send_alone(op, pair.prefix + 8, 1);
    let until = std::time::Instant::now() + PATIENCE;
    // The first waits for the way to the peer.
    while pair.a.tx.take_of(op.context).is_none() {
        pair.a.tx.pump();
        assert!(std::time::Instant::now() < until, "a send is not over");
    }
}

/// A thread that sleeps in `fi_cq_sread` is woken by a datagram, by a send that is over, by a
/// signal and by a timeout.
pub fn a_queue_wakes(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let (a, b) = (&pair.a, &pair.b);
    for _ in 0..ROUNDS {
        let recv = any(b.context());
        let room = b.memory(pair.prefix + 8, 0);
        b.recv(&recv, &[room]).unwrap();
        let cq = &b.rx.cq;
        while_asleep(
            || {
                let mut out = [BLANK];
                assert_eq!(in_time(|timeout| cq.sread(&mut out, timeout)), Ok(1));
                assert_eq!(
                    (out[0].context, out[0].len),
                    (recv.context, pair.prefix + 8)
                );
            },
            || {
                let op = send_op(SEND, pair.to_b, a.context(), 0);
                a.send_alone(op, pair.prefix + 8, 1);
                let mut out = [BLANK];
                // The way to the peer may have to be found first: that, too, wakes.
                let sent = in_time(|timeout| a.tx.cq.sread(&mut out, timeout));
                assert_eq!((sent, out[0].context), (Ok(1), op.context));
            },
        );
    }
    let cq = &b.rx.cq;
    while_asleep(
        || assert_eq!(cq.sread(&mut [BLANK], None), Err(OpError::Again)),
        || cq.signal(),
    );
    let short = Some(Duration::from_millis(2));
    assert_eq!(cq.sread(&mut [BLANK], short), Err(OpError::Again));
}

/// A thread that sleeps in `fi_cntr_wait` is woken when the counter reaches the threshold, and when
/// a receive fails.
pub fn a_counter_wakes(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let b = &pair.b;
    for n in 1..=ROUNDS {
        for _ in 0..2 {
            let room = b.memory(pair.prefix + 8, 0);
            b.recv(&any(b.context()), &[room]).unwrap();
        }
        let wait = || in_time(|timeout| b.rx.cntr.wait(2 * n, timeout));
        while_asleep(
            || assert_eq!(wait(), Ok(2 * n)),
            || {
                send_alone(&pair);
                send_alone(&pair);
            },
        );
    }
    let room = b.memory(pair.prefix, 0);
    b.recv(&any(b.context()), &[room]).unwrap();
    while_asleep(
        || {
            let waited = in_time(|timeout| b.rx.cntr.wait(1 << 40, timeout));
            assert!(matches!(waited, Err(OpError::Failed(_))), "{waited:?}");
        },
        || send_alone(&pair),
    );
}

/// The descriptors of queue and counter are readable when a datagram has come, and not before.
pub fn descriptors_wake(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let b = &pair.b;
    let (cq, cntr) = (&b.rx.cq, &b.rx.cntr);
    let (of_cq, of_cntr) = (cq.wait_fd().unwrap(), cntr.wait_fd().unwrap());
    for n in 0..ROUNDS {
        let posted = pair.post(Room::of(8));
        b.rx.counts();
        for (fd, try_wait) in [(of_cq, cq.try_wait()), (of_cntr, cntr.try_wait())] {
            if try_wait.is_ok() {
                assert!(!poll(fd, Duration::ZERO), "round {n}: readable too early");
            }
        }
        send_alone(&pair);
        if n % 2 == 0 {
            wait_on(
                of_cq,
                || cq.try_wait(),
                || {
                    b.rx.pump();
                    b.rx.take_of(posted.context)
                },
            )
            .unwrap();
        } else {
            wait_on(
                of_cntr,
                || cntr.try_wait(),
                || (cntr.read().unwrap() > n).then_some(()),
            );
            pair.until("no completion", || b.rx.take_of(posted.context))
                .unwrap();
        }
        pair.keep(posted.buffer);
    }
}
