//! The incomplete messages of one peer, by the ids that the peer gave them.

use crate::outbox::KEPT_ENTRIES;
use crate::ring::LinkViolation;
use crate::wire::UNDER_WAY_MAX;

/// The message that has an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncomingState {
    /// The id is free.
    #[default]
    Free,
    /// A message that goes into a receive: its key among the endpoint's deliveries.
    Matched(u32),
    /// A message that waits for a receive: its key among the unexpected messages.
    Unexpected(u32),
}

/// The table of a peer's incomplete messages. The peer takes the lowest free id, so the table is as
/// long as the largest number of messages at one time.
#[derive(Debug, Default)]
pub(crate) struct IncomingTable {
    /// Ids beyond its end, but below `ids`, are free.
    entries: Vec<IncomingState>,
    /// Ids that the peer has used so far.
    ids: u32,
    /// Entries that are not free.
    taken: u32,
}

impl IncomingTable {
    /// The message with this id; `None` if the peer never used the id.
    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<IncomingState> {
        match self.entries.get(id as usize) {
            Some(entry) => Some(*entry),
            None => (id < self.ids).then_some(IncomingState::Free),
        }
    }

    /// The peer begins a message with this id; a call to `set` must follow.
    #[inline]
    pub(crate) fn begin(&mut self, id: u32) -> Result<(), LinkViolation> {
        match self.get(id) {
            Some(IncomingState::Free) => {}
            None if id as usize >= UNDER_WAY_MAX => {
                return Err(LinkViolation(
                    "it started more messages at a time than it may",
                ));
            }
            None if id == self.ids => self.ids += 1,
            _ => {
                return Err(LinkViolation(
                    "it started a message under an id that is not free",
                ));
            }
        }
        Ok(())
    }

    /// Sets the message of a used id.
    #[inline]
    pub(crate) fn set(&mut self, id: u32, what: IncomingState) {
        debug_assert!(id < self.ids);
        if id as usize >= self.entries.len() {
            self.entries.resize(id as usize + 1, IncomingState::Free);
        }
        let entry = &mut self.entries[id as usize];
        self.taken += u32::from(what != IncomingState::Free);
        self.taken -= u32::from(*entry != IncomingState::Free);
        *entry = what;
        if self.taken == 0 && self.entries.capacity() > KEPT_ENTRIES {
            self.entries = Vec::new();
        }
    }

    /// Whether no message is incomplete.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Takes all incomplete messages out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = IncomingState> + use<> {
        std::mem::take(self)
            .entries
            .into_iter()
            .filter(|what| *what != IncomingState::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_lowest_first_and_are_used_again() {
        let mut table = IncomingTable::default();
        assert_eq!(table.get(0), None);
        assert!(table.begin(1).is_err());
        for id in 0..3 {
            table.begin(id).unwrap();
            table.set(id, IncomingState::Unexpected(7 + id));
            assert!(table.begin(id).is_err());
        }
        table.set(1, IncomingState::Free);
        assert!(table.begin(4).is_err());
        table.begin(1).unwrap();
        table.set(1, IncomingState::Matched(1));
        let left: Vec<_> = table.drain().collect();
        assert_eq!(
            left,
            [
                IncomingState::Unexpected(7),
                IncomingState::Matched(1),
                IncomingState::Unexpected(9)
            ]
        );
    }

    #[test]
    fn the_room_of_a_burst_is_freed_and_its_ids_stay_valid() {
        let mut table = IncomingTable::default();
        for id in 0..1000 {
            table.begin(id).unwrap();
            table.set(id, IncomingState::Unexpected(id));
        }
        for id in 0..1000 {
            table.set(id, IncomingState::Free);
        }
        assert!(table.entries.capacity() <= KEPT_ENTRIES);
        assert_eq!(table.get(999), Some(IncomingState::Free));
        assert_eq!(table.get(1000), None);
        table.begin(999).unwrap();
        table.set(999, IncomingState::Matched(3));
        assert_eq!(table.get(999), Some(IncomingState::Matched(3)));
        assert_eq!(table.get(0), Some(IncomingState::Free));
    }
}
