//! The messages of collectives for which an endpoint had no room.
//!
//! Those for one peer keep their order. They hold back none for another peer.

use std::collections::{BTreeMap, VecDeque};

use ferrofabric_contracts::types::FiAddr;

/// The room that messages need: that for sends to a peer, or for receives from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Room {
    pub(crate) peer: FiAddr,
    pub(crate) sends: bool,
}

/// The numbers of messages that wait, by the room that they need.
#[derive(Default)]
pub(crate) struct WaitingMessages(BTreeMap<Room, VecDeque<u64>>);

impl WaitingMessages {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether messages wait for this room.
    pub(crate) fn has(&self, room: Room) -> bool {
        self.0.contains_key(&room)
    }

    /// Each room for which messages wait.
    pub(crate) fn rooms(&self) -> Vec<Room> {
        self.0.keys().copied().collect()
    }

    /// Puts a message behind the others.
    pub(crate) fn push(&mut self, room: Room, number: u64) {
        self.0.entry(room).or_default().push_back(number);
    }

    /// Puts the first message back.
    pub(crate) fn put_back(&mut self, room: Room, number: u64) {
        self.0.entry(room).or_default().push_front(number);
    }

    /// Takes out the first message.
    pub(crate) fn pop(&mut self, room: Room) -> Option<u64> {
        let waiting = self.0.get_mut(&room)?;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            self.0.remove(&room);
        }
        first
    }

    /// Takes out a message. Returns whether it was there.
    pub(crate) fn remove(&mut self, room: Room, number: u64) -> bool {
        let Some(waiting) = self.0.get_mut(&room) else {
            return false;
        };
        let before = waiting.len();
        waiting.retain(|&one| one != number);
        let is_removed = waiting.len() < before;
        if waiting.is_empty() {
            self.0.remove(&room);
        }
        is_removed
    }
}
