//! The domains that this machine has over verbs, as an application discovers them.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use ferrofabric_contracts::addr::{AUTH_KEY_LEN, AddrFormats, Address, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{
    AV_AUTH_KEY, DomainAttr, EpAttr, EpType, FabricAttr, Info, NicAttr, PciAddr, RxAttr, TxAttr,
    dgram_messages, protocol, rdm_endpoints, with_address_vector_keys, with_all_orders,
    with_prefix,
};
use ferrofabric_protocol::wire;
use ferrofabric_runtime::domain::{DgramDomain, KeyedBackend, KeyedDgramDomain, RdmDomain};
use ferrofabric_runtime::fabric::{self, Discovery, Provider};
use ferrofabric_system::clock::Clock;

use crate::cm;
use crate::device::{
    Device, DeviceContext, DeviceInfo, GidWish, LinkLayer, OpenedDevice, PortInfo, PortState,
    memory_lock_advice,
};
use crate::domain::{DgramBackend, OpenedPort, VerbsBackend, local_port, node_id};
use crate::endpoint::dgram;
use crate::near::{NearDomain, OwnShm, settings_with_keys};
use crate::order::{self, PortNetwork};
use crate::port::LocalPort;
use crate::probe::Abilities;
use crate::tuning::Tuning;

/// The provider's name.
pub const NAME: &str = "ferro";

/// Domains over verbs devices. The near transport of their RDM endpoints is Ferrofabric's shared
/// memory.
///
/// It has no parameter, so that this crate compiles its domains, and not each crate that uses them.
#[derive(Debug)]
pub struct VerbsProvider {
    clock: Clock,
}

/// The same with the near transports of `N`.
#[derive(Debug)]
pub struct VerbsProviderWith<N>(PhantomData<fn() -> N>);

impl VerbsProvider {
    /// Makes the provider. It neither loads a library nor opens a device yet.
    pub const fn new() -> Self {
        Self::with_clock(Clock::SYSTEM)
    }

    /// The same with another clock for the time limits of RDM endpoints, except that closing one
    /// takes no longer than by the system's clock.
    pub const fn with_clock(clock: Clock) -> Self {
        Self { clock }
    }
}

impl Default for VerbsProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl<N> VerbsProviderWith<N> {
    /// As [`VerbsProvider::new`].
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<N> Default for VerbsProviderWith<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for VerbsProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn discover(&self, settings: &Settings) -> Discovery {
        self.discover_for(&Info::default(), settings)
    }

    fn discover_for(&self, hints: &Info, settings: &Settings) -> Discovery {
        discover_devices(hints, settings, &NearOffers::of::<OwnShm>(settings))
    }

    fn open(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn fabric::Domain>> {
        // SAFETY: it is not serialized.
        unsafe { open_domain::<OwnShm>(info, settings, &self.clock, false) }
    }

    unsafe fn open_serialized(
        &self,
        info: &Info,
        settings: &Settings,
    ) -> Result<Arc<dyn fabric::Domain>> {
        // SAFETY: the contract of this function is the same.
        unsafe { open_domain::<OwnShm>(info, settings, &self.clock, true) }
    }
}

impl<N: NearDomain> Provider for VerbsProviderWith<N> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn discover(&self, settings: &Settings) -> Discovery {
        self.discover_for(&Info::default(), settings)
    }

    fn discover_for(&self, hints: &Info, settings: &Settings) -> Discovery {
        discover_devices(hints, settings, &NearOffers::of::<N>(settings))
    }

