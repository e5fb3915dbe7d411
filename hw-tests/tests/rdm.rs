//! RDM endpoints over verbs: tagged messages of every protocol between two domains of one process.

#![allow(missing_docs, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use ferrofabric_core::av::AvAttr;
use ferrofabric_core::config::Settings;
use ferrofabric_core::owning::{Buffer, Done, OwningEndpoint};
use ferrofabric_core::types::FiAddr;
use ferrofabric_hw_tests::{Rig, offers, party};
use serial_test::file_serial;

/// A run that takes so long hangs.
const PATIENCE: Duration = Duration::from_secs(180);

fn settings(pairs: &[(&str, &str)]) -> Settings {
    Settings::read(|name| {
        let found = pairs.iter().find(|(n, _)| *n == name);
        found.map(|(_, v)| (*v).to_owned())
    })
    .unwrap()
}

fn verbs_only(lane: &str) -> Settings {
    settings(&[("FERRO_SHM", "off"), ("FERRO_LANE", lane)])
}

fn pair(settings: &Settings) -> (OwningEndpoint, OwningEndpoint, FiAddr, FiAddr) {
    let a = OwningEndpoint::open(&*offers::domain(settings), &AvAttr::default()).unwrap();
    let b = OwningEndpoint::open(&*offers::domain(settings), &AvAttr::default()).unwrap();
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    (a, b, to_b, to_a)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8)
        .collect()
}

/// Drives both until one of `a` or `b` has an operation done for each token wanted.
fn finish(
    a: &mut OwningEndpoint,
    b: &mut OwningEndpoint,
    mut want: Vec<(usize, u64)>,
) -> Vec<Done> {
    let mut done = Vec::new();
    let until = Instant::now() + PATIENCE;
    while !want.is_empty() {
        for (i, ep) in [&mut *a, &mut *b].into_iter().enumerate() {
            if let Some(d) = ep.poll().unwrap() {
                let at = want
                    .iter()
                    .position(|w| *w == (i, d.token))
                    .expect("a wanted completion");
                want.remove(at);
                done.push(d);
            }
        }
        assert!(Instant::now() < until, "still waiting for {want:?}");
    }
    done
}

const SIZES: [usize; 12] = [
    0,
    1,
    8,
    200,
    479,
    481,
    4096,
    8192,
    8193,
    65536,
    1 << 20,
    (5 << 20) + 3,
];

#[test]
#[file_serial(verbs)]
fn messages_of_every_size_arrive_whole() {
    if Rig::open().is_none() {
        return;
    }
    for (lane, registered) in [("rc", false), ("rc", true), ("ud", false), ("auto", true)] {
        println!("{lane}");
        let settings = verbs_only(lane);
        let (da, db) = (offers::domain(&settings), offers::domain(&settings));
        let mut a = OwningEndpoint::open(&*da, &AvAttr::default()).unwrap();
        let mut b = OwningEndpoint::open(&*db, &AvAttr::default()).unwrap();
        let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        for (seed, &len) in SIZES.iter().enumerate() {
            let expected = pattern(seed, len);
            let (mut out, mut into) = (Buffer::new(len).unwrap(), Buffer::new(len).unwrap());
            out.copy_from_slice(&expected);
            if registered && len > 0 {
                out.register(&*da).unwrap();
                into.register(&*db).unwrap();
            }
            b.trecv(into, to_a, seed as u64, 0, 1).unwrap();
            a.tsend(out, len, to_b, seed as u64, 2).unwrap();
            for done in finish(&mut a, &mut b, vec![(0, 2), (1, 1)]) {
                let completion = done.outcome.unwrap();
                if done.token == 1 {
                    assert_eq!(
                        (completion.len, completion.src, completion.tag),
                        (len, to_a, seed as u64)
                    );
                    assert!(done.buffer[..] == expected[..], "content of {len} bytes");
                }
            }
        }
    }
}

#[test]
#[ignore = "soak: a gibibyte over an emulated network"]
#[file_serial(verbs)]
fn a_gibibyte_arrives_whole() {
    if Rig::open().is_none() {
        return;
    }
    const LEN: usize = 1 << 30;
    let (mut a, mut b, to_b, to_a) = pair(&verbs_only("rc"));
    let mut out = Buffer::new(LEN).unwrap();
    party::fill(&mut out, 1);
    b.trecv(Buffer::new(LEN).unwrap(), to_a, 1, 0, 1).unwrap();
    a.tsend(out, LEN, to_b, 1, 2).unwrap();
    for done in finish(&mut a, &mut b, vec![(0, 2), (1, 1)]) {
        assert_eq!(done.outcome.map(|_| ()).map_err(|e| e.why), Ok(()));
        party::check(&done.buffer, 1, "the message, at both sides");
    }
}
