//! One-sided operations (fi_rma(3)): every call ends in [`begin`].

use std::ffi::c_void;
use std::ptr::null_mut;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc, RmaKind, RmaOp, total_len};
use ferrofabric_runtime::fabric::Endpoint;
use libc::iovec;

use super::addresses::{CallAddrs, OwnAddrs, OwnersAddrs};
use super::object::{EndpointObject, TransferFlags};
use super::transfer::one;
use crate::abi::{FI_ADDR_UNSPEC, Roomy, fi_addr_t, fi_msg_rma, fi_ops_rma, fi_rma_iov, fid_ep};
use crate::fi_addr::given;
use crate::fid::object_of;
use crate::guard::data;
use crate::memory::{buffers, common};

/// Reads and writes of peers' memory.
pub(super) static RMA: Roomy<fi_ops_rma> = Roomy::new(table::<OwnAddrs>());

/// The same with the addresses of the owner of an imported address vector.
pub(super) static OWNERS_RMA: Roomy<fi_ops_rma> = Roomy::new(table::<OwnersAddrs>());

const fn table<A: CallAddrs>() -> fi_ops_rma {
    fi_ops_rma {
        size: size_of::<fi_ops_rma>(),
        read: Some(read::<A>),
        readv: Some(readv::<A>),
        readmsg: Some(readmsg::<A>),
        write: Some(write::<A>),
        writev: Some(writev::<A>),
        writemsg: Some(writemsg::<A>),
        inject: Some(inject::<A>),
        writedata: Some(writedata::<A>),
        injectdata: Some(injectdata::<A>),
    }
}

unsafe extern "C" fn read<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = rma_op(RmaKind::Read, src, (addr, key), desc, context);
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((&one(buf, len), op)), flags_of_reads) }
}

unsafe extern "C" fn readv<A: CallAddrs>(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us; the lists have that many entries.
    unsafe {
        let op = rma_op(
            RmaKind::Read,
            src,
            (addr, key),
            common(desc, count),
            context,
        );
        begin::<A>(ep, with_list(iov, count, op), flags_of_reads)
    }
}

unsafe extern "C" fn readmsg<A: CallAddrs>(
    ep: *mut fid_ep,
    msg: *const fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: as C calls us; the lists have as many entries as the message says.
    unsafe { begin::<A>(ep, described(RmaKind::Read, msg), |tx| tx.with(flags)) }
}

unsafe extern "C" fn write<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = rma_op(RmaKind::Write, dest, (addr, key), desc, context);
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((&one(buf, len), op)), TransferFlags::flags) }
}

unsafe extern "C" fn writev<A: CallAddrs>(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us; the lists have that many entries.
    unsafe {
        let desc = common(desc, count);
        let op = rma_op(RmaKind::Write, dest, (addr, key), desc, context);
        begin::<A>(ep, with_list(iov, count, op), TransferFlags::flags)
    }
}

unsafe extern "C" fn writemsg<A: CallAddrs>(
    ep: *mut fid_ep,
    msg: *const fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: as C calls us; the lists have as many entries as the message says.
    unsafe { begin::<A>(ep, described(RmaKind::Write, msg), |tx| tx.with(flags)) }
}

unsafe extern "C" fn inject<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let op = rma_op(RmaKind::Write, dest, (addr, key), null_mut(), null_mut());
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((&one(buf, len), op)), |_| Flags::INJECT) }
}

unsafe extern "C" fn writedata<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let op = RmaOp {
        data,
        ..rma_op(RmaKind::Write, dest, (addr, key), desc, context)
    };
    let flags = |tx: &TransferFlags| tx.flags() | Flags::REMOTE_CQ_DATA;
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((&one(buf, len), op)), flags) }
}

unsafe extern "C" fn injectdata<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let op = RmaOp {
        data,
        ..rma_op(RmaKind::Write, dest, (addr, key), null_mut(), null_mut())
    };
    let flags = |_: &TransferFlags| Flags::INJECT | Flags::REMOTE_CQ_DATA;
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((&one(buf, len), op)), flags) }
}

/// The flags of a read that comes without any. Injecting is for buffers that are read from, so it
/// does not apply (fi_endpoint(3), `FI_INJECT`).
fn flags_of_reads(tx: &TransferFlags) -> Flags {
    tx.flags() - Flags::INJECT
}

