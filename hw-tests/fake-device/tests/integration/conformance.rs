//! The conformance suite over the verbs provider on the fake device, where programs shrink fast and
//! need no machine. The suite on a real device decides (`hw-tests/tests/integration/conformance.rs`).

use std::sync::Arc;

use ferrofabric_conformance::conformance;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::{backlogs, churn, closes, model, remapping, removals, shared_queue};
use ferrofabric_fake_device::control::{FakeDevice, INFINIBAND, ROCE};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_verbs::VerbsProvider;

/// Around inline requests, eager messages in one packet and in two, reads in one piece and in two.
const THRESHOLDS: [usize; 10] = [8, 48, 156, 196, 212, 8192, 16_440, 32_768, 262_144, 524_288];

/// The device, for one test at a time. Misuse of the device fails the test.
struct DeviceTurn(FakeDevice);

impl Drop for DeviceTurn {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.misuse(), "", "misuse of the device");
        }
    }
}

fn domain(device: &str, shm: &str) -> Arc<dyn Domain> {
    domain_with(&[("FERRO_DEVICE", device), ("FERRO_SHM", shm)])
}

fn domain_with(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    let settings = settings(pairs);
    let found = VerbsProvider::new().discover(&settings);
    let info = found.candidates.first();
    let info = info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices));
    VerbsProvider::new().open(info, &settings).unwrap()
}

fn fabric(name: &'static str, open: fn(usize) -> Arc<dyn Domain>) -> Option<Fabric> {
    let turn = DeviceTurn(FakeDevice::take());
    let fabric = Fabric::new(name, move |rank| {
        let _held = &turn;
        open(rank)
    });
    Some(fabric.with_thresholds(&THRESHOLDS))
}

fn roce() -> Option<Fabric> {
    fabric("RoCE", |_| domain(ROCE, "off"))
}

fn infiniband() -> Option<Fabric> {
    fabric("InfiniBand", |_| domain(INFINIBAND, "off"))
}

/// Some peers are local; the odd ranks have shared memory switched off.
fn some_local(rank: usize) -> Arc<dyn Domain> {
    domain(ROCE, ["on", "off"][rank % 2])
}

fn paired() -> Option<Fabric> {
    let fabric = fabric("RoCE and shared memory", some_local)?;
    Some(fabric.with_paths(&[(0, 1), (0, 2)]))
}

mod over_roce {
    super::conformance!(super::roce());
}

/// Packets of 512 bytes, and few receive buffers: a poll in between finds a part of a message.
fn small_packets() -> Option<Fabric> {
    let turn = DeviceTurn(FakeDevice::take());
    let fabric = Fabric::new("RoCE with small packets", move |_| {
        let _held = &turn;
        domain_with(&[
            ("FERRO_DEVICE", ROCE),
            ("FERRO_SHM", "off"),
            ("FERRO_EAGER", "256"),
            ("FERRO_EAGER_MAX", "32K"),
            ("FERRO_RX_BUFFERS", "16"),
        ])
    });
    Some(fabric.with_thresholds(&[8, 156, 256, 476, 952, 7616, 32_768]))
}

mod in_small_packets {
    super::conformance!(super::small_packets());
}

/// Datagrams, but for the messages that only RC carries.
fn datagrams() -> Option<Fabric> {
    fabric("RoCE by datagrams", |_| on_lanes("ud"))
}

/// Datagrams at first.
fn promoted() -> Option<Fabric> {
    fabric("RoCE, from datagrams to connections", |_| on_lanes("auto"))
}

fn on_lanes(lane: &str) -> Arc<dyn Domain> {
    domain_with(&[
        ("FERRO_DEVICE", ROCE),
        ("FERRO_SHM", "off"),
        ("FERRO_LANE", lane),
    ])
}

mod over_datagrams {
    super::conformance!(super::datagrams());
}

mod over_infiniband {
    super::conformance!(super::infiniband());
}

mod over_both {
    super::conformance!(super::paired());
}

