//! Tests with scripted clients and listeners: some hang up, some are silent, some name memory that
//! can not be read. The service thread goes on with all other peers.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::CqError;
use nix::errno::Errno as Sys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::{Backlog, Shutdown, listen, shutdown};

use super::frame::{BUSY, Frame, HELLO, MAP, OK, READY, WELCOME};
use super::socket;
use super::wakes::run_alone;
use crate::ShmConfig;
use crate::missing_pages::MissingPages;
use crate::owner::Ep;
use crate::ring::LINE;
use crate::segment::ShmSegment;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than a connection takes on a busy machine, shorter than any time limit of the endpoint.
const SOON: Duration = Duration::from_secs(20);

/// A peer with a lower id than the endpoint's, which listens and never answers.
struct SilentListener {
    name: NativeAddr,
    listener: OwnedFd,
}

impl SilentListener {
    fn below(ep: &Ep) -> Self {
        Self::number(ep, 0)
    }

    /// A silent peer with this number.
    fn number(ep: &Ep, number: u64) -> Self {
        let mut name = ep.name();
        let id = (name.shm.unwrap() >> 1) ^ number;
        (name.shm, name.incarnation) = (Some(id), id);
        Self {
            name,
            listener: socket::listen_at(id).unwrap(),
        }
    }

    /// Waits until the endpoint has connected to the silent peer.
    fn is_called(&self) -> OwnedFd {
        let begun = Instant::now();
        let fd = until(begun, || socket::accept(&self.listener));
        until(begun, || socket::receive(&fd));
        fd
    }

    /// A client of the endpoint.
    fn connect_client(ep: &Ep) -> OwnedFd {
        socket::connect_to(ep.name().shm.unwrap()).unwrap()
    }

    /// Sends `HELLO` to the endpoint, as a client that can not receive the answer.
    fn hello(&self, fd: &OwnedFd, ep: &Ep) {
        shutdown(fd.as_raw_fd(), Shutdown::Read).unwrap();
        let mut frame = Frame::new(HELLO, 1, self.name.to_bytes());
        frame.wanted = ep.name().incarnation;
        socket::send(fd, &frame, &[]).unwrap();
    }
}

fn until<T>(begun: Instant, mut what: impl FnMut() -> nix::Result<T>) -> T {
    loop {
        match what() {
            Ok(it) => return it,
            Err(Sys::EAGAIN) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
        assert!(begun.elapsed() < TIMEOUT, "nothing comes");
    }
}

/// Waits until the endpoint has closed a client's connection, and so has handled its `HELLO`.
fn is_closed_by_endpoint(fd: &OwnedFd) {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::empty())];
    let n = poll(&mut fds, PollTimeout::from(60_000u16)).unwrap();
    assert_eq!(n, 1, "it does not hang up");
}

/// The error of the next operation to end.
fn failed(ep: &mut Ep) -> CqError {
    let begun = Instant::now();
    loop {
        if let Some(found) = ep.poll() {
            return found.unwrap_err();
        }
        assert!(begun.elapsed() < TIMEOUT, "the send waits for ever");
        std::thread::yield_now();
    }
}

fn fails_with(ep: &mut Ep, errno: Errno) {
    let error = failed(ep);
    assert_eq!((error.errno, error.completion.context), (errno, 5));
}

/// Another endpoint can connect and send, soon.
fn serves_a_new_client(ep: &mut Ep) {
    let mut other = Ep::open(ShmConfig::default());
    let to = other.insert(&ep.name());
    let mut into = [0; 8];
    ep.trecv(1, 0, &mut into, 1);
    other.tsend(to, 1, &[7; 8], 2).unwrap();
    let begun = Instant::now();
    while ep.poll().is_none() {
        other.progress();
        assert!(begun.elapsed() < SOON, "a new endpoint can not connect");
        std::thread::yield_now();
    }
    assert_eq!(into, [7; 8]);
}

fn impatient() -> Ep {
    Ep::open(ShmConfig {
        connect_deadline: Duration::from_millis(100),
        ..ShmConfig::default()
    })
}

/// Nothing completes for much longer than a refused attempt lasts.
fn waits_on(ep: &mut Ep) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let end = ep.poll();
        assert!(end.is_none(), "it does not wait for a silent peer: {end:?}");
        std::thread::yield_now();
    }
}

#[test]
fn an_attempt_outlives_a_client_that_hangs_up_after_hello() {
    let mut ep = impatient();
    let silent = SilentListener::below(&ep);
    let to = ep.insert(&silent.name);
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    let call = silent.is_called();
    let client = SilentListener::connect_client(&ep);
    silent.hello(&client, &ep);
    is_closed_by_endpoint(&client);
    // The attempt is repeated.
    drop((call, silent.is_called()));
    drop(silent);
    fails_with(&mut ep, Errno::EHOSTUNREACH);
}

