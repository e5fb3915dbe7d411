//! An RDM domain: one port of one device, its protection domain, and the node's shared memory
//! beside it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ferrofabric_av::Resolve;
use ferrofabric_contracts::addr::{AuthKey, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{EpType, Info};
use ferrofabric_contracts::peer::HandsBack;
use ferrofabric_contracts::types::{IoBuf, MrDesc};
use ferrofabric_protocol::wire::sidr::ServiceKind;
use ferrofabric_runtime::domain::{Backend, KeyedParts, Listening, OpenedTransport, Opening};
use ferrofabric_runtime::fabric::{self, MrAttr};
use ferrofabric_shm::{
    Cma, RegionBoard, ShmConfig, ShmTransport, ShownRegions, Unreachable, node_id,
};
use ferrofabric_system::clock::Clock;
use ferrofabric_system::random;

use super::pair::RdmPair;
use super::port::{in_partition, local_port};
use crate::cm::{self, ListenerThread, SidrResolver};
use crate::device::{DeviceContext, EventReader, GidWish};
use crate::endpoint::rdm::{PeerTimeouts, RdmConfig, RdmTransport};
use crate::mr::Access;
use crate::pd::Pd;
use crate::port::LocalPort;
use crate::registration::{DescribedRegion, Registrations, Registry};
use crate::tuning::Tuning;
use crate::workers::VerbWorkers;

/// The backend of an RDM domain.
pub(crate) struct VerbsBackend {
    pub(crate) pd: Arc<Pd>,
    /// The reader of the device's events.
    pub(crate) events: Arc<EventReader>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) port: LocalPort,
    pub(crate) tuning: Tuning,
    settings: Settings,
    pub(crate) info: Info,
    /// The clock of the RDM endpoints.
    pub(crate) clock: Clock,
    /// The threads that make, connect and destroy the queue pairs of lanes.
    workers: VerbWorkers,
    /// The thread that answers requests for endpoints by socket address; it starts with the first
    /// endpoint.
    listeners: Mutex<Weak<ListenerThread>>,
    /// The regions that the processes of this node reach by themselves.
    board: Arc<RegionBoard>,
}

