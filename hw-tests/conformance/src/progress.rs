//! Automatic progress (fi_domain(3)): everything goes on while the application calls nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{PATIENCE, QueuedEndpoint, QueuedPair, any_tagged};

const SIZES: [usize; 5] = [8, 4000, 40_000, 120_000, 300_000];

/// Messages that go out at once.
const BURST: u64 = 8;

/// Waits until the memory has the expected content, without a call to the provider: as an
/// application that computes, and looks at its memory.
fn fills(end: &QueuedEndpoint, into: IoBuf, fill: u8, meanwhile: impl Fn()) {
    let until = Instant::now() + PATIENCE;
    while !end.bytes(into.addr, into.len).iter().all(|b| *b == fill) {
        meanwhile();
        assert!(
            Instant::now() < until,
            "{} bytes do not come while the application computes",
            into.len
        );
        std::thread::yield_now();
    }
}

/// Messages go in and out of a domain with automatic progress whose application calls nothing,
/// whether it has been idle for long or was busy just now.
pub fn while_the_application_computes(automatic: &dyn Domain, manual: &dyn Domain) {
    let pair = QueuedPair::open(manual, automatic);
    let (a, b) = (&pair.a, &pair.b);
    for round in 0..15u8 {
        let len = SIZES[round as usize % SIZES.len()];
        let fill = round + 1;
        // Times of day at which the thread has taken over, is about to, and has not.
        let pause = Duration::from_micros([0, 300, 3000][round as usize % 3]);
        // In.
        let (recv, into) = (any_tagged(b.context()), b.memory(len, 0));
        b.recv(&recv, &[into]).unwrap();
        b.rx.pump();
        std::thread::sleep(pause);
        let send = pair.tagged(1);
        a.send_alone(send, len, fill);
        fills(b, into, fill, || a.tx.pump());
        // Out, behind others that take the room.
        let receives: Vec<_> = (0..BURST)
            .map(|_| {
                let (recv, into) = (any_tagged(a.context()), a.memory(len, 0));
                a.recv(&recv, &[into]).unwrap();
                (recv, into)
            })
            .collect();
        b.rx.pump();
        std::thread::sleep(pause);
        for tag in 0..BURST {
            let out = SendOp {
                dest: pair.to_a,
                context: b.context(),
                flags: Flags::empty(),
                ..pair.tagged(tag)
            };
            b.send_alone(out, len, fill);
        }
        for (recv, into) in receives {
            let until = Instant::now() + PATIENCE;
            while a.rx.take_of(recv.context).map(Result::unwrap).is_none() {
                a.rx.pump();
                assert!(Instant::now() < until, "{len} bytes do not go out");
                std::thread::yield_now();
            }
            assert!(a.bytes(into.addr, len).iter().all(|byte| *byte == fill));
        }
        // All completions of that time can be read now.
        let done = pair.wait(&b.rx, recv.context).unwrap();
        assert_eq!((done.len, done.tag), (len, 1));
        pair.wait(&a.tx, send.context).unwrap();
    }
}

/// A first message, for which a link or a lane has to be made, comes to an endpoint that was opened
/// and then left alone.
pub fn a_first_message(automatic: &dyn Domain, manual: &dyn Domain) {
    // Long enough for the thread to sleep.
    std::thread::sleep(Duration::from_millis(5));
    let (sender, receiver) = (
        QueuedEndpoint::open(manual),
        QueuedEndpoint::open(automatic),
    );
    let (recv, into) = (any_tagged(receiver.context()), receiver.memory(40_000, 0));
    receiver.recv(&recv, &[into]).unwrap();
    let dest = sender
        .av
        .insert(&receiver.endpoint.name().to_bytes())
        .unwrap();
    let send = SendOp {
        kind: recv.kind,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: sender.context(),
        flags: Flags::COMPLETION,
    };
    sender.send_alone(send, 40_000, 9);
    fills(&receiver, into, 9, || sender.tx.pump());
}

