//! The way to each peer that was sent to: path, queue pair and key, by its number in the address
//! vector.

use std::sync::Arc;

use slab::Slab;

use ferrofabric_contracts::addr::VerbsAddr;
use ferrofabric_contracts::types::FiAddr;

use crate::ah::{Ah, Path};
use crate::port::LocalPort;

/// How a peer is reached.
pub(super) struct Way {
    pub(super) path: Path,
    /// The peer's queue pair.
    pub(super) qpn: u32,
    /// What it takes datagrams with.
    pub(super) qkey: u32,
    /// Longest datagram in bytes: the smaller of both ports' MTUs, above which devices lose it
    /// silently.
    pub(super) max_bytes: usize,
    /// The path's handle, once it was there for a send.
    pub(super) handle: Option<Arc<Ah>>,
}

/// The ways of an endpoint.
#[derive(Default)]
pub(super) struct Ways {
    ways: Slab<Way>,
    /// Where each number of the address vector leads, by its low 32 bits.
    routes: Vec<Route>,
    /// The Q_Key to speak with, whatever a peer's address says.
    own_qkey: Option<u32>,
}

#[derive(Clone, Copy)]
struct Route {
    addr: FiAddr,
    way: u32,
}

const NO_ROUTE: Route = Route {
    addr: FiAddr::NOTAVAIL,
    way: 0,
};

impl Ways {
    pub(super) fn new(own_qkey: Option<u32>) -> Self {
        Self {
            own_qkey,
            ..Self::default()
        }
    }

    /// The place of the way to an address, if it was sent to before.
    #[inline]
    pub(super) fn find(&self, addr: FiAddr) -> Option<usize> {
        let route = self.routes.get(addr.0 as u32 as usize)?;
        (route.addr == addr && addr.is_some()).then_some(route.way as usize)
    }

    /// Enters the way from `port` to a peer; `None` when there is none.
    pub(super) fn add(
        &mut self,
        addr: FiAddr,
        peer: &VerbsAddr,
        port: &LocalPort,
    ) -> Option<usize> {
        let way = self.ways.insert(Way {
            path: port.path_to(peer)?,
            qpn: peer.qpn,
            qkey: self.own_qkey.unwrap_or(peer.qkey),
            max_bytes: port.mtu.bytes().min(peer.mtu_bytes.into()),
            handle: None,
        });
        let at = addr.0 as u32 as usize;
        if self.routes.len() <= at {
            self.routes.resize(at + 1, NO_ROUTE);
        }
        self.routes[at] = Route {
            addr,
            way: way as u32,
        };
        Some(way)
    }

    /// A way by its place.
    #[inline]
    pub(super) fn at(&mut self, way: usize) -> &mut Way {
        &mut self.ways[way]
    }

    /// Takes out the way to an address.
    pub(super) fn remove(&mut self, addr: FiAddr) -> Option<Way> {
        let way = self.find(addr)?;
        self.routes[addr.0 as u32 as usize] = NO_ROUTE;
        self.ways.try_remove(way)
    }
}
