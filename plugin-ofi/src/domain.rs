//! Domains (fi_domain(3)).

mod imported;

use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::MrMode;
use ferrofabric_contracts::info::{AV_AUTH_KEY, EpType, Progress};
use ferrofabric_runtime::fabric::Domain;

use crate::fabric::FabricObject;
use crate::fid::SharedObject;
pub(crate) use imported::{ImportedDomain, OwnersRegion};

/// A domain.
pub(crate) struct DomainObject {
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) fabric: SharedObject<FabricObject>,
    /// Opened for collective operations.
    pub(crate) collective: bool,
    /// The domain of another provider, which registers memory, too.
    pub(crate) imported: Option<ImportedDomain>,
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

    /// Whether the domain has the authorization keys of address vectors.
    pub(crate) fn is_keyed(&self) -> bool {
        self.domain.info().domain.auth_key_size == AV_AUTH_KEY
    }

    /// Whether its endpoints may have collective operations.
    pub(crate) fn has_collectives(&self) -> bool {
        self.collective
    }

    /// Whether its endpoints have one-sided operations.
    pub(crate) fn has_remote_access(&self) -> bool {
        self.domain.info().ep.ep_type == EpType::Rdm && !self.is_keyed()
    }

    /// Whether this domain works with an object of another provider.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the domain has automatic progress. Their owner drives this provider, and may wait.
    /// Or it has collective operations, whose messages come by its own queues.
    pub(crate) fn check_imports(&self, object: &str) -> Result<(), Error> {
        if self.has_collectives() {
            let error = Error::new(Errno::EINVAL, "import", object);
            return Err(error.mend("open a domain without FI_COLLECTIVE"));
        }
        match self.domain.info().domain.data_progress {
            Progress::Auto => {
                let error = Error::new(Errno::EINVAL, "import", object);
                Err(error.mend("ask for a domain with FI_PROGRESS_MANUAL"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the application has a duty of memory registration (fi_mr(3)), by its name or by the
    /// old name of several.
    pub(crate) fn requires(&self, duty: MrMode) -> bool {
        let mode = self.domain.info().domain.mr_mode;
        mode.contains(duty) || mode.contains(MrMode::BASIC)
    }
}
