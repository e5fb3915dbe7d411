//! Options of an endpoint (fi_endpoint(3)), and cancelling.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_runtime::fabric::MIN_MULTI_RECV;

use super::object::EndpointObject;
use crate::abi::{
    FI_OPT_ENDPOINT, FI_OPT_INJECT_MSG_SIZE, FI_OPT_INJECT_RMA_SIZE, FI_OPT_INJECT_TAGGED_SIZE,
    FI_OPT_MAX_MSG_SIZE, FI_OPT_MAX_RMA_SIZE, FI_OPT_MAX_TAGGED_SIZE, FI_OPT_MIN_MULTI_RECV, Roomy,
    fi_ops_ep, fid_ep, fid_t,
};
use crate::fid::object_of;
use crate::guard::{Refused, control, data};
use crate::unsupported::Unsupported;

/// The size below which a multi-receive buffer is done was not chosen.
pub(super) const UNSET: u64 = u64::MAX;

/// An option that there is not (`FI_ENOPROTOOPT`).
const UNKNOWN: Errno = Errno(libc::ENOPROTOOPT);

pub(super) static OPS: Roomy<fi_ops_ep> = Roomy::new(fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(Unsupported::ENOSYS),
    rx_ctx: Some(Unsupported::ENOSYS),
    rx_size_left: Some(Unsupported::ENOSYS),
    tx_size_left: Some(Unsupported::ENOSYS),
});

unsafe extern "C" fn cancel(ep: fid_t, context: *mut c_void) -> isize {
    data(|| {
        // SAFETY: as C calls us: an endpoint of ours, not closed.
        let this = unsafe { object_of::<EndpointObject>(ep.cast::<fid_ep>()) };
        if this.receives.get().is_some() {
            // The provider that has the receives cancels them.
            return Err(OpError::Failed(Errno::ENOSYS));
        }
        match this.enabled()?.cancel(context as u64) {
            // Too late: the receive completes, or has (fi_cancel(3) calls that no error).
            Ok(()) | Err(OpError::Failed(Errno::ENOENT)) => Ok(0),
            Err(error) => Err(error),
        }
    })
}

unsafe extern "C" fn getopt(
    ep: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us: an endpoint of ours, not closed.
        let this = unsafe { object_of::<EndpointObject>(ep.cast::<fid_ep>()) };
        let info = this.domain.domain.info();
        let has_remote_access = this.domain.has_remote_access();
        let size = match (level, name) {
            (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) if this.has_multi_receives() => {
                this.min_multi_recv()?
            }
            (FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE) => info.ep.max_msg_size,
            (FI_OPT_ENDPOINT, FI_OPT_MAX_RMA_SIZE) if has_remote_access => info.ep.max_msg_size,
            (FI_OPT_ENDPOINT, FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE) => {
                info.tx.inject_size
            }
            (FI_OPT_ENDPOINT, FI_OPT_INJECT_RMA_SIZE) if has_remote_access => info.tx.inject_size,
            _ => return Err(Refused(UNKNOWN)),
        };
        if value.is_null() || len.is_null() {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: both are there, and the length says how much room there is.
        unsafe {
            let room = len.replace(size_of::<usize>());
            if room < size_of::<usize>() {
                return Err(Errno::ETOOSMALL.into());
            }
            value.cast::<usize>().write_unaligned(size);
        }
        Ok(())
    })
}

unsafe extern "C" fn setopt(
    ep: fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us: an endpoint of ours, not closed.
        let this = unsafe { object_of::<EndpointObject>(ep.cast::<fid_ep>()) };
        let is_known = (level, name) == (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV);
        if !is_known || !this.has_multi_receives() {
            return Err(Refused(UNKNOWN));
        }
        if value.is_null() || len != size_of::<usize>() {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: the value has that many bytes.
        let bytes = unsafe { value.cast::<usize>().read_unaligned() };
        this.min_multi_recv.store(bytes as u64, Ordering::Relaxed);
        match this.endpoint.get() {
            Some(endpoint) => Ok(endpoint.set_min_multi_recv(bytes)?),
            None => Ok(()),
        }
    })
}

impl EndpointObject {
    fn has_multi_receives(&self) -> bool {
        self.domain.domain.info().caps.contains(Flags::MULTI_RECV)
    }

    fn min_multi_recv(&self) -> Result<usize, Refused> {
        match (
            self.endpoint.get(),
            self.min_multi_recv.load(Ordering::Relaxed),
        ) {
            (Some(endpoint), _) => Ok(endpoint.min_multi_recv()?),
            (None, UNSET) => Ok(MIN_MULTI_RECV),
            (None, bytes) => Ok(bytes as usize),
        }
    }
}
