//! Processes that are killed in the middle of reads and writes of each other's memory.

use crate::party;
use std::sync::Arc;

use ferrofabric_conformance::killed_peers::{a_peer_that_is_killed, operate_until_killed};
use ferrofabric_contracts::config::Settings;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;
use party::{ChildProcess, await_line, print_line, role};

/// Victims of each kind, and in the soak.
const VICTIMS: [usize; 2] = [4, 400];

fn domain(cma: &str) -> Arc<dyn Domain> {
    let settings =
        Settings::read(|name| (name == "FERRO_SHM_CMA").then(|| cma.to_owned())).unwrap();
    let provider = ShmProvider::new();
    let info = provider.discover(&settings).candidates.remove(0);
    provider.open(&info, &settings).unwrap()
}

#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    let Some(cma) = role() else { return };
    operate_until_killed(&*domain(&cma), |name| {
        print_line(name);
        await_line().parse().unwrap()
    });
}

/// Kills one process after another.
fn kill(cma: &str) {
    let domain = domain(cma);
    for _ in 0..VICTIMS[usize::from(std::env::var_os("FERRO_SOAK").is_some())] {
        let mut victim = ChildProcess::start(cma);
        let name = victim.read_name();
        let id = victim.child.id() as i32;
        a_peer_that_is_killed(
            &*domain,
            |ours| {
                victim.write_line(&ours.to_string());
                name
            },
            // SAFETY: our own child, which has not been waited for.
            || assert_eq!(unsafe { libc::kill(id, libc::SIGKILL) }, 0),
        );
    }
}

#[test]
fn a_process_that_is_killed_beside_the_ring() {
    kill("off");
}

#[test]
fn a_process_that_is_killed_beside_cma() {
    kill("on");
}
