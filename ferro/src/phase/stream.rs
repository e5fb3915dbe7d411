//! Messages one way, as many under way as the window allows; the receiver says after each half
//! window how far it is.

use std::time::{Duration, Instant};

use super::side::{PhaseReceives, announce, buffers, half_window, inspect, out_of_place};
use crate::failure::Result;
use crate::link::buffers::Slot;
use crate::link::{Link, LinkEvent, Purpose};
use crate::message::{Message, Phase};
use crate::pattern::{self, Direction};

/// Acknowledgements that may be on their way: those of a full window, and the last one.
const ACKS: usize = 3;

/// The asking side sends. Returns the time from the first message until the receiver has said that
/// it has the last.
///
/// # Errors
///
/// When the phase is impossible, or the partner is gone.
pub(crate) fn ask(link: &mut Link, phase: &Phase) -> Result<Duration> {
    phase.check(link.max_bytes())?;
    let mut sender = Sender::begin(link, phase)?;
    announce(link, phase)?;
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
    link.free_buffers();
    for (number, buffer) in (0..).zip(buffers(link, phase, posted)?) {
        link.post(buffer, Purpose::Data, number)?;
    }
    let mut acks = link.buffers(ACKS, 1)?;
    link.channel().send(&Message::Ready)?;

    let mut unsent = 0;
    let half_window = half_window(phase);
    let mut since_ack = 0;
    for count in 1..=phase.messages {
        let received = loop {
            match link.next()? {
                LinkEvent::Received(received) if received.purpose == Purpose::Data => {
                    break received;
                }
                LinkEvent::Received(_) => return Err(out_of_place()),
                LinkEvent::Sent(buffer, _) => {
                    unsent -= 1;
                    acks.push(buffer);
                }
            }
        };
        inspect(link, received, phase, Direction::There)?;
        if posted < phase.messages {
            link.post(received.slot, Purpose::Data, posted)?;
            posted += 1;
        }
        since_ack += 1;
        if since_ack == half_window || count == phase.messages {
            since_ack = 0;
            let ack = match acks.pop() {
                Some(ack) => ack,
                None => link.buffers(1, 1)?[0],
            };
            match link.send(ack, 1, Purpose::Ack)? {
                true => acks.push(ack),
                false => unsent += 1,
            }
        }
    }
    while unsent != 0 {
        if let LinkEvent::Sent(..) = link.next()? {
            unsent -= 1;
        }
    }
    Ok(())
}

struct Sender<'a> {
    phase: &'a Phase,
    /// Buffers to send from; the last used is used first, while it is in the cache.
    free: Vec<Slot>,
    /// Messages whose buffer has not come back.
    unsent: u64,
    /// Messages that the receiver has.
    arrived: u64,
    ack_receives: PhaseReceives,
}

impl<'a> Sender<'a> {
    fn begin(link: &mut Link, phase: &'a Phase) -> Result<Self> {
        link.free_buffers();
        let mut sender = Self {
            phase,
            free: buffers(link, phase, phase.window.min(phase.messages))?,
            unsent: 0,
            arrived: 0,
            ack_receives: PhaseReceives::of_acks(phase),
        };
        for buffer in link.buffers(ACKS, 1)? {
            sender.ack_receives.post(link, buffer)?;
        }
        Ok(sender)
    }

    #[inline]
    fn send(&mut self, link: &mut Link, number: u64) -> Result<()> {
        while number - self.arrived >= self.phase.window {
            self.take(link)?;
        }
        let buffer = loop {
            match self.free.pop() {
                Some(buffer) => break buffer,
                None => self.take(link)?,
            }
        };
        if self.phase.verify {
            pattern::fill(link.bytes(buffer), number, Direction::There);
        }
        link.set_more(self.sends_at_once(number + 1));
        match link.send(buffer, self.phase.size, Purpose::Data)? {
            true => self.free.push(buffer),
            false => self.unsent += 1,
        }
        Ok(())
    }

    /// Whether a message can be sent right behind the one before it: it waits neither for the
    /// receiver nor for a buffer.
    #[inline]
    fn sends_at_once(&self, number: u64) -> bool {
        number < self.phase.messages
            && number - self.arrived < self.phase.window
            && !self.free.is_empty()
    }

    #[inline]
    fn take(&mut self, link: &mut Link) -> Result<()> {
        match link.next()? {
            LinkEvent::Sent(buffer, _) => {
                self.unsent -= 1;
                self.free.push(buffer);
            }
            LinkEvent::Received(received) if received.purpose == Purpose::Ack => {
                self.arrived = (self.arrived + half_window(self.phase)).min(self.phase.messages);
                self.ack_receives.post(link, received.slot)?;
            }
            LinkEvent::Received(_) => return Err(out_of_place()),
        }
        Ok(())
    }
}
