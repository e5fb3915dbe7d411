//! Send requests, the extended way: written straight into the driver's queue, one doorbell for all.

use std::marker::PhantomData;
use std::ptr::NonNull;

use ferrofabric_contracts::error::OpError;
use ferrofabric_verbs_sys::{self as sys, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

use super::{RemoteMemory, SendFlags};
use crate::ah::Ah;
use crate::qp::Qp;
use crate::rejected::post_error;

/// An open batch: each request is one operation call, then one payload call ([`SendBatch::entry`],
/// [`SendBatch::entries`], [`SendBatch::inline`]), and for datagrams [`SendBatch::to`].
///
/// The queue pair is locked while it is open, so it stays on its thread; dropped, it posts nothing.
#[derive(Debug)]
pub struct SendBatch<'q> {
    raw: NonNull<ibv_qp_ex>,
    queue_pair: PhantomData<&'q ()>,
    thread: PhantomData<*const ()>,
}

impl Qp {
    /// Opens a batch of extended sends; `None` when it was not created for them. Only one at a
    /// time: a second on the same thread waits for itself.
    #[inline]
    pub fn start_batch(&self) -> Option<SendBatch<'_>> {
        // SAFETY: live as long as the borrow. A nested batch deadlocks, which breaks nothing.
        self.extended().map(|raw| unsafe { SendBatch::start(raw) })
    }
}

impl SendBatch<'_> {
    /// # Safety
    ///
    /// `raw` is live for the borrow, and has no batch open on this thread.
    #[inline]
    unsafe fn start(raw: NonNull<ibv_qp_ex>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { sys::ibv_wr_start(raw.as_ptr()) };
        Self {
            raw,
            queue_pair: PhantomData,
            thread: PhantomData,
        }
    }

    #[inline]
    fn begin(&mut self, wr_id: u64, flags: SendFlags) -> *mut ibv_qp_ex {
        let raw = self.raw.as_ptr();
        // SAFETY: live, and this batch has it locked.
        unsafe {
            (*raw).wr_id = wr_id;
            (*raw).wr_flags = flags.bits();
        }
        raw
    }
}

/// Calls that put an operation in the batch: the name, what the request needs besides its number
/// and flags, and the function of the library that writes it.
macro_rules! operations {
    ($(
        $(#[$about:meta])*
        fn $name:ident($($argument:ident: $Type:ty),*) = $write:ident($($written:expr),*);
    )*) => {
        impl SendBatch<'_> {$(
            $(#[$about])*
            ///
            /// # Safety
            ///
            /// The queue pair was created for the operation.
            #[inline]
            pub unsafe fn $name(
                &mut self,
                wr_id: u64,
                flags: SendFlags,
                $($argument: $Type),*
            ) -> &mut Self {
                let raw = self.begin(wr_id, flags);
                // SAFETY: a batch is open; the rest is the caller's promise.
                unsafe { sys::$write(raw, $($written),*) };
                self
            }
        )*}
    };
}

operations! {
    /// A message.
    fn send() = ibv_wr_send();

    /// A message with immediate data, in network byte order.
    fn send_immediate(data: u32) = ibv_wr_send_imm(data);

    /// A message that makes `rkey` of the receiver invalid.
    fn send_with_invalidate(rkey: u32) = ibv_wr_send_inv(rkey);

    /// A write to `remote`.
    fn write(remote: RemoteMemory) = ibv_wr_rdma_write(remote.rkey, remote.addr);

    /// A write to `remote` that consumes a receive there; the data in network byte order.
    fn write_immediate(remote: RemoteMemory, data: u32)
        = ibv_wr_rdma_write_imm(remote.rkey, remote.addr, data);

    /// A read of `remote`.
    fn read(remote: RemoteMemory) = ibv_wr_rdma_read(remote.rkey, remote.addr);

    /// Puts `swap` in the 8 bytes at `remote` if they equal `compare`.
    fn compare_swap(remote: RemoteMemory, compare: u64, swap: u64)
        = ibv_wr_atomic_cmp_swp(remote.rkey, remote.addr, compare, swap);

    /// Adds to the 8 bytes at `remote`.
    fn fetch_add(remote: RemoteMemory, add: u64)
        = ibv_wr_atomic_fetch_add(remote.rkey, remote.addr, add);

    /// Binds a type 2 window, which gets the key `rkey`. It has no payload. Window and region live
    /// until the request completes.
    fn bind_window(window: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info)
        = ibv_wr_bind_mw(window, rkey, info);

    /// Makes a key of this side invalid. It has no payload.
    fn invalidate_local(rkey: u32) = ibv_wr_local_inv(rkey);
}

impl SendBatch<'_> {
    /// The last operation is a datagram to this queue pair.
    ///
    /// # Safety
    ///
    /// An operation stands in the batch; the handle lives until the request completes.
    #[inline]
    pub unsafe fn to(&mut self, handle: &Ah, qp_num: u32, qkey: u32) -> &mut Self {
        // SAFETY: a batch is open; the rest is the caller's promise.
        unsafe { sys::ibv_wr_set_ud_addr(self.raw.as_ptr(), handle.as_ptr(), qp_num, qkey) };
        self
    }

    /// The last operation's payload is one piece of registered memory.
    ///
    /// # Safety
    ///
    /// An operation without payload stands in the batch; memory as [`super::SendRequest::post`] has
    /// it.
    #[inline]
    pub unsafe fn entry(&mut self, entry: ibv_sge) -> &mut Self {
        // SAFETY: as above.
        unsafe { sys::ibv_wr_set_sge(self.raw.as_ptr(), entry.lkey, entry.addr, entry.length) };
        self
    }

    /// The last operation's payload is pieces of registered memory.
    ///
    /// # Safety
    ///
    /// As [`SendBatch::entry`].
    #[inline]
    pub unsafe fn entries(&mut self, entries: &[ibv_sge]) -> &mut Self {
        // As for other requests: there is no list where it has no entries.
        let list = match entries.is_empty() {
            true => std::ptr::null(),
            false => entries.as_ptr(),
        };
        // SAFETY: as above.
        unsafe { sys::ibv_wr_set_sge_list(self.raw.as_ptr(), entries.len(), list) };
        self
    }

    /// The last operation's payload is copied from here. Its flags must have [`SendFlags::INLINE`]:
    /// not all drivers add it themselves.
    ///
    /// # Safety
    ///
    /// An operation without payload stands in the batch.
    #[inline]
    pub unsafe fn inline(&mut self, bytes: &[u8]) -> &mut Self {
        // SAFETY: a batch is open; the driver copies before it returns.
        unsafe {
            sys::ibv_wr_set_inline_data(
                self.raw.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
            )
        };
        self
    }

    /// Posts the batch.
    ///
    /// # Errors
    ///
    /// Nothing of it was posted; [`OpError::Again`] when it does not fit into the queue.
    #[inline]
    pub fn complete(self) -> Result<(), OpError> {
        let raw = self.raw.as_ptr();
        std::mem::forget(self);
        // SAFETY: a batch is open and ends once, here.
        match unsafe { sys::ibv_wr_complete(raw) } {
            0 => Ok(()),
            errno => Err(post_error(errno)),
        }
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        // SAFETY: a batch is open and ends once: completed ones are forgotten.
        unsafe { sys::ibv_wr_abort(self.raw.as_ptr()) };
    }
}
