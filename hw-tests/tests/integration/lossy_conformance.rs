//! The conformance suite over a network that loses, repeats and reorders packets: run with
//! `scripts/vm --netem`, which has two devices whose packets really cross.
//!
//! RDMA reads are torn on Soft-RoCE when packets are lost (docs/soft-roce.md): large messages are
//! written by their senders.

use std::time::Duration;

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::{matches, model, sends};
use ferrofabric_hw_tests::Rig;
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Some chunks of a sender's writes, in bytes.
const LONGEST: usize = 100_000;

/// Longest message that is sent in one packet, in bytes, and longest in two.
const EAGER: usize = 4064;
const TWO_PACKETS: usize = 8120;

/// Longest message that the odd ranks send without asking first; the even ones do so with all.
const EAGER_MAX: usize = 16_384;

/// Ranks on both devices by turns.
fn lossy(lane: &'static str) -> Option<Fabric> {
    Rig::open()?;
    let fabric = Fabric::new("verbs with losses", move |rank| {
        let device = ["ferro_rxe0", "ferro_rxe1"][rank % 2];
        let most = [LONGEST, EAGER_MAX][rank % 2].to_string();
        let settings = settings(&[
            ("FERRO_SHM", "off"),
            ("FERRO_DEVICE", device),
            ("FERRO_EAGER_MAX", &most),
            ("FERRO_LANE", lane),
        ]);
        let provider = VerbsProvider::new();
        let found = provider.discover(&settings);
        let info = found.candidates.first();
        let info = info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices));
        provider.open(info, &settings).unwrap()
    });
    Some(
        fabric
            .with_thresholds(&[8, 48, 196, 480, 488, EAGER, TWO_PACKETS, EAGER_MAX])
            .with_longest(LONGEST)
            .with_patience(Duration::from_secs(60)),
    )
}

fn on_lossy(scenario: fn(&Fabric)) {
    for lane in ["rc", "ud", "auto"] {
        if let Some(fabric) = lossy(lane) {
            scenario(&fabric);
        }
    }
}

/// Covers: PEER-8, PEER-9
#[test]
#[file_serial(verbs)]
fn each_form_of_send() {
    on_lossy(sends::each_form_of_send);
}

/// Covers: PEER-9
#[test]
#[file_serial(verbs)]
fn order_of_long_and_short_messages() {
    on_lossy(matches::order_of_long_and_short_messages);
}

/// Covers: PEER-8
#[test]
#[file_serial(verbs)]
fn directed_and_wildcard_receives() {
    on_lossy(matches::directed_and_wildcard_receives);
}

/// Covers: PEER-8, PEER-10, AV-17
#[test]
#[file_serial(verbs)]
fn a_sender_that_is_inserted_late() {
    on_lossy(matches::a_sender_that_is_inserted_late);
}

/// Covers: PEER-8, PEER-9, PEER-10
#[test]
#[file_serial(verbs)]
fn random_programs_do_as_the_model() {
    on_lossy(|fabric| model::random_programs(fabric, 6));
}

#[test]
#[ignore = "soak: hundreds of programs over a lossy network"]
#[file_serial(verbs)]
fn many_random_programs_do_as_the_model() {
    on_lossy(|fabric| model::random_programs(fabric, 100));
}
