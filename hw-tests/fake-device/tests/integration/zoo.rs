//! The conformance suite of messages on each kind of NIC that there is a profile of
//! (`hw-tests/fake-device/profiles`), as far as the NIC carries reliable datagrams.

use std::sync::Arc;

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::conformance;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_contracts::info::EpType;
use ferrofabric_fake_device::control::{FakeDevice, INFINIBAND, ROCE};
use ferrofabric_fake_device::profile::DeviceProfile;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;

/// Around inline requests of several NICs, eager messages in one packet and in two, reads in one
/// piece and in two.
const THRESHOLDS: [usize; 12] = [
    8, 48, 64, 156, 176, 196, 212, 8192, 16_440, 32_768, 262_144, 524_288,
];

/// The device, for one test at a time. Misuse of the device fails the test.
struct DeviceTurn(FakeDevice);

impl Drop for DeviceTurn {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.misuse(), "", "misuse of the device");
        }
    }
}

fn domain(device: &str, lane: &str) -> Arc<dyn Domain> {
    let settings = settings(&[
        ("FERRO_DEVICE", device),
        ("FERRO_SHM", "off"),
        ("FERRO_LANE", lane),
    ]);
    let found = VerbsProvider::new().discover(&settings);
    let info = found.candidates.first();
    let info = info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices));
    VerbsProvider::new().open(info, &settings).unwrap()
}

fn fabric(profile: &'static str, device: &'static str, lane: &'static str) -> Option<Fabric> {
    let turn = DeviceTurn(FakeDevice::take());
    turn.0.become_nic(profile);
    let fabric = Fabric::new(profile, move |_| {
        let _held = &turn;
        domain(device, lane)
    });
    Some(fabric.with_thresholds(&THRESHOLDS))
}

macro_rules! zoo {
    ($($module:ident: $profile:literal on $device:ident;)*) => {
        $(
            mod $module {
                mod by_connections {
                    super::super::conformance!(super::super::fabric(
                        $profile, super::super::$device, "rc"
                    ));
                }
                mod from_datagrams_to_connections {
                    super::super::conformance!(super::super::fabric(
                        $profile, super::super::$device, "auto"
                    ));
                }
            }
        )*

        /// The profiles that the suite runs on.
        const RUN: &[&str] = &[$($profile),*];
    };
}

zoo! {
    mlx5_ib: "mlx5-ib" on INFINIBAND;
    mlx5_vf: "mlx5-vf" on INFINIBAND;
    mlx5_roce: "mlx5-roce" on ROCE;
    bnxt: "bnxt" on ROCE;
    bnxt_p7: "bnxt-p7" on ROCE;
    irdma_e810: "irdma-e810" on ROCE;
    irdma_gen3: "irdma-gen3" on ROCE;
    hns09: "hns09" on ROCE;
    rxe: "rxe" on ROCE;
    inline_of_32_bytes: "inline-32" on ROCE;
    worst: "worst" on ROCE;
    worst_with_shared_receives: "worst-with-srq" on ROCE;
}

/// No profile is forgotten: each is run, or does not carry reliable datagrams.
#[test]
fn each_profile_is_run_or_cannot_be() {
    for name in DeviceProfile::names() {
        let profile = DeviceProfile::named(name).unwrap();
        assert_eq!(
            profile.carries_reliable_datagrams() && name != "generous",
            RUN.contains(&name),
            "{name}: whether the suite runs on it"
        );
    }
}

/// Each fact of a profile names its source, and no source is left without its fact.
#[test]
fn each_fact_has_a_source() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            DeviceProfile::named(name).is_some(),
            "{name}: no profile has that file"
        );
        let text = std::fs::read_to_string(&path).unwrap();
        let profile: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut facts: Vec<_> = profile.as_object().unwrap().keys().collect();
        facts.retain(|fact| !["about", "sources"].contains(&fact.as_str()));
        let mut sources: Vec<_> = profile["sources"].as_object().unwrap().keys().collect();
        facts.sort();
        sources.sort();
        assert_eq!(facts, sources, "{name}: facts, and facts with a source");
    }
}

/// A device is offered for the endpoints that can be opened on it. A notice has the reason why
/// reliable ones cannot.
#[test]
fn offers_can_be_opened() {
    for name in DeviceProfile::names() {
        let profile = DeviceProfile::named(name).unwrap();
        let turn = DeviceTurn(FakeDevice::take());
        turn.0.become_nic(name);
        let settings = settings(&[("FERRO_DEVICE", ROCE), ("FERRO_SHM", "off")]);
        let found = VerbsProvider::new().discover(&settings);
        let offers = |kind| {
            let mut offers = found.candidates.iter();
            offers.any(|info| info.ep.ep_type == kind)
        };
        let reliable = profile.carries_reliable_datagrams();
        assert_eq!(offers(EpType::Rdm), reliable, "{name}: {:?}", found.notices);
        let datagrams = profile.datagrams && profile.entries > 1;
        assert_eq!(offers(EpType::Dgram), datagrams, "{name}");
        let text = format!("{:?}", found.notices);
        assert_eq!(
            text.contains("open reliable endpoints on"),
            !reliable,
            "{name}: {text}"
        );
        for kind in [EpType::Rdm, EpType::Dgram] {
            let mut offers = found.candidates.iter();
            let Some(info) = offers.find(|info| info.ep.ep_type == kind) else {
                continue;
            };
            let domain = VerbsProvider::new().open(info, &settings).unwrap();
            let endpoint = OwningEndpoint::open(&*domain, &AvAttr::default());
            drop(endpoint.unwrap_or_else(|error| panic!("{name}, {kind:?}: {error}")));
        }
    }
}
