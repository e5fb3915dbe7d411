//! Peers that die, and peers that only sleep.

use std::time::{Duration, Instant};

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, PATIENCE, PeerProcess, fill, is_filled, succeeded, wait};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-peer");
const LARGE: usize = 4 << 20;

/// A connection that breaks is tried again for so long, less than unless told: a dead peer is
/// noticed sooner.
const SOON: (&str, &str) = ("FERRO_RECONNECT_TIMEOUT", "4s");

/// The resources of a process that a dead peer must not leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    segments: usize,
}

impl Holdings {
    fn now() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            segments: maps.lines().filter(|l| l.contains("memfd:")).count(),
        }
    }
}

/// A message there and back, with a peer that lives.
fn exchange(
    hub: &mut OwningEndpoint,
    healthy: FiAddr,
    round: u64,
    len: usize,
    mut other: impl FnMut(party::TokenResult),
) {
    let tag = (1 << 40) | round;
    let mut out = Buffer::new(len).unwrap();
    fill(&mut out, tag);
    hub.trecv(Buffer::new(len).unwrap(), healthy, tag, 0, 1 << 50)
        .unwrap();
    hub.tsend(out, len, healthy, tag, 1 << 51).unwrap();
    let mut left = 2;
    while left > 0 {
        let done = wait(hub);
        match done.token {
            token if token == 1 << 50 => {
                succeeded(done.outcome);
                assert!(is_filled(&done.buffer, tag), "content of round {round}");
                left -= 1;
            }
            token if token == 1 << 51 => {
                succeeded(done.outcome);
                left -= 1;
            }
            token => other((token, done.outcome)),
        }
    }
}

/// Kills a peer in the middle of transfers in both directions.
fn kill_in_the_middle(shm: &str) {
    let mut hub = party::endpoint(&[SOON]);
    let healthy = PeerProcess::start(
        PROGRAM,
        "echo",
        &[("FERRO_SHM", shm)],
        &[LARGE as u64],
        &hub.name(),
    );
    let healthy_addr = hub.av().insert(&healthy.name.to_bytes()).unwrap();
    let mut healthy = healthy;
    healthy.go();
    // Through shared memory the first four come through the ring, the next ones are read out of the
    // peer's memory, which takes a descriptor from then on.
    for round in 0..8 {
        exchange(&mut hub, healthy_addr, round, 100_000, |o| panic!("{o:?}"));
    }
    let before = Holdings::now();

    let numbers = [7, 1_000_000, 1 << 20, LARGE as u64, 4];
    let mut victim = PeerProcess::start(
        PROGRAM,
        "sender",
        &[("FERRO_SHM", shm)],
        &numbers,
        &hub.name(),
    );
    let victim_addr = hub.av().insert(&victim.name.to_bytes()).unwrap();
    // Four receives that only the victim can match, and four messages that it will never take.
    for token in 0..4 {
        hub.trecv(Buffer::new(LARGE).unwrap(), victim_addr, 0, u64::MAX, token)
            .unwrap();
    }
    for token in 100..104 {
        hub.tsend(Buffer::new(LARGE).unwrap(), LARGE, victim_addr, 1, token)
            .unwrap();
    }
    victim.go();
    for _ in 0..6 {
        let done = wait(&mut hub);
        let completion = succeeded(done.outcome);
        assert!(is_filled(&done.buffer[..completion.len], completion.tag));
        hub.trecv(done.buffer, victim_addr, 0, u64::MAX, done.token)
            .unwrap();
    }
    victim.signal(libc::SIGKILL);
    victim.bury();

    let mut pending: Vec<u64> = (0..4).chain(100..104).collect();
    let mut failed = 0;
    let until = Instant::now() + PATIENCE;
    let mut round = 100;
    while !pending.is_empty() {
        // The healthy peer is served all the while.
        exchange(&mut hub, healthy_addr, round, 10_000, |(token, outcome)| {
            let at = pending
                .iter()
                .position(|p| *p == token)
                .expect("an operation of the victim");
            pending.remove(at);
            match outcome {
                Ok(_) => assert!(token < 100, "a message that nobody took was taken"),
                Err(error) => {
                    assert!(
                        matches!(
                            error.errno,
                            Errno::ECONNRESET | Errno::EHOSTUNREACH | Errno::EREMOTEIO
                        ),
                        "{} ({})",
                        error.errno,
                        error.why
                    );
                    failed += 1;
                }
            }
        });
        round += 1;
        assert!(Instant::now() < until, "still waiting for {pending:?}");
    }
    assert!(failed >= 5, "only {failed} operations failed");
    exchange(&mut hub, healthy_addr, round, LARGE, |o| panic!("{o:?}"));
    assert_eq!(Holdings::now(), before, "what the dead peer left behind");

    hub.tinject(b"", healthy_addr, 0).unwrap();
    while hub.poll().unwrap().is_some() {}
    // Drives the goodbye out.
    hub.trecv(Buffer::new(0).unwrap(), healthy_addr, 1, 0, 1)
        .unwrap();
    drop(hub);
    healthy.finish();
}

#[test]
#[file_serial(verbs)]
fn a_peer_killed_over_shared_memory_fails_alone() {
    if Rig::open().is_some() {
        kill_in_the_middle("on");
    }
}

#[test]
#[file_serial(verbs)]
fn a_peer_killed_over_verbs_fails_alone() {
    if Rig::open().is_some() {
        kill_in_the_middle("off");
    }
}

/// Peers that are reached by connections.
const RC: [(&str, &str); 3] = [("FERRO_SHM", "off"), ("FERRO_LANE", "rc"), SOON];

