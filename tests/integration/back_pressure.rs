//! Back-pressure: posts of all kinds wait until there is capacity for them.

use std::future::Future;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ferrofabric::config::Settings;
use ferrofabric::info::Progress;
use ferrofabric::{
    AsyncRdmEndpoint, AtomicRegion, Buffer, CompletedOperation, Errno, FiAddr, Inbound, Operator,
    Outbound, PathChoice, PeersRead, PeersReadWrite, RdmEndpoint, RdmEndpointBuilder,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::futures::watch;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(120));

/// More messages than all queues between two endpoints take.
const MANY: u64 = 20_000;

/// More reads than an endpoint has under way, and than a peer's queues take.
const MANY_READS: usize = 5000;

/// Endpoints at which few sends wait.
fn options() -> RdmEndpointBuilder {
    let few = |name: &str| (name == "FERRO_WAITING_SENDS").then(|| "1024".to_owned());
    RdmEndpoint::builder()
        .path(PathChoice::Shm)
        .settings(Settings::read(few).unwrap())
}

fn open() -> RdmEndpoint {
    options().open().unwrap()
}

/// A thread that receives `MANY` messages in order.
fn receiver(mut receiver: RdmEndpoint, tag: Option<u64>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut room = Buffer::new(64).unwrap();
        for number in 0..MANY {
            let mut into = Inbound::from(room);
            if let Some(tag) = tag {
                into = into.tag(tag);
            }
            let received = receiver.recv(into).unwrap();
            let message = receiver.wait_for(received, PATIENCE).unwrap();
            assert_eq!(message.bytes(), number.to_le_bytes());
            room = message.into_buffer();
        }
    })
}

/// Messages of a sender that come in order, all of them.
fn with_receiver(
    sender: RdmEndpointBuilder,
    tag: Option<u64>,
    send_all: impl FnOnce(&mut RdmEndpoint, FiAddr),
) {
    let (mut sender, receives) = (sender.open().unwrap(), open());
    let to_receiver = sender.insert(receives.address()).unwrap();
    let receiver = receiver(receives, tag);
    send_all(&mut sender, to_receiver);
    sender.close(PATIENCE.unwrap()).unwrap();
    receiver.join().unwrap();
}

fn message(number: u64) -> Buffer {
    Buffer::copy_of(&number.to_le_bytes()).unwrap()
}

#[test]
fn injects_wait_for_capacity() {
    with_receiver(options(), None, |sender, to| {
        for number in 0..MANY {
            sender.inject(to, &number.to_le_bytes()).unwrap();
        }
    });
    with_receiver(options(), Some(7), |sender, to| {
        for number in 0..MANY {
            sender.tinject(to, 7, &number.to_le_bytes()).unwrap();
        }
    });
}

/// With a thread of the domain that drives it, which takes what would wake the sender.
#[test]
fn injects_wait_for_capacity_beside_a_thread_of_the_domain() {
    with_receiver(options().progress(Progress::Auto), None, |sender, to| {
        for number in 0..MANY {
            sender.inject(to, &number.to_le_bytes()).unwrap();
        }
    });
}