    fn open(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn fabric::Domain>> {
        // SAFETY: it is not serialized.
        unsafe { open_domain::<N>(info, settings, &Clock::SYSTEM, false) }
    }

    unsafe fn open_serialized(
        &self,
        info: &Info,
        settings: &Settings,
    ) -> Result<Arc<dyn fabric::Domain>> {
        // SAFETY: the contract of this function is the same.
        unsafe { open_domain::<N>(info, settings, &Clock::SYSTEM, true) }
    }
}

/// Opens the domain of an offer. One that is `serialized` has no lock.
///
/// # Safety
///
/// As [`Provider::open_serialized`], if it is serialized.
unsafe fn open_domain<N: NearDomain>(
    info: &Info,
    settings: &Settings,
    clock: &Clock,
    serialized: bool,
) -> Result<Arc<dyn fabric::Domain>> {
    let is_keyed = info.domain.auth_key_size == AV_AUTH_KEY;
    // SAFETY: the contract of these functions is the same.
    unsafe {
        match (info.ep.ep_type, is_keyed) {
            (EpType::Dgram, false) => open_dgram(info, settings, serialized),
            (EpType::Dgram, true) => open_keyed_dgram(info, settings, serialized),
            (_, true) => {
                let opened = open_port(info, &settings_with_keys::<N>(settings))?;
                open_keyed(opened, settings, clock, serialized)
            }
            (_, false) => {
                let backend = VerbsBackend::<N>::over(open_port(info, settings)?, clock)?;
                Ok(match serialized {
                    true => Arc::new(RdmDomain::open_serialized(backend, settings)?),
                    false => Arc::new(RdmDomain::open(backend, settings)?),
                })
            }
        }
    }
}

/// # Safety
///
/// As [`open_domain`].
unsafe fn open_dgram(
    info: &Info,
    settings: &Settings,
    serialized: bool,
) -> Result<Arc<dyn fabric::Domain>> {
    let backend = DgramBackend(open_port(info, settings)?);
    Ok(match serialized {
        // SAFETY: the contract of this function is the same.
        true => Arc::new(unsafe { DgramDomain::open_serialized(backend, settings)? }),
        false => Arc::new(DgramDomain::open(backend, settings)?),
    })
}

/// # Safety
///
/// As [`open_domain`].
unsafe fn open_keyed_dgram(
    info: &Info,
    settings: &Settings,
    serialized: bool,
) -> Result<Arc<dyn fabric::Domain>> {
    let backend = KeyedBackend(DgramBackend(open_port(info, settings)?));
    Ok(match serialized {
        // SAFETY: the contract of this function is the same.
        true => Arc::new(unsafe { KeyedDgramDomain::open_serialized(backend, settings)? }),
        false => Arc::new(KeyedDgramDomain::open(backend, settings)?),
    })
}

/// Opens an RDM domain with the keys of address vectors.
///
/// # Safety
///
/// As [`open_domain`].
unsafe fn open_keyed(
    opened: OpenedPort,
    settings: &Settings,
    clock: &Clock,
    serialized: bool,
) -> Result<Arc<dyn fabric::Domain>> {
    let backend = KeyedBackend(VerbsBackend::<OwnShm>::over(opened, clock)?);
    Ok(match serialized {
        // SAFETY: the contract of this function is the same.
        true => Arc::new(unsafe { RdmDomain::open_serialized(backend, settings)? }),
        false => Arc::new(RdmDomain::open(backend, settings)?),
    })
}

/// Opens the port that an offer names.
fn open_port(info: &Info, settings: &Settings) -> Result<OpenedPort> {
    let (device, port) = parse_name(&info.domain.name).ok_or_else(|| {
        Error::new(
            Errno::EINVAL,
            "open",
            format!("domain {}", info.domain.name),
        )
        .mend("verbs domains are named DEVICE:PORT")
    })?;
    OpenedPort::open((device, port), info, settings)
}

/// The offers of RDM endpoints with their near transports. Discovery is the same for all of these.
struct NearOffers<'a> {
    settings: &'a Settings,
    /// As [`NearDomain::offers`].
    offers: fn(Info, &Settings, &mut Vec<Error>) -> Vec<Info>,
    settings_with_keys: Settings,
}

impl<'a> NearOffers<'a> {
    fn of<N: NearDomain>(settings: &'a Settings) -> Self {
        Self {
            settings,
            offers: N::offers,
            settings_with_keys: settings_with_keys::<N>(settings),
        }
    }

