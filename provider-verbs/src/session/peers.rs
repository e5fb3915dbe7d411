//! The peers of an endpoint: their addresses, the lane that carries their session, and the requests
//! that wait for it.
//!
//! A peer is forgotten once nothing refers to it: no entry of the address vector, no lane, no
//! waiting operation. A peer whose session is parked is kept for that, but only as one of
//! [`MAX_KEPT`]: the session that was parked longest ends first. Both sides of a parked session
//! have received all messages, so its end loses nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use slab::Slab;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::requester::{index_of, requester};
use ferrofabric_contracts::routes::{Epoch, RouteTable};
use ferrofabric_contracts::send_line::SendLine;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_protocol::lanes::PeerLanes;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::{PeerKey, Time, give_back_room};

use super::pending::Pending;
use super::state::SessionState;
use crate::connect::{native_addr, peer_key};

/// The number of the transport whose peers these are in the tokens of an endpoint, and in the
/// sources of requests.
pub(crate) const TRANSPORT: u32 = 0;

/// Peers that are kept for a parked session alone, at most.
const MAX_KEPT: usize = 1024;

/// The shortest time for which a session stays parked. A packet of the peer may have crossed the
/// close of the lane, and then the peer needs the session at once.
const MIN_REST: Duration = Duration::from_secs(2);

/// A peer.
pub(crate) struct RdmPeer {
    pub(crate) key: PeerKey,
    /// The name of its shared-memory endpoint, if it has one.
    shm_name: u64,
    /// Its `FiAddr` in the address vector, if it has one.
    pub(crate) addr: FiAddr,
    /// The source of its requests.
    pub(crate) requester: FiAddr,
    /// The lane that carries the session, or is closing.
    pub(crate) lane: Option<SessionId>,
    /// The session, while it has no lane.
    pub(crate) parked: Option<Box<SessionState>>,
    pub(crate) pending: SendLine<Pending>,
    /// The session is parked, and this much of its credit was lent meanwhile.
    pub(crate) lent: Option<u32>,
    uses: PeerUses,
    lists: PeerLists,
}

/// References to a peer, and requests that wait for it.
#[derive(Default)]
struct PeerUses {
    /// Its unexpected messages.
    held: u32,
    /// Entries of the address vector that lead to it.
    routes: u32,
    /// Lanes to it, including lanes that carry no session yet or are closing.
    lanes: u32,
}

impl PeerUses {
    fn are_none(&self) -> bool {
        self.lanes == 0 && self.routes == 0 && self.held == 0
    }
}

/// The lists that contain a peer.
#[derive(Default)]
struct PeerLists {
    /// It has no entry in the address vector, but has a lane or a message, so that it needs one as
    /// soon as it is inserted.
    needs_entry: bool,
    /// It is in the list of peers to be checked.
    is_listed: bool,
    /// It is kept for its session: since when, and its place in the order.
    kept: Option<(Time, u64)>,
}

/// The next step for a peer without a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerFate {
    /// It is in use.
    Stays,
    /// Only its session keeps it, which is parked or can be.
    Rests,
    /// Nothing keeps it.
    Goes,
}

impl RdmPeer {
    /// Whether entries of the address vector lead to it.
    pub(crate) fn is_routed(&self) -> bool {
        self.uses.routes > 0
    }

    fn fate(&self, peer: u32, life: &PeerLanes) -> PeerFate {
        let is_used = life.is_linked(peer) || !self.uses.are_none() || !self.pending.is_empty();
        match &self.parked {
            _ if is_used || life.goes_on(peer) => PeerFate::Stays,
            Some(_) => PeerFate::Rests,
            None => PeerFate::Goes,
        }
    }
}

/// All peers that have sent to this endpoint, or that it has sent to.
#[derive(Default)]
pub(crate) struct PeerTable {
    peers: Slab<RdmPeer>,
    by_key: HashMap<PeerKey, u32>,
    /// The peer that each address leads to.
    routes: RouteTable<u32>,
    epoch: Epoch,
    /// The number of peers that wait for an entry in the address vector.
    unlisted: usize,
    /// Peers that may not be in use any more.
    listed: Vec<u32>,
    /// Peers that are kept for their sessions, in the order in which these were parked.
    kept: BTreeMap<u64, u32>,
    next_kept: u64,
    /// Number of peers so far.
    made: u64,
}

/// The route to a peer. It is valid until the address is removed. The epoch ends when another peer
/// gets the address before the removal is announced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerRoute {
    epoch: Option<Epoch>,
    peer: u32,
}

impl PeerTable {
    /// The number of peers that have a session without a lane.
    pub(crate) fn parked(&self) -> usize {
        let parked = self.peers.iter().filter(|(_, peer)| peer.parked.is_some());
        parked.count()
    }

