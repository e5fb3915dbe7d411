//! Random programs of endpoints in two processes, compared with the model, and reduced when they
//! fail.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use ferrofabric_conformance::broken::{DomainFault, FaultyDomain};
use ferrofabric_conformance::ends::PATIENCE;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::model::between::{
    Couple, WorkerProcess, random_programs_between, serve, smallest_between,
};
use ferrofabric_conformance::model::run::LineStream;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;

/// The environment variable with a process's number among the two.
const PROCESS: &str = "FERRO_TEST_PROCESS";

/// The environment variable with the fault that a process simulates.
const FAULT: &str = "FERRO_TEST_FAULT";

fn domain() -> Arc<dyn Domain> {
    let settings = settings(&[]);
    let found = ShmProvider::new().discover(&settings);
    ShmProvider::new()
        .open(&found.candidates[0], &settings)
        .unwrap()
}

fn fabric(fault: Option<DomainFault>) -> Fabric {
    let fabric = Fabric::new("shared memory between processes", move |_| match fault {
        Some(fault) => Arc::new(FaultyDomain::new(domain(), fault)),
        None => domain(),
    });
    fabric.with_thresholds(&[40, 48, 8192, 8768, 26_304, 65_536])
}

/// Two fresh processes, which simulate this fault.
fn start(fault: &str) -> Couple {
    [0, 1].map(|process: usize| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "processes::one_of_two_processes",
                "--ignored",
                "--nocapture",
            ])
            .env(PROCESS, process.to_string())
            .env(FAULT, fault)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        WorkerProcess::new(ours.try_clone().unwrap(), ours, Some(child))
    })
}

#[test]
#[ignore = "run by the others"]
fn one_of_two_processes() {
    let Ok(process) = std::env::var(PROCESS) else {
        return println!("a part of another test, which runs it");
    };
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let leader = UnixStream::from(stdin.unwrap());
    let fault = std::env::var(FAULT).unwrap_or_default();
    let fault = DomainFault::ALL.iter().find(|(name, _)| *name == fault);
    let fabric = fabric(fault.map(|(_, fault)| *fault));
    let lines = LineStream::new(leader.try_clone().unwrap(), leader);
    serve(&fabric, process.parse().unwrap(), lines);
}

/// Half of the ranks are in another process.
///
/// Covers: PEER-8, PEER-9, PEER-10
#[test]
fn random_programs_of_two_processes_do_as_the_model() {
    random_programs_between(&fabric(None), 60, || start(""));
}

#[test]
#[ignore = "soak: thousands of programs"]
fn many_random_programs_of_two_processes_do_as_the_model() {
    random_programs_between(&fabric(None), 3000, || start(""));
}

/// A fault in one of two processes, or the end of one, is detected, and the program that shows it
/// is short.
#[test]
fn programs_that_fail_become_small() {
    for (name, _) in DomainFault::ALL {
        let failure = smallest_between(&fabric(None), 60, || start(name));
        let failure = failure.unwrap_or_else(|| panic!("{name}: nothing fails"));
        println!("{name}: {failure}");
        let (_, program) = failure.split_once("program:\n").unwrap();
        // The head, and the step that fails.
        assert_eq!(program.trim_end().lines().count(), 2, "{name}: {program}");
    }
}
