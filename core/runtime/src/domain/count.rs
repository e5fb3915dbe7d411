//! The numbers of a counter (fi_cntr(3)).

use crate::fabric::CntrEvents;
use ferrofabric_contracts::peer::PeerCntr;

/// The numbers of a counter. The domain's lock guards them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CounterValues {
    pub(super) value: u64,
    pub(super) errors: u64,
    events: CntrEvents,
    /// Both numbers as the application read them last, for waits on a descriptor.
    pub(super) seen: (u64, u64),
}

impl CounterValues {
    /// The numbers of a new counter.
    pub(super) fn of(events: CntrEvents) -> Self {
        Self {
            events,
            ..Self::default()
        }
    }

    /// Whether the application has read both present numbers.
    pub(super) fn is_seen(&self) -> bool {
        self.seen == (self.value, self.errors)
    }
}

impl PeerCntr for CounterValues {
    #[inline]
    fn inc(&mut self, bytes: usize) {
        let events = match self.events {
            CntrEvents::Completions => 1,
            CntrEvents::Bytes => bytes as u64,
        };
        self.value = self.value.wrapping_add(events);
    }

    #[cold]
    fn inc_error(&mut self) {
        self.errors = self.errors.wrapping_add(1);
    }
}
