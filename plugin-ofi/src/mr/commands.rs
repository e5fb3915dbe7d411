//! The calls on a region: binding, enabling, refreshing, and raw keys.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::Flags;
use libc::iovec;

use super::{MrObject, REMOTE_RIGHTS};
use crate::abi::{FI_ENABLE, FI_GET_RAW_MR, FI_REFRESH, fi_mr_map_raw, fi_mr_raw_attr, fid};
use crate::cntr::CntrObject;
use crate::endpoint::object::EndpointObject;
use crate::fid::{object_of, share_if};
use crate::guard::{Refused, control};
use crate::memory::buffers;

/// Bytes of a key, raw or not.
const KEY_BYTES: usize = size_of::<u64>();

/// `fi_mr_bind`. Binding to an endpoint changes nothing, whatever the flags: all endpoints of a
/// domain serve its regions.
pub(super) unsafe extern "C" fn bind(mr: *mut fid, to: *mut fid, flags: u64) -> c_int {
    control(|| {
        if to.is_null() {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: as C calls us: objects of ours, not closed.
        let (this, endpoint, counter) = unsafe {
            (
                object_of::<MrObject>(mr.cast()),
                share_if::<EndpointObject>(to),
                share_if::<CntrObject>(to),
            )
        };
        if let Some(endpoint) = endpoint {
            return match endpoint.is_of(&this.domain) {
                true => Ok(()),
                false => Err(Errno::EDOMAIN.into()),
            };
        }
        let counter = counter.ok_or(Errno::ENOSYS)?;
        let counted = Flags::from_bits_retain(flags);
        if counted.is_empty() || !REMOTE_RIGHTS.contains(counted) {
            return Err(Refused(Errno::EBADFLAGS));
        }
        this.mr.count_remote(&counter.cntr, counted)?;
        let mut counters = this.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.push(counter);
        Ok(())
    })
}

/// `fi_mr_enable`, `fi_mr_refresh`, `fi_mr_raw_attr`.
pub(super) unsafe extern "C" fn command(mr: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    control(|| {
        // SAFETY: as C calls us: a region of ours, not closed, and the structure that belongs to
        // the command, or NULL.
        unsafe {
            let this = object_of::<MrObject>(mr.cast());
            match command {
                FI_ENABLE => Ok(()),
                FI_REFRESH => this.refresh(arg.cast()),
                FI_GET_RAW_MR => this.raw_key(arg.cast()),
                _ => Err(Refused(Errno::ENOSYS)),
            }
        }
    })
}

/// The beginning of `fi_mr_modify`: a word of flags, and the first fields of attributes.
#[repr(C)]
pub(super) struct Refresh {
    flags: u64,
    iov: *const iovec,
    count: usize,
}

impl MrObject {
    /// The pages of these ranges have changed. Shared memory uses the pages that are there at each
    /// operation, and so does a device with on-demand paging. For another device the memory is
    /// registered anew.
    ///
    /// # Safety
    ///
    /// `request` is there, with as many ranges as it says, or NULL.
    unsafe fn refresh(&self, request: *const Refresh) -> Result<(), Refused> {
        // SAFETY: as the caller says.
        let request = unsafe { request.as_ref() }.ok_or(Errno::EINVAL)?;
        if request.flags != 0 {
            return Err(Errno::EBADFLAGS.into());
        }
        // SAFETY: as the caller says.
        let ranges = unsafe { buffers(request.iov, request.count) };
        if !ranges.iter().all(|range| self.contains(range)) {
            return Err(Error::new(Errno::EINVAL, "refresh", "region")
                .mend("each range lies in a buffer of the region")
                .into());
        }
        Ok(self.mr.refresh()?)
    }

    /// # Safety
    ///
    /// `request` is there or NULL, and its room is as long as it says.
    unsafe fn raw_key(&self, request: *const fi_mr_raw_attr) -> Result<(), Refused> {
        // SAFETY: as the caller says, for all that follows.
        unsafe {
            let request = request.as_ref().ok_or(Errno::EINVAL)?;
            let size = request.key_size.as_mut().ok_or(Errno::EINVAL)?;
            if request.flags != 0 {
                return Err(Errno::EBADFLAGS.into());
            }
            let room = std::mem::replace(size, KEY_BYTES);
            if room < KEY_BYTES {
                return Err(Errno::ETOOSMALL.into());
            }
            if request.raw_key.is_null() {
                return Err(Errno::EINVAL.into());
            }
            let bytes = self.key.to_le_bytes();
            request.raw_key.copy_from(bytes.as_ptr(), KEY_BYTES);
            if let Some(base) = request.base_addr.as_mut() {
                *base = self.first_place;
            }
        }
        Ok(())
    }
}

/// `fi_mr_map_raw`: a raw key is the key.
///
/// # Safety
///
/// `request` is there or NULL, and its key is as long as it says.
pub(crate) unsafe fn map_raw_key(request: *const fi_mr_map_raw) -> Result<(), Errno> {
    // SAFETY: as the caller says, for all that follows.
    unsafe {
        let request = request.as_ref().ok_or(Errno::EINVAL)?;
        if request.flags != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if request.raw_key.is_null() || request.key.is_null() || request.key_size != KEY_BYTES {
            return Err(Errno::EINVAL);
        }
        let bytes = request.raw_key.cast::<[u8; KEY_BYTES]>().read_unaligned();
        request.key.write_unaligned(u64::from_le_bytes(bytes));
    }
    Ok(())
}