    /// Lists the offers of a port, of the one with all capabilities.
    fn list(&self, all: Info, found: &mut Discovery) {
        let notices = &mut found.notices;
        let keyed = OwnShm::offers(all.clone(), &self.settings_with_keys, notices);
        let keyed = keyed.into_iter().map(with_address_vector_keys);
        let offers = (self.offers)(all, self.settings, notices);
        found.candidates.extend(offers.into_iter().chain(keyed));
    }
}

fn discover_devices(hints: &Info, settings: &Settings, near: &NearOffers<'_>) -> Discovery {
    let mut found = Discovery::default();
    if !settings.verbs {
        let off = Error::new(Errno::ENODEV, "use", "verbs devices");
        found
            .notices
            .push(off.mend("switched off by setting verbs"));
        return found;
    }
    let devices = match Device::list() {
        Ok(devices) => devices,
        Err(error) => {
            found.notices.push(error);
            return found;
        }
    };
    if !settings.device.is_empty() && !devices.iter().any(|d| d.name == settings.device) {
        let there: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
        let unknown = Error::new(Errno::ENODEV, "find", format!("device {}", settings.device));
        found.notices.push(unknown.mend(match there.is_empty() {
            true => "this machine has no RDMA device".to_owned(),
            false => format!("there are: {}", there.join(", ")),
        }));
    } else if devices.is_empty() {
        let none = Error::new(Errno::ENODEV, "find", "an RDMA device");
        found.notices.push(
            none.mend("`./scripts/rxe up` makes a Soft-RoCE one, where the kernel has rdma_rxe"),
        );
    }
    let mut networks = HashMap::new();
    for device in &devices {
        if settings.device.is_empty() || settings.device == device.name {
            let networks = &mut networks;
            discover_device(device, GidWish::of(hints), near, networks, &mut found);
        }
    }
    found.choices = order::sort(&mut found.candidates, &networks);
    found
}

fn discover_device(
    device: &DeviceInfo,
    wish: GidWish,
    near: &NearOffers<'_>,
    networks: &mut HashMap<String, PortNetwork>,
    found: &mut Discovery,
) {
    let settings = near.settings;
    let opened = match &device.opened {
        Ok(opened) => opened,
        Err(error) => return found.notices.push(error.clone()),
    };
    for port in &opened.ports {
        let number = port.attributes.number;
        if settings.port != 0 && settings.port != u64::from(number) {
            continue;
        }
        if port.attributes.state != PortState::Active {
            let down = Error::new(
                Errno::EHOSTDOWN,
                "use",
                format!("port {number} of {}", device.name),
            );
            found.notices.push(down.mend("bring its link up"));
            continue;
        }
        // The address that an endpoint would send from, so that a wrong setting shows here.
        let usable = DeviceContext::open(&device.name).and_then(|context| {
            let local = local_port(&context, number, wish, settings)?;
            Ok((local, Abilities::probe(&context)))
        });
        match usable {
            Ok((local, abilities)) => {
                let tuning =
                    Tuning::of(&opened.limits, opened.quirks, settings).on_port(&port.attributes);
                let formats = formats(device, &local, found);
                let rdm = candidate(device, port, &local, &tuning);
                if let Some(network) = PortNetwork::of(&local, port.attributes.sm_lid) {
                    networks.insert(rdm.domain.name.clone(), network);
                }
                let rdm = Info {
                    addr_formats: formats,
                    ..rdm
                };
                let dgram = dgram_candidate(&rdm, opened, &local, &tuning);
                let port = format!("port {number} of {}", device.name);
                offer_datagrams(dgram, abilities.datagrams, &port, found);
                let opens = abilities.reliable_datagrams;
                offer_reliable(rdm, near, opens, &tuning, port, found);
            }
            Err(error) => found.notices.push(error),
        }
    }
}

/// Offers an endpoint for datagrams, if one can be opened.
fn offer_datagrams(dgram: Info, opens: Result<()>, port: &str, found: &mut Discovery) {
    let (sends, receives) = (dgram.tx.size, dgram.rx.size);
    let registered = dgram::registered_bytes(sends, receives, dgram.ep.max_msg_size);
    if let Err(error) = opens {
        let unusable = Error::new(error.errno(), "open datagram endpoints on", port);
        found.notices.push(unusable.mend(error.to_string()));
    } else if memory_lock_advice(registered).is_none() {
        let prefixed = with_prefix(dgram.clone(), dgram::PREFIX_BYTES);
        let keyed = with_address_vector_keys(dgram.clone());
        found.candidates.extend([prefixed, dgram, keyed]);
    }
}

