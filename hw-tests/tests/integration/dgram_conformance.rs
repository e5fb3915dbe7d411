//! The conformance suite of DGRAM endpoints over the device.

use std::time::Duration;

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::{dgram, dgram_conformance};
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::dgram::{PrefixRoom, domain};
use serial_test::file_serial;

/// Each rank has a domain of its own on one device, whose datagrams do not get lost.
fn fabric(name: &'static str, prefix: PrefixRoom) -> Option<Fabric> {
    Rig::open()?;
    let fabric = Fabric::new(name, move |_| domain(&[], prefix));
    Some(fabric.with_patience(Duration::from_secs(10)))
}

fn plain() -> Option<Fabric> {
    fabric("datagrams", PrefixRoom::None)
}

fn with_prefix() -> Option<Fabric> {
    fabric("datagrams with a prefix", PrefixRoom::Room)
}

mod without_prefix {
    use super::*;

    dgram_conformance!(plain(), file_serial(verbs));
}

mod behind_a_prefix {
    use super::*;

    dgram_conformance!(with_prefix(), file_serial(verbs));
}

fn random_programs(cases: u32) {
    for fabric in [plain(), with_prefix()].into_iter().flatten() {
        dgram::model::random_programs(&fabric, cases);
    }
}

/// Covers: AV-17, AV-25
#[test]
#[file_serial(verbs)]
fn random_programs_do_as_the_model() {
    random_programs(30);
}

#[test]
#[ignore = "soak: a thousand programs"]
#[file_serial(verbs)]
fn many_random_programs_do_as_the_model() {
    random_programs(1000);
}
