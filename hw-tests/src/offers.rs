//! The first offer of a device, and the settings that tests use.

use std::sync::Arc;

use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::info::Info;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;

/// The settings of the environment but for those given.
pub fn settings(overrides: &[(&str, &str)]) -> Settings {
    let of = |name: &str| {
        let found = overrides.iter().find(|(n, _)| *n == name);
        found.map_or_else(|| std::env::var(name).ok(), |(_, v)| Some((*v).to_owned()))
    };
    Settings::read(of).unwrap()
}

/// The first offer: RDM endpoints of the best device.
///
/// # Panics
///
/// When there is none.
pub fn first(settings: &Settings) -> Info {
    let found = VerbsProvider::new().discover(settings);
    let first = found.candidates.into_iter().next();
    first.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices))
}

/// A domain of the first offer.
///
/// # Panics
///
/// When there is none, or it can not be opened.
pub fn domain(settings: &Settings) -> Arc<dyn Domain> {
    VerbsProvider::new()
        .open(&first(settings), settings)
        .unwrap()
}

/// A domain of shared memory.
///
/// # Panics
///
/// When there is no such offer, or it can not be opened.
pub fn local_domain(settings: &Settings) -> Arc<dyn Domain> {
    let found = ShmProvider::new().discover(settings);
    let first = found.candidates.into_iter().next();
    let first = first.unwrap_or_else(|| panic!("no shared memory: {:?}", found.notices));
    ShmProvider::new().open(&first, settings).unwrap()
}
