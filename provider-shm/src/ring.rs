//! One direction of a segment: a ring of slots of one cache line each, and beside it a ring of
//! payload bytes.
//!
//! The first word of a slot publishes it: it holds the lap, so one release store publishes the
//! line and one acquire load sees it, and a message that fits the line costs one line transfer.
//! Payload never lies where a publish word is read, so old data can not pass for a message. The
//! consumer counts the slots that it has consumed in a line of its own; the producer reads that
//! line only if its last reading says "full".
//!
//! Neither side trusts the other: each keeps its own position, and reads every shared word once.

mod consumer;
#[cfg(all(test, loom))]
mod loom_tests;
mod producer;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg_attr(loom, allow(unused_imports, reason = "no record is modelled"))]
pub(crate) use self::{
    consumer::{PublishedSlot, RingConsumer},
    producer::{PayloadRecord, RingProducer},
    slot::{
        CONTROL_SLOTS, Head, LINE, LineSlot, LinkViolation, PAYLOAD_BYTES, RingProgress, SLOTS,
    },
};
