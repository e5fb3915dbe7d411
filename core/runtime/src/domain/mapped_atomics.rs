//! The atomic operations that an endpoint carries out by itself, in memory of its peers that is
//! mapped (`docs/adr/0067`).

/// Operations in a row that follow others as messages. The next one in mapped memory waits until
/// those are over, so a stream of operations does not go on as messages for ever.
const MOST_BEHIND: u32 = 64;

/// The state of these operations.
#[derive(Default)]
pub(super) struct MappedAtomics {
    /// How many were carried out.
    pub(super) carried_out: u64,
    /// Atomic operations of the endpoint that are under way as messages.
    pub(super) by_messages: usize,
    /// Operations in a row that went as messages because earlier ones did.
    behind: u32,
}

impl MappedAtomics {
    /// Operations on the peer of this one are under way as messages. Returns whether too many have
    /// followed others already.
    pub(super) fn follows(&mut self) -> bool {
        let is_one_too_many = self.behind == MOST_BEHIND;
        if !is_one_too_many {
            self.behind += 1;
        }
        is_one_too_many
    }

    /// The count begins again: no operation on the peer is under way as a message, or this one goes
    /// as a message in any case.
    #[inline]
    pub(super) fn follows_none(&mut self) {
        self.behind = 0;
    }
}
