//! The address of an endpoint (fi_cm(3)). There are no connections.

use std::ffi::{c_int, c_void};

use ferrofabric_contracts::error::Errno;

use super::collectives::group;
use super::object::EndpointObject;
use crate::abi::{Roomy, fi_ops_cm, fid_ep, fid_t};
use crate::fid::object_of;
use crate::guard::{Refused, control};
use crate::memory::copy_address;
use crate::unsupported::Unsupported;

pub(super) static OPS: Roomy<fi_ops_cm> = Roomy::new(fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(Unsupported::ENOSYS),
    getname: Some(getname),
    getpeer: Some(Unsupported::ENOSYS),
    connect: Some(Unsupported::ENOSYS),
    listen: Some(Unsupported::ENOSYS),
    accept: Some(Unsupported::ENOSYS),
    reject: Some(Unsupported::ENOSYS),
    shutdown: Some(shutdown),
    join: Some(group::join),
});

unsafe extern "C" fn getname(ep: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    control(|| {
        // SAFETY: as C calls us: an endpoint of ours, not closed.
        let object = unsafe { object_of::<EndpointObject>(ep.cast::<fid_ep>()) };
        let format = object.domain.domain.info().addr_format;
        let name = object
            .enabled()?
            .address()
            .to_bytes(format)
            .map_err(|_| Errno::EADDRNOTAVAIL)?;
        // SAFETY: the length says how much room there is.
        unsafe { copy_address(&name, addr, addrlen) }?;
        Ok::<_, Refused>(())
    })
}

/// An endpoint without connections has none to shut down.
unsafe extern "C" fn shutdown(_ep: *mut fid_ep, _flags: u64) -> c_int {
    0
}
