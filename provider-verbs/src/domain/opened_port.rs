//! One port of a device that a domain has opened: its protection domain and registrations, and all
//! else that the domains of RDM and of DGRAM endpoints share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ferrofabric_av::Resolve;
use ferrofabric_contracts::addr::{AuthKey, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{EpType, Info};
use ferrofabric_contracts::types::MrDesc;
use ferrofabric_protocol::wire::sidr::ServiceKind;
use ferrofabric_runtime::domain::{Listening, Opening};
use ferrofabric_runtime::fabric::{self, KeptKey, LostKeyReport, MrAttr};

use super::port::{in_partition, local_port};
use crate::cm::{self, ListenerThread, SidrResolver};
use crate::device::{DeviceContext, EventReader, GidWish};
use crate::mr::Access;
use crate::pd::Pd;
use crate::port::LocalPort;
use crate::registration::{DescribedRegion, Registry};
use crate::tuning::Tuning;

/// A port that a domain has opened.
pub(crate) struct OpenedPort {
    pub(super) pd: Arc<Pd>,
    /// The reader of the device's events.
    pub(super) events: Arc<EventReader>,
    pub(super) registry: Arc<Registry>,
    pub(super) port: LocalPort,
    pub(super) tuning: Tuning,
    pub(super) settings: Settings,
    pub(super) info: Info,
    /// The thread that answers requests for endpoints by socket address; it starts with the first
    /// endpoint.
    listeners: Mutex<Weak<ListenerThread>>,
}

impl OpenedPort {
    /// Opens a port of a device.
    ///
    /// # Errors
    ///
    /// When the device or its port is not there or not usable; the error names it.
    pub(crate) fn open(
        (device, port): (&str, u8),
        info: &Info,
        settings: &Settings,
    ) -> Result<Self> {
        let context = DeviceContext::open(device)?;
        let mut port = local_port(&context, port, GidWish::of(info), settings)?;
        if let Some(key) = info.domain.auth_key {
            port = in_partition(&context, port, key)?;
        }
        let pd = Pd::allocate(&context)?;
        let events = EventReader::start(&context)?;
        let attributes = context.port(port.number)?;
        let tuning = Tuning::of(context.limits(), context.quirks(), settings).on_port(&attributes);
        let registry = Arc::new(Registry::new(&pd, settings)?);
        Ok(Self {
            pd,
            events,
            registry,
            port,
            tuning,
            settings: settings.clone(),
            info: info.clone(),
            listeners: Mutex::default(),
        })
    }

    fn service(&self) -> ServiceKind {
        match self.info.ep.ep_type {
            EpType::Dgram => ServiceKind::Dgram,
            _ => ServiceKind::Rdm,
        }
    }

    fn listeners(&self) -> Result<Arc<ListenerThread>> {
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = listeners.upgrade() {
            return Ok(there);
        }
        let new = ListenerThread::start(self.service())?;
        *listeners = Arc::downgrade(&new);
        Ok(new)
    }

    /// The key of an endpoint: its own, or the domain's.
    pub(super) fn key_of(&self, opening: &Opening<'_>) -> Option<AuthKey> {
        opening.auth_key.or(self.info.domain.auth_key)
    }

    /// The port as an endpoint uses it that has this key, or no key.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the port is no member of the key's partition.
    pub(super) fn port_for(
        &self,
        opening: &Opening<'_>,
        key: Option<AuthKey>,
    ) -> Result<LocalPort> {
        let port = match key {
            None => self.port,
            Some(key) => in_partition(self.pd.context(), self.port, key)?,
        };
        Ok(port.for_class(opening.tclass))
    }

    pub(super) fn listen(&self, at: SocketAddr, name: &NativeAddr) -> Result<Box<dyn Listening>> {
        let host = cm::host(&self.port)?;
        self.listeners()?.listen(&host, at.port(), name)
    }

    pub(super) fn resolver(&self) -> Option<Arc<dyn Resolve>> {
        let resolver = SidrResolver {
            host: cm::host(&self.port).ok()?,
            service: self.service(),
            timeout: self.settings.resolve_timeout.0?,
        };
        Some(Arc::new(resolver))
    }

    /// # Safety
    ///
    /// As [`fabric::Domain::register_region`].
    ///
    /// # Errors
    ///
    /// As there.
    pub(super) unsafe fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn fabric::Mr>> {
        let access = attr.access;
        let mut rights = Access::empty();
        if access.intersects(Flags::RECV | Flags::READ) {
            rights |= Access::LOCAL_WRITE;
        }
        // A right of peers is one that the application has requested. A rendezvous message that its
        // receiver reads gets a region of its own.
        if access.contains(Flags::REMOTE_READ) {
            rights |= Access::REMOTE_READ;
        }
        if access.contains(Flags::REMOTE_WRITE) {
            rights |= Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        }
        // SAFETY: the caller's promise.
        let region = unsafe {
            self.registry
                .describe(attr.memory, rights, attr.pages_may_change)?
        };
        let Some(region) = region else {
            tracing::warn!(
                "no device reaches {} bytes at {:#x}, whose pages may change without a report: set \
                 FERRO_MR_WATCH=off if the application leaves them as they are",
                attr.memory.len,
                attr.memory.addr
            );
            return Ok(Arc::new(fabric::Unregistered));
        };
        Ok(Arc::new(DomainRegion(region)))
    }
}

/// Registered memory.
struct DomainRegion(DescribedRegion);

impl fabric::Mr for DomainRegion {
    fn desc(&self) -> MrDesc {
        self.0.desc()
    }

    fn key(&self) -> u64 {
        self.0.rkey().unwrap_or(0).into()
    }

    fn device_key(&self) -> Option<u32> {
        self.0.rkey()
    }

    fn keep_device_key(&self) -> Option<Box<dyn KeptKey>> {
        let kept = self.0.keep_rkey()?;
        Some(Box::new(kept))
    }

    fn on_lost_key(&self, lost: LostKeyReport) {
        self.0.on_lost_key(lost);
    }

    fn refresh(&self) -> Result<()> {
        self.0.refresh()
    }
}
