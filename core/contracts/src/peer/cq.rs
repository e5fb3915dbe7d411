//! The owner's side of a completion queue, for peers: the entries that they write.

use thiserror::Error;

use crate::addr::NativeAddr;
use crate::error::Errno;
use crate::flags::Flags;
use crate::types::FiAddr;

/// A completion. The first six fields lie as in libfabric's `fi_cq_tagged_entry`, of which every
/// other format is a prefix.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The context of the operation.
    pub context: u64,
    /// The kind of operation: `MSG` or `TAGGED` with `SEND` or `RECV`, `REMOTE_CQ_DATA` where
    /// `data` is valid.
    pub flags: Flags,
    /// Bytes received; 0 for sends.
    pub len: usize,
    /// Where a received message lies (its part of a multi-receive buffer, too); 0 if that is a list
    /// of buffers.
    pub buf: usize,
    /// The sender's CQ data.
    pub data: u64,
    /// The sender's tag.
    pub tag: u64,
    /// The sender, the user's own ID for it, or [`FiAddr::NOTAVAIL`]. [`FiAddr::UNSPEC`] is never
    /// the sender; an ID may have its number.
    pub src: FiAddr,
}

impl Completion {
    /// An empty entry, for a read to overwrite.
    pub const BLANK: Self = Self {
        context: 0,
        flags: Flags::empty(),
        len: 0,
        buf: 0,
        data: 0,
        tag: 0,
        src: FiAddr::NOTAVAIL,
    };
}

/// An operation that failed (`fi_cq_err_entry`).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{why}: {errno}")]
pub struct CqError {
    /// As for a completion; `src` is the peer, also for sends. With a `sender`, it is the handle of
    /// the authorization key that the message came with, or the user's own ID for that;
    /// [`FiAddr::NOTAVAIL`] without one, and where endpoints have no such keys.
    pub completion: Completion,
    /// Bytes that did not fit the buffer.
    pub olen: usize,
    /// Why.
    pub errno: Errno,
    /// The transport's own number for it: a work completion status, 0 for none.
    pub prov_errno: i32,
    /// In words.
    pub why: &'static str,
    /// With `EADDRNOTAVAIL` of a receive: the sender, which is not in the address vector
    /// (`FI_SOURCE_ERR`). The message itself was received. With an authorization key it is inserted
    /// with that.
    pub sender: Option<Box<NativeAddr>>,
}

/// Where a peer puts completions (`fi_ops_cq_owner`). The owner sees to locks, waiters and
/// overflow: nothing is lost.
pub trait PeerCq {
    /// Reports success.
    fn write(&mut self, completion: &Completion);
    /// Reports a failure.
    fn write_error(&mut self, error: CqError);
}
