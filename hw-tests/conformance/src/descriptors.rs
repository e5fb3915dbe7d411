//! Waiting on descriptors, as fi_trywait(3) has it, and for several completions at a time.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;
use nix::poll::{PollFd, PollFlags, PollTimeout};

use crate::ends::{BLANK, PATIENCE, QueuedEndpoint, QueuedPair, any_tagged};
use crate::waiting::{in_time, while_asleep};

const AGAIN: OpError = OpError::Again;

/// Whether the descriptor is readable in that time.
pub(crate) fn poll(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    let patience = PollTimeout::try_from(patience).unwrap();
    nix::poll::poll(&mut fds, patience).unwrap() == 1
}

/// Waits as an application does: calls `try_wait`, sleeps, reads, until there is an answer.
pub(crate) fn wait_on<R>(
    fd: BorrowedFd<'_>,
    try_wait: impl Fn() -> Result<(), OpError>,
    mut answer: impl FnMut() -> Option<R>,
) -> R {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        match try_wait() {
            Ok(()) => assert!(poll(fd, PATIENCE / 2), "nothing wakes the descriptor"),
            Err(error) => assert_eq!(error, AGAIN),
        }
        assert!(Instant::now() < until, "what is awaited does not come");
    }
}

fn quiet(pair: &QueuedPair, tag: u64) -> SendOp {
    SendOp {
        flags: Flags::empty(),
        ..pair.tagged(tag)
    }
}

/// Messages that come one by one, of all sizes, each wake who waits on a queue's descriptor;
/// another on a counter's.
pub fn messages_wake(ours: &dyn Domain, theirs: &dyn Domain) {
    const ROUNDS: u64 = 300;
    let pair = QueuedPair::open(theirs, ours);
    let (a, b) = (&pair.a, &pair.b);
    assert_eq!(b.rx.cq.try_wait(), Err(OpError::Failed(Errno::EINVAL)));
    assert_eq!(b.rx.cntr.try_wait(), Err(OpError::Failed(Errno::EINVAL)));
    for counted in [false, true] {
        let before = b.rx.counts().0;
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                for n in 0..ROUNDS {
                    let op = any_tagged(b.context());
                    b.recv(&op, &[b.memory(100_000, 0)]).unwrap();
                    if counted {
                        let cntr = &b.rx.cntr;
                        wait_on(
                            cntr.wait_fd().unwrap(),
                            || cntr.try_wait(),
                            || (cntr.read().unwrap() > before + n).then_some(()),
                        );
                    } else {
                        let cq = &b.rx.cq;
                        wait_on(
                            cq.wait_fd().unwrap(),
                            || cq.try_wait(),
                            || {
                                b.rx.pump();
                                b.rx.take_of(op.context)
                            },
                        )
                        .unwrap();
                    }
                }
            });
            for n in 0..ROUNDS {
                let len = [0, 8, 4000, 100_000][n as usize % 4];
                a.send_alone(quiet(&pair, n), len, 1);
                if n % 16 == 0 {
                    std::thread::sleep(Duration::from_micros(n % 300));
                }
                a.tx.pump();
            }
            while !receiver.is_finished() {
                a.tx.pump();
                std::thread::yield_now();
            }
        });
        b.rx.pump();
    }
}

