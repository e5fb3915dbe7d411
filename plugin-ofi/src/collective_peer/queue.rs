//! The completion queue of a collective peer. Entries go to that of its owner; a read of none makes
//! progress.

use std::ffi::c_void;
use std::sync::{Arc, Weak};

use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_system::locks::Mutex;

use super::carrier::Carrier;
use super::domain::PeerDomainObject;
use crate::abi::{
    FI_CLASS_CQ, FI_PEER, Roomy, fi_cq_attr, fi_ops, fi_ops_cq, fi_peer_cq_context, fid, fid_cq,
};
use crate::cq::owners::OwnersCq;
use crate::cq::strerror;
use crate::fid::{Object, SharedObject, object_of, ops_of};
use crate::guard::{Refused, data};
use crate::unsupported::Unsupported;

/// A queue of which only the owner's is read.
pub(super) struct PeerQueueObject {
    owner: Arc<OwnersCq>,
    /// The endpoints that it drives.
    carriers: Mutex<Vec<Weak<Carrier>>>,
    domain: SharedObject<PeerDomainObject>,
}

// SAFETY: `fid_cq` starts with the `fid`.
unsafe impl Object for PeerQueueObject {
    type Raw = fid_cq;
    const CLASS: usize = FI_CLASS_CQ;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_cq {
        let ops = OPS.as_ptr();
        fid_cq { fid, ops }
    }
}

static FID_OPS: fi_ops = ops_of::<PeerQueueObject>();

static OPS: Roomy<fi_ops_cq> = Roomy::new(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(drive),
    readfrom: Some(Unsupported::ENOSYS),
    readerr: Some(Unsupported::ENOSYS),
    sread: Some(Unsupported::ENOSYS),
    sreadfrom: Some(Unsupported::ENOSYS),
    signal: Some(Unsupported::ENOSYS),
    strerror: Some(strerror),
});

impl PeerQueueObject {
    /// # Errors
    ///
    /// `EINVAL`: no `FI_PEER`, or the context has no queue with its operations.
    ///
    /// # Safety
    ///
    /// `context` is as fi_peer(3) has it, or NULL.
    pub(super) unsafe fn open(
        domain: SharedObject<PeerDomainObject>,
        attr: Option<&fi_cq_attr>,
        context: *const fi_peer_cq_context,
    ) -> Result<Self, Refused> {
        if attr.is_none_or(|attr| attr.flags & FI_PEER == 0) {
            let error = Error::new(
                Errno::EINVAL,
                "open",
                "completion queue of a collective peer",
            );
            let mend = "it imports that of its owner: set FI_PEER";
            return Err(error.mend(mend).into());
        }
        Ok(Self {
            // SAFETY: as the caller says.
            owner: Arc::new(unsafe { OwnersCq::of(context) }?),
            carriers: Mutex::default(),
            domain,
        })
    }

    /// The owner's queue.
    pub(super) fn owner(&self) -> &Arc<OwnersCq> {
        &self.owner
    }

    /// Drives an endpoint from now on.
    pub(super) fn add(&self, carrier: &Arc<Carrier>) {
        let mut carriers = self.carriers.lock();
        carriers.retain(|other| other.strong_count() != 0);
        carriers.push(Arc::downgrade(carrier));
    }

    /// Whether it was opened on that domain.
    pub(super) fn is_of(&self, domain: &PeerDomainObject) -> bool {
        std::ptr::eq(&**self.domain, domain)
    }
}

/// `fi_cq_read`, of no entries: all are the owner's.
unsafe extern "C" fn drive(cq: *mut fid_cq, _buf: *mut c_void, count: usize) -> isize {
    data(|| {
        if count != 0 {
            return Err(OpError::Failed(Errno::ENOSYS));
        }
        // SAFETY: as C calls us.
        let queue = unsafe { object_of::<PeerQueueObject>(cq) };
        let carriers = queue.carriers.lock().clone();
        for carrier in carriers.iter().filter_map(Weak::upgrade) {
            carrier.drive();
        }
        Ok(0)
    })
}
