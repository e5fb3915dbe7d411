//! The steady state of short messages over verbs: no allocation, and no system call but the driver's doorbell.

#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::steady::{
    Counting, Exchange, Trace, allocates_nothing, measure, trace,
};
use ferrofabric_core::fabric::{Domain, Provider};
use ferrofabric_core::serial::Threading;
use ferrofabric_hw_tests::{Rig, offers};
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Connections for all peers, and those of this node over shared memory. (A packet that goes by datagrams is kept on the heap
/// until it is confirmed, and a call of its own acknowledges.)
const PATHS: [&[(&str, &str)]; 2] = [&[("FERRO_SHM", "off"), ("FERRO_LANE", "rc")], &[]];

const ROUNDS: usize = 120;

/// Doorbells that both ends may ring besides those of so many messages one way, which cost two units of credit each. The receiver
/// tells of its credit when it owes a quarter of 4096 units, of which the warm-up may have left a part; and each end looks
/// every second whether the other's queue pair is there still (docs/wire-protocol.md): a look may be due when it begins.
fn besides(messages: usize, took: Duration) -> usize {
    let credit = 1 + messages * 2 / (4096 / 4);
    let looks = 2 * (2 + took.as_secs() as usize);
    credit + looks
}

fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    let settings = settings(pairs);
    let mut info = offers::first(&settings);
    info.domain.threading = Threading::Domain;
    VerbsProvider::new().open(&info, &settings).unwrap()
}

#[test]
#[file_serial(verbs)]
fn short_messages_allocate_nothing() {
    if Rig::open().is_none() {
        return;
    }
    for path in PATHS {
        allocates_nothing(&*domain(path), &*domain(path), ROUNDS);
    }
}

#[test]
fn short_messages_over_the_device_call_the_driver_alone() {
    let name = "short_messages_over_the_device_call_the_driver_alone";
    let messages = ROUNDS * 10;
    if let Some(Trace { calls, took }) = traced(name, PATHS[0]) {
        let others: Vec<_> = calls
            .iter()
            .filter(|call| {
                call.number != libc::SYS_write as u64
                    || !call
                        .file
                        .as_deref()
                        .is_some_and(|file| file.starts_with("/dev/infiniband"))
            })
            .collect();
        assert!(
            others.is_empty(),
            "{} calls besides: {:?}",
            others.len(),
            &others[..others.len().min(4)]
        );
        // None at all with a device that has doorbells of its own.
        println!("{} doorbells for {messages} messages", calls.len());
        assert!(
            calls.len() <= messages + besides(messages, took),
            "{} for {messages} messages in {took:?}",
            calls.len()
        );
    }
}

/// Messages that are sent as a run (fi_msg(3), `FI_MORE`) share a doorbell.
#[test]
fn a_run_of_short_messages_rings_one_doorbell() {
    const RUNS: usize = 20;
    const MESSAGES: usize = 32;
    if Rig::open().is_none() {
        return;
    }
    let name = "a_run_of_short_messages_rings_one_doorbell";
    let seen = trace(name, || {
        let exchange = Exchange::new(&*domain(PATHS[0]), &*domain(PATHS[0]), ROUNDS);
        measure(|| (0..RUNS).for_each(|_| exchange.run(MESSAGES)));
    });
    if let Some(Trace { calls, took }) = seen {
        println!(
            "{} system calls for {RUNS} runs of {MESSAGES} messages in {took:?}",
            calls.len()
        );
        assert!(
            calls.len() <= RUNS + besides(RUNS * MESSAGES, took),
            "{} in {took:?}",
            calls.len()
        );
    }
}

#[test]
fn short_messages_on_this_node_make_no_system_call() {
    let name = "short_messages_on_this_node_make_no_system_call";
    if let Some(Trace { calls, .. }) = traced(name, PATHS[1]) {
        assert!(
            calls.is_empty(),
            "{} calls: {:?}",
            calls.len(),
            &calls[..calls.len().min(4)]
        );
    }
}

fn traced(name: &str, path: &[(&str, &str)]) -> Option<Trace> {
    Rig::open()?;
    trace(name, || {
        let exchange = Exchange::new(&*domain(path), &*domain(path), ROUNDS);
        measure(|| exchange.rounds(ROUNDS));
    })
}
