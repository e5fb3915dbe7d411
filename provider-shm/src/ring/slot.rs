//! The memory that both sides of a ring see: slots, their publish words, and the count of consumed
//! slots.

use crate::sync::{AtomicU64, Ordering, UnsafeCell};

/// Slots of a direction.
#[cfg(not(loom))]
pub(crate) const SLOTS: usize = 64;
#[cfg(loom)]
pub(crate) const SLOTS: usize = 2;

/// Bytes of the payload ring of a direction.
pub(crate) const PAYLOAD_BYTES: usize = 26_368;

/// Slots reserved for control messages: they get through while bulk data fills the ring.
#[cfg(not(loom))]
pub(crate) const CONTROL_SLOTS: usize = 8;
#[cfg(loom)]
pub(crate) const CONTROL_SLOTS: usize = 0;

/// Words of a slot after the publish word.
pub(crate) const BODY_WORDS: usize = 7;

pub(crate) const LINE: usize = 64;
/// The bits of a position that are the index of its slot.
const MASK: u32 = SLOTS as u32 - 1;
const LAP_SHIFT: u32 = SLOTS.trailing_zeros();
const BACK_PRESSURE: u64 = 1 << 63;

const _: () = assert!(SLOTS.is_power_of_two() && PAYLOAD_BYTES % LINE == 0);

/// A slot. Zeroed memory is a slot that was never published.
#[repr(C, align(64))]
pub(crate) struct LineSlot {
    word: AtomicU64,
    body: UnsafeCell<[u64; BODY_WORDS]>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LineSlot>() == LINE);

impl LineSlot {
    #[cfg(test)]
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            body: UnsafeCell::new([0; BODY_WORDS]),
        }
    }

    /// The index in the ring of the slot at `position`.
    #[inline(always)]
    pub(super) const fn index(position: u32) -> usize {
        (position & MASK) as usize
    }

    /// Producer: `fill` writes the words of the body, which the consumer sees with `head`.
    #[inline(always)]
    pub(super) fn publish(&self, position: u32, head: Head, fill: impl FnOnce(*mut u64)) {
        self.body.with_mut(|body| fill(body.cast()));
        // Release pairs with the acquire in `head`: the body, and the record that it names, are
        // there.
        self.word
            .store((head.0 << 16) | lap(position), Ordering::Release);
    }

    /// Consumer: the head of the slot at `position`, if it has been published.
    #[inline(always)]
    pub(super) fn head(&self, position: u32) -> Option<Head> {
        // Acquire pairs with the release in `publish`.
        let word = self.word.load(Ordering::Acquire);
        (word & 0xffff == lap(position)).then_some(Head(word >> 16))
    }

    /// Consumer: the body.
    #[inline(always)]
    pub(super) fn with_body<R>(&self, f: impl FnOnce(*const u64) -> R) -> R {
        self.body.with(|body| f(body.cast()))
    }
}

/// The consumer's progress, for the producer: the number of consumed slots (low half), and whether
/// the consumer is short of memory (top bit).
#[repr(C, align(128))]
pub(crate) struct RingProgress {
    word: AtomicU64,
}

impl RingProgress {
    #[cfg(test)]
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }

    /// Consumer: publishes that `consumed` slots and their records may be reused, and whether the
    /// consumer is short of memory.
    #[inline(always)]
    pub(super) fn publish(&self, consumed: u32, is_short_of_memory: bool) {
        let back_pressure = if is_short_of_memory { BACK_PRESSURE } else { 0 };
        // Release pairs with the acquire in `read`.
        self.word
            .store(consumed as u64 | back_pressure, Ordering::Release);
    }

    /// Producer: the number of consumed slots, and whether the consumer is short of memory.
    #[inline(always)]
    pub(super) fn read(&self) -> (u32, bool) {
        // Acquire pairs with the release in `publish`: the consumer has read a slot or record
        // before the producer writes it again.
        let word = self.word.load(Ordering::Acquire);
        (word as u32, word & BACK_PRESSURE != 0)
    }
}

/// The other side broke the protocol, in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkViolation(pub(crate) &'static str);

/// The content of a publish word beside the lap: kind, flags, length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(u64);

impl Head {
    #[inline(always)]
    pub(crate) const fn new(kind: u8, flags: u8, len: u32) -> Self {
        Self(kind as u64 | ((flags as u64) << 8) | ((len as u64) << 16))
    }

    #[inline(always)]
    pub(crate) const fn kind(self) -> u8 {
        self.0 as u8
    }

    #[inline(always)]
    pub(crate) const fn flags(self) -> u8 {
        (self.0 >> 8) as u8
    }

    #[inline(always)]
    pub(crate) const fn len(self) -> usize {
        (self.0 >> 16) as u32 as usize
    }
}

#[inline(always)]
const fn lap(position: u32) -> u64 {
    ((position >> LAP_SHIFT).wrapping_add(1) & 0xffff) as u64
}
