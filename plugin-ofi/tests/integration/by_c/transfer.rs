//! The calls that send and receive (fi_msg(3), fi_tagged(3)). An operation goes by the call that is
//! made for its flags: without any by `fi_send`, injected by `fi_inject`, and so on. `fi_sendmsg`
//! and `fi_recvmsg` take all others.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use ferro_fi::abi::{fi_addr_t, fi_msg, fi_msg_tagged, fid_ep};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind};
use libc::iovec;

/// A message, or a receive, in C's terms.
pub struct Transfer {
    pub kind: MsgKind,
    pub iov: Vec<iovec>,
    pub peer: fi_addr_t,
    pub tag: u64,
    pub ignore: u64,
    pub data: u64,
    pub context: *mut c_void,
    pub flags: Flags,
}

/// Buffers as C has them.
pub fn list(buffers: &[IoBuf]) -> Vec<iovec> {
    let one = |buffer: &IoBuf| iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len,
    };
    buffers.iter().map(one).collect()
}

/// The call with the flags and the buffers of an operation.
#[derive(Clone, Copy)]
enum Call {
    Plain,
    Vector,
    Data,
    Inject,
    InjectData,
    Message,
}

/// Makes a call of a table. Those with tags have parameters more.
macro_rules! make {
    ($t:expr, $ep:expr, $call:ident of $table:ident: $Message:ident,
     sends [$($tag:ident)?], receives [$($matched:ident)*], $way:ident) => {{
        let (t, ep) = ($t, $ep);
        let table = &*(*ep).$table;
        let (at, len) = t.first();
        let (iov, count) = (t.iov.as_ptr(), t.iov.len());
        let message = || $Message {
            msg_iov: iov,
            desc: null_mut(),
            iov_count: count,
            addr: t.peer,
            $($matched: t.$matched,)*
            context: t.context,
            data: t.data,
        };
        make!(@$way $call, table, ep, t, at, len, iov, count, message, [$($tag)?], [$($matched)*])
    }};
    (@send $call:ident, $table:ident, $ep:ident, $t:ident, $at:ident, $len:ident, $iov:ident,
     $count:ident, $message:ident, [$($tag:ident)?], [$($matched:ident)*]) => {
        match $call {
            Call::Plain => $table.send.unwrap()(
                $ep, $at, $len, null_mut(), $t.peer, $($t.$tag,)? $t.context,
            ),
            Call::Vector => $table.sendv.unwrap()(
                $ep, $iov, null_mut(), $count, $t.peer, $($t.$tag,)? $t.context,
            ),
            Call::Data => $table.senddata.unwrap()(
                $ep, $at, $len, null_mut(), $t.data, $t.peer, $($t.$tag,)? $t.context,
            ),
            Call::Inject => $table.inject.unwrap()($ep, $at, $len, $t.peer, $($t.$tag)?),
            Call::InjectData => {
                $table.injectdata.unwrap()($ep, $at, $len, $t.data, $t.peer, $($t.$tag)?)
            }
            Call::Message => {
                let message = $message();
                $table.sendmsg.unwrap()($ep, &raw const message, $t.flags.bits())
            }
        }
    };
    (@receive $call:ident, $table:ident, $ep:ident, $t:ident, $at:ident, $len:ident, $iov:ident,
     $count:ident, $message:ident, [$($tag:ident)?], [$($matched:ident)*]) => {
        match $call {
            Call::Plain => $table.recv.unwrap()(
                $ep, $at, $len, null_mut(), $t.peer, $($t.$matched,)* $t.context,
            ),
            Call::Vector => $table.recvv.unwrap()(
                $ep, $iov, null_mut(), $count, $t.peer, $($t.$matched,)* $t.context,
            ),
            _ => {
                let message = $message();
                $table.recvmsg.unwrap()($ep, &raw const message, $t.flags.bits())
            }
        }
    };
}

impl Transfer {
    /// The first buffer, or none.
    fn first(&self) -> (*mut c_void, usize) {
        let first = self.iov.first();
        first.map_or((null::<c_void>().cast_mut(), 0), |one| {
            (one.iov_base, one.iov_len)
        })
    }

    /// # Safety
    ///
    /// As fi_msg(3) has it: an open endpoint, and buffers that stay valid until the send completes.
    pub unsafe fn send(&self, ep: *mut fid_ep) -> isize {
        const DATA: Flags = Flags::COMPLETION.union(Flags::REMOTE_CQ_DATA);
        const INJECT_DATA: Flags = Flags::INJECT.union(Flags::REMOTE_CQ_DATA);
        let one = self.iov.len() <= 1;
        let call = match self.flags {
            Flags::COMPLETION if one => Call::Plain,
            Flags::COMPLETION => Call::Vector,
            DATA if one => Call::Data,
            Flags::INJECT if one => Call::Inject,
            INJECT_DATA if one => Call::InjectData,
            _ => Call::Message,
        };
        // SAFETY: as the caller says.
        unsafe {
            match self.kind {
                MsgKind::Tagged => make!(
                    self, ep, call of tagged: fi_msg_tagged,
                    sends [tag], receives [tag ignore], send
                ),
                _ => make!(self, ep, call of msg: fi_msg, sends [], receives [], send),
            }
        }
    }

    /// # Safety
    ///
    /// As fi_msg(3) has it: an open endpoint, and buffers that stay valid until the receive
    /// completes.
    pub unsafe fn receive(&self, ep: *mut fid_ep) -> isize {
        let call = match self.flags {
            Flags::COMPLETION if self.iov.len() <= 1 => Call::Plain,
            Flags::COMPLETION => Call::Vector,
            _ => Call::Message,
        };
        // SAFETY: as the caller says.
        unsafe {
            match self.kind {
                MsgKind::Tagged => make!(
                    self, ep, call of tagged: fi_msg_tagged,
                    sends [tag], receives [tag ignore], receive
                ),
                _ => make!(self, ep, call of msg: fi_msg, sends [], receives [], receive),
            }
        }
    }
}
