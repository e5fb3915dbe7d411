//! DGRAM endpoints over a network that loses, repeats and reorders packets: run with `scripts/vm
//! --netem`, which has two devices whose packets really cross.

use std::time::{Duration, Instant};

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::{dgram, dgram_conformance};
use ferrofabric_contracts::addr::{NativeAddr, VerbsAddr};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::dgram::{PrefixRoom, count, domain, endpoint, next};
use ferrofabric_hw_tests::{Rig, party};
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};
use serial_test::file_serial;

const HERE: &[(&str, &str)] = &[("FERRO_DEVICE", "ferro_rxe0")];
const THERE: &[(&str, &str)] = &[("FERRO_DEVICE", "ferro_rxe1")];

/// Datagrams in all: at a loss of 1% it would be strange if none were lost, or as many as a tenth.
const COUNT: u64 = 3000;

/// Datagrams that may be under way.
const WINDOW: usize = 64;

/// Nothing is under way any more after such a silence: the network delays by less than a
/// millisecond.
const SILENCE: Duration = Duration::from_millis(50);

fn post(end: &mut OwningEndpoint, into: Buffer) {
    end.recv(into, FiAddr::UNSPEC, u64::MAX).unwrap();
}

#[test]
#[file_serial(verbs)]
fn loss_loses_datagrams_and_nothing_else() {
    if Rig::open().is_none() {
        return;
    }
    let (here, there) = (
        domain(HERE, PrefixRoom::None),
        domain(THERE, PrefixRoom::None),
    );
    let (mut a, mut b) = (endpoint(&*here), endpoint(&*there));
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let from_a = b.av().insert(&a.name().to_bytes()).unwrap();
    let mtu = here.info().ep.max_msg_size;
    for at in 0..2 * WINDOW {
        let mut into = Buffer::new(mtu).unwrap();
        if at % 2 == 0 {
            into.register(&*there).unwrap();
        }
        post(&mut b, into);
    }
    let mut free: Vec<Buffer> = (0..WINDOW).map(|_| Buffer::new(mtu).unwrap()).collect();
    let len = |seed: u64| 8 + (seed as usize * 37) % (mtu - 7);
    let mut arrived = vec![false; COUNT as usize];
    let mut repeated = 0;
    let seeds: Vec<u64> = (0..COUNT).collect();
    for window in seeds.chunks(WINDOW) {
        for &seed in window {
            let mut out = free.pop().expect("the sends of the last window are over");
            out[..8].copy_from_slice(&seed.to_le_bytes());
            party::fill(&mut out[8..len(seed)], seed);
            a.send(out, len(seed), to_b, Some(seed), seed).unwrap();
        }
        // No more datagrams are under way than there are receives: the network has lost those that
        // do not come.
        let mut missing = window.len();
        let mut last = Instant::now();
        while free.len() < WINDOW || (missing > 0 && last.elapsed() < SILENCE) {
            // A lost datagram completes as one that arrives.
            if let Some(done) = a.poll().unwrap() {
                done.outcome.unwrap();
                free.push(done.buffer);
                last = Instant::now();
            }
            while let Some(done) = b.poll().unwrap() {
                let completion = done.outcome.unwrap();
                assert_eq!(completion.src, from_a);
                let seed = completion.data;
                let message = &done.buffer[..completion.len];
                assert_eq!(message[..8], seed.to_le_bytes());
                assert_eq!(message.len(), len(seed));
                party::check(&message[8..], seed, "what arrived");
                // The network may repeat a datagram; we may not.
                match std::mem::replace(&mut arrived[seed as usize], true) {
                    false => missing = missing.saturating_sub(1),
                    true => repeated += 1,
                }
                post(&mut b, done.buffer);
                last = Instant::now();
            }
        }
    }
    let lost = arrived.iter().filter(|arrived| !**arrived).count();
    println!("{lost} of {COUNT} datagrams were lost, {repeated} came again");
    assert!(repeated < COUNT / 20, "{repeated} came again");
    assert!(lost > 0, "the network loses nothing: this shows nothing");
    assert!(lost < COUNT as usize / 2, "{lost} lost");
    assert_eq!(count(&a, "dgram_messages_sent"), COUNT);
    let received = count(&b, "dgram_messages_received");
    assert_eq!(received, COUNT - lost as u64 + repeated);
    // The receives that are left go on taking what comes.
    for _ in 0..100 {
        a.inject(b"still there?", to_b, Some(7)).unwrap();
        if let Some(done) = b.wait(Some(SILENCE)).unwrap() {
            assert_eq!(done.outcome.unwrap().len, 12);
            return;
        }
    }
    panic!("nothing arrives any more");
}

