//! The route to each peer that a send went to: path, queue pair and key, by the peer's address.

use std::sync::Arc;

use slab::Slab;

use ferrofabric_contracts::addr::VerbsAddr;
use ferrofabric_contracts::routes::RouteTable;
use ferrofabric_contracts::types::FiAddr;

use crate::ah::{Ah, PortPath};
use crate::port::LocalPort;

/// The route to a peer.
pub(super) struct DgramRoute {
    pub(super) path: PortPath,
    /// The peer's queue pair.
    pub(super) qpn: u32,
    /// The Q_Key that the peer's queue pair accepts.
    pub(super) qkey: u32,
    /// Longest datagram in bytes: the smaller of both ports' MTUs, above which devices lose it
    /// silently.
    pub(super) max_bytes: usize,
    /// The path's handle, once a send has needed it.
    pub(super) handle: Option<Arc<Ah>>,
}

/// The routes of an endpoint.
#[derive(Default)]
pub(super) struct DgramRoutes {
    routes: Slab<DgramRoute>,
    /// The index of the route to each address.
    by_addr: RouteTable<u32>,
    /// The Q_Key to send with, in place of the one in a peer's address.
    own_qkey: Option<u32>,
}

impl DgramRoutes {
    pub(super) fn new(own_qkey: Option<u32>) -> Self {
        Self {
            own_qkey,
            ..Self::default()
        }
    }

    /// The index of the route to an address, if a send went there before.
    pub(super) fn find(&self, addr: FiAddr) -> Option<usize> {
        self.by_addr.get(addr).map(|at| at as usize)
    }

    /// Enters the route from `port` to a peer; `None` when there is none.
    pub(super) fn add(
        &mut self,
        addr: FiAddr,
        peer: &VerbsAddr,
        port: &LocalPort,
    ) -> Option<usize> {
        let at = self.routes.insert(DgramRoute {
            path: port.path_to(peer)?,
            qpn: peer.qpn,
            qkey: self.own_qkey.unwrap_or(peer.qkey),
            max_bytes: port.mtu.bytes().min(peer.mtu_bytes.into()),
            handle: None,
        });
        self.by_addr.insert(addr, at as u32);
        Some(at)
    }

    /// A route by its index.
    #[inline]
    pub(super) fn at(&mut self, at: usize) -> &mut DgramRoute {
        &mut self.routes[at]
    }

    /// All routes need another handle, and lead from this GID of the port.
    #[cold]
    pub(super) fn renew(&mut self, gid_index: u8) {
        for (_, route) in &mut self.routes {
            route.handle = None;
            route.path.gid_index = gid_index;
        }
    }

    /// Takes out the route to an address.
    pub(super) fn remove(&mut self, addr: FiAddr) -> Option<DgramRoute> {
        let at = self.by_addr.remove(addr)?;
        self.routes.try_remove(at as usize)
    }
}
