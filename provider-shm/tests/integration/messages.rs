//! Messages between endpoints, in one process and in several.

use crate::{exchange, owner, party};
use std::time::Duration;

use exchange::{SIZES, content, drawn_seed, exchange};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf};
use ferrofabric_shm::{Cma, ShmConfig, Unreachable};
use owner::{Ep, tagged};
use party::{ChildProcess, await_line, holdings, print_line, role};

/// The roles of the child processes.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ');
    let what = words.next().unwrap();
    let config = match words.next() {
        Some("cma") => ShmConfig {
            cma: Cma::On,
            ..ShmConfig::default()
        },
        Some("tiny") => tiny(),
        _ => ShmConfig::default(),
    };
    let mut ep = Ep::open(config);
    print_line(ep.name());
    match what {
        "exchange" => {
            let me: usize = await_line().parse().unwrap();
            let seed: u64 = await_line().parse().unwrap();
            let sizes = sizes(&await_line());
            let names = await_line();
            let peers = insert_all(&mut ep, &names, me);
            exchange(&mut ep, me, &peers, &sizes, seed);
            assert_eq!(
                holdings().1,
                61_440 * (peers.len() - 1),
                "mapped for {} pairs",
                peers.len() - 1
            );
            print_line(format!("{:?}", ep.shm.stats()));
            // Other processes may still wait for messages of this one.
            await_line();
        }
        "sleep" => {
            let peer = ep.insert(&await_line().parse().unwrap());
            let rounds: usize = await_line().parse().unwrap();
            asleep(&mut ep, peer, rounds, false);
        }
        "both" => connect_both_ways(),
        other => panic!("no role {other}"),
    }
}

fn tiny() -> ShmConfig {
    ShmConfig {
        eager_bytes: 3000,
        chunk_bytes: 700,
        queue_sends: 2,
        unexpected_bytes: 5000,
        cma: Cma::Off,
        ..ShmConfig::default()
    }
}

fn sizes(which: &str) -> Vec<usize> {
    match which {
        "huge" => vec![64 << 20, 8, 1 << 20, 64 << 20, 0, 5_000_001],
        "some" => SIZES.iter().copied().filter(|s| *s < 100_000).collect(),
        _ => SIZES.repeat(2),
    }
}

fn insert_all(ep: &mut Ep, names: &str, me: usize) -> Vec<Option<FiAddr>> {
    names
        .split(' ')
        .enumerate()
        .map(|(i, name)| (i != me).then(|| ep.insert(&name.parse().unwrap())))
        .collect()
}

/// An exchange of this process with `n` others; returns their counters, and those of this process.
fn all_to_all(n: usize, config: ShmConfig, kind: &str, which: &str, seed: u64) -> Vec<String> {
    let mut parties: Vec<_> = (0..n)
        .map(|_| ChildProcess::start(&format!("exchange {kind}")))
        .collect();
    all_to_all_with(&mut parties, config, which, seed)
}

fn all_to_all_with(
    parties: &mut [ChildProcess],
    config: ShmConfig,
    which: &str,
    seed: u64,
) -> Vec<String> {
    let mut ep = Ep::open(config);
    let mut names = vec![ep.name().to_string()];
    names.extend(parties.iter_mut().map(|p| p.read_name().to_string()));
    let names = names.join(" ");
    for (i, p) in parties.iter_mut().enumerate() {
        p.write_line(&format!("{}\n{seed}\n{which}\n{names}", i + 1));
    }
    let peers = insert_all(&mut ep, &names, 0);
    exchange(&mut ep, 0, &peers, &sizes(which), seed);
    let mut said: Vec<String> = parties.iter_mut().map(ChildProcess::read_line).collect();
    said.push(format!("{:?}", ep.shm.stats()));
    for p in parties {
        p.write_line("");
    }
    said
}

#[test]
fn two_processes_exchange_all_sizes_both_ways() {
    for _ in 0..3 {
        all_to_all(1, ShmConfig::default(), "", "all", drawn_seed());
    }
}