    /// The peer that an address leads to, if it was used before.
    pub(crate) fn routed(&self, addr: FiAddr) -> Option<u32> {
        self.routes.get(addr)
    }

    /// The peer that a route leads to, if it still leads there.
    #[inline]
    pub(crate) fn follow(&self, route: &PeerRoute) -> Option<u32> {
        self.epoch.is_of(route.epoch).then_some(route.peer)
    }

    /// The route to a peer that an address leads to.
    pub(crate) fn route_to(&self, peer: u32) -> PeerRoute {
        PeerRoute {
            epoch: self.epoch.stamp(),
            peer,
        }
    }

    /// No route that was filled in before leads anywhere.
    pub(crate) fn end_routes(&mut self) {
        self.epoch.end();
    }

    /// Makes an address lead to a peer, which is made if there is none of that name.
    pub(crate) fn route(&mut self, addr: FiAddr, name: &NativeAddr) -> u32 {
        self.peer_of(peer_key(name), name.shm.unwrap_or(0), addr)
    }

    fn lead(&mut self, addr: FiAddr, peer: u32) {
        if let Some((_, before)) = self.routes.insert(addr, peer) {
            self.epoch.end();
            self.lose_route(before);
        }
        let known = &mut self.peers[peer as usize];
        known.uses.routes += 1;
        known.addr = addr;
        self.set_known(peer);
    }

    fn lose_route(&mut self, peer: u32) {
        if let Some(peer) = self.peers.get_mut(peer as usize) {
            peer.uses.routes -= 1;
        }
    }

    /// Removes the entry of an address, and returns its peer. The peer may still send to this
    /// endpoint.
    pub(crate) fn unroute(&mut self, addr: FiAddr) -> Option<u32> {
        let peer = self.routes.remove(addr)?;
        self.lose_route(peer);
        let known = &mut self.peers[peer as usize];
        if known.addr == addr {
            // The peer may be in the address vector twice.
            let routes = &self.routes;
            let other = || routes.iter().find(|(_, to)| *to == peer);
            known.addr = match known.uses.routes {
                0 => FiAddr::NOTAVAIL,
                _ => other().map_or(FiAddr::NOTAVAIL, |(addr, _)| addr),
            };
        }
        if !known.addr.is_some() {
            self.await_entry(peer);
        }
        Some(peer)
    }

    /// A peer needs an entry in the address vector as soon as it is inserted.
    fn await_entry(&mut self, peer: u32) {
        let peer = &mut self.peers[peer as usize];
        self.unlisted += usize::from(!std::mem::replace(&mut peer.lists.needs_entry, true));
    }

    /// A peer has an entry, or will be looked up before it needs one.
    fn set_known(&mut self, peer: u32) {
        let peer = &mut self.peers[peer as usize];
        self.unlisted -= usize::from(std::mem::take(&mut peer.lists.needs_entry));
    }

    /// The peer of a key, made if there is none; `shm_name` names its shared-memory endpoint. If
    /// `addr` is an address, it leads to the peer from now on. That holds for a peer that only
    /// sends to this endpoint, too, because the address may be removed later.
    pub(crate) fn peer_of(&mut self, key: PeerKey, shm_name: u64, addr: FiAddr) -> u32 {
        let (peers, made) = (&mut self.peers, &mut self.made);
        let peer = *self.by_key.entry(key).or_insert_with(|| {
            *made += 1;
            let requester = requester(TRANSPORT, peers.vacant_key(), *made);
            peers.insert(RdmPeer {
                key,
                shm_name,
                addr: FiAddr::NOTAVAIL,
                requester,
                lane: None,
                parked: None,
                pending: SendLine::default(),
                lent: None,
                uses: PeerUses::default(),
                lists: PeerLists::default(),
            }) as u32
        });
        self.use_again(peer);
        if addr.is_some() {
            if self.routed(addr) != Some(peer) {
                self.lead(addr, peer);
            }
        } else if !self.peers[peer as usize].addr.is_some() {
            self.await_entry(peer);
        }
        peer
    }

    /// A lane is about to begin on which no packet has come yet, so that it is not sure that the
    /// peer can use it. The peer gets its entry only after a packet: a source that sends a hello
    /// and no more makes no caller wait.
    pub(crate) fn is_unheard(&mut self, peer: u32) {
        let at = self.at(peer);
        if at.uses.lanes == 0 && at.uses.held == 0 {
            self.set_known(peer);
        }
    }

    /// A lane to a peer begins.
    pub(crate) fn begin_lane(&mut self, peer: u32) {
        self.at(peer).uses.lanes += 1;
    }

    /// A lane to a peer has ended.
    pub(crate) fn end_lane(&mut self, peer: u32) {
        self.at(peer).uses.lanes -= 1;
        self.list(peer);
    }