/// The completions that come while a send waits are there afterwards, in their order, and so is the
/// one of an earlier receive.
#[test]
fn sends_wait_for_capacity_and_keep_completions_in_order() {
    for tag in [None, Some(9)] {
        with_receiver(options(), tag, |sender, to| {
            let mut ids = Vec::new();
            for number in 0..MANY {
                let mut outbound = Outbound::from(message(number));
                if let Some(tag) = tag {
                    outbound = outbound.tag(tag);
                }
                ids.push(sender.send(to, outbound).unwrap());
            }
            for (number, id) in ids.into_iter().enumerate() {
                match sender.wait(PATIENCE).unwrap() {
                    Some(CompletedOperation::Sent(sent, buffer)) => {
                        assert_eq!((sent, &buffer[..]), (id, &number.to_le_bytes()[..]));
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
    }
}

/// An endpoint with collective operations, whose messages move on while a send waits.
#[test]
fn a_waiting_send_lets_collective_operations_move_on() {
    let open = || options().collectives(true).open().unwrap();
    let (mut sender, mut receiver) = (open(), open());
    let addresses = [sender.address(), receiver.address()];
    let member = std::thread::spawn(move || {
        let members = addresses.map(|address| receiver.insert(address).unwrap());
        let join = receiver.join(&members).unwrap();
        let group = receiver.wait_for(join, PATIENCE).unwrap();
        // Nothing is received before it is over.
        for _ in 0..20 {
            let sum = receiver.allreduce(&group, Operator::SUM, 1_u64).unwrap();
            assert_eq!(receiver.wait_for(sum, PATIENCE).unwrap(), 3);
        }
        let mut room = Buffer::new(64).unwrap();
        for number in 0..MANY {
            let received = receiver.recv(room).unwrap();
            let message = receiver.wait_for(received, PATIENCE).unwrap();
            assert_eq!(message.bytes(), number.to_le_bytes());
            room = message.into_buffer();
        }
        receiver.close(PATIENCE.unwrap()).unwrap();
    });
    let members = addresses.map(|address| sender.insert(address).unwrap());
    let join = sender.join(&members).unwrap();
    let group = sender.wait_for(join, PATIENCE).unwrap();
    let sums: Vec<_> = (0..20)
        .map(|_| sender.allreduce(&group, Operator::SUM, 2_u64).unwrap())
        .collect();
    for number in 0..MANY {
        sender.inject(members[1], &number.to_le_bytes()).unwrap();
    }
    for sum in sums {
        assert_eq!(sender.wait_for(sum, PATIENCE).unwrap(), 3);
    }
    sender.close(PATIENCE.unwrap()).unwrap();
    member.join().unwrap();
}

/// Reads, writes and atomic operations, more than are under way at a time.
#[test]
fn one_sided_operations_wait_for_capacity() {
    let server = options().progress(Progress::Auto).open().unwrap();
    let mut client = open();
    let to_server = client.insert(server.address()).unwrap();
    server.insert(client.address()).unwrap();
    let region = server
        .share::<PeersReadWrite>(Buffer::copy_of(&[0x5a; 64]).unwrap())
        .unwrap();
    for _ in 0..MANY_READS {
        let into = Buffer::new(64).unwrap();
        client.read(to_server, region.remote(), into).unwrap();
    }
    for _ in 0..MANY_READS {
        match client.wait(PATIENCE).unwrap() {
            Some(CompletedOperation::Read(_, buffer)) => assert_eq!(buffer[..], [0x5a; 64]),
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..MANY_READS {
        let bytes = Buffer::copy_of(&[0x33; 64]).unwrap();
        client.write(to_server, region.remote(), bytes).unwrap();
    }
    for _ in 0..MANY_READS {
        match client.wait(PATIENCE).unwrap() {
            Some(CompletedOperation::Wrote(_, buffer)) => assert_eq!(buffer[..], [0x33; 64]),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(region.close()[..], [0x33; 64]);

    let sums: AtomicRegion<u64> = server.share_atomic(&[0]).unwrap();
    let ids: Vec<_> = (0..MANY_READS)
        .map(|_| client.fetch_atomic(to_server, sums.remote(), Operator::SUM, 1))
        .collect();
    for (before, id) in ids.into_iter().enumerate() {
        let fetched = client.wait_for(id.unwrap(), PATIENCE).unwrap();
        assert_eq!(fetched, before as u64);
    }
    for _ in 0..MANY_READS {
        (client.atomic(to_server, sums.remote(), Operator::SUM, 1)).unwrap();
    }
    let all = client.atomic_read(to_server, sums.remote()).unwrap();
    let all = client.wait_for(all, PATIENCE).unwrap();
    assert_eq!(all, [2 * MANY_READS as u64]);
}

/// A peer that does nothing: the calls with `try_` are refused with their buffers, and one with a
/// time limit when that is over.
#[test]
fn posts_that_do_not_wait_are_refused() {
    let limit = Duration::from_millis(50);
    let mut sender = options().send_timeout(limit).open().unwrap();
    let mut silent = open();
    let to_silent = sender.insert(silent.address()).unwrap();
    let mut posted = 0;
    let refused = loop {
        let begun = Instant::now();
        match sender.send(to_silent, message(posted)) {
            Ok(_) => posted += 1,
            Err(error) => {
                assert!(begun.elapsed() >= limit);
                break error;
            }
        }
    };
    assert!(refused.is_again() && posted > 0, "{refused}");
    assert_eq!(refused.into_buffer().unwrap()[..], posted.to_le_bytes());
    let refused = sender.inject(to_silent, b"").unwrap_err();
    assert!(refused.is_again(), "{refused}");

    let refused = sender.try_send(to_silent, message(posted)).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("`send` and its like wait"), "{text}");
    assert_eq!(refused.into_buffer().unwrap()[..], posted.to_le_bytes());
    let refused = sender.try_inject(to_silent, b"").unwrap_err();
    assert!(refused.is_again(), "{refused}");
    let refused = sender.try_tinject(to_silent, 1, b"").unwrap_err();
    assert!(refused.is_again(), "{refused}");

    // It goes on when the peer does.
    for number in 0..=posted {
        let received = silent.recv(Buffer::new(8).unwrap()).unwrap();
        if number == posted {
            let sent = loop {
                silent.poll().unwrap();
                match sender.try_send(to_silent, message(posted)) {
                    Ok(sent) => break sent,
                    Err(error) => assert!(error.is_again(), "{error}"),
                }
            };
            sender.wait_for(sent, PATIENCE).unwrap();
            sender.flush(PATIENCE.unwrap()).unwrap();
        }
        let message = loop {
            match silent.wait_for(received, Some(Duration::ZERO)) {
                Ok(message) => break message,
                Err(error) => assert!(error.is_timeout(), "{error}"),
            }
            sender.poll().unwrap();
        };
        assert_eq!(message.bytes(), number.to_le_bytes());
    }
}

/// Posts until there is no capacity, and then waits for it.
fn send_until_refused(sender: &mut RdmEndpoint, to: FiAddr) -> Errno {
    loop {
        if let Err(error) = sender.inject(to, b"more") {
            assert_eq!(error.peer(), Some(to));
            return error.errno();
        }
    }
}

/// The peer closes its endpoint while a sender waits for it.
#[test]
fn a_wait_for_capacity_ends_when_the_peer_closes() {
    let (mut sender, silent) = (open(), open());
    let to_silent = sender.insert(silent.address()).unwrap();
    // The message is there, so the two are connected.
    sender.inject(to_silent, b"one").unwrap();
    sender.flush(PATIENCE.unwrap()).unwrap();
    let waits = Arc::new(AtomicBool::new(false));
    let will_wait = waits.clone();
    let waiting = std::thread::spawn(move || {
        while sender.try_inject(to_silent, b"more").is_ok() {}
        will_wait.store(true, Ordering::Release);
        send_until_refused(&mut sender, to_silent)
    });
    while !waits.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    drop(silent);
    assert_eq!(waiting.join().unwrap(), Errno::ESHUTDOWN);
}

/// Gives the address of a sender to a process.
const SENDER: &str = "FERRO_TEST_SENDER";

/// The peer's process is killed while a sender waits for it.
#[test]
fn a_wait_for_capacity_ends_when_the_peer_dies() {
    let mut sender = open();
    let mut silent = Command::new(std::env::current_exe().unwrap());
    let mut silent = silent
        .args([
            "--exact",
            "back_pressure::the_process_that_receives_nothing",
            "--ignored",
        ])
        .env(SENDER, sender.address().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let hello = sender.recv(Buffer::new(64).unwrap()).unwrap();
    let hello = sender.wait_for(hello, PATIENCE).unwrap();
    let ferrofabric::MessageSource::Unknown(Some(address)) = *hello.source() else {
        panic!("{hello:?}");
    };
    let to_silent = sender.insert(address).unwrap();
    while sender.try_inject(to_silent, b"more").is_ok() {}
    let waiting = std::thread::spawn(move || send_until_refused(&mut sender, to_silent));
    silent.kill().unwrap();
    silent.wait().unwrap();
    assert_eq!(waiting.join().unwrap(), Errno::ECONNRESET);
}

#[test]
#[ignore = "run by another, which kills it"]
fn the_process_that_receives_nothing() {
    let Ok(sender) = std::env::var(SENDER) else {
        return println!("a part of another test, which runs it");
    };
    let mut silent = open();
    let sender = silent.insert(sender).unwrap();
    silent.inject(sender, b"hello").unwrap();
    loop {
        silent.flush(PATIENCE.unwrap()).unwrap();
        std::thread::park();
    }
}

/// A program with its own loop: it waits on the descriptor for capacity.
#[test]
fn the_descriptor_tells_of_capacity() {
    use std::os::fd::AsFd;
    with_receiver(options(), None, |sender, to| {
        for number in 0..MANY {
            loop {
                let bytes = number.to_le_bytes();
                let is_refused = |sender: &mut RdmEndpoint| match sender.try_inject(to, &bytes) {
                    Ok(()) => false,
                    Err(error) => {
                        assert!(error.is_again(), "{error}");
                        true
                    }
                };
                if !is_refused(sender) {
                    break;
                }
                if !sender.prepare_wait_for_capacity().unwrap() {
                    assert!(sender.poll().unwrap().is_none());
                    continue;
                }
                if !is_refused(sender) {
                    break;
                }
                let mut fds = [PollFd::new(sender.as_fd(), PollFlags::POLLIN)];
                let ready = poll(&mut fds, PollTimeout::from(60_000_u16)).unwrap();
                assert_eq!(ready, 1, "no capacity was reported");
            }
        }
    });
}

/// Each of many tasks sends a message and awaits its completion; the receiver is another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_wait_for_capacity() {
    const TASKS: u64 = 3000;
    const EACH: u64 = 5;
    let (sender, mut receives) = (open(), open());
    let to_receiver = sender.insert(receives.address()).unwrap();
    let receiver = std::thread::spawn(move || {
        let mut next = vec![0; TASKS as usize];
        let mut room = Buffer::new(64).unwrap();
        for _ in 0..TASKS * EACH {
            let received = receives.recv(room).unwrap();
            let message = receives.wait_for(received, PATIENCE).unwrap();
            let (task, number) = message.bytes().split_at(8);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let next = &mut next[word(task) as usize];
            assert_eq!(word(number), *next, "messages of a task are in order");
            *next += 1;
            room = message.into_buffer();
        }
    });
    let sender = Arc::new(AsyncRdmEndpoint::new(sender, watch).unwrap());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let sender = sender.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    let bytes = [task.to_le_bytes(), number.to_le_bytes()].concat();
                    match number % 2 {
                        0 => sender.inject(to_receiver, &bytes).await.unwrap(),
                        _ => {
                            let message = Buffer::copy_of(&bytes).unwrap();
                            let sent = sender.send(to_receiver, message).await.unwrap();
                            let buffer = sender.outcome(sent).await.unwrap();
                            assert_eq!(buffer[..], bytes[..]);
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        let ended = tokio::time::timeout(PATIENCE.unwrap(), task).await;
        ended.expect("a task sleeps").unwrap();
    }
    let sender = Arc::into_inner(sender).unwrap().into_inner();
    sender.close(PATIENCE.unwrap()).unwrap();
    receiver.join().unwrap();
}

/// Tasks on one thread, both ends among them: a send that waits lets the receiver go on. One whose
/// future is dropped has sent nothing.
#[tokio::test(flavor = "current_thread")]
async fn a_waiting_task_lets_others_go_on() {
    let (left, right) = (open(), open());
    let to_right = left.insert(right.address()).unwrap();
    let left = AsyncRdmEndpoint::new(left, watch).unwrap();
    let right = AsyncRdmEndpoint::new(right, watch).unwrap();
    let mut first: u64 = 0;
    loop {
        let bytes = first.to_le_bytes();
        let mut send = pin!(left.inject(to_right, &bytes));
        match send.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(sent) => sent.unwrap(),
            Poll::Pending => break,
        }
        first += 1;
    }
    let send = async {
        for number in first..MANY {
            left.tinject(to_right, 3, b"").await.unwrap();
            left.send(to_right, message(number)).await.unwrap();
        }
        left.flush().await.unwrap();
    };
    let receive = async {
        let mut room = Buffer::new(64).unwrap();
        for number in 0..MANY {
            if number >= first {
                let tagged = Inbound::from(Buffer::new(0).unwrap()).tag(3);
                let tagged = right.recv(tagged).unwrap();
                right.outcome(tagged).await.unwrap();
            }
            let received = right.recv(room).unwrap();
            let message = right.outcome(received).await.unwrap();
            assert_eq!(message.bytes(), number.to_le_bytes());
            room = message.into_buffer();
        }
    };
    let both = async { tokio::join!(send, receive) };
    let ended = tokio::time::timeout(PATIENCE.unwrap(), both).await;
    ended.expect("a task sleeps");
}

/// One-sided operations of tasks, more than are under way at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sided_operations_of_tasks_wait_for_capacity() {
    let server = options().progress(Progress::Auto).open().unwrap();
    let client = open();
    let to_server = client.insert(server.address()).unwrap();
    server.insert(client.address()).unwrap();
    let region = server
        .share::<PeersRead>(Buffer::copy_of(&[0x5a; 64]).unwrap())
        .unwrap();
    let sums: AtomicRegion<u64> = server.share_atomic(&[0]).unwrap();
    let (region, sums) = (region.remote(), (sums.remote(), sums));
    let (remote, sums) = sums;
    let client = Arc::new(AsyncRdmEndpoint::new(client, watch).unwrap());
    let tasks: Vec<_> = (0..MANY_READS)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let into = Buffer::new(64).unwrap();
                let read = client.read(to_server, region, into).await.unwrap();
                let sum = client.fetch_atomic(to_server, remote, Operator::SUM, 1);
                let sum = sum.await.unwrap();
                assert_eq!(client.outcome(read).await.unwrap()[..], [0x5a; 64]);
                client.outcome(sum).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        let ended = tokio::time::timeout(PATIENCE.unwrap(), task).await;
        ended.expect("a task sleeps").unwrap();
    }
    assert_eq!(sums.load(0).unwrap(), MANY_READS as u64);
}
