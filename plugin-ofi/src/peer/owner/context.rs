//! The contexts of operations at a C provider: numbers that no operation has twice.

/// Generations that a slot has, one after the other. They begin again after 2^40 uses of the slot.
const GENERATION_BITS: u32 = 40;

/// Slots of a kind that an endpoint has at most: 2^23.
pub(super) const MAX_SLOTS: usize = 1 << (u64::BITS - GENERATION_BITS - 1);

const SEND: u64 = 1;

/// The context of an operation, for C. It is never 0: generations begin with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationContext(pub(super) u64);

impl OperationContext {
    /// Of a receive, or a queued message.
    pub(super) const fn of_receive(generation: u64, index: usize) -> Self {
        Self((generation << (u64::BITS - GENERATION_BITS)) | ((index as u64) << 1))
    }

    /// Of a send.
    pub(super) const fn of_send(generation: u64, index: usize) -> Self {
        Self(Self::of_receive(generation, index).0 | SEND)
    }

    pub(super) const fn is_of_send(self) -> bool {
        self.0 & SEND != 0
    }

    /// The place of its slot.
    pub(super) const fn index(self) -> usize {
        (self.0 >> 1) as usize & (MAX_SLOTS - 1)
    }
}

/// The generation after one; 0 is none.
pub(super) const fn next_generation(generation: u64) -> u64 {
    match (generation + 1) & ((1 << GENERATION_BITS) - 1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_has_the_place_and_the_kind() {
        let last = (1 << GENERATION_BITS) - 1;
        for (generation, index) in [(1, 0), (7, 5), (last, MAX_SLOTS - 1)] {
            let receive = OperationContext::of_receive(generation, index);
            let send = OperationContext::of_send(generation, index);
            assert_eq!((receive.index(), receive.is_of_send()), (index, false));
            assert_eq!((send.index(), send.is_of_send()), (index, true));
            assert!(receive.0 != 0 && receive != send);
        }
        assert_eq!(next_generation(1), 2);
        assert_eq!(next_generation(last), 1);
    }
}
