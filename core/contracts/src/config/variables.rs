//! Environment variables that look like settings and are none: a typing error would otherwise
//! leave the default in place without a word.

use std::sync::atomic::{AtomicBool, Ordering};

use super::SETTINGS;

const PREFIX: &str = "FERRO_";

/// The prefix under which libfabric shows the settings.
const LIBFABRIC_PREFIX: &str = "FI_FERRO_";

/// A variable that starts with `FERRO_`, is no setting, and has another reader.
#[derive(Clone, Copy, Debug)]
pub struct OtherVariable {
    /// Its name; a name that ends in `_` stands for all names that start with it.
    pub name: &'static str,
    /// Its reader, for which it needs no warning.
    pub reader: &'static str,
}

/// All variables of the project that are no settings.
pub const OTHER_VARIABLES: &[OtherVariable] = &[
    other("FERRO_TEST_", "tests that start processes of their own"),
    other("FERRO_CACHE", "scripts: the folder of downloads and images"),
    other("FERRO_CLEAN_ROOM", "scripts: the clean room that runs them"),
    other("FERRO_CONFORMANCE_CASES", "the conformance search"),
    other("FERRO_CONFORMANCE_REPLAY", "the conformance search"),
    other("FERRO_COUNTED", "the bench of instruction counts"),
    other("FERRO_COUNTED_ONLY", "the bench of instruction counts"),
    other("FERRO_COUNTERS", "the seed of the counters test"),
    other("FERRO_FAKE_PROFILE", "the fake device: the kind of NIC"),
    other("FERRO_FAKE_SEED", "the seed of a random NIC"),
    other(
        "FERRO_FAKE_WITHOUT",
        "the fake device: abilities that it lacks",
    ),
    other("FERRO_KEEP_COMPILED", "a test that compiles C programs"),
    other("FERRO_LIBFABRIC_INCLUDE", "the generator of bindings"),
    other("FERRO_LINK", "tests with two nodes: their network device"),
    other("FERRO_MACHINE", "tests in the Soft-RoCE machine"),
    other("FERRO_MPI", "tests of MPI: the folder that ci/mpi has made"),
    other("FERRO_NETWORK", "the seed of the lossy network's tests"),
    other("FERRO_NODE", "tests with two nodes: the number of the node"),
    other("FERRO_PEER_IP", "tests with two nodes: the other node"),
    other("FERRO_RDMA_CORE_INCLUDE", "the generator of bindings"),
    other("FERRO_REQUIRE_DEVICE", "tests that fail without a device"),
    other("FERRO_SEED", "the seed of the shared-memory tests"),
    other("FERRO_SOAK", "tests that run for long"),
    other("FERRO_STORM", "the seed of one storm test"),
    other("FERRO_STORMS", "the number of storm tests"),
    other(
        "FERRO_XTASK",
        "scripts: the program that counts and reads for them",
    ),
];

const fn other(name: &'static str, reader: &'static str) -> OtherVariable {
    OtherVariable { name, reader }
}

impl OtherVariable {
    fn covers(&self, variable: &str) -> bool {
        match self.name.ends_with('_') {
            true => variable.starts_with(self.name),
            false => variable == self.name,
        }
    }
}

/// A variable that no part of the project reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The variable of the setting with the most similar name.
    pub nearest: String,
}

/// The unknown ones of some variables, in the order of their names.
pub fn unknown(variables: impl IntoIterator<Item = String>) -> Vec<UnknownVariable> {
    let mut unknown: Vec<_> = variables.into_iter().filter_map(unknown_one).collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    unknown
}

fn unknown_one(name: String) -> Option<UnknownVariable> {
    let (prefix, rest) = [PREFIX, LIBFABRIC_PREFIX]
        .into_iter()
        .find_map(|prefix| Some((prefix, name.strip_prefix(prefix)?.to_lowercase())))?;
    let is_setting = |upper: &str| SETTINGS.iter().any(|s| s.name.to_uppercase() == upper);
    if is_setting(&name[prefix.len()..]) || OTHER_VARIABLES.iter().any(|o| o.covers(&name)) {
        return None;
    }
    let distance = |setting: &str| strsim::damerau_levenshtein(setting, &rest);
    let nearest = SETTINGS.iter().min_by_key(|s| distance(s.name))?;
    Some(UnknownVariable {
        nearest: format!("{prefix}{}", nearest.name.to_uppercase()),
        name,
    })
}

/// The unknown variables of the environment.
pub fn unknown_of_environment() -> Vec<UnknownVariable> {
    // A setting has an ASCII name, so a name that is not text is none.
    unknown(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

/// Names each unknown variable of the environment on standard error, the first time that this
/// process calls it.
pub fn warn_once() {
    static DONE: AtomicBool = AtomicBool::new(false);
    // Relaxed: nothing but the flag itself is shared.
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    for UnknownVariable { name, nearest } in unknown_of_environment() {
        eprintln!(
            "ferro: warning: {name} is no setting, so it has no effect; the nearest one is {nearest}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown_names(names: &[&str]) -> Vec<(String, String)> {
        let all = unknown(names.iter().map(|name| (*name).to_owned()));
        all.into_iter().map(|u| (u.name, u.nearest)).collect()
    }

    #[test]
    fn an_unknown_variable_has_its_nearest_setting() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            unknown_names(&[
                "PATH",
                "FERRO_SPINN",
                "FERRO_LANES",
                "FI_FERRO_VERB",
                "FERRO_"
            ]),
            [
                pair("FERRO_", "FERRO_SHM"),
                pair("FERRO_LANES", "FERRO_LANE"),
                pair("FERRO_SPINN", "FERRO_SPIN"),
                pair("FI_FERRO_VERB", "FI_FERRO_VERBS"),
            ]
        );
        // The reader looks for capitals.
        assert_eq!(unknown_names(&["FERRO_shm"]).len(), 1);
    }

    #[test]
    fn settings_and_variables_of_other_readers_are_known() {
        for setting in SETTINGS {
            for prefix in [PREFIX, LIBFABRIC_PREFIX] {
                let name = format!("{prefix}{}", setting.name.to_uppercase());
                assert_eq!(unknown_names(&[&name]), []);
            }
        }
        assert_eq!(unknown_names(&["FERRO_TEST_UNDER", "FERRO_STORM"]), []);
        // A prefix alone covers no longer name.
        assert_eq!(unknown_names(&["FERRO_STORMY"]).len(), 1);
    }
}
