//! The local end of every path: one port, with the GID and partition that an endpoint sends from.

use ferrofabric_contracts::addr::{GidKind, VerbsAddr};
use ferrofabric_contracts::info::traffic_class;

use crate::ah::PortPath;
use crate::device::{DeviceContext, Gid, GidEntry, Mtu};

/// A port as endpoints use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalPort {
    /// Number, from 1.
    pub(crate) number: u8,
    /// The port's GID.
    pub(crate) gid: Gid,
    /// Its encapsulation.
    pub(crate) gid_kind: GidKind,
    /// Its slot.
    pub(crate) gid_index: u8,
    /// The port's LID, 0 on Ethernet.
    pub(crate) lid: u16,
    /// The port's partition key.
    pub(crate) pkey: u16,
    /// Its slot.
    pub(crate) pkey_index: u16,
    /// The MTU in force.
    pub(crate) mtu: Mtu,
    /// Number of the GID's network interface, 0 if it has none.
    pub(crate) interface: u32,
    /// Traffic class of an endpoint's packets, in their routing headers.
    pub(crate) traffic_class: u8,
}

impl LocalPort {
    /// The address of a queue pair on this port.
    pub(crate) fn address(&self, qpn: u32, qkey: u32) -> VerbsAddr {
        VerbsAddr {
            gid: self.gid.0,
            gid_kind: self.gid_kind,
            qpn,
            qkey,
            lid: self.lid,
            pkey: self.pkey,
            sl: 0,
            port: self.number,
            mtu_bytes: self.mtu.bytes() as u16,
        }
    }

    /// The port as an endpoint of a [traffic class](traffic_class) uses it. A DSCP marks its
    /// packets. The meaning of a label depends on the network, so packets with a label are not
    /// marked.
    pub(crate) fn for_class(self, class: u32) -> Self {
        let dscp = match self.gid_kind {
            GidKind::RoceV1 | GidKind::RoceV2 => traffic_class::dscp(class),
            // The subnet manager assigns classes to paths.
            GidKind::Ib => None,
        };
        Self {
            // The two low bits are for explicit congestion notification (RFC 3168).
            traffic_class: dscp.unwrap_or(0) << 2,
            ..self
        }
    }

    /// The port as it is now: its LID, and the slots of its GID and partition key, which others may
    /// take meanwhile. An address that is gone stays: peers know the endpoint by it.
    #[cold]
    pub(crate) fn refreshed(&self, context: &DeviceContext) -> Self {
        let (lid, slots) = match context.port(self.number) {
            Ok(now) => (now.lid, now.pkey_slots),
            Err(error) => {
                tracing::warn!("{error}");
                (self.lid, 0)
            }
        };
        let is_it = |entry: &GidEntry| (entry.gid, entry.kind) == (self.gid, self.gid_kind);
        let table = context.gid_table(self.number).unwrap_or_default();
        let is_there =
            (table.iter()).any(|entry| entry.index == u32::from(self.gid_index) && is_it(entry));
        let elsewhere = table
            .iter()
            .find(|entry| is_it(entry) && entry.index <= 255);
        if elsewhere.is_none() || lid != self.lid {
            tracing::warn!(
                "the address of port {} of {} has changed: open the domain again, and exchange \
                 addresses anew",
                self.number,
                context.name()
            );
        }
        let gid_index = match (is_there, elsewhere) {
            (false, Some(entry)) => entry.index as u8,
            _ => self.gid_index,
        };
        let has_key = |slot: &u16| {
            context
                .pkey(self.number, *slot)
                .is_ok_and(|key| key == self.pkey)
        };
        let pkey_index = match has_key(&self.pkey_index) {
            true => self.pkey_index,
            false => (0..slots).find(has_key).unwrap_or(self.pkey_index),
        };
        Self {
            lid,
            gid_index,
            pkey_index,
            ..*self
        }
    }

    /// The path to a peer; `None` when this port cannot reach such a GID.
    pub(crate) fn path_to(&self, peer: &VerbsAddr) -> Option<PortPath> {
        if peer.gid_kind != self.gid_kind {
            return None;
        }
        let mut path = PortPath::to_gid(self.number, self.gid_index, Gid(peer.gid));
        path.remote_lid = peer.lid;
        path.service_level = peer.sl;
        path.traffic_class = self.traffic_class;
        // Within a subnet InfiniBand routes by LID alone.
        let same_subnet = self.gid.0[..8] == peer.gid[..8];
        if self.gid_kind == GidKind::Ib && same_subnet {
            path.remote_gid = None;
        }
        Some(path)
    }
}
