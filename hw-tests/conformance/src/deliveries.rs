//! Messages that an application takes for sent when it closes its endpoint: all of them arrive at a
//! peer that drives its endpoint before long.

use std::time::Instant;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{PATIENCE, QueuedEndpoint, any_tagged};

/// Injected messages of a test, if there is room for so many.
const INJECTS: usize = 2000;

/// Sends of a test.
const SENDS: usize = 200;

/// Bytes of most messages.
const BYTES: usize = 1024;

/// Two endpoints of which the first knows the second.
fn strangers(
    domain_a: &dyn Domain,
    domain_b: &dyn Domain,
) -> (QueuedEndpoint, QueuedEndpoint, FiAddr) {
    let [a, b] = [domain_a, domain_b].map(QueuedEndpoint::open);
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    (a, b, to_b)
}

fn tagged(from: &QueuedEndpoint, dest: FiAddr, flags: Flags) -> SendOp {
    SendOp {
        kind: MsgKind::Tagged,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: from.context(),
        flags,
    }
}

/// What number `n` of the messages is filled with.
fn fill(n: usize) -> u8 {
    (n % 255) as u8 + 1
}

/// Injects up to `most` messages. The peer is not driven unless none is taken without that. Returns
/// how many were taken.
fn inject(
    (a, b): (&QueuedEndpoint, &QueuedEndpoint),
    to: FiAddr,
    bytes: usize,
    most: usize,
) -> usize {
    let buffer = a.memory(bytes, 0);
    let until = Instant::now() + PATIENCE;
    let mut n = 0;
    while n < most {
        let op = tagged(a, to, Flags::INJECT);
        // SAFETY: the memory is the endpoint's, which lives.
        unsafe { buffer.as_mut_ptr().write_bytes(fill(n), bytes) };
        // SAFETY: as above.
        let sent = unsafe { a.endpoint.send(&op, &[buffer]) };
        // The bytes are the application's again.
        // SAFETY: as above.
        unsafe { buffer.as_mut_ptr().write_bytes(0, bytes) };
        match sent {
            Ok(()) => n += 1,
            Err(OpError::Again) if n == 0 => {
                a.tx.pump();
                b.rx.pump();
                assert!(Instant::now() < until, "no message is taken");
            }
            Err(OpError::Again) => break,
            Err(error) => panic!("{error}"),
        }
    }
    n
}

/// Closes `a`, while `b` receives `count` messages of so many bytes.
fn close_beside(a: QueuedEndpoint, b: &QueuedEndpoint, bytes: usize, count: usize) {
    std::thread::scope(|threads| {
        let closing = threads.spawn(move || drop(a));
        for n in 0..count {
            let into = b.memory(bytes, 0);
            let op = any_tagged(b.context());
            b.recv(&op, &[into]).unwrap();
            let until = Instant::now() + PATIENCE;
            let came = loop {
                b.rx.pump();
                if let Some(came) = b.rx.take_of(op.context) {
                    break came;
                }
                assert!(Instant::now() < until, "message {n} of {count} is lost");
                std::thread::yield_now();
            };
            let came = came.unwrap_or_else(|error| panic!("message {n} of {count}: {error:?}"));
            assert_eq!(came.len, bytes);
            assert_eq!(
                b.bytes(into.addr, bytes),
                vec![fill(n); bytes],
                "message {n}"
            );
        }
        while !closing.is_finished() {
            b.rx.pump();
            std::thread::yield_now();
        }
    });
}

fn of_injects(domain_a: &dyn Domain, domain_b: &dyn Domain, bytes: usize, most: usize) {
    let bytes = bytes.min(domain_a.info().tx.inject_size);
    let (a, b, to_b) = strangers(domain_a, domain_b);
    let count = inject((&a, &b), to_b, bytes, most);
    println!("{count} injected messages of {bytes} B");
    close_beside(a, &b, bytes, count);
}

/// They are the first between the two.
pub fn of_first_messages(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    of_injects(domain_a, domain_b, 8, 1);
    of_injects(domain_a, domain_b, BYTES, 100);
    of_injects(domain_a, domain_b, usize::MAX, 3);
}

/// They are as many as the sender takes.
pub fn of_all_that_is_taken(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    of_injects(domain_a, domain_b, BYTES, INJECTS);
}

/// They are sends whose completions have been reported while the peer was not driven.
pub fn of_completed_sends(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let (a, b, to_b) = strangers(domain_a, domain_b);
    // With a connection, so that sends complete.
    let first = inject((&a, &b), to_b, 8, 1);
    let into = b.memory(8, 0);
    let op = any_tagged(b.context());
    b.recv(&op, &[into]).unwrap();
    let until = Instant::now() + PATIENCE;
    while b.rx.take_of(op.context).is_none() {
        a.tx.pump();
        b.rx.pump();
        assert!(
            first == 1 && Instant::now() < until,
            "the first message is lost"
        );
    }
    let mut done = 0;
    for n in 0..SENDS {
        let op = tagged(&a, to_b, Flags::COMPLETION);
        let from = [a.memory(BYTES, fill(n))];
        // SAFETY: the memory lives as long as the endpoint.
        if unsafe { a.endpoint.send(&op, &from) }.is_err() {
            break;
        }
    }
    for _ in 0..1000 {
        a.tx.pump();
        done += std::iter::from_fn(|| a.tx.take())
            .map(Result::unwrap)
            .count();
    }
    println!("{done} of {SENDS} sends are complete");
    close_beside(a, &b, BYTES, done);
}
