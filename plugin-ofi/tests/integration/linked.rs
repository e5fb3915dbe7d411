//! libfabric's own `lnx`, which links this provider with others by the peer objects of fi_peer(3):
//! fi_pingpong(1) between two processes, and Open MPI, with the libfabrics that ci/mpi brings.
//! (That of Debian 13, 2.1, has no event queue in `lnx`, and its fi_pingpong opens one.)

use crate::support;
use std::process::Command;
use std::time::Duration;

use support::counters::EndpointCounters;
use support::folder::Folder;
use support::plugin::Plugin;
use support::{has_device, has_program, mpi, pingpong, skip};

const PATIENCE: Duration = Duration::from_secs(120);
/// Messages of each size.
const ITERATIONS: u64 = 4;

/// The links of a job, and the path of its messages.
struct LinkedJob {
    /// `FI_LNX_PROV_LINKS`.
    links: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// The path of all messages; `None`: they are not this provider's.
    path: Option<&'static str>,
}

/// Over our shared memory alone.
///
/// Covers: PEER-4, PEER-9
#[test]
fn shared_memory_is_linked() {
    LinkedJob {
        links: "ferro:ferro-shm",
        variables: &[],
        path: Some("shm"),
    }
    .passes();
}

/// Over verbs alone.
///
/// Covers: PEER-4, PEER-9
#[test]
fn verbs_are_linked() {
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    LinkedJob {
        links: "ferro",
        variables: &[("FERRO_SHM", "off")],
        path: Some("verbs"),
    }
    .passes();
}

/// Beside libfabric's `shm`, which has the messages of one node.
#[test]
fn libfabrics_shared_memory_is_linked_beside() {
    LinkedJob {
        links: "shm+ferro:ferro-shm",
        variables: &[],
        path: None,
    }
    .passes();
}

/// Beside libfabric's `shm`, which is switched off: the messages go over verbs.
///
/// Covers: PEER-4, PEER-9
#[test]
fn verbs_carry_what_libfabrics_shared_memory_does_not() {
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    LinkedJob {
        links: "shm+ferro",
        variables: &[("FERRO_SHM", "off"), ("FI_LNX_DISABLE_SHM", "1")],
        path: Some("verbs"),
    }
    .passes();
}

// Tagged messages of four ranks over verbs alone.
jobs! { NewOpenLinked;
    open_mpi_collectives_4_verbs: Verbs, 4 ranks, ["collectives.py", "--every", "4"], 300 messages;
}

impl LinkedJob {
    fn passes(&self) {
        if !has_program("fi_pingpong") {
            return skip("libfabric's programs are not installed here (libfabric-bin)");
        }
        let Some(library) = mpi::libfabric_of_mpich() else {
            return skip("there is no libfabric 2.5 here (ci/mpi makes it)");
        };
        let (plugin, stats) = (Plugin::new(), Folder::new());
        let program = || {
            let mut command = Command::new("fi_pingpong");
            plugin.choose(&mut command);
            // That names this provider alone.
            command.env_remove("FI_PROVIDER");
            command.env("LD_LIBRARY_PATH", &library);
            command.env("FERRO_STATS", stats.path());
            command.env("FI_LNX_PROV_LINKS", self.links);
            command.envs(self.variables.iter().copied());
            command.args(["-p", "lnx", "-e", "rdm", "-m", "tagged", "-c"]);
            command.args(["-I", &ITERATIONS.to_string()]);
            command
        };
        let said = pingpong::pingpong(program, PATIENCE);
        let sizes = pingpong::sizes(&said);
        let counters = EndpointCounters::read(stats.path());
        for path in ["shm", "verbs"] {
            let sent = counters.sum(&format!("{path}_messages_sent"));
            match self.path == Some(path) {
                true => assert!(sent >= 2 * ITERATIONS * sizes, "{counters:?}"),
                false => assert_eq!(sent, 0, "{counters:?}"),
            }
        }
    }
}
