//! Atomic operations on the other side's memory. The answering side has a region of elements that
//! are 0 at first. Each operation adds 1 to each of them, so in the end they are the number of
//! operations, which the answering side checks in every phase.

use std::time::Duration;

use ferrofabric_contracts::atomics::{AtomicForm, AtomicOperator, Datatype, MAX_ATOMIC_BYTES};

use super::side::{
    announce, buffers, end_service, in_batches, out_of_place, places, serve_until_end,
};
use crate::failure::{Failure, Result};
use crate::link::atomics::LinkAtomic;
use crate::link::buffers::Slot;
use crate::link::{Link, LinkEvent, Purpose, Served};
use crate::message::{AtomicKind, Phase};
use crate::sizes;

/// The asking side. `record` gets the time of each batch of operations, from the first that begins
/// until the last is over, and how many they were.
///
/// # Errors
///
/// When the phase is impossible, an operation fails, a result is wrong, or the partner is gone.
pub(crate) fn ask(
    link: &mut Link,
    phase: &Phase,
    kind: AtomicKind,
    batch: u64,
    record: &mut dyn FnMut(Duration, u64),
) -> Result<()> {
    phase.check(link.max_bytes())?;
    let elements = Elements::of(phase.size)?;
    link.free_buffers();
    let slots = buffers(link, phase, places(phase))?;
    let end = link.buffers(1, 1)?[0];
    let mut side = AtomicInitiator {
        phase,
        kind,
        elements,
        operands: vec![0; phase.size],
        compares: vec![0; phase.size],
        first: slots[0],
        numbers: vec![0; slots.len()],
        free: slots,
        under_way: 0,
    };
    elements.fill(&mut side.operands, 1);
    announce(link, phase)?;
    in_batches(phase, batch, record, |numbers| {
        for number in numbers {
            side.begin(link, number)?;
        }
        while side.under_way != 0 {
            side.take(link)?;
        }
        Ok(())
    })?;
    link.end_outside()?;
    end_service(link, end)
}

/// The answering side, which carries the operations out.
///
/// # Errors
///
/// When the phase is impossible, the elements are not what they should be, or the partner is gone.
pub(super) fn answer(link: &mut Link, phase: &Phase) -> Result<()> {
    let elements = Elements::of(phase.size)?;
    link.free_buffers();
    let region = link.region(phase.size, phase.mapped, |_| {})?;
    serve_until_end(link, Served::Atomics)?;
    region.close(|bytes| {
        elements
            .check(&bytes[..phase.size], phase.messages)
            .map_err(|wrong| wrong.failure("after the operations"))
    })
}

struct AtomicInitiator<'a> {
    phase: &'a Phase,
    kind: AtomicKind,
    elements: Elements,
    operands: Vec<u8>,
    compares: Vec<u8>,
    /// The buffer of place 0. The others follow.
    first: Slot,
    /// The number of the operation that a place has the results of, in a phase that verifies.
    numbers: Vec<u64>,
    /// Buffers of which no operation is under way, as far as their content counts.
    free: Vec<Slot>,
    under_way: u64,
}

impl AtomicInitiator<'_> {
    #[inline]
    fn begin(&mut self, link: &mut Link, number: u64) -> Result<()> {
        let slot = loop {
            match self.free.pop() {
                Some(slot) => break slot,
                None => self.take(link)?,
            }
        };
        if self.phase.verify {
            self.numbers[slot.after(self.first) as usize] = number;
        }
        let (form, operator) = match self.kind {
            AtomicKind::FetchAdd => (AtomicForm::Fetch, AtomicOperator::Sum),
            AtomicKind::Add => (AtomicForm::Base, AtomicOperator::Sum),
            AtomicKind::CompareSwap => {
                self.elements.fill(&mut self.compares, number);
                self.elements.fill(&mut self.operands, number + 1);
                (AtomicForm::Compare, AtomicOperator::Cswap)
            }
        };
        let atomic = LinkAtomic {
            form,
            operator,
            datatype: self.elements.datatype(),
            operands: &self.operands,
            compares: &self.compares,
        };
        link.atomic(&atomic, slot)?;
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
        if self.phase.verify && self.kind != AtomicKind::Add {
            let number = self.numbers[slot.after(self.first) as usize];
            self.elements
                .check(link.bytes(slot), number)
                .map_err(|wrong| wrong.failure("before an operation"))?;
        }
        self.free.push(slot);
        Ok(())
    }
}