/// Waits until each thread of automatic progress waits for something.
fn sleeps() {
    let until = Instant::now() + PATIENCE;
    let is_awake = |task: &PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        // After the number and the name, which is in parentheses, comes the state.
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        !state.is_empty() && !state.starts_with('S')
    };
    while progress_threads().iter().any(is_awake) {
        assert!(Instant::now() < until, "the thread does not sleep");
        std::thread::yield_now();
    }
}

/// The threads of automatic progress in this process.
fn progress_threads() -> Vec<PathBuf> {
    let is_one = |task: &PathBuf| {
        let name = std::fs::read_to_string(task.join("comm"));
        name.is_ok_and(|name| name.trim() == "ferro-progress")
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    (tasks.map(|task| task.unwrap().path()))
        .filter(is_one)
        .collect()
}

/// An application that makes a call from time to time leaves the domain to the thread: a message
/// after a call wakes the thread, and waits neither for the next call nor for the next check.
/// `wakes` counts the wake-ups that the sender has sent.
pub fn after_a_call(
    automatic: &dyn Domain,
    manual: &dyn Domain,
    wakes: impl Fn(&QueuedEndpoint) -> u64,
) {
    const ROUNDS: u8 = 200;
    let pair = QueuedPair::open(manual, automatic);
    let (a, b) = (&pair.a, &pair.b);
    let message = |fill: u8| {
        let (recv, into) = (any_tagged(b.context()), b.memory(8, 0));
        b.recv(&recv, &[into]).unwrap();
        a.send_alone(pair.tagged(1), 8, fill);
        fills(b, into, fill, || a.tx.pump());
    };
    let mut woken = 0;
    for round in 1..=ROUNDS {
        message(round);
        b.rx.pump();
        // The thread has taken the message, and sleeps a moment later.
        sleeps();
        let before = wakes(a);
        message(round);
        woken += wakes(a) - before;
    }
    // The thread may look at its work again in some rounds. If each call ended its sleep, it would
    // sleep for messages in none, but for those in which this thread has stopped for a millisecond.
    let least = u64::from(ROUNDS / 4);
    assert!(woken >= least, "{woken} wake-ups, at least {least}");
}

/// A message to oneself comes while the application calls nothing.
pub fn a_message_to_oneself(automatic: &dyn Domain) {
    let end = QueuedEndpoint::open(automatic);
    let myself = end.av.insert(&end.endpoint.name().to_bytes()).unwrap();
    for round in 0..15u8 {
        let len = SIZES[round as usize % SIZES.len()];
        let (recv, into) = (any_tagged(end.context()), end.memory(len, 0));
        end.recv(&recv, &[into]).unwrap();
        // Times of day at which the thread has taken over, is about to, and has not.
        std::thread::sleep(Duration::from_micros([0, 300, 3000][round as usize % 3]));
        let send = SendOp {
            kind: recv.kind,
            dest: myself,
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: end.context(),
            flags: Flags::empty(),
        };
        end.send_alone(send, len, round + 1);
        fills(&end, into, round + 1, || {});
    }
}

/// The thread is there as long as the domain or something on it is open, and no longer. Nothing
/// else of the process may open such domains meanwhile.
pub fn the_thread_ends(open: impl Fn() -> Arc<dyn Domain>) {
    let threads = || progress_threads().len();
    // A new thread gets its name, and one that was joined leaves the list, a moment later.
    let come_to = |count| {
        let until = Instant::now() + PATIENCE;
        while threads() != count {
            assert!(Instant::now() < until, "{} threads, not {count}", threads());
            std::thread::yield_now();
        }
    };
    come_to(0);
    for _ in 0..20 {
        let domain = open();
        let end = QueuedEndpoint::open(&*domain);
        drop(domain);
        end.rx.pump();
        drop(end);
    }
    come_to(0);
    let domain = open();
    let end = QueuedEndpoint::open(&*domain);
    drop(domain);
    come_to(1);
    drop(end);
    come_to(0);
}
