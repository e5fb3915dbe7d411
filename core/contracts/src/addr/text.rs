//! Addresses as text (`FI_ADDR_STR`). Printing and parsing are inverses of each other.
//!
//! The forms are libfabric's where it has one: `fi_sockaddr_in://10.1.0.1:7471`,
//! `fi_sockaddr_in6://[fe80::1]:7471`, `fi_sockaddr_ib://[GID]:P_KEY:PORT_SPACE:SCOPE:PORT`,
//! `fi_addr_ib_ud://GID:QPN/LID/P_KEY/SL/` (numbers in base 16 in the last two). Keys have the
//! fields that these forms leave out. Unknown keys of a socket's address are ignored.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::str::FromStr;

use super::uri::{base_16, narrow};
use super::{AddrError, Address, IbUdAddr, NativeAddr, SockaddrIb, Uri, keyed, native_text};

const SOCKADDR: &str = "fi_sockaddr";
const SOCKADDR_IN: &str = "fi_sockaddr_in";
const SOCKADDR_IN6: &str = "fi_sockaddr_in6";
const SOCKADDR_IB: &str = "fi_sockaddr_ib";
const IB_UD: &str = "fi_addr_ib_ud";

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(addr) => addr.fmt(f),
            Self::Keyed(addr) => addr.fmt(f),
            Self::In(addr) => write!(f, "{SOCKADDR_IN}://{addr}"),
            Self::In6(addr) => print_in6(addr, f),
            Self::Ib(addr) => print_ib(addr, f),
            Self::IbUd(addr) => print_ib_ud(addr, f),
        }
    }
}

impl FromStr for Address {
    type Err = AddrError;

    fn from_str(text: &str) -> Result<Self, AddrError> {
        let uri = Uri::parse(text)?;
        match uri.scheme {
            native_text::SCHEME => text.parse::<NativeAddr>().map(Self::Native),
            keyed::SCHEME => text.parse().map(Self::Keyed),
            SOCKADDR if uri.node.contains(':') => in6(uri).map(Self::In6),
            SOCKADDR | SOCKADDR_IN => in4(&uri).map(Self::In),
            SOCKADDR_IN6 => in6(uri).map(Self::In6),
            SOCKADDR_IB => ib(uri).map(Self::Ib),
            IB_UD => ib_ud(uri).map(Self::IbUd),
            _ => Err(AddrError::Field("address format")),
        }
    }
}

fn in4(uri: &Uri<'_>) -> Result<SocketAddrV4, AddrError> {
    no_fields(uri)?;
    let ip = match uri.node {
        "" => Ipv4Addr::UNSPECIFIED,
        node => node.parse().map_err(|_| AddrError::Field("IPv4 address"))?,
    };
    Ok(SocketAddrV4::new(ip, port(uri.service)?))
}

/// The scope and the flow are keys; an address within the link may also have its scope behind a
/// `%`, as a number.
fn in6(mut uri: Uri<'_>) -> Result<SocketAddrV6, AddrError> {
    no_fields(&uri)?;
    let (node, zone) = uri.node.split_once('%').unwrap_or((uri.node, ""));
    let ip = match node {
        "" => Ipv6Addr::UNSPECIFIED,
        node => node.parse().map_err(|_| AddrError::Field("IPv6 address"))?,
    };
    let scope = match (zone, uri.take("scope")) {
        ("", None) => 0,
        ("", Some(scope)) | (scope, None) => {
            scope.parse().map_err(|_| AddrError::Field("scope"))?
        }
        _ => return Err(AddrError::Field("scope (twice)")),
    };
    let flow = match uri.take("flow") {
        None => 0,
        Some(flow) => flow.parse().map_err(|_| AddrError::Field("flow"))?,
    };
    Ok(SocketAddrV6::new(ip, port(uri.service)?, flow, scope))
}

