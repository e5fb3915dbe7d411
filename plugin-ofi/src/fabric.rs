//! Fabrics (fi_fabric(3)): what domains are opened on. There is nothing behind one.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ferrofabric_contracts::error::Errno;

use crate::abi::{
    FI_CLASS_FABRIC, Roomy, fi_eq_attr, fi_fabric_attr, fi_info, fi_ops, fi_ops_fabric, fid_domain,
    fid_eq, fid_fabric,
};
use crate::domain::DomainObject;
use crate::eq::EqObject;
use crate::fid::{Object, hand_out, new_fid, ops_of, share};
use crate::guard::control;
use crate::unsupported::Unsupported;

/// A fabric.
#[repr(C)]
pub(crate) struct FabricObject {
    raw: UnsafeCell<fid_fabric>,
    /// The version of the interface that the application was written for; 0: the newest.
    api_version: u32,
}

// SAFETY: `raw` is C's to use; nothing of ours reads it after the object is made.
unsafe impl Send for FabricObject {}
// SAFETY: as above.
unsafe impl Sync for FabricObject {}

// SAFETY: `fid_fabric` comes first and starts with a `fid`.
unsafe impl Object for FabricObject {
    type Raw = fid_fabric;
    const CLASS: usize = FI_CLASS_FABRIC;
}

static FID_OPS: fi_ops = ops_of::<FabricObject>();

impl FabricObject {
    /// The version of the interface that the application was written for: greater than any where
    /// that is the newest.
    pub(crate) fn version(&self) -> u32 {
        match self.api_version {
            0 => u32::MAX,
            version => version,
        }
    }

    /// Whether the application was written for this version of the interface or a newer one.
    pub(crate) fn speaks(&self, version: u32) -> bool {
        self.version() >= version
    }
}

static OPS: Roomy<fi_ops_fabric> = Roomy::new(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain),
    passive_ep: Some(Unsupported::ENOSYS),
    eq_open: Some(eq_open),
    wait_open: Some(Unsupported::ENOSYS),
    trywait: Some(crate::wait::try_wait),
    domain2: Some(domain2),
});

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
        let object = Arc::new(FabricObject {
            raw: UnsafeCell::new(fid_fabric {
                fid: new_fid::<FabricObject>(context, &FID_OPS),
                ops: OPS.as_ptr(),
                api_version,
            }),
            api_version,
        });
        // SAFETY: C gives room for the pointer.
        unsafe { hand_out(object, fabric) };
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
    control(|| {
        // SAFETY: the fabric is one of ours and open; the info is as fi_domain(3) has it; there is room for the pointer.
        unsafe {
            let object = DomainObject::open(share(fabric), info, flags, context)?;
            hand_out(object, domain);
        }
        Ok::<_, crate::guard::Refused>(())
    })
}

unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    control(|| {
        // SAFETY: the fabric is one of ours and open; attributes are there or NULL; there is room for the pointer.
        unsafe { hand_out(EqObject::open(share(fabric), attr, context)?, eq) };
        Ok::<_, crate::guard::Refused>(())
    })
}
