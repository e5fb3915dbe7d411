//! The owner's functions of a completion queue, which C calls.
//!
//! Both always return 0: the owner's queue has room, and a completion of nothing is counted.

use std::ffi::c_void;

use ferrofabric_contracts::error::Errno;

use super::late::end_late;
use super::mailbox::EndedCall;
use super::receives::end;
use super::scope::with_owner;
use crate::abi::{Roomy, fi_addr_t, fi_cq_err_entry, fi_ops_cq_owner, fid_peer_cq};
use crate::guard::value;

pub(super) static OPS: Roomy<fi_ops_cq_owner> = Roomy::new(fi_ops_cq_owner {
    size: size_of::<fi_ops_cq_owner>(),
    write: Some(write),
    writeerr: Some(write_error),
});

unsafe extern "C" fn write(
    cq: *mut fid_peer_cq,
    context: *mut c_void,
    flags: u64,
    len: usize,
    _buf: *mut c_void,
    data: u64,
    _tag: u64,
    _src: fi_addr_t,
) -> isize {
    let call = EndedCall {
        context: context.addr() as u64,
        flags,
        len,
        data,
        errno: 0,
        prov_errno: 0,
    };
    // SAFETY: as C calls us.
    unsafe { end_of(cq, call) }
}

unsafe extern "C" fn write_error(cq: *mut fid_peer_cq, error: *const fi_cq_err_entry) -> isize {
    // SAFETY: as C calls us. Fields behind these are newer than the oldest libfabric.
    let Some(error) = (unsafe { error.as_ref() }) else {
        return 0;
    };
    let call = EndedCall {
        context: error.op_context.addr() as u64,
        flags: error.flags,
        len: error.len,
        data: error.data,
        errno: match error.err {
            errno if errno > 0 => errno,
            _ => Errno::EIO.0,
        },
        prov_errno: error.prov_errno,
    };
    // SAFETY: as above.
    unsafe { end_of(cq, call) }
}

/// # Safety
///
/// `cq` is ours, a copy of it, or NULL.
#[inline(always)]
unsafe fn end_of(cq: *mut fid_peer_cq, call: EndedCall) -> isize {
    value(0, || {
        if cq.is_null() {
            return 0;
        }
        // SAFETY: as the caller says.
        let context = unsafe { (*cq).fid.context };
        with_owner(
            |block| (block.address() == context).then_some(()),
            |block, owner, ()| {
                end(block, owner, &call);
            },
        )
        .unwrap_or_else(|| end_late(context, call));
        0
    })
}
