//! The order of the offers. Reliable endpoints come first, for an application that names no type;
//! then the fastest port; of equally fast ports the nearest to this thread.
//!
//! Equal ports on one network take turns: each process of a user on the node begins with another
//! one, by its [number](process_number), so that local processes use all of them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use ferrofabric_contracts::addr::GidKind;
use ferrofabric_contracts::info::{EpType, Info};
use ferrofabric_system::process_number::process_number;
use nix::ifaddrs::getifaddrs;

use crate::device::{NumaDistances, ip_of};
use crate::port::LocalPort;

/// A network: peers on it reach each other's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortNetwork {
    /// An InfiniBand subnet, by its prefix and the LID of its manager. Separate subnets have
    /// different prefixes, unless they are misconfigured.
    Subnet([u8; 8], u16),
    /// A network of IP addresses.
    Ip(IpAddr),
}

impl PortNetwork {
    /// The network of a port; `None` where it is not known.
    pub(crate) fn of(port: &LocalPort, sm_lid: u16) -> Option<Self> {
        let mut prefix = [0; 8];
        prefix.copy_from_slice(&port.gid.0[..8]);
        match port.gid_kind {
            GidKind::Ib if sm_lid != 0 => Some(Self::Subnet(prefix, sm_lid)),
            GidKind::RoceV2 => network_of(Ipv6Addr::from(port.gid.0).to_canonical()).map(Self::Ip),
            _ => None,
        }
    }
}

/// The properties by which offers are compared.
type Rank = (bool, Reverse<u64>, u32);

fn rank(info: &Info, distances: &NumaDistances) -> Rank {
    let nic = info.nic.as_ref();
    (
        info.ep.ep_type == EpType::Dgram,
        Reverse(nic.map_or(0, |nic| nic.speed_bps)),
        distances.to(nic.and_then(|nic| nic.numa_node)),
    )
}

/// Brings offers into their order. `networks` has the network of each domain, where it is known.
/// Returns what was chosen among equal ports, and why.
pub(crate) fn sort(offers: &mut Vec<Info>, networks: &HashMap<String, PortNetwork>) -> Vec<String> {
    sort_for(offers, networks, &NumaDistances::here(), process_number)
}

fn sort_for(
    offers: &mut Vec<Info>,
    networks: &HashMap<String, PortNetwork>,
    distances: &NumaDistances,
    process: impl Fn() -> usize,
) -> Vec<String> {
    offers.sort_by_cached_key(|info| rank(info, distances));
    let mut reasons = Vec::new();
    let mut rest = std::mem::take(offers);
    while let Some(first) = rest.first() {
        let (best, network) = (rank(first, distances), networks.get(&first.domain.name));
        let is_equal = |info: &Info| {
            rank(info, distances) == best
                && (info.domain.name == first.domain.name
                    || (network.is_some() && networks.get(&info.domain.name) == network))
        };
        let (equal, others): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(is_equal);
        let (equal, reason) = take_turns(equal, &process);
        offers.extend(equal);
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
        rest = others;
    }
    reasons.into_iter().flatten().collect()
}

/// Has a process begin with one of equal ports, by its number.
fn take_turns(mut equal: Vec<Info>, process: &impl Fn() -> usize) -> (Vec<Info>, Option<String>) {
    let mut ports: Vec<String> = Vec::new();
    for info in &equal {
        if !ports.contains(&info.domain.name) {
            ports.push(info.domain.name.clone());
        }
    }
    if ports.len() < 2 {
        return (equal, None);
    }
    let number = process();
    let all = ports.join(", ");
    let first = number % ports.len();
    ports.rotate_left(first);
    equal.sort_by_key(|info| ports.iter().position(|name| *name == info.domain.name));
    let reason = format!(
        "{} comes first of equal ports ({all}): this process has number {number} on the node",
        ports[0]
    );
    (equal, Some(reason))
}

/// The network of the interface that has this address.
fn network_of(address: IpAddr) -> Option<IpAddr> {
    let interfaces = getifaddrs().ok()?;
    let mut masks = interfaces.filter_map(|interface| {
        let own = ip_of(&interface.address?)?;
        (own == address).then_some(ip_of(&interface.netmask?)?)
    });
    masked(address, masks.next()?)
}