fn print_in6(addr: &SocketAddrV6, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{SOCKADDR_IN6}://[{}]:{}", addr.ip(), addr.port())?;
    let keys = [("scope", addr.scope_id()), ("flow", addr.flowinfo())];
    let set = keys.iter().filter(|(_, value)| *value != 0);
    for (i, (key, value)) in set.enumerate() {
        write!(f, "{}{key}={value}", if i == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

/// The port may be missing.
fn ib(mut uri: Uri<'_>) -> Result<SockaddrIb, AddrError> {
    no_fields(&uri)?;
    let mut numbers = uri.service.split(':');
    let mut number = |name| match numbers.next() {
        None | Some("") => Ok(0),
        Some(text) => base_16(text, name),
    };
    let (pkey, port_space) = (number("P_Key")?, number("port space")?);
    let (scope, port) = (number("scope")?, number("port")?);
    if numbers.next().is_some() {
        return Err(AddrError::Field("service (P_Key, port space, scope, port)"));
    }
    if port_space >> 48 != 0 {
        return Err(AddrError::Field("port space"));
    }
    let gid = gid(uri.node)?;
    let mut addr = SockaddrIb::new(
        gid,
        narrow(pkey, "P_Key")?,
        port_space,
        narrow(port, "port")?,
    );
    addr.scope = scope;
    if let Some(mask) = uri.take("mask") {
        addr.sid_mask = base_16(mask, "mask")?;
    }
    if let Some(flow) = uri.take("flow") {
        addr.flow = narrow(base_16(flow, "flow")?, "flow")?;
    }
    Ok(addr)
}

fn print_ib(addr: &SockaddrIb, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (port_space, port) = (addr.port_space(), addr.port());
    write!(
        f,
        "{SOCKADDR_IB}://[{}]:{:#x}:{port_space:#x}:{:#x}:{port:#x}",
        addr.ip(),
        addr.pkey,
        addr.scope
    )?;
    let mut mark = '?';
    if addr.sid_mask != SockaddrIb::usual_mask(port_space, port) {
        write!(f, "{mark}mask={:#x}", addr.sid_mask)?;
        mark = '&';
    }
    if addr.flow != 0 {
        write!(f, "{mark}flow={:#x}", addr.flow)?;
    }
    Ok(())
}

fn ib_ud(mut uri: Uri<'_>) -> Result<IbUdAddr, AddrError> {
    let [lid, pkey, sl] = match uri.fields[..] {
        [lid, pkey, sl] | [lid, pkey, sl, ""] => [lid, pkey, sl],
        _ => return Err(AddrError::Field("fields (LID, P_Key, SL)")),
    };
    let addr = IbUdAddr {
        gid: gid(uri.node)?,
        qpn: narrow(base_16(uri.service, "QPN")?, "QPN")?,
        lid: narrow(base_16(lid, "LID")?, "LID")?,
        pkey: narrow(base_16(pkey, "P_Key")?, "P_Key")?,
        sl: narrow(base_16(sl, "SL")?, "SL")?,
        service: match uri.take("service") {
            None => 0,
            Some(text) => text.parse().map_err(|_| AddrError::Field("service"))?,
        },
    };
    if !uri.keys.is_empty() {
        return Err(AddrError::Field("key"));
    }
    addr.validate()?;
    Ok(addr)
}

fn print_ib_ud(addr: &IbUdAddr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{IB_UD}://{}:{:x}/{:x}/{:x}/{:x}/",
        Ipv6Addr::from(addr.gid),
        addr.qpn,
        addr.lid,
        addr.pkey,
        addr.sl
    )?;
    match addr.service {
        0 => Ok(()),
        service => write!(f, "?service={service}"),
    }
}

fn no_fields(uri: &Uri<'_>) -> Result<(), AddrError> {
    match uri.fields.iter().all(|field| field.is_empty()) {
        true => Ok(()),
        false => Err(AddrError::Field("field behind the service")),
    }
}

fn port(service: &str) -> Result<u16, AddrError> {
    match service {
        "" => Ok(0),
        service => service.parse().map_err(|_| AddrError::Field("port")),
    }
}

fn gid(node: &str) -> Result<[u8; 16], AddrError> {
    Ipv6Addr::from_str(node)
        .map(|ip| ip.octets())
        .map_err(|_| AddrError::Field("GID"))
}
