//! An RDM domain: one port of one device, its protection domain, and the near transports beside it.

use std::net::SocketAddr;
use std::sync::Arc;

use ferrofabric_av::Resolve;
use ferrofabric_contracts::addr::{AuthKey, NativeAddr};
use ferrofabric_contracts::error::{Errno, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::peer::{HandsBack, Paired};
use ferrofabric_runtime::domain::{Backend, KeyedParts, Listening, OpenedTransport, Opening};
use ferrofabric_runtime::fabric::{self, MrAttr};
use ferrofabric_shm::node_id;
use ferrofabric_system::clock::Clock;
use ferrofabric_system::random;

use super::opened_port::OpenedPort;
use crate::connect::ControlQueuePair;
use crate::endpoint::rdm::{self, PeerTimeouts, RdmConfig, RdmTransport};
use crate::near::{NearDomain, OwnShm};
use crate::port::LocalPort;
use crate::registration::Registrations;
use crate::workers::VerbWorkers;

/// The backend of an RDM domain.
pub(crate) struct VerbsBackend<N: NearDomain = OwnShm> {
    verbs: RdmPort,
    near: N,
}

/// The part of an RDM domain that all near transports have beside them.
struct RdmPort {
    opened: OpenedPort,
    clock: Clock,
    /// The threads that make, connect and destroy the queue pairs of lanes.
    workers: VerbWorkers,
}

/// Both transports of an endpoint.
type RdmPair<N> = Paired<RdmTransport, <N as NearDomain>::Transport>;

impl<N: NearDomain> VerbsBackend<N> {
    /// The backend over a port that is opened.
    ///
    /// # Errors
    ///
    /// When a resource of the near transports is missing; the error names it.
    pub(crate) fn over(opened: OpenedPort, clock: &Clock) -> Result<Self> {
        const { assert!(N::Transport::TRANSPORT != rdm::TRANSPORT) }
        Ok(Self {
            near: N::open(&opened.info, &opened.settings)?,
            verbs: RdmPort {
                workers: VerbWorkers::new(opened.settings.control_threads as usize),
                clock: clock.clone(),
                opened,
            },
        })
    }
}

impl<N: NearDomain> Backend for VerbsBackend<N> {
    type Transport = RdmPair<N>;

    fn info(&self) -> &Info {
        &self.verbs.opened.info
    }

    fn open_transport(&self, opening: &Opening<'_>) -> Result<OpenedTransport<RdmPair<N>>> {
        let key = self.verbs.opened.key_of(opening);
        let port = self.verbs.opened.port_for(opening, key)?;
        let (transport, name) = self.open_drawn(opening, key, port)?;
        Ok(OpenedTransport {
            transport,
            name,
            keyed: None,
        })
    }

    fn listen(&self, at: SocketAddr, name: &NativeAddr) -> Result<Box<dyn Listening>> {
        self.verbs.opened.listen(at, name)
    }

    fn resolver(&self) -> Option<Arc<dyn Resolve>> {
        self.verbs.opened.resolver()
    }

    fn completion_levels(&self) -> Flags {
        let of_verbs = Flags::DELIVERY_COMPLETE | Flags::MATCH_COMPLETE | Flags::FENCE;
        of_verbs & self.near.completion_levels()
    }

    unsafe fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn fabric::Mr>> {
        // SAFETY: the caller's promise.
        unsafe { self.verbs.opened.register(attr) }
    }

    fn show_region(&self, number: usize, key: u64, attr: &MrAttr<'_>) {
        self.near.show_region(number, key, attr);
    }

    fn hide_region(&self, number: usize) {
        self.near.hide_region(number);
    }

    fn is_region_in_use(&self, number: usize) -> bool {
        self.near.is_region_in_use(number)
    }
}

impl KeyedParts for VerbsBackend {
    fn open_part(
        &self,
        opening: &Opening<'_>,
        key: AuthKey,
        drawn: u64,
    ) -> Result<(RdmPair<OwnShm>, NativeAddr)> {
        let port = LocalPort {
            // The P_Key as peers have it in their addresses.
            pkey: key.in_addresses().pkey(),
            ..self.verbs.opened.port_for(opening, Some(key))?
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

impl<N: NearDomain> VerbsBackend<N> {
    /// Opens both transports of an endpoint, with numbers that are free.
    fn open_drawn(
        &self,
        opening: &Opening<'_>,
        key: Option<AuthKey>,
        port: LocalPort,
    ) -> Result<(RdmPair<N>, NativeAddr)> {
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
    ) -> Result<(RdmPair<N>, NativeAddr)> {
        let qkey = key.map_or_else(|| NativeAddr::drawn_qkey(drawn), AuthKey::qkey);
        let datagrams = RdmTransport::open_datagrams(&self.verbs.opened.pd, &port, qkey)?;
        let queue_pair = Some(port.address(datagrams.number(), qkey));
        let mut name = NativeAddr::of_new(node_id(), queue_pair, true, drawn);
        let near = self.near.open_endpoint(opening, &name)?;
        if near.is_none() {
            name.shm = None;
        }
        let far = self
            .verbs
            .open_endpoint(opening, datagrams, &name, key, port)?;
        Ok((RdmPair::<N>::new(far, near), name))
    }
}

impl RdmPort {
    /// Opens the verbs transport of an endpoint.
    fn open_endpoint(
        &self,
        opening: &Opening<'_>,
        datagrams: ControlQueuePair,
        name: &NativeAddr,
        auth_key: Option<AuthKey>,
        port: LocalPort,
    ) -> Result<RdmTransport> {
        let OpenedPort {
            events,
            registry,
            tuning,
            settings,
            ..
        } = &self.opened;
        let config = RdmConfig {
            port,
            events: events.clone(),
            tuning: *tuning,
            timeouts: PeerTimeouts {
                peer_timeout: settings.peer_timeout,
                reconnect_timeout: settings.reconnect_timeout.0,
            },
            auth_key,
            clock: self.clock.clone(),
            verbs: self.workers.of_endpoint(),
        };
        let registrations = Registrations::new(registry);
        let mut transport =
            RdmTransport::open(registrations, datagrams, name, &config, opening.wait)?;
        if opening.counts_sends {
            transport.count_sends();
        }
        Ok(transport)
    }
}
