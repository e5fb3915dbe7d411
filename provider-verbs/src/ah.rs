//! Paths and address handles: how packets reach a port.

use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::{ibv_ah, ibv_ah_attr, ibv_global_route, ibv_sa_path_rec};

use crate::device::{Gid, Mtu, failed, last_errno};
use crate::pd::Pd;

/// The path from a port of this host to a port of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortPath {
    /// This host's port.
    pub port: u8,
    /// This host's GID, by its slot.
    pub gid_index: u8,
    /// The peer's GID, if it is known. Packets carry it only behind a routing header.
    pub remote_gid: Option<Gid>,
    /// Packets have a routing header, which takes the GID: always on Ethernet, and on InfiniBand
    /// across subnets.
    pub is_global: bool,
    /// The peer's LID; 0 on Ethernet.
    pub remote_lid: u16,
    /// The LID that this port sends from, by its low bits (a port may have several).
    pub lid_path_bits: u8,
    /// Service level.
    pub service_level: u8,
    /// Rate limit, as `ibv_rate` has it; 0 for none.
    pub static_rate: u8,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// Traffic class (on RoCE v2: the IP header's).
    pub traffic_class: u8,
    /// Flow label, 20 bits (on RoCE v2 it decides the UDP source port).
    pub flow_label: u32,
}

impl PortPath {
    /// A path by GID, as all paths on Ethernet are.
    pub fn to_gid(port: u8, gid_index: u8, remote_gid: Gid) -> Self {
        Self {
            port,
            gid_index,
            remote_gid: Some(remote_gid),
            is_global: true,
            hop_limit: 64,
            ..Self::to_lid(port, 0)
        }
    }

    /// A path by LID, within an InfiniBand subnet.
    pub fn to_lid(port: u8, remote_lid: u16) -> Self {
        Self {
            port,
            gid_index: 0,
            remote_gid: None,
            is_global: false,
            remote_lid,
            lid_path_bits: 0,
            service_level: 0,
            static_rate: 0,
            hop_limit: 0,
            traffic_class: 0,
            flow_label: 0,
        }
    }

    pub(crate) fn to_raw(self) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: self.remote_gid.unwrap_or_default().to_raw(),
                flow_label: self.flow_label & 0xf_ffff,
                sgid_index: self.gid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: self.remote_lid,
            sl: self.service_level,
            src_path_bits: self.lid_path_bits,
            static_rate: self.static_rate,
            is_global: u8::from(self.is_global),
            port_num: self.port,
        }
    }
}

impl std::fmt::Display for PortPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.remote_gid.filter(|_| self.is_global) {
            Some(gid) => write!(
                f,
                "{gid} from port {} GID index {}",
                self.port, self.gid_index
            ),
            None => write!(f, "LID {} from port {}", self.remote_lid, self.port),
        }
    }
}

/// The path from one port to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathRecord {
    /// The LID that packets go to: the peer's, or that of a router to its subnet. 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    /// Rate limit, as `ibv_rate` has it.
    pub(crate) static_rate: u8,
    /// `None`: the record has a number that means nothing.
    pub(crate) mtu: Option<Mtu>,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
}

impl PathRecord {
    pub(crate) fn of(raw: &ibv_sa_path_rec) -> Self {
        Self {
            lid: u16::from_be(raw.dlid),
            service_level: raw.sl & 0xf,
            static_rate: raw.rate & 0x3f,
            mtu: Mtu::from_code(raw.mtu & 0x3f),
            hop_limit: raw.hop_limit,
            traffic_class: raw.traffic_class,
            flow_label: u32::from_be(raw.flow_label) & 0xf_ffff,
        }
    }
}

/// A path as packets take it, with the facts of its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownPath {
    pub(crate) path: PortPath,
    /// The MTU of the path, where there is a record of it.
    pub(crate) mtu: Option<Mtu>,
}

/// An address handle: a path that the device has stored, for datagrams.
#[derive(Debug)]
pub struct Ah {
    raw: NonNull<ibv_ah>,
    path: PortPath,
    mtu: Option<Mtu>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs takes calls on an address handle from any thread; it does not change.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    /// Creates an address handle. On RoCE this resolves the peer's hardware address, which may take
    /// a second and more: a thread that must make progress must not call it.
    ///
    /// # Errors
    ///
    /// When the peer's address does not resolve, the GID index is empty, or the device has no
    /// handles left.
    pub fn create(pd: &Arc<Pd>, path: &PortPath) -> Result<Self> {
        Self::along(
            pd,
            &KnownPath {
                path: *path,
                mtu: None,
            },
        )
    }

    /// As [`Ah::create`].
    pub(crate) fn along(pd: &Arc<Pd>, known: &KnownPath) -> Result<Self> {
        let KnownPath { path, mtu } = known;
        let mut attributes = path.to_raw();
        // SAFETY: the protection domain is live.
        let raw = unsafe { (pd.context().verbs().ibv_create_ah)(pd.as_ptr(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            failed(
                last_errno(),
                "create",
                format!("address handle on {} to {path}", pd.context().name()),
            )
        })?;
        Ok(Self {
            raw,
            path: *path,
            mtu: *mtu,
            pd: Arc::clone(pd),
        })
    }

    /// The path.
    pub fn path(&self) -> &PortPath {
        &self.path
    }

    /// The MTU of the path, where there is a record of it.
    pub(crate) fn mtu(&self) -> Option<Mtu> {
        self.mtu
    }

    /// The raw handle. It lives as long as `self`.
    #[inline]
    pub fn as_ptr(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        if !self.pd.context().is_own() {
            return;
        }
        // SAFETY: destroyed once.
        let rc = unsafe { (self.pd.context().verbs().ibv_destroy_ah)(self.as_ptr()) };
        if rc != 0 {
            tracing::warn!(
                "{}",
                failed(rc, "destroy", format!("address handle to {}", self.path))
            );
        }
    }
}
