//! Processes that are killed in the middle of reads and writes of each other's memory, over the
//! device.

use std::cell::RefCell;
use std::process::{Command, Stdio};

use ferrofabric_conformance::killed_peers::{a_peer_that_is_killed, operate_until_killed};
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, PeerProcess};
use serial_test::file_serial;

/// The kind of lane of a process that another test has started.
const LANE: &str = "FERRO_TEST_LANE";

/// Victims over each kind of lane, and in the soak.
const VICTIMS: [usize; 2] = [1, 40];

/// A dead peer is noticed sooner than by default.
fn settings(lane: &str) -> [(&str, &str); 4] {
    [
        ("FERRO_SHM", "off"),
        ("FERRO_LANE", lane),
        ("FERRO_RECONNECT_TIMEOUT", "4s"),
        ("FERRO_PEER_TIMEOUT", "4s"),
    ]
}

#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn victim() {
    let Ok(lane) = std::env::var(LANE) else {
        return;
    };
    operate_until_killed(&*party::domain(&settings(&lane)), party::report);
}

/// Kills one process after another.
fn kill(lane: &str) {
    if Rig::open().is_none() {
        return;
    }
    let domain = party::domain(&settings(lane));
    for _ in 0..VICTIMS[usize::from(std::env::var_os("FERRO_SOAK").is_some())] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["killed_peers::victim", "--exact", "--ignored"])
            .env(LANE, lane)
            .stdout(Stdio::null());
        let victim = RefCell::new(None);
        a_peer_that_is_killed(
            &*domain,
            |ours| {
                let mut process = PeerProcess::run(command, ours);
                process.go();
                let name = process.name;
                *victim.borrow_mut() = Some(process);
                name
            },
            || {
                let process: PeerProcess = victim.take().unwrap();
                process.signal(libc::SIGKILL);
                process.bury();
            },
        );
    }
}

#[test]
#[file_serial(verbs)]
fn a_process_that_is_killed_beside_its_device() {
    kill("rc");
}

#[test]
#[file_serial(verbs)]
fn a_process_that_is_killed_beside_datagrams() {
    kill("ud");
}

#[test]
#[file_serial(verbs)]
fn a_process_that_is_killed_beside_lanes_of_all_kinds() {
    kill("auto");
}