    /// An unexpected message of a peer waits.
    pub(crate) fn hold(&mut self, peer: u32) {
        self.at(peer).uses.held += 1;
    }

    /// An unexpected message of a peer waits no longer.
    pub(crate) fn release_message(&mut self, peer: u32) {
        if let Some(at) = self.peers.get_mut(peer as usize) {
            at.uses.held -= 1;
            if at.uses.held == 0 && at.lane.is_none() {
                self.list(peer);
            }
        }
    }

    /// A peer may not be in use any more: it is checked once no caller uses its index.
    pub(crate) fn list(&mut self, peer: u32) {
        let at = &mut self.peers[peer as usize];
        if !std::mem::replace(&mut at.lists.is_listed, true) {
            self.listed.push(peer);
        }
    }

    /// Whether some peers have to be checked, or too many are kept.
    #[inline]
    pub(crate) fn need_sorting(&self) -> bool {
        !self.listed.is_empty() || self.kept.len() > MAX_KEPT
    }

    /// The next peer in the list, and its next step.
    pub(crate) fn next_listed(&mut self, life: &PeerLanes) -> Option<(u32, PeerFate)> {
        while let Some(peer) = self.listed.pop() {
            if let Some(at) = self.peers.get_mut(peer as usize) {
                at.lists.is_listed = false;
                return Some((peer, at.fate(peer, life)));
            }
        }
        None
    }

    /// A peer is kept for its session alone. It gets its entry when it comes back.
    pub(crate) fn keep(&mut self, peer: u32, now: Time) {
        self.set_known(peer);
        let at = &mut self.peers[peer as usize];
        if at.lists.kept.is_none() {
            at.lists.kept = Some((now, self.next_kept));
            self.kept.insert(self.next_kept, peer);
            self.next_kept += 1;
        }
    }

    fn use_again(&mut self, peer: u32) {
        if let Some((_, place)) = self.peers[peer as usize].lists.kept.take() {
            self.kept.remove(&place);
        }
    }

    /// The peer whose session was parked longest, if too many are kept.
    pub(crate) fn too_many(&self, now: Time) -> Option<u32> {
        let (_, &oldest) = self.kept.first_key_value()?;
        let (since, _) = self.peers.get(oldest as usize)?.lists.kept?;
        (self.kept.len() > MAX_KEPT && now - since >= MIN_REST).then_some(oldest)
    }

    /// Forgets a peer that nothing refers to.
    pub(crate) fn forget(&mut self, peer: u32) -> Option<RdmPeer> {
        self.use_again(peer);
        self.set_known(peer);
        let gone = self.peers.try_remove(peer as usize)?;
        debug_assert!(!gone.lists.is_listed);
        self.by_key.remove(&gone.key);
        give_back_room(&mut self.by_key);
        Some(gone)
    }

    /// The number of peers.
    pub(crate) fn count(&self) -> usize {
        self.peers.len()
    }

