//! Threads that wait for different things on one domain. All these waits end long before their
//! timeout, or something did not wake them.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, MrDesc, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Domain, EndpointConfig};

use crate::descriptors::wait_on;
use crate::ends::{BLANK, CountedQueue, PATIENCE, QueuedEndpoint, QueuedPair, any_tagged};

/// The result of a wait with a timeout that an event has to end before its time. (The wait looks
/// once more when its time is over.)
pub(crate) fn in_time<R>(wait: impl FnOnce(Option<Duration>) -> R) -> R {
    let since = Instant::now();
    let answer = wait(Some(PATIENCE));
    assert!(since.elapsed() < PATIENCE / 2, "nothing woke the thread");
    answer
}

/// Waits for one completion.
fn sread(queue: &CountedQueue) -> Completion {
    let mut out = [BLANK];
    let read = in_time(|timeout| queue.cq.sread(&mut out, timeout));
    assert_eq!(read, Ok(1));
    out[0]
}

/// Has `wait` run in a thread of its own, and `act` once that sleeps.
pub(crate) fn while_asleep(wait: impl FnOnce() + Send, act: impl FnOnce()) {
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let waits = scope.spawn(move || {
            tell.send(std::fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            wait();
        });
        until_asleep(&told);
        act();
        waits.join().unwrap();
    });
}

/// Waits until the thread whose path comes over the channel sleeps, according to the kernel.
fn until_asleep(told: &Receiver<std::path::PathBuf>) {
    let stat = std::path::Path::new("/proc")
        .join(told.recv().unwrap())
        .join("stat");
    let until = Instant::now() + PATIENCE;
    loop {
        let stat = std::fs::read_to_string(&stat).unwrap();
        let state = stat.rsplit(')').next().unwrap().trim_start();
        if state.starts_with('S') {
            return;
        }
        assert!(Instant::now() < until, "the thread does not sleep");
        std::thread::yield_now();
    }
}

/// Two threads, each with a queue of its own, get each what is theirs, however messages come.
pub fn two_queues(ours: &dyn Domain, theirs: &dyn Domain) {
    const ROUNDS: u64 = 2000;
    let (one, two) = (
        QueuedPair::open(theirs, ours),
        QueuedPair::open(theirs, ours),
    );
    std::thread::scope(|scope| {
        let receivers = [&one, &two].map(|pair| {
            let b = &pair.b;
            scope.spawn(move || {
                for n in 0..ROUNDS {
                    let op = any_tagged(b.context());
                    b.recv(&op, &[]).unwrap();
                    let c = sread(&b.rx);
                    assert_eq!((c.context, c.tag), (op.context, n));
                }
            })
        });
        for n in 0..ROUNDS {
            // Now close behind each other, now with a pause between.
            for pair in [&one, &two] {
                let op = SendOp {
                    flags: Flags::empty(),
                    ..pair.tagged(n)
                };
                pair.a.send_alone(op, 0, 0);
                if n % 16 == 0 {
                    std::thread::sleep(Duration::from_micros(n % 300));
                }
            }
        }
        // Sends that found no room go out when there is some.
        while !receivers.iter().all(|receiver| receiver.is_finished()) {
            one.a.tx.pump();
            std::thread::yield_now();
        }
    });
}

