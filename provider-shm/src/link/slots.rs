//! Writes the slots and records of a link's sending side (`wire` has the words of each kind).

use ferrofabric_contracts::buffers::gather;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind, RemoteKind, SendOp};

use super::close::CloseMessage;
use crate::copy::copy_short;
use crate::ring::{CONTROL_SLOTS, Head, LinkViolation, PayloadRecord, RingProducer};
use crate::wire::{
    CHUNK, CLOSE, DATA, DELIVERED, EAGER, GO, INLINE, INLINE_BYTES, INLINE_DATA_WORD, PART_SHIFT,
    SHORT, SHORT_WORDS, START, TAGGED, pack,
};

/// A slot that the receiving side of a message sends.
#[derive(Clone, Copy)]
pub(crate) enum AnswerSlot {
    /// `GO`: the sender may go on up to this length.
    Go { id: u32, until: u64 },
    /// `DELIVERED`, or the refusal of a part of a one-sided operation.
    Delivered { id: u32, refused: bool },
}

/// The first slot of a message that has an id.
pub(super) struct StartSlot<'a> {
    pub(super) op: &'a SendOp,
    pub(super) id: u32,
    /// Flags beside those that every message has.
    pub(super) flags: u8,
    pub(super) len: usize,
    /// Bytes that come before the first `GO`.
    pub(super) before_go: usize,
    /// The message's address in our memory, if the peer is to read it.
    pub(super) address: u64,
}

impl StartSlot<'_> {
    fn flags(&self) -> u8 {
        head_flags(self.op) | self.flags
    }

    #[inline(always)]
    fn words(&self, offset: u32) -> impl FnOnce(*mut u64) {
        let words = [
            self.op.tag,
            pack(self.id, offset),
            self.len as u64,
            self.op.data,
            self.before_go as u64,
            self.address,
        ];
        move |body| {
            for (i, word) in words.into_iter().enumerate() {
                // SAFETY: a body has seven words.
                unsafe { *body.add(i) = word };
            }
        }
    }

    /// Publishes the envelope without data of the message.
    pub(super) fn publish(&self, tx: &mut RingProducer) {
        tx.publish(Head::new(START, self.flags(), 0), self.words(0));
    }

    /// Publishes the envelope with the first `n` bytes of the message, which are in the record.
    pub(super) fn publish_record(&self, tx: &mut RingProducer, record: PayloadRecord, n: usize) {
        let head = Head::new(START, self.flags(), n as u32);
        tx.publish_record(head, record, self.words(record.offset));
    }
}

/// Bytes of a message that fit into its slot.
#[inline(always)]
pub(super) fn inline_bytes(op: &SendOp) -> usize {
    match op.flags.contains(Flags::REMOTE_CQ_DATA) {
        true => INLINE_BYTES - 8,
        false => INLINE_BYTES,
    }
}

/// Publishes a whole message in its slot.
///
/// # Safety
///
/// A slot is free; the buffers are valid for reads, and `len` bytes long together, which is no more
/// than [`inline_bytes`].
#[inline(always)]
pub(super) unsafe fn publish_inline(tx: &mut RingProducer, op: &SendOp, iov: &[IoBuf], len: usize) {
    let head = Head::new(INLINE, head_flags(op), len as u32);
    tx.publish(head, |body| {
        // SAFETY: the body has a tag's word, then `INLINE_BYTES`, of which the data word is beyond
        // `len`; the buffers and `len` are the caller's contract.
        unsafe {
            *body = op.tag;
            if op.flags.contains(Flags::REMOTE_CQ_DATA) {
                *body.add(INLINE_DATA_WORD) = op.data;
            }
            let to = body.add(1).cast::<u8>();
            match iov {
                [one] => copy_short(one.as_ptr(), to, len),
                _ => gather(iov, 0, len, to),
            }
        }
    });
}

