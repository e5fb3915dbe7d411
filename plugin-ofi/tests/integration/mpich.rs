//! MPICH over this project's provider: point-to-point and collectives, through shared memory and
//! over verbs.

use crate::support;
use support::mpi::{Launcher, Mpi, PATIENCE, PYTHON, programs};
use support::plugin::Plugin;
use support::{run, skip};

all_jobs!(Mpich);

/// MPICH chooses our one-sided operations by itself: the jobs with windows below use them.
#[test]
fn it_chooses_one_sided_operations() {
    let launcher = match Launcher::find(Mpi::Mpich) {
        Ok(launcher) => launcher,
        Err(reason) => return skip(&reason),
    };
    let mut command = launcher.command(1);
    let plugin = Plugin::new();
    plugin.choose(&mut command);
    command.env("MPIR_CVAR_DEBUG_SUMMARY", "1");
    command.arg(PYTHON).arg(programs().join("hello.py"));
    let output = run::run(command, PATIENCE).expect_success();
    for chosen in ["MPIDI_OFI_ENABLE_RMA: 1", "MPIDI_OFI_ENABLE_ATOMICS: 1"] {
        assert!(output.contains(chosen), "{chosen} is not in {output}");
    }
}

// Puts and gets are one-sided operations of ours. MPICH makes those that compute of untagged
// messages and multi-receives, unless a hint says that each place in the window has one operation.
jobs! { Mpich;
    one_sided_2: Default, 2 ranks, ["one_sided.py"], 150 messages;
    one_sided_4: Default, 4 ranks, ["one_sided.py"], 500 messages;
    dynamic_4: Default, 4 ranks, ["dynamic.py"], 12 messages;
    fetched_sums: Default, 2 ranks, ["fetched_sums.py"], 50 messages;
    one_sided_2_verbs: Verbs, 2 ranks, ["one_sided.py"], 150 messages;
    one_sided_4_verbs: Verbs, 4 ranks, ["one_sided.py"], 500 messages;
    dynamic_4_verbs: Verbs, 4 ranks, ["dynamic.py"], 12 messages;
    fetched_sums_verbs: Verbs, 2 ranks, ["fetched_sums.py"], 50 messages;

    atomic_2: Default, 2 ranks, ["one_sided.py", "accumulate_ops=same_op"], 150 messages;
    atomic_4: Default, 4 ranks, ["one_sided.py", "accumulate_ops=same_op"], 500 messages;
    atomic_2_verbs: Verbs, 2 ranks, ["one_sided.py", "accumulate_ops=same_op"], 150 messages;
    atomic_4_verbs: Verbs, 4 ranks, ["one_sided.py", "accumulate_ops=same_op"], 500 messages;
}
