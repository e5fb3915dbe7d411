//! The messages that a link has started and that are not all in the ring, or whose sender awaits
//! `DELIVERED`. Their data is in the endpoint's outbox.

use std::collections::VecDeque;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{Owner, PART_REFUSED, SendDone};
use ferrofabric_contracts::types::total_len;
use slab::Slab;

use super::sizes::LinkSizes;
use super::slots::send_chunk;
use crate::outbox::{KEPT_ENTRIES, Outbox, OutgoingMessage};
use crate::paths::MessagePaths;
use crate::ring::{LinkViolation, RingProducer};

/// Bytes of one message that are sent before the next message gets its turn.
const TURN_BYTES: usize = 65_536;

/// The messages in flight, by id.
#[derive(Default)]
pub(super) struct InFlightMessages {
    /// Their keys in the endpoint's outbox.
    keys: Slab<u32>,
    /// The ids of messages with pieces to send now.
    streaming: VecDeque<u32>,
}

impl InFlightMessages {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether some messages have pieces to send.
    #[inline(always)]
    pub(super) fn has_work(&self) -> bool {
        !self.streaming.is_empty()
    }

    /// Injected messages that are not all in the ring.
    pub(super) fn undelivered<'a>(
        &'a self,
        outbox: &'a Outbox,
    ) -> impl Iterator<Item = &'a OutgoingMessage> {
        let messages = (self.keys.iter()).map(|(_, key)| &outbox.outgoing[*key as usize]);
        messages.filter(|out| {
            let has_more = out.sent < total_len(out.buffers.list());
            has_more && out.done.kind.is_taken_for_sent(out.done.flags)
        })
    }

    /// Whether one of them is a reply with one of these contexts.
    pub(super) fn has_reply(&self, contexts: &[u64], outbox: &Outbox) -> bool {
        self.keys.iter().any(|(_, key)| {
            let done = &outbox.outgoing[*key as usize].done;
            done.kind.is_reply() && contexts.contains(&done.context)
        })
    }

    /// Gives memory back that a burst needed.
    pub(super) fn shrink_to(&mut self, entries: usize) {
        self.streaming.shrink_to(entries);
    }

    /// The id under which the next message must be started.
    pub(super) fn next_id(&self) -> u32 {
        self.keys.vacant_key() as u32
    }

    /// Keeps a message that was just started under [`Self::next_id`]. Returns its id.
    pub(super) fn keep(&mut self, out: OutgoingMessage, outbox: &mut Outbox) -> u32 {
        let has_more = out.sent < out.until;
        let key = outbox.outgoing.insert(out);
        let id = self.keys.insert(key as u32) as u32;
        if has_more {
            self.streaming.push_back(id);
        }
        id
    }

    /// A `GO` has come: the receiver wants a message through the ring up to a length, and sends its
    /// advice.
    pub(super) fn go<O: Owner>(
        &mut self,
        [id, until, advice]: [u64; 3],
        paths: &mut MessagePaths,
        outbox: &mut Outbox,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let id = id as u32;
        let Some(out) = self.get(id, outbox).filter(|out| !out.go) else {
            return Err(LinkViolation("it requested a message that does not exist"));
        };
        if until > total_len(out.buffers.list()) as u64 {
            return Err(LinkViolation("it requested more than a message has"));
        }
        match (out.read, until) {
            (true, 0) => paths.was_read(),
            (true, _) => paths.refused(),
            _ => {}
        }
        paths.follow(advice);
        let streams = out.sent < out.until;
        out.go = true;
        out.until = out.until.max(until as usize);
        if out.sent == out.until {
            self.sent_whole(id, outbox, owner);
        } else if !streams {
            self.streaming.push_back(id);
        }
        Ok(())
    }

    /// A `DELIVERED` has come for a message.
    pub(super) fn delivered<O: Owner>(
        &mut self,
        (id, refused): (u32, bool),
        outbox: &mut Outbox,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let done = |out: &&mut OutgoingMessage| {
            let may_be_refused = out.done.kind.is_part();
            out.wants_delivered && out.go && out.sent == out.until && (may_be_refused || !refused)
        };
        if self.get(id, outbox).filter(done).is_none() {
            return Err(LinkViolation(
                "it confirmed a message that can not be delivered",
            ));
        }
        match refused {
            false => self.complete(id, outbox, owner),
            true => {
                let out = self.take(id, outbox);
                owner.fail_send(&out.done, Errno::EACCES, 0, PART_REFUSED);
            }
        }
        Ok(())
    }

    /// Sends pieces of messages in turns. Returns the number of pieces.
    pub(super) fn stream<O: Owner>(
        &mut self,
        tx: &mut RingProducer,
        sizes: &LinkSizes,
        outbox: &mut Outbox,
        owner: &mut O,
    ) -> Result<usize, LinkViolation> {
        let mut did = 0;
        while let Some(&id) = self.streaming.front() {
            let out = &mut outbox.outgoing[self.keys[id as usize] as usize];
            let turn = out.until.min(out.sent + TURN_BYTES);
            let piece = sizes.piece(total_len(out.buffers.list()));
            let mut full = false;
            while out.sent < turn && !full {
                // SAFETY: the sender of the message vouched for its buffers until it completes; a
                // copy is ours.
                let n =
                    unsafe { send_chunk(tx, id, out.buffers.list(), out.sent, out.until, piece)? };
                full = n == 0;
                out.sent += n;
                did += usize::from(!full);
            }
            if out.sent == out.until {
                self.streaming.pop_front();
                if out.go {
                    self.sent_whole(id, outbox, owner);
                }
            } else if full {
                break;
            } else {
                self.streaming.rotate_left(1);
            }
        }
        Ok(did)
    }

    /// The link fails: takes out the completions of all unfinished messages.
    pub(super) fn take_unfinished(&mut self, outbox: &mut Outbox) -> Vec<SendDone> {
        std::mem::take(&mut self.keys)
            .into_iter()
            .map(|(_, key)| outbox.outgoing.remove(key as usize).done)
            .collect()
    }

    #[inline]
    fn get<'a>(&self, id: u32, outbox: &'a mut Outbox) -> Option<&'a mut OutgoingMessage> {
        outbox
            .outgoing
            .get_mut(*self.keys.get(id as usize)? as usize)
    }

    /// All of a message that the receiver wants is in the ring.
    fn sent_whole<O: Owner>(&mut self, id: u32, outbox: &mut Outbox, owner: &mut O) {
        if self.get(id, outbox).is_some_and(|out| !out.wants_delivered) {
            self.complete(id, outbox, owner);
        }
    }

    /// Completes a message.
    fn complete<O: Owner>(&mut self, id: u32, outbox: &mut Outbox, owner: &mut O) {
        let out = self.take(id, outbox);
        owner.complete_send(&out.done);
    }

    /// Takes a message out.
    fn take(&mut self, id: u32, outbox: &mut Outbox) -> OutgoingMessage {
        let key = self.keys.remove(id as usize);
        if self.keys.is_empty() && self.keys.capacity() > KEPT_ENTRIES {
            self.keys = Slab::new();
        }
        outbox.outgoing.remove(key as usize)
    }
}