/// A peer may be stopped for any time before it accepts a connection, or answers.
#[test]
fn silence_is_not_death() {
    let mut ep = impatient();
    let silent = SilentListener::below(&ep);
    let to = ep.insert(&silent.name);
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    let call = silent.is_called();
    waits_on(&mut ep);
    drop(call);
    drop(silent);
    fails_with(&mut ep, Errno::EHOSTUNREACH);
}

/// An earlier `HELLO` of the peer does not replace the endpoint's offer once the peer has the
/// endpoint's segment: the peer would wait in vain for messages there.
#[test]
fn an_offer_outlives_an_earlier_hello() {
    let mut ep = Ep::open(ShmConfig::default());
    let silent = SilentListener::below(&ep);
    let to = ep.insert(&silent.name);
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    let begun = Instant::now();
    let call = until(begun, || socket::accept(&silent.listener));
    let hello = until(begun, || socket::receive(&call));
    let nonce = Frame::parse(&hello.bytes, HELLO).unwrap().nonce;
    let answer = |kind| {
        let frame = Frame::new(kind, nonce, silent.name.to_bytes());
        socket::send(&call, &frame, &[]).unwrap();
    };
    answer(WELCOME);
    let map = until(begun, || socket::receive(&call));
    assert_eq!(map.fds.len(), 1);
    let client = SilentListener::connect_client(&ep);
    silent.hello(&client, &ep);
    is_closed_by_endpoint(&client);
    answer(READY);
    while ep.shm.stats().links == 0 {
        ep.progress();
        assert!(begun.elapsed() < SOON, "there is no link");
        std::thread::yield_now();
    }
}

/// The removal of a silent peer ends the connection to it, and the peer may connect again.
#[test]
fn removal_ends_the_attempt_with_a_silent_peer() {
    let mut ep = Ep::open(ShmConfig::default());
    let silent = SilentListener::below(&ep);
    for _ in 0..2 {
        let to = ep.insert(&silent.name);
        ep.tsend(to, 1, &[1; 8], 5).unwrap();
        let call = silent.is_called();
        ep.remove(to);
        is_closed_by_endpoint(&call);
        fails_with(&mut ep, Errno::ECANCELED);
    }
}

/// The queue of a silent peer is full of other connections.
#[test]
fn a_full_queue_at_a_silent_peer_is_not_its_death() {
    let mut ep = impatient();
    let silent = SilentListener::below(&ep);
    listen(&silent.listener, Backlog::new(1).unwrap()).unwrap();
    let knocks = std::iter::repeat_with(|| socket::connect_to(silent.name.shm.unwrap()));
    let waiting: Vec<_> = knocks.map_while(Result::ok).collect();
    let to = ep.insert(&silent.name);
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    waits_on(&mut ep);
    drop(waiting);
    drop(silent);
    fails_with(&mut ep, Errno::EHOSTUNREACH);
}

/// A peer that lives, and refuses each connection.
#[test]
fn an_attempt_with_a_refusing_peer_ends() {
    for answers in [true, false] {
        let mut ep = impatient();
        let busy = SilentListener::below(&ep);
        let to = ep.insert(&busy.name);
        ep.tsend(to, 1, &[1; 8], 5).unwrap();
        let begun = Instant::now();
        let error = loop {
            if let Ok(fd) = socket::accept(&busy.listener) {
                if answers {
                    let hello = until(begun, || socket::receive(&fd));
                    let hello = Frame::parse(&hello.bytes, HELLO).unwrap();
                    let mut frame = Frame::new(WELCOME, hello.nonce, busy.name.to_bytes());
                    frame.verdict = BUSY;
                    socket::send(&fd, &frame, &[]).unwrap();
                }
            }
            if let Some(found) = ep.poll() {
                break found.unwrap_err();
            }
            assert!(begun.elapsed() < TIMEOUT, "the send waits for ever");
            std::thread::yield_now();
        };
        assert_eq!(
            (error.errno, error.completion.context),
            (Errno::ETIMEDOUT, 5)
        );
    }
}

/// More clients than there are places for connect and say nothing.
#[test]
fn many_silent_clients_keep_no_newcomer_out() {
    let mut ep = Ep::open(ShmConfig {
        // They would keep their places for longer than the test waits.
        accept_deadline: 10 * TIMEOUT,
        ..ShmConfig::default()
    });
    let begun = Instant::now();
    let id = ep.name().shm.unwrap();
    let clients = (0..300).map(|_| until(begun, || socket::connect_to(id)));
    let clients: Vec<_> = clients.collect();
    serves_a_new_client(&mut ep);
    drop(clients);
}

