//! Bytes that an entry of an address vector takes once it is used: the entry itself, and the
//! record of an endpoint of datagrams for each peer that it has sent to (its way and its source).
//!
//! The figures are in docs/benchmarks.md. Each is the growth of the process's resident anonymous
//! memory, as of `ferro bench av`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::limits::settings;
use ferrofabric_contracts::addr::{NativeAddr, VerbsAddr};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_fake_device::control::{FakeDevice, ROCE};
use ferrofabric_runtime::fabric::{Av, Domain, Provider};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;

/// Nodes that the entries are of.
const NODES: u32 = 1000;

/// A wait that takes so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn domain() -> Arc<dyn Domain> {
    let settings = settings(&[("FERRO_DEVICE", ROCE)]);
    let found = VerbsProvider::new().discover(&settings);
    let mut offers = found.candidates.iter();
    let offer = offers.find(|info| info.ep.ep_type == EpType::Dgram && info.mode.is_empty());
    VerbsProvider::new()
        .open(offer.unwrap(), &settings)
        .unwrap()
}

/// Addresses of endpoints on as many nodes, in the order of a job: all of a node follow each other.
/// The device has one port, so they share a path.
fn names(here: &NativeAddr, entries: u32) -> Vec<Vec<u8>> {
    let each = entries / NODES;
    let name = |n: u32| {
        let verbs = here.verbs.map(|verbs| VerbsAddr {
            qpn: 0x1000 + n,
            ..verbs
        });
        let name = NativeAddr::of_new(u64::from(n / each), verbs, false, u64::from(n));
        name.to_bytes().to_vec()
    };
    (0..entries).map(name).collect()
}

/// Anonymous memory of this process that is there, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let mut lines = text.lines();
    let line = lines
        .find_map(|line| line.strip_prefix("Anonymous:"))
        .unwrap();
    let kib: usize = line.split_whitespace().next().unwrap().parse().unwrap();
    kib << 10
}

/// Bytes of an entry at each stage.
struct EntryBytes {
    /// In an address vector that no endpoint uses.
    alone: f64,
    /// In that of an endpoint of datagrams.
    inserted: f64,
    looked_up: f64,
    sent_to: f64,
}

fn insert(av: &dyn Av, names: &[Vec<u8>], addrs: &mut [FiAddr]) {
    let mut listed = names.iter().map(Vec::as_slice);
    let inserted = av.insert_all(&mut listed, &mut |number, one| {
        addrs[number] = one.unwrap();
    });
    assert_eq!(inserted.unwrap(), names.len());
}

fn measure(attr: &AvAttr, entries: u32) -> EntryBytes {
    let domain = domain();
    let mut endpoint = OwningEndpoint::open(&*domain, attr).unwrap();
    let names = names(&endpoint.name(), entries);
    let mut addrs = vec![FiAddr::NOTAVAIL; entries as usize];
    // The path of a first message is there before anything counts.
    send(&mut endpoint, &names[..1]);
    let each = |before, now: usize| (now - before) as f64 / f64::from(entries);

    let before = resident();
    let other = domain.open_av(attr).unwrap();
    insert(&*other, &names, &mut addrs);
    let alone = each(before, resident());
    // The other vector stays, so that the second one takes no memory of its.
    let before = resident();
    insert(&**endpoint.av(), &names, &mut addrs);
    assert!(endpoint.poll().unwrap().is_none());
    let inserted = each(before, resident());
    for (addr, name) in addrs.iter().zip(&names) {
        let found = endpoint.av().lookup(*addr).unwrap();
        assert_eq!(found.to_bytes()[..], name[..]);
    }
    let looked_up = each(before, resident());
    send_to(&mut endpoint, &addrs);
    let sent_to = each(before, resident());
    let stats = endpoint.stats().unwrap();
    let count = |name| stats.iter().find(|(n, _)| *n == name).unwrap().1;
    assert_eq!(count("dgram_handles_now"), 1);
    assert_eq!(count("dgram_messages_sent"), u64::from(entries) + 1);
    drop(other);
    EntryBytes {
        alone,
        inserted,
        looked_up,
        sent_to,
    }
}

fn send(endpoint: &mut OwningEndpoint, names: &[Vec<u8>]) {
    let insert = |name: &Vec<u8>| endpoint.av().insert(name).unwrap();
    let addrs: Vec<_> = names.iter().map(insert).collect();
    send_to(endpoint, &addrs);
}

fn messages_sent(endpoint: &OwningEndpoint) -> u64 {
    let stats = endpoint.stats().unwrap();
    let found = stats
        .iter()
        .find(|(name, _)| *name == "dgram_messages_sent");
    found.unwrap().1
}

fn send_to(endpoint: &mut OwningEndpoint, addrs: &[FiAddr]) {
    let goal = messages_sent(endpoint) + addrs.len() as u64;
    let began = Instant::now();
    for addr in addrs {
        while let Err(error) = endpoint.inject(&[1; 8], *addr, None) {
            assert_eq!(error, OpError::Again);
            assert!(endpoint.poll().unwrap().is_none(), "injects fail");
            assert!(began.elapsed() < PATIENCE, "no room for a datagram");
        }
    }
    // The last of them wait for their handles.
    while messages_sent(endpoint) < goal {
        assert!(endpoint.poll().unwrap().is_none(), "injects fail");
        assert!(began.elapsed() < PATIENCE, "datagrams wait");
    }
}

fn compare(entries: u32) {
    // Each table in pages of its own: else tables lie where freed memory is still resident, and
    // part of them is not counted.
    // SAFETY: sets a number.
    let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10) };
    assert_eq!(set, 1);
    let device = FakeDevice::take();
    for symmetric in [false, true] {
        let attr = AvAttr {
            av_type: Some(AvType::Table),
            count: entries as usize,
            symmetric,
            ..AvAttr::default()
        };
        let EntryBytes {
            alone,
            inserted,
            looked_up,
            sent_to,
        } = measure(&attr, entries);
        println!(
            "{entries} entries of {NODES} nodes, symmetric {symmetric}: {alone:.1} bytes without an \
             endpoint; with one {inserted:.1} inserted, {looked_up:.1} looked up, {sent_to:.1} sent to"
        );
        assert!(
            looked_up - inserted < 1.0,
            "a look-up keeps {looked_up} bytes"
        );
        // A node takes some 100 bytes, which a hundred entries of it share at the least.
        let (most_alone, most) = if symmetric {
            (17.0, 200.0)
        } else {
            (96.0, 250.0)
        };
        assert!(alone <= most_alone, "{alone} bytes without an endpoint");
        assert!(sent_to <= most, "{sent_to} bytes, and {most} at most");
    }
    assert_eq!(device.misuse(), "", "misuse of the device");
}

/// Covers: AV-9, AV-24
#[test]
fn a_used_entry_takes_its_way_beside_itself() {
    compare(100_000);
}

#[test]
#[ignore = "soak: a million entries"]
fn so_do_a_million() {
    compare(1_000_000);
}
