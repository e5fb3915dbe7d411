//! Receive requests.

use std::ptr;

use ferrofabric_contracts::error::OpError;
use ferrofabric_verbs_sys::{ibv_recv_wr, ibv_sge};

use crate::qp::Qp;
use crate::rejected::Rejected;
use crate::srq::Srq;

/// One receive request with `N` scatter/gather entries. A datagram's first 40 bytes are its routing
/// header.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<const N: usize> {
    wr: ibv_recv_wr,
    entries: [ibv_sge; N],
}

impl<const N: usize> RecvRequest<N> {
    /// A receive into the entries.
    #[inline]
    pub fn new(wr_id: u64, entries: [ibv_sge; N]) -> Self {
        let wr = ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: N as i32,
        };
        Self { wr, entries }
    }

    /// Posts it to a queue pair's own receive queue.
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when the queue is full.
    ///
    /// # Safety
    ///
    /// Each entry's memory is registered in the queue's protection domain with the right to write,
    /// and the device's alone until the request completes.
    #[inline]
    pub unsafe fn post(&mut self, qp: &Qp) -> Result<(), OpError> {
        let list = Self::link(std::slice::from_mut(self));
        // SAFETY: a list of one, complete; the rest is the caller's promise.
        unsafe { qp.post_recv(list) }.map_err(|rejected| rejected.reason)
    }

    /// Posts it to a shared receive queue.
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when the queue is full.
    ///
    /// # Safety
    ///
    /// As [`RecvRequest::post`].
    #[inline]
    pub unsafe fn post_shared(&mut self, srq: &Srq) -> Result<(), OpError> {
        let list = Self::link(std::slice::from_mut(self));
        // SAFETY: as above.
        unsafe { srq.post_recv(list) }.map_err(|rejected| rejected.reason)
    }

    /// Posts several to a queue pair's own receive queue.
    ///
    /// # Errors
    ///
    /// The reason and how many were posted before.
    ///
    /// # Safety
    ///
    /// As [`RecvRequest::post`], for each.
    #[inline]
    pub unsafe fn post_all(requests: &mut [Self], qp: &Qp) -> Result<(), (OpError, usize)> {
        let list = Self::link(requests);
        if list.is_null() {
            return Ok(());
        }
        // SAFETY: a list of complete requests, ended by null; the rest is the caller's promise.
        unsafe { qp.post_recv(list) }.map_err(|rejected| Self::stopped(requests, rejected))
    }

    /// Posts several to a shared receive queue.
    ///
    /// # Errors
    ///
    /// The reason and how many were posted before.
    ///
    /// # Safety
    ///
    /// As [`RecvRequest::post`], for each.
    #[inline]
    pub unsafe fn post_all_shared(
        requests: &mut [Self],
        srq: &Srq,
    ) -> Result<(), (OpError, usize)> {
        let list = Self::link(requests);
        if list.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { srq.post_recv(list) }.map_err(|rejected| Self::stopped(requests, rejected))
    }

    /// Makes a list of them, in order; null for none.
    #[inline]
    fn link(requests: &mut [Self]) -> *mut ibv_recv_wr {
        let mut next = ptr::null_mut();
        for request in requests.iter_mut().rev() {
            // Some drivers read the first entry of any list that is there.
            request.wr.sg_list = match N {
                0 => ptr::null_mut(),
                _ => request.entries.as_mut_ptr(),
            };
            request.wr.next = next;
            next = &raw mut request.wr;
        }
        next
    }

    #[cold]
    fn stopped(requests: &[Self], rejected: Rejected<ibv_recv_wr>) -> (OpError, usize) {
        let at = requests
            .iter()
            .position(|request| ptr::eq(&raw const request.wr, rejected.first));
        (rejected.reason, at.unwrap_or(0))
    }
}

// SAFETY: a request is plain data; the poster is responsible for the memory that its pointers name.
unsafe impl<const N: usize> Send for RecvRequest<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for RecvRequest<N> {}
