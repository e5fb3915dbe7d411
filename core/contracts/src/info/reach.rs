//! The addresses that a domain has and can reach, and the format of both.

use std::net::IpAddr;

use super::mismatch::Shown;
use super::{AddrFormat, Info, Mismatch};
use crate::addr::{Address, IbUdAddr, NativeAddr, SockaddrIb, UDP_PORT_SPACE};
use crate::flags::Flags;

/// The addresses of an offer.
pub(super) struct Addresses {
    pub(super) format: AddrFormat,
    pub(super) src: Option<Address>,
    pub(super) dest: Option<Address>,
}

/// Format, source and destination as the hints want them, for endpoints with the capabilities
/// `caps`.
///
/// Hints that leave the format open get that of their addresses, or else the candidate's own.
pub(super) fn addresses(
    hints: &Info,
    candidate: &Info,
    caps: Flags,
) -> Result<Addresses, Mismatch> {
    let src = match by_host(hints, candidate) {
        true => candidate.src_addr,
        false => hints.src_addr,
    };
    let given = hints.dest_addr.or(src);
    let format = match (hints.addr_format, given) {
        (AddrFormat::UNSPEC, None) => candidate.addr_format,
        (AddrFormat::UNSPEC, Some(given)) => given.format(),
        (asked, _) => asked,
    };
    if format != candidate.addr_format && !candidate.addr_formats.has(format) {
        return Err(not_in_format(hints, candidate, format));
    }
    Ok(Addresses {
        format,
        src: source(src, candidate.src_addr, format)?,
        dest: match hints.dest_addr {
            None => None,
            Some(peer) => Some(destination(peer, candidate.src_addr, format, caps)?),
        },
    })
}

fn not_in_format(hints: &Info, candidate: &Info, format: AddrFormat) -> Mismatch {
    let there = AddrFormat::KNOWN
        .iter()
        .copied()
        .filter(|one| *one == candidate.addr_format || candidate.addr_formats.has(*one));
    let there: Vec<_> = there.map(|one| one.to_string()).collect();
    let mend = match hints.addr_format {
        AddrFormat::UNSPEC => "name endpoints by addresses that they give, as bytes or as text",
        _ => "ask for one of these, or leave the format open",
    };
    Mismatch {
        field: "addr_format",
        asked: format.to_string(),
        offered: there.join(", "),
        mend: mend.to_owned(),
    }
}

/// Whether the source is a host alone, in no format of its own, and the candidate is there: that
/// names an interface, which the candidate's own address says too.
fn by_host(hints: &Info, candidate: &Info) -> bool {
    let socket = hints.src_addr.and_then(|asked| asked.socket());
    let (Some(socket), Some(own)) = (socket, candidate.src_addr) else {
        return false;
    };
    hints.addr_format == AddrFormat::UNSPEC
        && hints.dest_addr.and_then(|peer| peer.socket()).is_none()
        && candidate.addr_format == AddrFormat::UNSPEC
        && socket.port() == 0
        && own
            .ip()
            .is_some_and(|ip| socket.ip() == ip || is_this_host(socket.ip()))
}

/// The source of an endpoint by the hints, or any of the domain at `own`: the same node and port. A
/// new endpoint has a queue pair and an incarnation of its own, so hints cannot fix these.
fn source(
    asked: Option<Address>,
    own: Option<Address>,
    format: AddrFormat,
) -> Result<Option<Address>, Mismatch> {
    let (asked, own) = match (asked, own) {
        (asked, None) => return Ok(asked),
        (None, Some(own)) => return expressed_in(own, format).map(Some),
        (Some(asked), Some(own)) => (asked, own),
    };
    check_format("src_addr", asked, format)?;
    let here = match (asked, own) {
        (Address::Native(asked), Address::Native(own)) => {
            same_port(&asked, &own).then_some(own.into())
        }
        (Address::IbUd(asked), own) => match expressed_in(own, AddrFormat::IB_UD)? {
            Address::IbUd(own) if own.gid == asked.gid => Some(Address::IbUd(IbUdAddr {
                service: asked.service,
                ..own
            })),
            _ => None,
        },
        (asked, own) => at_own(asked, own.ip()),
    };
    here.map(Some).ok_or_else(|| {
        Mismatch::new(
            "src_addr",
            &asked,
            &own,
            "name an address of this domain, or leave the source open",
        )
    })
}

fn same_port(asked: &NativeAddr, own: &NativeAddr) -> bool {
    let port = |addr: &NativeAddr| addr.verbs.map(|v| (v.gid, v.gid_kind, v.port));
    asked.node == own.node && port(asked) == port(own)
}

/// A socket's address at the domain's own IP address, if that is what it says: no host, and the
/// host that this is, do too.
fn at_own(asked: Address, own: Option<IpAddr>) -> Option<Address> {
    let own = own?;
    let host = asked.socket()?.ip();
    (host == own || is_this_host(host))
        .then(|| moved(asked, own))
        .flatten()
}