/// The elements of an operation: unsigned integers, of 8 bytes if its size is a multiple of that,
/// else of 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Elements {
    width: usize,
}

/// An element that is not what it should be.
#[derive(Debug, PartialEq, Eq)]
struct WrongElement {
    at: usize,
    found: u64,
    expected: u64,
}

impl Elements {
    /// Those of an operation of so many bytes.
    ///
    /// # Errors
    ///
    /// When there is no such operation.
    fn of(size: usize) -> Result<Self> {
        let widths = [8, 4];
        let width = widths.into_iter().find(|width| size % width == 0);
        match width.filter(|_| (1..=MAX_ATOMIC_BYTES).contains(&size)) {
            Some(width) => Ok(Self { width }),
            None => Err(Failure::usage(format!(
                "an atomic operation has 4 B to {} in whole elements of 8 or 4, not {}",
                sizes::print(MAX_ATOMIC_BYTES),
                sizes::print(size)
            ))),
        }
    }

    fn datatype(self) -> Datatype {
        match self.width {
            8 => Datatype::Uint64,
            _ => Datatype::Uint32,
        }
    }

    /// Makes each element the lowest bits of a value.
    #[inline]
    fn fill(self, bytes: &mut [u8], value: u64) {
        for element in bytes.chunks_exact_mut(self.width) {
            match self.width {
                8 => element.copy_from_slice(&value.to_ne_bytes()),
                _ => element.copy_from_slice(&(value as u32).to_ne_bytes()),
            }
        }
    }

    /// Checks that each element is the lowest bits of a value.
    ///
    /// # Errors
    ///
    /// The first that is not.
    fn check(self, bytes: &[u8], value: u64) -> std::result::Result<(), WrongElement> {
        for (at, element) in bytes.chunks_exact(self.width).enumerate() {
            let (found, expected) = match *element {
                [a, b, c, d] => (
                    u32::from_ne_bytes([a, b, c, d]).into(),
                    (value as u32).into(),
                ),
                [a, b, c, d, e, f, g, h] => (u64::from_ne_bytes([a, b, c, d, e, f, g, h]), value),
                _ => continue,
            };
            if found != expected {
                return Err(WrongElement {
                    at,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }
}

impl WrongElement {
    #[cold]
    fn failure(&self, when: &str) -> Failure {
        let Self {
            at,
            found,
            expected,
        } = self;
        Failure::new(format!(
            "damaged data: element {at} {when} is {found} and should be {expected}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_whole_elements() {
        for (size, width) in [(4, 4), (8, 8), (12, 4), (16, 8), (4096, 8)] {
            assert_eq!(Elements::of(size).unwrap(), Elements { width });
        }
        for size in [0, 1, 7, 10, 4100, 8192] {
            let why = Elements::of(size).unwrap_err().to_string();
            assert!(why.contains("4 B to 4K"), "{why}");
        }
    }

    #[test]
    fn a_wrong_element_is_found() {
        for size in [4, 8, 12, 64] {
            let elements = Elements::of(size).unwrap();
            let mut bytes = vec![0; size];
            let value = (1 << 32) + 5;
            elements.fill(&mut bytes, value);
            assert_eq!(elements.check(&bytes, value), Ok(()));
            let last = size / elements.width - 1;
            let wrong = elements.check(&bytes, value + 1).unwrap_err();
            assert_eq!((wrong.at, wrong.expected - wrong.found), (0, 1));
            bytes[size - 1] ^= 1;
            assert_eq!(elements.check(&bytes, value).unwrap_err().at, last);
        }
    }
}
