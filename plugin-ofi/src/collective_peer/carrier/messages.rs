//! The messages of an endpoint, with their memory.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::collective::waiting::{Room, WaitingMessages};
use crate::collective_peer::transfers::{TransferCall, TransferMemory};

/// Messages that are not over.
#[derive(Default)]
pub(super) struct CarriedMessages {
    all: FxHashMap<u64, CarriedMessage>,
    /// Those that the owner is to be given.
    ready: VecDeque<u64>,
    /// Those for which the owner had no room, or that wait behind such a one.
    waiting: WaitingMessages,
    /// Rooms in which those that wait are tried again.
    tried: Vec<Room>,
}

/// A message.
pub(super) struct CarriedMessage {
    pub(super) call: TransferCall,
    pub(super) memory: Box<[u8]>,
    /// The owner has it.
    is_posted: bool,
}

/// A message that the owner is to be given.
pub(super) struct ReadyMessage {
    pub(super) call: TransferCall,
    pub(super) memory: TransferMemory,
}

fn room_of(call: &TransferCall) -> Room {
    let (peer, sends) = (call.peer, call.sends);
    Room { peer, sends }
}

impl CarriedMessages {
    /// Adds a message.
    pub(super) fn add(&mut self, call: TransferCall, memory: Box<[u8]>) {
        let (number, room) = (call.number, room_of(&call));
        let message = CarriedMessage {
            call,
            memory,
            is_posted: false,
        };
        self.all.insert(number, message);
        match self.waiting.has(room) {
            true => self.waiting.push(room, number),
            false => self.ready.push_back(number),
        }
    }

    /// The next message for the owner, which has it from now on.
    pub(super) fn next_ready(&mut self) -> Option<ReadyMessage> {
        loop {
            let is_new = !self.ready.is_empty();
            let number = self.ready.pop_front().or_else(|| self.next_tried())?;
            if let Some(message) = self.all.get_mut(&number) {
                let room = room_of(&message.call);
                if is_new && self.waiting.has(room) {
                    self.waiting.push(room, number);
                    continue;
                }
                message.is_posted = true;
                return Some(ReadyMessage {
                    call: message.call,
                    memory: TransferMemory {
                        at: message.memory.as_mut_ptr(),
                        len: message.memory.len(),
                    },
                });
            }
        }
    }

    fn next_tried(&mut self) -> Option<u64> {
        while let Some(&room) = self.tried.last() {
            match self.waiting.pop(room) {
                Some(number) => return Some(number),
                None => drop(self.tried.pop()),
            }
        }
        None
    }

    /// Tries those again for which the owner had no room.
    pub(super) fn try_again(&mut self) {
        self.tried = self.waiting.rooms();
    }

    /// The owner has no room for a message.
    pub(super) fn put_back(&mut self, number: u64) {
        if let Some(message) = self.all.get_mut(&number) {
            message.is_posted = false;
            let room = room_of(&message.call);
            self.waiting.put_back(room, number);
            self.tried.retain(|&tried| tried != room);
        }
    }

    /// Takes a message out that the owner has, and that is over.
    pub(super) fn take_posted(&mut self, number: u64) -> Option<CarriedMessage> {
        self.all.get(&number).filter(|message| message.is_posted)?;
        self.all.remove(&number)
    }

    /// Cancels a message. Returns whether the owner has it.
    pub(super) fn cancel(&mut self, number: u64) -> bool {
        let Some(message) = self.all.get(&number) else {
            return false;
        };
        if !message.is_posted {
            self.waiting.remove(room_of(&message.call), number);
            self.all.remove(&number);
            return false;
        }
        true
    }

    /// The number of receives.
    pub(super) fn receives(&self) -> usize {
        let receives = self.all.values().filter(|message| !message.call.sends);
        receives.count()
    }

    /// The receives that the owner has.
    pub(super) fn posted_receives(&self) -> Vec<u64> {
        let posted = self.all.values().filter(|message| message.is_posted);
        let receives = posted.filter(|message| !message.call.sends);
        receives.map(|message| message.call.number).collect()
    }

    /// The memory of the messages that the owner has.
    pub(super) fn into_memory(self) -> Vec<Box<[u8]>> {
        let posted = self.all.into_values().filter(|message| message.is_posted);
        posted.map(|message| message.memory).collect()
    }
}
