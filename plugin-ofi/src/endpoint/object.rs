//! The object of an endpoint, and the flags that its operations go by.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ferrofabric_contracts::addr::AuthKey;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::{Flags, Order, Rights};
use ferrofabric_runtime::fabric::Endpoint;

use crate::av::imported::ImportedAv;
use crate::av::object::AvObject;
use crate::cntr::CntrObject;
use crate::collective::endpoint::Collectives;
use crate::cq::CqObject;
use crate::domain::DomainObject;
use crate::eq::EqObject;
use crate::fid::SharedObject;
use crate::srx::{ForeignReceives, SrxObject};

/// An endpoint.
pub(crate) struct EndpointObject {
    /// There once it is enabled.
    pub(super) endpoint: OnceLock<Arc<dyn Endpoint>>,
    /// Its receives, where another provider has them.
    pub(super) receives: OnceLock<Arc<ForeignReceives>>,
    /// Its collective operations, where it has some.
    pub(super) collectives: OnceLock<Arc<Collectives>>,
    pub(super) tx: TransferFlags,
    pub(super) rx: TransferFlags,
    pub(super) setup: Mutex<Setup>,
    pub(super) min_multi_recv: AtomicU64,
    pub(super) domain: SharedObject<DomainObject>,
    /// The addresses of its calls, where its address vector is imported.
    pub(super) imported_av: OnceLock<Arc<ImportedAv>>,
}

/// The flags that operations one way go by.
pub(super) struct TransferFlags {
    /// The endpoint's (`op_flags`), for calls that take none.
    pub(super) op_flags: AtomicU64,
    /// `COMPLETION` unless the queue was bound for selective completion.
    always: AtomicU64,
}

/// The objects to which the endpoint is bound so far.
#[derive(Default)]
pub(super) struct Setup {
    pub(super) av: Option<SharedObject<AvObject>>,
    pub(super) tx_cq: Option<SharedObject<CqObject>>,
    pub(super) rx_cq: Option<SharedObject<CqObject>>,
    /// The context of another provider by which it receives.
    pub(super) srx: Option<SharedObject<SrxObject>>,
    pub(super) counters: BoundCounters,
    /// Gets no event: each failure of such an endpoint is the failure of an operation.
    pub(super) eq: Option<SharedObject<EqObject>>,
    pub(super) caps: Flags,
    /// The rights of peers by way of it.
    pub(super) remote_rights: Rights,
    /// Where it is to be found, in domains whose addresses are those of sockets.
    pub(super) source: Option<SocketAddr>,
    pub(super) auth_key: Option<AuthKey>,
    /// The endpoint's own; without one the domain, as it was opened, has it.
    pub(super) tclass: u32,
    pub(super) msg_order: Order,
}

/// The counters to which the endpoint is bound so far, each for one kind of operation. One counter
/// may count several.
#[derive(Clone, Default)]
pub(super) struct BoundCounters {
    pub(super) send: Option<SharedObject<CntrObject>>,
    pub(super) recv: Option<SharedObject<CntrObject>>,
    pub(super) read: Option<SharedObject<CntrObject>>,
    pub(super) write: Option<SharedObject<CntrObject>>,
    pub(super) remote_read: Option<SharedObject<CntrObject>>,
    pub(super) remote_write: Option<SharedObject<CntrObject>>,
}

impl EndpointObject {
    /// The endpoint, once it is enabled.
    #[inline(always)]
    pub(super) fn enabled(&self) -> Result<&dyn Endpoint, OpError> {
        match self.endpoint.get() {
            Some(endpoint) => Ok(endpoint.as_ref()),
            None => Err(OpError::Failed(Errno::EOPBADSTATE)),
        }
    }

    /// Whether it was opened on that domain.
    pub(crate) fn is_of(&self, domain: &DomainObject) -> bool {
        std::ptr::eq(&**self.domain, domain)
    }

    /// Its collective operations, once it is enabled.
    pub(crate) fn collectives(&self) -> Option<&Arc<Collectives>> {
        self.collectives.get()
    }

    /// Whether a send with these flags, or with those of the endpoint, has a completion.
    pub(crate) fn reports_sends(&self, flags: Option<u64>) -> bool {
        let flags = flags.map_or_else(|| self.tx.flags(), |flags| self.tx.with(flags));
        flags.contains(Flags::COMPLETION)
    }

    /// Bytes of a message at most.
    pub(crate) fn max_msg_size(&self) -> usize {
        self.domain.domain.info().ep.max_msg_size
    }

    /// The objects that it is bound to.
    pub(super) fn setup(&self) -> MutexGuard<'_, Setup> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EndpointObject {
    /// No thread that reads a queue drives the endpoint any more. Entries of another provider go
    /// back after the transfers into their buffers have ended.
    fn drop(&mut self) {
        if let Some(collectives) = self.collectives.get() {
            collectives.close();
        }
        let Some(receives) = self.receives.take() else {
            return;
        };
        let Some(closed) = receives.close() else {
            return;
        };
        if let Some(cq) = &self.setup().rx_cq {
            cq.forget(&receives);
        }
        drop(self.endpoint.take());
        drop(closed);
    }
}

impl TransferFlags {
    pub(super) fn new(op_flags: Flags) -> Self {
        Self {
            op_flags: AtomicU64::new(op_flags.bits()),
            always: AtomicU64::new(Flags::COMPLETION.bits()),
        }
    }

    /// Flags of a call that takes none.
    #[inline(always)]
    pub(super) fn flags(&self) -> Flags {
        self.with(self.op_flags.load(Ordering::Relaxed))
    }

    /// The same of a tagged receive: by default only untagged ones are multi-receives
    /// (fi_tagged(3), `FI_TAGGED_MULTI_RECV`).
    #[inline(always)]
    pub(super) fn tagged_flags(&self) -> Flags {
        self.flags() - Flags::MULTI_RECV
    }

    /// Flags of a call that takes these.
    #[inline(always)]
    pub(super) fn with(&self, flags: u64) -> Flags {
        Flags::from_bits_retain(flags | self.always.load(Ordering::Relaxed))
    }

    pub(super) fn bind(&self, selective: bool) {
        let always = match selective {
            true => Flags::empty(),
            false => Flags::COMPLETION,
        };
        self.always.store(always.bits(), Ordering::Relaxed);
    }
}
