//! The steady state of short messages over shared memory: no allocation, no system call.

use std::sync::Arc;

use ferrofabric_conformance::steady::{Exchange, Trace, allocates_nothing, measure, trace};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::info::Threading;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;

const ROUNDS: usize = 2000;

/// The threading level without a lock, and the one with it.
const LEVELS: [Threading; 2] = [Threading::Domain, Threading::Safe];

fn domain(threading: Threading) -> Arc<dyn Domain> {
    let settings = Settings::read(|_| None).unwrap();
    let found = ShmProvider::new().discover(&settings);
    let mut info = found.candidates.into_iter().next().unwrap();
    info.domain.threading = threading;
    ShmProvider::new().open(&info, &settings).unwrap()
}

#[test]
fn short_messages_allocate_nothing() {
    for level in LEVELS {
        allocates_nothing(&*domain(level), &*domain(level), ROUNDS);
    }
}

#[test]
fn short_messages_make_no_system_call() {
    let seen = trace("short_messages_make_no_system_call", || {
        let exchanges = LEVELS.map(|level| Exchange::new(&*domain(level), &*domain(level), ROUNDS));
        measure(|| {
            for exchange in &exchanges {
                exchange.rounds(ROUNDS);
            }
        });
    });
    if let Some(Trace { calls, .. }) = seen {
        assert_eq!(calls, [], "{} system calls", calls.len());
    }
}

/// Checks the counter of system calls: one call is seen, with its file.
#[test]
fn a_system_call_is_seen() {
    let seen = trace("a_system_call_is_seen", || {
        let null = std::fs::File::create("/dev/null").unwrap();
        let exchange = Exchange::new(&*domain(LEVELS[0]), &*domain(LEVELS[0]), 1);
        measure(|| {
            exchange.rounds(1);
            std::io::Write::write_all(&mut &null, b"1").unwrap();
        });
    });
    if let Some(Trace { calls, .. }) = seen {
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert_eq!(calls[0].number, libc::SYS_write as u64);
        assert_eq!(calls[0].file.as_deref(), Some("/dev/null".as_ref()));
    }
}
