//! Sums of eight processes that add to the same counters at the same time.

use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::PeerProcess;
use ferrofabric_hw_tests::sums::CountingHub;
use serial_test::file_serial;

const PROCESSES: u64 = 8;

fn is_soak() -> bool {
    std::env::var_os("FERRO_SOAK").is_some()
}

type Settings = [(&'static str, &'static str); 2];

/// All processes add to both counters. The settings of the hub are those of process 0. Returns the
/// hub and the number of its breaks.
fn counts(settings: impl Fn(u64) -> Settings, each: u64, rarity: u64) -> (CountingHub, u64) {
    let mut hub = CountingHub::open(&settings(0));
    let start = |me| {
        let environment = settings(me);
        let (numbers, name) = (hub.adder(each, rarity), hub.endpoint.name());
        let program = env!("CARGO_BIN_EXE_test-peer");
        PeerProcess::start(program, "adder", &environment, &numbers, &name)
    };
    let mut adders: Vec<_> = (0..PROCESSES).map(start).collect();
    adders.iter_mut().for_each(PeerProcess::go);
    let breaks = hub.count(PROCESSES, PROCESSES * each, rarity);
    hub.serve_until(|| adders.iter_mut().all(PeerProcess::has_ended));
    adders.into_iter().for_each(PeerProcess::finish);
    (hub, breaks)
}

#[test]
#[file_serial(verbs)]
fn sums_over_shared_memory_are_exact() {
    // Of 32 and of 64 bits each.
    let each = if is_soak() { 625_000 } else { 1000 };
    counts(|_| [("FERRO_VERBS", "off"), ("FERRO_SHM", "on")], each, 0);
}

#[test]
#[file_serial(verbs)]
fn sums_over_lanes_that_break_are_exact() {
    if Rig::open().is_none() {
        return;
    }
    let each = if is_soak() { 12_500 } else { 250 };
    let shm = |me| ("FERRO_SHM", if me % 2 == 0 { "on" } else { "off" });
    let (hub, breaks) = counts(|me| [("FERRO_LANE", "rc"), shm(me)], each, 100);
    let resumed = hub.resumed();
    println!("{breaks} breaks of the hub, {resumed} sessions resumed");
    assert!(resumed > 0 && breaks > 0);
}