/// Events of other threads wake a sleeper, too: a signal, an operation that completes within a
/// call, a change of a counter.
pub fn events_of_other_threads_wake(ours: &dyn Domain) {
    let end = QueuedEndpoint::open(ours);
    let (cq, cntr) = (&end.rx.cq, &end.rx.cntr);
    let (queue, counter) = (cq.wait_fd().unwrap(), cntr.wait_fd().unwrap());
    let sleeps = |fd, act: &dyn Fn()| {
        assert!(!poll(fd, Duration::ZERO), "readable before anything came");
        while_asleep(|| assert!(poll(fd, PATIENCE), "nothing woke it"), act);
    };
    for _ in 0..3 {
        assert_eq!(cq.try_wait(), Ok(()));
        sleeps(queue, &|| cq.signal());
        // `try_wait` reports the signal once.
        assert_eq!(cq.try_wait(), Err(AGAIN));
        assert_eq!(cq.try_wait(), Ok(()));
        let op = any_tagged(end.context());
        end.recv(&op, &[]).unwrap();
        assert_eq!(cq.try_wait(), Ok(()));
        sleeps(queue, &|| end.endpoint.cancel(op.context).unwrap());
        assert_eq!(cq.try_wait(), Err(AGAIN));
        end.rx.pump();
        assert!(end.rx.take_of(op.context).unwrap().is_err());
        assert_eq!(cq.try_wait(), Ok(()));
        // The counter has counted the cancellation as well; `try_wait` reports the change once,
        // even if the value is not read.
        let told = cntr.try_wait();
        assert_eq!(told, Err(AGAIN));
        assert_eq!(cntr.try_wait(), Ok(()));
        sleeps(counter, &|| cntr.add(1).unwrap());
        let value = cntr.read().unwrap();
        assert_eq!(cntr.try_wait(), Ok(()));
        sleeps(counter, &|| cntr.add_errors(1).unwrap());
        cntr.read_errors().unwrap();
        assert_eq!(cntr.try_wait(), Ok(()));
        // No change between reading and asking is missed.
        cntr.set(value + 1).unwrap();
        assert_eq!(cntr.try_wait(), Err(AGAIN));
    }
}

/// A wait for several completions ends when they are all there, at an error, at a signal, or when
/// its time is over.
pub fn several_at_a_time(ours: &dyn Domain, theirs: &dyn Domain) {
    let pair = QueuedPair::open(theirs, ours);
    let (a, b) = (&pair.a, &pair.b);
    let mut out = [BLANK; 16];
    let post = |n: u64| {
        let ops: Vec<RecvOp> = (0..n).map(|_| any_tagged(b.context())).collect();
        for op in &ops {
            b.recv(op, &[b.memory(8, 0)]).unwrap();
        }
        ops
    };
    let send = |n: u64| {
        for tag in 0..n {
            a.send_alone(quiet(&pair, tag), 8, 1);
        }
    };
    // They are in the queue at return, where nobody has read them.
    let arrive = |n: u64| {
        let (before, until) = (b.rx.counts().0, Instant::now() + PATIENCE);
        send(n);
        while b.rx.counts().0 < before + n {
            assert!(Instant::now() < until, "messages do not come");
        }
    };
    post(5);
    while_asleep(
        || {
            let mut out = [BLANK; 16];
            let read = in_time(|timeout| b.rx.cq.sread_many(&mut out, 5, timeout));
            assert_eq!(read, Ok(5));
        },
        || send(5),
    );
    // Entries that were left unread count at the next wait, and a wait may name a higher threshold
    // than its buffer has room for.
    post(5);
    send(5);
    assert_eq!(in_time(|t| b.rx.cq.sread_many(&mut out[..2], 5, t)), Ok(2));
    assert_eq!(in_time(|t| b.rx.cq.sread_many(&mut out, 3, t)), Ok(3));
    // Fewer completions come than the threshold.
    post(2);
    arrive(2);
    let (soon, since) = (Duration::from_millis(20), Instant::now());
    assert_eq!(b.rx.cq.sread_many(&mut out, 3, Some(soon)), Ok(2));
    assert!(since.elapsed() >= soon);
    assert_eq!(b.rx.cq.sread_many(&mut out, 3, Some(soon)), Err(AGAIN));
    // An error ends it, and comes in its turn.
    let ops = post(2);
    arrive(1);
    while_asleep(
        || {
            let mut out = [BLANK; 16];
            let read = in_time(|timeout| b.rx.cq.sread_many(&mut out, 3, timeout));
            assert_eq!(read, Ok(1));
        },
        || b.endpoint.cancel(ops[1].context).unwrap(),
    );
    let read = in_time(|timeout| b.rx.cq.sread_many(&mut out, 3, timeout));
    assert_eq!(read, Err(OpError::Failed(Errno::EAVAIL)));
    let error = b.rx.cq.read_error().unwrap().unwrap();
    assert_eq!(error.completion.context, ops[1].context);
    post(1);
    arrive(1);
    while_asleep(
        || {
            let mut out = [BLANK; 16];
            let read = in_time(|timeout| b.rx.cq.sread_many(&mut out, 3, timeout));
            assert_eq!(read, Ok(1));
        },
        || b.rx.cq.signal(),
    );
}
