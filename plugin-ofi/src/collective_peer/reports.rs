//! The calls by which the owner reports the ends of messages.

use std::ffi::c_int;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use super::endpoint::PeerEndpointObject;
use super::transfers::number_of;
use crate::abi::{fi_addr_t, fi_cq_err_entry, fi_cq_tagged_entry, fi_ops_transfer_peer, fid_ep};
use crate::fid::object_of;
use crate::guard::value;

pub(super) static REPORTS: fi_ops_transfer_peer = fi_ops_transfer_peer {
    size: size_of::<fi_ops_transfer_peer>(),
    complete: Some(complete),
    comperr: Some(fail),
};

unsafe extern "C" fn complete(
    ep: *mut fid_ep,
    entry: *mut fi_cq_tagged_entry,
    src: fi_addr_t,
) -> isize {
    // SAFETY: as the owner calls us: the endpoint is open, and the entry there or NULL.
    let (endpoint, entry) = unsafe { (object_of::<PeerEndpointObject>(ep), entry.as_ref()) };
    reported(|| {
        let entry = entry.ok_or(Errno::EINVAL)?;
        let number = number_of(entry.op_context).ok_or(Errno::EINVAL)?;
        endpoint
            .carrier()?
            .end_transfer(number, FiAddr(src), Ok(entry.len))
    })
}

unsafe extern "C" fn fail(ep: *mut fid_ep, entry: *mut fi_cq_err_entry) -> isize {
    // SAFETY: as above. The entry's last fields are not read: the owner's may be shorter.
    let (endpoint, entry) = unsafe {
        let entry = (!entry.is_null()).then(|| ((*entry).op_context, (*entry).err));
        (object_of::<PeerEndpointObject>(ep), entry)
    };
    reported(|| {
        let (context, err) = entry.ok_or(Errno::EINVAL)?;
        let number = number_of(context).ok_or(Errno::EINVAL)?;
        endpoint
            .carrier()?
            .end_transfer(number, FiAddr::UNSPEC, Err(errno_of(err)))
    })
}

/// The errno of an error entry. That of a lack of room would be no error of an operation, which its
/// caller would try again for ever.
fn errno_of(err: c_int) -> Errno {
    match err {
        libc::EAGAIN => Errno::EIO,
        1..4096 => Errno(err),
        _ => Errno::EIO,
    }
}

fn reported(report: impl FnOnce() -> Result<(), Errno>) -> isize {
    value(-(Errno::EOTHER.0 as isize), || match report() {
        Ok(()) => 0,
        Err(errno) => -(errno.0 as isize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_an_owner_is_one_of_an_operation() {
        assert_eq!(errno_of(libc::ECONNRESET), Errno::ECONNRESET);
        for none in [0, -libc::ECONNRESET, 4096, c_int::MIN, libc::EAGAIN] {
            assert_eq!(errno_of(none), Errno::EIO, "{none}");
        }
    }
}
