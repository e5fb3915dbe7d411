//! Messages both ways at once: each side sends as many as the window allows, receives as many, and
//! says after each half window how far it is.

use std::time::{Duration, Instant};

use super::side::{PhaseReceives, announce, buffers, half_window, inspect, out_of_place};
use crate::failure::Result;
use crate::link::buffers::Slot;
use crate::link::{Link, LinkEvent, Purpose, Received};
use crate::message::{Message, Phase};
use crate::pattern::{self, Direction};

/// Acknowledgements that may be on their way: those of a full window, and the last one.
const ACKS: usize = 3;

/// The asking side. Returns the time from its first message until each side has all of the other's.
///
/// # Errors
///
/// When the phase is impossible, a message is damaged, or the partner is gone.
pub(crate) fn ask(link: &mut Link, phase: &Phase) -> Result<Duration> {
    phase.check(link.max_bytes())?;
    let mut side = ExchangeSide::begin(link, phase, Direction::There, Direction::Back)?;
    announce(link, phase)?;
    let start = Instant::now();
    side.run(link)?;
    let took = start.elapsed();
    side.finish(link)?;
    Ok(took)
}

/// The answering side.
///
/// # Errors
///
/// As [`ask`].
pub(super) fn answer(link: &mut Link, phase: &Phase) -> Result<()> {
    let mut side = ExchangeSide::begin(link, phase, Direction::Back, Direction::There)?;
    link.channel().send(&Message::Ready)?;
    side.run(link)?;
    side.finish(link)
}

struct ExchangeSide<'a> {
    phase: &'a Phase,
    out: Direction,
    back: Direction,
    /// Buffers to send from; the last used is used first, while it is in the cache.
    free: Vec<Slot>,
    /// The same for acknowledgements.
    free_acks: Vec<Slot>,
    sent: u64,
    /// Messages and acknowledgements whose buffer has not come back.
    unsent: u64,
    /// Messages of ours that the other side has.
    arrived: u64,
    received: u64,
    receives: PhaseReceives,
    ack_receives: PhaseReceives,
}

impl<'a> ExchangeSide<'a> {
    fn begin(link: &mut Link, phase: &'a Phase, out: Direction, back: Direction) -> Result<Self> {
        link.free_buffers();
        let window = phase.window.min(phase.messages);
        let mut side = Self {
            phase,
            out,
            back,
            free: buffers(link, phase, window)?,
            free_acks: link.buffers(ACKS, 1)?,
            sent: 0,
            unsent: 0,
            arrived: 0,
            received: 0,
            receives: PhaseReceives::of_data(phase),
            ack_receives: PhaseReceives::of_acks(phase),
        };
        for buffer in buffers(link, phase, window)? {
            side.receives.post(link, buffer)?;
        }
        for buffer in link.buffers(ACKS, 1)? {
            side.ack_receives.post(link, buffer)?;
        }
        Ok(side)
    }

    fn run(&mut self, link: &mut Link) -> Result<()> {
        let messages = self.phase.messages;
        while self.received < messages || self.arrived < messages {
            let may_send = self.sent < messages && self.sent - self.arrived < self.phase.window;
            match may_send.then(|| self.free.pop()).flatten() {
                Some(buffer) => self.send(link, buffer)?,
                None => self.take(link)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, link: &mut Link, buffer: Slot) -> Result<()> {
        if self.phase.verify {
            pattern::fill(link.bytes(buffer), self.sent, self.out);
        }
        self.sent += 1;
        match link.send(buffer, self.phase.size, Purpose::Data)? {
            true => self.free.push(buffer),
            false => self.unsent += 1,
        }
        Ok(())
    }

    #[inline]
    fn take(&mut self, link: &mut Link) -> Result<()> {
        match link.next()? {
            LinkEvent::Sent(buffer, purpose) => {
                self.unsent -= 1;
                match purpose {
                    Purpose::Data => self.free.push(buffer),
                    Purpose::Ack => self.free_acks.push(buffer),
                }
            }
            LinkEvent::Received(ack) if ack.purpose == Purpose::Ack => {
                self.arrived = (self.arrived + half_window(self.phase)).min(self.phase.messages);
                self.ack_receives.post(link, ack.slot)?;
            }
            LinkEvent::Received(received) => self.received(link, received)?,
        }
        Ok(())
    }

    fn received(&mut self, link: &mut Link, received: Received) -> Result<()> {
        if self.received == self.phase.messages {
            return Err(out_of_place());
        }
        inspect(link, received, self.phase, self.back)?;
        self.received += 1;
        self.receives.post(link, received.slot)?;
        if self.received % half_window(self.phase) != 0 && self.received != self.phase.messages {
            return Ok(());
        }
        let ack = match self.free_acks.pop() {
            Some(ack) => ack,
            None => link.buffers(1, 1)?[0],
        };
        match link.send(ack, 1, Purpose::Ack)? {
            true => self.free_acks.push(ack),
            false => self.unsent += 1,
        }
        Ok(())
    }

    /// Waits until each sent message has left.
    fn finish(mut self, link: &mut Link) -> Result<()> {
        while self.unsent != 0 {
            self.take(link)?;
        }
        Ok(())
    }
}
