//! Atomic operations while lanes break: each is carried out once.

use std::sync::Arc;

use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::{atomic_ends, atomics};
use ferrofabric_contracts::info::EpType;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint, ROCE};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_verbs::VerbsProvider;
use ferrofabric_verbs_sys::ibv_wc_status as Status;

fn domain(lane: &str) -> Arc<dyn Domain> {
    let pairs = [
        ("FERRO_DEVICE", ROCE),
        ("FERRO_SHM", "off"),
        ("FERRO_LANE", lane),
    ];
    let provider = VerbsProvider::new();
    let mut found = provider.discover(&settings(&pairs)).candidates.into_iter();
    let info = found.find(|info| info.ep.ep_type == EpType::Rdm).unwrap();
    provider.open(&info, &settings(&pairs)).unwrap()
}

/// Requests and replies are sent again over the next lane, and no request is carried out twice:
/// each of several initiators fetches another number.
#[test]
fn broken_lanes_repeat_no_operation() {
    for lane in ["rc", "auto"] {
        for seed in 0..6 {
            println!("{lane}, seed {seed}");
            let device = FakeDevice::take();
            let mut rng = fastrand::Rng::with_seed(seed);
            let (a, b) = (domain(lane), domain(lane));
            for _ in 0..3 {
                let status = Status::IBV_WC_RETRY_EXC_ERR;
                let effect = match rng.u32(..3) {
                    0 => FaultEffect::Fail(status),
                    1 => FaultEffect::FailAfterwards(status),
                    _ => FaultEffect::StopInside(status),
                };
                device.script(Fault::new(FaultPoint::Send, effect).after(rng.u32(..200)));
            }
            atomics::each_sum_is_counted_once(&*a, &*b);
            atomics::order_of_long_and_short_ones(&*a, &*b);
            device.reset();
            assert_eq!(device.misuse(), "");
        }
    }
}

/// One of both ends gives its session up while operations wait for the lane, or for their replies.
#[test]
fn sessions_that_end_leave_no_operation() {
    for lane in ["rc", "ud"] {
        for after in (0..60).step_by(3) {
            println!("{lane}, after {after}");
            let device = FakeDevice::take();
            let (a, b) = (domain(lane), domain(lane));
            let effect = FaultEffect::Fail(Status::IBV_WC_LOC_PROT_ERR);
            let fault = Fault::new(FaultPoint::Send, effect).after(after);
            atomic_ends::failed_operations_are_over(&*a, &*b, || device.script(fault));
            device.reset();
            assert_eq!(device.misuse(), "");
        }
    }
}
