//! The conformance suite while datagrams get lost, come twice and overtake each other: every
//! scenario that there is, on each kind of lane. A handshake goes by datagrams whatever carries the
//! messages.
//!
//! The real network that does so is slow (`hw-tests/tests/integration/lossy_conformance.rs`); this one has time
//! for all scenarios that bear losses. The list of most is [`conformance!`]'s own, and
//! [`no_scenario_is_left_out`] finds a scenario that stands neither there nor here.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::{self, settings};
use ferrofabric_conformance::{
    backlogs, churn, closes, completions, conformance, descriptors, dgram, dgram_conformance, ends,
    levels, model, multi_receives, probes, progress, remapping, removals, reports, waiting,
};
use ferrofabric_contracts::flags::Mode;
use ferrofabric_contracts::info::{EpType, Info, Progress};
use ferrofabric_fake_device::control::{FakeDevice, NetworkFaults, ROCE};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_verbs::VerbsProvider;

/// Around inline requests, eager messages in one packet and in two, and pieces of long ones.
const THRESHOLDS: [usize; 10] = [8, 48, 156, 196, 212, 8192, 16_440, 32_768, 262_144, 524_288];

/// The kinds of lanes.
const LANES: [&str; 3] = ["ud", "auto", "rc"];

/// Nothing is delayed for so long while anybody polls.
const SILENCE: Duration = Duration::from_millis(10);

/// The device behind a bad network, for one test at a time. Misuse of the device fails the test.
struct LossyTurn(FakeDevice);

impl LossyTurn {
    /// From a seed that is printed, or `FERRO_NETWORK`'s.
    fn take() -> Self {
        let device = FakeDevice::take();
        let given = std::env::var("FERRO_NETWORK").ok();
        let seed = given.map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
        println!("FERRO_NETWORK={seed}");
        device.network(&NetworkFaults {
            seed,
            lost: 4,
            repeated: 4,
            delayed: 8,
        });
        Self(device)
    }
}

impl Drop for LossyTurn {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.misuse(), "", "misuse of the device");
        }
    }
}

fn found(pairs: &[(&str, &str)], ep_type: EpType, mode: Mode) -> Info {
    let found = VerbsProvider::new().discover(&settings(pairs));
    let mut candidates = found.candidates.into_iter();
    let info = candidates.find(|info| info.ep.ep_type == ep_type && info.mode == mode);
    info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices))
}

fn on_lane(lane: &str) -> [(&str, &str); 3] {
    [
        ("FERRO_DEVICE", ROCE),
        ("FERRO_SHM", "off"),
        ("FERRO_LANE", lane),
    ]
}

fn domain(lane: &str) -> Arc<dyn Domain> {
    domain_with(&on_lane(lane), |_| {})
}

fn domain_with(pairs: &[(&str, &str)], change: impl FnOnce(&mut Info)) -> Arc<dyn Domain> {
    let mut info = found(pairs, EpType::Rdm, Mode::empty());
    change(&mut info);
    VerbsProvider::new().open(&info, &settings(pairs)).unwrap()
}

fn lossy(lane: &'static str) -> Option<Fabric> {
    let turn = LossyTurn::take();
    let fabric = Fabric::new("a network with losses", move |_| {
        let _held = &turn;
        domain(lane)
    });
    let patience = Duration::from_secs(60);
    let fabric = fabric.with_thresholds(&THRESHOLDS).with_losses(SILENCE);
    Some(fabric.with_patience(patience))
}

mod by_datagrams {
    super::conformance!(super::lossy("ud"));
}

mod from_datagrams_to_connections {
    super::conformance!(super::lossy("auto"));
}

mod by_connections {
    super::conformance!(super::lossy("rc"));
}

fn lossy_datagrams(mode: Mode) -> Option<Fabric> {
    let turn = LossyTurn::take();
    let fabric = Fabric::new("datagrams with losses", move |_| {
        let _held = &turn;
        let pairs = [("FERRO_DEVICE", ROCE)];
        let info = found(&pairs, EpType::Dgram, mode);
        VerbsProvider::new().open(&info, &settings(&pairs)).unwrap()
    });
    let patience = Duration::from_secs(60);
    Some(fabric.with_losses(SILENCE).with_patience(patience))
}

