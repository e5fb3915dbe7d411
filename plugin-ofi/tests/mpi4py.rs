//! MPI for Python's own tests, by MPICH over this project's provider.
//! `plugin-ofi/mpi/mpi4py_suite.py` says what is left out, and why.

#[macro_use]
mod support;

jobs! { Mpich;
    all_2: Default, 2 ranks, ["mpi4py_suite.py", "all", "1700"], 100000 messages;
    all_4: Default, 4 ranks, ["mpi4py_suite.py", "all", "1700"], 600000 messages;
    messages_2_verbs: Verbs, 2 ranks, ["mpi4py_suite.py", "messages", "400"], 10000 messages;
    messages_4_verbs: Verbs, 4 ranks, ["mpi4py_suite.py", "messages", "400"], 50000 messages;

    #[ignore = "soak: minutes of traffic"]
    soak_all_2_verbs: Verbs, 2 ranks, ["mpi4py_suite.py", "all", "1700"], 100000 messages;
}