#[test]
fn rings_that_are_nearly_always_full_lose_nothing() {
    for _ in 0..3 {
        all_to_all(1, tiny(), "tiny", "all", drawn_seed());
    }
}

#[test]
fn eight_processes_exchange_with_each_other() {
    all_to_all(8, ShmConfig::default(), "", "some", drawn_seed());
}

#[test]
fn huge_messages_and_small_ones_between_them() {
    all_to_all(
        1,
        ShmConfig {
            cma: Cma::Off,
            ..ShmConfig::default()
        },
        "",
        "huge",
        drawn_seed(),
    );
}

#[test]
fn large_messages_by_cma() {
    let said = all_to_all(
        1,
        ShmConfig {
            cma: Cma::On,
            ..ShmConfig::default()
        },
        "cma",
        "all",
        drawn_seed(),
    );
    assert!(!said[0].contains("received_cma: 0,"), "{}", said[0]);
}

#[test]
fn cma_that_works_one_way_only_is_no_obstacle() {
    // In its own PID namespace the child has no ID for this process, but this process has one for
    // the child. Needs privilege.
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: not root");
        return;
    }
    let child = ChildProcess::start_under(
        "unshare",
        &["--pid", "--fork", "--kill-child"],
        "exchange cma",
    );
    let mut parties = [child];
    let config = ShmConfig {
        cma: Cma::On,
        ..ShmConfig::default()
    };
    let said = all_to_all_with(&mut parties, config, "all", drawn_seed());
    assert!(said[0].contains("received_cma: 0,"), "{}", said[0]);
    assert!(!said[1].contains("received_cma: 0,"), "{}", said[1]);
}

#[test]
fn an_endpoint_sends_to_itself() {
    for config in [ShmConfig::default(), tiny()] {
        let mut ep = Ep::open(config);
        let own = ep.name();
        let me = ep.insert(&own);
        exchange(&mut ep, 0, &[Some(me)], &SIZES, drawn_seed());
    }
}

/// Two endpoints in this process, driven in turns.
fn pair(a: ShmConfig, b: ShmConfig) -> (Ep, Ep, FiAddr, FiAddr) {
    let (mut a, mut b) = (Ep::open(a), Ep::open(b));
    let to_b = a.insert(&b.name());
    let to_a = b.insert(&a.name());
    (a, b, to_b, to_a)
}

/// Drives both until `done`.
fn drive(a: &mut Ep, b: &mut Ep, mut done: impl FnMut(&mut Ep, &mut Ep) -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while !done(a, b) {
        a.progress();
        b.progress();
        assert!(
            std::time::Instant::now() < end,
            "{:?} {:?}",
            a.shm.stats(),
            b.shm.stats()
        );
        std::thread::yield_now();
    }
}

/// A message that waits for room in the ring keeps its path; each try to send it does not count as
/// another message.
#[test]
fn a_message_that_waits_for_room_keeps_to_the_ring() {
    const LEN: usize = 8192;
    let (mut a, mut b, to_b, _) = pair(ShmConfig::default(), ShmConfig::default());
    let (bytes, mut into) = (vec![7; LEN], vec![0; 8]);
    b.trecv(1, 0, &mut into, 1);
    a.tsend(to_b, 1, &bytes[..8], 1).unwrap();
    drive(&mut a, &mut b, |_, b| b.poll().is_some());
    // The first four use the ring, which has room for three.
    for context in 2..6 {
        a.tsend(to_b, 1, &bytes, context).unwrap();
    }
    for _ in 0..1000 {
        a.progress();
    }
    let stats = a.shm.stats();
    assert_eq!((stats.sent_eager, stats.sent_cma), (3, 0), "{stats:?}");
}

#[test]
fn both_connect_at_once_and_share_one_segment() {
    // In a process of its own, since it counts mappings.
    ChildProcess::start("both").finish();
}

