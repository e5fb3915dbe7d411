//! Endpoints whose doorbell could not be rung yet: each ring is repeated until it succeeds.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::super::EndpointShared;

const RETRY: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct PendingRings {
    /// Their ids.
    endpoints: HashSet<u64>,
    retry_at: Option<Instant>,
}

impl PendingRings {
    /// Time of the next try, if there is one.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Takes over the rings that failed on the transport's thread.
    pub(super) fn take_over(&mut self, shared: &EndpointShared) {
        self.endpoints.extend(shared.pending_rings().drain());
        if !self.endpoints.is_empty() && self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + RETRY);
        }
    }

    /// Rings again, if it is time.
    pub(super) fn retry(&mut self, shared: &EndpointShared, now: Instant) {
        if self.retry_at.is_some_and(|at| at <= now) {
            let doorbell = &shared.doorbell;
            self.endpoints.retain(|id| !doorbell.ring(*id));
            self.retry_at = (!self.endpoints.is_empty()).then(|| Instant::now() + RETRY);
        }
    }
}
