//! Verbs domains with bad input and with more than they can take: clear errors, and nothing lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_conformance::limits::{
    self, OwningPair, PATIENCE, nobody, refused, says, settings,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_hw_tests::{Rig, offers, unprivileged};
use ferrofabric_runtime::discovery::getinfo;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::Buffer;
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Verbs for all peers.
const VERBS: &[(&str, &str)] = &[("FERRO_SHM", "off")];

/// A queue pair number that is never given out: they are random or count from low numbers.
const NOBODYS_QPN: u32 = 0xff_fffe;

fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    offers::domain(&settings(pairs))
}

#[test]
#[file_serial(verbs)]
fn an_unknown_device_is_named_with_those_there_are() {
    let Some(rig) = Rig::open() else { return };
    let there = rig.context.name();
    let settings = settings(&[("FERRO_DEVICE", "nonesuch")]);
    let provider = VerbsProvider::new();
    let found = provider.discover(&settings);
    assert!(found.candidates.is_empty(), "{:?}", found.candidates);
    assert_eq!(found.notices.len(), 1, "{:?}", found.notices);
    says(
        &found.notices[0],
        Errno::ENODEV,
        &["device nonesuch", "there are:", there],
    );
    says(
        &refused(getinfo(&[&provider], None, &settings)),
        Errno::ENODATA,
        &["device nonesuch", there],
    );
}

#[test]
#[file_serial(verbs)]
fn an_unknown_domain_is_named() {
    let Some(rig) = Rig::open() else { return };
    let there = rig.context.name();
    let open = |name: &str| {
        let mut info = offers::first(&settings(VERBS));
        info.domain.name = name.to_owned();
        refused(VerbsProvider::new().open(&info, &settings(VERBS)))
    };
    says(
        &open("nonesuch:1"),
        Errno::ENODEV,
        &["device nonesuch", there],
    );
    for name in [
        "",
        ShmProvider::DOMAIN,
        there,
        "ferro_rxe0:",
        "x:256",
        "x:-1",
    ] {
        let words = [&format!("domain {name}"), "DEVICE:PORT"];
        says(&open(name), Errno::EINVAL, &words);
    }
    let error = open(&format!("{there}:77"));
    says(&error, Errno::EINVAL, &["port 77", there]);
}

#[test]
#[file_serial(verbs)]
fn impossible_sizes_are_refused() {
    if Rig::open().is_some() {
        limits::impossible_sizes(&*domain(VERBS));
        limits::impossible_sizes(&*domain(&[]));
    }
}

#[test]
#[file_serial(verbs)]
fn malformed_addresses_are_refused() {
    if Rig::open().is_some() {
        limits::malformed_addresses(&*domain(VERBS));
        limits::malformed_addresses(&*domain(&[]));
    }
}

#[test]
#[file_serial(verbs)]
fn a_second_thread_is_refused() {
    if Rig::open().is_some() {
        limits::a_second_thread(
            &VerbsProvider::new(),
            &offers::first(&settings(VERBS)),
            &settings(VERBS),
        );
    }
}

#[test]
#[file_serial(verbs)]
fn objects_of_two_domains_do_not_mix() {
    if Rig::open().is_some() {
        limits::objects_of_two_domains(&*domain(VERBS), &*domain(VERBS));
        let shm = settings(&[]);
        let local = ShmProvider::new();
        let offer = local.discover(&shm).candidates.remove(0);
        let local = local.open(&offer, &shm).unwrap();
        limits::objects_of_two_domains(&*domain(VERBS), &*local);
    }
}

#[test]
#[file_serial(verbs)]
fn a_full_queue_loses_nothing() {
    if Rig::open().is_none() {
        return;
    }
    for pairs in [VERBS, &[]] {
        let few = [&[("FERRO_WAITING_SENDS", "1024")], pairs].concat();
        let (ours, theirs) = (domain(&few), domain(&few));
        limits::a_queue_before_the_connection(&mut OwningPair::open(&*ours, &*theirs));
        for len in [8, 20_000] {
            let mut pair = OwningPair::open(&*ours, &*theirs);
            limits::a_queue_to_a_peer_that_does_nothing(&mut pair, len);
            let mut pair = OwningPair::open(&*ours, &*theirs);
            limits::a_queue_to_a_peer_that_does_not_receive(&mut pair, len);
        }
    }
}

/// Sends three messages to nobody, and says when.
fn send_to_missing_peer(pair: &mut OwningPair, pairs: &[(&str, &str)]) -> Instant {
    let not_there = nobody(&pair.b.name(), |name| {
        if pairs.is_empty() {
            // Looked for in shared memory first.
            name.shm = Some(0xdead_beef);
        }
        name.verbs.as_mut().unwrap().qpn = NOBODYS_QPN;
    });
    let to_nobody = pair.a.av().insert(&not_there.to_bytes()).unwrap();
    let sent = Instant::now();
    for token in 0..3 {
        let out = Buffer::new(100).unwrap();
        pair.a.tsend(out, 100, to_nobody, 1, token).unwrap();
    }
    sent
}

