//! Domains (fi_domain(3)).

use std::sync::Arc;

use ferrofabric_runtime::fabric::Domain;

use crate::fabric::FabricObject;
use crate::fid::SharedObject;

/// A domain.
pub(crate) struct DomainObject {
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) fabric: SharedObject<FabricObject>,
}

impl DomainObject {
    /// As [`FabricObject::version`].
    pub(crate) fn version(&self) -> u32 {
        self.fabric.version()
    }

    /// Whether the application was written for this version of the interface or a newer one.
    pub(crate) fn speaks(&self, version: u32) -> bool {
        self.fabric.speaks(version)
    }
}
