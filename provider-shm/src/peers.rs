//! Whom an endpoint knows: by the id of a peer's shared-memory endpoint, and by the owner's address
//! for it.

use std::collections::{HashMap, VecDeque};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
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
pub(crate) struct Peers {
    by_id: HashMap<u64, Peer>,
    /// Addresses that were sent to.
    ids: HashMap<FiAddr, u64>,
    /// Which link an address leads to, at the place that its low bits name: what every send looks
    /// at.
    routes: Box<[(FiAddr, u32)]>,
}

const FEWEST_ROUTES: usize = 64;
const MOST_ROUTES: usize = 4096;

impl Peers {
    pub(crate) fn new() -> Self {
        Self {
            by_id: HashMap::new(),
            ids: HashMap::new(),
            routes: no_routes(FEWEST_ROUTES),
        }
    }

    /// Key of the link that `addr` is known to lead to.
    #[inline(always)]
    pub(crate) fn route(&self, addr: FiAddr) -> Option<usize> {
        let (at, key) = self.routes[addr.0 as usize & (self.routes.len() - 1)];
        (at == addr && addr.is_some()).then_some(key as usize)
    }

    /// Remembers that `addr` leads to a link.
    pub(crate) fn learn(&mut self, addr: FiAddr, key: usize, links: usize) {
        if links > self.routes.len() && self.routes.len() < MOST_ROUTES {
            self.routes = no_routes(self.routes.len() * 2);
        }
        let len = self.routes.len();
        self.routes[addr.0 as usize & (len - 1)] = (addr, key as u32);
    }

    /// Forgets where addresses lead, because some lead there no more.
    pub(crate) fn unlearn(&mut self) {
        self.routes.fill((FiAddr::NOTAVAIL, 0));
    }

    pub(crate) fn id(&self, addr: FiAddr) -> Option<u64> {
        self.ids.get(&addr).copied()
    }

    pub(crate) fn set_id(&mut self, addr: FiAddr, id: u64) {
        self.ids.insert(addr, id);
    }

    pub(crate) fn forget_addr(&mut self, addr: FiAddr) -> Option<u64> {
        self.unlearn();
        self.ids.remove(&addr)
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

    /// Entries of all tables.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn known(&self) -> usize {
        self.by_id.len() + self.ids.len()
    }
}

fn no_routes(n: usize) -> Box<[(FiAddr, u32)]> {
    vec![(FiAddr::NOTAVAIL, 0); n].into_boxed_slice()
}