fn connect_both_ways() {
    let before = holdings().1;
    for round in 0..50 {
        let (mut a, mut b, to_b, to_a) = pair(ShmConfig::default(), ShmConfig::default());
        let (x, y) = ([1u8; 100], [2u8; 100]);
        let (mut at_a, mut at_b) = (vec![[0u8; 100]; 20], vec![[0u8; 100]; 20]);
        for i in 0..20 {
            a.trecv(i, 0, &mut at_a[i as usize], 1);
            b.trecv(i, 0, &mut at_b[i as usize], 1);
            a.tsend(to_b, i, &x, 2).unwrap();
            b.tsend(to_a, i, &y, 2).unwrap();
        }
        drive(&mut a, &mut b, |a, b| {
            a.owner.rx.ok == 20 && b.owner.rx.ok == 20
        });
        assert!(at_a.iter().all(|m| *m == y) && at_b.iter().all(|m| *m == x));
        assert_eq!(
            (a.shm.stats().links, b.shm.stats().links),
            (1, 1),
            "round {round}"
        );
        // Mapped twice, since both sides are in this process.
        assert_eq!(holdings().1 - before, 2 * 61_440, "round {round}");
    }
}

#[test]
fn a_message_longer_than_its_receive_is_truncated() {
    let (mut a, mut b, to_b, _) = pair(ShmConfig::default(), ShmConfig::default());
    for (len, room) in [
        (48, 3),
        (100, 99),
        (5_000, 0),
        (16_384, 10_000),
        (1 << 20, 70_000),
        (1 << 20, 10),
    ] {
        for early in [true, false] {
            let out = content(0, 1, len, len);
            let mut into = vec![0xaa; room + 8];
            let (sent, failed, met) = (a.owner.tx.ok, b.owner.rx.err, b.shm.stats().unexpected);
            if early {
                b.trecv(5, 0, &mut into[..room], 1);
            }
            a.tsend(to_b, 5, &out, 2).unwrap();
            if !early {
                drive(&mut a, &mut b, |_, b| b.shm.stats().unexpected > met);
                b.trecv(5, 0, &mut into[..room], 1);
            }
            drive(&mut a, &mut b, |a, b| {
                a.owner.tx.ok > sent && b.owner.rx.err > failed
            });
            let error = b.poll().unwrap().unwrap_err();
            assert_eq!(
                (error.errno, error.olen),
                (Errno::ETRUNC, len - room),
                "{len} into {room}"
            );
            assert_eq!(into[..room], out[..room]);
            assert!(into[room..].iter().all(|b| *b == 0xaa));
            assert!(a.poll().unwrap().is_ok());
        }
    }
}

#[test]
fn unexpected_messages_can_be_discarded_and_their_senders_are_done() {
    let (mut a, mut b, to_b, _) = pair(ShmConfig::default(), ShmConfig::default());
    let out = vec![1u8; 1 << 20];
    for len in [10, 3_000, 10_000, 1 << 20] {
        let (ok, unexpected) = (a.owner.tx.ok, b.shm.stats().unexpected);
        a.tsend(to_b, 5, &out[..len], 2).unwrap();
        drive(&mut a, &mut b, |_, b| b.shm.stats().unexpected > unexpected);
        assert!(b.discard(5));
        drive(&mut a, &mut b, |a, _| a.owner.tx.ok > ok);
    }
    // Later messages are not affected, and nothing was reported.
    let mut into = vec![0u8; 100_000];
    b.trecv(6, 0, &mut into, 1);
    a.tsend(to_b, 6, &out[..100_000], 2).unwrap();
    drive(&mut a, &mut b, |_, b| b.owner.rx.ok == 1);
    assert_eq!(into, out[..100_000]);
}

