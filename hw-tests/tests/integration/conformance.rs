//! Endpoints of verbs domains: the calls of the object model, over the device and paired with
//! shared memory.

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::{self, settings};
use ferrofabric_conformance::model;
use ferrofabric_conformance::{
    backlogs, churn, completions, descriptors, levels, multi_receives, probes, progress, removals,
    reports, shared_queue, waiting,
};
use ferrofabric_contracts::info::Progress;
use ferrofabric_hw_tests::{Rig, offers};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Verbs for all peers.
const VERBS: (&str, &str) = ("FERRO_SHM", "off");

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    offers::domain(&settings(pairs))
}

/// One domain for each side, over the device and over shared memory.
fn both_paths(test: impl Fn(&dyn Domain, &dyn Domain)) {
    if Rig::open().is_some() {
        test(&*domain(&[VERBS]), &*domain(&[VERBS]));
        test(&*domain(&[]), &*domain(&[]));
    }
}

/// Around inline requests, eager messages in one packet and in two and at most, and writes in
/// pieces.
const THRESHOLDS: [usize; 11] = [
    8, 48, 196, 480, 488, 4064, 8120, 8192, 131_072, 262_144, 524_288,
];

fn fabric(name: &'static str, shm: fn(usize) -> bool) -> Option<Fabric> {
    Rig::open()?;
    let fabric = Fabric::new(name, move |rank| match shm(rank) {
        true => domain(&[]),
        false => domain(&[VERBS]),
    });
    let patience = Duration::from_secs(30);
    Some(fabric.with_thresholds(&THRESHOLDS).with_patience(patience))
}

fn verbs() -> Option<Fabric> {
    fabric("verbs", |_| false)
}

/// Some peers are local; the odd ranks have shared memory switched off.
fn paired() -> Option<Fabric> {
    let fabric = fabric("verbs and shared memory", |rank| rank % 2 == 0)?;
    Some(fabric.with_paths(&[(0, 1), (0, 2)]))
}

mod over_verbs {
    use super::*;

    ferrofabric_conformance::conformance!(verbs(), file_serial(verbs));

    /// Covers: PEER-8, PEER-9, PEER-10
    #[test]
    #[file_serial(verbs)]
    fn random_programs_do_as_the_model() {
        random_programs(verbs(), 30);
    }

    /// Covers: AV-2, AV-17, AV-23
    #[test]
    #[file_serial(verbs)]
    fn random_removals_do_as_the_model() {
        random_removals(verbs(), 15);
    }

    /// Covers: AV-17, AV-23
    #[test]
    #[file_serial(verbs)]
    fn peers_come_and_go() {
        peers_of_a_fabric_come_and_go(verbs());
    }

    #[test]
    #[ignore = "soak: a thousand programs"]
    #[file_serial(verbs)]
    fn many_random_programs_do_as_the_model() {
        random_programs(verbs(), 1000);
        random_removals(verbs(), 1000);
    }
}

mod over_both {
    use super::*;

    ferrofabric_conformance::conformance!(paired(), file_serial(verbs));

    /// Covers: PEER-4, PEER-13
    #[test]
    #[file_serial(verbs)]
    fn completions_in_one_queue_under_four_threads() {
        if let Some(fabric) = paired() {
            shared_queue::completions_of_two_transports(&fabric, 20_000);
        }
    }

    #[test]
    #[ignore = "soak: hundreds of thousands of completions"]
    #[file_serial(verbs)]
    fn many_completions_in_one_queue_under_four_threads() {
        if let Some(fabric) = paired() {
            shared_queue::completions_of_two_transports(&fabric, 200_000);
        }
    }

    /// Covers: PEER-8, PEER-9, PEER-10, PEER-13
    #[test]
    #[file_serial(verbs)]
    fn random_programs_do_as_the_model() {
        random_programs(paired(), 30);
    }

    /// Covers: AV-2, AV-17, AV-23
    #[test]
    #[file_serial(verbs)]
    fn random_removals_do_as_the_model() {
        random_removals(paired(), 15);
    }

    /// Covers: AV-17, AV-23
    #[test]
    #[file_serial(verbs)]
    fn peers_come_and_go() {
        peers_of_a_fabric_come_and_go(paired());
    }

    #[test]
    #[ignore = "soak: a thousand programs"]
    #[file_serial(verbs)]
    fn many_random_programs_do_as_the_model() {
        random_programs(paired(), 1000);
        random_removals(paired(), 1000);
    }
}

fn random_programs(fabric: Option<Fabric>, cases: u32) {
    if let Some(fabric) = fabric {
        model::random_programs(&fabric, cases);
    }
}

fn random_removals(fabric: Option<Fabric>, cases: u32) {
    if let Some(fabric) = fabric {
        model::random_removals(&fabric, cases);
    }
}

fn peers_of_a_fabric_come_and_go(fabric: Option<Fabric>) {
    if let Some(fabric) = fabric {
        removals::come_and_go(&fabric, 4, 50, mappings);
    }
}

