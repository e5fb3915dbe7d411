//! Where counters begin: at 0, but for tests. Those of a session and of a queue pair go round after
//! long use only; tests have them begin near that place. It counts for the whole process, for both
//! ends of a session have to begin at the same numbers.

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

/// From now on the counters of new sessions, and of the requests of new lanes and endpoints, begin
/// there.
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
