//! Posting work requests. No function here allocates: the caller holds the requests, mostly on the
//! stack.
//!
//! Two ways: [`SendRequest`] and [`RecvRequest`] hand the driver a structure (`ibv_post_send`),
//! [`SendBatch`] writes straight into the driver's queue (`ibv_wr_*`) on queue pairs created for
//! it.

mod batch;
mod chain;
mod recv;
mod send;

use ferrofabric_verbs_sys::{ibv_send_flags as RawFlags, ibv_sge};

#[cfg(feature = "raw-verbs")]
pub use crate::rejected::Rejected;
#[cfg(feature = "raw-verbs")]
pub use batch::SendBatch;
pub(crate) use chain::SendChain;
pub use recv::RecvRequest;
pub use send::SendRequest;

bitflags::bitflags! {
    /// Options of a send request (`ibv_post_send(3)`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Wait for the reads and atomics posted before.
        const FENCE = RawFlags::IBV_SEND_FENCE.0;
        /// Complete in the completion queue on success too.
        const SIGNALED = RawFlags::IBV_SEND_SIGNALED.0;
        /// Wake a receiver that armed its queue for solicited events.
        const SOLICITED = RawFlags::IBV_SEND_SOLICITED.0;
        /// The payload is copied at the post; its memory needs no registration and is free
        /// afterwards.
        const INLINE = RawFlags::IBV_SEND_INLINE.0;
    }
}

/// The target of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address in the peer's region, or offset in a zero-based one.
    pub addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
}

/// A scatter/gather entry of plain memory, for inline sends.
#[inline]
pub fn inline_sge(bytes: &[u8]) -> ibv_sge {
    ibv_sge {
        addr: bytes.as_ptr() as u64,
        // The device rejects a longer payload at the post.
        length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        lkey: 0,
    }
}
