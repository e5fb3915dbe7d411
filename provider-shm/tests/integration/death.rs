//! Peers that die, stop, close or break the protocol: operations that wait for them fail, all
//! others go on, and nothing is left behind.

use crate::{exchange, owner, party};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use exchange::{content, exchange};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::Transport;
use ferrofabric_contracts::types::{FiAddr, MsgKind};
use ferrofabric_shm::{Cma, ShmConfig, fuzzing};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg,
    socket,
};
use owner::{Ep, TIMEOUT};
use party::{ChildProcess, await_line, holdings, print_line, role};

const HUGE: usize = 256 << 20;

/// The roles of the child processes.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    let Some(role) = role() else { return };
    match role.as_str() {
        "fresh" => return nothing_is_left(),
        "garbage" => return garbage_at_the_door(),
        "stranger" => {
            let nobody = nix::unistd::Uid::from_raw(65_534);
            nix::unistd::setuid(nobody).unwrap();
        }
        _ => {}
    }
    let pipe = ShmConfig {
        cma: Cma::Off,
        ..ShmConfig::default()
    };
    let mut ep = Ep::open(pipe);
    print_line(ep.name());
    let parent = ep.insert(&await_line().parse().unwrap());
    match role.as_str() {
        "receive" => {
            let mut into = vec![0; HUGE];
            ep.trecv(1, 0, &mut into, 1);
            ep.wait().unwrap();
            print_line("received");
        }
        "send" => {
            let out = vec![1; HUGE];
            ep.tsend(parent, 1, &out, 1).unwrap();
            ep.wait().unwrap();
        }
        "leave letters" => {
            for i in 0..40usize {
                let out = content(1, 0, i, if i % 5 == 4 { 500 } else { 20 });
                ep.tsend(parent, 1, &out, 1).unwrap();
                ep.wait().unwrap();
            }
            print_line("sent");
            await_line();
        }
        "leave" => {
            let out = content(1, 0, 0, 20);
            ep.tsend(parent, 1, &out, 1).unwrap();
            ep.wait().unwrap();
            drop(ep);
            print_line("left");
            await_line();
        }
        "exchange" => {
            exchange(&mut ep, 1, &[Some(parent)], &[100; 2000], 1);
            print_line("done");
            await_line();
        }
        "stranger" => {
            ep.tsend(parent, 1, &[1; 8], 1).unwrap();
            print_line(ep.wait().unwrap_err().errno.0);
            await_line();
        }
        other => panic!("no role {other}"),
    }
}

fn meet(ep: &mut Ep, role: &str) -> (ChildProcess, FiAddr) {
    let mut child = ChildProcess::start(role);
    let addr = ep.insert(&child.read_name());
    child.write_line(&ep.name().to_string());
    (child, addr)
}

fn pipe() -> Ep {
    Ep::open(ShmConfig {
        cma: Cma::Off,
        ..ShmConfig::default()
    })
}

fn progress_until(ep: &mut Ep, mut done: impl FnMut(&mut Ep) -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done(ep) {
        ep.progress();
        assert!(Instant::now() < end, "{:?}", ep.shm.stats());
        std::thread::yield_now();
    }
}

/// Takes the rings of an endpoint's doorbell without driving it. False: there were none.
fn take_rings(ep: &Ep) -> bool {
    let mut any = false;
    let mut ring = [0; 64];
    while recv(
        ep.shm.wait_fd().as_raw_fd(),
        &mut ring,
        MsgFlags::MSG_DONTWAIT,
    )
    .is_ok()
    {
        any = true;
    }
    any
}

