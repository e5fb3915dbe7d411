//! Authorization keys of an address vector (fi_av(3)).

use std::ffi::{c_int, c_void};

use ferrofabric_contracts::error::Errno;

use super::object::av_object;
use crate::abi::{fi_addr_t, fid_av};
use crate::fi_addr::{given, returned};
use crate::guard::{Refused, control};
use crate::memory::{copy_cut, key_bytes};

/// The handle of a key, which is in the address vector from now on.
pub(super) unsafe extern "C" fn insert_auth_key(
    av: *mut fid_av,
    auth_key: *const c_void,
    auth_key_size: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
) -> c_int {
    control(|| {
        if flags != 0 || fi_addr.is_null() {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: as C calls us.
        let (av, key) = unsafe { (&av_object(av).av, key_bytes(auth_key, auth_key_size)?) };
        let handle = av.insert_auth_key(&key)?;
        // SAFETY: there is room for it.
        unsafe { fi_addr.write(returned(handle)) };
        Ok::<_, Refused>(())
    })
}

/// The key of a handle, or of an address.
pub(super) unsafe extern "C" fn lookup_auth_key(
    av: *mut fid_av,
    addr: fi_addr_t,
    auth_key: *mut c_void,
    auth_key_size: *mut usize,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        let key = unsafe { av_object(av) }.av.lookup_auth_key(given(addr))?;
        // SAFETY: the length says how much room there is.
        unsafe { copy_cut(&key.to_bytes(), auth_key, auth_key_size) }?;
        Ok::<_, Refused>(())
    })
}
