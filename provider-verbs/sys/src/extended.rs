//! Extended posting (`ibv_wr_*`, through `ibv_qp_ex`) and polling (`ibv_start_poll`…, through
//! `ibv_cq_ex`).
//!
//! The driver fills a slot only for an operation or field that was requested at creation
//! (`send_ops_flags`, `wc_flags`): calling another is undefined in C as well. That is the first
//! rule of every `# Safety` below.
//!
//! A batch: set `(*qp).wr_id` and `(*qp).wr_flags`, call one operation and one payload setter (for
//! UD also [`ibv_wr_set_ud_addr`]), repeat, and complete.

use core::ffi::{c_int, c_uint, c_void};

use crate::bindings::*;

/// The function in a slot. Unsafe: the caller asked for the operation at creation, upon which the
/// driver fills its slot.
macro_rules! filled {
    ($slot:expr) => {{
        let slot = $slot;
        debug_assert!(
            slot.is_some(),
            concat!(stringify!($slot), " was not requested at creation")
        );
        slot.unwrap_unchecked()
    }};
}

/// Compares and swaps 8 bytes at `remote_addr`; the old value goes to the local entry.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_atomic_cmp_swp)(qp, rkey, remote_addr, compare, swap) }
}

/// Adds to 8 bytes at `remote_addr`; the old value goes to the local entry.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_atomic_fetch_add)(qp, rkey, remote_addr, add) }
}

/// Binds a type 2 window; `rkey` is the key it gets.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread; pointers are valid for
/// the call.
#[inline]
pub unsafe fn ibv_wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_bind_mw)(qp, mw, rkey, bind_info) }
}

/// Invalidates a window or region of this side.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_local_inv)(qp, invalidate_rkey) }
}

/// Reads remote memory into the local entries.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_rdma_read)(qp, rkey, remote_addr) }
}

/// Writes the local entries to remote memory.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_rdma_write)(qp, rkey, remote_addr) }
}

/// Writes to remote memory and consumes a receive there; `imm_data` in network byte order.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: __be32,
) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_rdma_write_imm)(qp, rkey, remote_addr, imm_data) }
}

/// Sends a message.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_send)(qp) }
}

/// Sends a message with immediate data, in network byte order.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_send_imm)(qp, imm_data) }
}

/// Sends a message that invalidates a key at the receiver.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_send_inv)(qp, invalidate_rkey) }
}

/// Writes the 8 bytes at `atomic_wr` to remote memory at once.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread; pointers are valid for
/// the call.
#[inline]
pub unsafe fn ibv_wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_atomic_write)(qp, rkey, remote_addr, atomic_wr) }
}

/// Makes earlier writes visible or persistent; `kind` from `ibv_placement_type`, `level` from
/// `ibv_selectivity_level`.
///
/// # Safety
///
/// `qp` was created for this operation and has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    kind: u8,
    level: u8,
) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_flush)(qp, rkey, remote_addr, len, kind, level) }
}

/// Says where a datagram goes.
///
/// # Safety
///
/// `qp` has a batch open on this thread whose last operation has no address yet; pointers are valid
/// for the call, and the handle until the request completes.
#[inline]
pub unsafe fn ibv_wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_set_ud_addr)(qp, ah, remote_qpn, remote_qkey) }
}

/// Copies the payload into the request.
///
/// # Safety
///
/// `qp` has a batch open on this thread whose last operation has no payload yet; pointers are valid
/// for the call.
#[inline]
pub unsafe fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_set_inline_data)(qp, addr, length) }
}

/// Copies the payload, in pieces, into the request.
///
/// # Safety
///
/// `qp` has a batch open on this thread whose last operation has no payload yet; pointers are valid
/// for the call.
#[inline]
pub unsafe fn ibv_wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_set_inline_data_list)(qp, num_buf, buf_list) }
}

/// The payload is one piece of registered memory.
///
/// # Safety
///
/// `qp` has a batch open on this thread whose last operation has no payload yet; pointers are valid
/// for the call; the memory stays valid until the request completes.
#[inline]
pub unsafe fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_set_sge)(qp, lkey, addr, length) }
}

