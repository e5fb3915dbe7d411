//! MPI for Python's own tests, by MPICH over this project's provider, and those of windows by Open
//! MPI and Intel MPI.
//! `plugin-ofi/mpi/mpi4py_suite.py` says what is left out, and why.

jobs! { Mpich;
    all_2: Default, 2 ranks, ["mpi4py_suite.py", "all", "1700"], 100000 messages;
    windows_2: Default, 2 ranks, ["mpi4py_suite.py", "windows", "140"], 80000 messages;
    all_4: Default, 4 ranks, ["mpi4py_suite.py", "all", "1700"], 600000 messages;
    windows_4: Default, 4 ranks, ["mpi4py_suite.py", "windows", "140"], 80000 messages;
    point_to_point_2_verbs: Verbs, 2 ranks, ["mpi4py_suite.py", "point-to-point", "300"], 5000 messages;
    point_to_point_4_verbs: Verbs, 4 ranks, ["mpi4py_suite.py", "point-to-point", "300"], 15000 messages;
    collectives_2_verbs: Verbs, 2 ranks, ["mpi4py_suite.py", "collectives", "150"], 5000 messages;
    collectives_4_verbs: Verbs, 4 ranks, ["mpi4py_suite.py", "collectives", "150"], 30000 messages;
}

// All that this provider carries is of windows.
jobs! { NewOpenWindows;
    open_mpi_windows_2: Default, 2 ranks, ["mpi4py_suite.py", "windows", "120"], 1 messages;
    open_mpi_windows_4: Default, 4 ranks, ["mpi4py_suite.py", "windows", "120"], 1 messages;
}

jobs! { NewOpen;
    open_mpi_windows_2_verbs: Verbs, 2 ranks, ["mpi4py_suite.py", "windows", "140"], 1 messages;
    open_mpi_windows_4_verbs: Verbs, 4 ranks, ["mpi4py_suite.py", "windows", "140"], 1 messages;
}

// MPI for Python leaves out by itself what Intel MPI can not do.
jobs! { Intel;
    intel_point_to_point_4: Default, 4 ranks, ["mpi4py_suite.py", "point-to-point", "300"], 15000 messages;
    intel_collectives_4: Default, 4 ranks, ["mpi4py_suite.py", "collectives", "150"], 30000 messages;
    intel_windows_2: Default, 2 ranks, ["mpi4py_suite.py", "windows", "110"], 30000 messages;
    intel_windows_4: Default, 4 ranks, ["mpi4py_suite.py", "windows", "110"], 100000 messages;
    intel_windows_2_verbs: Verbs, 2 ranks, ["mpi4py_suite.py", "windows", "110"], 10000 messages;
}
