//! Tagged messages (fi_tagged(3)).

use std::ffi::c_void;
use std::ptr::null_mut;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind};

use libc::iovec;

use super::transfer::{Receiving, Sending, common, one, receive, send as transmit};
use crate::abi::{
    FI_INJECT, FI_REMOTE_CQ_DATA, Roomy, fi_addr_t, fi_msg_tagged, fi_ops_tagged, fid_ep,
};
use crate::memory::buffers;

pub(super) static OPS: Roomy<fi_ops_tagged> = Roomy::new(fi_ops_tagged {
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

#[inline(always)]
fn receiving(
    iov: &[IoBuf],
    desc: *mut c_void,
    src: fi_addr_t,
    (tag, ignore): (u64, u64),
    context: *mut c_void,
) -> Receiving<'_> {
    Receiving {
        kind: MsgKind::Tagged,
        iov,
        desc,
        src,
        tag,
        ignore,
        context,
    }
}

#[inline(always)]
fn sending(
    iov: &[IoBuf],
    desc: *mut c_void,
    dest: fi_addr_t,
    (tag, data): (u64, u64),
    context: *mut c_void,
) -> Sending<'_> {
    Sending {
        kind: MsgKind::Tagged,
        iov,
        desc,
        dest,
        tag,
        data,
        context,
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    let what = receiving(&iov, desc, src_addr, (tag, ignore), context);
    // SAFETY: as C calls us.
    unsafe { receive(ep, &what, |ep| ep.rx.tagged_flags()) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us; the lists have that many entries.
    unsafe {
        let what = receiving(
            buffers(iov, count),
            common(desc, count),
            src_addr,
            (tag, ignore),
            context,
        );
        receive(ep, &what, |ep| ep.rx.tagged_flags())
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as C calls us; the lists have as many entries as the message says.
    unsafe {
        let msg = &*msg;
        let iov = buffers(msg.msg_iov, msg.iov_count);
        let desc = common(msg.desc, msg.iov_count);
        let what = receiving(iov, desc, msg.addr, (msg.tag, msg.ignore), msg.context);
        receive(ep, &what, |ep| ep.rx.with(flags))
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    let what = sending(&iov, desc, dest_addr, (tag, 0), context);
    // SAFETY: as C calls us.
    unsafe { transmit(ep, &what, |ep| ep.tx.flags()) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us; the lists have that many entries.
    unsafe {
        let what = sending(
            buffers(iov, count),
            common(desc, count),
            dest_addr,
            (tag, 0),
            context,
        );
        transmit(ep, &what, |ep| ep.tx.flags())
    }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as C calls us; the lists have as many entries as the message says.
    unsafe {
        let msg = &*msg;
        let iov = buffers(msg.msg_iov, msg.iov_count);
        let desc = common(msg.desc, msg.iov_count);
        let what = sending(iov, desc, msg.addr, (msg.tag, msg.data), msg.context);
        transmit(ep, &what, |ep| ep.tx.with(flags))
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    let iov = one(buf, len);
    let what = sending(&iov, null_mut(), dest_addr, (tag, 0), null_mut());
    // SAFETY: as C calls us.
    unsafe { transmit(ep, &what, |_| Flags::INJECT) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let iov = one(buf, len);
    let what = sending(&iov, desc, dest_addr, (tag, data), context);
    // SAFETY: as C calls us.
    unsafe { transmit(ep, &what, |ep| ep.tx.flags() | Flags::REMOTE_CQ_DATA) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    let iov = one(buf, len);
    let what = sending(&iov, null_mut(), dest_addr, (tag, data), null_mut());
    let flags = Flags::from_bits_retain(FI_INJECT | FI_REMOTE_CQ_DATA);
    // SAFETY: as C calls us.
    unsafe { transmit(ep, &what, |_| flags) }
}
