//! The conformance suite while datagrams get lost, come twice and overtake each other: every
//! scenario that there is, on each kind of lane. A handshake goes by datagrams whatever carries the
//! messages.
//!
//! The real network that does so is slow (`hw-tests/tests/lossy_conformance.rs`); this one has time
//! for all scenarios. The list of most is [`conformance!`]'s own, and [`no_scenario_is_left_out`]
//! finds a scenario that stands neither there nor here.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::{self, settings};
use ferrofabric_conformance::{
    churn, completions, conformance, descriptors, dgram, dgram_conformance, ends, levels, model,
    multi_receives, probes, progress, removals, reports, waiting,
};
use ferrofabric_core::fabric::{Domain, Provider};
use ferrofabric_core::flags::Mode;
use ferrofabric_core::info::{EpType, Info, Progress};
use ferrofabric_fake_device::control::{FakeDevice, Network, ROCE};
use ferrofabric_verbs::VerbsProvider;

/// Around inline requests, eager messages in one packet and in two, and pieces of long ones.
const THRESHOLDS: [usize; 10] = [8, 48, 156, 196, 212, 8192, 16_440, 32_768, 262_144, 524_288];

/// The kinds of lanes.
const LANES: [&str; 3] = ["ud", "auto", "rc"];

/// Nothing is delayed for so long while anybody polls.
const SILENCE: Duration = Duration::from_millis(10);

/// The device behind a bad network, for one test at a time. Misuse of the device fails the test.
struct Turn(FakeDevice);

impl Turn {
    /// From a seed that is printed, or `FERRO_NETWORK`'s.
    fn take() -> Self {
        let device = FakeDevice::take();
        let given = std::env::var("FERRO_NETWORK").ok();
        let seed = given.map_or_else(random, |seed| seed.parse().unwrap());
        println!("FERRO_NETWORK={seed}");
        device.network(&Network {
            seed,
            lost: 4,
            repeated: 4,
            delayed: 8,
        });
        Self(device)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.misuse(), "", "misuse of the device");
        }
    }
}

/// A number that nobody knows.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
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
    let turn = Turn::take();
    let fabric = Fabric::new("a network with losses", move |_| {
        let _held = &turn;
        domain(lane)
    });
    let patience = Duration::from_secs(60);
    Some(fabric.with_thresholds(&THRESHOLDS).with_patience(patience))
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
    let turn = Turn::take();
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
    const MESSAGES: u64 = 500;
    let turn = Turn::take();
    let pair = ends::Pair::open(&*domain("ud"), &*domain("ud"));
    for tag in 0..MESSAGES {
        let recv = ends::any_tagged(pair.b.context());
        pair.b.recv(&recv, &[pair.b.memory(8, 0)]).unwrap();
        pair.a.send(&pair.b, pair.tagged(tag), 8, 1);
        assert_eq!(pair.wait(&pair.b.rx, recv.context).unwrap().tag, tag);
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
        let _turn = Turn::take();
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
    for lane in LANES {
        let _turn = Turn::take();
        println!("lane {lane}");
        scenario(&*domain(lane), &*domain(lane));
    }
}

/// Covers: PEER-8, PEER-9, PEER-10
#[test]
fn random_programs_do_as_the_model() {
    for lane in LANES {
        model::random_programs(&lossy(lane).unwrap(), 50);
    }
}

/// Covers: AV-2, AV-17, AV-23
#[test]
fn random_removals_do_as_the_model() {
    for lane in LANES {
        model::random_removals(&lossy(lane).unwrap(), 50);
    }
}

/// Covers: AV-17, AV-23
#[test]
fn peers_come_and_go() {
    come_and_go(&["rc"]);
}

/// Address handles are given back, too.
#[test]
#[ignore = "one run of ten fails: a message to a peer that was removed and inserted again ends with ECONNRESET"]
fn peers_come_and_go_by_datagrams() {
    come_and_go(&["ud", "auto"]);
}

