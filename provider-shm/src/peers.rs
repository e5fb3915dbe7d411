//! The peers that an endpoint knows: by the id of a peer's shared-memory endpoint, and by the
//! owner's address for it.

use std::collections::HashMap;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::routes::{Epoch, RouteTable};
use ferrofabric_contracts::send_line::SendLine;
use ferrofabric_contracts::types::FiAddr;

use crate::pending::PendingSend;

/// The state of a peer.
pub(crate) enum PeerState {
    /// A link is being made; sends wait for it.
    Connecting(SendLine<PendingSend>),
    /// There is a link, with this key.
    Up(usize),
    /// The link was closed idle: neither side had more to send. The peer had this address.
    IdleClosed(FiAddr),
    /// The link failed, or could not be made.
    Gone(Errno),
}

/// The peers that the endpoint sent to, or that connected to it.
#[derive(Default)]
pub(crate) struct ShmPeers {
    by_id: HashMap<u64, PeerState>,
    /// The ids of the addresses that the endpoint sent to.
    ids: RouteTable<u64>,
    epoch: Epoch,
}

/// The route to a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmRoute {
    epoch: Option<Epoch>,
    link: u32,
}

impl ShmPeers {
    /// Key of the link that a route leads to, if the route is still valid.
    #[inline(always)]
    pub(crate) fn link(&self, route: &ShmRoute) -> Option<usize> {
        self.epoch.is_of(route.epoch).then_some(route.link as usize)
    }

    /// The route to a link.
    pub(crate) fn route_to(&self, key: usize) -> ShmRoute {
        ShmRoute {
            epoch: self.epoch.stamp(),
            link: key as u32,
        }
    }

    /// A link ends, or begins to close: each send looks its link up once more.
    pub(crate) fn end_routes(&mut self) {
        self.epoch.end();
    }

    pub(crate) fn id(&self, addr: FiAddr) -> Option<u64> {
        self.ids.get(addr)
    }

    pub(crate) fn set_id(&mut self, addr: FiAddr, id: u64) {
        self.ids.insert(addr, id);
    }

    pub(crate) fn forget_addr(&mut self, addr: FiAddr) -> Option<u64> {
        self.ids.remove(addr)
    }

    /// Whether a send to the endpoint of this id needs a new link.
    pub(crate) fn needs_link(&self, id: u64) -> bool {
        matches!(self.by_id.get(&id), None | Some(PeerState::IdleClosed(_)))
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut PeerState> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn set(&mut self, id: u64, peer: PeerState) -> Option<PeerState> {
        self.by_id.insert(id, peer)
    }

    /// A peer is gone: later sends to its address fail with this error. A peer without an address
    /// is forgotten.
    pub(crate) fn set_gone(&mut self, id: u64, errno: Errno, addr: FiAddr) {
        match addr.is_some() {
            true => drop(self.by_id.insert(id, PeerState::Gone(errno))),
            false => drop(self.by_id.remove(&id)),
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<PeerState> {
        self.by_id.remove(&id)
    }

    /// Whether sends wait for links.
    pub(crate) fn have_waiting_sends(&self) -> bool {
        self.waiting_sends().any(|queue| !queue.is_empty())
    }

    /// The sends that wait for links, by peer.
    pub(crate) fn waiting_sends(&self) -> impl Iterator<Item = &SendLine<PendingSend>> {
        self.by_id.values().filter_map(|peer| match peer {
            PeerState::Connecting(queue) => Some(queue),
            _ => None,
        })
    }

    /// Entries of all tables.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn known(&self) -> usize {
        self.by_id.len() + self.ids.iter().count()
    }
}
