//! DGRAM endpoints for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_core::av::AvAttr;
use ferrofabric_core::config::Settings;
use ferrofabric_core::fabric::{Domain, Provider};
use ferrofabric_core::flags::Mode;
use ferrofabric_core::info::{EpType, Info};
use ferrofabric_core::owning::{Done, OwningEndpoint};
use ferrofabric_verbs::VerbsProvider;

/// A wait that takes so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long what must not come is waited for.
pub const QUIET: Duration = Duration::from_millis(300);

/// Whether the application leaves room before its buffers (`FI_MSG_PREFIX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// It does.
    Room,
    /// It does not.
    None,
}

impl Prefix {
    /// Bytes of that room.
    pub fn bytes(self) -> usize {
        match self {
            Self::Room => 40,
            Self::None => 0,
        }
    }
}

fn settings(overrides: &[(&str, &str)]) -> Settings {
    let of = |name: &str| {
        let found = overrides.iter().find(|(n, _)| *n == name);
        found.map_or_else(|| std::env::var(name).ok(), |(_, v)| Some((*v).to_owned()))
    };
    Settings::read(of).unwrap()
}

/// All offers.
pub fn infos(overrides: &[(&str, &str)]) -> Vec<Info> {
    let found = VerbsProvider::new().discover(&settings(overrides));
    found.candidates
}

/// The first offer of datagrams.
pub fn info(overrides: &[(&str, &str)], prefix: Prefix) -> Info {
    let found = VerbsProvider::new().discover(&settings(overrides));
    let mode = match prefix {
        Prefix::Room => Mode::MSG_PREFIX,
        Prefix::None => Mode::empty(),
    };
    let wanted = |info: &Info| info.ep.ep_type == EpType::Dgram && info.mode == mode;
    let notices = found.notices;
    found
        .candidates
        .into_iter()
        .find(wanted)
        .unwrap_or_else(|| panic!("no datagrams: {notices:?}"))
}

/// A domain of datagrams.
pub fn domain(overrides: &[(&str, &str)], prefix: Prefix) -> Arc<dyn Domain> {
    let info = info(overrides, prefix);
    VerbsProvider::new()
        .open(&info, &settings(overrides))
        .unwrap()
}

/// The domain that an offer describes.
pub fn open(info: &Info) -> Arc<dyn Domain> {
    VerbsProvider::new().open(info, &settings(&[])).unwrap()
}

/// An endpoint on a domain.
pub fn endpoint(domain: &dyn Domain) -> OwningEndpoint {
    OwningEndpoint::open(domain, &AvAttr::default()).unwrap()
}

/// The next operation of an endpoint that is over.
///
/// # Panics
///
/// When none is in time.
pub fn next(endpoint: &mut OwningEndpoint, what: &str) -> Done {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = endpoint.poll().unwrap() {
            return done;
        }
        assert!(Instant::now() < until, "{what} is not over in time");
        std::thread::yield_now();
    }
}

/// Nothing of these endpoints comes to an end.
///
/// # Panics
///
/// When something does.
pub fn quiet(endpoints: &mut [&mut OwningEndpoint]) {
    let until = Instant::now() + QUIET;
    while Instant::now() < until {
        for endpoint in &mut *endpoints {
            if let Some(done) = endpoint.poll().unwrap() {
                panic!("{done:?} though nothing was to come");
            }
        }
        std::thread::yield_now();
    }
}

/// What an endpoint has counted.
pub fn count(endpoint: &OwningEndpoint, name: &str) -> u64 {
    let stats = endpoint.stats().unwrap();
    let found = stats.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("{name}: {stats:?}")).1
}
