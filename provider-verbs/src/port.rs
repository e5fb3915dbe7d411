//! The local end of every path: one port, with the GID and partition that an endpoint sends from.

use std::time::Duration;

use ferrofabric_contracts::addr::{GidKind, VerbsAddr};
use ferrofabric_contracts::config::{Choice, Settings};
use ferrofabric_contracts::info::traffic_class;

use crate::ah::{PathRecord, PortPath};
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
    /// Each packet needs a routing header, also within a subnet.
    pub(crate) grh_required: bool,
    /// The paths that the connection manager finds.
    pub(crate) path_records: PathRecordWish,
    /// The marks of an endpoint's packets.
    pub(crate) marks: PathMarks,
}

/// The attributes of paths that are chosen, not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathMarks {
    /// The service level; `None`: that of the peer's address.
    pub(crate) service_level: Option<u8>,
    /// Traffic class, in routing headers.
    pub(crate) traffic_class: u8,
    /// Flow label, in routing headers.
    pub(crate) flow_label: u32,
    /// Routers that a packet may pass.
    pub(crate) hop_limit: u8,
}

/// The paths that the connection manager finds, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathRecordWish {
    pub(crate) paths: Choice,
    pub(crate) timeout: Duration,
}

/// The traffic class on RoCE v2 unless a setting says otherwise, which UCX has, too: networks that
/// lose no packets of RDMA are commonly set up for it. Code point 26, and congestion may be marked.
const ROCE_V2_TRAFFIC_CLASS: u8 = 106;

/// The bits of a traffic class for explicit congestion notification (RFC 3168).
const CONGESTION_BITS: u8 = 3;

impl PathMarks {
    /// The marks of the settings, on a port with a GID of this kind.
    pub(crate) fn of(settings: &Settings, kind: GidKind) -> Self {
        let default_class = match (kind, settings.path_records) {
            (GidKind::RoceV2, Choice::Auto | Choice::Off) => ROCE_V2_TRAFFIC_CLASS,
            // The system or the subnet manager may choose one.
            (GidKind::RoceV2, Choice::On) | (GidKind::RoceV1 | GidKind::Ib, _) => 0,
        };
        Self {
            service_level: settings.service_level.0.map(|level| level as u8),
            traffic_class: (settings.traffic_class.0).map_or(default_class, |class| class as u8),
            flow_label: settings.flow_label as u32,
            hop_limit: settings.hop_limit as u8,
        }
    }
}

impl PathRecordWish {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            paths: settings.path_records,
            timeout: settings.resolve_timeout.0.unwrap_or_default(),
        }
    }
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
    /// packets. The meaning of a label depends on the network, so packets with a label have the
    /// class of the settings.
    pub(crate) fn for_class(self, class: u32) -> Self {
        let dscp = match self.gid_kind {
            GidKind::RoceV1 | GidKind::RoceV2 => traffic_class::dscp(class),
            // The subnet manager assigns classes to paths.
            GidKind::Ib => None,
        };
        let of_settings = self.marks.traffic_class;
        let chosen = |dscp: u8| (dscp << 2) | (of_settings & CONGESTION_BITS);
        Self {
            marks: PathMarks {
                traffic_class: dscp.map_or(of_settings, chosen),
                ..self.marks
            },
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

    /// Whether the connection manager finds the path to this GID.
    pub(crate) fn wants_record(&self, to: Gid) -> bool {
        match self.path_records.paths {
            Choice::On => true,
            Choice::Off => false,
            Choice::Auto => self.gid_kind == GidKind::Ib && !self.shares_subnet(to),
        }
    }

    fn shares_subnet(&self, gid: Gid) -> bool {
        self.gid.0[..8] == gid.0[..8]
    }

    /// A path as the connection manager has found it. Marks that were chosen stay.
    pub(crate) fn with_record(&self, path: PortPath, record: &PathRecord) -> PortPath {
        PortPath {
            remote_lid: record.lid,
            service_level: (self.marks.service_level).unwrap_or(record.service_level),
            static_rate: record.static_rate,
            is_global: path.is_global || record.hop_limit > 1,
            gid_index: self.gid_index,
            hop_limit: match record.hop_limit {
                0 => self.marks.hop_limit,
                recorded => recorded.min(self.marks.hop_limit),
            },
            traffic_class: match self.marks.traffic_class {
                0 => record.traffic_class,
                chosen => chosen,
            },
            flow_label: match self.marks.flow_label {
                0 => record.flow_label,
                chosen => chosen,
            },
            ..path
        }
    }

    /// The path to a peer; `None` when this port cannot reach such a GID.
    pub(crate) fn path_to(&self, peer: &VerbsAddr) -> Option<PortPath> {
        if peer.gid_kind != self.gid_kind {
            return None;
        }
        let service_level = self.marks.service_level.unwrap_or(peer.sl);
        // Within a subnet InfiniBand routes by LID alone.
        let same_subnet = self.shares_subnet(Gid(peer.gid));
        if self.gid_kind == GidKind::Ib && same_subnet && !self.grh_required {
            return Some(PortPath {
                remote_gid: Some(Gid(peer.gid)),
                service_level,
                ..PortPath::to_lid(self.number, peer.lid)
            });
        }
        Some(PortPath {
            remote_lid: peer.lid,
            service_level,
            traffic_class: self.marks.traffic_class,
            flow_label: self.marks.flow_label,
            hop_limit: self.marks.hop_limit,
            ..PortPath::to_gid(self.number, self.gid_index, Gid(peer.gid))
        })
    }
}
