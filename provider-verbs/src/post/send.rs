//! Send requests, the legacy way: a structure that the driver copies into its queue.

use std::ptr;

use ferrofabric_contracts::error::OpError;
use ferrofabric_verbs_sys::{ibv_mw, ibv_mw_bind_info, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::{RemoteMemory, SendFlags};
use crate::ah::Ah;
use crate::qp::Qp;

/// One send request with `N` scatter/gather entries.
///
/// It may be kept as a template: copied, changed and posted again and again.
#[derive(Clone, Copy)]
pub struct SendRequest<const N: usize> {
    wr: ibv_send_wr,
    entries: [ibv_sge; N],
}

impl<const N: usize> SendRequest<N> {
    #[inline]
    fn new(wr_id: u64, opcode: ibv_wr_opcode, entries: [ibv_sge; N]) -> Self {
        let wr = ibv_send_wr {
            wr_id,
            opcode,
            num_sge: N as i32,
            ..Default::default()
        };
        Self { wr, entries }
    }

    #[inline]
    fn one_sided(
        wr_id: u64,
        opcode: ibv_wr_opcode,
        entries: [ibv_sge; N],
        remote: RemoteMemory,
    ) -> Self {
        let mut this = Self::new(wr_id, opcode, entries);
        this.wr.wr.rdma.remote_addr = remote.addr;
        this.wr.wr.rdma.rkey = remote.rkey;
        this
    }

    /// A message.
    #[inline]
    pub fn send(wr_id: u64, entries: [ibv_sge; N]) -> Self {
        Self::new(wr_id, ibv_wr_opcode::IBV_WR_SEND, entries)
    }

    /// A message that makes `rkey` of the receiver invalid.
    #[inline]
    pub fn send_with_invalidate(wr_id: u64, entries: [ibv_sge; N], rkey: u32) -> Self {
        let mut this = Self::new(wr_id, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, entries);
        this.wr.__bindgen_anon_1.invalidate_rkey = rkey;
        this
    }

    /// A write of the entries to `remote`.
    #[inline]
    pub fn write(wr_id: u64, entries: [ibv_sge; N], remote: RemoteMemory) -> Self {
        Self::one_sided(wr_id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, entries, remote)
    }

    /// A read of `remote` into the entries.
    #[inline]
    pub fn read(wr_id: u64, entries: [ibv_sge; N], remote: RemoteMemory) -> Self {
        Self::one_sided(wr_id, ibv_wr_opcode::IBV_WR_RDMA_READ, entries, remote)
    }

    /// Puts `swap` in the 8 bytes at `remote` if they equal `compare`; the old value goes to the
    /// entries.
    #[inline]
    pub fn compare_swap(
        wr_id: u64,
        entries: [ibv_sge; N],
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Self {
        let mut this = Self::new(wr_id, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, entries);
        let atomic = ferrofabric_verbs_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: remote.addr,
            compare_add: compare,
            swap,
            rkey: remote.rkey,
        };
        this.wr.wr.atomic = atomic;
        this
    }

    /// Adds to the 8 bytes at `remote`; the old value goes to the entries.
    #[inline]
    pub fn fetch_add(wr_id: u64, entries: [ibv_sge; N], remote: RemoteMemory, add: u64) -> Self {
        let mut this = Self::compare_swap(wr_id, entries, remote, add, 0);
        this.wr.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        this
    }

    /// With immediate data, in network byte order: for a message or a write.
    #[inline]
    #[must_use]
    pub fn immediate(mut self, data: u32) -> Self {
        self.wr.__bindgen_anon_1.imm_data = data;
        self.wr.opcode = match self.wr.opcode {
            ibv_wr_opcode::IBV_WR_SEND => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            other => other,
        };
        self
    }

    /// As a datagram to a queue pair at the end of a path. The handle must live until the request
    /// completes.
    #[inline]
    #[must_use]
    pub fn to(mut self, handle: &Ah, qp_num: u32, qkey: u32) -> Self {
        self.wr.wr.ud.ah = handle.as_ptr();
        self.wr.wr.ud.remote_qpn = qp_num;
        self.wr.wr.ud.remote_qkey = qkey;
        self
    }

    /// With these flags, in place of any before.
    #[inline]
    #[must_use]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.wr.send_flags = flags.bits();
        self
    }

    /// With another identifier.
    #[inline]
    pub fn set_wr_id(&mut self, wr_id: u64) {
        self.wr.wr_id = wr_id;
    }

    /// Makes it a message of these entries, at most `N`, for [`SendRequest::post_pointed`].
    #[inline]
    pub(crate) fn refill<const M: usize>(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        entries: [ibv_sge; M],
    ) {
        const { assert!(M <= N, "more entries than the request has room for") };
        self.wr.wr_id = wr_id;
        self.wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        self.wr.num_sge = M as i32;
        self.wr.send_flags = flags.bits();
        self.entries[..M].copy_from_slice(&entries);
        self.wr.sg_list = list_of::<M>(&mut self.entries);
    }

    /// The same in place of another, which has room for as many entries or more, for
    /// [`SendRequest::post_pointed`].
    #[inline]
    pub(crate) fn replace<const M: usize>(&self, other: &mut SendRequest<M>) {
        const { assert!(N <= M, "more entries than the request has room for") };
        other.wr = self.wr;
        other.entries[..N].copy_from_slice(&self.entries);
        other.wr.sg_list = list_of::<N>(&mut other.entries);
    }

    /// Whether it has these flags.
    #[inline]
    pub(crate) fn has_flags(&self, flags: SendFlags) -> bool {
        self.wr.send_flags & flags.bits() == flags.bits()
    }

    /// Without these flags.
    #[inline]
    pub(crate) fn clear_flags(&mut self, flags: SendFlags) {
        self.wr.send_flags &= !flags.bits();
    }

    /// The entries, to change.
    #[inline]
    pub fn entries_mut(&mut self) -> &mut [ibv_sge; N] {
        &mut self.entries
    }

    /// Posts it.
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when the queue is full; nothing was posted.
    ///
    /// # Safety
    ///
    /// Each entry's memory is registered in the queue pair's protection domain (inline: readable
    /// now) and stays so, not written by others, until the request completes; the memory that a
    /// read or atomic fills belongs to the device alone until then. An address handle lives until
    /// the request completes. On a datagram queue pair [`SendRequest::to`] was called.
    #[inline]
    pub unsafe fn post(&mut self, qp: &Qp) -> Result<(), OpError> {
        self.wr.sg_list = list_of::<N>(&mut self.entries);
        // SAFETY: the caller's promise.
        unsafe { self.post_pointed(qp) }
    }

    /// As [`SendRequest::post`], for a request whose list of entries is in place: it has not moved
    /// since [`SendRequest::refill`] or [`SendRequest::replace`].
    ///
    /// # Safety
    ///
    /// As [`SendRequest::post`].
    #[inline]
    pub(super) unsafe fn post_pointed(&mut self, qp: &Qp) -> Result<(), OpError> {
        self.wr.next = ptr::null_mut();
        // SAFETY: a list of one, complete; the rest is the caller's promise.
        unsafe { qp.post_send(&raw mut self.wr) }.map_err(|rejected| rejected.reason)
    }

    /// Posts several with one doorbell, in order.
    ///
    /// # Errors
    ///
    /// The reason and how many were posted before; [`OpError::Again`] when the queue is full.
    ///
    /// # Safety
    ///
    /// As [`SendRequest::post`], for each.
    #[inline]
    pub unsafe fn post_all(requests: &mut [Self], qp: &Qp) -> Result<(), (OpError, usize)> {
        for request in &mut *requests {
            request.wr.sg_list = list_of::<N>(&mut request.entries);
        }
        // SAFETY: the caller's promise.
        unsafe { Self::post_all_pointed(requests, qp) }
    }

    /// As [`SendRequest::post_all`], for requests as [`SendRequest::post_pointed`] takes them.
    ///
    /// # Safety
    ///
    /// As [`SendRequest::post`], for each.
    #[inline]
    pub(super) unsafe fn post_all_pointed(
        requests: &mut [Self],
        qp: &Qp,
    ) -> Result<(), (OpError, usize)> {
        let mut next = ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.wr.next = next;
            next = &raw mut request.wr;
        }
        if next.is_null() {
            return Ok(());
        }
        // SAFETY: a list of complete requests, ended by null; the rest is the caller's promise.
        unsafe { qp.post_send(next) }.map_err(|rejected| {
            let at = requests
                .iter()
                .position(|request| ptr::eq(&raw const request.wr, rejected.first));
            (rejected.reason, at.unwrap_or(0))
        })
    }
}

