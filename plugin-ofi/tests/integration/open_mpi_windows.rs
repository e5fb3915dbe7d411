//! Open MPI's windows over this project's provider: by its component for libfabric's one-sided and
//! atomic operations. Its messages go by the same provider where that reaches other nodes.

// All that this provider carries is of windows.
jobs! { NewOpenWindows;
    new_2: Default, 2 ranks, ["one_sided.py"], 1 messages;
    new_4: Default, 4 ranks, ["one_sided.py"], 1 messages;
}

jobs! { NewOpen;
    new_beside_messages: Default, 2 ranks, ["one_sided.py"], 1 messages;
    new_beside_messages_verbs: Verbs, 2 ranks, ["one_sided.py"], 1 messages;
}

// Debian's has windows beside its own messages alone (docs/mpi.md, "Defects of others").
jobs! { OpenWindows;
    debians: Default, 2 ranks, ["one_sided.py"], 1 messages;
}
