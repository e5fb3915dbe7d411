//! Messages that are posted together: one doorbell for all and, if they need a completion, one
//! completion.

use ferrofabric_contracts::error::OpError;
use ferrofabric_verbs_sys::ibv_sge;

use super::{SendFlags, SendRequest};
use crate::qp::Qp;

/// Requests for one doorbell, at most.
const ROOM: usize = 32;

/// Send requests in line for one queue pair, of at most `ENTRIES` scatter/gather entries each.
pub(crate) struct SendChain<const ENTRIES: usize> {
    /// They stay where they are, so each points to its entries from the time that it is filled.
    requests: Box<[SendRequest<ENTRIES>]>,
    len: usize,
}

impl<const ENTRIES: usize> SendChain<ENTRIES> {
    /// Makes an empty chain.
    pub(crate) fn new() -> Self {
        let nothing = ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Self {
            requests: vec![SendRequest::send(0, [nothing; ENTRIES]); ROOM].into(),
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Requests in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the chain has to be posted before another message is put into it.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == ROOM
    }

    /// Whether this number of requests can be put into it.
    pub(crate) fn has_room(&self, requests: usize) -> bool {
        self.len + requests <= ROOM
    }

    /// Puts a message behind the others. A queue pair completes in order, so of two messages that
    /// have to be signaled only the later one is.
    #[inline]
    pub(crate) fn push<const N: usize>(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        entries: [ibv_sge; N],
    ) {
        if self.len > 0 && flags.contains(SendFlags::SIGNALED) {
            self.requests[self.len - 1].clear_flags(SendFlags::SIGNALED);
        }
        self.requests[self.len].refill(wr_id, flags, entries);
        self.len += 1;
    }

    /// As [`push`](Self::push), for a request that is more than a message.
    pub(crate) fn put<const N: usize>(&mut self, request: &SendRequest<N>) {
        if self.len > 0 && request.has_flags(SendFlags::SIGNALED) {
            self.requests[self.len - 1].clear_flags(SendFlags::SIGNALED);
        }
        request.replace(&mut self.requests[self.len]);
        self.len += 1;
    }

    /// Posts all of them. The chain is empty afterwards.
    ///
    /// # Errors
    ///
    /// As [`SendRequest::post_all`]: the reason, and how many were posted before.
    ///
    /// # Safety
    ///
    /// As [`SendRequest::post`], for each.
    #[inline(always)]
    pub(crate) unsafe fn post(&mut self, qp: &Qp) -> Result<(), (OpError, usize)> {
        let len = std::mem::take(&mut self.len);
        match &mut self.requests[..len] {
            // SAFETY: the caller's promise.
            [one] => unsafe { one.post_pointed(qp) }.map_err(|error| (error, 0)),
            // SAFETY: the caller's promise.
            all => unsafe { SendRequest::post_all_pointed(all, qp) },
        }
    }
}
