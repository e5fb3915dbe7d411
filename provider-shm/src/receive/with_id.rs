//! Messages with an id: those in several slots, and those whose senders await `DELIVERED`.

use ferrofabric_contracts::peer::{Owner, PeerSrx, deliver};

use super::ShmReceiver;
use super::message::{Beginning, MatchedMessage, Rest, kind_of};
use crate::incoming::IncomingState;
use crate::link::{AnswerSlot, ShmLink};
use crate::ring::{LinkViolation, PublishedSlot};
use crate::wire::{
    MAX_BEFORE_GO, READ, SHORT_BYTES, SHORT_WORDS, UNDER_WAY_MAX, WANTS_DELIVERED, unpack,
};

impl ShmReceiver {
    /// Takes the first slot of a message in pieces, or of one that is to be read.
    pub(super) fn take_start<O: Owner>(
        &mut self,
        key: usize,
        link: &mut ShmLink,
        seen: PublishedSlot,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let len = seen.head.len();
        let [tag, place, total, data, before_go, address] = seen.words();
        let (id, offset) = unpack(place);
        let from = link.receiver().record(offset, len)?;
        if before_go > MAX_BEFORE_GO || before_go > total || len as u64 > before_go {
            return Err(LinkViolation(
                "it started a message with an impossible number of bytes before `GO`",
            ));
        }
        if total > isize::MAX as u64 {
            return Err(LinkViolation("it started a message that is too long"));
        }
        let read_from = (seen.head.flags() & READ != 0).then_some(address);
        if read_from.is_some() && before_go != 0 {
            return Err(LinkViolation("it sends a message that is to be read"));
        }
        begin_id(link, id)?;
        let (kind, src, flags) = kind_of(seen, link);
        let arrived = self.arrived((src, flags), tag, total, data);
        let rest = Rest {
            id,
            total,
            before_go: before_go as usize,
            read_from,
            wants_delivered: seen.head.flags() & WANTS_DELIVERED != 0,
        };
        match owner.srx().arrive(kind, &arrived) {
            Some(matched) => {
                // `GO` is sent before the first piece is copied, so that the sender goes on.
                let met = MatchedMessage {
                    kind,
                    matched,
                    arrived,
                };
                (self.deliveries).begin(link, met, 0, rest, &mut self.stats);
                // SAFETY: the record was checked; the poster of the receive vouched for its
                // buffer.
                unsafe { deliver(owner, &matched, 0, from, len) };
                self.deliveries.count_ring_bytes(len);
                link.consume(len, &mut self.stats);
                (self.deliveries).delivered(link, id, len, owner, &mut self.stats)
            }
            None => {
                let beginning = Beginning {
                    kind,
                    arrived,
                    from,
                    len,
                    rest: Some(rest),
                };
                // SAFETY: the record was checked.
                unsafe { self.keep_start((key, link), (&beginning, id), len, owner) }
            }
        }
    }

    /// Keeps a message with an id, whose beginning no receive matches and occupies `record_bytes`
    /// of the ring.
    ///
    /// # Safety
    ///
    /// The message's bytes are valid for reads.
    #[cold]
    unsafe fn keep_start<O: Owner>(
        &mut self,
        (key, link): (usize, &mut ShmLink),
        (message, id): (&Beginning, u32),
        record_bytes: usize,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        // SAFETY: the caller's contract.
        let number = unsafe { self.keep_unexpected(key, link, message, owner)? };
        let incoming = link.receiver().incoming();
        incoming.set(id, IncomingState::Unexpected(number as u32));
        link.consume(record_bytes, &mut self.stats);
        self.arrived_whole(link, id);
        Ok(())
    }

    /// Takes a message that its slot has whole, and whose sender awaits `DELIVERED`.
    pub(super) fn take_short<O: Owner>(
        &mut self,
        key: usize,
        link: &mut ShmLink,
        seen: PublishedSlot,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let len = seen.head.len();
        if len > SHORT_BYTES {
            return Err(LinkViolation("it sent a short message that is too long"));
        }
        let [tag, id, data] = seen.words();
        let id = id as u32;
        begin_id(link, id)?;
        let (kind, src, flags) = kind_of(seen, link);
        let arrived = self.arrived((src, flags), tag, len as u64, data);
        let from = seen.with_body(|body| body.wrapping_add(SHORT_WORDS).cast::<u8>());
        let Some(matched) = owner.srx().arrive(kind, &arrived) else {
            let message = Beginning {
                kind,
                arrived,
                from,
                len,
                rest: Some(Rest {
                    id,
                    total: len as u64,
                    before_go: len,
                    read_from: None,
                    wants_delivered: true,
                }),
            };
            // SAFETY: the slot has `SHORT_BYTES` there.
            return unsafe { self.keep_start((key, link), (&message, id), 0, owner) };
        };
        // SAFETY: as above; the poster of the receive vouched for its buffer.
        unsafe { deliver(owner, &matched, 0, from, len) };
        link.consume(0, &mut self.stats);
        owner.complete_recv(kind, &matched, &arrived, || Some(link.native()));
        let refused = matched.is_refused();
        if kind.is_part() {
            link.part_came((kind, tag), true, refused, owner)?;
        }
        link.answer(AnswerSlot::Delivered { id, refused }, &mut self.stats);
        Ok(())
    }

    /// Takes the next piece of a message.
    pub(super) fn take_chunk<O: Owner>(
        &mut self,
        link: &mut ShmLink,
        seen: PublishedSlot,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let len = seen.head.len();
        let [place] = seen.words();
        let (id, offset) = unpack(place);
        let from = link.receiver().record(offset, len)?;
        self.deliveries.count_ring_bytes(len);
        match link.receiver().incoming().get(id) {
            Some(IncomingState::Matched(key)) => {
                // SAFETY: the record was checked; the poster of the receive vouched for its
                // buffer.
                unsafe { self.deliveries.put_piece(key, from, len, owner)? };
                link.consume(len, &mut self.stats);
                (self.deliveries).delivered(link, id, len, owner, &mut self.stats)
            }
            Some(IncomingState::Unexpected(number)) => {
                // SAFETY: the record was checked.
                unsafe { self.unexpected.append(number, from, len)? };
                link.consume(len, &mut self.stats);
                self.arrived_whole(link, id);
                Ok(())
            }
            _ => Err(LinkViolation("it sent a piece of no message")),
        }
    }

    /// Frees the id of an unexpected message if all of the message is there, unless the sender
    /// awaits `DELIVERED`.
    fn arrived_whole(&mut self, link: &mut ShmLink, id: u32) {
        let incoming = link.receiver().incoming();
        let Some(IncomingState::Unexpected(number)) = incoming.get(id) else {
            return;
        };
        if self.unexpected.frees_id(number, id) {
            incoming.set(id, IncomingState::Free);
        }
        self.update_back_pressure(link);
    }
}

/// The peer begins a message with an id.
fn begin_id(link: &mut ShmLink, id: u32) -> Result<(), LinkViolation> {
    link.receiver().incoming().begin(id)?;
    if link.answers() >= 2 * UNDER_WAY_MAX {
        // The peer has no other messages under way, and each has two answers at most.
        return Err(LinkViolation("it takes no answers"));
    }
    Ok(())
}
