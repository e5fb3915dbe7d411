//! GIDs: a port's global addresses.

use std::ffi::CStr;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use ferrofabric_contracts::addr::GidKind;
use ferrofabric_verbs_sys::{ibv_gid, ibv_gid_entry, ibv_gid_type};

/// A 128-bit global identifier, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

/// The scope of a GID's address: where it is valid and how far packets with it travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidScope {
    /// An IPv4 address (mapped, `::ffff:a.b.c.d`).
    Ipv4(Ipv4Addr),
    /// An IPv4 address of the link alone (169.254/16) or of the host alone (127/8).
    Ipv4Local(Ipv4Addr),
    /// An IPv6 address that is routed: global or unique local.
    Ipv6Global,
    /// An IPv6 address of the link alone (`fe80::/10`). InfiniBand's default subnet has this form
    /// too.
    Ipv6LinkLocal,
    /// An address that names no single port: unspecified, loopback or multicast.
    Unusable,
}

impl Gid {
    /// The scope of the address.
    pub fn scope(self) -> GidScope {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) if v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() => {
                GidScope::Unusable
            }
            Some(v4) if v4.is_link_local() || v4.is_loopback() => GidScope::Ipv4Local(v4),
            Some(v4) => GidScope::Ipv4(v4),
            None if v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() => {
                GidScope::Unusable
            }
            None if v6.segments()[0] & 0xffc0 == 0xfe80 => GidScope::Ipv6LinkLocal,
            None => GidScope::Ipv6Global,
        }
    }

    /// Whether every byte is 0, which is how an empty slot reads.
    pub fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }

    pub(crate) fn to_raw(self) -> ibv_gid {
        ibv_gid { raw: self.0 }
    }
}

impl From<ibv_gid> for Gid {
    fn from(raw: ibv_gid) -> Self {
        // SAFETY: all bit patterns are valid in both views of the union.
        Self(unsafe { raw.raw })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// One slot of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Slot, as address handles and queue pairs name it.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// Its encapsulation.
    pub kind: GidKind,
    /// Number of the GID's network interface, if it has one.
    pub interface: Option<u32>,
    /// That interface is in another network namespace: this process can send nothing from it.
    pub is_elsewhere: bool,
}

impl GidEntry {
    /// The name of its network interface, if it has one that this process sees.
    pub fn interface_name(&self) -> Option<String> {
        let mut name = [0; libc::IF_NAMESIZE];
        // SAFETY: there is room for the longest name.
        let found = unsafe { libc::if_indextoname(self.interface?, name.as_mut_ptr()) };
        if found.is_null() {
            return None;
        }
        // SAFETY: the call has written a text that ends with zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Some(name.to_string_lossy().into_owned())
    }

    /// `None` for an empty slot, and for a kind that is not known.
    pub(super) fn from_raw(raw: &ibv_gid_entry) -> Option<Self> {
        let gid = Gid::from(raw.gid);
        (!gid.is_empty()).then_some(Self {
            index: raw.gid_index,
            gid,
            kind: kind_from_raw(ibv_gid_type(raw.gid_type))?,
            interface: (raw.ndev_ifindex != 0).then_some(raw.ndev_ifindex),
            is_elsewhere: false,
        })
    }
}

fn kind_from_raw(raw: ibv_gid_type) -> Option<GidKind> {
    match raw {
        ibv_gid_type::IBV_GID_TYPE_IB => Some(GidKind::Ib),
        ibv_gid_type::IBV_GID_TYPE_ROCE_V1 => Some(GidKind::RoceV1),
        ibv_gid_type::IBV_GID_TYPE_ROCE_V2 => Some(GidKind::RoceV2),
        _ => None,
    }
}

/// The kind as sysfs writes it (`ports/*/gid_attrs/types/*`); it has one word for InfiniBand and
/// RoCE v1.
pub(super) fn kind_from_sysfs(text: &str, on_ethernet: bool) -> Option<GidKind> {
    match text.trim() {
        "RoCE v2" => Some(GidKind::RoceV2),
        "IB/RoCE v1" if on_ethernet => Some(GidKind::RoceV1),
        "IB/RoCE v1" => Some(GidKind::Ib),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().expect("an address").octets())
    }

    #[test]
    fn scopes() {
        let v4 = Ipv4Addr::new(10, 1, 0, 1);
        assert_eq!(gid("::ffff:10.1.0.1").scope(), GidScope::Ipv4(v4));
        assert!(matches!(
            gid("::ffff:169.254.3.4").scope(),
            GidScope::Ipv4Local(_)
        ));
        assert!(matches!(
            gid("::ffff:127.0.0.1").scope(),
            GidScope::Ipv4Local(_)
        ));
        assert_eq!(gid("fd00::1").scope(), GidScope::Ipv6Global);
        assert_eq!(gid("2001:db8::1").scope(), GidScope::Ipv6Global);
        assert_eq!(gid("febf::1").scope(), GidScope::Ipv6LinkLocal);
        assert_eq!(gid("fec0::1").scope(), GidScope::Ipv6Global);
        for bad in [
            "::",
            "::1",
            "ff02::1",
            "::ffff:0.0.0.0",
            "::ffff:224.0.0.1",
            "::ffff:255.255.255.255",
        ] {
            assert_eq!(gid(bad).scope(), GidScope::Unusable, "{bad}");
        }
    }

    #[test]
    fn an_interface_has_a_name_where_there_is_such_a_number() {
        let entry = |interface| GidEntry {
            index: 0,
            gid: gid("::ffff:127.0.0.1"),
            kind: GidKind::RoceV2,
            interface,
            is_elsewhere: false,
        };
        assert_eq!(entry(Some(1)).interface_name().as_deref(), Some("lo"));
        assert_eq!(entry(Some(u32::MAX)).interface_name(), None);
        assert_eq!(entry(None).interface_name(), None);
    }

    #[test]
    fn sysfs_has_one_word_for_two_kinds() {
        assert_eq!(kind_from_sysfs("RoCE v2\n", true), Some(GidKind::RoceV2));
        assert_eq!(kind_from_sysfs("IB/RoCE v1\n", true), Some(GidKind::RoceV1));
        assert_eq!(kind_from_sysfs("IB/RoCE v1", false), Some(GidKind::Ib));
        assert_eq!(kind_from_sysfs("", true), None);
    }

    #[test]
    fn an_empty_slot_and_an_unknown_kind_are_no_entries() {
        let mut raw = ibv_gid_entry::default();
        assert_eq!(GidEntry::from_raw(&raw), None);
        raw.gid = gid("fe80::1").to_raw();
        raw.gid_type = 99;
        assert_eq!(GidEntry::from_raw(&raw), None);
        raw.gid_type = ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
        raw.gid_index = 3;
        let entry = GidEntry::from_raw(&raw).expect("an entry");
        assert_eq!(
            (entry.index, entry.kind, entry.interface),
            (3, GidKind::RoceV2, None)
        );
    }
}
