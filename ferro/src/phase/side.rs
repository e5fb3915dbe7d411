//! The steps of either side that the phases of all patterns share.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::link::buffers::Slot;
use crate::link::{Link, LinkEvent, Purpose, Received, Served};
use crate::message::{Message, Phase};
use crate::pattern::{self, Direction};

/// Notifies the partner of the phase, and waits until it is ready.
pub(super) fn announce(link: &mut Link, phase: &Phase) -> Result<()> {
    link.channel().send(&Message::Phase(*phase))?;
    match link.message()? {
        Message::Ready => Ok(()),
        _ => Err(Failure::new("the partner is not ready for the phase")),
    }
}

/// Buffers for so many messages at a time. Where nobody looks at their content they are one and the
/// same, as in the programs that this one is compared with.
pub(super) fn buffers(link: &mut Link, phase: &Phase, count: u64) -> Result<Vec<Slot>> {
    let count = count as usize;
    match phase.verify {
        true => link.buffers(count, phase.size),
        false => Ok(link.buffers(1, phase.size)?.repeat(count)),
    }
}

/// Runs the operations of a phase, batch by batch: `run` gets the numbers of each. `record` gets
/// the time of each batch, and how many operations it has.
#[inline(always)]
pub(super) fn in_batches(
    phase: &Phase,
    batch: u64,
    record: &mut dyn FnMut(Duration, u64),
    mut run: impl FnMut(Range<u64>) -> Result<()>,
) -> Result<()> {
    let mut number = 0;
    while number < phase.messages {
        let count = batch.clamp(1, phase.messages - number);
        let start = Instant::now();
        run(number..number + count)?;
        record(start.elapsed(), count);
        number += count;
    }
    Ok(())
}

/// Operations on the other side's memory that may be under way at once.
pub(super) fn places(phase: &Phase) -> u64 {
    phase.window.min(phase.messages).max(1)
}

/// Ends a phase of one-sided operations at the other side, which is in [`serve_until_end`].
pub(super) fn end_service(link: &mut Link, end: Slot) -> Result<()> {
    if !link.send(end, 1, Purpose::Ack)? {
        link.next()?;
    }
    Ok(())
}

/// The answering side of one-sided operations: drives its endpoint until the asking side has done
/// all of them.
pub(super) fn serve_until_end(link: &mut Link, operations: Served) -> Result<()> {
    let end = link.buffers(1, 1)?[0];
    link.post(end, Purpose::Ack, 0)?;
    link.channel().send(&Message::Ready)?;
    if operations == Served::Atomics {
        link.stay_outside()?;
    }
    loop {
        match link.serve(operations)? {
            Some(LinkEvent::Received(received)) if received.purpose == Purpose::Ack => {
                return Ok(());
            }
            Some(_) => return Err(out_of_place()),
            None => {}
        }
    }
}

/// Posts the receives of a phase: one for each message that is still to come.
pub(super) struct PhaseReceives {
    purpose: Purpose,
    posted: u64,
    all: u64,
}

impl PhaseReceives {
    /// None is posted yet, of those for the data of a phase.
    pub(super) fn of_data(phase: &Phase) -> Self {
        Self {
            purpose: Purpose::Data,
            posted: 0,
            all: phase.messages,
        }
    }

    /// The same for the acknowledgements.
    pub(super) fn of_acks(phase: &Phase) -> Self {
        Self {
            purpose: Purpose::Ack,
            posted: 0,
            all: phase.messages.div_ceil(half_window(phase)),
        }
    }

    /// Posts a buffer, if a message is still to come for it.
    #[inline]
    pub(super) fn post(&mut self, link: &mut Link, buffer: Slot) -> Result<()> {
        if self.posted == self.all {
            return Ok(());
        }
        self.posted += 1;
        link.post(buffer, self.purpose, self.posted - 1)
    }
}

/// Messages after which their receiver says so.
pub(super) fn half_window(phase: &Phase) -> u64 {
    phase.window.div_ceil(2)
}

/// Checks that a message has the content of number `received.number`, or its length alone in a
/// phase that does not verify.
///
/// # Errors
///
/// The damage.
#[inline(always)]
pub(super) fn inspect(
    link: &mut Link,
    received: Received,
    phase: &Phase,
    direction: Direction,
) -> Result<()> {
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
pub(super) fn out_of_place() -> Failure {
    Failure::new("a receive completed that this phase did not post")
}