/// The acceptor has no descriptor for a segment at the moment: it says that it is busy, so the other
/// side tries again.
#[test]
fn a_lack_of_descriptors_is_no_refusal() {
    let ep = Ep::open(ShmConfig::default());
    let client = SilentListener::below(&ep);
    let begun = Instant::now();
    let call = SilentListener::connect_client(&ep);
    let mut hello = Frame::new(HELLO, 1, client.name.to_bytes());
    hello.wanted = ep.name().incarnation;
    socket::send(&call, &hello, &[]).unwrap();
    let welcome = until(begun, || socket::receive(&call));
    assert_eq!(Frame::parse(&welcome.bytes, WELCOME).unwrap().verdict, OK);
    let (_segment, fd) = ShmSegment::create().unwrap();
    // The lowest number that is free, and no descriptor gets a higher one.
    let next = fd.try_clone().unwrap().as_raw_fd() as u64;
    setrlimit(Resource::RLIMIT_NOFILE, next, next).unwrap();
    let map = Frame::new(MAP, 1, client.name.to_bytes());
    socket::send(&call, &map, &[fd.as_fd()]).unwrap();
    let ready = until(begun, || socket::receive(&call));
    assert_eq!(Frame::parse(&ready.bytes, READY).unwrap().verdict, BUSY);
}

/// A limit of file sizes, which holds for shared memory, too, ends no process: the send fails at
/// once, and says why.
#[test]
fn a_limit_of_file_sizes_is_named() {
    let (mut ep, other) = (
        Ep::open(ShmConfig::default()),
        Ep::open(ShmConfig::default()),
    );
    setrlimit(Resource::RLIMIT_FSIZE, 8192, 8192).unwrap();
    let to = ep.insert(&other.name());
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    let error = failed(&mut ep);
    assert_eq!(
        (error.errno, error.completion.context),
        (Errno::EHOSTUNREACH, 5)
    );
    assert!(error.why.contains("ulimit -f"), "{}", error.why);
}

#[test]
fn many_silent_targets_keep_no_newcomer_out() {
    run_alone("service::clients::many_silent_targets");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn many_silent_targets() {
    let mut ep = Ep::open(ShmConfig::default());
    let silent: Vec<_> = (0..300).map(|n| SilentListener::number(&ep, n)).collect();
    for target in &silent {
        let to = ep.insert(&target.name);
        ep.tsend(to, 1, &[1; 8], 5).unwrap();
    }
    let _calls: Vec<_> = silent[..256]
        .iter()
        .map(SilentListener::is_called)
        .collect();
    serves_a_new_client(&mut ep);
    // All silent peers are tried in turns, and a peer that answers is not delayed by them.
    let mut other = Ep::open(ShmConfig::default());
    let to = ep.insert(&other.name());
    ep.tsend(to, 2, &[2; 8], 6).unwrap();
    let begun = Instant::now();
    while ep.poll().is_none() {
        other.progress();
        assert!(begun.elapsed() < SOON, "no other peer can be reached");
        std::thread::yield_now();
    }
    drop(
        silent[256..]
            .iter()
            .map(SilentListener::is_called)
            .collect::<Vec<_>>(),
    );
}

/// A client names a cookie in memory that never becomes readable.
#[test]
fn a_cookie_that_never_comes_delays_no_peer() {
    let mut ep = Ep::open(ShmConfig::default());
    let Some(never) = MissingPages::map(LINE) else {
        return;
    };
    let silent = SilentListener::below(&ep);
    let client = SilentListener::connect_client(&ep);
    let mut frame = Frame::new(HELLO, 1, silent.name.to_bytes());
    frame.wanted = ep.name().incarnation;
    frame.cookie_addr = never.addr();
    socket::send(&client, &frame, &[]).unwrap();
    serves_a_new_client(&mut ep);
}

#[test]
fn clients_that_hang_up_after_hello_do_no_harm() {
    let mut ep = Ep::open(ShmConfig::default());
    let silent = SilentListener::below(&ep);
    let to = ep.insert(&silent.name);
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    let _call = silent.is_called();
    for at_once in [1, 2, 3, 4, 3, 2] {
        let clients: Vec<_> = (0..at_once)
            .map(|_| SilentListener::connect_client(&ep))
            .collect();
        for client in clients.iter().rev() {
            silent.hello(client, &ep);
            is_closed_by_endpoint(client);
        }
    }
    // The service thread still runs.
    serves_a_new_client(&mut ep);
    // The attempt still exists.
    drop(silent.is_called());
    drop(silent);
    fails_with(&mut ep, Errno::EHOSTUNREACH);
}
