//! MPICH over this project's provider: point-to-point and collectives, through shared memory and
//! over verbs.

#[macro_use]
mod support;

all_jobs!(Mpich);

// Without one-sided operations of ours MPICH makes its own of untagged messages and multi-receives.
jobs! { Mpich;
    one_sided_2: Default, 2 ranks, ["one_sided.py"], 150 messages;
    one_sided_4: Default, 4 ranks, ["one_sided.py"], 500 messages;
    one_sided_2_verbs: Verbs, 2 ranks, ["one_sided.py"], 150 messages;
    one_sided_4_verbs: Verbs, 4 ranks, ["one_sided.py"], 500 messages;
}