/// The part of an address that names its network; `None` for one that names the link alone.
fn masked(address: IpAddr, mask: IpAddr) -> Option<IpAddr> {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) if !address.is_link_local() => {
            Some(IpAddr::V4((address.to_bits() & mask.to_bits()).into()))
        }
        (IpAddr::V6(address), IpAddr::V6(mask)) if !address.is_unicast_link_local() => {
            Some(IpAddr::V6((address.to_bits() & mask.to_bits()).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::info::{DomainAttr, EpAttr, NicAttr};

    fn offer(name: &str, ep_type: EpType, speed_bps: u64, numa_node: Option<u32>) -> Info {
        Info {
            ep: EpAttr {
                ep_type,
                ..EpAttr::default()
            },
            domain: DomainAttr {
                name: name.to_owned(),
                ..DomainAttr::default()
            },
            nic: Some(NicAttr {
                speed_bps,
                numa_node,
                ..NicAttr::default()
            }),
            ..Info::default()
        }
    }

    fn names(offers: &[Info]) -> Vec<&str> {
        offers.iter().map(|info| &*info.domain.name).collect()
    }

    fn distances() -> NumaDistances {
        NumaDistances::of(&[10, 21])
    }

    /// Covers: GI-14
    #[test]
    fn the_fastest_port_comes_first_and_of_equals_the_nearest() {
        let mut all = vec![
            offer("datagrams", EpType::Dgram, 400, Some(0)),
            offer("far", EpType::Rdm, 200, Some(1)),
            offer("soft", EpType::Rdm, 200, None),
            offer("near", EpType::Rdm, 200, Some(0)),
            offer("slow", EpType::Rdm, 100, Some(0)),
            offer("fast", EpType::Rdm, 400, Some(1)),
        ];
        let nobody = || panic!("there is nothing to choose");
        let reasons = sort_for(&mut all, &HashMap::new(), &distances(), nobody);
        assert!(reasons.is_empty());
        // A software device counts as being on the thread's node.
        assert_eq!(
            names(&all),
            ["fast", "soft", "near", "far", "slow", "datagrams"]
        );
    }

    /// Four NICs, of which the nearest two of one network are equal: processes begin with each in
    /// turn, with all offers of it, and nothing else changes.
    #[test]
    fn local_processes_begin_with_different_equal_ports() {
        let network = |n| PortNetwork::Ip(IpAddr::from([10, 0, n, 0]));
        let networks: HashMap<_, _> = [("a", 1), ("b", 1), ("other", 2), ("far", 1)]
            .map(|(name, n)| (name.to_owned(), network(n)))
            .into();
        let of = |name, numa| {
            [EpType::Rdm, EpType::Rdm, EpType::Dgram].map(|kind| offer(name, kind, 100, Some(numa)))
        };
        let offers = [of("other", 0), of("a", 0), of("b", 0), of("far", 1)].concat();
        for (process, [first, second]) in [["a", "b"], ["b", "a"]]
            .into_iter()
            .cycle()
            .take(6)
            .enumerate()
        {
            let mut all = offers.clone();
            let reasons = sort_for(&mut all, &networks, &distances(), || process);
            let rdm = ["other", "other", first, first, second, second, "far", "far"];
            let dgram = ["other", first, second, "far"];
            assert_eq!(names(&all), [&rdm[..], &dgram].concat());
            let why = format!(
                "{first} comes first of equal ports (a, b): this process has number {process} on the node"
            );
            assert_eq!(reasons, [why]);
        }
    }

    /// Peers on one of them may not reach the other, so that one is chosen for all processes.
    #[test]
    fn ports_whose_networks_are_not_known_to_be_one_take_no_turns() {
        let mut all: Vec<_> = ["a", "b"]
            .map(|name| offer(name, EpType::Rdm, 100, None))
            .into();
        let networks = HashMap::from([(
            "a".to_owned(),
            PortNetwork::Subnet([0xfe, 0x80, 0, 0, 0, 0, 0, 0], 1),
        )]);
        for networks in [networks, HashMap::new()] {
            assert!(sort_for(&mut all, &networks, &distances(), || 1).is_empty());
            assert_eq!(names(&all), ["a", "b"]);
        }
    }

    #[test]
    fn the_network_of_an_address_comes_from_its_mask() {
        let mask = |address: &str, mask: &str| {
            let network = masked(address.parse().unwrap(), mask.parse().unwrap())?;
            Some(network.to_string())
        };
        let given = |text: &str| Some(text.to_owned());
        assert_eq!(mask("10.1.2.3", "255.255.254.0"), given("10.1.2.0"));
        assert_eq!(mask("fd00:1::5", "ffff:ffff::"), given("fd00:1::"));
        assert_eq!(mask("169.254.1.1", "255.255.0.0"), None);
        assert_eq!(mask("fe80::1", "ffff:ffff:ffff:ffff::"), None);
        assert_eq!(
            network_of(IpAddr::from([127, 0, 0, 1])),
            Some(IpAddr::from([127, 0, 0, 0]))
        );
    }
}