/// Publishes a whole message in its slot, under an id.
///
/// # Safety
///
/// A slot is free; the buffers are valid for reads, and `len` bytes long together, which is no more
/// than `SHORT_BYTES`.
#[inline]
pub(super) unsafe fn publish_short(
    tx: &mut RingProducer,
    (op, id): (&SendOp, u32),
    iov: &[IoBuf],
    len: usize,
) {
    let head = Head::new(SHORT, head_flags(op), len as u32);
    tx.publish(head, |body| {
        // SAFETY: the body has `SHORT_WORDS`, then `SHORT_BYTES`; the buffers and `len` are the
        // caller's contract.
        unsafe {
            *body = op.tag;
            *body.add(1) = u64::from(id);
            *body.add(2) = op.data;
            let to = body.add(SHORT_WORDS).cast::<u8>();
            match iov {
                [one] => copy_short(one.as_ptr(), to, len),
                _ => gather(iov, 0, len, to),
            }
        }
    });
}

/// Publishes a whole message that is in a record.
#[inline(always)]
pub(super) fn publish_eager(tx: &mut RingProducer, op: &SendOp, record: PayloadRecord, len: usize) {
    let head = Head::new(EAGER, head_flags(op), len as u32);
    tx.publish_record(head, record, |body| {
        // SAFETY: a body has these words.
        unsafe {
            *body = op.tag;
            *body.add(1) = u64::from(record.offset);
            *body.add(2) = op.data;
        }
    });
}

/// Sends the next piece of a message; returns its length, 0 if there is no room.
///
/// # Safety
///
/// The buffers are valid for reads.
pub(super) unsafe fn send_chunk(
    tx: &mut RingProducer,
    id: u32,
    iov: &[IoBuf],
    sent: usize,
    until: usize,
    most: usize,
) -> Result<usize, LinkViolation> {
    let want = most.min(until - sent);
    let room = |tx: &RingProducer| match tx.has_slot(CONTROL_SLOTS) {
        true => tx.reserve_some(want),
        false => None,
    };
    let (record, n) = match room(tx) {
        Some(found) => found,
        None => {
            tx.refresh()?;
            match room(tx) {
                Some(found) => found,
                None => return Ok(0),
            }
        }
    };
    // SAFETY: the record has `n` bytes; the buffers are the caller's contract.
    unsafe { gather(iov, sent, n, tx.record_ptr(record)) };
    tx.publish_record(Head::new(CHUNK, 0, n as u32), record, |body| {
        // SAFETY: a body has this word.
        unsafe { *body = pack(id, record.offset) };
    });
    Ok(n)
}

/// Publishes a receiver's answer. `advice` has the lengths that the receiver would rather read.
pub(super) fn publish_control(tx: &mut RingProducer, control: AnswerSlot, advice: u64) {
    let (kind, id, until) = match control {
        AnswerSlot::Go { id, until } => (GO, id, until),
        AnswerSlot::Delivered { id, refused } => (DELIVERED, id, u64::from(refused)),
    };
    tx.publish(Head::new(kind, 0, 0), |body| {
        // SAFETY: a body has these words.
        unsafe {
            *body = u64::from(id);
            *body.add(1) = until;
            *body.add(2) = advice;
        }
    });
}

/// Publishes a close message.
pub(super) fn publish_close(tx: &mut RingProducer, what: CloseMessage) {
    tx.publish(Head::new(CLOSE, 0, 0), |body| {
        // SAFETY: a body has this word.
        unsafe { *body = what as u64 };
    });
}

#[cold]
fn part_flags(kind: RemoteKind) -> u8 {
    (kind as u8) << PART_SHIFT
}

#[inline(always)]
fn head_flags(op: &SendOp) -> u8 {
    let tagged = match op.kind {
        MsgKind::Tagged => TAGGED,
        MsgKind::Msg => 0,
        MsgKind::Remote(kind) => part_flags(kind),
    };
    match op.flags.contains(Flags::REMOTE_CQ_DATA) {
        true => tagged | DATA,
        false => tagged,
    }
}