#[test]
fn a_killed_receiver_fails_its_own_sends_only() {
    let mut ep = pipe();
    let (mut victim, to_victim) = meet(&mut ep, "receive");
    let (mut other, to_other) = meet(&mut ep, "exchange");
    let out = vec![7u8; HUGE];
    let mut into = [0u8; 8];
    ep.tsend(to_victim, 1, &out, 10).unwrap();
    ep.tsend(to_victim, 2, &out[..100_000], 11).unwrap();
    ep.recv_from(MsgKind::Tagged, to_victim, 3, 0, &mut into, 12);
    progress_until(&mut ep, |ep| ep.shm.stats().links == 2);
    for _ in 0..1000 {
        ep.progress();
    }
    victim.kill();
    let mut contexts: Vec<_> = (0..3)
        .map(|_| {
            let error = ep.wait().unwrap_err();
            assert_eq!(
                (error.errno, error.completion.src),
                (Errno::ECONNRESET, to_victim)
            );
            error.completion.context
        })
        .collect();
    contexts.sort_unstable();
    assert_eq!(contexts, [10, 11, 12]);
    assert_eq!(
        ep.tsend(to_victim, 1, &out, 13),
        Err(ferrofabric_contracts::error::OpError::Failed(
            Errno::ECONNRESET
        ))
    );
    exchange(&mut ep, 0, &[None, Some(to_other)], &[100; 2000], 1);
    assert_eq!(other.read_line(), "done");
}

#[test]
fn a_sender_killed_in_the_middle_fails_its_receive() {
    let mut ep = pipe();
    let (mut victim, from) = meet(&mut ep, "send");
    let mut into = vec![0u8; HUGE];
    let mut never = [0u8; 8];
    ep.trecv(1, 0, &mut into, 10);
    // This receive matches any source, so it goes on waiting.
    ep.trecv(99, 0, &mut never, 11);
    progress_until(&mut ep, |ep| ep.shm.stats().received == 1);
    victim.kill();
    let error = ep.wait().unwrap_err();
    assert_eq!(
        (error.errno, error.completion.context),
        (Errno::ECONNRESET, 10)
    );
    assert_eq!(error.completion.src, from);
    assert_eq!(ep.shm.stats().links_failed, 1);
    for _ in 0..1000 {
        assert!(ep.poll().is_none());
    }
}

#[test]
fn an_incomplete_unexpected_message_is_lost_with_its_sender() {
    let mut ep = pipe();
    let (mut victim, _) = meet(&mut ep, "send");
    progress_until(&mut ep, |ep| ep.shm.stats().unexpected == 1);
    victim.kill();
    progress_until(&mut ep, |ep| ep.shm.stats().links_failed == 1);
    let mut into = [0u8; 8];
    ep.trecv(1, 0, &mut into, 10);
    for _ in 0..1000 {
        assert!(ep.poll().is_none());
    }
}

/// The same for an unknown source; messages of other sources stay.
#[test]
fn an_incomplete_message_of_an_unknown_source_is_lost_with_it() {
    let mut ep = pipe();
    let mut victim = ChildProcess::start("send");
    victim.read_name();
    victim.write_line(&ep.name().to_string());
    progress_until(&mut ep, |ep| ep.shm.stats().unexpected == 1);
    victim.kill();
    progress_until(&mut ep, |ep| ep.shm.stats().links_failed == 1);
    let mut other = pipe();
    let to_ep = other.insert(&ep.name());
    other.tsend(to_ep, 1, &[7; 8], 0).unwrap();
    progress_until(&mut ep, |ep| {
        other.progress();
        ep.shm.stats().unexpected == 2
    });
    let mut into = [0u8; 8];
    ep.trecv(1, 0, &mut into, 10);
    let done = ep.wait().unwrap();
    assert_eq!((done.context, done.len, into), (10, 8, [7; 8]));
    ep.trecv(1, 0, &mut into, 11);
    for _ in 0..1000 {
        assert!(ep.poll().is_none(), "there is no other message");
    }
}

#[test]
fn messages_of_a_dead_sender_are_still_received() {
    let mut ep = pipe();
    let (mut victim, from) = meet(&mut ep, "leave letters");
    // Only the link is made here; the messages stay in the ring until their sender is dead.
    assert_eq!(victim.read_line(), "sent");
    // The transport is armed, and not driven: it sees the link and its end at once.
    ep.shm.arm().unwrap();
    take_rings(&ep);
    victim.kill();
    // The service thread notices, and rings.
    let end = Instant::now() + TIMEOUT;
    while !take_rings(&ep) {
        assert!(Instant::now() < end, "the death goes unnoticed");
        std::thread::yield_now();
    }
    for i in 0..40usize {
        let want = content(1, 0, i, if i % 5 == 4 { 500 } else { 20 });
        let mut into = vec![0u8; want.len()];
        ep.recv_from(MsgKind::Tagged, from, 1, 0, &mut into, i as u64);
        assert_eq!(ep.wait().unwrap().context, i as u64);
        assert_eq!(into, want);
    }
    let mut into = [0u8; 8];
    progress_until(&mut ep, |ep| ep.shm.stats().links_failed == 1);
    ep.recv_from(MsgKind::Tagged, from, 1, 0, &mut into, 99);
    for _ in 0..1000 {
        assert!(
            ep.poll().is_none(),
            "a receive posted after the death just waits"
        );
    }
}

