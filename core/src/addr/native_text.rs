//! The native address as text: `ferro://inc=…;node=…[;shm=…][;gid=…;gidtype=…;qpn=…;…]`. Printing and parsing are
//! inverses of each other.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use super::native::{AddrError, GidKind, NativeAddr, VerbsAddr};

const SCHEME: &str = "ferro://";

pub(super) fn print(addr: &NativeAddr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{SCHEME}inc={:x};node={:x}", addr.incarnation, addr.node)?;
    if let Some(shm) = addr.shm {
        write!(f, ";shm={shm:x}")?;
    }
    if let Some(v) = &addr.verbs {
        write!(
            f,
            ";gid={};gidtype={};qpn={};qkey={:x};lid={};pkey={:x};sl={};port={};mtu={}",
            Ipv6Addr::from(v.gid),
            gid_kind_name(v.gid_kind),
            v.qpn,
            v.qkey,
            v.lid,
            v.pkey,
            v.sl,
            v.port,
            v.mtu_bytes
        )?;
    }
    Ok(())
}

pub(super) fn parse(text: &str) -> Result<NativeAddr, AddrError> {
    let body = text
        .strip_prefix(SCHEME)
        .ok_or(AddrError::Field("scheme (ferro://)"))?;
    let mut fields = Fields::of(body)?;
    let addr = NativeAddr {
        incarnation: fields.hex("inc")?.ok_or(AddrError::Field("inc"))?,
        node: fields.hex("node")?.ok_or(AddrError::Field("node"))?,
        shm: fields.hex("shm")?,
        verbs: match fields.take("gid") {
            None => None,
            Some(gid) => Some(VerbsAddr {
                gid: Ipv6Addr::from_str(gid)
                    .map_err(|_| AddrError::Field("gid"))?
                    .octets(),
                gid_kind: fields
                    .take("gidtype")
                    .and_then(gid_kind_of_name)
                    .ok_or(AddrError::Field("gidtype (ib, roce1, roce2)"))?,
                qpn: fields.number("qpn")?,
                qkey: narrow(fields.hex("qkey")?, "qkey")?,
                lid: fields.number("lid")?,
                pkey: narrow(fields.hex("pkey")?, "pkey")?,
                sl: fields.number("sl")?,
                port: fields.number("port")?,
                mtu_bytes: fields.number("mtu")?,
            }),
        },
    };
    fields.end()?;
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

fn narrow<T: TryFrom<u64>>(value: Option<u64>, name: &'static str) -> Result<T, AddrError> {
    value
        .and_then(|v| T::try_from(v).ok())
        .ok_or(AddrError::Field(name))
}

/// The `name=value` pairs, each of which is taken once.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn of(body: &'a str) -> Result<Self, AddrError> {
        body.split(';')
            .map(|pair| pair.split_once('=').ok_or(AddrError::Field("name=value")))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(n, _)| *n == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn hex(&mut self, name: &'static str) -> Result<Option<u64>, AddrError> {
        self.take(name)
            .map(|v| u64::from_str_radix(v, 16).map_err(|_| AddrError::Field(name)))
            .transpose()
    }

    fn number<T: FromStr>(&mut self, name: &'static str) -> Result<T, AddrError> {
        self.take(name)
            .and_then(|v| v.parse().ok())
            .ok_or(AddrError::Field(name))
    }

    fn end(self) -> Result<(), AddrError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(AddrError::Field("name")),
        }
    }
}
