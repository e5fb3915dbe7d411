//! Runs of a scenario over a provider: each in a process of its own, which has one libfabric, and
//! which ends when its time is over.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a module of a test program, and a test may panic"
)]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ferro_fi::abi::FI_VERSION;
use ferrofabric_conformance::ends;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_runtime::fabric::Domain;
use ferrofabric_shm::ShmProvider;

use crate::by_c::{DomainByC, Offer};
use crate::child;
use crate::client::Libfabric;
use crate::conformance_by_c::LEFT_OUT;

use crate::support::plugin::{FakeDevicePlugin, Plugin};
use crate::support::run::{Finished, run};
use crate::support::tool::Tool;
use crate::support::{has_device, skip};

/// The time of a scenario that has to pass.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time of a scenario that is expected to fail: it fails, too, if it hangs.
const IMPATIENCE: Duration = Duration::from_secs(5);

/// Says to the process of a scenario which domain it is to open; empty: any.
const DOMAIN: &str = "FERRO_TEST_DOMAIN";

/// The name of our own provider.
pub const OURS: &str = "ferro";

/// The scenarios that the emulated Soft-RoCE machine runs each day, over verbs alone: all of them
/// take many minutes there.
const DAILY: Reasons = &[(
    "one of each kind",
    &[
        "sends::each_form_of_send",
        "sends::truncation_of_each_size",
        "matches::directed_and_wildcard_receives",
        "multi_receives::pieces_of_a_buffer",
        "probes::each_flag",
        "lists::messages_go_into_lists",
        "unknown_sources::are_named_and_become_peers",
        "user_ids::replace_addresses",
        "removals::a_reused_index",
        "levels::delivery",
        "counters::of_bytes",
        "completions::errors_always",
    ],
)];

/// Whether this is the emulated machine, and the run is no soak.
fn is_emulated() -> bool {
    let is_set = |name| std::env::var_os(name).is_some();
    is_set("FERRO_MACHINE") && !is_set("FERRO_SOAK")
}

/// Scenarios by `group::name`, by the reason that they have in common.
pub type Reasons = &'static [(&'static str, &'static [&'static str])];

/// All scenarios of a table.
pub fn names(reasons: Reasons) -> impl Iterator<Item = &'static str> {
    reasons.iter().flat_map(|(_, names)| names.iter().copied())
}

/// The reason for the scenario of a test, which has its name without its group.
fn reason(reasons: Reasons, test: &str) -> Option<&'static str> {
    let is_named = |scenario: &&str| scenario.rsplit("::").next() == test.rsplit("::").next();
    let found = reasons.iter().find(|(_, names)| names.iter().any(is_named));
    found.map(|(reason, _)| *reason)
}

/// A provider of libfabric's, as the suite runs over it.
pub struct ProviderUnderTest {
    /// Its name, as `fi_fabric_attr::prov_name`.
    pub name: &'static str,
    /// The version of libfabric, major and minor number, whose provider the table is about; `None`
    /// for any.
    pub version: Option<(u32, u32)>,
    /// Scenarios that it fails, hangs in, or does not offer what they need, by reason.
    pub does_not: Reasons,
    /// Those that do not run over it, since it may crash in them or pass.
    pub not_run: Reasons,
    /// Those that it fails besides with a libfabric older than 2.3.
    pub does_not_before_2_3: Reasons,
    /// The provider that carries ours' messages to local peers in place of our shared memory.
    pub beside: Option<&'static str>,
    /// Sizes in bytes at which something changes.
    pub thresholds: &'static [usize],
}

/// The domain of a run, and the variables of its process.
type Way = (&'static str, &'static [(&'static str, &'static str)]);

impl ProviderUnderTest {
    /// The ways to run: ours over shared memory, and over verbs where there is a device.
    fn ways(&self) -> Vec<Way> {
        if self.name != OURS || self.beside.is_some() {
            return vec![("", &[])];
        }
        let over_verbs: Way = ("", &[("FERRO_SHM", "off")]);
        match has_device() {
            true if is_emulated() => vec![over_verbs],
            true => vec![(ShmProvider::DOMAIN, &[]), over_verbs],
            false => vec![(ShmProvider::DOMAIN, &[])],
        }
    }

