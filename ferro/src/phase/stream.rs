//! Messages one way, as many under way as the window allows; the receiver says after each half window how far it is.

use std::time::{Duration, Instant};

use ferrofabric_core::owning::Buffer;

use super::{Phase, half_window, inspect, out_of_place};
use crate::failure::Result;
use crate::link::{Event, Link, Purpose};
use crate::partner::channel::Message;
use crate::pattern::{self, Direction};

/// Acknowledgements that may be on their way: those of a full window, and the last one.
const ACKS: u64 = 3;

/// The asking side sends. Returns the time from the first message until the receiver has said that it has the last.
///
/// # Errors
///
/// When the phase is impossible, or the partner is gone.
pub(crate) fn ask(link: &mut Link, phase: &Phase) -> Result<Duration> {
    phase.check(link.max_bytes())?;
    let mut sender = Sender::begin(link, phase)?;
    phase.announce(link)?;
    let start = Instant::now();
    for number in 0..phase.messages {
        sender.send(link, number)?;
    }
    while sender.arrived < phase.messages {
        sender.take(link)?;
    }
    let took = start.elapsed();
    while sender.unsent != 0 {
        sender.take(link)?;
    }
    Ok(took)
}

/// The answering side receives.
///
/// # Errors
///
/// When the phase is impossible, a message is damaged, or the partner is gone.
pub(super) fn answer(link: &mut Link, phase: &Phase) -> Result<()> {
    let mut posted = phase.window.min(phase.messages);
    for number in 0..posted {
        let buffer = link.buffer(phase.size)?;
        link.post(buffer, Purpose::Data, number)?;
    }
    let mut acks = Vec::new();
    for _ in 0..ACKS {
        acks.push(link.buffer(1)?);
    }
    link.channel().send(&Message::Ready)?;

    let mut unsent = 0;
    for count in 1..=phase.messages {
        let received = loop {
            match link.next()? {
                Event::Received(received) if received.purpose == Purpose::Data => break received,
                Event::Received(_) => return Err(out_of_place()),
                Event::Sent(buffer) => {
                    unsent -= 1;
                    acks.push(buffer);
                }
            }
        };
        inspect(&received, phase, Direction::There)?;
        if posted < phase.messages {
            link.post(received.buffer, Purpose::Data, posted)?;
            posted += 1;
        }
        if count % half_window(phase) == 0 || count == phase.messages {
            let ack = match acks.pop() {
                Some(ack) => ack,
                None => link.buffer(1)?,
            };
            match link.send(ack, 1, Purpose::Ack)? {
                Some(ack) => acks.push(ack),
                None => unsent += 1,
            }
        }
    }
    while unsent != 0 {
        if let Event::Sent(_) = link.next()? {
            unsent -= 1;
        }
    }
    Ok(())
}

struct Sender<'a> {
    phase: &'a Phase,
    /// Buffers to send from; the last used is used first, while it is in the cache.
    free: Vec<Buffer>,
    /// Messages whose buffer has not come back.
    unsent: u64,
    /// Messages that the receiver has.
    arrived: u64,
    acks_posted: u64,
}

impl<'a> Sender<'a> {
    fn begin(link: &mut Link, phase: &'a Phase) -> Result<Self> {
        let mut sender = Self {
            phase,
            free: Vec::new(),
            unsent: 0,
            arrived: 0,
            acks_posted: 0,
        };
        for _ in 0..phase.window.min(phase.messages) {
            sender.free.push(link.buffer(phase.size)?);
        }
        for _ in 0..ACKS {
            let buffer = link.buffer(1)?;
            sender.post_ack(link, buffer)?;
        }
        Ok(sender)
    }

    #[inline]
    fn send(&mut self, link: &mut Link, number: u64) -> Result<()> {
        while number - self.arrived >= self.phase.window {
            self.take(link)?;
        }
        let mut buffer = loop {
            match self.free.pop() {
                Some(buffer) => break buffer,
                None => self.take(link)?,
            }
        };
        if self.phase.verify {
            pattern::fill(&mut buffer[..self.phase.size], number, Direction::There);
        }
        link.set_more(self.sends_at_once(number + 1));
        match link.send(buffer, self.phase.size, Purpose::Data)? {
            Some(buffer) => self.free.push(buffer),
            None => self.unsent += 1,
        }
        Ok(())
    }

    /// Whether a message can be sent right behind the one before it: it waits neither for the receiver nor for a buffer.
    #[inline]
    fn sends_at_once(&self, number: u64) -> bool {
        number < self.phase.messages
            && number - self.arrived < self.phase.window
            && !self.free.is_empty()
    }

    #[inline]
    fn take(&mut self, link: &mut Link) -> Result<()> {
        match link.next()? {
            Event::Sent(buffer) => {
                self.unsent -= 1;
                self.free.push(buffer);
            }
            Event::Received(received) if received.purpose == Purpose::Ack => {
                self.arrived = (self.arrived + half_window(self.phase)).min(self.phase.messages);
                self.post_ack(link, received.buffer)?;
            }
            Event::Received(_) => return Err(out_of_place()),
        }
        Ok(())
    }

    /// Posts a receive for an acknowledgement, if one is still to come for it.
    fn post_ack(&mut self, link: &mut Link, buffer: Buffer) -> Result<()> {
        if self.acks_posted == self.phase.messages.div_ceil(half_window(self.phase)) {
            return Ok(());
        }
        self.acks_posted += 1;
        link.post(buffer, Purpose::Ack, self.acks_posted - 1)
    }
}