/// An operation that completes within a call of one thread wakes another thread that waits for it.
pub fn a_completion_within_a_call_wakes(ours: &dyn Domain, theirs: &dyn Domain) {
    let pair = QueuedPair::open(theirs, ours);
    let b = &pair.b;
    // A receive for a message that is here, a probe, a cancellation.
    pair.a.send(b, pair.tagged(1), 8, 1);
    pair.barrier();
    let op = any_tagged(b.context());
    let receive = || b.recv(&op, &[b.memory(8, 0)]).unwrap();
    while_asleep_on(&b.rx, op.context, receive);
    pair.a.send(b, pair.tagged(1), 8, 1);
    pair.barrier();
    let probe = RecvOp {
        flags: Flags::PEEK | Flags::DISCARD,
        ..any_tagged(b.context())
    };
    while_asleep_on(&b.rx, probe.context, || b.recv(&probe, &[]).unwrap());
    let op = any_tagged(b.context());
    b.recv(&op, &[]).unwrap();
    while_asleep(
        || {
            let mut out = [BLANK];
            let read = in_time(|timeout| b.rx.cq.sread(&mut out, timeout));
            assert!(matches!(read, Err(OpError::Failed(_))), "{read:?}");
        },
        || b.endpoint.cancel(op.context).unwrap(),
    );
    b.rx.pump();
    b.rx.take_of(op.context).unwrap().unwrap_err();

    // A send that is done at once, and a counter of it.
    let a = &pair.a;
    let op = pair.tagged(2);
    while_asleep_on(&a.tx, op.context, || a.send_alone(op, 8, 2));
    let (sent, _) = a.tx.counts();
    while_asleep(
        || {
            let reached = in_time(|timeout| a.tx.cntr.wait(sent + 1, timeout));
            assert_eq!(reached, Ok(sent + 1));
        },
        || a.send_alone(pair.tagged(2), 8, 2),
    );
    while_asleep(
        || {
            let reached = in_time(|timeout| a.rx.cntr.wait(1 << 40, timeout));
            assert_eq!(reached, Ok(1 << 40));
        },
        || a.rx.cntr.set(1 << 40).unwrap(),
    );
}

fn while_asleep_on(queue: &CountedQueue, context: u64, act: impl FnOnce()) {
    while_asleep(|| assert_eq!(sread(queue).context, context), act);
}

/// One thread sleeps, another drives the domain for a moment and then does something else: the next
/// event wakes the first thread.
pub fn an_event_after_a_poll_by_another_thread_wakes(ours: &dyn Domain, theirs: &dyn Domain) {
    let pair = QueuedPair::open(theirs, ours);
    let other = QueuedEndpoint::open(ours);
    for n in 0..100 {
        let op = any_tagged(pair.b.context());
        pair.b.recv(&op, &[]).unwrap();
        while_asleep_on(&pair.b.rx, op.context, || {
            for _ in 0..n % 3 {
                other.rx.pump();
            }
            let send = SendOp {
                flags: Flags::empty(),
                ..pair.tagged(n)
            };
            pair.a.send_alone(send, 0, 0);
        });
    }
}

/// An endpoint that is opened while a thread sleeps on its queue wakes it.
pub fn an_endpoint_opened_meanwhile(ours: &dyn Domain, theirs: &dyn Domain) {
    let sender = QueuedEndpoint::open(theirs);
    let receiver = QueuedEndpoint::open(ours);
    let op = any_tagged(receiver.context());
    let mut endpoint = None;
    while_asleep_on(&receiver.rx, op.context, || {
        let config = EndpointConfig::new(&receiver.av, &receiver.rx.cq);
        let new = ours.open_endpoint(config).unwrap();
        // SAFETY: a receive without a buffer.
        unsafe { new.recv(&op, &[]) }.unwrap();
        let dest = sender.av.insert(&new.name().to_bytes()).unwrap();
        endpoint = Some(new);
        let context = sender.context();
        sender.send_alone(to(dest, context), 0, 0);
        // The sender is driven until the link is there; the receiver has nobody but who sleeps.
        let until = Instant::now() + PATIENCE;
        while sender.tx.take_of(context).is_none() {
            sender.tx.pump();
            assert!(Instant::now() < until, "the message is not sent");
        }
    });
}

