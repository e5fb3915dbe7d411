//! Tagged messages of endpoints with collective operations. The application does not have the
//! highest bit of a tag: a tag with it is refused, and no receive ignores it.

use std::ffi::c_void;

use ferrofabric_contracts::error::Errno;
use libc::iovec;

use super::transfer::TAGGED;
use crate::abi::{Roomy, fi_addr_t, fi_msg_tagged, fi_ops_tagged, fid_ep};
use crate::collective::RESERVED_TAG;

/// Makes the call of other endpoints, if the tag is the application's.
macro_rules! checked {
    ($call:ident($tag:expr; $($argument:expr),*)) => {
        match TAGGED.table.$call {
            Some(call) if $tag & RESERVED_TAG == 0 => call($($argument),*),
            _ => -(Errno::EINVAL.0 as isize),
        }
    };
}

pub(super) static RESERVED_TAGS: Roomy<fi_ops_tagged> = Roomy::new(fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
});

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { checked!(recv(tag; ep, buf, len, desc, src, tag, ignore & !RESERVED_TAG, context)) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { checked!(recvv(tag; ep, iov, desc, count, src, tag, ignore & !RESERVED_TAG, context)) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as C calls us: a message that is there.
    unsafe {
        let mut msg = *msg;
        msg.ignore &= !RESERVED_TAG;
        checked!(recvmsg(msg.tag; ep, &raw const msg, flags))
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { checked!(send(tag; ep, buf, len, desc, dest, tag, context)) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { checked!(sendv(tag; ep, iov, desc, count, dest, tag, context)) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as C calls us: a message that is there.
    unsafe { checked!(sendmsg((*msg).tag; ep, msg, flags)) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { checked!(inject(tag; ep, buf, len, dest, tag)) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { checked!(senddata(tag; ep, buf, len, desc, data, dest, tag, context)) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { checked!(injectdata(tag; ep, buf, len, data, dest, tag)) }
}
