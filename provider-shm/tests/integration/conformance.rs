//! The calls of the object model on endpoints of the shared-memory domain, over real segments.

use std::sync::{Arc, Mutex};

use ferrofabric_conformance::ends::QueuedEndpoint;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::model;
use ferrofabric_conformance::{
    backlogs, churn, closes, completions, descriptors, levels, multi_receives, probes, progress,
    remapping, reports, waiting,
};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::info::{Info, Progress, Threading};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;

const TMP: &str = env!("CARGO_TARGET_TMPDIR");

fn settings(pairs: &[(&str, &str)]) -> Settings {
    Settings::read(|name| {
        let found = pairs.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| (*value).to_owned())
    })
    .unwrap()
}

fn info() -> Info {
    let found = ShmProvider::new().discover(&settings(&[]));
    found.candidates.into_iter().next().unwrap()
}

fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    ShmProvider::new().open(&info(), &settings(pairs)).unwrap()
}

/// One domain for each side, with each path of long messages.
fn both_ways(test: impl Fn(&dyn Domain, &dyn Domain)) {
    for cma in ["on", "off"] {
        let setting = [("FERRO_SHM_CMA", cma)];
        test(&*domain(&setting), &*domain(&setting));
    }
}

/// Shared memory, with each path of long messages.
fn fabric(name: &'static str, cma: &'static str) -> Option<Fabric> {
    let fabric = Fabric::new(name, move |_| domain(&[("FERRO_SHM_CMA", cma)]));
    Some(fabric.with_thresholds(&[40, 48, 8192, 8768, 26_304, 65_536]))
}

mod by_the_ring {
    use ferrofabric_conformance::conformance;

    conformance!(super::fabric("shared memory, by the ring", "off"));
}

mod by_cma {
    use ferrofabric_conformance::conformance;

    conformance!(super::fabric("shared memory, by CMA", "on"));
}

/// Covers: PEER-8, PEER-9, PEER-10
#[test]
fn random_programs_do_as_the_model() {
    for (name, cma) in [
        ("shared memory, by the ring", "off"),
        ("shared memory, by CMA", "on"),
    ] {
        model::random_programs(&fabric(name, cma).unwrap(), 100);
    }
}

/// Covers: AV-2, AV-17, AV-23
#[test]
fn random_removals_do_as_the_model() {
    for (name, cma) in [
        ("shared memory, by the ring", "off"),
        ("shared memory, by CMA", "on"),
    ] {
        model::random_removals(&fabric(name, cma).unwrap(), 100);
    }
}

#[test]
#[ignore = "soak: thousands of programs"]
fn many_random_programs_do_as_the_model() {
    for (name, cma) in [
        ("shared memory, by the ring", "off"),
        ("shared memory, by CMA", "on"),
    ] {
        let fabric = fabric(name, cma).unwrap();
        model::random_programs(&fabric, 5000);
        model::random_removals(&fabric, 5000);
    }
}

/// Half of them by each way.
#[test]
fn a_hundred_thousand_one_sided_operations_on_memory_that_goes() {
    on_memory_that_goes(50_000);
}

#[test]
#[ignore = "soak: a million operations"]
fn a_million_one_sided_operations_on_memory_that_goes() {
    on_memory_that_goes(1_000_000);
}

fn on_memory_that_goes(operations: usize) {
    for (name, cma) in [
        ("shared memory, by the ring", "off"),
        ("shared memory, by CMA", "on"),
    ] {
        let fabric = fabric(name, cma).unwrap();
        remapping::one_sided_operations_on_memory_that_goes(&fabric, operations);
    }
}

#[test]
#[ignore = "soak: a million operations beside closes of regions"]
fn regions_close_under_long_fire() {
    both_ways(|a, b| closes::regions_under_long_fire(a, b, 100));
}

/// Covers: PEER-8
#[test]
fn a_multi_receive_that_is_cancelled_in_use() {
    for (cma, held_up) in [("on", false), ("off", true)] {
        let setting = [("FERRO_SHM_CMA", cma)];
        multi_receives::cancelled_in_use(&*domain(&setting), &*domain(&setting), held_up);
    }
}

/// Covers: AV-2, AV-17
#[test]
fn an_address_vector_changes_beside_a_sender() {
    churn::insertions_beside_a_sender(&*domain(&[]), &*domain(&[]), 1_000_000, 100_000);
}

/// Covers: AV-11, AV-17
#[test]
fn an_index_changes_hands_beside_a_sender() {
    let (a, b) = (domain(&[]), domain(&[]));
    churn::an_index_that_changes_hands_beside_a_sender(&*a, &*b, 5000);
}

/// Covers: AV-11, AV-12
#[test]
fn the_addresses_of_a_call_leave_room_for_others() {
    churn::operations_between_the_addresses_of_a_call(&*domain(&[]));
}

#[test]
fn a_million_messages_wait_each_way() {
    backlogs::of_messages(&*domain(&[]), &*domain(&[]), 1_000_000, true);
    backlogs::of_sends(&*domain(&[]), &*domain(&[]), 100_000);
    backlogs::of_all_lengths(&*domain(&[]), &*domain(&[]), 100_000);
}

#[test]
fn delivery_to_a_closing_endpoint() {
    let setting = [("FERRO_SHM_CMA", "off")];
    levels::delivery_to_a_peer_that_closes(&*domain(&setting), &*domain(&setting));
    levels::refused(&*domain(&[]));
}

#[test]
fn a_peer_that_closes_is_shut_down() {
    let setting = [("FERRO_SHM_CMA", "off")];
    completions::a_peer_that_closes_is_shut_down(&*domain(&setting), &*domain(&setting));
}