fn is_this_host(host: IpAddr) -> bool {
    host.is_unspecified() || host.is_loopback()
}

/// The address with another host; `None` where its format does not have such hosts.
fn moved(addr: Address, host: IpAddr) -> Option<Address> {
    match (addr, host) {
        (Address::In(mut addr), IpAddr::V4(ip)) => {
            addr.set_ip(ip);
            Some(Address::In(addr))
        }
        (Address::In6(mut addr), IpAddr::V6(ip)) => {
            addr.set_ip(ip);
            Some(Address::In6(addr))
        }
        (Address::Ib(addr), host) => Some(Address::Ib(SockaddrIb {
            gid: gid_of(host),
            ..addr
        })),
        _ => None,
    }
}

fn gid_of(host: IpAddr) -> [u8; 16] {
    match host {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A domain's own address in a format; ports are 0, to be chosen when an endpoint is opened.
fn expressed_in(own: Address, format: AddrFormat) -> Result<Address, Mismatch> {
    if own.has_format(format) {
        return Ok(own);
    }
    let queue_pair = match own {
        Address::Native(own) => IbUdAddr::of(&own),
        _ => None,
    };
    let expressed = match (format, own.ip()) {
        (AddrFormat::IB_UD, _) => queue_pair.map(Address::IbUd),
        (AddrFormat::SOCKADDR_IB, Some(ip)) => Some(Address::Ib(SockaddrIb::new(
            gid_of(ip),
            queue_pair.map_or(0, |own| own.pkey),
            UDP_PORT_SPACE,
            0,
        ))),
        (_, Some(ip)) => Some(std::net::SocketAddr::new(ip, 0).into()),
        (_, None) => None,
    }
    .filter(|expressed| expressed.has_format(format));
    expressed.ok_or_else(|| Mismatch {
        field: "addr_format",
        asked: format.shown(),
        offered: own.to_string(),
        mend: "give the port an address of that family, or ask for another format".to_owned(),
    })
}

/// Whether the format can express an address.
fn check_format(field: &'static str, addr: Address, format: AddrFormat) -> Result<(), Mismatch> {
    match addr.has_format(format) {
        true => Ok(()),
        false => Err(Mismatch {
            field,
            asked: addr.to_string(),
            offered: format!("addresses in {format}"),
            mend: "have the format of addresses be theirs, or leave it open".to_owned(),
        }),
    }
}

/// The peer, if the domain at `own` has a way to it, as far as addresses tell.
fn destination(
    peer: Address,
    own: Option<Address>,
    format: AddrFormat,
    caps: Flags,
) -> Result<Address, Mismatch> {
    check_format("dest_addr", peer, format)?;
    let Some(own) = own else {
        return Ok(peer);
    };
    match (peer, own) {
        (Address::Native(to), Address::Native(own)) => reaches(&to, &own, caps).map(|()| peer),
        (Address::Native(_) | Address::Keyed(_), _) => Ok(peer),
        (_, own) => {
            let host = match peer {
                Address::IbUd(_) => None,
                socket => socket.socket().map(|socket| socket.ip()),
            };
            let by_device = own.ip().filter(|_| caps.contains(Flags::REMOTE_COMM));
            match (by_device, host) {
                // An address of this host stands for the domain's own.
                (Some(ip), Some(host)) if is_this_host(host) => moved(peer, ip),
                (Some(_), _) => Some(peer),
                (None, _) => None,
            }
            .ok_or_else(|| Mismatch {
                field: "dest_addr",
                asked: peer.to_string(),
                offered: format!("what is in reach of {own}"),
                mend: "ask for a domain of a device, and for FI_REMOTE_COMM".to_owned(),
            })
        }
    }
}

fn reaches(peer: &NativeAddr, own: &NativeAddr, caps: Flags) -> Result<(), Mismatch> {
    let shared_memory = caps.contains(Flags::LOCAL_COMM)
        && peer.node == own.node
        && peer.shm.is_some()
        && own.shm.is_some();
    let queue_pairs = caps.contains(Flags::REMOTE_COMM)
        && peer
            .verbs
            .zip(own.verbs)
            .is_some_and(|(peer, own)| peer.gid_kind == own.gid_kind);
    if shared_memory || queue_pairs {
        return Ok(());
    }
    let (offered, mend) = match (caps.contains(Flags::LOCAL_COMM), own.verbs) {
        (_, Some(verbs)) if caps.contains(Flags::REMOTE_COMM) => (
            format!("queue pairs with GIDs of kind {:?}", verbs.gid_kind),
            "have both sides speak from GIDs of one kind (setting gid_index)",
        ),
        (true, _) => (
            format!("shared memory on node {:#x}", own.node),
            "reach other nodes through a device",
        ),
        (false, _) => ("no way to it".to_owned(), "ask for FI_LOCAL_COMM, too"),
    };
    Err(Mismatch {
        field: "dest_addr",
        asked: peer.to_string(),
        offered,
        mend: mend.to_owned(),
    })
}