impl SendRequest<0> {
    /// A write of nothing, with a completion: only a living queue pair acknowledges it, and it
    /// takes no receive of the peer.
    pub(crate) fn probe(wr_id: u64) -> Self {
        let nowhere = RemoteMemory { addr: 0, rkey: 0 };
        Self::write(wr_id, [], nowhere).flags(SendFlags::SIGNALED)
    }

    /// Makes a key of this side invalid.
    #[inline]
    pub fn invalidate_local(wr_id: u64, rkey: u32) -> Self {
        let mut this = Self::new(wr_id, ibv_wr_opcode::IBV_WR_LOCAL_INV, []);
        this.wr.__bindgen_anon_1.invalidate_rkey = rkey;
        this
    }

    /// Binds a type 2 window, which gets the key `rkey`. Window and region must live until the
    /// request completes.
    #[inline]
    pub fn bind_window(wr_id: u64, window: *mut ibv_mw, rkey: u32, info: ibv_mw_bind_info) -> Self {
        let mut this = Self::new(wr_id, ibv_wr_opcode::IBV_WR_BIND_MW, []);
        this.wr.__bindgen_anon_2.bind_mw =
            ferrofabric_verbs_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                mw: window,
                rkey,
                bind_info: info,
            };
        this
    }
}

/// The list of a request with `USED` of these entries: null for none. Some drivers read the first
/// entry of any list that is there (rdma-core, `irdma_uk_rdma_write`), and a list of no entries
/// leads to the memory behind the request, or to entries of an earlier one.
#[inline]
fn list_of<const USED: usize>(entries: &mut [ibv_sge]) -> *mut ibv_sge {
    match USED {
        0 => ptr::null_mut(),
        _ => entries.as_mut_ptr(),
    }
}

impl<const N: usize> std::fmt::Debug for SendRequest<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendRequest")
            .field("wr_id", &self.wr.wr_id)
            .field("opcode", &self.wr.opcode)
            .field("send_flags", &self.wr.send_flags)
            .field("entries", &self.entries)
            .finish()
    }
}

// SAFETY: a request is plain data; the poster is responsible for the memory that its pointers name.
unsafe impl<const N: usize> Send for SendRequest<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for SendRequest<N> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that had entries before has none, and no list, once a probe takes its place.
    #[test]
    fn a_probe_in_the_place_of_a_message_has_no_list() {
        let bytes = [7; 8];
        let mut request = SendRequest::send(1, [crate::post::inline_sge(&bytes); 2]);
        request.refill(2, SendFlags::INLINE, [crate::post::inline_sge(&bytes)]);
        assert_eq!(request.wr.sg_list, request.entries.as_mut_ptr());
        SendRequest::probe(3).replace(&mut request);
        assert_eq!((request.wr.num_sge, request.wr.wr_id), (0, 3));
        assert!(request.wr.sg_list.is_null());
        request.refill(4, SendFlags::INLINE, []);
        assert!(request.wr.sg_list.is_null());
    }
}