/// A message of up to 64 KiB arrives before its receive, and its send completes; a longer one waits
/// for its receive.
#[test]
fn messages_up_to_64_kib_arrive_whole() {
    let config = || ShmConfig {
        cma: Cma::Off,
        ..ShmConfig::default()
    };
    let (mut a, mut b, to_b, _) = pair(config(), config());
    let out = content(0, 1, 0, (64 << 10) + 1);
    let (short, long) = (&out[..64 << 10], &out[..]);
    for message in [short, long, short] {
        a.tsend(to_b, 5, message, 2).unwrap();
    }
    // The third send completes although the second one still waits.
    drive(&mut a, &mut b, |a, b| {
        b.shm.stats().unexpected == 3 && a.owner.tx.ok == 2
    });
    for _ in 0..1000 {
        a.progress();
        b.progress();
    }
    assert_eq!(a.owner.tx.ok, 2, "the long message has no receive yet");
    let mut into = vec![vec![0u8; out.len()]; 3];
    for room in &mut into {
        b.trecv(5, 0, room, 1);
    }
    drive(&mut a, &mut b, |a, b| {
        a.owner.tx.ok == 3 && b.owner.rx.ok == 3
    });
    for (room, message) in into.iter().zip([short, long, short]) {
        assert_eq!(&room[..message.len()], message);
    }
}

#[test]
fn unexpected_memory_is_bounded_and_small_messages_still_pass() {
    let limit = 100_000;
    let (mut a, mut b, to_b, _) = pair(
        ShmConfig {
            queue_sends: 100_000,
            ..ShmConfig::default()
        },
        ShmConfig {
            unexpected_bytes: limit,
            ..ShmConfig::default()
        },
    );
    let out = content(0, 1, 0, 4000);
    let n = 1000;
    for _ in 0..n {
        a.tsend(to_b, 1, &out, 2).unwrap();
    }
    let mut small = [0u8; 8];
    b.trecv(2, 0, &mut small, 9);
    a.tsend(to_b, 2, &[7; 8], 2).unwrap();
    drive(&mut a, &mut b, |_, b| b.owner.rx.ok == 1);
    assert_eq!(small, [7; 8]);
    // Sends that the receiver did not take whole are incomplete: the receiver holds messages up to
    // its limit and those that were in the ring.
    let taken = a.owner.tx.ok - 1;
    assert!(
        taken * 4000 <= limit as u64 + 26_368 + 4000,
        "{taken} of {n} taken"
    );
    let mut into = vec![vec![0u8; 4000]; n];
    for m in &mut into {
        b.trecv(1, 0, m, 1);
    }
    drive(&mut a, &mut b, |a, b| {
        b.owner.rx.ok == n as u64 + 1 && a.owner.tx.ok == n as u64 + 1
    });
    assert!(into.iter().all(|m| *m == out));
}

#[test]
fn small_messages_pass_a_large_one_without_a_receive() {
    let (mut a, mut b, to_b, to_a) = pair(ShmConfig::default(), ShmConfig::default());
    let large = content(0, 1, 0, 10 << 20);
    for tag in 0..5 {
        a.tsend(to_b, tag, &large, tag).unwrap();
    }
    for i in 0..1000u64 {
        let (mut there, mut back) = ([0u8; 8], [0u8; 8]);
        b.trecv(100, 0, &mut there, 1);
        a.trecv(100, 0, &mut back, 1);
        a.tsend(to_b, 100, &i.to_le_bytes(), 1).unwrap();
        drive(&mut a, &mut b, |_, b| b.owner.rx.ok == i + 1);
        b.tsend(to_a, 100, &there, 1).unwrap();
        drive(&mut a, &mut b, |a, _| a.owner.rx.ok == i + 1);
        assert_eq!(back, i.to_le_bytes());
    }
    for tag in (0..5).rev() {
        let mut into = vec![0; large.len()];
        b.trecv(tag, 0, &mut into, 1);
        drive(&mut a, &mut b, |_, b| b.owner.rx.ok == 1000 + 5 - tag);
        assert!(into == large);
    }
}

#[test]
fn sends_are_refused_when_too_many_wait() {
    let config = ShmConfig {
        queue_sends: 10,
        ..ShmConfig::default()
    };
    let (mut a, mut b, to_b, _) = pair(config, ShmConfig::default());
    let out = [3u8; 8];
    let mut taken = 0;
    // B is not driven, so A fills the ring, then its queue.
    let refused = loop {
        match a.tsend(to_b, taken, &out, 1) {
            Ok(()) => taken += 1,
            Err(e) if a.shm.stats().links == 0 => {
                assert_eq!(e, OpError::Again);
                a.progress();
            }
            Err(e) => break e,
        }
        assert!(taken < 10_000);
    };
    assert_eq!(refused, OpError::Again);
    let mut into = vec![[0u8; 8]; taken as usize];
    for (tag, m) in into.iter_mut().enumerate() {
        b.trecv(tag as u64, 0, m, 1);
    }
    drive(&mut a, &mut b, |_, b| b.owner.rx.ok == taken);
    assert!(into.iter().all(|m| *m == out));
}