    /// All peers, to be read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RdmPeer> {
        self.peers.iter().map(|(_, peer)| peer)
    }

    /// All peers with their indices, to be read.
    pub(crate) fn indexed(&self) -> impl Iterator<Item = (u32, &RdmPeer)> {
        (self.peers.iter()).map(|(index, peer)| (index as u32, peer))
    }

    /// Peers that have no entry in the address vector and would use one: each has a lane, or an
    /// unexpected message.
    pub(crate) fn unlisted(&self) -> usize {
        self.unlisted
    }

    /// Whether there are such peers.
    pub(crate) fn has_unknown_sources(&self) -> bool {
        self.unlisted != 0
    }

    /// The entry of a peer in the address vector, if it has one.
    pub(crate) fn addr(&self, peer: u32) -> FiAddr {
        let peer = self.peers.get(peer as usize);
        peer.map_or(FiAddr::NOTAVAIL, |peer| peer.addr)
    }

    /// The address of a peer.
    pub(crate) fn name(&self, peer: u32) -> Option<NativeAddr> {
        let peer = self.peers.get(peer as usize)?;
        native_addr(&peer.key, peer.shm_name)
    }

    /// The peer whose requests have a source, if it was not forgotten.
    pub(crate) fn of_requester(&self, source: FiAddr) -> Option<u32> {
        let peer = self.peers.get(index_of(source))?;
        (peer.requester == source).then_some(index_of(source) as u32)
    }

    /// The peer of a key, if there is one.
    pub(crate) fn find(&self, key: &PeerKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// A peer by its index.
    #[inline]
    pub(crate) fn at(&mut self, peer: u32) -> &mut RdmPeer {
        &mut self.peers[peer as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::config::LaneChoice;
    use ferrofabric_protocol::rendezvous::TransferLimits;
    use ferrofabric_protocol::session::{Origin, Session, SessionStart};

    fn key(number: u64) -> PeerKey {
        PeerKey {
            place: [number as u8; 64],
            incarnation: number,
        }
    }

    fn addr(number: u64) -> FiAddr {
        FiAddr(number)
    }

    fn session() -> Option<Box<SessionState>> {
        let limits = TransferLimits::default();
        let start = SessionStart {
            name: 1,
            remote: SessionId(1),
            peer_grants_units: 1,
            we_grant_units: 1,
        };
        let numbers = Session::begin(Origin::default(), &start);
        let state = SessionState::new(numbers, &start, limits, limits, 1);
        Some(Box::new(state))
    }

    fn fates(peers: &mut PeerTable) -> Vec<(u32, PeerFate)> {
        let life = PeerLanes::new(ferrofabric_protocol::lanes::LanesConfig {
            choice: LaneChoice::Auto,
            datagrams: true,
            requests_fit_datagrams: true,
            policy: ferrofabric_protocol::lane_policy::LanePolicyConfig::default(),
        });
        std::iter::from_fn(|| peers.next_listed(&life)).collect()
    }

    /// A peer stays as long as anything refers to it, in whatever order the references go.
    #[test]
    fn references_keep_a_peer() {
        let mut peers = PeerTable::default();
        let peer = peers.peer_of(key(1), 0, addr(5));
        assert!(!peers.has_unknown_sources());
        // The same endpoint, twice in the address vector.
        assert_eq!(peers.peer_of(key(1), 0, addr(6)), peer);
        peers.begin_lane(peer);
        peers.hold(peer);
        assert_eq!(peers.unroute(addr(6)), Some(peer));
        assert_eq!(
            (peers.at(peer).addr, peers.has_unknown_sources()),
            (addr(5), false)
        );
        assert_eq!(peers.unroute(addr(5)), Some(peer));
        assert!(peers.has_unknown_sources(), "it has a lane, and no number");
        peers.list(peer);
        assert_eq!(fates(&mut peers), [(peer, PeerFate::Stays)]);
        peers.end_lane(peer);
        assert_eq!(fates(&mut peers), [(peer, PeerFate::Stays)]);
        peers.release_message(peer);
        assert_eq!(fates(&mut peers), [(peer, PeerFate::Goes)]);
        assert!(peers.forget(peer).is_some());
        assert!(!peers.has_unknown_sources());
        assert_eq!(
            (peers.count(), peers.find(&key(1)), peers.routed(addr(5))),
            (0, None, None)
        );
    }

    /// An address that is given to another peer leads to the first no more.
    #[test]
    fn an_address_of_another_peer_does_not_keep_the_first() {
        let mut peers = PeerTable::default();
        let first = peers.peer_of(key(1), 0, addr(5));
        assert_eq!(peers.follow(&PeerRoute::default()), None);
        let to_first = peers.route_to(first);
        assert_eq!(peers.follow(&to_first), Some(first));
        let second = peers.peer_of(key(2), 0, addr(5));
        assert_eq!(peers.routed(addr(5)), Some(second));
        assert_eq!(peers.follow(&to_first), None, "the route is over");
        assert_eq!(peers.follow(&peers.route_to(second)), Some(second));
        peers.list(first);
        assert_eq!(fates(&mut peers), [(first, PeerFate::Goes)]);
    }

    /// Of the peers that are kept for their sessions, the oldest goes, once there are too many and
    /// its session has been parked for a while; a peer that comes back is no longer among them. No
    /// insertion has to be announced to any of them.
    #[test]
    fn the_oldest_of_too_many_goes() {
        let mut peers = PeerTable::default();
        let (begin, rested) = (Time(1), Time(1) + MIN_REST);
        for number in 0..=MAX_KEPT as u64 {
            let peer = peers.peer_of(key(number), 0, FiAddr::NOTAVAIL);
            peers.at(peer).parked = session();
            assert!(peers.has_unknown_sources());
            peers.list(peer);
            assert_eq!(fates(&mut peers), [(peer, PeerFate::Rests)]);
            peers.keep(peer, begin);
            assert!(!peers.has_unknown_sources());
        }
        assert_eq!(peers.too_many(begin), None, "it may be about to come back");
        let oldest = peers.find(&key(0));
        assert_eq!(peers.too_many(rested), oldest);
        // It comes back, and has a lane for a while.
        assert_eq!(Some(peers.peer_of(key(0), 0, FiAddr::NOTAVAIL)), oldest);
        assert!(peers.has_unknown_sources());
        assert_eq!(peers.too_many(rested), None);
        peers.keep(oldest.unwrap(), rested);
        let next = peers.find(&key(1)).unwrap();
        assert_eq!(peers.too_many(rested), Some(next));
        assert!(peers.forget(next).is_some());
        assert_eq!((peers.count(), peers.too_many(rested)), (MAX_KEPT, None));
    }
}