#[test]
fn sends_to_missing_endpoints_fail() {
    completions::errors_of_sends_to_missing_peers(&*domain(&[]), |name| {
        name.shm = Some(0xdead_beef)
    });
}

/// Covers: PEER-8
#[test]
fn a_peek_finds_arrived_messages() {
    both_ways(probes::a_peek_looks_at_what_has_come);
}

/// Covers: PEER-8
#[test]
fn a_claimed_message_of_a_dead_sender_fails() {
    let setting = [("FERRO_SHM_CMA", "off")];
    probes::a_claimed_message_of_a_sender_that_is_gone(&*domain(&setting), &*domain(&setting));
}

/// Covers: PEER-8
#[test]
fn a_multi_receive_whose_sender_is_gone_fails_once() {
    let setting = [("FERRO_SHM_CMA", "off")];
    multi_receives::the_sender_is_gone(&*domain(&setting), &*domain(&setting));
}

/// A domain with automatic progress.
fn automatic(pairs: &[(&str, &str)], threading: Threading) -> Arc<dyn Domain> {
    let mut info = info();
    info.domain.data_progress = Progress::Auto;
    info.domain.threading = threading;
    ShmProvider::new().open(&info, &settings(pairs)).unwrap()
}

#[test]
fn automatic_progress_after_a_call() {
    let doorbells = |end: &QueuedEndpoint| {
        let stats = end.endpoint.stats().unwrap();
        stats
            .iter()
            .find(|(name, _)| *name == "shm_doorbells")
            .unwrap()
            .1
    };
    let open = || automatic(&[], Threading::Safe);
    progress::after_a_call(&*open(), &*domain(&[]), doorbells);
}

#[test]
fn automatic_progress() {
    for cma in ["on", "off"] {
        let setting = [("FERRO_SHM_CMA", cma)];
        let open = || automatic(&setting, Threading::Safe);
        progress::while_the_application_computes(&*open(), &*domain(&setting));
        progress::a_first_message(&*open(), &*domain(&setting));
        progress::a_message_to_oneself(&*open());
    }
}

#[test]
fn automatic_progress_beside_threads_that_wait() {
    let open = || automatic(&[], Threading::Domain);
    waiting::two_queues(&*open(), &*domain(&[]));
    waiting::a_completion_within_a_call_wakes(&*open(), &*open());
    waiting::an_event_after_a_poll_by_another_thread_wakes(&*open(), &*domain(&[]));
    waiting::signals_and_timeouts(&*open(), &*open());
    descriptors::messages_wake(&*open(), &*open());
    descriptors::events_of_other_threads_wake(&*open());
    completions::only_where_asked_for(&*open(), &*open());
}

/// Sleepers that spin first, and sleepers that do not.
fn sleepers(test: impl Fn(&dyn Domain, &dyn Domain)) {
    for spin in ["off", "20us"] {
        let setting = [("FERRO_SPIN", spin)];
        test(&*domain(&setting), &*domain(&setting));
    }
}

#[test]
fn two_threads_wait_on_two_queues() {
    sleepers(waiting::two_queues);
}

#[test]
fn a_completion_within_a_call_wakes_a_sleeper() {
    sleepers(waiting::a_completion_within_a_call_wakes);
}

#[test]
fn a_sleeper_is_woken_after_another_thread_polled() {
    sleepers(waiting::an_event_after_a_poll_by_another_thread_wakes);
    sleepers(waiting::an_endpoint_opened_meanwhile);
}

#[test]
fn waits_end_by_signals_and_timeouts() {
    sleepers(waiting::signals_and_timeouts);
}

#[test]
fn another_thread_completes_a_send() {
    sleepers(waiting::sends_of_other_threads_go_on);
}

#[test]
fn descriptors_wake() {
    both_ways(descriptors::messages_wake);
    descriptors::events_of_other_threads_wake(&*domain(&[]));
}

#[test]
fn waits_for_several() {
    sleepers(descriptors::several_at_a_time);
}

#[test]
fn an_endpoint_that_closes_leaves_its_counters() {
    let folder = reports::folder(TMP, "leaves/its/counters");
    let setting = [("FERRO_STATS", folder.to_str().unwrap())];
    let (ours, theirs) = (domain(&setting), domain(&setting));
    reports::each_endpoint_leaves_a_file(&*ours, &*theirs, &folder, "shm");
}

#[test]
fn an_endpoint_that_closes_with_its_domain_leaves_its_counters() {
    let folder = reports::folder(TMP, "closes_with_its_domain");
    let mut info = info();
    info.domain.threading = Threading::Domain;
    let settings = settings(&[("FERRO_STATS", folder.to_str().unwrap())]);
    let domain = ShmProvider::new().open(&info, &settings).unwrap();
    let end = QueuedEndpoint::open(&*domain);
    // The domain belongs to this thread: another thread defers the close of the endpoint.
    std::thread::spawn(move || drop(end)).join().unwrap();
    assert!(reports::files(&folder).is_empty());
    drop(domain);
    assert_eq!(reports::files(&folder).len(), 1);
}

#[test]
fn a_folder_that_can_not_be_written_is_a_warning() {
    let folder = reports::folder(TMP, "can_not_be_written");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("file");
    std::fs::write(&file, "no folder").unwrap();
    let end = QueuedEndpoint::open(&*domain(&[("FERRO_STATS", file.to_str().unwrap())]));
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer({
            let log = log.clone();
            move || log.clone()
        })
        .finish();
    tracing::subscriber::with_default(subscriber, || drop(end));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("WARN"), "{log}");
    for words in [file.to_str().unwrap(), "not written", "setting stats"] {
        assert!(log.contains(words), "{log}");
    }
    assert_eq!(reports::files(&folder).len(), 1);
}

/// The captured log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
