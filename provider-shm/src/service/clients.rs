//! Clients by hand, who say hello as a peer whom the endpoint tries to reach, and hang up: the attempt goes on.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::error::Errno;
use nix::errno::Errno as Sys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};

use super::frame::{Frame, HELLO};
use super::socket;
use crate::ShmConfig;
use crate::owner::Ep;

const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody with a lower name than the endpoint's, who listens and never answers.
struct Silent {
    name: NativeAddr,
    listener: OwnedFd,
}

impl Silent {
    fn below(ep: &Ep) -> Self {
        let mut name = ep.name();
        let id = name.shm.unwrap() >> 1;
        (name.shm, name.incarnation) = (Some(id), id);
        Self {
            name,
            listener: socket::listen_at(id).unwrap(),
        }
    }

    /// Waits until the endpoint has said hello to us.
    fn is_called(&self) -> OwnedFd {
        let begun = Instant::now();
        let fd = until(begun, || socket::accept(&self.listener));
        until(begun, || socket::receive(&fd));
        fd
    }

    /// A client of the endpoint.
    fn knock(ep: &Ep) -> OwnedFd {
        socket::connect_to(ep.name().shm.unwrap()).unwrap()
    }

    /// Says hello to the endpoint as a client who can not be answered.
    fn hello(&self, fd: &OwnedFd, ep: &Ep) {
        shutdown(fd.as_raw_fd(), Shutdown::Read).unwrap();
        let mut frame = Frame::new(HELLO, 1, self.name.to_bytes());
        frame.wanted = ep.name().incarnation;
        socket::send(fd, &frame, None).unwrap();
    }
}

fn until<T>(begun: Instant, mut what: impl FnMut() -> nix::Result<T>) -> T {
    loop {
        match what() {
            Ok(it) => return it,
            Err(Sys::EAGAIN) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
        assert!(begun.elapsed() < PATIENCE, "nothing comes");
    }
}

/// Waits until the endpoint has hung up on a client, and so is done with its hello.
fn is_hung_up_on(fd: &OwnedFd) {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::empty())];
    let n = poll(&mut fds, PollTimeout::from(60_000u16)).unwrap();
    assert_eq!(n, 1, "it does not hang up");
}

fn fails_with(ep: &mut Ep, errno: Errno) {
    let begun = Instant::now();
    let error = loop {
        if let Some(found) = ep.poll() {
            break found.unwrap_err();
        }
        assert!(begun.elapsed() < PATIENCE, "the send waits for ever");
        std::thread::yield_now();
    };
    assert_eq!((error.errno, error.completion.context), (errno, 5));
}

#[test]
fn an_attempt_outlives_a_client_that_says_hello_and_is_gone() {
    let mut ep = Ep::open(ShmConfig {
        connect_deadline: Duration::from_millis(400),
        ..ShmConfig::default()
    });
    let silent = Silent::below(&ep);
    let to = ep.insert(&silent.name);
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    let _call = silent.is_called();
    let client = Silent::knock(&ep);
    silent.hello(&client, &ep);
    is_hung_up_on(&client);
    fails_with(&mut ep, Errno::ETIMEDOUT);
}

#[test]
fn clients_that_say_hello_and_are_gone_do_no_harm() {
    let mut ep = Ep::open(ShmConfig::default());
    let silent = Silent::below(&ep);
    let to = ep.insert(&silent.name);
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    let _call = silent.is_called();
    for at_once in [1, 2, 3, 4, 3, 2] {
        let clients: Vec<_> = (0..at_once).map(|_| Silent::knock(&ep)).collect();
        for client in clients.iter().rev() {
            silent.hello(client, &ep);
            is_hung_up_on(client);
        }
    }
    // The service thread is there: others can connect.
    let mut other = Ep::open(ShmConfig::default());
    let to = other.insert(&ep.name());
    let mut into = [0; 8];
    ep.trecv(1, 0, &mut into, 1);
    other.tsend(to, 1, &[7; 8], 2).unwrap();
    let begun = Instant::now();
    while ep.poll().is_none() {
        other.progress();
        assert!(begun.elapsed() < PATIENCE, "nobody can connect");
        std::thread::yield_now();
    }
    assert_eq!(into, [7; 8]);
    // So is the attempt.
    drop(silent.is_called());
    drop(silent);
    fails_with(&mut ep, Errno::EHOSTUNREACH);
}