#[test]
fn an_orderly_close_loses_no_message() {
    let mut ep = pipe();
    let (mut child, from) = meet(&mut ep, "leave");
    assert_eq!(child.read_line(), "left");
    let mut into = [0u8; 20];
    ep.recv_from(MsgKind::Tagged, from, 1, 0, &mut into, 1);
    ep.wait().unwrap();
    assert_eq!(into, content(1, 0, 0, 20)[..]);
    let mut more = [0u8; 20];
    ep.recv_from(MsgKind::Tagged, from, 1, 0, &mut more, 2);
    let error = ep.wait().unwrap_err();
    assert_eq!(
        (error.errno, error.completion.context),
        (Errno::ESHUTDOWN, 2)
    );
    assert!(error.why.contains("closed"), "{}", error.why);
    assert_eq!(
        ep.tsend(from, 1, &more, 3),
        Err(ferrofabric_contracts::error::OpError::Failed(
            Errno::ESHUTDOWN
        ))
    );
}

/// A sender closes and may reuse its memory while CMA reads it: later bytes there are not taken for
/// the message. Messages that had come whole are received.
#[test]
fn a_sender_that_closes_while_it_is_read_fails_the_receive() {
    let open = || {
        Ep::open(ShmConfig {
            cma: Cma::On,
            ..ShmConfig::default()
        })
    };
    // One message needs many reads, of which one was done; the other is read in one, after the end.
    for (len, begun) in [(64 << 20, true), (1 << 20, false)] {
        let (mut a, mut b) = (open(), open());
        let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
        let (mut out, mut into) = (vec![1u8; len], vec![0u8; len]);
        let (mut early, mut late) = ([0u8; 8], [0u8; 8]);
        b.trecv(1, 0, &mut early, 1);
        a.tsend(to_b, 1, &out[..8], 1).unwrap();
        progress_until(&mut b, |b| {
            a.progress();
            b.owner.rx.ok == 1
        });
        b.wait().unwrap();
        b.recv_from(MsgKind::Tagged, from_a, 2, 0, &mut into, 10);
        b.recv_from(MsgKind::Tagged, from_a, 3, 0, &mut late, 11);
        a.tsend(to_b, 2, &out, 2).unwrap();
        a.tsend(to_b, 3, &[3; 8], 3).unwrap();
        if begun {
            progress_until(&mut b, |b| b.shm.stats().received == 3);
        }
        drop(a);
        out.fill(9);
        let mut ends: Vec<_> = (0..2)
            .map(|_| match b.wait() {
                Ok(done) => (done.context, Errno(0)),
                Err(error) => (error.completion.context, error.errno),
            })
            .collect();
        ends.sort_unstable_by_key(|end| end.0);
        assert_eq!(ends, [(10, Errno::ESHUTDOWN), (11, Errno(0))]);
        assert_eq!((late, b.shm.stats().received_cma), ([3; 8], 0));
    }
}