#[test]
fn a_peer_that_is_not_there_is_reported_or_handed_back() {
    let gone = Ep::open(ShmConfig::default()).name();
    let mut ep = Ep::open(ShmConfig::default());
    let addr = ep.insert(&gone);
    let out = [1u8; 10];
    ep.tsend(addr, 1, &out, 77).unwrap();
    let error = ep.wait().unwrap_err();
    assert_eq!(
        (error.errno, error.completion.context, error.completion.src),
        (Errno::EHOSTUNREACH, 77, addr)
    );
    assert_eq!(
        ep.tsend(addr, 1, &out, 78),
        Err(OpError::Failed(Errno::EHOSTUNREACH))
    );

    let mut ep = Ep::open(ShmConfig {
        unreachable: Unreachable::HandBack,
        ..ShmConfig::default()
    });
    let addr = ep.insert(&gone);
    let mut inject = tagged(addr, 2, 2);
    inject.flags |= Flags::INJECT;
    let mut copied = [5u8; 3000];
    // SAFETY: the bytes stay until the end of the test.
    unsafe { ep.tsend_from(addr, 1, &out, 1) }.unwrap();
    // SAFETY: `copied` is free at return.
    unsafe { ep.send_op(&inject, &[IoBuf::new(copied.as_ptr(), 3000)]) }.unwrap();
    copied.fill(0);
    let (to, sends) = loop {
        ep.progress();
        if let Some(found) = ep.shm.take_unreachable() {
            break found;
        }
    };
    assert_eq!((to, sends.len()), (addr, 2));
    assert_eq!((sends[0].op.context, sends[1].op.context), (1, 2));
    assert_eq!(sends[0].iov(), [IoBuf::new(out.as_ptr(), 10)]);
    // SAFETY: the copy lives in `sends[1]`.
    let kept =
        unsafe { std::slice::from_raw_parts(sends[1].iov()[0].as_ptr(), sends[1].iov()[0].len) };
    assert_eq!(kept, [5u8; 3000]);
    assert_eq!(ep.owner.tx.err, 0);

    // The address of another node is unreachable without a try.
    let mut other = Ep::open(ShmConfig::default()).name();
    other.node ^= 1;
    let addr = ep.insert(&other);
    assert_eq!(
        ep.tsend(addr, 1, &out, 3),
        Err(OpError::Failed(Errno::EHOSTUNREACH))
    );
    assert_eq!(
        ep.tsend(FiAddr(12345), 1, &out, 3),
        Err(OpError::Failed(Errno::EADDRNOTAVAIL))
    );
}

#[test]
fn an_inserted_address_gives_messages_their_source() {
    let (mut a, mut b) = (
        Ep::open(ShmConfig::default()),
        Ep::open(ShmConfig::default()),
    );
    let to_b = a.insert(&b.name());
    let out = content(0, 1, 9, 50_000);
    let mut into = vec![0u8; 50_000];
    a.tsend(to_b, 4, &out, 1).unwrap();
    drive(&mut a, &mut b, |_, b| b.shm.stats().unexpected == 1);
    let from_a = b.insert(&a.name());
    b.recv_from(
        ferrofabric_contracts::types::MsgKind::Tagged,
        from_a,
        4,
        0,
        &mut into,
        1,
    );
    drive(&mut a, &mut b, |_, b| b.owner.rx.ok == 1);
    assert_eq!(b.poll().unwrap().unwrap().src, from_a);
    assert!(into == out);
    // After its removal it is unknown again, and its messages still come.
    b.remove(from_a);
    b.trecv(4, 0, &mut into, 1);
    a.tsend(to_b, 4, &out, 1).unwrap();
    drive(&mut a, &mut b, |_, b| b.owner.rx.ok == 2);
    assert_eq!(b.poll().unwrap().unwrap().src, FiAddr::NOTAVAIL);
    assert_eq!(
        b.tsend(from_a, 1, &[], 1),
        Err(OpError::Failed(Errno::EADDRNOTAVAIL))
    );
}