/// A neighbour that does not answer takes seconds to give up: nobody else waits for that.
#[test]
#[file_serial(verbs)]
fn a_silent_neighbour_delays_no_other_peer() {
    if Rig::open().is_none() {
        return;
    }
    let (here, there) = (
        domain(HERE, PrefixRoom::None),
        domain(THERE, PrefixRoom::None),
    );
    let (mut a, mut b) = (endpoint(&*here), endpoint(&*there));
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let name = b.name();
    let nobody = NativeAddr {
        verbs: name.verbs.map(|v| VerbsAddr {
            gid: std::net::Ipv4Addr::new(10, 1, 0, 99)
                .to_ipv6_mapped()
                .octets(),
            ..v
        }),
        ..name
    };
    let nobody = a.av().insert(&nobody.to_bytes()).unwrap();
    let began = Instant::now();
    for token in 0..20 {
        a.send(Buffer::new(100).unwrap(), 100, nobody, None, token)
            .unwrap();
    }
    let (mut answers, mut failed) = (0, 0);
    let is_next = |done: OwnedCompletion, failed: u64| {
        let error = done.outcome.unwrap_err();
        assert_eq!((done.token, error.errno), (failed, Errno::EHOSTUNREACH));
    };
    post(&mut b, Buffer::new(100).unwrap());
    for _ in 0..100 {
        a.inject(b"hello", to_b, None).unwrap();
        if let Some(done) = a.poll().unwrap() {
            assert!(answers > 0, "others wait for the silent neighbour");
            is_next(done, failed);
            failed += 1;
            break;
        }
        if let Some(done) = b.wait(Some(Duration::from_millis(20))).unwrap() {
            done.outcome.unwrap();
            post(&mut b, Buffer::new(100).unwrap());
            answers += 1;
        }
        if answers == 10 {
            break;
        }
    }
    assert!(answers > 0, "others wait for the silent neighbour");
    let others = began.elapsed();
    for token in failed..20 {
        is_next(next(&mut a, "the failure"), token);
    }
    println!(
        "others after {others:?}, given up after {:?}",
        began.elapsed()
    );
}

/// The conformance suite's fabric: ranks on both devices by turns.
fn fabric(name: &'static str, prefix: PrefixRoom) -> Fabric {
    let fabric = Fabric::new(name, move |rank| domain([HERE, THERE][rank % 2], prefix));
    fabric
        .with_losses(Duration::from_millis(10))
        .with_patience(Duration::from_secs(30))
}

fn plain() -> Option<Fabric> {
    Rig::open()?;
    Some(fabric("datagrams with losses", PrefixRoom::None))
}

fn with_prefix() -> Option<Fabric> {
    Rig::open()?;
    Some(fabric(
        "datagrams with a prefix and losses",
        PrefixRoom::Room,
    ))
}

mod without_prefix {
    use super::*;

    dgram_conformance!(@lossy plain(), file_serial(verbs));
}

mod behind_a_prefix {
    use super::*;

    dgram_conformance!(@lossy with_prefix(), file_serial(verbs));
}

fn random_programs(cases: u32) {
    for fabric in [plain(), with_prefix()].into_iter().flatten() {
        dgram::model::random_programs(&fabric, cases);
    }
}

/// Covers: AV-17, AV-25
#[test]
#[file_serial(verbs)]
fn random_programs_do_as_the_model() {
    random_programs(10);
}

#[test]
#[ignore = "soak: hundreds of programs over a lossy network"]
#[file_serial(verbs)]
fn many_random_programs_do_as_the_model() {
    random_programs(300);
}