/// An operation without CQ data and flags, at a place of the region with a key.
fn rma_op(
    kind: RmaKind,
    dest: fi_addr_t,
    (place, key): (u64, u64),
    desc: *mut c_void,
    context: *mut c_void,
) -> RmaOp {
    RmaOp {
        kind,
        dest: given(dest),
        key,
        place,
        data: 0,
        desc: MrDesc::from_number(desc as u64),
        context: context as u64,
        flags: Flags::empty(),
    }
}

/// A list of buffers with the operation; `None` for a list that is not there.
///
/// # Safety
///
/// As [`buffers`].
unsafe fn with_list<'a>(
    iov: *const iovec,
    count: usize,
    op: RmaOp,
) -> Option<(&'a [IoBuf], RmaOp)> {
    if iov.is_null() && count != 0 {
        return None;
    }
    // SAFETY: the caller's contract.
    Some((unsafe { buffers(iov, count) }, op))
}

/// The operation of a `fi_msg_rma`; `None` where it is none: the peer's memory is not one range
/// (`rma_iov_limit`), or is not as long as the buffers.
///
/// # Safety
///
/// `msg` is NULL or there, and its lists have as many entries as it says, or are NULL.
unsafe fn described<'a>(kind: RmaKind, msg: *const fi_msg_rma) -> Option<(&'a [IoBuf], RmaOp)> {
    // SAFETY: the caller's contract.
    let msg = unsafe { msg.as_ref() }?;
    if msg.rma_iov_count != 1 {
        return None;
    }
    // SAFETY: the caller's contract.
    let &fi_rma_iov { addr, len, key } = unsafe { msg.rma_iov.as_ref() }?;
    // SAFETY: the caller's contract.
    let desc = unsafe { common(msg.desc, msg.iov_count) };
    let op = RmaOp {
        data: msg.data,
        ..rma_op(kind, msg.addr, (addr, key), desc, msg.context)
    };
    // A NULL list has no bytes, whatever its count says: so a transfer of 0 bytes needs no list.
    // SAFETY: the caller's contract.
    let iov = unsafe { buffers(msg.msg_iov, msg.iov_count) };
    (total_len(iov) == len).then_some((iov, op))
}

/// Begins an operation, with the flags that the endpoint's operations have then. `None` stands for
/// one that its caller describes wrongly.
///
/// # Safety
///
/// As C calls us: an endpoint that is not closed, buffers as fi_rma(3) requires.
unsafe fn begin<A: CallAddrs>(
    ep: *const fid_ep,
    operation: Option<(&[IoBuf], RmaOp)>,
    flags: impl FnOnce(&TransferFlags) -> Flags,
) -> isize {
    data(|| {
        // SAFETY: as the caller says.
        let this = unsafe { object_of::<EndpointObject>(ep) };
        let endpoint = this.enabled()?;
        let are_there = |iov: &[IoBuf]| iov.iter().all(|buf| buf.addr != 0 || buf.len == 0);
        let Some((iov, op)) = operation.filter(|(iov, _)| are_there(iov)) else {
            return Err(flush_refused(endpoint, OpError::Failed(Errno::EINVAL)));
        };
        let (flags, dest) = (flags(&this.tx), A::find(this, op.dest));
        // SAFETY: the application keeps the buffers as fi_rma(3) requires.
        unsafe { endpoint.rma(&RmaOp { flags, dest, ..op }, iov) }.map(|()| 0)
    })
}

/// Refuses an operation with an error as the endpoint does, which sends those that earlier calls
/// held back for this one (`FI_MORE`): it takes no read that is injected. Returns the error.
#[cold]
pub(super) fn flush_refused(endpoint: &dyn Endpoint, error: OpError) -> OpError {
    let op = RmaOp {
        flags: Flags::INJECT,
        ..rma_op(
            RmaKind::Read,
            FI_ADDR_UNSPEC,
            (0, 0),
            null_mut(),
            null_mut(),
        )
    };
    // SAFETY: there are no buffers.
    let _ = unsafe { endpoint.rma(&op, &[]) };
    error
}
