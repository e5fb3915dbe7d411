//! Post, poll, arm and memory windows: the calls that go through `ibv_context.ops`.
//!
//! Each is one load of a function pointer and a call. libibverbs fills every slot that a driver
//! leaves empty, so an empty slot is not expected; it gives `EOPNOTSUPP` and not a jump to nowhere.
//!
//! Errors are errno values as the driver returns them: positive from most, negative from some
//! (Soft-RoCE: `-ENOMEM`).

use core::ffi::c_int;
use core::ptr;

use libc::{EINVAL, EOPNOTSUPP, EPERM};

use crate::bindings::*;

/// Posts a list of send requests. On an error `*bad_wr` is the first request that was not taken.
///
/// # Safety
///
/// `qp` is a live queue pair; `wr` heads a list, ended by a null `next`, of requests whose
/// `sg_list` holds `num_sge` entries and, where the operation needs them, a live address handle or
/// window; `bad_wr` can be written. The memory that the entries name stays valid (and for reads and
/// atomics unaliased) until the request completes, or, when inline, until this returns.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair has a live context; the rest is the caller's promise.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of receive requests. On an error `*bad_wr` is the first request that was not taken.
///
/// # Safety
///
/// As for [`ibv_post_send`]; the memory is the device's to write until the request completes.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of receive requests to a shared receive queue. On an error `*bad_wr` is the first
/// one not taken.
///
/// # Safety
///
/// As for [`ibv_post_recv`], with a live shared receive queue.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post) => post(srq, wr, bad_wr),
            None => {
                *bad_wr = wr;
                EOPNOTSUPP
            }
        }
    }
}

/// Takes up to `num_entries` completions. Returns how many, or a negative number when the queue
/// itself failed.
///
/// # Safety
///
/// `cq` is a live completion queue; `wc` has room for `num_entries` (not negative) entries.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live completion queue has a live context.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, num_entries, wc),
            None => -EOPNOTSUPP,
        }
    }
}

/// Requests an event at the next completion, or with `solicited_only` not 0 at the next solicited
/// or failed one.
///
/// # Safety
///
/// `cq` is a live completion queue.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(arm) => arm(cq, solicited_only),
            None => EOPNOTSUPP,
        }
    }
}

/// Allocates a memory window; null with errno on failure.
///
/// # Safety
///
/// `pd` is a live protection domain.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: a live protection domain has a live context; errno is this thread's own.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc) => alloc(pd, kind),
            None => {
                *libc::__errno_location() = EOPNOTSUPP;
                ptr::null_mut()
            }
        }
    }
}

/// Frees a memory window.
///
/// # Safety
///
/// `mw` is live and is not used after a success.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a live window has a live context.
    unsafe {
        match (*(*mw).context).ops.dealloc_mw {
            Some(dealloc) => dealloc(mw),
            None => EOPNOTSUPP,
        }
    }
}

/// Posts a bind of a type 1 window, with the header's checks: the type, a region where there is a
/// range, one protection domain.
///
/// # Safety
///
/// `qp` and `mw` are live; `bind` can be read and written, and its region is live or null.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's promise; a live window has a live context.
    unsafe {
        let info = &(*bind).bind_info;
        if (*mw).type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return EINVAL;
        }
        if info.mr.is_null() && (info.addr != 0 || info.length != 0) {
            return EINVAL;
        }
        if !info.mr.is_null() && (*mw).pd != (*info.mr).pd {
            return EPERM;
        }
        match (*(*mw).context).ops.bind_mw {
            Some(post) => post(qp, mw, bind),
            None => EOPNOTSUPP,
        }
    }
}

/// The key that a type 2 window gets at its next bind: the low 8 bits count, the rest names the
/// window.
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & 0xffff_ff00) | (rkey.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::ibv_inc_rkey;

    #[test]
    fn a_windows_key_counts_in_its_low_byte_only() {
        assert_eq!(ibv_inc_rkey(0x1234_5600), 0x1234_5601);
        assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
        assert_eq!(ibv_inc_rkey(0xffff_ffff), 0xffff_ff00);
    }
}
