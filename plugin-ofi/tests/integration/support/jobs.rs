//! The jobs that every implementation of MPI runs.

/// Makes the tests of an implementation: `all_jobs!(Open)`.
macro_rules! all_jobs {
    ($mpi:ident) => {
        jobs! { $mpi;
            hello_8: Default, 8 ranks, ["hello.py"], 80 messages;
            pingpong: Default, 2 ranks, ["pingpong.py"], 300 messages;
            collectives_2: Default, 2 ranks, ["collectives.py"], 1000 messages;
            collectives_4: Default, 4 ranks, ["collectives.py", "--every", "2"], 2000 messages;
            collectives_8: Default, 8 ranks, ["collectives.py", "--every", "4"], 4000 messages;
            random_4: Default, 4 ranks, ["random_p2p.py", "2"], 600 messages;
            random_8: Default, 8 ranks, ["random_p2p.py", "3"], 1200 messages;

            sends_first: Default, 2 ranks, ["sends_first.py", "20000", "1024"], 40000 messages;
            leaves_first: Default, 4 ranks, ["leaves_first.py", "1", "8"], 1 messages;
            leaves_first_long: Default, 2 ranks, ["leaves_first.py", "100", "1024"], 100 messages;
            sends_first_verbs: Verbs, 2 ranks, ["sends_first.py", "20000", "1024"], 40000 messages;
            leaves_first_one_verbs: Verbs, 4 ranks, ["leaves_first.py", "1", "8"], 1 messages;
            leaves_first_verbs: Verbs, 4 ranks, ["leaves_first.py", "100", "1024"], 100 messages;

            pingpong_verbs: Verbs, 2 ranks, ["pingpong.py"], 300 messages;
            collectives_4_verbs: Verbs, 4 ranks, ["collectives.py", "--every", "2"], 2000 messages;
            collectives_8_verbs: Verbs, 8 ranks, ["collectives.py", "--every", "4"], 4000 messages;
            random_4_verbs: Verbs, 4 ranks, ["random_p2p.py", "5"], 600 messages;
            random_8_verbs: Verbs, 8 ranks, ["random_p2p.py", "6"], 1200 messages;
            threads: Default, 2 ranks, ["threads.py"], 300 messages;
            threads_verbs: Verbs, 2 ranks, ["threads.py"], 300 messages;

            #[ignore = "soak: minutes of traffic"]
            soak_collectives: Default, 8 ranks, ["collectives.py"], 20000 messages;
            #[ignore = "soak: minutes of traffic"]
            soak_collectives_verbs: Verbs, 8 ranks, ["collectives.py"], 20000 messages;
            #[ignore = "soak: minutes of traffic"]
            soak_random: Default, 4 ranks, ["random_p2p.py", "101", "4800"], 10000 messages;
            #[ignore = "soak: minutes of traffic"]
            soak_random_verbs: Verbs, 4 ranks, ["random_p2p.py", "102", "4800"], 10000 messages;
        }
    };
}

macro_rules! jobs {
    ($mpi:ident; $($(#[$attribute:meta])* $name:ident: $carrier:ident, $ranks:literal ranks, $program:expr, $messages:literal messages;)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                $crate::support::mpi::Job {
                    mpi: $crate::support::mpi::Mpi::$mpi,
                    carrier: $crate::support::mpi::Carrier::$carrier,
                    ranks: $ranks,
                    program: &$program,
                    messages: $messages,
                }
                .passes();
            }
        )*
    };
}