/// Peers that are reached by datagrams, and may be silent for as long as that.
const UD: [(&str, &str); 3] = [
    ("FERRO_SHM", "off"),
    ("FERRO_LANE", "ud"),
    ("FERRO_PEER_TIMEOUT", "3s"),
];

/// Nothing is under way with the peer when it dies: nobody but us can find out.
fn kill_at_rest(settings: &[(&str, &str)]) {
    let mut hub = party::endpoint(settings);
    let mut victim = PeerProcess::start(PROGRAM, "echo", settings, &[1000], &hub.name());
    let addr = hub.av().insert(&victim.name.to_bytes()).unwrap();
    victim.go();
    exchange(&mut hub, addr, 0, 1000, |o| panic!("{o:?}"));
    hub.trecv(Buffer::new(10).unwrap(), addr, 9, 0, 9).unwrap();
    victim.signal(libc::SIGKILL);
    victim.bury();
    let done = wait(&mut hub);
    assert_eq!(done.token, 9);
    let error = done.outcome.unwrap_err();
    // Only silence shows the death of a peer that is reached by datagrams.
    let expected = match settings == UD {
        true => [Errno::ETIMEDOUT; 2],
        false => [Errno::ECONNRESET, Errno::EHOSTUNREACH],
    };
    assert!(
        expected.contains(&error.errno),
        "{} ({})",
        error.errno,
        error.why
    );
}

#[test]
#[file_serial(verbs)]
fn the_death_of_an_idle_peer_is_noticed() {
    if Rig::open().is_some() {
        kill_at_rest(&[("FERRO_SHM", "on")]);
        kill_at_rest(&RC);
        kill_at_rest(&UD);
    }
}

/// Operations with a peer that is reached by datagrams end when the peer has been silent for too
/// long; a peer that only slept for less loses nothing.
#[test]
#[file_serial(verbs)]
fn datagram_operations_with_a_dead_peer_end() {
    if Rig::open().is_none() {
        return;
    }
    let mut hub = party::endpoint(&UD);
    let mut victim = PeerProcess::start(PROGRAM, "echo", &UD, &[8000], &hub.name());
    let addr = hub.av().insert(&victim.name.to_bytes()).unwrap();
    victim.go();
    exchange(&mut hub, addr, 0, 8000, |o| panic!("{o:?}"));
    victim.signal(libc::SIGSTOP);
    let asleep = Instant::now();
    while asleep.elapsed() < Duration::from_secs(1) {
        assert!(hub.wait(Some(Duration::from_secs(1))).unwrap().is_none());
    }
    victim.signal(libc::SIGCONT);
    exchange(&mut hub, addr, 1, 8000, |o| panic!("{o:?}"));

    victim.signal(libc::SIGKILL);
    victim.bury();
    for token in 0..100 {
        party::tsend(
            &mut hub,
            Buffer::new(8000).unwrap(),
            8000,
            addr,
            1,
            token,
            |done| panic!("{done:?}"),
        );
    }
    for token in 0..100 {
        let done = wait(&mut hub);
        let error = done.outcome.unwrap_err();
        assert_eq!((done.token, error.errno), (token, Errno::ETIMEDOUT));
    }
}

/// For longer than it takes to notice that a peer is dead.
#[test]
#[file_serial(verbs)]
fn peers_that_sleep_lose_nothing() {
    peers_sleep(&[SOON], Duration::from_secs(10));
}

#[test]
#[ignore = "soak: peers sleep for half a minute"]
#[file_serial(verbs)]
fn peers_that_sleep_for_half_a_minute_lose_nothing() {
    peers_sleep(&[], Duration::from_secs(30));
}

fn peers_sleep(settings: &[(&str, &str)], how_long: Duration) {
    if Rig::open().is_none() {
        return;
    }
    const COUNT: u64 = 200;
    let mut hub = party::endpoint(settings);
    let (mut peers, addrs) = PeerProcess::start_senders(PROGRAM, 2, [COUNT, 0, 300_000, 8], &hub);
    for token in 0..8 {
        hub.trecv(
            Buffer::new(300_000).unwrap(),
            FiAddr::UNSPEC,
            0,
            u64::MAX,
            token,
        )
        .unwrap();
    }
    for peer in &mut peers {
        peer.go();
    }
    let mut received = [0u64; 2];
    let mut sent = 0;
    let mut take = |hub: &mut OwningEndpoint, timeout: Duration| {
        let Some(done) = hub.wait(Some(timeout)).unwrap() else {
            return 0;
        };
        let completion = succeeded(done.outcome);
        if done.token >= 1000 {
            sent += 1;
            return 0;
        }
        assert!(is_filled(&done.buffer[..completion.len], completion.tag));
        received[(completion.tag >> 32) as usize] += 1;
        hub.trecv(done.buffer, FiAddr::UNSPEC, 0, u64::MAX, done.token)
            .unwrap();
        1
    };
    let mut left = 2 * COUNT;
    while left > COUNT {
        left -= take(&mut hub, PATIENCE);
    }
    for peer in &peers {
        peer.signal(libc::SIGSTOP);
    }
    for &addr in &addrs {
        hub.tsend(Buffer::new(10).unwrap(), 10, addr, 5, 1000)
            .unwrap();
    }
    let asleep = Instant::now();
    while asleep.elapsed() < how_long {
        left -= take(&mut hub, Duration::from_secs(1));
    }
    assert!(left > 0, "the peers slept");
    for peer in &peers {
        peer.signal(libc::SIGCONT);
    }
    let until = Instant::now() + PATIENCE;
    while left > 0 {
        left -= take(&mut hub, PATIENCE);
        assert!(Instant::now() < until, "{left} messages are missing");
    }
    assert_eq!((received, sent), ([COUNT, COUNT], 2));
}
