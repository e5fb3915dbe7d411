//! Shared receive contexts of other providers (fi_peer(3)), by which endpoints receive.
//!
//! The contract:
//!
//! - The owner allocates the `fid_peer_srx`, its functions and the receive entries. The context and
//!   the functions exist for longer than the context that is opened here (`fi_srx_context` with
//!   `FI_PEER`), and that one for longer than the endpoints that are bound to it. The structure
//!   `fi_peer_srx_context` is read in that call alone.
//! - Messages are announced (`get_msg`, `get_tag`, `queue_msg`, `queue_tag`) where the owner drives
//!   this provider: in `fi_cq_read(cq, NULL, 0)` of an imported queue, and `fi_cntr_read` of an
//!   imported counter, to which the endpoint is bound. The lock of the domain is free meanwhile, so
//!   the owner's functions may call this provider. Announcements of the same endpoint within such a
//!   call do nothing.
//! - An entry with a receive is this provider's until its end is in the owner's queue; then
//!   `free_entry` gives it back. A queued entry is the owner's, until the owner passes it to
//!   `start_msg` or `start_tag`; after `discard_msg` and `discard_tag` it is not looked at again,
//!   and the owner frees it.
//! - A message for which the owner has no entry is kept, and is announced again. So is one for
//!   which the owner hands out the entry of another message, before that entry has come back.
//! - An entry that `queue_msg` or `queue_tag` refuses goes back, unless the owner has started or
//!   dropped it in that call, or closed the endpoint: then it is as if the call had succeeded.
//! - The owner is informed of sources (`foreach_unspec_addr`) at the end of calls that insert
//!   addresses or set IDs, and where it drives this provider. Of insertions that end with events it
//!   is informed there alone.
//! - Calls that insert addresses, and `fi_close` of an endpoint, wait for other threads that
//!   announce messages. So the caller holds no lock that the owner's functions take.
//! - `fi_close` of an endpoint ends the transfers into buffers of entries, and then frees these
//!   entries. Queued ones stay the owner's; to start or discard one then is an error.
//! - Entries are freed where the owner reads the queue: an owner that reads counters alone gets
//!   them back when the endpoint is closed.

mod ended;
mod entries;
mod owner;
mod peer;
mod receives;

use std::ffi::c_void;

use ferrofabric_contracts::error::{Errno, Error};

use crate::abi::{FI_CLASS_SRX_CTX, FI_PEER, fi_ops, fi_rx_attr, fid, fid_ep, read_as_of};
use crate::domain::DomainObject;
use crate::fid::{Object, SharedObject, ops_of};
use crate::guard::Refused;
use crate::no_calls;
pub(crate) use ended::{EndedReceive, ReceiveReport};
use owner::SrxOwner;
pub(crate) use receives::{BoundReceives, ForeignReceives};

/// A shared receive context of another provider.
pub(crate) struct SrxObject {
    owner: SrxOwner,
    domain: SharedObject<DomainObject>,
}

// SAFETY: `fid_ep` starts with the `fid`.
unsafe impl Object for SrxObject {
    type Raw = fid_ep;
    const CLASS: usize = FI_CLASS_SRX_CTX;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_ep {
        fid_ep {
            fid,
            ops: no_calls::EP.as_ptr(),
            cm: no_calls::CM.as_ptr(),
            // Receives are posted at the owner.
            msg: no_calls::MSG.as_ptr(),
            tagged: no_calls::TAGGED.as_ptr(),
            rma: no_calls::RMA.as_ptr(),
            atomic: no_calls::ATOMIC.as_ptr(),
            collective: no_calls::COLLECTIVE.as_ptr(),
        }
    }
}

static FID_OPS: fi_ops = ops_of::<SrxObject>();

impl SrxObject {
    /// Opens a shared receive context, that of another provider.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: it is to be this provider's own. `EINVAL`: the domain has automatic progress,
    /// endpoints that post receives to the device, or keys; or the owner's context is incomplete.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL. With `FI_PEER`, `context` is as fi_peer(3) has it.
    pub(crate) unsafe fn open(
        domain: SharedObject<DomainObject>,
        attr: *const fi_rx_attr,
        context: *const c_void,
    ) -> Result<Self, Refused> {
        // SAFETY: as the caller says.
        let attr = unsafe { read_as_of(domain.version(), attr) }.ok_or(Errno::ENOSYS)?;
        if attr.op_flags & FI_PEER == 0 {
            return Err(Errno::ENOSYS.into());
        }
        let object = "a shared receive context of another provider";
        domain.check_imports(object)?;
        if !domain.has_remote_access() {
            let error = Error::new(Errno::EINVAL, "import", object);
            let mend = "open a domain of RDM endpoints without keys of address vectors";
            return Err(error.mend(mend).into());
        }
        // SAFETY: as the caller says.
        let owner = unsafe { SrxOwner::of(context.cast(), peer::OPS.as_ptr()) }?;
        Ok(Self { owner, domain })
    }

    /// Whether it was opened on that domain.
    pub(crate) fn is_of(&self, domain: &DomainObject) -> bool {
        std::ptr::eq(&**self.domain, domain)
    }
}