impl VerbsBackend {
    /// Opens a port of a device.
    ///
    /// # Errors
    ///
    /// When the device or its port is not there or not usable; the error names it.
    pub(crate) fn open(
        (device, port): (&str, u8),
        info: &Info,
        settings: &Settings,
        clock: &Clock,
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
            clock: clock.clone(),
            workers: VerbWorkers::new(settings.control_threads as usize),
            listeners: Mutex::default(),
            board: RegionBoard::new(ShmConfig::from_settings(settings).cma != Cma::Off),
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
    pub(crate) fn key_of(&self, opening: &Opening<'_>) -> Option<AuthKey> {
        opening.auth_key.or(self.info.domain.auth_key)
    }

    /// The port as an endpoint uses it that has this key, or no key.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the port is no member of the key's partition.
    pub(crate) fn port_for(
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
}

impl Backend for VerbsBackend {
    type Transport = RdmPair;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_transport(&self, opening: &Opening<'_>) -> Result<OpenedTransport<RdmPair>> {
        let key = self.key_of(opening);
        let port = self.port_for(opening, key)?;
        let (transport, name) = self.open_drawn(opening, key, port)?;
        Ok(OpenedTransport {
            transport,
            name,
            keyed: None,
        })
    }

    fn listen(&self, at: SocketAddr, name: &NativeAddr) -> Result<Box<dyn Listening>> {
        let host = cm::host(&self.port)?;
        self.listeners()?.listen(&host, at.port(), name)
    }

    fn resolver(&self) -> Option<Arc<dyn Resolve>> {
        let resolver = SidrResolver {
            host: cm::host(&self.port).ok()?,
            service: self.service(),
            timeout: self.settings.resolve_timeout.0?,
        };
        Some(Arc::new(resolver))
    }

    fn completion_levels(&self) -> Flags {
        Flags::DELIVERY_COMPLETE | Flags::MATCH_COMPLETE | Flags::FENCE
    }

    unsafe fn register(&self, buf: IoBuf, access: Flags) -> Result<Arc<dyn fabric::Mr>> {
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
        let region = unsafe { self.registry.describe(buf, rights)? };
        Ok(Arc::new(DomainRegion(region)))
    }

    fn show_region(&self, number: usize, key: u64, attr: &MrAttr<'_>) {
        self.board.show(number, key, attr);
    }

    fn hide_region(&self, number: usize) {
        self.board.hide(number);
    }

    fn is_region_in_use(&self, number: usize) -> bool {
        self.board.is_in_use(number)
    }
}

impl KeyedParts for VerbsBackend {
    fn open_part(
        &self,
        opening: &Opening<'_>,
        key: AuthKey,
        drawn: u64,
    ) -> Result<(RdmPair, NativeAddr)> {
        let port = LocalPort {
            // The P_Key as peers have it in their addresses.
            pkey: key.in_addresses().pkey(),
            ..self.port_for(opening, Some(key))?
        };
        self.open_paired(opening, drawn, Some(key), port)
    }

    fn random(&self) -> Result<u64> {
        random::number()
    }
}

/// The names that an endpoint tries until one is free on its node. That another one has drawn the
/// same 32 bits is rare; as many times in a row it does not happen.
const NAMES: u32 = 4;

impl VerbsBackend {
    /// Opens both transports of an endpoint, with numbers that are free.
    fn open_drawn(
        &self,
        opening: &Opening<'_>,
        key: Option<AuthKey>,
        port: LocalPort,
    ) -> Result<(RdmPair, NativeAddr)> {
        let mut tries = 1;
        loop {
            match self.open_paired(opening, random::number()?, key, port) {
                Err(error) if error.errno() == Errno::EADDRINUSE && tries < NAMES => tries += 1,
                opened => return opened,
            }
        }
    }

    /// Opens both transports of an endpoint, whose address has the numbers drawn for it. Without a
    /// key, so has its Q_Key.
    fn open_paired(
        &self,
        opening: &Opening<'_>,
        drawn: u64,
        key: Option<AuthKey>,
        port: LocalPort,
    ) -> Result<(RdmPair, NativeAddr)> {
        let qkey = key.map_or_else(|| NativeAddr::drawn_qkey(drawn), AuthKey::qkey);
        let datagrams = RdmTransport::open_datagrams(&self.pd, &port, qkey)?;
        let queue_pair = Some(port.address(datagrams.number(), qkey));
        // An application that wants remote peers alone gets no peer through shared memory
        // (fi_getinfo(3), FI_REMOTE_COMM).
        let has_shm = self.settings.shm && self.info.caps.contains(Flags::LOCAL_COMM);
        let name = NativeAddr::of_new(node_id(), queue_pair, has_shm, drawn);
        let shm = match has_shm {
            true => {
                let config = ShmConfig {
                    unreachable: Unreachable::HandBack,
                    shown: Some(ShownRegions {
                        board: self.board.clone(),
                        rights: opening.unseen_rights,
                    }),
                    ..ShmConfig::from_settings(&self.settings)
                };
                let number = ShmTransport::TRANSPORT;
                Some(ShmTransport::open_named(config, name, number)?)
            }
            false => None,
        };
        let config = RdmConfig {
            port,
            events: self.events.clone(),
            tuning: self.tuning,
            timeouts: PeerTimeouts {
                peer_timeout: self.settings.peer_timeout,
                reconnect_timeout: self.settings.reconnect_timeout.0,
            },
            auth_key: key,
            clock: self.clock.clone(),
            verbs: self.workers.of_endpoint(),
        };
        let mut verbs = RdmTransport::open(
            Registrations::new(&self.registry),
            datagrams,
            &name,
            &config,
            opening.wait,
        )?;
        if opening.counts_sends {
            verbs.count_sends();
        }
        if let Some(shm) = &shm {
            opening.wait.add(shm.wait_fd())?;
        }
        Ok((RdmPair::new(verbs, shm), name))
    }
}

/// Registered memory.
struct DomainRegion(DescribedRegion);

impl fabric::Mr for DomainRegion {
    fn desc(&self) -> MrDesc {
        self.0.desc()
    }

    fn key(&self) -> u64 {
        self.0.rkey().into()
    }

    fn device_key(&self) -> Option<u32> {
        Some(self.0.rkey())
    }
}
