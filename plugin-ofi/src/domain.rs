//! Domains (fi_domain(3)).

use std::ffi::c_void;
use std::sync::Arc;

use ferrofabric_runtime::fabric::Domain;

use crate::abi::{FI_CLASS_DOMAIN, Roomy, fi_ops, fi_ops_domain, fi_ops_mr, fid_domain};
use crate::fabric::FabricObject;
use crate::fid::{Given, Object, new_fid, ops_of};

/// A domain.
#[repr(C)]
pub(crate) struct DomainObject {
    raw: Given<fid_domain>,
    pub(crate) domain: Arc<dyn Domain>,
    fabric: Arc<FabricObject>,
}

// SAFETY: `fid_domain` comes first and starts with a `fid`.
unsafe impl Object for DomainObject {
    type Raw = fid_domain;
    const CLASS: usize = FI_CLASS_DOMAIN;
}

static FID_OPS: fi_ops = ops_of::<DomainObject>();

impl DomainObject {
    /// What C has of a domain that is open: these calls, and those that register memory.
    pub(crate) fn new(
        domain: Arc<dyn Domain>,
        fabric: Arc<FabricObject>,
        ops: &'static Roomy<fi_ops_domain>,
        mr: &'static Roomy<fi_ops_mr>,
        context: *mut c_void,
    ) -> Arc<Self> {
        Arc::new(Self {
            raw: Given::new(fid_domain {
                fid: new_fid::<Self>(context, &FID_OPS),
                ops: ops.as_ptr(),
                mr: mr.as_ptr(),
            }),
            domain,
            fabric,
        })
    }

    /// As [`FabricObject::version`].
    pub(crate) fn version(&self) -> u32 {
        self.fabric.version()
    }

    /// Whether the application was written for this version of the interface or a newer one.
    pub(crate) fn speaks(&self, version: u32) -> bool {
        self.fabric.speaks(version)
    }
}
