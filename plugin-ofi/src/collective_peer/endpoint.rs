//! The endpoint of a collective peer: opened with the transfers of its owner, bound, enabled.

use std::sync::{Arc, OnceLock};

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_system::locks::Mutex;

use super::carrier::Carrier;
use super::domain::PeerDomainObject;
use super::offer::has_transfers;
use super::queue::PeerQueueObject;
use super::transfers::OwnersTransfers;
use super::vector::PeerVectorObject;
use crate::abi::{fi_info, fi_peer_transfer_context, fid};
use crate::eq::EqObject;
use crate::fid::{SharedObject, share_if};
use crate::guard::Refused;
use crate::info::{UsedAddresses, wanted};

/// An endpoint.
pub(super) struct PeerEndpointObject {
    /// There once it is enabled.
    carrier: OnceLock<Arc<Carrier>>,
    setup: Mutex<PeerSetup>,
    domain: SharedObject<PeerDomainObject>,
}

/// The objects that it is opened with, and bound to so far.
struct PeerSetup {
    /// Until it is enabled.
    transfers: Option<OwnersTransfers>,
    vector: Option<SharedObject<PeerVectorObject>>,
    queue: Option<SharedObject<PeerQueueObject>>,
    events: Option<SharedObject<EqObject>>,
}

impl PeerEndpointObject {
    /// # Errors
    ///
    /// `EINVAL`: the info has no `FI_PEER_TRANSFER`; those of [`OwnersTransfers::of`].
    ///
    /// # Safety
    ///
    /// The info is one that discovery gave, as long as in the version of the fabric; the context is
    /// as fi_peer(3) has it, or NULL.
    pub(super) unsafe fn open(
        domain: SharedObject<PeerDomainObject>,
        info: *const fi_info,
        flags: u64,
        context: *mut fi_peer_transfer_context,
    ) -> Result<Self, Refused> {
        if flags != 0 {
            return Err(Errno::EBADFLAGS.into());
        }
        // SAFETY: as the caller says.
        let info = unsafe { wanted(domain.version(), info, UsedAddresses::BOTH) }?;
        if !has_transfers(&info) {
            let error = Error::new(Errno::EINVAL, "open", "endpoint of a collective peer");
            return Err(error
                .mend("it works by transfers: set FI_PEER_TRANSFER")
                .into());
        }
        // SAFETY: as the caller says.
        let transfers = unsafe { OwnersTransfers::of(domain.version(), context) }?;
        Ok(Self {
            carrier: OnceLock::new(),
            setup: Mutex::new(PeerSetup {
                transfers: Some(transfers),
                vector: None,
                queue: None,
                events: None,
            }),
            domain,
        })
    }

    /// Binds an object.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is none of this domain, or one of its kind is bound. `EOPBADSTATE`: the
    /// endpoint is enabled.
    ///
    /// # Safety
    ///
    /// `object` is that of an open object.
    pub(super) unsafe fn bind(&self, object: *mut fid) -> Result<(), Errno> {
        let setup = &mut *self.setup.lock();
        if self.carrier.get().is_some() {
            return Err(Errno::EOPBADSTATE);
        }
        // SAFETY: as the caller says.
        unsafe {
            if let Some(vector) = share_if::<PeerVectorObject>(object) {
                return put(&mut setup.vector, vector.is_of(&self.domain), vector);
            }
            if let Some(queue) = share_if::<PeerQueueObject>(object) {
                // One queue gets the entries of both directions, in one call or in two.
                if (setup.queue.as_ref()).is_some_and(|bound| Arc::ptr_eq(bound, &queue)) {
                    return Ok(());
                }
                return put(&mut setup.queue, queue.is_of(&self.domain), queue);
            }
            let events = share_if::<EqObject>(object).ok_or(Errno::EINVAL)?;
            put(&mut setup.events, true, events)
        }
    }

    pub(super) fn enable(&self) -> Result<(), Refused> {
        let mut guard = self.setup.lock();
        let setup = &mut *guard;
        if self.carrier.get().is_some() {
            return Ok(());
        }
        let missing = |errno, what| Error::new(errno, "enable", "endpoint").mend(what);
        if setup.vector.is_none() {
            return Err(missing(Errno::EINVAL, "bind an address vector first").into());
        }
        let queue = setup.queue.as_ref();
        let queue = queue.ok_or_else(|| missing(Errno::ENOCQ, "bind a completion queue first"))?;
        let transfers = setup.transfers.take().ok_or(Errno::EOPBADSTATE)?;
        let carrier = Carrier::new(transfers, queue.owner().clone(), setup.events.clone());
        // The owner may report the end of a message as soon as the queue drives it.
        let _ = self.carrier.set(carrier.clone());
        queue.add(&carrier);
        drop(guard);
        carrier.start();
        Ok(())
    }

    /// Ends its operations.
    pub(super) fn close(&self) {
        if let Some(carrier) = self.carrier.get() {
            self.domain.park(carrier.close().into_iter());
        }
    }

    /// Its operations. They outlive the endpoint, which the owner may close in its functions.
    ///
    /// # Errors
    ///
    /// `EOPBADSTATE`: it is not enabled.
    pub(super) fn carrier(&self) -> Result<Arc<Carrier>, Errno> {
        self.carrier.get().cloned().ok_or(Errno::EOPBADSTATE)
    }

    /// The address vector that it is bound to.
    pub(super) fn vector(&self) -> Option<SharedObject<PeerVectorObject>> {
        self.setup.lock().vector.clone()
    }
}

/// Binds an object in its place.
fn put<T>(place: &mut Option<T>, is_of_domain: bool, object: T) -> Result<(), Errno> {
    if !is_of_domain || place.is_some() {
        return Err(Errno::EINVAL);
    }
    *place = Some(object);
    Ok(())
}
