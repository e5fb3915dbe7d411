//! An answering side outside of the library: a thread of its domain carries the operations of the
//! asking side out.

use std::time::{Duration, Instant};

use super::Link;
use crate::failure::{Failure, Result};
use crate::message::{Message, Outside};

/// Time between two checks whether the partner is still there, in milliseconds.
const CHECK_EVERY_MS: u16 = 1000;

impl Link {
    /// Sets the calls of the answering side in the phases that follow.
    pub(crate) fn set_outside(&mut self, outside: Option<Outside>) {
        self.outside = outside;
    }

    /// The answering side: makes no calls, or few, until the asking side is done. Without automatic
    /// progress it returns at once.
    ///
    /// # Errors
    ///
    /// If the partner fails or is gone.
    pub(crate) fn stay_outside(&mut self) -> Result<()> {
        let Some(Outside { call_every_us }) = self.outside else {
            return Ok(());
        };
        loop {
            match call_every_us {
                0 => self.watch.channel.sleep(CHECK_EVERY_MS)?,
                us => {
                    compute_for(Duration::from_micros(us));
                    self.put_aside()?;
                }
            }
            match self.watch.channel.try_receive()? {
                None => {}
                Some(Message::Done) => return Ok(()),
                Some(_) => return Err(Failure::new("the partner sent a message out of turn")),
            }
        }
    }

    /// The asking side: the answering side makes its calls again.
    ///
    /// # Errors
    ///
    /// If the partner is gone.
    pub(crate) fn end_outside(&mut self) -> Result<()> {
        match self.outside {
            Some(_) => self.watch.channel.send(&Message::Done),
            None => Ok(()),
        }
    }
}

fn compute_for(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        std::hint::spin_loop();
    }
}
