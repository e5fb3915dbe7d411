//! Tests of wake-ups: a failed ring is repeated, and an endpoint that is awake gets no rings.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::AsRawFd;
use std::process::Command;

use ferrofabric_contracts::peer::Transport;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};

use crate::ShmConfig;
use crate::doorbell::Doorbell;
use crate::owner::Ep;

/// Runs a test of this program in a process of its own.
pub(super) fn run_alone(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {said}");
    let ran = String::from_utf8_lossy(&output.stdout);
    assert!(ran.contains("1 passed"), "{test}: {ran}");
}

/// Two endpoints with a link that has carried a message.
fn linked() -> (Ep, Ep, ferrofabric_contracts::types::FiAddr) {
    let (mut a, mut b) = (
        Ep::open(ShmConfig::default()),
        Ep::open(ShmConfig::default()),
    );
    let to_b = a.insert(&b.name());
    // Without this entry the link would be watched, as that of an unknown source.
    b.insert(&a.name());
    let mut into = [0u8; 8];
    b.trecv(1, 0, &mut into, 1);
    a.tsend(to_b, 1, &[1; 8], 2).unwrap();
    while b.poll().is_none() {
        a.progress();
        std::thread::yield_now();
    }
    a.wait().unwrap();
    (a, b, to_b)
}

/// Sets the limit of descriptors of this process; returns the limit before.
fn limit_descriptors(most: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a place for the limit.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let before = std::mem::replace(&mut limit.rlim_cur, most);
    // SAFETY: a limit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!((read, set), (0, 0));
    before
}

fn is_rung(ep: &Ep, within_ms: u16) -> bool {
    let mut fds = [PollFd::new(ep.shm.wait_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(within_ms)).unwrap() == 1
}

/// Rings that wait at a doorbell.
fn rings(ep: &Ep) -> usize {
    let bell = ep.shm.wait_fd().as_raw_fd();
    let ring = || recv(bell, &mut [0], MsgFlags::MSG_DONTWAIT).ok();
    std::iter::from_fn(ring).count()
}

#[test]
fn a_sleeper_is_woken_once_a_ring_is_possible_again() {
    run_alone("service::wakes::a_ring_that_fails");
}

/// The ring fails twice: the socket has no room for another ring, and there is no descriptor for
/// another socket.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn a_ring_that_fails() {
    let (mut a, mut b, to_b) = linked();
    let of_ours = (9 << 48) | (u64::from(std::process::id()) << 16);
    let deaf: Vec<_> = (0..400)
        .map(|i| Doorbell::open(of_ours | i).unwrap())
        .collect();
    for id in 0..deaf.len() as u64 {
        let _ = a.shm.doorbell().ring(of_ours | id);
    }
    assert!(b.shm.arm().unwrap(), "there is nothing to do");
    let before = limit_descriptors(3);
    a.tsend(to_b, 2, &[2; 8], 3).unwrap();
    assert!(!is_rung(&b, 50), "the ring did not fail");
    limit_descriptors(before);
    assert!(
        is_rung(&b, 20_000),
        "b sleeps on, with a message in its ring"
    );
}

/// A process that only polls would otherwise collect one ring for each event, until its doorbell is
/// full.
#[test]
fn an_awake_endpoint_gets_no_rings() {
    const CLIENTS: u64 = 20;
    let mut ep = Ep::open(ShmConfig::default());
    for n in 0..CLIENTS {
        let mut comer = Ep::open(ShmConfig::default());
        let to = comer.insert(&ep.name());
        comer.tsend(to, 5, &[1; 8], 1).unwrap();
        while ep.shm.stats().received <= n {
            ep.progress();
            comer.progress();
            std::thread::yield_now();
        }
        drop(comer);
        while ep.shm.stats().links_failed <= n {
            ep.progress();
            std::thread::yield_now();
        }
    }
    assert_eq!(
        rings(&ep),
        0,
        "rings, after {CLIENTS} clients came and went"
    );
    // Asleep, it gets a ring.
    while !ep.shm.arm().unwrap() {
        ep.progress();
    }
    let mut comer = Ep::open(ShmConfig::default());
    let to = comer.insert(&ep.name());
    comer.tsend(to, 5, &[1; 8], 1).unwrap();
    assert!(is_rung(&ep, 20_000), "no ring wakes it");
}

/// The kernel refuses the barrier: no sleeper can be sure to be woken, so the endpoint stays awake.
#[test]
fn without_a_barrier_no_endpoint_sleeps() {
    let mut ep = Ep::open(ShmConfig::default());
    assert!(ep.shm.arm().unwrap(), "there is nothing to do");
    ep.progress();
    refuse(libc::SYS_membarrier);
    assert!(!ep.shm.arm().unwrap(), "it is to sleep without a barrier");
}

/// Makes this thread's system calls of a number fail with `EPERM`.
fn refuse(call: libc::c_long) {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let allow = libc::SECCOMP_RET_ALLOW;
    let fail = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut steps = [
        // The call's number is the first word.
        step((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        step(
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            0,
            1,
            call as u32,
        ),
        step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, fail),
        step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, allow),
    ];
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: numbers, and a filter that lives until the call returns.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter),
            0
        );
    }
}
