//! The conformance suite of DGRAM endpoints over the fake device. The suite on a real device
//! decides (`hw-tests/tests/integration/dgram_conformance.rs`).

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::{dgram, dgram_conformance};
use ferrofabric_contracts::flags::Mode;
use ferrofabric_contracts::info::EpType;
use ferrofabric_fake_device::control::{FakeDevice, INFINIBAND, ROCE};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_verbs::VerbsProvider;

/// The device, for one test at a time. Misuse of the device fails the test.
struct DatagramTurn(FakeDevice);

impl Drop for DatagramTurn {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.misuse(), "", "misuse of the device");
        }
    }
}

fn domain(device: &str, mode: Mode) -> Arc<dyn Domain> {
    let settings = settings(&[("FERRO_DEVICE", device)]);
    let found = VerbsProvider::new().discover(&settings);
    let mut candidates = found.candidates.iter();
    let info = candidates.find(|info| info.ep.ep_type == EpType::Dgram && info.mode == mode);
    let info = info.unwrap_or_else(|| panic!("no datagrams: {:?}", found.notices));
    VerbsProvider::new().open(info, &settings).unwrap()
}

fn fabric(name: &'static str, device: &'static str, mode: Mode) -> Option<Fabric> {
    let turn = DatagramTurn(FakeDevice::take());
    let fabric = Fabric::new(name, move |_| {
        let _held = &turn;
        domain(device, mode)
    });
    // The device delivers datagrams at once, but other threads make the address handles, and may
    // have to wait for a processor.
    Some(fabric.with_patience(Duration::from_secs(60)))
}

fn roce() -> Option<Fabric> {
    fabric("datagrams, RoCE", ROCE, Mode::empty())
}

fn roce_with_prefix() -> Option<Fabric> {
    fabric("datagrams with a prefix, RoCE", ROCE, Mode::MSG_PREFIX)
}

fn infiniband() -> Option<Fabric> {
    fabric("datagrams, InfiniBand", INFINIBAND, Mode::empty())
}

fn infiniband_with_prefix() -> Option<Fabric> {
    fabric(
        "datagrams with a prefix, InfiniBand",
        INFINIBAND,
        Mode::MSG_PREFIX,
    )
}

mod over_roce {
    super::dgram_conformance!(super::roce());
}

mod over_roce_with_prefix {
    super::dgram_conformance!(super::roce_with_prefix());
}

mod over_infiniband {
    super::dgram_conformance!(super::infiniband());
}

mod over_infiniband_with_prefix {
    super::dgram_conformance!(super::infiniband_with_prefix());
}

const ALL: [fn() -> Option<Fabric>; 4] =
    [roce, roce_with_prefix, infiniband, infiniband_with_prefix];

/// Covers: AV-17, AV-25
#[test]
fn random_programs_do_as_the_model() {
    for fabric in ALL {
        dgram::model::random_programs(&fabric().unwrap(), 50);
    }
}

#[test]
#[ignore = "soak: thousands of programs"]
fn many_random_programs_do_as_the_model() {
    for fabric in ALL {
        dgram::model::random_programs(&fabric().unwrap(), 3000);
    }
}