/// Links that were idle for long are polled in turns; once few links remain, each call polls all of
/// them.
#[test]
fn links_that_were_idle_are_served_when_others_end() {
    let mut hub = Ep::open(ShmConfig::default());
    let mut leaves: Vec<_> = (0..5).map(|_| Ep::open(ShmConfig::default())).collect();
    let mut into = [0u8; 8];
    let mut message = |hub: &mut Ep, leaf: &mut Ep, tag| {
        let to_hub = leaf.insert(&hub.name());
        let out = content(0, 1, tag as usize, 8);
        let before = hub.owner.rx.ok;
        hub.trecv(tag, 0, &mut into, 1);
        leaf.tsend(to_hub, tag, &out, 2).unwrap();
        drive(hub, leaf, |hub, _| hub.owner.rx.ok > before);
        assert_eq!(into[..], out);
    };
    for (tag, leaf) in leaves.iter_mut().enumerate() {
        message(&mut hub, leaf, tag as u64);
    }
    for _ in 0..12_000 {
        hub.progress();
    }
    drop(leaves.pop());
    let [first, second, ..] = &mut leaves[..] else {
        unreachable!()
    };
    drive(first, second, |_, _| {
        hub.progress();
        hub.shm.stats().links_failed == 1
    });
    for (tag, leaf) in leaves.iter_mut().enumerate() {
        message(&mut hub, leaf, 10 + tag as u64);
    }
}

/// Ping-pong that sleeps while it waits.
fn asleep(ep: &mut Ep, peer: FiAddr, rounds: usize, first: bool) {
    let mut into = [0u8; 8];
    for round in 0..rounds as u64 {
        ep.trecv(1, 0, &mut into, 1);
        if first {
            ep.tsend(peer, 1, &round.to_le_bytes(), 2).unwrap();
        }
        let wanted = if first { 2 } else { 1 };
        for _ in 0..wanted {
            ep.wait_asleep().unwrap();
        }
        assert_eq!(into, round.to_le_bytes());
        if !first {
            ep.tsend(peer, 1, &round.to_le_bytes(), 2).unwrap();
            ep.wait_asleep().unwrap();
        }
    }
}

#[test]
fn sleepers_are_woken_each_of_100_000_times() {
    let rounds = 50_000;
    let mut child = ChildProcess::start("sleep");
    let mut ep = Ep::open(ShmConfig::default());
    let peer = ep.insert(&child.read_name());
    child.write_line(&format!("{}\n{rounds}", ep.name()));
    asleep(&mut ep, peer, rounds, true);
    assert!(
        ep.shm.stats().doorbells > 1000,
        "hardly ever asleep: {:?}",
        ep.shm.stats()
    );
    child.finish();
}

#[test]
fn a_sender_that_sleeps_for_room_is_woken() {
    let (mut a, mut b, to_b, _) = pair(
        ShmConfig {
            cma: Cma::Off,
            queue_sends: 4096,
            ..ShmConfig::default()
        },
        ShmConfig::default(),
    );
    let out = content(0, 1, 1, 3000);
    let reader = std::thread::spawn(move || {
        let mut into = vec![vec![0u8; 3000]; 2000];
        for m in &mut into {
            b.trecv(1, 0, m, 1);
        }
        for _ in 0..2000 {
            b.wait_asleep().unwrap();
        }
        into.iter().all(|m| *m == content(0, 1, 1, 3000))
    });
    for i in 0..2000 {
        a.tsend(to_b, 1, &out, i).unwrap();
    }
    for _ in 0..2000 {
        a.wait_asleep().unwrap();
    }
    assert!(reader.join().unwrap());
}
