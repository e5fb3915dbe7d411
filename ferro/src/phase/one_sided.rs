//! Writes to the other side's memory and reads of it. The answering side shows a region and drives
//! its endpoint until the asking side has done all.

use std::time::Duration;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::RmaKind;

use super::side::{
    announce, buffers, end_service, in_batches, out_of_place, places, serve_until_end,
};
use crate::bound::Wait;
use crate::failure::{Failure, Result};
use crate::link::buffers::Slot;
use crate::link::region::LinkRegion;
use crate::link::{Link, LinkEvent, Purpose, Served};
use crate::message::{Message, Phase};
use crate::pattern::{self, Damage, Direction};

/// The asking side writes or reads. `record` gets the time of each batch of operations, from the
/// first that begins until the last is over, and how many they were.
///
/// # Errors
///
/// When the phase is impossible, an operation fails, bytes are damaged, or the partner is gone.
pub(crate) fn ask(
    link: &mut Link,
    phase: &Phase,
    kind: RmaKind,
    batch: u64,
    record: &mut dyn FnMut(Duration, u64),
) -> Result<()> {
    phase.check(link.max_bytes())?;
    link.free_buffers();
    let slots = buffers(link, phase, places(phase))?;
    let end = link.buffers(1, 1)?[0];
    let mut side = Initiator {
        phase,
        kind,
        first: slots[0],
        free: slots,
        under_way: 0,
    };
    announce(link, phase)?;
    in_batches(phase, batch, record, |numbers| {
        for _ in numbers {
            side.begin(link)?;
        }
        while side.under_way != 0 {
            side.take(link)?;
        }
        Ok(())
    })?;
    end_service(link, end)
}

/// The answering side, of a phase of writes or reads.
///
/// # Errors
///
/// When bytes are damaged, or the partner is gone.
pub(super) fn answer(link: &mut Link, phase: &Phase, kind: RmaKind) -> Result<()> {
    link.free_buffers();
    // Where nobody looks at the content, all operations use one place, as in the programs that this
    // one is compared with.
    let places = match phase.verify {
        true => places(phase) as usize,
        false => 1,
    };
    let region = link.region(places * phase.size, phase.mapped, |bytes| {
        if kind == RmaKind::Read {
            for (place, bytes) in (0..).zip(pieces_mut(bytes, phase)) {
                pattern::fill(bytes, place, Direction::Back);
            }
        }
    })?;
    serve_until_end(link, Served::ReadsAndWrites)?;
    region.close(|bytes| {
        if !phase.verify || kind == RmaKind::Read {
            return Ok(());
        }
        let written = &mut bytes[..places * phase.size];
        for (place, bytes) in (0..).zip(pieces_mut(written, phase)) {
            pattern::check(bytes, place, Direction::There)
                .map_err(|damage| damaged(place, phase, damage))?;
        }
        Ok(())
    })
}

fn pieces_mut<'a>(bytes: &'a mut [u8], phase: &Phase) -> impl Iterator<Item = &'a mut [u8]> {
    bytes.chunks_exact_mut(phase.size.max(1))
}

#[cold]
fn damaged(place: u64, phase: &Phase, damage: Damage) -> Failure {
    Failure::new(format!(
        "damaged data: the {} bytes of place {place}: {damage}",
        phase.size
    ))
}

struct Initiator<'a> {
    phase: &'a Phase,
    kind: RmaKind,
    /// The buffer of place 0. The others follow.
    first: Slot,
    /// Buffers of which no operation is under way, as far as their content counts.
    free: Vec<Slot>,
    under_way: u64,
}

