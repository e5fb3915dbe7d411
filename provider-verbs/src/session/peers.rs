//! The peers of an endpoint: who they are, how they are linked, and what waits for the link.

use std::collections::{HashMap, VecDeque};

use slab::Slab;

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::flags::Flags;
use ferrofabric_core::peer::SendDone;
use ferrofabric_core::protocol::PeerKey;
use ferrofabric_core::protocol::wire::SessionId;
use ferrofabric_core::types::{FiAddr, IoBuf, SendOp, total_len};

use super::state::SessionState;
use crate::connect::{native_addr, peer_key};
use crate::endpoint::gather::Readable;

/// How a peer is reached at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Not at all; nobody has asked.
    Idle,
    /// The service thread is connecting.
    Connecting,
    /// A lane is there, on which the session has yet to be taken up again.
    Resuming(SessionId),
    /// Through this lane, which may be in its end.
    Up(SessionId),
}

/// A send that waits for its lane, or for room on it.
pub(crate) struct Pending {
    pub(crate) op: SendOp,
    iov: Gathered,
}

/// What a waiting send sends.
enum Gathered {
    /// The application's buffers, in order. They may be read as long as the send waits.
    Borrowed(Box<[IoBuf]>),
    /// A copy (`INJECT`).
    Copied(Box<[u8]>),
}

impl Pending {
    /// A send of these buffers, or of a copy of them (`INJECT`).
    pub(crate) fn new(op: &SendOp, buffers: Readable<'_>) -> Self {
        Self {
            op: *op,
            iov: match op.flags.contains(Flags::INJECT) {
                true => Gathered::Copied(buffers.to_bytes()),
                false => Gathered::Borrowed(buffers.list().into()),
            },
        }
    }

    /// Length of the message, in bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.iov {
            Gathered::Borrowed(iov) => total_len(iov),
            Gathered::Copied(bytes) => bytes.len(),
        }
    }

    /// Lends its buffers, with the copy that they are in, if it is one.
    pub(crate) fn with_buffers<R>(
        &self,
        look: impl FnOnce(&SendOp, Readable<'_>, Option<&[u8]>) -> R,
    ) -> R {
        let (one, copy);
        let list: &[IoBuf] = match &self.iov {
            Gathered::Borrowed(iov) => {
                copy = None;
                iov
            }
            Gathered::Copied(bytes) => {
                copy = Some(&**bytes);
                one = [IoBuf::new(bytes.as_ptr(), bytes.len())];
                &one
            }
        };
        // SAFETY: the sender's buffers, which it has promised until the operation completes, which it does not as long as this
        // is there; or bytes of our own.
        look(&self.op, unsafe { Readable::new(list) }, copy)
    }

    /// Of one that failed.
    pub(crate) fn done(&self) -> SendDone {
        SendDone::of(&self.op, 0)
    }
}

/// A peer.
pub(crate) struct Peer {
    pub(crate) key: PeerKey,
    /// The name of its shared-memory endpoint, if it has one.
    shm_name: u64,
    /// Its number in the address vector, if it has one.
    pub(crate) addr: FiAddr,
    pub(crate) link: Link,
    /// The session, while it has no lane.
    pub(crate) parked: Option<Box<SessionState>>,
    pub(crate) pending: VecDeque<Pending>,
    /// There was no room for an RC lane, or the last one was recycled: the next lane is of the UD kind, if that will do.
    pub(crate) falls_back: bool,
    /// The last lane was of the RC kind, and broke.
    pub(crate) lost_rc: bool,
    /// Its endpoint has closed: it will never have a lane again.
    pub(crate) closed: bool,
    /// It was removed from the address vector: its lane goes once nothing happens on it.
    pub(crate) removed: bool,
    /// Times that it came back after its lane had gone for that.
    pub(crate) returns: u32,
    /// The session rests, and so much of its credit was given back meanwhile.
    pub(crate) rests: Option<u32>,
}

impl Peer {
    /// Whether it has a session that wants a lane to go on, whatever else is to be sent.
    pub(crate) fn goes_on(&self) -> bool {
        let used = self
            .parked
            .as_ref()
            .is_some_and(|session| !session.is_unused());
        used && self.rests.is_none()
    }
}

