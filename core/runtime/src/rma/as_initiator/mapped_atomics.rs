//! The atomic operations that an endpoint carries out by itself, in memory of its peers that is
//! mapped (`docs/adr/0067`).

/// Operations in a row that follow others as messages. The next one in mapped memory waits until
/// those of that time are over, so a stream of operations does not go on as messages for ever.
const MOST_BEHIND: u32 = 64;

/// The state of these operations.
#[derive(Default)]
pub(crate) struct MappedAtomics {
    /// How many were carried out.
    pub(crate) carried_out: u64,
    /// Atomic operations of the endpoint that are under way as messages.
    pub(crate) by_messages: usize,
    /// Operations in a row that went as messages because earlier ones did.
    behind: u32,
    /// After too many of them, the number of operations that had begun by then.
    begun: Option<u32>,
}

impl MappedAtomics {
    /// Operations on the peer of this one are under way as messages. Returns how many operations
    /// had begun when too many had followed others: this one has to wait for those.
    pub(crate) fn follows(&mut self, begun: u32) -> Option<u32> {
        if self.behind == MOST_BEHIND {
            return Some(*self.begun.get_or_insert(begun));
        }
        self.behind += 1;
        None
    }

    /// The count begins again: no operation is under way as a message, those that this one had to
    /// wait for are over, or it goes as a message in any case.
    #[inline]
    pub(crate) fn begin_anew(&mut self) {
        (self.behind, self.begun) = (0, None);
    }
}