/// A peer that was unknown or removed has closed. If its address is inserted later, its complete
/// messages have that source.
#[test]
fn a_peer_inserted_after_its_end_is_the_source_of_its_messages() {
    for known_before in [false, true] {
        let (mut a, mut b) = (pipe(), pipe());
        let (name, to_b) = (a.name(), a.insert(&b.name()));
        let before = known_before.then(|| b.insert(&name));
        let mut into = [0u8; 8];
        for (tag, done) in [(1, 1), (2, 2)] {
            a.tsend(to_b, tag, &[tag as u8; 8], tag).unwrap();
            progress_until(&mut b, |b| {
                a.progress();
                b.shm.stats().unexpected == done
            });
        }
        drop(a);
        progress_until(&mut b, |b| b.shm.stats().links_failed == 1);
        if let Some(addr) = before {
            b.remove(addr);
        }
        assert!(b.shm.has_unknown_sources());
        let from_a = b.insert(&name);
        for tag in [1, 2] {
            b.recv_from(MsgKind::Tagged, from_a, tag, 0, &mut into, tag);
            let done = b.poll().expect("it is here").unwrap();
            assert_eq!((done.context, done.src), (tag, from_a));
            assert_eq!(into, [tag as u8; 8]);
        }
        assert!(!b.shm.has_unknown_sources());
    }
}

#[test]
fn stopped_is_not_dead() {
    let mut ep = pipe();
    let (mut child, to) = meet(&mut ep, "receive");
    let out = vec![7u8; HUGE];
    ep.tsend(to, 1, &out, 10).unwrap();
    progress_until(&mut ep, |ep| ep.shm.stats().links == 1);
    for _ in 0..1000 {
        ep.progress();
    }
    child.signal(libc::SIGSTOP);
    // The sweep checks it several times.
    let end = Instant::now() + 10 * ShmConfig::default().sweep_interval;
    while Instant::now() < end {
        assert!(ep.poll().is_none());
        std::thread::yield_now();
    }
    child.signal(libc::SIGCONT);
    assert_eq!(ep.wait().unwrap().context, 10);
    assert_eq!(child.read_line(), "received");
}

#[test]
fn a_sleeper_is_woken_by_the_death_of_its_peer() {
    let mut ep = pipe();
    let (mut victim, to) = meet(&mut ep, "receive");
    let mut into = [0u8; 8];
    ep.recv_from(MsgKind::Tagged, to, 3, 0, &mut into, 12);
    ep.tsend(to, 77, &[1; 8], 1).unwrap();
    assert_eq!(ep.wait_asleep().unwrap().context, 1);
    victim.kill();
    assert_eq!(ep.wait_asleep().unwrap_err().completion.context, 12);
}

#[test]
fn nothing_is_left_behind() {
    ChildProcess::start("fresh").finish();
}

fn is_bound(id: &str) -> bool {
    std::fs::read_to_string("/proc/net/unix")
        .unwrap()
        .contains(id)
}

fn nothing_is_left() {
    let before = holdings();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let threads_before = threads();
    for _ in 0..3 {
        let mut ep = pipe();
        let own = holdings().0;
        assert!(
            own <= before.0 + 8,
            "{own} descriptors, {} before",
            before.0
        );
        let mut victims: Vec<_> = (0..4).map(|_| meet(&mut ep, "receive")).collect();
        let pipes = holdings().0 - own;
        assert_eq!(pipes, 8, "two for each child's pipes, none for links");
        let out = vec![1u8; 1 << 20];
        for (_, to) in &victims {
            ep.tsend(*to, 5, &out, 1).unwrap();
        }
        progress_until(&mut ep, |ep| ep.shm.stats().links == 4);
        // The service thread may be about to close the last connection.
        progress_until(&mut ep, |_| holdings().0 == own + pipes);
        assert_eq!(holdings().1, 4 * 61_440);
        for (victim, _) in &mut victims[..3] {
            victim.kill();
        }
        progress_until(&mut ep, |ep| ep.shm.stats().links_failed == 3);
        progress_until(&mut ep, |_| holdings().1 == 61_440);
        drop(victims);
        let id = format!("{:016x}", ep.name().shm.unwrap());
        assert!(is_bound(&id));
        drop(ep);
        assert!(!is_bound(&id));
        assert_eq!(holdings(), before);
        assert_eq!(threads(), threads_before);
    }
}

fn door(id: u64) -> UnixAddr {
    UnixAddr::new_abstract(format!("ferrofabric.{id:016x}.link").as_bytes()).unwrap()
}