mod datagrams {
    super::dgram_conformance!(@lossy super::lossy_datagrams(super::Mode::empty()));
}

mod datagrams_behind_a_prefix {
    super::dgram_conformance!(@lossy super::lossy_datagrams(super::Mode::MSG_PREFIX));
}

/// Covers: GI-4, AV-17, AV-25
#[test]
fn random_programs_of_datagrams_do_as_the_model() {
    for mode in [Mode::empty(), Mode::MSG_PREFIX] {
        dgram::model::random_programs(&lossy_datagrams(mode).unwrap(), 50);
    }
}

/// The network loses, repeats and reorders datagrams, and the lane notices all of it.
#[test]
fn datagrams_are_lost_repeated_and_overtaken() {
    const ROUNDS: u64 = 125;
    /// Messages under way at a time: one alone has no other to overtake it.
    const BURST: u64 = 4;
    let turn = LossyTurn::take();
    let pair = ends::QueuedPair::open(&*domain("ud"), &*domain("ud"));
    for round in 0..ROUNDS {
        let tags = round * BURST..(round + 1) * BURST;
        let posted = tags.clone().map(|_| {
            let recv = ends::any_tagged(pair.b.context());
            pair.b.recv(&recv, &[pair.b.memory(8, 0)]).unwrap();
            recv.context
        });
        let posted: Vec<_> = posted.collect();
        for tag in tags.clone() {
            pair.a.send(&pair.b, pair.tagged(tag), 8, 1);
        }
        for (tag, context) in tags.zip(posted) {
            assert_eq!(pair.wait(&pair.b.rx, context).unwrap().tag, tag);
        }
    }
    let crossed = turn.0.crossed();
    println!("{crossed:?}");
    for part in [crossed.lost, crossed.repeated, crossed.overtaken] {
        assert!(part > 0 && part < crossed.sent / 4, "{crossed:?}");
    }
    let stats = pair.a.endpoint.stats().unwrap();
    let repeated = reports::counter(&stats, "verbs_datagrams_repeated");
    assert!(repeated > 0, "nothing was sent again");
    drop(pair);
}

/// For scenarios where one thread waits and no other drives the sender: the sender drives itself,
/// or nothing would repeat a lost datagram.
fn on_each_lane_that_drives_itself(scenario: impl Fn(&dyn Domain, &dyn Domain)) {
    for lane in LANES {
        let _turn = LossyTurn::take();
        println!("lane {lane}");
        let open = || {
            domain_with(&on_lane(lane), |info| {
                info.domain.data_progress = Progress::Auto
            })
        };
        scenario(&*domain(lane), &*open());
    }
}

/// On each kind of lane, with one domain for each side.
fn on_each_lane(scenario: impl Fn(&dyn Domain, &dyn Domain)) {
    on_each_lane_with(&[], scenario);
}

/// As `on_each_lane`, with settings.
fn on_each_lane_with(changed: &[(&str, &str)], scenario: impl Fn(&dyn Domain, &dyn Domain)) {
    for lane in LANES {
        let _turn = LossyTurn::take();
        println!("lane {lane}");
        let open = || domain_with(&[&on_lane(lane)[..], changed].concat(), |_| {});
        scenario(&*open(), &*open());
    }
}

/// Covers: PEER-8, PEER-9, PEER-10
#[test]
fn random_programs_do_as_the_model() {
    for lane in LANES {
        model::random_programs(&lossy(lane).unwrap(), 25);
    }
}

/// Covers: AV-2, AV-17, AV-23
#[test]
fn random_removals_do_as_the_model() {
    for lane in LANES {
        model::random_removals(&lossy(lane).unwrap(), 25);
    }
}

/// Covers: AV-17, AV-23
#[test]
fn peers_come_and_go() {
    come_and_go(&["rc"]);
}

/// Address handles are given back, too.
///
/// Covers: AV-17, AV-23
#[test]
fn peers_come_and_go_by_datagrams() {
    come_and_go(&["ud", "auto"]);
}

