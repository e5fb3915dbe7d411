//! The native address as text: `ferro://[GID]:QPN?type=…&qkey=…&…&inc=…&node=…[&shm=…]`, without
//! GID, QPN and their keys where there is no queue pair. Printing and parsing are inverses of each
//! other.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use super::error::AddrError;
use super::native::{GidKind, NativeAddr, VerbsAddr};
use super::uri::{Uri, base_16, narrow};

pub(super) const SCHEME: &str = "ferro";

impl fmt::Display for NativeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_as(SCHEME, self, f)
    }
}

impl FromStr for NativeAddr {
    type Err = AddrError;

    fn from_str(text: &str) -> Result<Self, AddrError> {
        parse_as(SCHEME, Uri::parse(text)?)
    }
}

/// Prints the address with another scheme than its own.
pub(super) fn print_as(scheme: &str, addr: &NativeAddr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{scheme}://")?;
    if let Some(v) = &addr.verbs {
        write!(
            f,
            "[{}]:{}?type={}&qkey={:x}&lid={}&pkey={:x}&sl={}&port={}&mtu={}&",
            Ipv6Addr::from(v.gid),
            v.qpn,
            gid_kind_name(v.gid_kind),
            v.qkey,
            v.lid,
            v.pkey,
            v.sl,
            v.port,
            v.mtu_bytes
        )?;
    } else {
        f.write_str("?")?;
    }
    write!(f, "inc={:x}&node={:x}", addr.incarnation, addr.node)?;
    match addr.shm {
        Some(shm) => write!(f, "&shm={shm:x}"),
        None => Ok(()),
    }
}

/// Parses text with another scheme, from which the caller has taken its own keys.
pub(super) fn parse_as(scheme: &'static str, mut uri: Uri<'_>) -> Result<NativeAddr, AddrError> {
    if uri.scheme != scheme {
        return Err(AddrError::Field("address format (ferro)"));
    }
    let addr = NativeAddr {
        incarnation: hex(&mut uri, "inc")?.ok_or(AddrError::Field("inc"))?,
        node: hex(&mut uri, "node")?.ok_or(AddrError::Field("node"))?,
        shm: hex(&mut uri, "shm")?,
        verbs: match (uri.node, uri.service) {
            ("", "") => None,
            (gid, qpn) => Some(VerbsAddr {
                gid: Ipv6Addr::from_str(gid)
                    .map_err(|_| AddrError::Field("GID"))?
                    .octets(),
                qpn: qpn.parse().map_err(|_| AddrError::Field("QPN"))?,
                gid_kind: uri
                    .take("type")
                    .and_then(gid_kind_of_name)
                    .ok_or(AddrError::Field("type (ib, roce1, roce2)"))?,
                qkey: key(&mut uri, "qkey")?,
                lid: number(&mut uri, "lid")?,
                pkey: key(&mut uri, "pkey")?,
                sl: number(&mut uri, "sl")?,
                port: number(&mut uri, "port")?,
                mtu_bytes: number(&mut uri, "mtu")?,
            }),
        },
    };
    if !uri.keys.is_empty() || !uri.fields.is_empty() {
        return Err(AddrError::Field("key"));
    }
    addr.validate()?;
    Ok(addr)
}

fn gid_kind_name(kind: GidKind) -> &'static str {
    match kind {
        GidKind::Ib => "ib",
        GidKind::RoceV1 => "roce1",
        GidKind::RoceV2 => "roce2",
    }
}

fn gid_kind_of_name(name: &str) -> Option<GidKind> {
    [GidKind::Ib, GidKind::RoceV1, GidKind::RoceV2]
        .into_iter()
        .find(|kind| gid_kind_name(*kind) == name)
}

fn hex(uri: &mut Uri<'_>, name: &'static str) -> Result<Option<u64>, AddrError> {
    uri.take(name).map(|text| base_16(text, name)).transpose()
}

fn key<T: TryFrom<u64>>(uri: &mut Uri<'_>, name: &'static str) -> Result<T, AddrError> {
    narrow(hex(uri, name)?.ok_or(AddrError::Field(name))?, name)
}

fn number<T: FromStr>(uri: &mut Uri<'_>, name: &'static str) -> Result<T, AddrError> {
    uri.take(name)
        .and_then(|text| text.parse().ok())
        .ok_or(AddrError::Field(name))
}
