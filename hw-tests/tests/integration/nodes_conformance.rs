//! The conformance suite's random programs between two machines: run with `scripts/vm --nodes 2`,
//! both run this same program.

use std::time::Duration;

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::model::nodes::{NodePrograms, serve_leader};
use ferrofabric_hw_tests::Rig;
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Where node 0 listens.
const PORT: u16 = 7472;

/// Says to a process which kinds of lanes its ranks use.
const LANES: &str = "FERRO_TEST_LANES";

/// By turns, from the first rank of each node on: programs of two ranks have datagrams, longer ones
/// all kinds side by side.
const ALL_KINDS: &str = "ud,auto,rc";

#[test]
#[ignore = "run by the others"]
fn one_of_two_processes() {
    serve_leader(|| fabric(&std::env::var(LANES).unwrap()));
}

/// Of the ranks of a node, some talk to each other through shared memory.
fn fabric(lanes: &str) -> Fabric {
    let lanes: Vec<String> = lanes.split(',').map(str::to_owned).collect();
    let fabric = Fabric::new("two machines", move |rank| {
        let place = rank / 2;
        let settings = settings(&[
            ("FERRO_SHM", ["on", "off"][place % 2]),
            ("FERRO_LANE", &lanes[place % lanes.len()]),
        ]);
        let provider = VerbsProvider::new();
        let found = provider.discover(&settings);
        let info = found.candidates.first();
        let info = info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices));
        provider.open(info, &settings).unwrap()
    });
    fabric
        .with_thresholds(&[8, 48, 196, 480, 488, 4064, 8120, 262_144])
        .with_patience(Duration::from_secs(60))
}

fn random_programs(lanes: &str, cases: u32) {
    if Rig::open().is_none() {
        return;
    }
    let programs = NodePrograms {
        port: PORT,
        cases,
        worker: "one_of_two_processes",
        prepare: &|command| {
            command.env(LANES, lanes);
        },
    };
    programs.run(|| fabric(lanes));
}

/// Covers: PEER-8, PEER-9, PEER-10, PEER-13
#[test]
#[file_serial(verbs)]
fn random_programs_do_as_the_model() {
    random_programs("rc", 15);
}

/// Covers: PEER-8, PEER-9, PEER-10, PEER-13
#[test]
#[file_serial(verbs)]
fn random_programs_over_lanes_of_all_kinds_do_as_the_model() {
    random_programs(ALL_KINDS, 15);
}

#[test]
#[ignore = "soak: hundreds of programs"]
#[file_serial(verbs)]
fn many_random_programs_do_as_the_model() {
    random_programs("rc", 250);
    random_programs(ALL_KINDS, 250);
}