fn come_and_go(lanes: &[&'static str]) {
    for &lane in lanes {
        let turn = LossyTurn::take();
        // Registrations that are kept for further messages are not given back.
        let cache = [("FERRO_MR_CACHE", "off")];
        let fabric = Fabric::new("a network with losses", move |_| {
            domain_with(&[&on_lane(lane)[..], &cache].concat(), |_| {})
        });
        removals::come_and_go(&fabric, 4, 20, || turn.0.live());
    }
}

#[test]
#[ignore = "soak: hundreds of thousands of operations"]
fn many_one_sided_operations() {
    for lane in LANES {
        let fabric = lossy(lane).unwrap();
        remapping::one_sided_operations_on_memory_that_goes(&fabric, 100_000);
        closes::regions_under_long_fire(fabric.domain(0), fabric.domain(1), 10);
    }
}

/// Covers: PEER-8
#[test]
fn a_multi_receive_that_is_cancelled_in_use() {
    on_each_lane(|a, b| multi_receives::cancelled_in_use(a, b, false));
}

/// Covers: PEER-8
#[test]
fn a_claimed_message_of_a_sender_that_is_gone_fails() {
    on_each_lane(probes::a_claimed_message_of_a_sender_that_is_gone);
}

/// Covers: AV-2, AV-17
#[test]
fn an_address_vector_changes_beside_a_sender() {
    on_each_lane(|a, b| churn::insertions_beside_a_sender(a, b, 3000, 20_000));
}

/// Covers: AV-11, AV-17
#[test]
fn an_index_changes_hands_beside_a_sender() {
    on_each_lane(|a, b| churn::an_index_that_changes_hands_beside_a_sender(a, b, 100));
}

#[test]
fn several_threads_wait() {
    on_each_lane_that_drives_itself(waiting::two_queues);
    on_each_lane_that_drives_itself(waiting::signals_and_timeouts);
    on_each_lane_that_drives_itself(waiting::an_event_after_a_poll_by_another_thread_wakes);
    on_each_lane_that_drives_itself(waiting::sends_of_other_threads_go_on);
}

#[test]
fn descriptors_wake() {
    on_each_lane_that_drives_itself(descriptors::messages_wake);
    on_each_lane(|ours, _| descriptors::events_of_other_threads_wake(ours));
    on_each_lane_that_drives_itself(descriptors::several_at_a_time);
}

#[test]
fn a_level_that_is_not_reached_is_an_error() {
    on_each_lane(levels::delivery_to_a_peer_that_closes);
}

#[test]
fn a_peer_that_closes_is_shut_down() {
    on_each_lane(completions::a_peer_that_closes_is_shut_down);
}

#[test]
fn automatic_progress() {
    for lane in LANES {
        let _turn = LossyTurn::take();
        let automatic = || {
            domain_with(&on_lane(lane), |info| {
                info.domain.data_progress = Progress::Auto
            })
        };
        progress::while_the_application_computes(&*automatic(), &*domain(lane));
        progress::a_first_message(&*automatic(), &*domain(lane));
        progress::a_message_to_oneself(&*automatic());
        progress::the_thread_ends(automatic);
        waiting::an_event_after_a_poll_by_another_thread_wakes(&*automatic(), &*automatic());
        completions::only_where_asked_for(&*automatic(), &*automatic());
    }
}

#[test]
fn threads_that_take_turns_are_served() {
    for lane in LANES {
        let _turn = LossyTurn::take();
        let info = found(&on_lane(lane), EpType::Rdm, Mode::empty());
        let settings = settings(&on_lane(lane));
        limits::threads_that_take_turns(&VerbsProvider::new(), &info, &settings);
    }
}

#[test]
fn messages_wait_each_way() {
    on_each_lane(|a, b| {
        backlogs::of_messages(a, b, 8_000, true);
        backlogs::of_sends(a, b, 2_000);
        backlogs::of_all_lengths(a, b, 8_000);
    });
}

#[test]
fn queues_end_and_lose_nothing() {
    on_each_lane_with(&[("FERRO_WAITING_SENDS", "1024")], |a, b| {
        limits::a_queue_before_the_connection(&mut limits::OwningPair::open(a, b));
        let mut pair = limits::OwningPair::open(a, b);
        for len in [8, 4000] {
            limits::a_queue_to_a_peer_that_does_nothing(&mut pair, len);
            limits::a_queue_to_a_peer_that_does_not_receive(&mut pair, len);
        }
    });
}

#[test]
fn an_endpoint_that_closes_leaves_its_counters() {
    for lane in LANES {
        let _turn = LossyTurn::take();
        let test = format!("counters of {lane} with losses");
        let folder = reports::folder(env!("CARGO_TARGET_TMPDIR"), &test);
        let stats = [("FERRO_STATS", folder.to_str().unwrap())];
        let open = || domain_with(&[&on_lane(lane)[..], &stats].concat(), |_| {});
        reports::each_endpoint_leaves_a_file(&*open(), &*open(), &folder, "verbs");
    }
}

/// Scenarios that do not run here, and why.
const LEFT_OUT: [(&str, &[&str]); 17] = [
    (
        "no datagram is sent",
        &[
            "churn::operations_between_the_addresses_of_a_call",
            "discovery::addresses_as_text",
            "discovery::bad_flags_and_texts",
            "discovery::each_capability",
            "discovery::many_threads",
            "discovery::versions",
            "discovery::unset_hints",
            "levels::refused",
            "limits::impossible_sizes",
            "limits::malformed_addresses",
            "limits::objects_of_two_domains",
        ],
    ),
    (
        "whatever is sent is lost anyway",
        &["completions::errors_of_sends_to_missing_peers"],
    ),
    (
        "of transports where what is sent is there: shared memory alone",
        &[
            "multi_receives::the_sender_is_gone",
            "probes::a_peek_looks_at_what_has_come",
            "waiting::an_endpoint_opened_meanwhile",
            "waiting::a_completion_within_a_call_wakes",
        ],
    ),
    (
        "counts the wake-ups that a sender sends, as senders through shared memory do",
        &["progress::after_a_call"],
    ),
    ("about a lock", &["limits::a_second_thread"]),
    (
        "between processes, and each has a device of its own here",
        &[
            "killed_peers::a_peer_that_is_killed",
            "killed_peers::operate_until_killed",
        ],
    ),
    (
        "the caller has sessions end, and a network without losses shows when",
        &["atomic_ends::failed_operations_are_over"],
    ),
    (
        "the caller breaks lanes",
        &["unknown_initiators::whose_lanes_break"],
    ),
    ("a state without losses", &["steady::allocates_nothing"]),
    (
        "counts datagrams, and neither a lost one nor a second copy may change the count",
        &[
            "dgram::forms::only_flagged_operations_complete",
            "dgram::receives::counters_of_bytes",
        ],
    ),
    (
        "a certain datagram has to arrive, and the scenario does not repeat it",
        &[
            "dgram::forms::cq_data_has_as_many_bytes_as_offered",
            "dgram::sharing::an_endpoint_sends_to_itself",
        ],
    ),
    (
        "each of several datagrams has to arrive, and to arrive once",
        &[
            "dgram::cancels::cancelled_receives_take_nothing",
            "dgram::limits::an_error_ends_a_run",
            "dgram::receives::both_ways_at_once",
            "dgram::sharing::many_on_one_queue",
        ],
    ),
    (
        "datagrams have to arrive in the order of their sends",
        &[
            "dgram::cancels::sends_around_a_cancellation",
            "dgram::limits::as_many_receives_as_offered",
        ],
    ),
    (
        "the late copy of a datagram would take a receive that has to stay empty",
        &["dgram::receives::a_datagram_without_a_receive_is_lost"],
    ),
    (
        "a certain datagram has to wake a sleeper, and nobody repeats it meanwhile",
        &[
            "dgram::waiting::a_counter_wakes",
            "dgram::waiting::a_queue_wakes",
            "dgram::waiting::descriptors_wake",
        ],
    ),
    (
        "its messages go between endpoints of one node, by the thousand: conformance.rs has it",
        &["shared_queue::completions_of_two_transports"],
    ),
    (
        "no scenarios, but what runs them",
        &[
            "model::between::random_programs_between",
            "model::between::serve",
            "model::between::smallest_between",
            "model::check",
            "model::program::programs",
            "model::run::between::run_between",
            "model::run::run",
            "suite::on_each_path",
            "suite::on_first_domain",
            "suite::where_offered",
        ],
    ),
];

/// The scenarios that the macros run here, and the code of this file, which calls others.
struct ScenarioLists {
    /// The list of [`conformance!`].
    rdm: String,
    /// The list of [`dgram_conformance!`] behind `@lossy`. Its other list does not run here.
    dgram: String,
    calls: String,
}

impl ScenarioLists {
    /// The macros of the suite in this folder, and this file.
    fn of(suite: &Path) -> Self {
        let list = |file: &str, begins: &str| {
            let text = code(&std::fs::read_to_string(suite.join(file)).unwrap());
            let (_, list) = text.split_once(begins).unwrap();
            // The next arm of the macro.
            list.split_once("\n    };").unwrap().0.to_owned()
        };
        let (here, _) = include_str!("lossy_conformance.rs")
            .split_once("const LEFT_OUT")
            .unwrap();
        Self {
            rdm: list("suite.rs", "    ($fabric:expr "),
            dgram: list("dgram/mod.rs", "    (@lossy $fabric:expr "),
            calls: code(here),
        }
    }

    fn has(&self, scenario: &str) -> bool {
        let (list, name) = match scenario.strip_prefix("dgram::") {
            Some(name) => (&self.dgram, name),
            None => (&self.rdm, scenario),
        };
        let listed = [format!(" {name},"), format!(" {name} if ")];
        listed.iter().any(|entry| list.contains(entry)) || self.calls(scenario)
    }

    fn calls(&self, scenario: &str) -> bool {
        let belongs = |c: char| c.is_alphanumeric() || "_:".contains(c);
        self.calls.match_indices(scenario).any(|(at, _)| {
            let before = self.calls[..at].chars().next_back();
            let behind = self.calls[at + scenario.len()..].chars().next();
            !before.is_some_and(belongs) && !behind.is_some_and(belongs)
        })
    }
}

/// A text without the lines that are comments.
fn code(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Each public function of the suite that takes a domain or a fabric either runs here, by its table
/// or by a call, or is left out for a reason.
#[test]
fn no_scenario_is_left_out() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/src");
    let run = ScenarioLists::of(&suite);
    let left_out: BTreeSet<&str> = LEFT_OUT.iter().flat_map(|(_, all)| *all).copied().collect();
    let scenarios = scenarios(&suite, &suite);
    assert!(scenarios.len() > 100, "{scenarios:?}");
    for name in &left_out {
        assert!(scenarios.contains(*name), "there is no {name}");
        assert!(!run.has(name), "{name} runs here");
    }
    let missing = scenarios.iter().map(String::as_str);
    let missing = missing.filter(|name| !run.has(name) && !left_out.contains(name));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "not run with losses: {missing:#?}");
}

