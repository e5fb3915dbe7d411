//! Endpoints that could not be rung at yet: each is rung at again until it takes the ring.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::super::Shared;

const RETRY: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct PendingRings {
    /// Their ids.
    endpoints: HashSet<u64>,
    retry_at: Option<Instant>,
}

impl PendingRings {
    /// When to ring again, if at all.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Takes over whom others could not ring at.
    pub(super) fn take_over(&mut self, shared: &Shared) {
        self.endpoints.extend(shared.unrung().drain());
        if !self.endpoints.is_empty() && self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + RETRY);
        }
    }

    /// Rings again, if it is time.
    pub(super) fn retry(&mut self, shared: &Shared, now: Instant) {
        if self.retry_at.is_some_and(|at| at <= now) {
            let doorbell = &shared.doorbell;
            self.endpoints.retain(|id| !doorbell.ring(*id));
            self.retry_at = (!self.endpoints.is_empty()).then(|| Instant::now() + RETRY);
        }
    }
}