impl Initiator<'_> {
    #[inline]
    fn begin(&mut self, link: &mut Link) -> Result<()> {
        let slot = loop {
            match self.free.pop() {
                Some(slot) => break slot,
                None => self.take(link)?,
            }
        };
        let place = slot.after(self.first);
        if self.phase.verify {
            let bytes = link.bytes(slot);
            match self.kind {
                RmaKind::Write => pattern::fill(bytes, place, Direction::There),
                RmaKind::Read => bytes.fill(0),
            }
        }
        let at = place * self.phase.size as u64;
        link.rma(self.kind, slot, self.phase.size, at, self.phase.level())?;
        self.under_way += 1;
        Ok(())
    }

    /// Takes an operation that is over.
    #[inline]
    fn take(&mut self, link: &mut Link) -> Result<()> {
        let LinkEvent::Sent(slot, Purpose::Data) = link.next()? else {
            return Err(out_of_place());
        };
        self.under_way -= 1;
        if self.phase.verify && self.kind == RmaKind::Read {
            let place = slot.after(self.first);
            pattern::check(link.bytes(slot), place, Direction::Back)
                .map_err(|damage| damaged(place, self.phase, damage))?;
        }
        self.free.push(slot);
        Ok(())
    }
}

/// Writes there and back: each side waits for the last byte of its own region, and then writes to
/// the other's. No completion is waited for, as in perftest's `ib_write_lat`. `record` gets the
/// time of each batch of round trips, and their number.
///
/// # Errors
///
/// As [`ask`].
pub(crate) fn ask_polled(
    link: &mut Link,
    phase: &Phase,
    batch: u64,
    record: &mut dyn FnMut(Duration, u64),
) -> Result<()> {
    phase.check(link.max_bytes())?;
    let mut side = PolledSide::begin(link, phase)?;
    announce(link, phase)?;
    in_batches(phase, batch, record, |mut numbers| {
        numbers.try_for_each(|number| {
            side.write(link, number)?;
            side.wait(link, number)
        })
    })?;
    side.finish(link)
}

/// The answering side of writes there and back.
///
/// # Errors
///
/// When an operation fails, or the partner is gone.
pub(super) fn answer_polled(link: &mut Link, phase: &Phase) -> Result<()> {
    if phase.size == 0 {
        return Err(Failure::usage("a write of no bytes can not be waited for"));
    }
    let mut side = PolledSide::begin(link, phase)?;
    link.channel().send(&Message::Ready)?;
    for number in 0..phase.messages {
        side.wait(link, number)?;
        side.write(link, number)?;
    }
    side.finish(link)
}

struct PolledSide {
    region: LinkRegion,
    size: usize,
    level: Flags,
    free: Vec<Slot>,
    /// Writes whose buffer has not come back.
    unsent: u64,
}

impl PolledSide {
    fn begin(link: &mut Link, phase: &Phase) -> Result<Self> {
        link.free_buffers();
        Ok(Self {
            region: link.region(phase.size, phase.mapped, |_| {})?,
            size: phase.size,
            level: phase.level(),
            free: link.buffers(2, phase.size)?,
            unsent: 0,
        })
    }

    /// The last byte of a write: never 0, and not that of the write before it.
    #[inline(always)]
    fn mark(number: u64) -> u8 {
        (number % 255) as u8 + 1
    }

    #[inline]
    fn write(&mut self, link: &mut Link, number: u64) -> Result<()> {
        let slot = loop {
            match self.free.pop() {
                Some(slot) => break slot,
                None => {
                    let event = link.next()?;
                    self.take(event)?;
                }
            }
        };
        link.bytes(slot)[self.size - 1] = Self::mark(number);
        match link.write_unreported(slot, self.size, self.level)? {
            true => self.free.push(slot),
            false => self.unsent += 1,
        }
        Ok(())
    }

    /// Waits until the other side's write is there.
    #[inline]
    fn wait(&mut self, link: &mut Link, number: u64) -> Result<()> {
        let mut wait = Wait::default();
        while self.region.byte(self.size - 1) != Self::mark(number) {
            if let Some(event) = link.poll_once(&mut wait)? {
                self.take(event)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn take(&mut self, event: LinkEvent) -> Result<()> {
        let LinkEvent::Sent(slot, _) = event else {
            return Err(out_of_place());
        };
        self.unsent -= 1;
        self.free.push(slot);
        Ok(())
    }

    fn finish(mut self, link: &mut Link) -> Result<()> {
        while self.unsent != 0 {
            let event = link.next()?;
            self.take(event)?;
        }
        Ok(())
    }
}