#[test]
#[file_serial(verbs)]
fn sends_to_missing_peers_wait_and_hinder_no_other() {
    if Rig::open().is_none() {
        return;
    }
    for pairs in [VERBS, &[]] {
        let domain = domain(pairs);
        let mut pair = OwningPair::open(&*domain, &*domain);
        let sent = send_to_missing_peer(&mut pair, pairs);
        while sent.elapsed() < Duration::from_secs(3) {
            pair.exchange(1000, |done| panic!("silence is not death: {done:?}"));
        }
        assert_eq!(pair.a.in_flight(), 3);
    }
}

#[test]
#[file_serial(verbs)]
fn sends_to_missing_peers_fail_after_the_time_that_was_set() {
    if Rig::open().is_none() {
        return;
    }
    let limit = ("FERRO_PEER_TIMEOUT", "2s");
    for pairs in [&[limit, VERBS[0]][..], &[limit]] {
        let domain = domain(pairs);
        let mut pair = OwningPair::open(&*domain, &*domain);
        let sent = send_to_missing_peer(&mut pair, &pairs[1..]);
        let mut failed = Vec::new();
        while failed.len() < 3 {
            pair.exchange(1000, |done| {
                let error = done.outcome.unwrap_err();
                assert_eq!(error.errno, Errno::ETIMEDOUT, "{}", error.why);
                assert!(error.why.contains("peer_timeout"), "{}", error.why);
                failed.push(done.token);
            });
            assert!(sent.elapsed() < PATIENCE, "only {failed:?} failed");
        }
        assert_eq!(failed, [0, 1, 2]);
        assert!(sent.elapsed() >= Duration::from_millis(1900), "too early");
        pair.exchange(100_000, |done| panic!("{done:?}"));
    }
}

#[test]
#[file_serial(verbs)]
fn a_peer_without_a_path_is_refused_at_once() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(VERBS);
    let mut pair = OwningPair::open(&*domain, &*domain);
    let elsewhere = nobody(&pair.b.name(), |name| {
        name.node ^= 1;
        name.shm = Some(7);
        name.verbs = None;
    });
    let addr = pair.a.av().insert(&elsewhere.to_bytes()).unwrap();
    let out = Buffer::new(8).unwrap();
    let (error, _) = pair.a.tsend(out, 8, addr, 1, 1).unwrap_err();
    assert_eq!(error, OpError::Failed(Errno::EHOSTUNREACH));

    // Addresses of the right form that lead nowhere.
    for (token, gid) in [[0; 16], [0x20; 16]].into_iter().enumerate() {
        let nowhere = nobody(&pair.b.name(), |name| {
            name.verbs.as_mut().unwrap().gid = gid;
        });
        let addr = pair.a.av().insert(&nowhere.to_bytes()).unwrap();
        let out = Buffer::new(8).unwrap();
        pair.a.tsend(out, 8, addr, 1, token as u64).unwrap();
        let mut failed = false;
        let until = Instant::now() + PATIENCE;
        while !failed {
            pair.exchange(1000, |done| {
                assert_eq!(done.token, token as u64);
                let error = done.outcome.unwrap_err();
                assert_eq!(error.errno, Errno::EHOSTUNREACH, "{}", error.why);
                assert!(error.why.contains("no path"), "{}", error.why);
                failed = true;
            });
            assert!(Instant::now() < until, "the send to {gid:02x?} waits");
        }
    }
}

#[test]
#[file_serial(verbs)]
fn a_limit_of_locked_memory_that_is_too_low_is_named() {
    if Rig::open().is_none() {
        return;
    }
    unprivileged::run("the_child_opens");
}

#[test]
#[ignore = "run by a_limit_of_locked_memory_that_is_too_low_is_named"]
fn the_child_opens() {
    if !unprivileged::become_one() {
        return;
    }
    for pairs in [VERBS, &[]] {
        let found = VerbsProvider::new().discover(&settings(pairs));
        assert!(found.candidates.is_empty(), "{:?}", found.candidates);
        let notice = found.notices[0].to_string();
        println!("{notice}");
        for part in ["RLIMIT_MEMLOCK", "65536 bytes", "ulimit -l"] {
            assert!(notice.contains(part), "{part} is not in: {notice}");
        }
    }
    let shm = settings(&[]);
    let provider = ShmProvider::new();
    let offer = provider.discover(&shm).candidates.remove(0);
    let local = provider.open(&offer, &shm).unwrap();
    let mut pair = OwningPair::open(&*local, &*local);
    for len in [0, 100, 1 << 20] {
        pair.exchange(len, |done| panic!("{done:?}"));
    }
}