/// Offers an endpoint for reliable datagrams, if one can be opened. An offer whose endpoints do not
/// open would be worse than none: shared memory still works.
fn offer_reliable(
    rdm: Info,
    near: &NearOffers<'_>,
    opens: Result<()>,
    tuning: &Tuning,
    port: String,
    found: &mut Discovery,
) {
    match (opens, memory_lock_advice(tuning.registered_bytes())) {
        (Ok(()), None) => near.list(rdm, found),
        (Ok(()), Some(advice)) => {
            let locked = Error::new(Errno::ENOMEM, "use", port);
            found.notices.push(locked.mend(advice));
        }
        (Err(error), _) => {
            let unusable = Error::new(error.errno(), "open reliable endpoints on", port);
            found.notices.push(unusable.mend(error.to_string()));
        }
    }
}

/// The formats that addresses of a port's endpoints may have, and the reason why others are
/// missing.
fn formats(device: &DeviceInfo, local: &LocalPort, found: &mut Discovery) -> AddrFormats {
    let all = AddrFormats::NATIVE | AddrFormats::STR;
    match cm::host(local) {
        Ok(_) => all | AddrFormats::SOCKADDR,
        Err(why) => {
            let port = format!("port {} of {}", local.number, device.name);
            let none = Error::new(why.errno(), "find endpoints by socket address on", port);
            found.notices.push(none.mend(why.to_string()));
            all
        }
    }
}

fn candidate(device: &DeviceInfo, port: &PortInfo, local: &LocalPort, tuning: &Tuning) -> Info {
    // Peers of this node are reached by the near transport, or else by the device's own loopback.
    let all = rdm_endpoints(Flags::REMOTE_COMM | Flags::LOCAL_COMM);
    let ethernet = port.attributes.link_layer == LinkLayer::Ethernet;
    let (endpoints, regions) = counts(device);
    with_all_orders(Info {
        src_addr: Some(Address::Native(own_address(local))),
        tx: TxAttr {
            inject_size: tuning
                .inline_bytes
                .min(tuning.eager_bytes)
                .saturating_sub(64),
            // Messages beyond the lane's room wait in line.
            size: tuning.sends.depth + 1,
            ..all.tx
        },
        ep: EpAttr {
            protocol: protocol::VERBS_RDM,
            protocol_version: u32::from(wire::VERSION),
            max_msg_size: tuning.max_message_bytes,
            auth_key_size: AUTH_KEY_LEN,
            ..all.ep
        },
        domain: DomainAttr {
            name: format!("{}:{}", device.name, port.attributes.number),
            ep_cnt: endpoints,
            tx_ctx_cnt: endpoints,
            rx_ctx_cnt: endpoints,
            mr_cnt: regions,
            auth_key_size: AUTH_KEY_LEN,
            max_ep_auth_key: 1,
            ..all.domain
        },
        fabric: FabricAttr {
            name: if ethernet { "RoCE" } else { "InfiniBand" }.to_owned(),
            ..all.fabric
        },
        nic: Some(nic(device, port, local)),
        ..all
    })
}

/// The address of endpoints on the port that have no near transport, before an endpoint exists.
fn own_address(local: &LocalPort) -> NativeAddr {
    NativeAddr {
        incarnation: 0,
        node: node_id(),
        shm: None,
        verbs: Some(local.address(0, 0)),
    }
}

