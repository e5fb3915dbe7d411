//! Random programs of messages by libfabric's calls in C, between two machines: run with
//! `scripts/vm --nodes 2`, both run this same program. Ranks of one machine reach each other by our
//! shared memory, or by libfabric's `shm` as our peer.

use crate::{by_c, child, client, support};
use std::sync::Arc;
use std::time::Duration;

use by_c::{DomainByC, Offer};
use client::Libfabric;
use ferrofabric_conformance::ends;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::model::nodes::{NodePrograms, node, serve_leader};
use ferrofabric_runtime::fabric::Domain;
use support::counters::EndpointCounters;
use support::folder::Folder;
use support::plugin::Plugin;
use support::run::run;
use support::skip;
use support::tool::Tool;

/// Where node 0 listens.
const PORT: u16 = 7473;
/// Programs of a test.
const CASES: u32 = 40;
/// Those in the soak.
const MANY: u32 = 200;
/// The setting that says by which provider ranks of one machine reach each other.
const NEAR: &str = "FERRO_SHM_PROVIDER";
/// The time of a program, in which the emulated machine has enough for each.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "run by the others"]
fn one_of_two_processes() {
    serve_leader(|| {
        ends::let_late_cancels_succeed();
        fabric()
    });
}

/// Domains of our provider, by the libfabric of this process.
fn fabric() -> Fabric {
    let libfabric: &'static Libfabric = Box::leak(Box::new(Libfabric::load().unwrap()));
    let has_all = std::env::var(NEAR).unwrap() == "own";
    let open = move |_| -> Arc<dyn Domain> {
        let offer = Offer::find(libfabric, "ferro", "", has_all);
        Arc::new(DomainByC::open(offer.expect("an offer for messages")).unwrap())
    };
    Fabric::new("two machines by C", open)
        .with_thresholds(&[8, 48, 128, 480, 4096, 8192, 65_536, 262_144])
        .with_patience(Duration::from_secs(60))
}

/// Runs programs on both machines, with `near` for the ranks of one machine, whose messages a
/// counter counts.
fn random_programs(test: &str, near: &str, counter: &str, cases: u32) {
    if node().is_none() {
        return skip("this is one machine alone (./scripts/vm --nodes 2)");
    }
    if child::is_here() {
        let programs = NodePrograms {
            port: PORT,
            cases,
            worker: "one_of_two_processes",
            prepare: &|_| {},
        };
        return programs.run(fabric);
    }
    // For one libfabric in each process, which has the plugin.
    let (plugin, stats) = (Plugin::new(), Folder::new());
    let mut command = Tool::asked_for().run(&std::env::current_exe().unwrap());
    child::again(&mut command, test, &[(NEAR, near)]);
    plugin.choose(&mut command);
    command
        .arg("--include-ignored")
        // A close would wait for a receive that the other machine posts later, or never.
        .env("FERRO_CLOSE_TIMEOUT", "100ms")
        .env("FERRO_STATS", stats.path());
    let said = run(command, PATIENCE * cases).expect_success();
    let counters = EndpointCounters::read(stats.path());
    let ways = [counter, "verbs_messages_sent"].map(|way| (way, counters.sum(way)));
    println!("{said}: {ways:?}");
    assert!(ways.iter().all(|(_, sent)| *sent > 0), "{ways:?}");
}

/// Covers: PEER-4, PEER-8, PEER-9
#[test]
fn random_programs_beside_shm() {
    let test = "random_programs_beside_shm";
    random_programs(test, "shm", "peer_sent", CASES);
}

/// Covers: PEER-13
#[test]
fn random_programs_over_the_own_pair() {
    let test = "random_programs_over_the_own_pair";
    random_programs(test, "own", "shm_messages_sent", CASES);
}

#[test]
#[ignore = "soak: hundreds of programs"]
fn many_random_programs_beside_shm() {
    let test = "many_random_programs_beside_shm";
    random_programs(test, "shm", "peer_sent", MANY);
}
