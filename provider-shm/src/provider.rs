//! The shared-memory domain by itself: for machines without RDMA devices, and for applications
//! whose peers are all on this node.

use std::sync::Arc;

use ferrofabric_contracts::addr::{AddrFormats, Address, NativeAddr};
use ferrofabric_contracts::config::{Choice, Settings};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{
    DomainAttr, EpAttr, FabricAttr, Info, TxAttr, protocol, rdm_endpoints, with_all_orders,
};
use ferrofabric_runtime::domain::{Backend, OpenedTransport, Opening, RdmDomain};
use ferrofabric_runtime::fabric::{self, Discovery, MrAttr, Provider};

use crate::wire::UNDER_WAY_MAX;
use crate::{Cma, RegionBoard, ShmConfig, ShmTransport, ShownRegions, node_id};

/// Longest message in bytes.
const MAX_MSG_BYTES: usize = 1 << 40;

/// Operations that an application is to have under way at most (fi_tx_attr). More are taken.
const TX_SIZE: usize = 1024;

/// Longest inject in bytes.
const INJECT_BYTES: usize = 4096;

/// The shared-memory domain of this node.
///
/// ```
/// use ferrofabric_av::AvAttr;
/// use ferrofabric_contracts::config::Settings;
/// use ferrofabric_runtime::fabric::Provider;
/// use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
/// use ferrofabric_contracts::types::FiAddr;
/// use ferrofabric_shm::ShmProvider;
///
/// let settings = Settings::from_env()?;
/// let provider = ShmProvider::new();
/// let offers = provider.discover(&settings).candidates;
/// let domain = provider.open(&offers[0], &settings)?;
/// let mut sender = OwningEndpoint::open(&*domain, &AvAttr::default())?;
/// let mut receiver = OwningEndpoint::open(&*domain, &AvAttr::default())?;
///
/// // The sender needs the receiver's address; here it comes straight from its endpoint.
/// let to_receiver = sender.av().insert(&receiver.name().to_bytes())?;
/// receiver.trecv(Buffer::new(64)?, FiAddr::UNSPEC, 7, 0, 1).unwrap();
/// let mut greeting = Buffer::new(64)?;
/// greeting[..5].copy_from_slice(b"hello");
/// sender.tsend(greeting, 5, to_receiver, 7, 2).unwrap();
///
/// let received = loop {
///     sender.poll()?;
///     if let Some(done) = receiver.poll()? {
///         break done;
///     }
/// };
/// assert_eq!(received.outcome.unwrap().len, 5);
/// assert_eq!(&received.buffer[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct ShmProvider;

impl ShmProvider {
    /// The name of the domain and of its fabric. A domain or a fabric named `shm` counts as one of
    /// libfabric's own provider `shm`, for example in libfabric's provider `lnx`.
    pub const DOMAIN: &'static str = "ferro-shm";

    /// The provider.
    pub const fn new() -> Self {
        Self
    }
}

impl ShmConfig {
    /// The transport's configuration as the settings define it.
    pub fn from_settings(settings: &Settings) -> Self {
        let waiting = usize::try_from(settings.waiting_sends).unwrap_or(usize::MAX);
        Self {
            cma: match settings.shm_cma {
                Choice::Auto => Cma::Auto,
                Choice::On => Cma::On,
                Choice::Off => Cma::Off,
            },
            queue_sends: waiting,
            under_way: waiting.min(UNDER_WAY_MAX),
            ..Self::default()
        }
    }
}

impl Provider for ShmProvider {
    fn name(&self) -> &'static str {
        "ferro"
    }

    fn discover(&self, settings: &Settings) -> Discovery {
        if settings.shm {
            return Discovery {
                candidates: vec![candidate()],
                ..Discovery::default()
            };
        }
        let off = Error::new(Errno::ENODEV, "use", "shared memory");
        Discovery {
            notices: vec![off.mend("switched off by setting shm")],
            ..Discovery::default()
        }
    }

    fn open(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn fabric::Domain>> {
        let backend = ShmBackend::open(info, settings)?;
        Ok(Arc::new(RdmDomain::open(backend, settings)?))
    }

    unsafe fn open_serialized(
        &self,
        info: &Info,
        settings: &Settings,
    ) -> Result<Arc<dyn fabric::Domain>> {
        let backend = ShmBackend::open(info, settings)?;
        // SAFETY: the caller of this function has the same contract.
        let domain = unsafe { RdmDomain::open_serialized(backend, settings)? };
        Ok(Arc::new(domain))
    }
}

fn candidate() -> Info {
    let all = rdm_endpoints(Flags::LOCAL_COMM);
    with_all_orders(Info {
        addr_formats: AddrFormats::NATIVE | AddrFormats::STR,
        src_addr: Some(Address::Native(NativeAddr {
            incarnation: 0,
            node: node_id(),
            shm: Some(0),
            verbs: None,
        })),
        tx: TxAttr {
            inject_size: INJECT_BYTES,
            size: TX_SIZE,
            ..all.tx
        },
        ep: EpAttr {
            protocol: protocol::SHM,
            protocol_version: 1,
            max_msg_size: MAX_MSG_BYTES,
            ..all.ep
        },
        domain: DomainAttr {
            name: ShmProvider::DOMAIN.to_owned(),
            ..all.domain
        },
        fabric: FabricAttr {
            name: ShmProvider::DOMAIN.to_owned(),
            ..all.fabric
        },
        ..all
    })
}

struct ShmBackend {
    info: Info,
    config: ShmConfig,
    board: Arc<RegionBoard>,
}

impl ShmBackend {
    fn open(info: &Info, settings: &Settings) -> Result<Self> {
        if info.domain.name != ShmProvider::DOMAIN {
            let unknown = Error::new(
                Errno::ENODEV,
                "open",
                format!("domain {}", info.domain.name),
            );
            return Err(unknown.mend(format!("there is: {}", ShmProvider::DOMAIN)));
        }
        let config = ShmConfig::from_settings(settings);
        Ok(Self {
            info: info.clone(),
            board: RegionBoard::new(config.cma != Cma::Off),
            config,
        })
    }
}

impl Backend for ShmBackend {
    type Transport = ShmTransport;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_transport(&self, opening: &Opening<'_>) -> Result<OpenedTransport<ShmTransport>> {
        if opening.auth_key.is_some() {
            return Err(Error::new(
                Errno::EINVAL,
                "enable",
                "endpoint with an authorization key",
            )
            .mend("shared memory alone has no keys: open it over a device"));
        }
        let config = ShmConfig {
            shown: Some(ShownRegions {
                board: self.board.clone(),
                rights: opening.unseen_rights,
            }),
            ..self.config.clone()
        };
        let transport = ShmTransport::open(config, node_id(), 0)?;
        opening.wait.add(transport.wait_fd())?;
        Ok(OpenedTransport {
            name: transport.native(),
            transport,
            keyed: None,
        })
    }

    fn completion_levels(&self) -> Flags {
        Flags::DELIVERY_COMPLETE | Flags::MATCH_COMPLETE | Flags::FENCE
    }

    unsafe fn register(&self, _attr: &MrAttr<'_>) -> Result<Arc<dyn fabric::Mr>> {
        // Messages through shared memory need no registration.
        Ok(Arc::new(fabric::Unregistered))
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
