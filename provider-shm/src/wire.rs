//! The content of a slot: the kinds of messages and the words of their bodies
//! (`docs/shared-memory.md`).

use ferrofabric_contracts::listed_constants;

listed_constants! {
    /// The kinds of messages.
    pub(crate) const KINDS: [u8];
    /// A whole message: tag, then up to 48 bytes; the last 8 of them are the CQ data, if any.
    pub(crate) const INLINE = 1;
    /// A whole message in one record: tag, offset of the record, CQ data.
    pub(crate) const EAGER = 2;
    /// Start of a message in pieces: tag, id and offset of the first piece, whole length, CQ data,
    /// bytes before `GO`, address for CMA.
    pub(crate) const START = 3;
    /// The next piece of a message: id and offset.
    pub(crate) const CHUNK = 4;
    /// Receiver to sender: id, the length up to which the sender may go on, and the lengths that
    /// the receiver would rather read.
    pub(crate) const GO = 5;
    /// Receiver to sender: the message with this id is in its receive's buffer; or, with a 1 behind
    /// the id, the part of a one-sided operation is refused.
    pub(crate) const DELIVERED = 6;
    /// A request to end the link, or the answer: see [`CloseMessage`](crate::link::CloseMessage).
    pub(crate) const CLOSE = 7;
    /// A whole message whose sender wants `DELIVERED`: tag, id, CQ data, then up to 32 bytes.
    pub(crate) const SHORT = 8;
}

listed_constants! {
    /// The flags of messages.
    pub(crate) const FLAGS: [u8];
    /// The message is tagged.
    pub(crate) const TAGGED = 1;
    /// The message has CQ data.
    pub(crate) const DATA = 2;
    /// The sender wants `DELIVERED`; only with `START`. (That of a `SHORT` always does.)
    pub(crate) const WANTS_DELIVERED = 4;
    /// The receiver is to read the message out of the sender's memory; only with `START`, whose
    /// bytes before `GO` are 0 then.
    pub(crate) const READ = 8;
}

/// The bits of the flags that have the number of a part of a one-sided operation, 0 for none.
pub(crate) const PART_SHIFT: u32 = 4;
/// The largest such number.
pub(crate) const PART_MASK: u8 = 15;

/// Bytes of payload in an inline slot.
pub(crate) const INLINE_BYTES: usize = 48;
/// Word of an inline slot's body that has the CQ data.
pub(crate) const INLINE_DATA_WORD: usize = 6;

/// Bytes of payload in a short slot, and its words before them.
pub(crate) const SHORT_BYTES: usize = 32;
pub(crate) const SHORT_WORDS: usize = 3;

/// Most bytes of a message that may come before the receiver's first `GO`.
pub(crate) const MAX_BEFORE_GO: u64 = 65_536;

/// Messages with an id that one side of a link may have under way at one time. As many envelopes
/// of messages whose bytes wait at the sender may be with a receiver.
pub(crate) const UNDER_WAY_MAX: usize = 1 << 20;

/// An id and a record offset in one word.
#[inline(always)]
pub(crate) const fn pack(id: u32, offset: u32) -> u64 {
    id as u64 | ((offset as u64) << 32)
}

/// The id and the record offset of a word made by [`pack`].
#[inline(always)]
pub(crate) const fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
