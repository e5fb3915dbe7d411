//! Whether the partner is still there while a link waits for it.

use std::time::{Duration, Instant};

use crate::bound::Wait;
use crate::channel::Channel;
use crate::failure::{Failure, Result};

/// Stalled sends, and completions read meanwhile, between two looks at the partner.
pub(super) const STALLS_PER_CHECK: u32 = 1024;

/// How often a wait makes sure that the partner is still there.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Looks after the partner, over the channel to it.
pub(super) struct Watch {
    pub(super) channel: Channel,
    /// How long to wait for a message.
    pub(super) patience: Duration,
    /// Times that a send had to wait for room.
    stalls: u32,
    checked: Option<Instant>,
}

impl Watch {
    pub(super) fn new(channel: Channel, patience: Duration) -> Self {
        Self {
            channel,
            patience,
            stalls: 0,
            checked: None,
        }
    }

    /// The partner is looked after once in many calls.
    pub(super) fn look_after_rarely(&mut self) -> Result<()> {
        self.stalls = self.stalls.wrapping_add(1);
        match self.stalls % STALLS_PER_CHECK {
            0 => self.channel.check(),
            _ => Ok(()),
        }
    }

    #[cold]
    pub(super) fn look_after(&mut self, wait: &mut Wait) -> Result<()> {
        let now = Instant::now();
        if self.checked.is_none_or(|at| now - at >= CHECK_EVERY) {
            self.checked = Some(now);
            self.channel.check()?;
        }
        match wait.is_over(self.patience) {
            true => Err(Failure::new(format!(
                "no message for {} s, though the partner is there (--patience waits longer)",
                self.patience.as_secs()
            ))),
            false => Ok(()),
        }
    }
}
