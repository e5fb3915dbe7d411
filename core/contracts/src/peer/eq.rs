//! The entries of an event queue (fi_eq(3)), and the queue as its writers see it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Errno;

/// An event: its number, and the bytes that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The event (`FI_NOTIFY`, …, or a number of the application's).
    pub number: u32,
    /// The entry, as the reader gets it.
    pub entry: Box<[u8]>,
}

/// The number of the event that an asynchronous insertion is over (`FI_AV_COMPLETE`). Its entry is
/// a [`Done`].
pub const AV_COMPLETE: u32 = 5;

/// The entry of an operation that is over, as libfabric's `fi_eq_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Done {
    /// The object of the operation, by the number that was given when the queue was bound.
    pub source: u64,
    /// The operation's context.
    pub context: u64,
    /// The result: of an insertion, the number of addresses that are in.
    pub data: u64,
}

impl Done {
    /// The entry as the reader gets it.
    pub fn bytes(&self) -> Box<[u8]> {
        self.as_bytes().into()
    }
}

/// An operation, or a part of one, that failed (`fi_eq_err_entry`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqError {
    /// The object of the operation, by the number that was given when the queue was bound.
    pub source: u64,
    /// The operation's context.
    pub context: u64,
    /// The part that failed: of an insertion, the number of the address.
    pub data: u64,
    /// Why.
    pub errno: Errno,
    /// The provider's own number for it, 0 for none.
    pub prov_errno: i32,
    /// Details of the failure: of an insertion, the reason in words.
    pub err_data: Box<[u8]>,
}

/// The owner's side of an event queue: takes events, from any thread.
pub trait PeerEq: Send + Sync {
    /// Puts an event in.
    fn write(&self, event: Event);

    /// Puts in that something failed. It is read as an error alone.
    fn write_error(&self, error: EqError);

    /// Puts in that an operation is over.
    fn write_done(&self, number: u32, done: &Done) {
        let entry = done.bytes();
        self.write(Event { number, entry });
    }
}