fn to(dest: FiAddr, context: u64) -> SendOp {
    let op = any_tagged(context);
    SendOp {
        kind: op.kind,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

/// A signal ends the wait for its own queue and no other; a timeout ends a wait when it is time,
/// others or not.
pub fn signals_and_timeouts(ours: &dyn Domain, theirs: &dyn Domain) {
    let pair = QueuedPair::open(theirs, ours);
    let other = QueuedEndpoint::open(ours);
    let again = Err(OpError::Again);
    for n in 0..20 {
        let op = any_tagged(pair.b.context());
        pair.b.recv(&op, &[]).unwrap();
        while_asleep_on(&pair.b.rx, op.context, || {
            while_asleep(
                || assert_eq!(other.rx.cq.sread(&mut [BLANK], None), again),
                || other.rx.cq.signal(),
            );
            let timeout = Duration::from_millis(n % 5);
            let since = Instant::now();
            assert_eq!(other.rx.cq.sread(&mut [BLANK], Some(timeout)), again);
            assert!(since.elapsed() >= timeout);
            assert_eq!(
                other.rx.cntr.wait(1, Some(timeout)),
                again.map(|_: usize| 0)
            );
            let send = SendOp {
                flags: Flags::empty(),
                ..pair.tagged(n)
            };
            pair.a.send_alone(send, 0, 0);
        });
    }
    // A signal before the wait ends it as well, once.
    other.rx.cq.signal();
    assert_eq!(other.rx.cq.sread(&mut [BLANK], None), again);
    let soon = Some(Duration::from_millis(1));
    assert_eq!(other.rx.cq.sread(&mut [BLANK], soon), again);
}

/// Messages that one thread sends, and that can not all go at once, go on though the only other
/// call is the sleep of another thread.
pub fn sends_of_other_threads_go_on(ours: &dyn Domain, theirs: &dyn Domain) {
    let pair = QueuedPair::open(theirs, ours);
    let b = &pair.b;
    for (messages, len) in [(200, 4000), (1, 40_000), (3, 1 << 20)] {
        while_asleep(
            || {
                let read = in_time(|timeout| b.rx.cq.sread(&mut [BLANK], timeout));
                assert_eq!(read, Err(OpError::Again));
            },
            || {
                for tag in 0..messages {
                    let send = SendOp {
                        dest: pair.to_a,
                        flags: Flags::empty(),
                        ..pair.tagged(tag)
                    };
                    b.send_alone(send, len, tag as u8 + 1);
                }
                for tag in 0..messages {
                    let op = any_tagged(pair.a.context());
                    let into = pair.a.memory(len, 0);
                    pair.a.recv(&op, &[into]).unwrap();
                    let got = pair.a.next_alone().unwrap();
                    assert_eq!((got.context, got.tag, got.len), (op.context, tag, len));
                    let bytes = pair.a.bytes(into.addr, len);
                    assert!(bytes.iter().all(|byte| *byte == tag as u8 + 1));
                }
                b.rx.cq.signal();
            },
        );
    }
}

/// A message to oneself wakes who sleeps as any other one does: in a read of the queue, or on its
/// descriptor.
pub fn a_message_to_oneself_wakes(domain: &dyn Domain) {
    let end = QueuedEndpoint::open(domain);
    let myself = end.av.insert(&end.endpoint.name().to_bytes()).unwrap();
    for len in [8, 4000, 40_000, 300_000] {
        let post = || {
            let op = any_tagged(end.context());
            end.recv(&op, &[end.memory(len, 0)]).unwrap();
            op.context
        };
        let send = || {
            let op = SendOp {
                flags: Flags::empty(),
                ..to(myself, end.context())
            };
            end.send_alone(op, len, 1);
        };
        while_asleep_on(&end.rx, post(), send);
        let (context, cq) = (post(), &end.rx.cq);
        let answer = || {
            end.rx.pump();
            end.rx.take_of(context)
        };
        let wait = || {
            let fd = cq.wait_fd().unwrap();
            wait_on(fd, || cq.try_wait(), answer).unwrap();
        };
        while_asleep(wait, send);
    }
}