/// All peers that were spoken to, or that spoke to us.
#[derive(Default)]
pub(crate) struct Peers {
    peers: Slab<Peer>,
    by_key: HashMap<PeerKey, u32>,
    /// Where each number of the address vector leads, by its low 32 bits.
    routes: Vec<Route>,
    /// Those that have no number.
    strangers: usize,
}

#[derive(Clone, Copy)]
struct Route {
    addr: FiAddr,
    peer: u32,
}

const NO_ROUTE: Route = Route {
    addr: FiAddr::NOTAVAIL,
    peer: 0,
};

impl Peers {
    /// How many have a session without a lane.
    pub(crate) fn parked(&self) -> usize {
        let parked = self.peers.iter().filter(|(_, peer)| peer.parked.is_some());
        parked.count()
    }

    /// Those that have no lane, and something that waits for one or rests.
    pub(crate) fn without_lane(&self) -> Vec<u32> {
        let peers = self.peers.iter().filter(|(_, peer)| match peer.link {
            Link::Idle => peer.parked.is_some(),
            Link::Connecting => true,
            Link::Resuming(_) | Link::Up(_) => false,
        });
        peers.map(|(at, _)| at as u32).collect()
    }

    /// The peer that an address leads to, if it was used before.
    #[inline]
    pub(crate) fn routed(&self, addr: FiAddr) -> Option<u32> {
        let route = self.routes.get(addr.0 as u32 as usize)?;
        (route.addr == addr && addr.is_some()).then_some(route.peer)
    }

    /// Makes an address lead to a peer, which is made if there is none of that name.
    pub(crate) fn route(&mut self, addr: FiAddr, name: &NativeAddr) -> u32 {
        self.peer_of(peer_key(name), name.shm.unwrap_or(0), addr)
    }

    fn lead(&mut self, addr: FiAddr, peer: u32) {
        let known = &mut self.peers[peer as usize];
        self.strangers -= usize::from(!known.addr.is_some());
        known.addr = addr;
        (known.removed, known.returns) = (false, 0);
        let at = addr.0 as u32 as usize;
        if self.routes.len() <= at {
            self.routes.resize(at + 1, NO_ROUTE);
        }
        self.routes[at] = Route { addr, peer };
    }

    /// Forgets where an address leads. The peer stays: it may still speak to us.
    pub(crate) fn unroute(&mut self, addr: FiAddr) -> Option<u32> {
        let peer = self.routed(addr)?;
        self.routes[addr.0 as u32 as usize] = NO_ROUTE;
        let known = &mut self.peers[peer as usize];
        self.strangers += usize::from(known.addr.is_some());
        known.addr = FiAddr::NOTAVAIL;
        Some(peer)
    }

    /// The peer of a key, made if there is none; `shm_name` names its shared-memory endpoint. If it has an address, that leads to it from now on: also to one that only
    /// speaks to us, for when the address is removed.
    pub(crate) fn peer_of(&mut self, key: PeerKey, shm_name: u64, addr: FiAddr) -> u32 {
        let peer = *self.by_key.entry(key).or_insert_with(|| {
            self.strangers += 1;
            self.peers.insert(Peer {
                key,
                shm_name,
                addr: FiAddr::NOTAVAIL,
                link: Link::Idle,
                parked: None,
                pending: VecDeque::new(),
                falls_back: false,
                lost_rc: false,
                closed: false,
                removed: false,
                returns: 0,
                rests: None,
            }) as u32
        });
        if addr.is_some() {
            self.lead(addr, peer);
        }
        peer
    }

    /// Whether there is one that has no number in the address vector.
    pub(crate) fn has_strangers(&self) -> bool {
        self.strangers != 0
    }

    /// The address of a peer.
    pub(crate) fn name(&self, peer: u32) -> Option<NativeAddr> {
        let peer = self.peers.get(peer as usize)?;
        native_addr(&peer.key, peer.shm_name)
    }

    /// The peer of a key, if there is one.
    pub(crate) fn find(&self, key: &PeerKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// A peer by its place.
    #[inline]
    pub(crate) fn at(&mut self, peer: u32) -> &mut Peer {
        &mut self.peers[peer as usize]
    }
}