fn knock(id: u64, kind: SockType) -> nix::Result<OwnedFd> {
    let fd = socket(
        AddressFamily::Unix,
        kind,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    connect(fd.as_raw_fd(), &door(id))?;
    Ok(fd)
}

#[test]
fn garbage_at_the_listener_delays_no_client() {
    ChildProcess::start("garbage").finish();
}

fn garbage_at_the_door() {
    let mut ep = Ep::open(ShmConfig {
        accept_deadline: Duration::from_millis(500),
        ..ShmConfig::default()
    });
    let id = ep.name().shm.unwrap();
    let before = holdings().0;
    let mut rng = fastrand::Rng::with_seed(exchange::drawn_seed());
    let records = fuzzing::records();
    let mut kept = Vec::new();
    // Silent clients, more than the service thread serves at once; wrong lengths; noise; a record
    // of each kind that is valid up to some byte, and then noise; unexpected descriptors, more than
    // there is room for.
    for i in 0..400 {
        let Ok(fd) = knock(id, SockType::SeqPacket) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let mut bytes: Vec<u8> = (0..[0, 1, 120, 120, 121, 4000][i % 6])
            .map(|_| rng.u8(..))
            .collect();
        if i % 6 == 3 {
            let record = &records[i / 6 % records.len()];
            let right = rng.usize(..=record.len());
            bytes[..right].copy_from_slice(&record[..right]);
        }
        if i % 6 != 0 {
            let many = [0; 5];
            let rights = [ControlMessage::ScmRights(&many[..i % 6])];
            let _ = sendmsg::<UnixAddr>(
                fd.as_raw_fd(),
                &[std::io::IoSlice::new(&bytes)],
                &rights,
                MsgFlags::MSG_NOSIGNAL,
                None,
            );
        }
        kept.push(fd);
    }
    assert!(kept.len() > 200);
    assert!(knock(id, SockType::Stream).is_err());
    let (child, to) = meet(&mut ep, "receive");
    ep.tsend(to, 9, &[1; 8], 1).unwrap();
    ep.wait().unwrap();
    let mine = kept.len();
    // Connections of this test stay open; the service thread closes its ends.
    progress_until(&mut ep, |_| holdings().0 == before + mine + 2);
    drop(kept);
    drop(child);
}

#[test]
fn another_user_is_refused() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: not root");
        return;
    }
    let mut ep = pipe();
    let (mut child, to) = meet(&mut ep, "stranger");
    assert_eq!(child.read_line(), Errno::EHOSTUNREACH.0.to_string());
    // The reverse direction is refused, too.
    ep.tsend(to, 1, &[1; 8], 5).unwrap();
    assert_eq!(ep.wait().unwrap_err().errno, Errno::EHOSTUNREACH);
    assert_eq!(ep.shm.stats().links, 0);
}

#[test]
fn a_silent_peer_delays_no_other() {
    let mut ep = pipe();
    let (deaf, to_deaf) = meet(&mut ep, "receive");
    deaf.signal(libc::SIGSTOP);
    let (_child, to) = meet(&mut ep, "receive");
    ep.tsend(to_deaf, 1, &[1; 8], 5).unwrap();
    ep.tsend(to, 9, &[1; 8], 6).unwrap();
    assert_eq!(ep.wait().unwrap().context, 6);
    deaf.signal(libc::SIGCONT);
    assert_eq!(ep.wait().unwrap().context, 5);
}

/// Silence is not death: a peer that is stopped before there is a link may take any time.
#[test]
fn a_peer_that_is_stopped_before_it_is_met_is_waited_for() {
    let deadline = Duration::from_millis(100);
    let mut ep = Ep::open(ShmConfig {
        connect_deadline: deadline,
        ..ShmConfig::default()
    });
    let (deaf, to_deaf) = meet(&mut ep, "receive");
    deaf.signal(libc::SIGSTOP);
    ep.tsend(to_deaf, 9, &[1; 8], 5).unwrap();
    let end = Instant::now() + 10 * deadline;
    while Instant::now() < end {
        let ended = ep.poll();
        assert!(ended.is_none(), "{ended:?}");
        std::thread::yield_now();
    }
    deaf.signal(libc::SIGCONT);
    assert_eq!(ep.wait().unwrap().context, 5);
}
