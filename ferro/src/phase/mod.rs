//! A phase of a run: so many messages of one size in one pattern. Both sides of each pattern stand in one file.

pub(crate) mod echo;
pub(crate) mod exchange;
pub(crate) mod stream;

use serde::{Deserialize, Serialize};

use crate::cli::{MAX_ITERS, MAX_WINDOW};
use crate::failure::{Failure, Result};
use crate::link::{Link, Received, Slot};
use crate::partner::channel::Message;
use crate::pattern::{self, Direction};
use crate::sizes::{self, MAX_BYTES};

/// Memory that one phase may take on one side, in bytes.
const MAX_MEMORY_BYTES: usize = 1 << 30;

/// How messages go to and fro.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pattern {
    /// Each is answered by one of the same size.
    Echo,
    /// They go one way; a short one says from time to time how far.
    Stream,
    /// They go both ways at once.
    Exchange,
}

/// What is done next, as the side that asks says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Phase {
    /// How messages go.
    pub(crate) pattern: Pattern,
    /// Bytes of each.
    pub(crate) size: usize,
    /// How many, each way.
    pub(crate) messages: u64,
    /// The most that may be under way.
    pub(crate) window: u64,
    /// Whether their content is made and checked.
    pub(crate) verify: bool,
}

impl Phase {
    /// Whether it can be done, before memory for it is taken; the phase may come from a stranger.
    ///
    /// # Errors
    ///
    /// Which number is out of its range.
    pub(crate) fn check(&self, max_bytes: usize) -> Result<()> {
        let size = sizes::print(self.size);
        if self.size > max_bytes.min(MAX_BYTES) {
            let most = sizes::print(max_bytes.min(MAX_BYTES));
            return Err(Failure::new(format!(
                "messages of {size} bytes are too long: this domain sends at most {most}"
            )));
        }
        if self.messages > MAX_ITERS {
            return Err(Failure::new(format!(
                "{} messages are too many",
                self.messages
            )));
        }
        if !(1..=MAX_WINDOW).contains(&self.window) {
            return Err(Failure::new(format!(
                "a window of {} messages is not possible",
                self.window
            )));
        }
        if (self.window as usize).saturating_mul(self.size) > MAX_MEMORY_BYTES.max(self.size) {
            return Err(Failure::new(format!(
                "a window of {} messages of {size} takes more than {} of memory",
                self.window,
                sizes::print(MAX_MEMORY_BYTES)
            )));
        }
        Ok(())
    }

    /// Tells the partner of the phase, and waits until it is ready.
    fn announce(&self, link: &mut Link) -> Result<()> {
        link.channel().send(&Message::Phase(*self))?;
        match link.message()? {
            Message::Ready => Ok(()),
            _ => Err(Failure::new("the partner is not ready for the phase")),
        }
    }
}

/// The answering side's part of a phase.
///
/// # Errors
///
/// When the phase is impossible, a message is damaged, or the partner is gone.
pub(crate) fn answer(link: &mut Link, phase: &Phase) -> Result<()> {
    phase.check(link.max_bytes())?;
    match phase.pattern {
        Pattern::Echo => echo::answer(link, phase),
        Pattern::Stream => stream::answer(link, phase),
        Pattern::Exchange => exchange::answer(link, phase),
    }
}

/// Buffers for so many messages at a time. Where nobody looks at their content they are one and the same, as in the programs that
/// this one is compared with.
fn buffers(link: &mut Link, phase: &Phase, count: u64) -> Result<Vec<Slot>> {
    let count = count as usize;
    match phase.verify {
        true => link.buffers(count, phase.size),
        false => Ok(link.buffers(1, phase.size)?.repeat(count)),
    }
}

/// Messages after which their receiver says so.
fn half_window(phase: &Phase) -> u64 {
    phase.window.div_ceil(2)
}

/// Makes sure that a message is what was sent as number `received.number`, or at least as long.
///
/// # Errors
///
/// What is wrong with it.
#[inline(always)]
fn inspect(link: &mut Link, received: Received, phase: &Phase, direction: Direction) -> Result<()> {
    if received.len != phase.size || phase.verify {
        return inspect_content(link, &received, phase, direction);
    }
    Ok(())
}

#[inline(never)]
fn inspect_content(
    link: &mut Link,
    received: &Received,
    phase: &Phase,
    direction: Direction,
) -> Result<()> {
    if received.len != phase.size {
        return Err(damaged(
            received,
            phase,
            format!("{} bytes came", received.len),
        ));
    }
    let content = &link.bytes(received.slot)[..received.len];
    pattern::check(content, received.number, direction)
        .map_err(|damage| damaged(received, phase, damage))
}

#[cold]
fn damaged(received: &Received, phase: &Phase, what: impl std::fmt::Display) -> Failure {
    Failure::new(format!(
        "damaged data: message {} of {} bytes: {what}",
        received.number, phase.size
    ))
}

/// A completion of a receive that this side did not post.
#[cold]
fn out_of_place() -> Failure {
    Failure::new("a receive completed that this phase did not post")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_phase_is_checked() {
        let good = Phase {
            pattern: Pattern::Stream,
            size: 4096,
            messages: 10,
            window: 64,
            verify: true,
        };
        good.check(1 << 20).unwrap();
        for (phase, why) in [
            (Phase { size: 8192, ..good }, "at most 4K"),
            (
                Phase {
                    messages: u64::MAX,
                    ..good
                },
                "too many",
            ),
            (Phase { window: 0, ..good }, "window of 0"),
            (
                Phase {
                    window: u64::MAX,
                    ..good
                },
                "not possible",
            ),
        ] {
            let text = phase.check(4096).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
        let large = Phase {
            size: 1 << 30,
            window: 2,
            ..good
        };
        assert!(
            large
                .check(usize::MAX)
                .unwrap_err()
                .to_string()
                .contains("1G of memory")
        );
        Phase { window: 1, ..large }.check(usize::MAX).unwrap();
    }
}
