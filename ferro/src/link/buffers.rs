//! The buffers of a link, and the operations under way on them.

use std::sync::Arc;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc};
use ferrofabric_runtime::fabric::{Domain, Mr};
use memmap2::MmapMut;

use crate::failure::{Failure, Result};

/// Buffers of a set start at so many bytes from each other, or a multiple: they share no cache
/// line.
const APART: usize = 64;

/// A buffer of the link's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

impl Slot {
    /// Bits of its number.
    pub(super) const BITS: u32 = 20;

    /// Its number.
    #[inline(always)]
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// How many buffers of its set come before it, from `first` on.
    #[inline(always)]
    pub(crate) fn after(self, first: Self) -> u64 {
        u64::from(self.0 - first.0)
    }

    /// That of a number's lowest bits.
    #[inline(always)]
    pub(super) fn of(number: u64) -> Self {
        Self(number as u32 & ((1 << Self::BITS) - 1))
    }
}

pub(super) struct Place {
    pub(super) addr: *mut u8,
    pub(super) len: usize,
    pub(super) desc: MrDesc,
    /// Operations under way on it.
    busy: u32,
}

/// Memory of a set of buffers.
struct Memory {
    // The registration goes before what it is of.
    _registered: Option<Arc<dyn Mr>>,
    _mapped: MmapMut,
}

/// All buffers of a link.
#[derive(Default)]
pub(super) struct Buffers {
    places: Vec<Place>,
    memory: Vec<Memory>,
    /// Operations whose completion has not come.
    under_way: usize,
}

impl Buffers {
    /// Gives them back, unless operations are under way.
    pub(super) fn free(&mut self) {
        if self.under_way == 0 {
            self.places.clear();
            self.memory.clear();
        }
    }

    /// Makes `count` buffers of a length, side by side, registered with the domain whose device
    /// moves them.
    ///
    /// # Errors
    ///
    /// When there is no memory, or it can not be registered.
    pub(super) fn make(
        &mut self,
        count: usize,
        len: usize,
        with: Option<&dyn Domain>,
    ) -> Result<Vec<Slot>> {
        let first = self.places.len();
        if (first + count) >> Slot::BITS != 0 {
            return Err(Failure::new(format!("{count} buffers are too many")));
        }
        let apart = len.max(1).next_multiple_of(APART);
        let no_memory = |e| Failure::io(format!("make {count} buffers of {len} bytes"), e);
        let bytes = apart.saturating_mul(count.max(1));
        let mut mapped = MmapMut::map_anon(bytes).map_err(no_memory)?;
        let whole = IoBuf::new(mapped.as_ptr(), bytes);
        let registered = match with {
            Some(domain) => {
                let access = Flags::SEND | Flags::RECV;
                // SAFETY: the registration goes before the memory (`Memory`), which nobody touches
                // while an operation is under way (`bytes`).
                Some(unsafe { domain.register(whole, access)? })
            }
            None => None,
        };
        let desc = registered.as_ref().map_or(MrDesc::NONE, |mr| mr.desc());
        // Memory that nobody has written to is all one page.
        mapped.fill(1);
        let buffers = mapped.chunks_exact_mut(apart).take(count);
        self.places.extend(buffers.map(|buffer| Place {
            addr: buffer.as_mut_ptr(),
            len,
            desc,
            busy: 0,
        }));
        self.memory.push(Memory {
            _registered: registered,
            _mapped: mapped,
        });
        Ok((first..first + count).map(|at| Slot(at as u32)).collect())
    }

    /// The bytes of a buffer.
    ///
    /// # Panics
    ///
    /// When an operation is under way on it.
    #[inline]
    pub(super) fn bytes(&mut self, slot: Slot) -> &mut [u8] {
        let place = &self.places[slot.0 as usize];
        assert_eq!(place.busy, 0, "a buffer in use");
        // SAFETY: the memory is there as long as the place is, and no operation uses it.
        unsafe { std::slice::from_raw_parts_mut(place.addr, place.len) }
    }

    /// Where a buffer is.
    #[inline(always)]
    pub(super) fn place(&self, slot: Slot) -> &Place {
        &self.places[slot.0 as usize]
    }

    /// An operation on a buffer is under way.
    #[inline]
    pub(super) fn begin(&mut self, slot: Slot) {
        self.places[slot.0 as usize].busy += 1;
        self.under_way += 1;
    }

    /// One is over.
    #[inline(always)]
    pub(super) fn end(&mut self, slot: Slot) {
        if let Some(place) = self.places.get_mut(slot.0 as usize) {
            place.busy = place.busy.saturating_sub(1);
        }
        self.under_way = self.under_way.saturating_sub(1);
    }
}
