//! RDM endpoints over verbs: tagged messages of every protocol between two domains of one process.

use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::{Rig, offers, party};
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};
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
) -> Vec<OwnedCompletion> {
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

/// A child drops what it has inherited of both endpoints, queue pairs, regions, queues and all: the
/// parent's go on, over the same connection.
#[test]
#[file_serial(verbs)]
fn a_child_that_drops_endpoints_leaves_them_to_its_parent() {
    if Rig::open().is_none() {
        return;
    }
    for lane in ["rc", "ud"] {
        let (a, b, to_b, to_a) = pair(&verbs_only(lane));
        let mut ends = std::mem::ManuallyDrop::new((a, b));
        let exchange = |ends: &mut (OwningEndpoint, OwningEndpoint), tag: u64, len: usize| {
            let (a, b) = ends;
            let room = Buffer::new(len).unwrap();
            b.trecv(room, to_a, tag, 0, 1).map_err(|(e, _)| e).unwrap();
            let mut message = Buffer::new(len).unwrap();
            message.copy_from_slice(&pattern(tag as usize, len));
            a.tsend(message, len, to_b, tag, 2)
                .map_err(|(e, _)| e)
                .unwrap();
            for done in finish(a, b, vec![(1, 1), (0, 2)]) {
                assert!(done.outcome.is_ok(), "{:?}", done.outcome);
                assert_eq!(done.buffer[..], pattern(tag as usize, len)[..]);
            }
        };
        exchange(&mut ends, 1, 8);
        exchange(&mut ends, 2, 1 << 20);
        // SAFETY: the child runs only the code below, and ends without a return.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the alarm ends a child that hangs; the child drops its own copy of the
                // endpoints, and the parent's are not touched here.
                unsafe {
                    libc::alarm(60);
                    drop(std::ptr::read(&raw const *ends));
                    libc::_exit(0);
                }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for a child of this process.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "{lane}: how the child has ended");
            }
        }
        exchange(&mut ends, 3, 8);
        exchange(&mut ends, 4, 1 << 20);
        let failed = |end: &OwningEndpoint| {
            let stats = end.stats().unwrap();
            let failed = stats.iter().find(|(name, _)| *name == "verbs_lanes_failed");
            failed.unwrap().1
        };
        let (a, b) = std::mem::ManuallyDrop::into_inner(ends);
        assert_eq!((failed(&a), failed(&b)), (0, 0), "{lane}: lanes broke");
    }
}