/// The payload is pieces of registered memory.
///
/// # Safety
///
/// `qp` has a batch open on this thread whose last operation has no payload yet; pointers are valid
/// for the call; the memory stays valid until the request completes.
#[inline]
pub unsafe fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_set_sge_list)(qp, num_sge, sg_list) }
}

/// Opens a batch; the queue pair is locked until it is completed or aborted.
///
/// # Safety
///
/// `qp` is a live extended queue pair with no batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_start)(qp) }
}

/// Rings the doorbell for the batch; not 0 (an errno) when nothing of it was posted.
///
/// # Safety
///
/// `qp` has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_complete)(qp) }
}

/// Drops the batch.
///
/// # Safety
///
/// `qp` has a batch open on this thread.
#[inline]
pub unsafe fn ibv_wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { filled!((*qp).wr_abort)(qp) }
}

/// The first completion of a poll: 0, `ENOENT` when there is none, or another errno. After 0 the
/// queue is locked, the completion's status and identifier stand in `(*cq).status` and
/// `(*cq).wr_id`, and [`ibv_end_poll`] must follow.
///
/// # Safety
///
/// `cq` is a live extended completion queue with no poll open on this thread; `attr` can be read.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller's promise; every extended queue has this slot.
    unsafe { filled!((*cq).start_poll)(cq, attr) }
}

/// The next completion of an open poll: 0, `ENOENT` when there is none, or another errno.
///
/// # Safety
///
/// A poll is open on this thread.
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: as above.
    unsafe { filled!((*cq).next_poll)(cq) }
}

/// Ends a poll.
///
/// # Safety
///
/// A poll is open on this thread.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: as above.
    unsafe { filled!((*cq).end_poll)(cq) }
}

/// The operation that completed.
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion.
#[inline]
pub unsafe fn ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_opcode)(cq) }
}

/// The device's own error code.
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion.
#[inline]
pub unsafe fn ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_vendor_err)(cq) }
}

/// How many bytes came (`IBV_WC_EX_WITH_BYTE_LEN`).
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion; the queue was created with the flag.
#[inline]
pub unsafe fn ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_byte_len)(cq) }
}

/// Immediate data in network byte order (`IBV_WC_EX_WITH_IMM`).
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion; the queue was created with the flag.
#[inline]
pub unsafe fn ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_imm_data)(cq) }
}

/// The local queue pair (`IBV_WC_EX_WITH_QP_NUM`).
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion; the queue was created with the flag.
#[inline]
pub unsafe fn ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_qp_num)(cq) }
}

/// The remote queue pair, on UD (`IBV_WC_EX_WITH_SRC_QP`).
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion; the queue was created with the flag.
#[inline]
pub unsafe fn ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_src_qp)(cq) }
}

/// Bits of `ibv_wc_flags`.
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion.
#[inline]
pub unsafe fn ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_wc_flags)(cq) }
}

/// The remote LID (`IBV_WC_EX_WITH_SLID`).
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion; the queue was created with the flag.
#[inline]
pub unsafe fn ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_slid)(cq) }
}

/// The service level (`IBV_WC_EX_WITH_SL`).
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion; the queue was created with the flag.
#[inline]
pub unsafe fn ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_sl)(cq) }
}

/// The low bits of the LID it came to (`IBV_WC_EX_WITH_DLID_PATH_BITS`).
///
/// # Safety
///
/// A poll is open on this thread and stands at a completion; the queue was created with the flag.
#[inline]
pub unsafe fn ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { filled!((*cq).read_dlid_path_bits)(cq) }
}

/// The key that a send with invalidate made invalid: it stands where immediate data does
/// (`IBV_WC_EX_WITH_IMM`).
///
/// # Safety
///
/// As for [`ibv_wc_read_imm_data`].
#[inline]
pub unsafe fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { ibv_wc_read_imm_data(cq) }
}
