//! Messages for which an endpoint has no room.
//!
//! Those for one peer keep their order. They hold back none for another peer.

use std::collections::{BTreeMap, VecDeque};

use ferrofabric_contracts::types::FiAddr;

use crate::message::Message;

/// The room that messages need: that for sends to a peer, or for receives from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Room {
    peer: FiAddr,
    sends: bool,
}

/// Messages that wait, by the room that they need.
pub(crate) struct WaitingMessages<M> {
    by_room: BTreeMap<Room, VecDeque<Message<M>>>,
    /// The rooms in which those that wait are tried again.
    tried: Vec<Room>,
}

impl<M> Default for WaitingMessages<M> {
    fn default() -> Self {
        Self {
            by_room: BTreeMap::new(),
            tried: Vec::new(),
        }
    }
}

fn room_of<M>(message: &Message<M>) -> Room {
    let (peer, sends) = (message.peer, message.sends);
    Room { peer, sends }
}

impl<M> WaitingMessages<M> {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_room.is_empty()
    }

    /// Puts a new message behind those that wait for the same room. Returns it if there are none.
    pub(crate) fn queue_behind(&mut self, message: Message<M>) -> Option<Message<M>> {
        match self.by_room.get_mut(&room_of(&message)) {
            Some(waiting) => {
                waiting.push_back(message);
                None
            }
            None => Some(message),
        }
    }

    /// Puts a message back, for which there is no room, before those that wait for the same one.
    pub(crate) fn put_back(&mut self, message: Message<M>) {
        let room = room_of(&message);
        self.tried.retain(|&tried| tried != room);
        self.by_room.entry(room).or_default().push_front(message);
    }

    /// Tries all of them again.
    pub(crate) fn try_again(&mut self) {
        self.tried = self.by_room.keys().copied().collect();
    }

    /// Takes out the next message that is tried again.
    pub(crate) fn next_tried(&mut self) -> Option<Message<M>> {
        while let Some(room) = self.tried.last() {
            let waiting = self.by_room.get_mut(room);
            match waiting.and_then(VecDeque::pop_front) {
                Some(message) => return Some(message),
                None => {
                    self.by_room.remove(room);
                    self.tried.pop();
                }
            }
        }
        None
    }

    /// Takes out a message that waits.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Message<M>> {
        let is_it = |message: &Message<M>| message.number == number;
        let mut rooms = self.by_room.iter_mut();
        let (room, message) = rooms.find_map(|(&room, waiting)| {
            let at = waiting.iter().position(is_it)?;
            Some((room, waiting.remove(at)?))
        })?;
        if self.by_room.get(&room).is_some_and(VecDeque::is_empty) {
            self.by_room.remove(&room);
        }
        Some(message)
    }
}
