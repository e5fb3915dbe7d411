//! The queue pairs in error that have taken their last shared receive, as the device's events say.
//!
//! The reader of a device's events enters a queue pair here, and the endpoint of the queue pair
//! looks here before it destroys it: receives that a queue pair has taken, and not given back yet,
//! would go with it.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The numbers of those queue pairs.
#[derive(Debug, Default)]
pub(crate) struct LastReceives(Mutex<HashSet<u32>>);

impl LastReceives {
    /// The event `IBV_EVENT_QP_LAST_WQE_REACHED` has come for a queue pair.
    pub(crate) fn reached(&self, number: u32) {
        self.numbers().insert(number);
    }

    /// Whether it has come.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.numbers().contains(&number)
    }

    /// A queue pair of this number was made, or is gone.
    pub(crate) fn forget(&self, number: u32) {
        self.numbers().remove(&number);
    }

    fn numbers(&self) -> MutexGuard<'_, HashSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::LastReceives;

    #[test]
    fn a_number_that_is_used_again_has_no_event_of_its_predecessor() {
        let last = LastReceives::default();
        last.reached(7);
        assert!(last.has(7) && !last.has(8));
        last.forget(7);
        assert!(!last.has(7));
    }
}
