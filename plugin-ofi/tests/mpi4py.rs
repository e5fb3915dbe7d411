//! MPI for Python's own tests, by MPICH over this project's provider. `plugin-ofi/mpi/mpi4py_suite.py`
//! says what is left out, and why.

#[macro_use]
mod support;

jobs! { Mpich;
    all_2: Default, 2 ranks, ["mpi4py_suite.py", "all", "1700"], 20000 messages;
    all_4: Default, 4 ranks, ["mpi4py_suite.py", "all", "1700"], 40000 messages;
    messages_2_verbs: Verbs, 2 ranks, ["mpi4py_suite.py", "messages", "300"], 1000 messages;
    messages_4_verbs: Verbs, 4 ranks, ["mpi4py_suite.py", "messages", "300"], 2000 messages;
}