/// Covers: PEER-8, PEER-9, PEER-10, PEER-13
#[test]
fn random_programs_do_as_the_model() {
    for fabric in [roce, infiniband, paired, small_packets, datagrams, promoted] {
        model::random_programs(&fabric().unwrap(), 25);
    }
}

#[test]
fn messages_wait_each_way() {
    for fabric in [roce, datagrams, promoted] {
        let fabric = fabric().unwrap();
        let (a, b) = (fabric.domain(0), fabric.domain(1));
        backlogs::of_messages(a, b, 20_000, true);
        backlogs::of_sends(a, b, 10_000);
        backlogs::of_all_lengths(a, b, 8_000);
    }
}

#[test]
fn a_million_messages_wait_each_way() {
    let fabric = roce().unwrap();
    backlogs::of_messages(fabric.domain(0), fabric.domain(1), 1_000_000, true);
}

/// Covers: AV-11, AV-17
#[test]
fn an_index_changes_hands_beside_a_sender() {
    for fabric in [roce, infiniband, paired, small_packets, datagrams, promoted] {
        let fabric = fabric().unwrap();
        for (a, b) in fabric.paths() {
            let (a, b) = (fabric.domain(a), fabric.domain(b));
            churn::an_index_that_changes_hands_beside_a_sender(a, b, 500);
        }
    }
}

/// Covers: AV-2, AV-17, AV-23
#[test]
fn random_removals_do_as_the_model() {
    for fabric in [roce, infiniband, paired, small_packets, datagrams, promoted] {
        model::random_removals(&fabric().unwrap(), 25);
    }
}

/// Covers: AV-17, AV-23
#[test]
fn peers_come_and_go() {
    type Way = (&'static str, fn(usize) -> Arc<dyn Domain>);
    // Registrations that are kept for further messages are not given back.
    fn open(shm: &str, lane: &str) -> Arc<dyn Domain> {
        let cache = ("FERRO_MR_CACHE", "off");
        let lane = ("FERRO_LANE", lane);
        domain_with(&[("FERRO_DEVICE", ROCE), ("FERRO_SHM", shm), lane, cache])
    }
    let ways: [Way; 3] = [
        ("RoCE by connections", |_| open("off", "rc")),
        ("RoCE by datagrams", |_| open("off", "ud")),
        ("RoCE and shared memory", |rank| {
            open(["on", "off"][rank % 2], "rc")
        }),
    ];
    let turn = DeviceTurn(FakeDevice::take());
    for (name, open) in ways {
        let fabric = Fabric::new(name, open).with_paths(&[(0, 1), (0, 2)]);
        removals::come_and_go(&fabric, 4, 20, || turn.0.live());
    }
}

/// Covers: PEER-4, PEER-13
#[test]
fn completions_of_two_transports_in_one_queue_under_four_threads() {
    shared_queue::completions_of_two_transports(&paired().unwrap(), 400_000);
}

#[test]
#[ignore = "soak: ten million completions"]
fn ten_million_completions_in_one_queue_under_four_threads() {
    shared_queue::completions_of_two_transports(&paired().unwrap(), 10_000_000);
}

#[test]
#[ignore = "soak: thousands of programs"]
fn many_random_programs_do_as_the_model() {
    for fabric in [roce, infiniband, paired, small_packets, datagrams, promoted] {
        let fabric = fabric().unwrap();
        model::random_programs(&fabric, 300);
        model::random_removals(&fabric, 300);
    }
}

#[test]
#[ignore = "soak: hundreds of thousands of operations"]
fn many_one_sided_operations() {
    for fabric in [roce, infiniband, paired, small_packets, datagrams, promoted] {
        let fabric = fabric().unwrap();
        remapping::one_sided_operations_on_memory_that_goes(&fabric, 200_000);
        for (a, b) in fabric.paths() {
            closes::regions_under_long_fire(fabric.domain(a), fabric.domain(b), 20);
        }
    }
}
