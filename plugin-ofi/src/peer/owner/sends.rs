//! Sends that a C provider has under way.

use ferrofabric_contracts::peer::SendDone;

use super::context::{OperationContext, next_generation};

/// The sends of one endpoint, by their contexts.
#[derive(Default)]
pub(super) struct ForeignSends {
    slots: Vec<SendSlot>,
    free: Vec<u32>,
    under_way: usize,
}

struct SendSlot {
    generation: u64,
    /// The number of the peer that it goes to.
    peer: u64,
    state: SendState,
    /// The send that has or had the slot.
    done: SendDone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    Free,
    UnderWay,
    /// It was reported as failed. The C provider has yet to complete it.
    Failed,
}

/// The send of a completion.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EndedSend {
    pub(super) done: SendDone,
    /// It was reported as failed before.
    pub(super) has_failed: bool,
}

impl ForeignSends {
    #[inline]
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Adds a send to the peer of a number, and returns its context.
    #[inline]
    pub(super) fn add(&mut self, peer: u64, done: SendDone) -> OperationContext {
        self.under_way += 1;
        let Some(index) = self.free.pop() else {
            return self.add_slot(peer, done);
        };
        let slot = &mut self.slots[index as usize];
        slot.peer = peer;
        slot.done = done;
        slot.state = SendState::UnderWay;
        OperationContext::of_send(slot.generation, index as usize)
    }

    /// Adds a send in a new slot. The list of free ones has room for all, so that no completion
    /// allocates.
    #[cold]
    fn add_slot(&mut self, peer: u64, done: SendDone) -> OperationContext {
        let index = self.slots.len();
        self.slots.push(SendSlot {
            generation: 1,
            peer,
            state: SendState::UnderWay,
            done,
        });
        self.free.reserve(self.slots.capacity());
        OperationContext::of_send(1, index)
    }

    /// Ends a send that has that context. `None`: there is none.
    #[inline]
    pub(super) fn end(&mut self, context: OperationContext) -> Option<EndedSend> {
        let index = context.index();
        let slot = self.slots.get_mut(index)?;
        let is_its = OperationContext::of_send(slot.generation, index) == context;
        if !is_its || slot.state == SendState::Free {
            return None;
        }
        let has_failed = slot.state == SendState::Failed;
        self.under_way -= usize::from(!has_failed);
        slot.state = SendState::Free;
        slot.generation = next_generation(slot.generation);
        self.free.push(index as u32);
        Some(EndedSend {
            done: slot.done,
            has_failed,
        })
    }

    /// Takes the next send to a peer, from a place on, which moves behind it, for its failure to be
    /// reported. Its slot waits for its completion.
    pub(super) fn fail_next(&mut self, peer: u64, from: &mut usize) -> Option<SendDone> {
        while let Some(slot) = self.slots.get_mut(*from) {
            *from += 1;
            if slot.state == SendState::UnderWay && slot.peer == peer {
                slot.state = SendState::Failed;
                self.under_way -= 1;
                return Some(slot.done);
            }
        }
        None
    }

    /// Frees all slots: the endpoint is closed. The contexts that were in use are not valid again.
    pub(super) fn clear(&mut self) {
        self.free.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.state = SendState::Free;
            slot.generation = next_generation(slot.generation);
            self.free.push(index as u32);
        }
        self.under_way = 0;
    }
}

#[cfg(test)]
mod tests {
    use ferrofabric_contracts::flags::Flags;
    use ferrofabric_contracts::types::{FiAddr, MsgKind};

    use super::*;

    fn send(dest: u64, context: u64) -> SendDone {
        SendDone {
            kind: MsgKind::Msg,
            dest: FiAddr(dest),
            tag: 0,
            context,
            flags: Flags::COMPLETION,
            len: 8,
        }
    }

    fn ended(done: SendDone) -> Option<EndedSend> {
        let has_failed = false;
        Some(EndedSend { done, has_failed })
    }

    #[test]
    fn a_send_ends_once() {
        let mut sends = ForeignSends::default();
        let contexts = [1, 2, 3].map(|context| sends.add(0, send(0, context)));
        assert_eq!(sends.under_way(), 3);
        assert_eq!(sends.end(contexts[1]), ended(send(0, 2)));
        assert_eq!(sends.end(contexts[1]), None);
        let again = sends.add(0, send(0, 4));
        assert_eq!(again.index(), contexts[1].index());
        assert_eq!(sends.end(contexts[1]), None, "its slot has another send");
        assert_eq!(sends.end(again), ended(send(0, 4)));
        assert_eq!(sends.under_way(), 2);
        assert_eq!(sends.end(OperationContext::of_send(1, 77)), None);
        assert_eq!(sends.end(OperationContext::of_receive(1, 0)), None);
    }

    #[test]
    fn a_slot_of_a_failed_send_waits_for_its_completion() {
        let mut sends = ForeignSends::default();
        let to =
            [(5, 1), (6, 2), (5, 3)].map(|(dest, context)| sends.add(dest, send(dest, context)));
        let mut from = 0;
        assert_eq!(sends.fail_next(5, &mut from), Some(send(5, 1)));
        assert_eq!(sends.fail_next(5, &mut from), Some(send(5, 3)));
        assert_eq!(sends.fail_next(5, &mut from), None);
        assert_eq!(sends.under_way(), 1);
        let next = sends.add(7, send(7, 4));
        assert!(!to.iter().any(|failed| failed.index() == next.index()));
        let late = sends.end(to[0]).unwrap();
        assert_eq!((late.done, late.has_failed), (send(5, 1), true));
        assert_eq!(sends.end(to[0]), None);
        assert_eq!(sends.add(7, send(7, 5)).index(), to[0].index());
    }

    #[test]
    fn contexts_of_a_closed_endpoint_are_not_valid_again() {
        let mut sends = ForeignSends::default();
        let before = [1, 2].map(|context| sends.add(0, send(0, context)));
        sends.clear();
        assert_eq!(sends.under_way(), 0);
        let after = [3, 4].map(|context| sends.add(0, send(0, context)));
        assert!(before.iter().all(|context| sends.end(*context).is_none()));
        assert!(after.iter().all(|context| sends.end(*context).is_some()));
    }
}
