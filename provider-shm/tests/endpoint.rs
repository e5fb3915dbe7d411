//! Endpoints of the shared-memory domain: what the calls of the object model do, over real segments.

#![allow(clippy::unwrap_used, reason = "a test")]

mod behaviour;

use std::sync::Arc;

use behaviour::probes;
use ferrofabric_core::config::Settings;
use ferrofabric_core::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;

fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    let settings = Settings::read(|name| {
        let found = pairs.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| (*value).to_owned())
    })
    .unwrap();
    let provider = ShmProvider::new();
    let info = provider.discover(&settings).candidates.remove(0);
    provider.open(&info, &settings).unwrap()
}

/// One domain for each side, by each way that long messages take.
fn both_ways(test: impl Fn(&dyn Domain, &dyn Domain)) {
    for cma in ["on", "off"] {
        let setting = [("FERRO_SHM_CMA", cma)];
        test(&*domain(&setting), &*domain(&setting));
    }
}

/// Covers: PEER-8, PEER-9
#[test]
fn peek_claim_and_discard() {
    both_ways(probes::each_flag);
}

/// Covers: PEER-8
#[test]
fn flags_that_mean_nothing_are_refused() {
    probes::bad_flags(&*domain(&[]));
}

/// Covers: PEER-8
#[test]
fn a_peek_looks_at_what_has_come() {
    both_ways(probes::a_peek_looks_at_what_has_come);
}

/// Covers: PEER-8
#[test]
fn a_claimed_message_of_a_sender_that_is_gone_fails() {
    let setting = [("FERRO_SHM_CMA", "off")];
    probes::a_claimed_message_of_a_sender_that_is_gone(&*domain(&setting), &*domain(&setting));
}

/// Covers: PEER-8, PEER-9
#[test]
fn probes_are_as_the_model() {
    both_ways(|a, b| probes::as_the_model(a, b, 40));
}
