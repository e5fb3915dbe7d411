//! The shared-memory domain with invalid input and beyond its limits: clear errors, and no loss.

use std::sync::Arc;
use std::time::Instant;

use ferrofabric_conformance::limits::{
    self, OwningPair, PATIENCE, nobody, refused, says, settings,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::info::Info;
use ferrofabric_runtime::discovery::getinfo;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::Buffer;
use ferrofabric_shm::ShmProvider;

fn info() -> Info {
    let found = ShmProvider::new().discover(&settings(&[]));
    found.candidates.into_iter().next().unwrap()
}

fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    ShmProvider::new().open(&info(), &settings(pairs)).unwrap()
}

#[test]
fn an_unknown_domain_is_named() {
    let mut info = info();
    info.domain.name = "nonesuch".to_owned();
    says(
        &refused(ShmProvider::new().open(&info, &settings(&[]))),
        Errno::ENODEV,
        &["nonesuch", "there is: ferro-shm"],
    );
}

#[test]
fn hints_for_an_unknown_domain_find_nothing() {
    let mut hints = Info::default();
    hints.domain.name = "nonesuch".to_owned();
    says(
        &refused(getinfo(
            &[&ShmProvider::new()],
            Some(&hints),
            &settings(&[]),
        )),
        Errno::ENODATA,
        &["ferro-shm: ", "nonesuch"],
    );
}

#[test]
fn switched_off_says_so() {
    let off = settings(&[("FERRO_SHM", "off")]);
    says(
        &refused(getinfo(&[&ShmProvider::new()], None, &off)),
        Errno::ENODATA,
        &["shared memory", "switched off by setting shm"],
    );
}

#[test]
fn impossible_sizes_are_refused() {
    limits::impossible_sizes(&*domain(&[]));
}

#[test]
fn malformed_addresses_are_refused() {
    limits::malformed_addresses(&*domain(&[]));
}

#[test]
fn a_second_thread_is_refused() {
    limits::a_second_thread(&ShmProvider::new(), &info(), &settings(&[]));
}

#[test]
fn threads_may_take_turns() {
    limits::threads_that_take_turns(&ShmProvider::new(), &info(), &settings(&[]));
}

#[test]
fn objects_of_two_domains_do_not_mix() {
    limits::objects_of_two_domains(&*domain(&[]), &*domain(&[]));
}

#[test]
fn sends_to_missing_endpoints_fail_alone() {
    let domain = domain(&[]);
    let mut pair = OwningPair::open(&*domain, &*domain);
    let not_there = nobody(&pair.b.name(), |name| name.shm = Some(0xdead_beef));
    let to_nobody = pair.a.av().insert(&not_there.to_bytes()).unwrap();
    for token in 0..3 {
        let out = Buffer::new(100).unwrap();
        pair.a.tsend(out, 100, to_nobody, 1, token).unwrap();
    }
    let mut failed = Vec::new();
    let until = Instant::now() + PATIENCE;
    while failed.len() < 3 {
        pair.exchange(1000, |done| {
            let error = done.outcome.unwrap_err();
            assert_eq!(
                (error.errno, error.why),
                (Errno::EHOSTUNREACH, "no such endpoint on this node")
            );
            failed.push(done.token);
        });
        assert!(Instant::now() < until, "only {failed:?} failed");
    }
    assert_eq!(failed, [0, 1, 2]);

    // Another node is unreachable, too, and the send fails at once.
    let elsewhere = nobody(&pair.b.name(), |name| name.node ^= 1);
    let to_elsewhere = pair.a.av().insert(&elsewhere.to_bytes()).unwrap();
    let (error, _) = pair
        .a
        .tsend(Buffer::new(8).unwrap(), 8, to_elsewhere, 1, 9)
        .unwrap_err();
    assert_eq!(error, OpError::Failed(Errno::EHOSTUNREACH));
    pair.exchange(1000, |done| panic!("{done:?}"));
}

#[test]
fn a_full_queue_loses_nothing() {
    for cma in ["on", "off"] {
        let few = [("FERRO_SHM_CMA", cma), ("FERRO_WAITING_SENDS", "1024")];
        let domain = domain(&few);
        limits::a_queue_before_the_connection(&mut OwningPair::open(&*domain, &*domain));
        for len in [8, 20_000] {
            // Two domains: reading the sender's queue does not drive the receiver.
            let theirs = self::domain(&few);
            let mut pair = OwningPair::open(&*domain, &*theirs);
            limits::a_queue_to_a_peer_that_does_nothing(&mut pair, len);
            let mut pair = OwningPair::open(&*domain, &*theirs);
            limits::a_queue_to_a_peer_that_does_not_receive(&mut pair, len);
        }
    }
}