fn come_and_go(lanes: &[&'static str]) {
    for &lane in lanes {
        let turn = Turn::take();
        // Registrations that are kept for further messages are not given back.
        let cache = [("FERRO_MR_CACHE", "off")];
        let fabric = Fabric::new("a network with losses", move |_| {
            domain_with(&[&on_lane(lane)[..], &cache].concat(), |_| {})
        });
        removals::come_and_go(&fabric, 4, 20, || turn.0.live());
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
    on_each_lane_that_drives_itself(waiting::somebody_else_has_looked);
    on_each_lane_that_drives_itself(waiting::what_others_have_sent);
}

#[test]
fn descriptors_wake() {
    on_each_lane_that_drives_itself(descriptors::messages_wake);
    on_each_lane(|ours, _| descriptors::what_others_do_wakes(ours));
    on_each_lane_that_drives_itself(descriptors::several_at_a_time);
}

#[test]
fn a_level_that_is_not_reached_is_an_error() {
    on_each_lane(levels::delivery_to_one_who_leaves);
}

#[test]
fn a_peer_that_closes_is_shut_down() {
    on_each_lane(completions::a_peer_that_closes_is_shut_down);
}

#[test]
fn automatic_progress() {
    for lane in LANES {
        let _turn = Turn::take();
        let automatic = || {
            domain_with(&on_lane(lane), |info| {
                info.domain.data_progress = Progress::Auto
            })
        };
        progress::while_the_application_computes(&*automatic(), &*domain(lane));
        progress::a_first_message(&*automatic(), &*domain(lane));
        progress::a_message_to_oneself(&*automatic());
        progress::the_thread_ends(automatic);
        waiting::somebody_else_has_looked(&*automatic(), &*automatic());
        completions::only_where_asked_for(&*automatic(), &*automatic());
    }
}

#[test]
fn threads_that_take_turns_are_served() {
    for lane in LANES {
        let _turn = Turn::take();
        let info = found(&on_lane(lane), EpType::Rdm, Mode::empty());
        let settings = settings(&on_lane(lane));
        limits::threads_that_take_turns(&VerbsProvider::new(), &info, &settings);
    }
}

#[test]
fn queues_end_and_lose_nothing() {
    on_each_lane(|a, b| {
        limits::a_queue_before_the_connection(&mut limits::Pair::open(a, b));
        let mut pair = limits::Pair::open(a, b);
        for len in [8, 4000] {
            limits::a_queue_to_a_peer_that_does_nothing(&mut pair, len);
            limits::a_queue_to_a_peer_that_does_not_receive(&mut pair, len);
        }
    });
}

#[test]
fn an_endpoint_that_closes_leaves_its_counters() {
    for lane in LANES {
        let _turn = Turn::take();
        let test = format!("counters of {lane} with losses");
        let folder = reports::folder(env!("CARGO_TARGET_TMPDIR"), &test);
        let stats = [("FERRO_STATS", folder.to_str().unwrap())];
        let open = || domain_with(&[&on_lane(lane)[..], &stats].concat(), |_| {});
        reports::each_endpoint_leaves_a_file(&*open(), &*open(), &folder, "verbs");
    }
}

/// Scenarios that do not run here, and why. The table of [`dgram_conformance!`] has those of DGRAM
/// endpoints.
const LEFT_OUT: [(&str, &[&str]); 6] = [
    (
        "no datagram is sent",
        &[
            "churn::operations_between_the_addresses_of_a_call",
            "levels::refused",
            "limits::impossible_sizes",
            "limits::malformed_addresses",
            "limits::objects_of_two_domains",
        ],
    ),
    (
        "whatever is sent is lost anyway",
        &["completions::errors_of_sends_to_nobody"],
    ),
    (
        "of transports where what is sent is there: shared memory alone",
        &[
            "multi_receives::the_sender_is_gone",
            "probes::a_peek_looks_at_what_has_come",
            "waiting::an_endpoint_opened_meanwhile",
            "waiting::what_completes_within_a_call",
        ],
    ),
    ("about a lock", &["limits::a_second_thread"]),
    ("a state without losses", &["steady::allocates_nothing"]),
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

/// Each public function of the suite that takes a domain or a fabric is in one of the tables,
/// called here, or left out for a reason.
#[test]
fn no_scenario_is_left_out() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/src");
    let read = |file: PathBuf| std::fs::read_to_string(file).unwrap();
    let tables = read(suite.join("suite.rs")) + &read(suite.join("dgram/mod.rs"));
    let (here, _) = include_str!("lossy_conformance.rs")
        .split_once("const LEFT_OUT")
        .unwrap();
    let left_out: BTreeSet<&str> = LEFT_OUT.iter().flat_map(|(_, all)| *all).copied().collect();
    let scenarios = scenarios(&suite, &suite);
    assert!(scenarios.len() > 100, "{scenarios:?}");
    for name in &left_out {
        assert!(scenarios.contains(*name), "there is no {name}");
    }
    let missing = scenarios.iter().filter(|name| {
        let in_dgram = name.strip_prefix("dgram::");
        let in_table = format!(" {},", in_dgram.unwrap_or(name));
        let offered = format!(" {} if ", name);
        let called = here.match_indices(&***name).any(|(at, _)| {
            let behind = here[at + name.len()..].chars().next();
            behind.is_some_and(|c| !c.is_alphanumeric() && c != '_')
        });
        let listed = tables.contains(&in_table) || tables.contains(&offered);
        !(listed || called || left_out.contains(&***name))
    });
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "not run with losses: {missing:#?}");
}

/// The functions below a folder that may be scenarios, by the paths of their modules.
fn scenarios(folder: &Path, suite: &Path) -> BTreeSet<String> {
    const TAKES: [&str; 4] = ["&dyn Domain", "&dyn Provider", "&Fabric", "&mut Pair"];
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
