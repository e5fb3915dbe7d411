//! The steady state of short messages over verbs, by connections and by datagrams: no allocation,
//! and no system call but the driver's doorbell.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::steady::{
    Exchange, SystemCall, Trace, allocates_nothing, measure, trace,
};
use ferrofabric_contracts::info::Threading;
use ferrofabric_hw_tests::{Rig, offers};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Connections for all peers, those of this node over shared memory, and datagrams for all peers.
const PATHS: [&[(&str, &str)]; 3] = [
    &[("FERRO_SHM", "off"), ("FERRO_LANE", "rc")],
    &[],
    &[("FERRO_SHM", "off"), ("FERRO_LANE", "ud")],
];

const ROUNDS: usize = 120;

/// Doorbells that both ends may ring besides those of `messages` messages one way, which cost two
/// units of credit each. The receiver sends a credit update when it owes a quarter of 4096 units,
/// of which the warm-up may have left a part; and each end checks every second whether the other's
/// queue pair is there still (docs/wire-protocol.md): a check may be due when the measurement
/// begins.
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

/// Counts of the datagrams that both ends of an exchange have sent.
#[derive(Clone, Copy, Debug)]
struct DatagramCounts {
    /// All datagrams, acknowledgements among them.
    sent: usize,
    /// Packets that were sent again.
    repeated: usize,
}

impl DatagramCounts {
    fn of(exchange: &Exchange) -> Self {
        let count = |name| exchange.counted(name) as usize;
        Self {
            sent: count("verbs_datagrams_sent"),
            repeated: count("verbs_datagrams_repeated"),
        }
    }
}

/// Over datagrams each packet rings the doorbell, a repeated one again, and each acknowledgement
/// that no packet carries: it answers at least one packet, or returns credit
/// (docs/wire-protocol.md).
#[test]
fn short_messages_by_datagrams_call_the_driver_alone() {
    let name = "short_messages_by_datagrams_call_the_driver_alone";
    let messages = ROUNDS * 10;
    if Rig::open().is_none() {
        return;
    }
    let told = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let seen = trace(name, || {
        let exchange = Exchange::new(&*domain(PATHS[2]), &*domain(PATHS[2]), ROUNDS);
        let before = DatagramCounts::of(&exchange);
        measure(|| exchange.rounds(ROUNDS));
        let after = DatagramCounts::of(&exchange);
        let sent = after.sent - before.sent;
        let repeated = after.repeated - before.repeated;
        std::fs::write(&told, format!("{sent} {repeated}")).unwrap();
    });
    let Some(Trace { calls, took }) = seen else {
        return;
    };
    let told = std::fs::read_to_string(&told).unwrap();
    let (sent, repeated) = told.split_once(' ').unwrap();
    let [sent, repeated]: [usize; 2] = [sent, repeated].map(|count| count.parse().unwrap());
    let of_the_driver = |call: &&SystemCall| {
        let file = call.file.as_deref();
        file.is_some_and(|file| file.starts_with("/dev/infiniband"))
    };
    let (ours, others): (Vec<_>, Vec<_>) = calls.iter().partition(of_the_driver);
    println!(
        "{} calls for {messages} messages in {took:?}: {sent} datagrams, {repeated} repeated",
        ours.len()
    );
    assert!(
        others.is_empty(),
        "{} calls besides: {:?}",
        others.len(),
        &others[..others.len().min(4)]
    );
    let asks = besides(messages, took);
    assert!(
        ours.len() <= sent + asks,
        "{} for {sent} datagrams in {took:?}",
        ours.len()
    );
    // Nothing is lost here: only an end that had no processor for long looks lost.
    assert!(
        repeated <= messages / 4,
        "{repeated} of {messages} repeated"
    );
    let packets = messages + repeated;
    assert!(
        sent <= 2 * packets + asks,
        "{sent} datagrams for {packets} packets"
    );
}

fn traced(name: &str, path: &[(&str, &str)]) -> Option<Trace> {
    Rig::open()?;
    trace(name, || {
        let exchange = Exchange::new(&*domain(path), &*domain(path), ROUNDS);
        measure(|| exchange.rounds(ROUNDS));
    })
}
