//! The way to each peer that a send went to: path, queue pair and key, by its index in the address
//! vector.

use std::sync::Arc;

use slab::Slab;

use ferrofabric_contracts::addr::VerbsAddr;
use ferrofabric_contracts::routes::RouteTable;
use ferrofabric_contracts::types::FiAddr;

use crate::ah::{Ah, PortPath};
use crate::port::LocalPort;

/// The way to a peer.
pub(super) struct DatagramWay {
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

/// The ways of an endpoint.
#[derive(Default)]
pub(super) struct Ways {
    ways: Slab<DatagramWay>,
    /// The way of each address.
    routes: RouteTable<u32>,
    /// The Q_Key to send with, in place of the one in a peer's address.
    own_qkey: Option<u32>,
}

impl Ways {
    pub(super) fn new(own_qkey: Option<u32>) -> Self {
        Self {
            own_qkey,
            ..Self::default()
        }
    }

    /// The index of the way to an address, if a send went there before.
    pub(super) fn find(&self, addr: FiAddr) -> Option<usize> {
        self.routes.get(addr).map(|way| way as usize)
    }

    /// Enters the way from `port` to a peer; `None` when there is none.
    pub(super) fn add(
        &mut self,
        addr: FiAddr,
        peer: &VerbsAddr,
        port: &LocalPort,
    ) -> Option<usize> {
        let way = self.ways.insert(DatagramWay {
            path: port.path_to(peer)?,
            qpn: peer.qpn,
            qkey: self.own_qkey.unwrap_or(peer.qkey),
            max_bytes: port.mtu.bytes().min(peer.mtu_bytes.into()),
            handle: None,
        });
        self.routes.insert(addr, way as u32);
        Some(way)
    }

    /// A way by its index.
    #[inline]
    pub(super) fn at(&mut self, way: usize) -> &mut DatagramWay {
        &mut self.ways[way]
    }

    /// Takes out the way to an address.
    pub(super) fn remove(&mut self, addr: FiAddr) -> Option<DatagramWay> {
        let way = self.routes.remove(addr)?;
        self.ways.try_remove(way as usize)
    }
}
