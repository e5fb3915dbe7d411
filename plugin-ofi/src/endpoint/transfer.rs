//! Messages without and with tags (fi_msg(3), fi_tagged(3)): the calls of both tables are made by
//! one macro, and end in [`transmit`] and [`receive`]. `fi_tsend` is `send` in the table
//! [`TAGGED`].

use std::ffi::c_void;
use std::ptr::null_mut;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use libc::iovec;

use super::addresses::{CallAddrs, OwnAddrs, OwnersAddrs};
use super::object::{EndpointObject, TransferFlags};
use crate::abi::{
    FI_COLLECTIVE, Roomy, fi_addr_t, fi_msg, fi_msg_tagged, fi_ops_msg, fi_ops_tagged, fid_ep,
};
use crate::fi_addr::given;
use crate::fid::object_of;
use crate::guard::data;
use crate::memory::{buffers, common};
use crate::unsupported::Unsupported;

/// The table of a kind of messages. Calls with tags have a parameter `$tag` more, and receives
/// another one for the bits of it to ignore; the structures of `sendmsg` and `recvmsg` have fields
/// of the same names. The flag of messages of collectives is not the application's.
macro_rules! transfers {
    (
        $(#[$about:meta])*
        $OPS:ident, sends alone: $SENDS:ident,
        $(#[$about_owners:meta])*
        $OWNERS_OPS:ident, sends alone: $OWNERS_SENDS:ident,
        made by $table:ident: $Ops:ident, $Message:ident, $KIND:expr, $recv_flags:ident,
        sends [$($tag:ident)?], receives [$($matched:ident)*]
    ) => {
        const fn $table<A: CallAddrs>() -> $Ops {
            unsafe extern "C" fn recv<A: CallAddrs>(
                ep: *mut fid_ep,
                buf: *mut c_void,
                len: usize,
                desc: *mut c_void,
                src: fi_addr_t,
                $($matched: u64,)*
                context: *mut c_void,
            ) -> isize {
                let op = RecvOp { $($matched,)* ..recv_op($KIND, desc, src, context) };
                // SAFETY: as C calls us.
                unsafe { receive::<A>(ep, &one(buf, len), op, TransferFlags::$recv_flags) }
            }

            unsafe extern "C" fn recvv<A: CallAddrs>(
                ep: *mut fid_ep,
                iov: *const iovec,
                desc: *mut *mut c_void,
                count: usize,
                src: fi_addr_t,
                $($matched: u64,)*
                context: *mut c_void,
            ) -> isize {
                // SAFETY: as C calls us; the lists have that many entries.
                unsafe {
                    let desc = common(desc, count);
                    let op = RecvOp { $($matched,)* ..recv_op($KIND, desc, src, context) };
                    receive::<A>(ep, buffers(iov, count), op, TransferFlags::$recv_flags)
                }
            }

            unsafe extern "C" fn recvmsg<A: CallAddrs>(
                ep: *mut fid_ep,
                msg: *const $Message,
                flags: u64,
            ) -> isize {
                // SAFETY: as C calls us; the lists have as many entries as the message says.
                unsafe {
                    let msg = &*msg;
                    let desc = common(msg.desc, msg.iov_count);
                    let op = RecvOp {
                        $($matched: msg.$matched,)*
                        ..recv_op($KIND, desc, msg.addr, msg.context)
                    };
                    let flags = flags & !FI_COLLECTIVE;
                    receive::<A>(ep, buffers(msg.msg_iov, msg.iov_count), op, |rx| rx.with(flags))
                }
            }

            unsafe extern "C" fn send<A: CallAddrs>(
                ep: *mut fid_ep,
                buf: *const c_void,
                len: usize,
                desc: *mut c_void,
                dest: fi_addr_t,
                $($tag: u64,)?
                context: *mut c_void,
            ) -> isize {
                let op = SendOp { $($tag,)? ..send_op($KIND, desc, dest, context) };
                // SAFETY: as C calls us.
                unsafe { transmit::<A>(ep, &one(buf, len), op, TransferFlags::flags) }
            }

            unsafe extern "C" fn sendv<A: CallAddrs>(
                ep: *mut fid_ep,
                iov: *const iovec,
                desc: *mut *mut c_void,
                count: usize,
                dest: fi_addr_t,
                $($tag: u64,)?
                context: *mut c_void,
            ) -> isize {
                // SAFETY: as C calls us; the lists have that many entries.
                unsafe {
                    let desc = common(desc, count);
                    let op = SendOp { $($tag,)? ..send_op($KIND, desc, dest, context) };
                    transmit::<A>(ep, buffers(iov, count), op, TransferFlags::flags)
                }
            }

            unsafe extern "C" fn sendmsg<A: CallAddrs>(
                ep: *mut fid_ep,
                msg: *const $Message,
                flags: u64,
            ) -> isize {
                // SAFETY: as C calls us; the lists have as many entries as the message says.
                unsafe {
                    let msg = &*msg;
                    let desc = common(msg.desc, msg.iov_count);
                    let op = SendOp {
                        $($tag: msg.$tag,)?
                        data: msg.data,
                        ..send_op($KIND, desc, msg.addr, msg.context)
                    };
                    let flags = flags & !FI_COLLECTIVE;
                    transmit::<A>(ep, buffers(msg.msg_iov, msg.iov_count), op, |tx| tx.with(flags))
                }
            }

            unsafe extern "C" fn inject<A: CallAddrs>(
                ep: *mut fid_ep,
                buf: *const c_void,
                len: usize,
                dest: fi_addr_t,
                $($tag: u64,)?
            ) -> isize {
                let op = SendOp { $($tag,)? ..send_op($KIND, null_mut(), dest, null_mut()) };
                // SAFETY: as C calls us.
                unsafe { transmit::<A>(ep, &one(buf, len), op, |_| Flags::INJECT) }
            }

            unsafe extern "C" fn senddata<A: CallAddrs>(
                ep: *mut fid_ep,
                buf: *const c_void,
                len: usize,
                desc: *mut c_void,
                data: u64,
                dest: fi_addr_t,
                $($tag: u64,)?
                context: *mut c_void,
            ) -> isize {
                let op = SendOp { $($tag,)? data, ..send_op($KIND, desc, dest, context) };
                let flags = |tx: &TransferFlags| tx.flags() | Flags::REMOTE_CQ_DATA;
                // SAFETY: as C calls us.
                unsafe { transmit::<A>(ep, &one(buf, len), op, flags) }
            }

            unsafe extern "C" fn injectdata<A: CallAddrs>(
                ep: *mut fid_ep,
                buf: *const c_void,
                len: usize,
                data: u64,
                dest: fi_addr_t,
                $($tag: u64,)?
            ) -> isize {
                let op = SendOp { $($tag,)? data, ..send_op($KIND, null_mut(), dest, null_mut()) };
                let flags = |_: &TransferFlags| Flags::INJECT | Flags::REMOTE_CQ_DATA;
                // SAFETY: as C calls us.
                unsafe { transmit::<A>(ep, &one(buf, len), op, flags) }
            }

            $Ops {
                size: size_of::<$Ops>(),
                recv: Some(recv::<A>),
                recvv: Some(recvv::<A>),
                recvmsg: Some(recvmsg::<A>),
                send: Some(send::<A>),
                sendv: Some(sendv::<A>),
                sendmsg: Some(sendmsg::<A>),
                inject: Some(inject::<A>),
                senddata: Some(senddata::<A>),
                injectdata: Some(injectdata::<A>),
            }
        }

        $(#[$about])*
        pub(super) static $OPS: Roomy<$Ops> = Roomy::new($table::<OwnAddrs>());

        $(#[$about_owners])*
        pub(super) static $OWNERS_OPS: Roomy<$Ops> = Roomy::new($table::<OwnersAddrs>());

        /// The same of an endpoint whose receives another provider has.
        pub(super) static $SENDS: Roomy<$Ops> = Roomy::new($Ops {
            recv: Some(Unsupported::ENOSYS),
            recvv: Some(Unsupported::ENOSYS),
            recvmsg: Some(Unsupported::ENOSYS),
            ..$OPS.table
        });

        /// As above, with the owner's addresses.
        pub(super) static $OWNERS_SENDS: Roomy<$Ops> = Roomy::new($Ops {
            recv: Some(Unsupported::ENOSYS),
            recvv: Some(Unsupported::ENOSYS),
            recvmsg: Some(Unsupported::ENOSYS),
            ..$OWNERS_OPS.table
        });
    };
}

transfers! {
    /// Messages without tags.
    MSG, sends alone: MSG_SENDS,
    /// The same with the addresses of the owner of an imported address vector.
    OWNERS_MSG, sends alone: OWNERS_MSG_SENDS,
    made by msg_table: fi_ops_msg, fi_msg, MsgKind::Msg, flags,
    sends [], receives []
}

transfers! {
    /// Messages with tags.
    TAGGED, sends alone: TAGGED_SENDS,
    /// The same with the addresses of the owner of an imported address vector.
    OWNERS_TAGGED, sends alone: OWNERS_TAGGED_SENDS,
    made by tagged_table: fi_ops_tagged, fi_msg_tagged, MsgKind::Tagged, tagged_flags,
    sends [tag], receives [tag ignore]
}

/// A send without tag, data and flags.
#[inline(always)]
fn send_op(kind: MsgKind, desc: *mut c_void, dest: fi_addr_t, context: *mut c_void) -> SendOp {
    SendOp {
        kind,
        dest: given(dest),
        tag: 0,
        data: 0,
        desc: MrDesc::from_number(desc as u64),
        context: context as u64,
        flags: Flags::empty(),
    }
}

/// A receive without tag and flags.
#[inline(always)]
fn recv_op(kind: MsgKind, desc: *mut c_void, src: fi_addr_t, context: *mut c_void) -> RecvOp {
    RecvOp {
        kind,
        src: given(src),
        tag: 0,
        ignore: 0,
        desc: MrDesc::from_number(desc as u64),
        context: context as u64,
        flags: Flags::empty(),
    }
}

/// Sends, with the flags that the endpoint's sends have then.
///
/// # Safety
///
/// As C calls us: an endpoint that is not closed, buffers as fi_msg(3) requires.
#[inline(always)]
unsafe fn transmit<A: CallAddrs>(
    ep: *const fid_ep,
    iov: &[IoBuf],
    op: SendOp,
    flags: impl FnOnce(&TransferFlags) -> Flags,
) -> isize {
    data(|| {
        // SAFETY: as the caller says.
        let this = unsafe { object_of::<EndpointObject>(ep) };
        let (flags, dest) = (flags(&this.tx), A::find(this, op.dest));
        // SAFETY: the application keeps the buffers as fi_msg(3) requires.
        unsafe { this.enabled()?.send(&SendOp { flags, dest, ..op }, iov) }.map(|()| 0)
    })
}

/// Posts a receive, or looks for a message, with the flags that the endpoint's receives have then.
///
/// # Safety
///
/// As [`transmit`].
#[inline(always)]
unsafe fn receive<A: CallAddrs>(
    ep: *const fid_ep,
    iov: &[IoBuf],
    op: RecvOp,
    flags: impl FnOnce(&TransferFlags) -> Flags,
) -> isize {
    data(|| {
        // SAFETY: as the caller says.
        let this = unsafe { object_of::<EndpointObject>(ep) };
        let (flags, src) = (flags(&this.rx), A::find(this, op.src));
        // SAFETY: the application keeps the buffers as fi_msg(3) requires.
        unsafe { this.enabled()?.recv(&RecvOp { flags, src, ..op }, iov) }.map(|()| 0)
    })
}

/// One buffer.
#[inline(always)]
pub(super) fn one(buf: *const c_void, len: usize) -> [IoBuf; 1] {
    [IoBuf::new(buf.cast(), len)]
}