/// The offer of the same port for datagram endpoints.
fn dgram_candidate(rdm: &Info, opened: &OpenedDevice, local: &LocalPort, tuning: &Tuning) -> Info {
    let all = dgram_messages();
    let limits = &opened.limits;
    let mtu = local.mtu.bytes();
    let send_depth = (tuning.sends.depth + 1).min(limits.queue_depth as usize);
    // Each receive has a slot of its own. The completion queue holds all receives, and the sends.
    let recv_depth = tuning
        .receives
        .min(limits.queue_depth as usize)
        .min((limits.completion_depth as usize).saturating_sub(send_depth));
    let endpoints = limits.completion_queues.min(limits.queue_pairs) as usize;
    let buffers = dgram::MAX_BUFFERS;
    Info {
        caps: (all.caps | rdm.domain.caps) - Flags::PEER,
        // Peers of this node are reached through the device, too.
        addr_formats: rdm.addr_formats | AddrFormats::IB_UD,
        src_addr: Some(Address::Native(own_address(local))),
        tx: TxAttr {
            inject_size: mtu,
            size: send_depth,
            iov_limit: buffers,
            ..all.tx
        },
        rx: RxAttr {
            size: recv_depth,
            iov_limit: buffers,
            ..all.rx
        },
        ep: EpAttr {
            protocol: protocol::IB_UD,
            protocol_version: 1,
            max_msg_size: mtu,
            auth_key_size: AUTH_KEY_LEN,
            ..all.ep
        },
        domain: DomainAttr {
            ep_cnt: endpoints,
            tx_ctx_cnt: endpoints,
            rx_ctx_cnt: endpoints,
            caps: rdm.domain.caps - Flags::PEER,
            // The immediate data of a datagram.
            cq_data_size: size_of::<u32>(),
            ..rdm.domain.clone()
        },
        fabric: rdm.fabric.clone(),
        nic: rdm.nic.clone(),
        ..all
    }
}

/// The numbers of endpoints and of memory regions that a device has room for. An endpoint takes a
/// completion queue, a shared receive queue and a queue pair of its own, and each of its lanes one
/// more queue pair.
fn counts(device: &DeviceInfo) -> (usize, usize) {
    let Ok(OpenedDevice { limits, .. }) = &device.opened else {
        return (0, 0);
    };
    let shared = match limits.shared_receive_queues {
        0 => u32::MAX,
        queues => queues,
    };
    let endpoints = shared
        .min(limits.completion_queues)
        .min(limits.queue_pairs / 2);
    (endpoints as usize, limits.regions as usize)
}

fn nic(device: &DeviceInfo, port: &PortInfo, local: &LocalPort) -> NicAttr {
    let attributes = &port.attributes;
    let mut nic = NicAttr {
        device: device.name.clone(),
        driver: device.facts.driver.clone().unwrap_or_default(),
        pci: device
            .facts
            .pci
            .as_ref()
            .and_then(|pci| PciAddr::parse(&pci.address)),
        numa_node: device.facts.numa_node,
        address: local.gid.to_string(),
        speed_bps: attributes.speed_mbps.unwrap_or(0) * 1_000_000,
        mtu_bytes: attributes.active_mtu.bytes(),
        up: attributes.state == PortState::Active,
        network: match attributes.link_layer {
            LinkLayer::Ethernet => "Ethernet".to_owned(),
            _ => "InfiniBand".to_owned(),
        },
        ..NicAttr::default()
    };
    if let Ok(OpenedDevice { limits, .. }) = &device.opened {
        nic.vendor_id = format!("{:#06x}", limits.vendor_id);
        nic.device_id = format!("{:#06x}", limits.vendor_part_id);
        nic.device_version = limits.hardware_version.to_string();
        nic.firmware.clone_from(&limits.firmware);
    }
    nic
}

fn parse_name(name: &str) -> Option<(&str, u8)> {
    let (device, port) = name.rsplit_once(':')?;
    Some((device, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_name_gives_device_and_port() {
        assert_eq!(parse_name("mlx5_0:1"), Some(("mlx5_0", 1)));
        assert_eq!(parse_name("mlx5_0"), None);
        assert_eq!(parse_name("mlx5_0:x"), None);
    }

    #[test]
    fn verbs_switched_off_says_so() {
        let settings =
            Settings::read(|name| (name == "FERRO_VERBS").then(|| "off".to_owned())).unwrap();
        let found = VerbsProvider::new().discover(&settings);
        assert!(found.candidates.is_empty());
        assert!(found.notices[0].to_string().contains("switched off"));
    }
}