#[test]
fn a_scenario_runs_here_by_its_own_table_alone() {
    let run = ScenarioLists::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/src"));
    for name in [
        "sends::each_form_of_send",
        "levels::fences",
        "churn::insertions_beside_a_sender",
        "dgram::forms::each_form_of_send",
        "dgram::model::random_programs",
    ] {
        assert!(run.has(name), "{name} runs");
    }
    for name in [
        // In the list of datagrams alone, and in that of RDM endpoints alone.
        "forms::each_form_of_send",
        "dgram::sends::each_form_of_send",
        // In the list of datagrams that runs on a quiet network.
        "dgram::waiting::a_queue_wakes",
    ] {
        assert!(!run.has(name), "{name} does not run");
    }
}

/// The functions below a folder that may be scenarios, by the paths of their modules.
fn scenarios(folder: &Path, suite: &Path) -> BTreeSet<String> {
    const TAKES: [&str; 4] = ["&dyn Domain", "&dyn Provider", "&Fabric", "&mut OwningPair"];
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.extend(scenarios(&path, suite));
            continue;
        }
        let module = path.strip_prefix(suite).unwrap().with_extension("");
        let module = module.to_str().unwrap().replace('/', "::");
        let module = module.strip_suffix("::mod").unwrap_or(&module);
        let text = std::fs::read_to_string(&path).unwrap();
        for function in text.split("\npub fn ").skip(1) {
            let signature = function.split(" {\n").next().unwrap();
            let name = signature.split(['(', '<']).next().unwrap();
            let takes = TAKES.iter().any(|what| signature.contains(what));
            if takes || signature.contains("Arc<dyn Domain>") {
                names.insert(format!("{module}::{name}"));
            }
        }
    }
    names
}
