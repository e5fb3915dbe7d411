//! The start values of counters: 0, except in tests. Counters of a session and of a queue pair wrap
//! only after long use; tests start them near the wrap. The values hold for the whole process,
//! because both ends of a session have to start at the same numbers.

#[cfg(feature = "counter-origins")]
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(feature = "counter-origins"))]
use ferrofabric_protocol::session::Origin;
#[cfg(feature = "counter-origins")]
pub use ferrofabric_protocol::session::Origin;

/// Where sessions begin, and requests of queue pairs.
#[cfg(feature = "counter-origins")]
static ORIGINS: Mutex<(Origin, u32)> = Mutex::new((
    Origin {
        sequence: 0,
        credit_units: 0,
    },
    0,
));

#[cfg(feature = "counter-origins")]
fn lock() -> MutexGuard<'static, (Origin, u32)> {
    ORIGINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on the counters of new sessions, and of the requests of new lanes and endpoints, start
/// at these values.
#[cfg(feature = "counter-origins")]
pub fn begin_counters_at(session: Origin, request: u32) {
    *lock() = (session, request);
}

/// Where a session begins, and the number of a queue pair's first request.
fn origins() -> (Origin, u32) {
    #[cfg(feature = "counter-origins")]
    let origins = *lock();
    #[cfg(not(feature = "counter-origins"))]
    let origins = (Origin::default(), 0);
    origins
}

/// Where a session begins.
pub(crate) fn session_origin() -> Origin {
    origins().0
}

/// The number of a queue pair's first request.
pub(crate) fn first_request() -> u32 {
    origins().1
}