/// The mappings of this process: of the device, which has the queues of each queue pair there, and
/// of segments.
fn mappings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (
        maps.matches("/dev/infiniband/uverbs").count(),
        maps.matches("/memfd:ferrofabric-pair").count(),
    )
}

/// Covers: PEER-8
#[test]
#[file_serial(verbs)]
fn a_multi_receive_that_is_cancelled_in_use() {
    both_paths(|a, b| multi_receives::cancelled_in_use(a, b, false));
}

/// Covers: PEER-8
#[test]
#[file_serial(verbs)]
fn a_claimed_message_of_a_sender_that_is_gone_fails() {
    if Rig::open().is_some() {
        let (ours, theirs) = (domain(&[VERBS]), domain(&[VERBS]));
        probes::a_claimed_message_of_a_sender_that_is_gone(&*ours, &*theirs);
    }
}

/// Covers: AV-2, AV-17
#[test]
#[file_serial(verbs)]
fn an_address_vector_changes_beside_a_sender() {
    both_paths(|a, b| churn::insertions_beside_a_sender(a, b, 3000, 20_000));
}

/// Covers: AV-11, AV-17
#[test]
#[file_serial(verbs)]
fn an_index_changes_hands_beside_a_sender() {
    both_paths(|a, b| churn::an_index_that_changes_hands_beside_a_sender(a, b, 50));
}

#[test]
#[ignore = "soak: a million messages"]
#[file_serial(verbs)]
fn an_address_vector_changes_beside_a_million_messages() {
    both_paths(|a, b| churn::insertions_beside_a_sender(a, b, 1_000_000, 1_000_000));
}

#[test]
#[file_serial(verbs)]
fn several_threads_wait() {
    both_paths(waiting::two_queues);
    both_paths(waiting::signals_and_timeouts);
    both_paths(waiting::an_event_after_a_poll_by_another_thread_wakes);
    both_paths(waiting::sends_of_other_threads_go_on);
}

#[test]
#[file_serial(verbs)]
fn a_level_that_is_not_reached_is_an_error() {
    if Rig::open().is_some() {
        let (ours, theirs) = (domain(&[VERBS]), domain(&[VERBS]));
        levels::delivery_to_a_peer_that_closes(&*ours, &*theirs);
        levels::refused(&*ours);
    }
}

#[test]
#[file_serial(verbs)]
fn messages_wait_each_way() {
    both_paths(|a, b| backlogs::of_messages(a, b, 8_000, true));
    both_paths(|a, b| backlogs::of_sends(a, b, 2_000));
    both_paths(|a, b| backlogs::of_all_lengths(a, b, 8_000));
}

#[test]
#[file_serial(verbs)]
fn a_peer_that_closes_is_shut_down() {
    both_paths(completions::a_peer_that_closes_is_shut_down);
}

#[test]
#[file_serial(verbs)]
fn automatic_progress() {
    if Rig::open().is_none() {
        return;
    }
    for pairs in [&[VERBS][..], &[]] {
        let automatic = || {
            let mut info = offers::first(&settings(pairs));
            info.domain.data_progress = Progress::Auto;
            VerbsProvider::new().open(&info, &settings(pairs)).unwrap()
        };
        progress::while_the_application_computes(&*automatic(), &*domain(pairs));
        progress::a_first_message(&*automatic(), &*domain(pairs));
        progress::a_message_to_oneself(&*automatic());
        progress::the_thread_ends(automatic);
        waiting::an_event_after_a_poll_by_another_thread_wakes(&*automatic(), &*automatic());
        completions::only_where_asked_for(&*automatic(), &*automatic());
    }
}

#[test]
#[file_serial(verbs)]
fn descriptors_wake() {
    both_paths(descriptors::messages_wake);
    both_paths(|ours, _| descriptors::events_of_other_threads_wake(ours));
    both_paths(descriptors::several_at_a_time);
}

#[test]
#[file_serial(verbs)]
fn threads_that_take_turns_are_served() {
    if Rig::open().is_some() {
        let settings = settings(&[VERBS]);
        limits::threads_that_take_turns(
            &VerbsProvider::new(),
            &offers::first(&settings),
            &settings,
        );
    }
}

#[test]
#[file_serial(verbs)]
fn an_endpoint_that_closes_leaves_its_counters() {
    if Rig::open().is_none() {
        return;
    }
    for (path, shm) in [("verbs", "off"), ("shm", "on")] {
        let folder = reports::folder(TMP, &format!("leaves its counters of {path}"));
        let pairs = [
            ("FERRO_SHM", shm),
            ("FERRO_STATS", folder.to_str().unwrap()),
        ];
        let (ours, theirs) = (domain(&pairs), domain(&pairs));
        reports::each_endpoint_leaves_a_file(&*ours, &*theirs, &folder, path);
    }
}
