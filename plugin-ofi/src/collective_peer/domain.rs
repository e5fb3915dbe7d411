//! The domain of a collective peer, which has no transport.

use std::ffi::c_void;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_system::locks::Mutex;

use super::offer::{has_transfers, offer};
use crate::abi::{FI_PEER, fi_info, fi_peer_domain_context};
use crate::fabric::FabricObject;
use crate::fid::SharedObject;
use crate::guard::Refused;
use crate::info::{UsedAddresses, wanted};
use crate::memory::check_size;

/// A domain.
pub(crate) struct PeerDomainObject {
    fabric: SharedObject<FabricObject>,
    /// Memory of messages that were not over when their endpoints closed.
    parked: Mutex<Vec<Box<[u8]>>>,
}

impl PeerDomainObject {
    /// Whether an info describes such a domain.
    ///
    /// # Safety
    ///
    /// As [`open`](Self::open), of `info`.
    pub(crate) unsafe fn is_described(version: u32, info: *const fi_info) -> bool {
        // SAFETY: as the caller says.
        let info = unsafe { wanted(version, info, UsedAddresses::BOTH) };
        info.is_ok_and(|info| has_transfers(&info))
    }

    /// Opens the domain. That of the owner is not called: nothing is registered here.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no `FI_PEER`, no domain of an owner, or it is another offer's info.
    ///
    /// # Safety
    ///
    /// `info` is one that discovery gave, perhaps changed, as long as it is in the version of the
    /// fabric. `context` is as fi_peer(3) has it, or NULL.
    pub(crate) unsafe fn open(
        fabric: SharedObject<FabricObject>,
        info: *const fi_info,
        flags: u64,
        context: *const c_void,
    ) -> Result<Self, Refused> {
        let refused = |mend: &'static str| {
            let error = Error::new(Errno::EINVAL, "open", "domain of a collective peer");
            Err(Refused::from(error.mend(mend)))
        };
        if flags != FI_PEER {
            return refused("it imports the domain of its owner: set FI_PEER, and nothing else");
        }
        // SAFETY: as the caller says.
        unsafe {
            let context: *const fi_peer_domain_context = context.cast();
            check_size(context)?;
            if (*context).domain.is_null() {
                return refused("the context has no domain");
            }
            let info = wanted(fabric.version(), info, UsedAddresses::BOTH)?;
            if offer(&info).is_none() {
                return refused("pass the info that fi_getinfo returns");
            }
        }
        Ok(Self {
            fabric,
            parked: Mutex::default(),
        })
    }

    /// The version of the interface that the application was written for.
    pub(super) fn version(&self) -> u32 {
        self.fabric.version()
    }

    /// Keeps memory that the owner may still write to.
    pub(super) fn park(&self, memory: impl Iterator<Item = Box<[u8]>>) {
        self.parked.lock().extend(memory);
    }
}
