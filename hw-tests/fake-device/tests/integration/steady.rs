//! Short messages over a connection, at a clock that is set by hand: the looks that endpoints take
//! once a second allocate nothing, either.

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::steady::Exchange;
use ferrofabric_fake_device::control::{FakeDevice, ROCE};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_system::clock::HandClock;
use ferrofabric_verbs::VerbsProvider;

fn domain(clock: &HandClock) -> Arc<dyn Domain> {
    let own = [
        ("FERRO_SHM", "off"),
        ("FERRO_DEVICE", ROCE),
        ("FERRO_LANE", "rc"),
    ];
    let (provider, settings) = (VerbsProvider::with_clock(clock.clock()), settings(&own));
    let found = provider.discover(&settings);
    provider.open(&found.candidates[0], &settings).unwrap()
}

#[test]
fn a_minute_of_short_messages_allocates_nothing() {
    let _device = FakeDevice::take();
    let clock = HandClock::new();
    let exchange = Exchange::new(&*domain(&clock), &*domain(&clock), 120);
    for _ in 0..600 {
        clock.advance(Duration::from_millis(100));
        exchange.allocates_nothing(2);
    }
}
