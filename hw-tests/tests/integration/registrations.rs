//! Registrations of the buffers of large messages: kept while the memory is there, and no longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fastrand::Rng;
use ferrofabric_av::AvAttr;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::remapping;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::party::{self, PATIENCE, succeeded};
use ferrofabric_hw_tests::{Rig, unprivileged};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

/// Long enough to be moved from where it lies to where it goes.
const LONG: usize = 640 << 10;

/// So large that the allocator maps and unmaps it by itself.
const MAPPED: usize = 33 << 20;

/// Two endpoints over verbs that know each other, the second from the first.
struct VerbsPair {
    ends: [OwningEndpoint; 2],
    to: FiAddr,
}

impl VerbsPair {
    /// `None` where there is no device, which was said then.
    fn open(cache: &[(&str, &str)]) -> Option<Self> {
        Rig::open()?;
        let settings = [&[("FERRO_SHM", "off")], cache].concat();
        let ends = [(); 2].map(|()| {
            OwningEndpoint::open(&*party::domain(&settings), &AvAttr::default()).unwrap()
        });
        let to = ends[0].av().insert(&ends[1].name().to_bytes()).unwrap();
        Some(Self { ends, to })
    }

    /// Of both sides.
    fn stat(&self, name: &str) -> u64 {
        let of = |end: &OwningEndpoint| {
            let stats = end.stats().unwrap();
            stats.iter().find(|(n, _)| *n == name).unwrap().1
        };
        self.ends.iter().map(of).sum()
    }

    /// Sends a message from one buffer to the other, and gives both back. The content of the first
    /// arrives in the second.
    fn message(&mut self, mut from: Buffer, into: Buffer, len: usize, number: u64) -> [Buffer; 2] {
        let byte = |at: usize| (at as u64 ^ (at as u64 >> 8) ^ number.wrapping_mul(31)) as u8;
        (from[..len].iter_mut().enumerate()).for_each(|(at, b)| *b = byte(at));
        let [a, b] = &mut self.ends;
        b.trecv(into, FiAddr::UNSPEC, number, 0, 0)
            .map_err(|(e, _)| e)
            .unwrap();
        a.tsend(from, len, self.to, number, 0)
            .map_err(|(e, _)| e)
            .unwrap();
        let (mut sent, mut received) = (None, None);
        let until = Instant::now() + PATIENCE;
        while sent.is_none() || received.is_none() {
            sent = sent.or(a.poll().unwrap());
            received = received.or(b.poll().unwrap());
            assert!(Instant::now() < until, "message {number} does not arrive");
        }
        let buffers = [sent, received].map(|done| {
            let done = done.unwrap();
            succeeded(done.outcome);
            done.buffer
        });
        let wrong = buffers[1][..len]
            .iter()
            .enumerate()
            .find(|(at, b)| **b != byte(*at));
        assert_eq!(wrong, None, "message {number} of {len} bytes");
        buffers
    }

    /// Messages of these lengths between the same two buffers, which are as long as is said.
    fn messages(&mut self, bytes: usize, lens: impl IntoIterator<Item = usize>) -> [Buffer; 2] {
        let buffers = [room(bytes), room(bytes)];
        (0..)
            .zip(lens)
            .fold(buffers, |[from, into], (number, len)| {
                self.message(from, into, len, number)
            })
    }

    /// Drives both until a statistic is what it should be.
    fn until(&mut self, name: &str, value: u64) {
        let until = Instant::now() + PATIENCE;
        while self.stat(name) != value {
            let idle = self
                .ends
                .iter_mut()
                .all(|end| end.poll().unwrap().is_none());
            assert!(
                idle && Instant::now() < until,
                "{name} is {}",
                self.stat(name)
            );
        }
    }
}

fn room(len: usize) -> Buffer {
    Buffer::new(len).unwrap()
}

#[test]
#[file_serial(verbs)]
fn a_buffer_is_registered_once() {
    let Some(mut pair) = VerbsPair::open(&[("FERRO_MR_CACHE", "on")]) else {
        return;
    };
    let buffers = pair.messages(MAPPED, [LONG; 10]);
    assert_eq!(pair.stat("verbs_regions_made"), 2);
    assert_eq!(pair.stat("verbs_regions_found"), 18);
    assert_eq!(pair.stat("verbs_regions_kept"), 2);
    assert_eq!(pair.stat("verbs_region_bytes_kept"), 2 * LONG as u64);
    // Memory that is given back to the system is not kept from it, though no further message comes.
    drop(buffers);
    pair.until("verbs_regions_kept", 0);
    assert_eq!(pair.stat("verbs_regions_gone"), 2);
}

/// If one side may be reached by the other, it registers each message exactly; the buffer of the
/// other side is registered once, for the first message is the longest and the others lie in it.
#[test]
#[file_serial(verbs)]
fn a_peer_reaches_no_more_than_its_message() {
    let Some(mut pair) = VerbsPair::open(&[("FERRO_MR_CACHE", "on")]) else {
        return;
    };
    pair.messages(LONG, (0..10).map(|shorter| LONG - shorter * 4096));
    assert_eq!(pair.stat("verbs_regions_made"), 1 + 10);
    assert_eq!(pair.stat("verbs_regions_found"), 9);
}

