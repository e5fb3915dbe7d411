//! Intel MPI over this project's provider: messages and windows, through shared memory and over
//! verbs.

jobs! { Intel;
    hello_8: Default, 8 ranks, ["hello.py"], 80 messages;
    pingpong: Default, 2 ranks, ["pingpong.py"], 300 messages;
    collectives_4: Default, 4 ranks, ["collectives.py", "--every", "2"], 2000 messages;
    random_4: Default, 4 ranks, ["random_p2p.py", "2"], 600 messages;
    sends_first: Default, 2 ranks, ["sends_first.py", "20000", "1024"], 40000 messages;
    leaves_first: Default, 4 ranks, ["leaves_first.py", "1", "8"], 1 messages;
    leaves_first_long: Default, 2 ranks, ["leaves_first.py", "100", "1024"], 100 messages;
    sends_first_verbs: Verbs, 2 ranks, ["sends_first.py", "20000", "1024"], 40000 messages;
    leaves_first_one_verbs: Verbs, 4 ranks, ["leaves_first.py", "1", "8"], 1 messages;
    leaves_first_verbs: Verbs, 4 ranks, ["leaves_first.py", "100", "1024"], 100 messages;
    threads: Default, 2 ranks, ["threads.py"], 300 messages;

    collectives_4_verbs: Verbs, 4 ranks, ["collectives.py", "--every", "4"], 1000 messages;
    random_4_verbs: Verbs, 4 ranks, ["random_p2p.py", "5"], 600 messages;
    threads_verbs: Verbs, 2 ranks, ["threads.py"], 300 messages;
}

// Puts and gets are one-sided operations of ours. Intel MPI makes those that compute of messages,
// unless a hint says that ranks of a node compute in no memory of its own.
jobs! { Intel;
    one_sided_2: Default, 2 ranks, ["one_sided.py"], 150 messages;
    one_sided_4: Default, 4 ranks, ["one_sided.py"], 500 messages;
    dynamic_2: Default, 2 ranks, ["dynamic.py"], 6 messages;
    dynamic_4: Default, 4 ranks, ["dynamic.py"], 12 messages;
    fetched_sums: Default, 2 ranks, ["fetched_sums.py"], 50 messages;
    one_sided_2_verbs: Verbs, 2 ranks, ["one_sided.py"], 150 messages;
    one_sided_4_verbs: Verbs, 4 ranks, ["one_sided.py"], 500 messages;
    dynamic_4_verbs: Verbs, 4 ranks, ["dynamic.py"], 12 messages;
    fetched_sums_verbs: Verbs, 2 ranks, ["fetched_sums.py"], 50 messages;

    atomic_2: Default, 2 ranks, ["one_sided.py", "disable_shm_accumulate=true"], 150 messages;
    atomic_4: Default, 4 ranks, ["one_sided.py", "disable_shm_accumulate=true"], 500 messages;
    atomic_2_verbs: Verbs, 2 ranks, ["one_sided.py", "disable_shm_accumulate=true"], 150 messages;
    atomic_4_verbs: Verbs, 4 ranks, ["one_sided.py", "disable_shm_accumulate=true"], 500 messages;
}
