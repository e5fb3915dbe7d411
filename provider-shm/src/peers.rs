//! Whom an endpoint knows: by the id of a peer's shared-memory endpoint, and by the owner's address
//! for it.

use std::collections::{HashMap, VecDeque};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::routes::{Epoch, RouteTable};
use ferrofabric_contracts::types::FiAddr;

use crate::pending::PendingSend;

/// How a peer stands.
pub(crate) enum Peer {
    /// A link is being made; sends wait.
    Connecting(VecDeque<PendingSend>),
    /// Key of the link.
    Up(usize),
    /// There was a link, until neither side had more to say.
    Left(Box<NativeAddr>),
    /// There was a link, or there is none to be had.
    Gone(Errno),
}

/// Peers that were sent to or heard of.
#[derive(Default)]
pub(crate) struct Peers {
    by_id: HashMap<u64, Peer>,
    /// Addresses that were sent to.
    ids: RouteTable<u64>,
    epoch: Epoch,
}

/// The route to a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmRoute {
    epoch: Option<Epoch>,
    link: u32,
}

impl Peers {
    /// Key of the link that a route leads to, if it still leads there.
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

    /// A link ends, or begins to close: each send looks its link up anew once.
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

    /// Whether a link has to be made before anything can be sent to the endpoint of this id.
    pub(crate) fn needs_link(&self, id: u64) -> bool {
        matches!(self.by_id.get(&id), None | Some(Peer::Left(_)))
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Peer> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn set(&mut self, id: u64, peer: Peer) -> Option<Peer> {
        self.by_id.insert(id, peer)
    }

    /// A peer is gone, which whoever sends to its address is told: of one that has none, nothing is
    /// kept.
    pub(crate) fn set_gone(&mut self, id: u64, errno: Errno, addr: FiAddr) {
        match addr.is_some() {
            true => drop(self.by_id.insert(id, Peer::Gone(errno))),
            false => drop(self.by_id.remove(&id)),
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Peer> {
        self.by_id.remove(&id)
    }

    /// Whether sends wait for links.
    pub(crate) fn have_waiting_sends(&self) -> bool {
        let waits = |peer: &Peer| matches!(peer, Peer::Connecting(queue) if !queue.is_empty());
        self.by_id.values().any(waits)
    }

    /// Entries of all tables.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn known(&self) -> usize {
        self.by_id.len() + self.ids.iter().count()
    }
}
