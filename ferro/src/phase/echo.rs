//! Messages there and back. Each side has two receives posted, so that an answer leaves before the
//! next receive is posted.

use std::time::Duration;

use super::side::{PhaseReceives, announce, buffers, in_batches, inspect, out_of_place};
use crate::failure::Result;
use crate::link::buffers::Slot;
use crate::link::{Link, LinkEvent, Purpose, Received};
use crate::message::{Message, Phase};
use crate::pattern::{self, Direction};

/// Receives posted ahead, and buffers to send from.
const DEPTH: u64 = 2;

/// The asking side: `record` gets the time of each batch of round trips, and how many they were.
///
/// # Errors
///
/// When the phase is impossible, a message is damaged, or the partner is gone.
pub(crate) fn ask(
    link: &mut Link,
    phase: &Phase,
    batch: u64,
    record: &mut dyn FnMut(Duration, u64),
) -> Result<()> {
    phase.check(link.max_bytes())?;
    let mut echo = Echo::begin(link, phase)?;
    announce(link, phase)?;
    in_batches(phase, batch, record, |mut numbers| {
        numbers.try_for_each(|number| {
            echo.send(link, number, Direction::There)?;
            echo.receive(link, number, Direction::Back)
        })
    })?;
    echo.finish(link)
}

/// The answering side.
///
/// # Errors
///
/// As [`ask`].
pub(super) fn answer(link: &mut Link, phase: &Phase) -> Result<()> {
    let mut echo = Echo::begin(link, phase)?;
    link.channel().send(&Message::Ready)?;
    for number in 0..phase.messages {
        echo.receive(link, number, Direction::There)?;
        echo.send(link, number, Direction::Back)?;
    }
    echo.finish(link)
}

struct Echo<'a> {
    phase: &'a Phase,
    /// Buffers to send from.
    free: Vec<Slot>,
    /// Messages whose buffer has not come back.
    unsent: u64,
    receives: PhaseReceives,
    /// A receive's buffer that is not posted again yet.
    emptied: Option<Slot>,
}

impl<'a> Echo<'a> {
    fn begin(link: &mut Link, phase: &'a Phase) -> Result<Self> {
        link.free_buffers();
        let mut echo = Self {
            phase,
            free: buffers(link, phase, DEPTH)?,
            unsent: 0,
            receives: PhaseReceives::of_data(phase),
            emptied: None,
        };
        for buffer in buffers(link, phase, DEPTH)? {
            echo.receives.post(link, buffer)?;
        }
        Ok(echo)
    }

    #[inline]
    fn send(&mut self, link: &mut Link, number: u64, direction: Direction) -> Result<()> {
        let buffer = loop {
            match self.free.pop() {
                Some(buffer) => break buffer,
                None => self.take(link)?,
            };
        };
        if self.phase.verify {
            pattern::fill(link.bytes(buffer), number, direction);
        }
        match link.send(buffer, self.phase.size, Purpose::Data)? {
            true => self.free.push(buffer),
            false => self.unsent += 1,
        }
        match self.emptied.take() {
            Some(buffer) => self.receives.post(link, buffer),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn receive(&mut self, link: &mut Link, number: u64, direction: Direction) -> Result<()> {
        let received = loop {
            if let Some(received) = self.take(link)? {
                break received;
            }
        };
        if received.number != number {
            return Err(out_of_place());
        }
        inspect(link, received, self.phase, direction)?;
        self.emptied = Some(received.slot);
        Ok(())
    }

    /// Takes in one event; the message, if it is one.
    #[inline(always)]
    fn take(&mut self, link: &mut Link) -> Result<Option<Received>> {
        match link.next()? {
            LinkEvent::Sent(buffer, _) => {
                self.unsent -= 1;
                self.free.push(buffer);
                Ok(None)
            }
            LinkEvent::Received(received) if received.purpose == Purpose::Data => {
                Ok(Some(received))
            }
            LinkEvent::Received(_) => Err(out_of_place()),
        }
    }

    /// Waits until each sent message has left.
    fn finish(mut self, link: &mut Link) -> Result<()> {
        while self.unsent != 0 {
            self.take(link)?;
        }
        Ok(())
    }
}