    /// Opens domains of it, in the process of a scenario.
    fn fabric(&'static self) -> Option<Fabric> {
        static LIBFABRIC: OnceLock<Option<Libfabric>> = OnceLock::new();
        let Some(libfabric) = LIBFABRIC.get_or_init(Libfabric::load) else {
            skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
            return None;
        };
        let name = self.name;
        let is_other = |(major, minor)| libfabric.version != FI_VERSION(major, minor);
        if self.version.is_some_and(is_other) {
            println!("SKIP: the table of {name} is about another libfabric [C]");
            return None;
        }
        let thread = std::thread::current();
        let test = thread.name().expect("a test's thread has its name");
        let is_old = libfabric.version < FI_VERSION(2, 3);
        if let Some(reason) = reason(self.does_not_before_2_3, test).filter(|_| is_old) {
            println!("SKIP: {test}: {reason} [C]");
            return None;
        }
        let domain = std::env::var(DOMAIN).unwrap();
        let has_all = self.beside.is_none();
        let offer = move || Offer::find(libfabric, self.name, &domain, has_all);
        if offer().is_none() {
            assert_ne!(name, OURS, "no offer");
            println!("SKIP: this libfabric has no provider {name} for messages [C]");
            return None;
        }
        let open =
            move |_| -> Arc<dyn Domain> { Arc::new(DomainByC::open(offer().unwrap()).unwrap()) };
        ends::let_late_cancels_succeed();
        Some(Fabric::new(self.name, open).with_thresholds(self.thresholds))
    }

    /// Runs the test once more, in a process of its own with so much time.
    fn run(&self, test: &str, (domain, variables): Way, patience: Duration) -> Finished {
        let mut command = Tool::asked_for().run(&std::env::current_exe().unwrap());
        child::again(&mut command, test, variables);
        command.arg("--include-ignored").env(DOMAIN, domain);
        let Some(beside) = self.beside else {
            let plugin = Plugin::new();
            plugin.choose(&mut command);
            if self.name != OURS {
                command.env("FI_PROVIDER", self.name);
            }
            return run(command, patience);
        };
        command.env("FERRO_SHM_PROVIDER", beside);
        if has_device() {
            let plugin = Plugin::new();
            plugin.choose(&mut command);
            return run(command, patience);
        }
        let device = FakeDevicePlugin::new();
        device.choose(&mut command);
        run(command, patience)
    }

    /// Runs a scenario, and judges how it ended.
    fn judge(&self, test: &str) {
        if is_emulated() && (self.name != OURS || reason(DAILY, test).is_none()) {
            println!("SKIP: {test}: the emulated machine runs it in the soak [soak]");
            return;
        }
        if let Some(reason) = reason(self.not_run, test) {
            println!("SKIP: {test}: {reason} [C]");
            return;
        }
        let listed = reason(self.does_not, test);
        let patience = listed.map_or(PATIENCE, |_| IMPATIENCE);
        for way in self.ways() {
            let ended = self.run(test, way, patience);
            let Finished { output, what, .. } = &ended;
            let begins = |word| output.lines().find(|line| line.starts_with(word));
            if let Some(line) = begins("SKIP") {
                println!("{line}");
                continue;
            }
            let lacks = begins("NOT OFFERED").is_some();
            let passes = ended.success && output.contains("1 passed") && !lacks;
            match listed {
                None => assert!(passes, "{test}: {what}: {output}"),
                Some(reason) => {
                    assert!(!passes, "{test} passes, but is listed: {reason}");
                    println!("SKIP: {test}: {reason} [C]");
                }
            }
        }
    }
}

/// For the suite's macro, which opens a fabric for each scenario: in the process of a scenario, the
/// fabric; in the test itself nothing, since the processes have run.
pub fn fabric(provider: &'static ProviderUnderTest) -> Option<Fabric> {
    if child::is_here() {
        return provider.fabric();
    }
    let thread = std::thread::current();
    let test = thread.name().expect("a test's thread has its name");
    match reason(LEFT_OUT, test) {
        Some(reason) => println!("SKIP: {test}: {reason} [C]"),
        None => provider.judge(test),
    }
    None
}
