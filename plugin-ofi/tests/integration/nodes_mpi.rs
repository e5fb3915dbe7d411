//! MPI on two machines: run with `scripts/vm --nodes 2`, both run this same program.

use crate::support;
use crate::support::mpi::{Launcher, Mpi, PYTHON, patience, programs};
use support::counters::EndpointCounters;
use support::folder::Folder;
use support::nodes::Meeting;
use support::plugin::Plugin;
use support::{run, skip};

const HOSTS: [&str; 2] = ["ferro0", "ferro1"];

/// One run of a program on both nodes.
struct NodesJob {
    mpi: Mpi,
    /// Ranks on each node.
    each: usize,
    /// A file of plugin-ofi/mpi, and its arguments.
    program: &'static [&'static str],
    /// Fewer messages than this can not be all that each node sends to the other.
    messages: u64,
}

/// Makes the tests.
macro_rules! nodes_jobs {
    ($($(#[$attribute:meta])* $name:ident: $mpi:ident, $each:literal on each, $program:expr, $messages:literal messages;)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                NodesJob {
                    mpi: Mpi::$mpi,
                    each: $each,
                    program: &$program,
                    messages: $messages,
                }
                .passes();
            }
        )*
    };
}

nodes_jobs! {
    open_mpi_pingpong: Open, 1 on each, ["pingpong.py"], 150 messages;
    open_mpi_collectives_beside_local_ranks: Open, 2 on each, ["collectives.py", "--every", "4"], 300 messages;
    open_mpi_random_beside_local_ranks: Open, 2 on each, ["random_p2p.py", "7"], 150 messages;
    open_mpi_windows_beside_local_ranks: NewOpenWindows, 2 on each, ["one_sided.py"], 150 messages;
    /// Ranks read from others that have not yet inserted them into their address vectors.
    open_mpi_windows_and_messages_beside_local_ranks: NewOpen, 2 on each, ["one_sided.py"], 150 messages;

    /// Ranks of one node share memory by libfabric's own provider.
    linked_open_mpi_collectives: NewOpenLinked, 2 on each, ["collectives.py", "--every", "4"], 150 messages;

    /// The same, as our own peer.
    open_mpi_collectives_beside_shm: NewOpenBeside, 2 on each, ["collectives.py", "--every", "4"], 150 messages;

    mpich_pingpong: Mpich, 1 on each, ["pingpong.py"], 150 messages;
    mpich_collectives_beside_local_ranks: Mpich, 2 on each, ["collectives.py", "--every", "4"], 300 messages;
    mpich_random_beside_local_ranks: Mpich, 2 on each, ["random_p2p.py", "8"], 150 messages;
    mpich_windows_beside_local_ranks: Mpich, 2 on each, ["one_sided.py"], 150 messages;
    mpich_atomic_windows_beside_local_ranks: Mpich, 2 on each, ["one_sided.py", "accumulate_ops=same_op"], 150 messages;

    intel_mpi_windows_beside_local_ranks: Intel, 2 on each, ["one_sided.py", "disable_shm_accumulate=true"], 150 messages;
    #[ignore = "soak: many minutes of MPI for Python's own tests"]
    soak_open_mpi_windows_of_mpi4py: NewOpen, 1 on each, ["mpi4py_suite.py", "windows", "120"], 150 messages;
    #[ignore = "soak: as above"]
    soak_mpich_windows_of_mpi4py: Mpich, 1 on each, ["mpi4py_suite.py", "windows", "120"], 150 messages;
    #[ignore = "soak: as above"]
    soak_open_mpi_windows_of_mpi4py_beside_local_ranks: NewOpen, 2 on each, ["mpi4py_suite.py", "windows", "120"], 150 messages;
    #[ignore = "soak: as above"]
    soak_mpich_windows_of_mpi4py_beside_local_ranks: Mpich, 2 on each, ["mpi4py_suite.py", "windows", "120"], 150 messages;
    #[ignore = "soak: repeats what others do"]
    soak_intel_mpi_pingpong: Intel, 1 on each, ["pingpong.py"], 150 messages;
}

impl NodesJob {
    fn passes(self) {
        let Some(mut meeting) = Meeting::wait() else {
            return skip("this is one machine alone (./scripts/vm --nodes 2)");
        };
        // The same places on both nodes: a launcher gives all ranks the same environment.
        let plugin = Plugin::within(Folder::named("ferro-nodes-plugin"));
        let stats = Folder::named("ferro-nodes-stats");
        if meeting.node == 0 {
            meeting.both_are_here();
            let said = self.launch(&plugin, &stats);
            meeting.both_are_here();
            let passed = format!("PASS {} ranks", HOSTS.len() * self.each);
            assert!(said.contains(&passed), "{said}");
        } else {
            meeting.serve();
        }
        self.check(&EndpointCounters::read(stats.path()));
    }

    fn launch(&self, plugin: &Plugin, stats: &Folder) -> String {
        let launcher = Launcher::find(self.mpi).unwrap_or_else(|missing| panic!("{missing}"));
        let mut command = launcher.command(HOSTS.len() * self.each);
        plugin.choose(&mut command);
        command.env("FERRO_STATS", stats.path());
        let links = self.mpi.link_variables();
        command.envs(links.iter().copied());
        let mut variables = vec!["FI_PROVIDER_PATH", "FERRO_STATS", "PYTHONDONTWRITEBYTECODE"];
        match links {
            [] => variables.push("FI_PROVIDER"),
            links => variables.extend(links.iter().map(|(name, _)| name)),
        }
        launcher.on_hosts(&mut command, &HOSTS, self.each, &variables);
        command.arg(PYTHON).arg(programs().join(self.program[0]));
        command.args(&self.program[1..]);
        run::run(command, patience(self.program)).expect_success()
    }

    fn check(&self, counters: &EndpointCounters) {
        assert!(counters.endpoints() >= self.each, "{counters:?}");
        let verbs = counters.sum("verbs_messages_sent");
        assert!(verbs >= self.messages, "{counters:?}");
        // Ranks share memory with the other ranks of their node, by this provider or another one. A
        // rank that is alone there shares it with itself, if at all.
        let by = self.mpi.local_counter();
        for local in ["shm_messages_sent", "peer_sent"] {
            let sent = counters.sum(local);
            println!("messages sent: {local} {sent}, verbs {verbs}");
            let is_sure = self.each > 1 || by != Some(local);
            assert!(
                !is_sure || (sent > 0) == (by == Some(local)),
                "{counters:?}"
            );
        }
    }
}
