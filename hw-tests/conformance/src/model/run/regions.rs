//! The regions of the ranks of a run, and a model of their memory: plain bytes that each write
//! changes when it begins, since no two operations use the same place at a time unless a fence
//! orders them. Words that atomic operations change have a history instead.

mod atomics;

use std::ops::Range;
use std::sync::Arc;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr};

use super::Wrong;
use crate::memory::MessageMemory;
use crate::model::history::NodeNumber;
use crate::model::oracle::atomics::AtomicHistory;
use crate::model::program::OneSidedFault;

/// The content of a region that has closed.
const CLOSED: u8 = 0xc1;

/// Regions begin at multiples of this number of bytes, which is the size of the longest elements.
const MOST_ALIGNED: usize = 16;

/// A region of a rank.
pub(super) struct RunRegion {
    // Closed before its memory goes.
    mr: Option<Arc<dyn Mr>>,
    pub(super) key: u64,
    pub(super) rights: Flags,
    /// The place that peers name for its first byte.
    pub(super) first_place: u64,
    pub(super) is_closed: bool,
    /// It is another process's.
    elsewhere: bool,
    memory: MessageMemory,
    /// The content when all writes are over that have begun.
    image: Vec<u8>,
    uses: Vec<RegionUse>,
    /// Bytes that atomic operations change, until the content is known again.
    atomics: Vec<AtomicHistory>,
}

/// Bytes of a region that an operation under way uses.
pub(super) struct RegionUse {
    pub(super) op: usize,
    pub(super) by: (NodeNumber, NodeNumber),
    pub(super) place: Range<usize>,
    pub(super) writes: bool,
    /// Its end is unknown, so the bytes may change at any time: nobody else uses them any more.
    pub(super) is_lost: bool,
}

impl RegionUse {
    fn overlaps(&self, place: &Range<usize>) -> bool {
        self.place.start < place.end && place.start < self.place.end
    }
}

