//! Inline functions of the C headers over `verbs_context`, with the same fallbacks.
//!
//! A driver built for a modern libibverbs embeds `ibv_context` at the end of a `verbs_context`,
//! which grows at its front: a slot is there when the structure is long enough to reach it and the
//! pointer is not null.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};
use core::ptr;

use libc::{EINVAL, ENOSYS, EOPNOTSUPP};

use crate::bindings::*;
use crate::library::Verbs;

/// Access flags from here on are hints, which [`Verbs::reg_mr`] drops where the library is too old
/// to take them (`IBV_ACCESS_OPTIONAL_RANGE`).
pub const OPTIONAL_ACCESS_RANGE: u32 = 0x3ff0_0000;

/// The extended context around `context`, or null when the driver has none.
///
/// # Safety
///
/// `context` is live.
#[inline]
pub unsafe fn verbs_context_of(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller's promise. The mark says that this is the last field of a `verbs_context`.
    unsafe {
        if (*context).abi_compat as usize != usize::MAX {
            return ptr::null_mut();
        }
        context
            .cast::<u8>()
            .wrapping_sub(offset_of!(verbs_context, context))
            .cast()
    }
}

/// The extended context, if it is long enough to hold the slot at `slot_offset` (from
/// `offset_of!`).
///
/// # Safety
///
/// `context` is live.
#[inline]
pub unsafe fn verbs_context_with(
    context: *mut ibv_context,
    slot_offset: usize,
) -> *mut verbs_context {
    // SAFETY: the caller's promise; `sz` is there in every extended context.
    unsafe {
        let extended = verbs_context_of(context);
        if !extended.is_null() && (*extended).sz < size_of::<verbs_context>() - slot_offset {
            return ptr::null_mut();
        }
        extended
    }
}

/// The function in a slot of the extended context, if there is one.
macro_rules! slot {
    ($context:expr, $name:ident) => {{
        // SAFETY: the caller's promise: a live context. The slot lies within what the driver built.
        unsafe {
            let extended = verbs_context_with($context, offset_of!(verbs_context, $name));
            if extended.is_null() {
                None
            } else {
                (*extended).$name
            }
        }
    }};
}

