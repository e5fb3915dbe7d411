//! Fabrics (fi_fabric(3)): what domains are opened on. There is nothing behind one.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::{FI_CLASS_FABRIC, Roomy, fi_ops, fi_ops_fabric, fid_fabric};
use crate::fid::{Given, Object, new_fid, ops_of};

/// A fabric.
#[repr(C)]
pub(crate) struct FabricObject {
    raw: Given<fid_fabric>,
    /// The version of the interface that the application was written for; 0: the newest.
    api_version: u32,
}

// SAFETY: `fid_fabric` comes first and starts with a `fid`.
unsafe impl Object for FabricObject {
    type Raw = fid_fabric;
    const CLASS: usize = FI_CLASS_FABRIC;
}

static FID_OPS: fi_ops = ops_of::<FabricObject>();

impl FabricObject {
    /// A fabric with these calls, for an application that was written for that version of the
    /// interface; 0: the newest.
    pub(crate) fn new(
        api_version: u32,
        ops: &'static Roomy<fi_ops_fabric>,
        context: *mut c_void,
    ) -> Arc<Self> {
        Arc::new(Self {
            raw: Given::new(fid_fabric {
                fid: new_fid::<Self>(context, &FID_OPS),
                ops: ops.as_ptr(),
                api_version,
            }),
            api_version,
        })
    }

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