impl RunRegion {
    /// Registers memory; `None` for the domain: another process does.
    pub(super) fn open(
        domain: Option<&dyn Domain>,
        key: u64,
        rights: Flags,
        len: usize,
        is_virtual: bool,
    ) -> Self {
        let memory = MessageMemory::for_receive(if domain.is_some() { len } else { 0 });
        // The model's elements are aligned from the start of the region on.
        assert_eq!(memory.addr() % MOST_ALIGNED, 0, "the allocator aligns less");
        let first_place = match is_virtual {
            true => memory.addr() as u64,
            false => 0,
        };
        let attr = MrAttr {
            key: Some(key),
            first_place,
            ..MrAttr::new(memory.whole(), rights)
        };
        // SAFETY: the memory is kept until the registration is closed.
        let mr = domain.map(|domain| unsafe { domain.register_region(&attr) }.unwrap());
        Self {
            key: mr.as_ref().map_or(key, |mr| mr.key()),
            elsewhere: mr.is_none(),
            mr,
            rights,
            first_place,
            is_closed: false,
            image: MessageMemory::for_receive(len).bytes(0..len),
            memory,
            uses: Vec::new(),
            atomics: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.image.len()
    }

    /// Key and place of an operation of `len` bytes that has a fault in them; none if it has no
    /// such fault.
    pub(super) fn place_with(&self, fault: OneSidedFault, len: usize) -> Option<(u64, u64)> {
        let last = self.first_place + (self.len() - len) as u64;
        match fault {
            OneSidedFault::Key => Some((!self.key, self.first_place)),
            OneSidedFault::Range => Some((self.key, last + 1)),
            OneSidedFault::Overflow => Some((self.key, u64::MAX - len as u64 / 2)),
            OneSidedFault::None | OneSidedFault::Alignment => None,
        }
    }

    /// The place of the last read or write under way of an initiator and a target.
    pub(super) fn last_place(&self, by: (NodeNumber, NodeNumber)) -> Option<usize> {
        let before = self.uses.iter().rfind(|used| used.by == by)?;
        Some(before.place.start)
    }

    /// A place for `len` bytes that no operation under way uses, looked for from `from` on.
    pub(super) fn free_place(
        &self,
        within: &Range<usize>,
        from: usize,
        len: usize,
        writes: bool,
    ) -> Option<usize> {
        let starts = [within.start + from % within.len().max(1), within.start];
        starts
            .into_iter()
            .chain(self.ends_of_uses())
            .find(|&start| {
                let place = start..start + len;
                let mut used = self.uses.iter().filter(|used| used.writes || writes);
                start >= within.start
                    && place.end <= within.end
                    && !used.any(|used| used.overlaps(&place))
                    && !self.has_open_atomics(&place)
            })
    }

    /// The place of the last operation under way of the same initiator and target, if no other uses
    /// the `len` bytes there.
    pub(super) fn place_behind_fence(
        &self,
        within: &Range<usize>,
        by: (NodeNumber, NodeNumber),
        len: usize,
    ) -> Option<usize> {
        let start = self.last_place(by)?;
        let place = start..start + len;
        let mut used = self.uses.iter().filter(|used| used.overlaps(&place));
        let is_mine = used.all(|used| used.by == by && !used.is_lost);
        let is_free = is_mine && !self.has_open_atomics(&place);
        (is_free && place.end <= within.end).then_some(place.start)
    }

    /// The operations whose place is used once more.
    pub(super) fn overlapped(&self, place: &Range<usize>) -> impl Iterator<Item = usize> {
        let used = self.uses.iter().filter(|used| used.overlaps(place));
        used.map(|used| used.op)
    }

    /// The content that a read gets which begins now.
    pub(super) fn content(&self, place: Range<usize>) -> Vec<u8> {
        self.image[place].to_vec()
    }

    /// An operation begins; a write brings its bytes.
    pub(super) fn begin(&mut self, used: RegionUse, bytes: Option<&[u8]>) {
        if let Some(bytes) = bytes {
            self.image[used.place.clone()].copy_from_slice(bytes);
        }
        self.uses.push(used);
    }

    /// A write of the other process is over.
    pub(super) fn note(&mut self, place: Range<usize>, bytes: &[u8]) {
        self.image[place].copy_from_slice(bytes);
    }

    /// An operation is over.
    pub(super) fn end(&mut self, op: usize, is_lost: bool) {
        match self.uses.iter().position(|used| used.op == op) {
            Some(at) if is_lost => self.uses[at].is_lost = true,
            Some(at) => drop(self.uses.remove(at)),
            None => {}
        }
    }

    /// Whether a byte may have any value.
    pub(super) fn is_lost(&self, at: usize) -> bool {
        let mut lost = self.uses.iter().filter(|used| used.is_lost);
        lost.any(|used| used.place.contains(&at))
    }

    /// Whether the bytes at a place are these; true of memory that is not here.
    pub(super) fn has(&self, place: Range<usize>, bytes: &[u8]) -> bool {
        self.elsewhere || self.is_closed || self.memory.bytes(place) == bytes
    }

    /// Begins a close: drop what it returns, and drive all others meanwhile.
    pub(super) fn begin_close(&mut self) -> Option<Arc<dyn Mr>> {
        self.mr.take()
    }

    pub(super) fn is_open(&self) -> bool {
        self.mr.is_some()
    }

    /// The close has returned: nobody else writes the memory any more.
    pub(super) fn end_close(&mut self) -> Result<(), Wrong> {
        self.check()?;
        self.close_atomics();
        self.is_closed = true;
        self.memory.fill(CLOSED);
        Ok(())
    }

    /// Checks the memory, but for the bytes that operations write or change at present.
    ///
    /// # Errors
    ///
    /// Where it is not as the model's.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        if self.elsewhere {
            return Ok(());
        }
        let here = |why| format!("region {:#x}: {why}", self.key);
        self.memory.untouched_behind(self.len()).map_err(here)?;
        let bytes = self.memory.bytes(0..self.len());
        if self.is_closed {
            return match bytes.iter().position(|byte| *byte != CLOSED) {
                Some(at) => Err(here(format!("byte {at} is written after the close"))),
                None => Ok(()),
            };
        }
        let mut written: Vec<_> = (self.uses.iter().filter(|used| used.writes))
            .map(|used| used.place.clone())
            .chain(self.atomics.iter().map(|history| history.place.clone()))
            .collect();
        written.push(self.len()..self.len());
        written.sort_unstable_by_key(|place| place.start);
        let mut from = 0;
        for place in written {
            let quiet = from..place.start.max(from);
            if bytes[quiet.clone()] != self.image[quiet.clone()] {
                let at = quiet.clone().find(|&at| bytes[at] != self.image[at]);
                let at = at.unwrap_or_default();
                let end = quiet.end.min(at + 8);
                let (is, model) = (&bytes[at..end], &self.image[at..end]);
                return Err(here(format!(
                    "byte {at} is {is:02x?}, the model's {model:02x?}"
                )));
            }
            from = from.max(place.end);
        }
        Ok(())
    }
}
