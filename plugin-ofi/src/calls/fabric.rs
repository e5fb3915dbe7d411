//! The calls of a fabric (fi_fabric(3)), and the one that opens it.

use std::ffi::{c_int, c_void};

use ferrofabric_contracts::error::Errno;

use crate::abi::{
    FI_CLASS_FABRIC, Roomy, fi_eq_attr, fi_fabric_attr, fi_info, fi_ops, fi_ops_fabric, fid,
    fid_domain, fid_eq, fid_fabric,
};
use crate::cntr::CntrObject;
use crate::collective_peer::PeerDomainObject;
use crate::cq::CqObject;
use crate::eq::EqObject;
use crate::fabric::FabricObject;
use crate::fid::{Object, hand_out, object_if, object_of, open_on, ops_of};
use crate::guard::{Refused, control};
use crate::unsupported::Unsupported;
use crate::wait::{self, Waitable};

static OPS: Roomy<fi_ops_fabric> = Roomy::new(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain),
    passive_ep: Some(Unsupported::ENOSYS),
    eq_open: Some(eq_open),
    wait_open: Some(Unsupported::ENOSYS),
    trywait: Some(try_wait),
    domain2: Some(domain2),
});

// SAFETY: `fid_fabric` starts with the `fid`.
unsafe impl Object for FabricObject {
    type Raw = fid_fabric;
    const CLASS: usize = FI_CLASS_FABRIC;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_fabric {
        fid_fabric {
            fid,
            ops: OPS.as_ptr(),
            api_version: self.api_version,
        }
    }
}

static FID_OPS: fi_ops = ops_of::<FabricObject>();

/// `fi_fabric`, after libfabric has found us by the provider's name.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    control(|| {
        let api_version = match attr.is_null() {
            true => 0,
            // SAFETY: they are there; libfabric adds the version for applications whose structure
            // has none.
            false => unsafe { (*attr).api_version },
        };
        // SAFETY: C gives room for the pointer.
        unsafe { hand_out(FabricObject { api_version }, context, fabric) };
        Ok::<_, Errno>(())
    })
}

unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as C calls us.
    unsafe { domain2(fabric, info, domain, 0, context) }
}

unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the fabric is one of ours and open; the info is as fi_domain(3) has it; there is room
    // for the pointer.
    unsafe {
        let version = object_of::<FabricObject>(fabric).version();
        if PeerDomainObject::is_described(version, info) {
            return open_on(fabric, context, domain, |fabric| {
                PeerDomainObject::open(fabric, info, flags, context)
            });
        }
    }
    // SAFETY: as above.
    let open = |fabric| unsafe { super::domain::open(fabric, info, flags, context) };
    // SAFETY: as above.
    unsafe { open_on(fabric, context, domain, open) }
}

unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the fabric is one of ours and open; attributes are there or NULL; there is room for
    // the pointer.
    unsafe {
        open_on(fabric, context, eq, |fabric| {
            EqObject::open(fabric, attr, context)
        })
    }
}

/// `fi_trywait`.
unsafe extern "C" fn try_wait(
    _fabric: *mut fid_fabric,
    fids: *mut *mut fid,
    count: c_int,
) -> c_int {
    control(|| {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if fids.is_null() && count != 0 {
            return Err(Refused(Errno::EINVAL));
        }
        for at in 0..count {
            // SAFETY: the list has so many entries, objects of ours that are not closed.
            let tried = unsafe { try_wait_of(*fids.add(at)) };
            tried?;
        }
        Ok(())
    })
}

/// # Safety
///
/// `fid` is that of an object that is not closed, or NULL.
unsafe fn try_wait_of(fid: *mut fid) -> Result<(), Refused> {
    if fid.is_null() {
        return Err(Refused(Errno::EINVAL));
    }
    // SAFETY: as the caller says.
    let (cq, cntr, eq) = unsafe {
        (
            object_if::<CqObject>(fid),
            object_if::<CntrObject>(fid),
            object_if::<EqObject>(fid),
        )
    };
    let waitable = (cq.map(|cq| -> &dyn Waitable { cq }))
        .or_else(|| cntr.map(|cntr| -> &dyn Waitable { cntr }))
        .or_else(|| eq.map(|eq| -> &dyn Waitable { eq }));
    wait::try_wait(waitable.ok_or(Errno::EINVAL)?)
}
