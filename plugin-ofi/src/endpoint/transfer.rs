//! What sends and receives of all forms come down to.

use std::ffi::c_void;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, SendOp};

use super::object::EndpointObject;
use crate::abi::{fi_addr_t, fid_ep};
use crate::fid::object;
use crate::guard::data;
use crate::memory::LISTED;

/// A message to send.
pub(super) struct Sending<'a> {
    pub(super) kind: MsgKind,
    pub(super) iov: &'a [IoBuf],
    pub(super) desc: *mut c_void,
    pub(super) dest: fi_addr_t,
    pub(super) tag: u64,
    pub(super) data: u64,
    pub(super) context: *mut c_void,
}

/// A receive to post.
pub(super) struct Receiving<'a> {
    pub(super) kind: MsgKind,
    pub(super) iov: &'a [IoBuf],
    pub(super) desc: *mut c_void,
    pub(super) src: fi_addr_t,
    pub(super) tag: u64,
    pub(super) ignore: u64,
    pub(super) context: *mut c_void,
}

/// Sends.
///
/// # Safety
///
/// As C calls us: an endpoint that is not closed, buffers as fi_msg(3) asks.
#[inline(always)]
pub(super) unsafe fn send(
    ep: *const fid_ep,
    message: &Sending<'_>,
    flags: impl FnOnce(&EndpointObject) -> Flags,
) -> isize {
    data(|| {
        // SAFETY: as the caller says.
        let this = unsafe { object::<EndpointObject>(ep) };
        let flags = flags(this);
        let op = SendOp {
            kind: message.kind,
            dest: FiAddr(message.dest),
            tag: message.tag,
            data: message.data,
            desc: message.desc as u64,
            context: message.context as u64,
            flags,
        };
        // SAFETY: the application keeps the buffers as fi_msg(3) asks.
        unsafe { this.enabled()?.send(&op, message.iov) }.map(|()| 0)
    })
}

/// Posts a receive, or looks for a message.
///
/// # Safety
///
/// As [`send`].
#[inline(always)]
pub(super) unsafe fn receive(
    ep: *const fid_ep,
    receive: &Receiving<'_>,
    flags: impl FnOnce(&EndpointObject) -> Flags,
) -> isize {
    data(|| {
        // SAFETY: as the caller says.
        let this = unsafe { object::<EndpointObject>(ep) };
        let op = RecvOp {
            kind: receive.kind,
            src: FiAddr(receive.src),
            tag: receive.tag,
            ignore: receive.ignore,
            desc: receive.desc as u64,
            context: receive.context as u64,
            flags: flags(this),
        };
        // SAFETY: the application keeps the buffers as fi_msg(3) asks.
        unsafe { this.enabled()?.recv(&op, receive.iov) }.map(|()| 0)
    })
}

/// The descriptor of a list: that of all its buffers, none where they differ.
///
/// # Safety
///
/// `desc` has an entry for each buffer, or is NULL. A list that is too long is refused, whatever
/// this says of it.
#[inline]
pub(super) unsafe fn common(desc: *mut *mut c_void, count: usize) -> *mut c_void {
    if desc.is_null() || count == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller says.
    let all = unsafe { std::slice::from_raw_parts(desc, count.min(LISTED)) };
    match all.iter().all(|one| *one == all[0]) {
        true => all[0],
        false => std::ptr::null_mut(),
    }
}

/// One buffer.
#[inline(always)]
pub(super) fn one(buf: *const c_void, len: usize) -> [IoBuf; 1] {
    [IoBuf::new(buf.cast(), len)]
}