impl Verbs {
    /// Queries a port in full. The exported `ibv_query_port` writes a shorter structure (it ends
    /// before `port_cap_flags2`), so it is only the fallback, into zeroed memory.
    ///
    /// # Safety
    ///
    /// `context` is live, `attr` can be written.
    pub unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        match slot!(context, query_port) {
            // SAFETY: the driver writes at most the length that it gets.
            Some(query) => unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) },
            // SAFETY: the short structure is a prefix of the full one.
            None => unsafe {
                ptr::write_bytes(attr, 0, 1);
                (self.ibv_query_port)(context, port, attr.cast())
            },
        }
    }

    /// Queries a device's extended attributes; from a driver without them, the basic ones with the
    /// rest zero.
    ///
    /// # Safety
    ///
    /// `context` is live, `attr` can be written.
    pub unsafe fn query_device_ex(
        &self,
        context: *mut ibv_context,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: the caller's promise. A driver may leave what it does not know untouched.
        unsafe { ptr::write_bytes(attr, 0, 1) };
        if let Some(query) = slot!(context, query_device_ex) {
            // SAFETY: no input is a valid input; the driver writes at most the length that it gets.
            let rc = unsafe { query(context, ptr::null(), attr, size_of::<ibv_device_attr_ex>()) };
            if rc != EOPNOTSUPP && rc != ENOSYS {
                return rc;
            }
        }
        // SAFETY: the basic attributes are the first field.
        unsafe {
            ptr::write_bytes(attr, 0, 1);
            (self.ibv_query_device)(context, &raw mut (*attr).orig_attr)
        }
    }

    /// Creates an extended completion queue; null with errno on failure.
    ///
    /// # Safety
    ///
    /// `context` is live, `attr` is complete for its `comp_mask` and names live objects.
    pub unsafe fn create_cq_ex(
        &self,
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex {
        match slot!(context, create_cq_ex) {
            // SAFETY: the caller's promise.
            Some(create) => unsafe { create(context, attr) },
            None => unsupported(),
        }
    }

    /// Creates a queue pair with extended attributes; null with errno on failure.
    ///
    /// # Safety
    ///
    /// `context` is live, `attr` is complete for its `comp_mask` and names live objects.
    pub unsafe fn create_qp_ex(
        &self,
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        // SAFETY: the caller's promise.
        unsafe {
            if (*attr).comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
                // The basic attributes are a prefix of the extended ones.
                return (self.ibv_create_qp)((*attr).pd, attr.cast());
            }
        }
        match slot!(context, create_qp_ex) {
            // SAFETY: the caller's promise.
            Some(create) => unsafe { create(context, attr) },
            None => unsupported(),
        }
    }

    /// Registers memory; null with errno on failure. Access flags in the optional range go through
    /// `ibv_reg_mr_iova2` (which drops what the kernel does not know), or are dropped where the
    /// library lacks it.
    ///
    /// # Safety
    ///
    /// `pd` is live; the range is mapped and stays so while the region is used.
    pub unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr {
        if access & OPTIONAL_ACCESS_RANGE != 0 {
            if let Some(register) = self.ibv_reg_mr_iova2 {
                // SAFETY: the caller's promise; the device's address is the process's own.
                return unsafe { register(pd, addr, length, addr as u64, access) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { (self.ibv_reg_mr)(pd, addr, length, (access & !OPTIONAL_ACCESS_RANGE) as c_int) }
    }

    /// Reads one GID with its type. Returns `EOPNOTSUPP` where the library lacks the call (before
    /// rdma-core 32), `EINVAL` or `ENODATA` where the entry is empty.
    ///
    /// # Safety
    ///
    /// `context` is live, `entry` can be written.
    pub unsafe fn query_gid_ex(
        &self,
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
    ) -> c_int {
        match self._ibv_query_gid_ex {
            // SAFETY: the library writes at most the length that it gets.
            Some(query) => unsafe {
                query(context, port, index, entry, 0, size_of::<ibv_gid_entry>())
            },
            None => EOPNOTSUPP,
        }
    }

    /// Reads all GIDs of all ports that are not empty. Returns how many, or a negative errno
    /// (`-EOPNOTSUPP` where the library lacks the call).
    ///
    /// # Safety
    ///
    /// `context` is live, `entries` has room for `max_entries`.
    pub unsafe fn query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
    ) -> isize {
        match self._ibv_query_gid_table {
            // SAFETY: the library writes at most `max_entries` of the size that it gets.
            Some(query) => unsafe {
                query(context, entries, max_entries, 0, size_of::<ibv_gid_entry>())
            },
            None => -(EOPNOTSUPP as isize),
        }
    }

    /// The number that identifies a shared receive queue on the wire (`EOPNOTSUPP` from most
    /// devices).
    ///
    /// # Safety
    ///
    /// `srq` is live, `number` can be written.
    pub unsafe fn srq_number(&self, srq: *mut ibv_srq, number: *mut u32) -> c_int {
        // SAFETY: the caller's promise; a live queue has a live context.
        let context = unsafe { (*srq).context };
        match slot!(context, get_srq_num) {
            // SAFETY: the caller's promise.
            Some(query) => unsafe { query(srq, number) },
            None => EOPNOTSUPP,
        }
    }

    /// Tells the kernel what will be done with a range of registered memory, such as fetching its
    /// pages (`EOPNOTSUPP` from a driver that does not take advice, `EINVAL` for advice it does not
    /// know).
    ///
    /// # Safety
    ///
    /// `pd` is live; `sg_list` holds `num_sge` entries.
    pub unsafe fn advise_mr(
        &self,
        pd: *mut ibv_pd,
        advice: ib_uverbs_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int {
        if num_sge != 0 && sg_list.is_null() {
            return EINVAL;
        }
        // SAFETY: the caller's promise; a live protection domain has a live context.
        let context = unsafe { (*pd).context };
        match slot!(context, advise_mr) {
            // SAFETY: the caller's promise.
            Some(advise) => unsafe { advise(pd, advice, flags, sg_list, num_sge) },
            None => EOPNOTSUPP,
        }
    }
}

fn unsupported<T>() -> *mut T {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = EOPNOTSUPP };
    ptr::null_mut()
}
