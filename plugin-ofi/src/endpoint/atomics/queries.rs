//! The calls that return which operations there are.

use std::ffi::c_int;

use ferrofabric_contracts::atomics::AtomicForm;
use ferrofabric_contracts::error::Errno;

use super::kinds;
use crate::abi::{
    FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC, FI_TAGGED, fi_atomic_attr, fi_datatype, fi_op, fid_domain,
    fid_ep,
};
use crate::domain::DomainObject;
use crate::fid::object_of;
use crate::guard::{Refused, control};

pub(super) unsafe extern "C" fn writevalid(
    _ep: *mut fid_ep,
    datatype: fi_datatype,
    operator: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as C calls us.
    unsafe { valid(AtomicForm::Base, datatype, operator, count) }
}

pub(super) unsafe extern "C" fn readwritevalid(
    _ep: *mut fid_ep,
    datatype: fi_datatype,
    operator: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as C calls us.
    unsafe { valid(AtomicForm::Fetch, datatype, operator, count) }
}

pub(super) unsafe extern "C" fn compwritevalid(
    _ep: *mut fid_ep,
    datatype: fi_datatype,
    operator: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: as C calls us.
    unsafe { valid(AtomicForm::Compare, datatype, operator, count) }
}

/// Whether there is an operation, and how many elements it has at most.
///
/// # Safety
///
/// There is room for the number, or the pointer to it is NULL.
unsafe fn valid(
    form: AtomicForm,
    datatype: fi_datatype,
    operator: fi_op,
    count: *mut usize,
) -> c_int {
    control(|| {
        let (datatype, _) = kinds(form, datatype, operator).ok_or(Errno::EOPNOTSUPP)?;
        // A caller that wants no number may give NULL.
        // SAFETY: the caller's contract.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = datatype.max_count();
        }
        Ok::<_, Refused>(())
    })
}

/// `fi_query_atomic`.
///
/// # Safety
///
/// As C calls it: a domain that is open, and room for the attributes, or NULL.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    operator: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    control(|| {
        // SAFETY: the caller's contract.
        let (domain, attr) = unsafe { (object_of::<DomainObject>(domain), attr.as_mut()) };
        let form = match flags & !FI_TAGGED {
            0 => AtomicForm::Base,
            FI_FETCH_ATOMIC => AtomicForm::Fetch,
            FI_COMPARE_ATOMIC => AtomicForm::Compare,
            both if both == FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC => {
                return Err(Errno::EINVAL.into());
            }
            _ => return Err(Errno::EBADFLAGS.into()),
        };
        let attr = attr.ok_or(Errno::EINVAL)?;
        // No operation is on a tagged receive's buffer.
        if !domain.has_remote_access() || flags & FI_TAGGED != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (datatype, _) = kinds(form, datatype, operator).ok_or(Errno::EOPNOTSUPP)?;
        *attr = fi_atomic_attr {
            count: datatype.max_count(),
            size: datatype.size(),
        };
        Ok::<_, Refused>(())
    })
}