#[test]
#[file_serial(verbs)]
fn without_a_cache_each_message_registers_its_own() {
    let Some(mut pair) = VerbsPair::open(&[("FERRO_MR_CACHE", "off")]) else {
        return;
    };
    pair.messages(LONG, [LONG; 3]);
    assert_eq!(pair.stat("verbs_regions_made"), 6);
    assert_eq!(pair.stat("verbs_regions_kept"), 0);
}

#[test]
#[file_serial(verbs)]
fn no_more_is_kept_than_allowed() {
    let settings = [("FERRO_MR_CACHE", "on"), ("FERRO_MR_CACHE_COUNT", "3")];
    let Some(mut pair) = VerbsPair::open(&settings) else {
        return;
    };
    let mut all: Vec<_> = (0..5).map(|_| [room(LONG), room(LONG)]).collect();
    for number in 0..20 {
        let [from, into] = all.remove(0);
        all.push(pair.message(from, into, LONG, number));
        assert!(pair.stat("verbs_regions_kept") <= 2 * 3);
    }
    // By turns: each was given up before it came again.
    assert_eq!(pair.stat("verbs_regions_made"), 40);
    drop(pair);
    let settings = [("FERRO_MR_CACHE", "on"), ("FERRO_MR_CACHE_BYTES", "1M")];
    let mut pair = VerbsPair::open(&settings).unwrap();
    pair.messages(2 * LONG, [2 * LONG; 4]);
    assert_eq!(pair.stat("verbs_regions_kept"), 0);
}

/// Kept registrations count against the limit of locked memory, and make way when a message needs
/// it.
#[test]
#[file_serial(verbs)]
fn kept_registrations_make_way() {
    if Rig::open().is_some() {
        unprivileged::run("kept_registrations_make_way_for_an_ordinary_user");
    }
}

#[test]
#[ignore = "run by kept_registrations_make_way"]
fn kept_registrations_make_way_for_an_ordinary_user() {
    // Both endpoints' own buffers, and some messages.
    if !unprivileged::become_one_with(20 << 20) {
        return;
    }
    let mut pair = VerbsPair::open(&[("FERRO_MR_CACHE", "on")]).expect("the parent saw a device");
    let all: Vec<_> = (0..20)
        .map(|number| pair.message(room(LONG), room(LONG), LONG, number))
        .collect();
    assert!(all.len() as u64 * 2 > pair.stat("verbs_regions_kept"));
    assert_eq!(pair.stat("verbs_regions_made"), 40);
}

/// While other threads map and unmap whatever they like, each message is of the memory that is
/// there, and the kernel's page numbers say the same.
#[test]
#[file_serial(verbs)]
fn memory_comes_and_goes_on_all_threads() {
    let Some(mut pair) = VerbsPair::open(&[("FERRO_MR_CACHE", "verify")]) else {
        return;
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let over = &over;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed);
                let mut held: Vec<Vec<u8>> = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    held.push(vec![1; rng.usize(..2 << 20)]);
                    if held.len() > 4 {
                        held.swap_remove(rng.usize(..held.len()));
                    }
                }
            });
        }
        let mut rng = Rng::with_seed(7);
        let mut kept: Vec<[Buffer; 2]> = Vec::new();
        for number in 0..60 {
            let buffers = match rng.usize(..3) {
                0 if !kept.is_empty() => kept.swap_remove(rng.usize(..kept.len())),
                _ => [room(MAPPED), room(MAPPED)],
            };
            let len = LONG - rng.usize(..LONG / 2);
            let [from, into] = buffers;
            let buffers = pair.message(from, into, len, number);
            // Some stay, some are given back at once.
            if rng.bool() && kept.len() < 4 {
                kept.push(buffers);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let of = |name| pair.stat(name);
    println!(
        "{} made, {} found",
        of("verbs_regions_made"),
        of("verbs_regions_found")
    );
    assert!(of("verbs_regions_found") > 0 && of("verbs_regions_gone") > 0);
    assert_eq!(of("verbs_regions_stale"), 0);
}

/// Covers: PEER-8
#[test]
#[file_serial(verbs)]
fn memory_that_goes_between_messages() {
    if Rig::open().is_none() {
        return;
    }
    let settings = [("FERRO_SHM", "off"), ("FERRO_MR_CACHE", "on")];
    let fabric = Fabric::new("Soft-RoCE", move |_| party::domain(&settings));
    remapping::memory_that_goes_between_messages(&fabric);
}

/// Covers: PEER-8
#[test]
#[file_serial(verbs)]
fn shared_memory_that_is_punched_between_messages() {
    if Rig::open().is_none() {
        return;
    }
    let settings = [("FERRO_SHM", "off"), ("FERRO_MR_CACHE", "on")];
    let fabric = Fabric::new("Soft-RoCE", move |_| party::domain(&settings));
    remapping::shared_memory_that_is_punched_between_messages(&fabric);
}
