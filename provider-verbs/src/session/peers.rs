//! The peers of an endpoint: their addresses, the lane that carries their session, and the requests
//! that wait for it.
//!
//! A peer is forgotten once nothing leads to it: no entry of the address vector, no lane, nothing
//! that waits. A peer whose session is parked is kept for that, but only as one of [`MAX_KEPT`]:
//! the session that was parked longest ends first. Both sides of a parked session have received all
//! messages, so its end loses nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use slab::Slab;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::routes::{Epoch, RouteTable};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_protocol::lanes::PeerLanes;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::{PeerKey, Time, give_back_room};

use super::pending::Pending;
use super::state::SessionState;
use crate::connect::{native_addr, peer_key};

/// Peers that are kept for a session that rests, and for nothing else.
const MAX_KEPT: usize = 1024;

/// A session rests so long in any case. A packet of the peer's may have crossed our leaving the
/// lane, and the peer comes back with it at once.
const MIN_REST: Duration = Duration::from_secs(2);

/// A peer.
pub(crate) struct Peer {
    pub(crate) key: PeerKey,
    /// The name of its shared-memory endpoint, if it has one.
    shm_name: u64,
    /// Its number in the address vector, if it has one.
    pub(crate) addr: FiAddr,
    /// The lane that carries the session, or is in its end.
    pub(crate) lane: Option<SessionId>,
    /// The session, while it has no lane.
    pub(crate) parked: Option<Box<SessionState>>,
    pub(crate) pending: VecDeque<Pending>,
    /// The session rests, and so much of its credit was lent meanwhile.
    pub(crate) lent: Option<u32>,
    uses: Uses,
    lists: Lists,
}

/// References to a peer, and requests that wait for it.
#[derive(Default)]
struct Uses {
    /// Its messages that wait for a receive.
    held: u32,
    /// Entries of the address vector that lead to it.
    routes: u32,
    /// Lanes to it, those included that carry no session yet or are in their end.
    lanes: u32,
}

impl Uses {
    fn are_none(&self) -> bool {
        self.lanes == 0 && self.routes == 0 && self.held == 0
    }
}

/// Which lists a peer is in.
#[derive(Default)]
struct Lists {
    /// It has no number, and a lane or a message that is to have one as soon as it is inserted.
    is_stranger: bool,
    /// It is among those to be looked at.
    is_listed: bool,
    /// It is kept for its session: since when, and its place in line.
    kept: Option<(Time, u64)>,
}

/// The next step for a peer without a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in use.
    Stays,
    /// Only its session, which rests or is to rest, keeps it.
    Rests,
    /// Nothing keeps it.
    Goes,
}

impl Peer {
    /// Whether entries of the address vector lead to it.
    pub(crate) fn is_routed(&self) -> bool {
        self.uses.routes > 0
    }

    fn fate(&self, peer: u32, life: &PeerLanes) -> Fate {
        let is_used = life.is_linked(peer) || !self.uses.are_none() || !self.pending.is_empty();
        match &self.parked {
            _ if is_used || life.goes_on(peer) => Fate::Stays,
            Some(_) => Fate::Rests,
            None => Fate::Goes,
        }
    }
}

/// All peers that were spoken to, or that spoke to us.
#[derive(Default)]
pub(crate) struct Peers {
    peers: Slab<Peer>,
    by_key: HashMap<PeerKey, u32>,
    /// The peer that each address leads to.
    routes: RouteTable<u32>,
    epoch: Epoch,
    /// Those that wait for a number.
    strangers: usize,
    /// Those that may be in use no longer.
    listed: Vec<u32>,
    /// Those that are kept for their sessions, in the order in which these came to rest.
    kept: BTreeMap<u64, u32>,
    next_kept: u64,
}

/// The route to a peer. It is good until the address is removed. The epoch ends where another peer
/// gets the address before the removal is announced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerRoute {
    epoch: Option<Epoch>,
    peer: u32,
}

impl Peers {
    /// How many have a session without a lane.
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
        self.know(peer);
    }

    fn lose_route(&mut self, peer: u32) {
        if let Some(peer) = self.peers.get_mut(peer as usize) {
            peer.uses.routes -= 1;
        }
    }

    /// Forgets where an address leads, and says where it did. The peer may still speak to us.
    pub(crate) fn unroute(&mut self, addr: FiAddr) -> Option<u32> {
        let peer = self.routes.remove(addr)?;
        self.lose_route(peer);
        let known = &mut self.peers[peer as usize];
        if known.addr == addr {
            // It may be in the address vector twice.
            let routes = &self.routes;
            let other = || routes.iter().find(|(_, to)| *to == peer);
            known.addr = match known.uses.routes {
                0 => FiAddr::NOTAVAIL,
                _ => other().map_or(FiAddr::NOTAVAIL, |(addr, _)| addr),
            };
        }
        if !known.addr.is_some() {
            self.await_number(peer);
        }
        Some(peer)
    }

    /// A message with this endpoint's number for the session is due to the peer.
    fn await_number(&mut self, peer: u32) {
        let peer = &mut self.peers[peer as usize];
        self.strangers += usize::from(!std::mem::replace(&mut peer.lists.is_stranger, true));
    }

    /// A peer has a number, or will be looked up before it needs one.
    fn know(&mut self, peer: u32) {
        let peer = &mut self.peers[peer as usize];
        self.strangers -= usize::from(std::mem::take(&mut peer.lists.is_stranger));
    }

    /// The peer of a key, made if there is none; `shm_name` names its shared-memory endpoint. If it
    /// has an address, that leads to it from now on: also to one that only speaks to us, for when
    /// the address is removed.
    pub(crate) fn peer_of(&mut self, key: PeerKey, shm_name: u64, addr: FiAddr) -> u32 {
        let peer = *self.by_key.entry(key).or_insert_with(|| {
            self.peers.insert(Peer {
                key,
                shm_name,
                addr: FiAddr::NOTAVAIL,
                lane: None,
                parked: None,
                pending: VecDeque::new(),
                lent: None,
                uses: Uses::default(),
                lists: Lists::default(),
            }) as u32
        });
        self.use_again(peer);
        if addr.is_some() {
            if self.routed(addr) != Some(peer) {
                self.lead(addr, peer);
            }
        } else if !self.peers[peer as usize].addr.is_some() {
            self.await_number(peer);
        }
        peer
    }

    /// A lane is about to begin on which nothing has come yet, nor that the peer can use it. Only
    /// when something does is the peer to have its number: a source that says hello and no more
    /// makes nobody wait for it.
    pub(crate) fn is_unheard(&mut self, peer: u32) {
        let at = self.at(peer);
        if at.uses.lanes == 0 && at.uses.held == 0 {
            self.know(peer);
        }
    }

    /// A lane to a peer begins.
    pub(crate) fn begin_lane(&mut self, peer: u32) {
        self.at(peer).uses.lanes += 1;
    }

    /// A lane to a peer is no more.
    pub(crate) fn end_lane(&mut self, peer: u32) {
        self.at(peer).uses.lanes -= 1;
        self.list(peer);
    }

    /// A message of a peer's waits for a receive.
    pub(crate) fn hold(&mut self, peer: u32) {
        self.at(peer).uses.held += 1;
    }

    /// A message of a peer's waits no longer.
    pub(crate) fn let_go(&mut self, peer: u32) {
        if let Some(at) = self.peers.get_mut(peer as usize) {
            at.uses.held -= 1;
            if at.uses.held == 0 && at.lane.is_none() {
                self.list(peer);
            }
        }
    }

    /// A peer may be in use no longer: it is looked at once nobody who names it by its place is
    /// under way.
    pub(crate) fn list(&mut self, peer: u32) {
        let at = &mut self.peers[peer as usize];
        if !std::mem::replace(&mut at.lists.is_listed, true) {
            self.listed.push(peer);
        }
    }

    /// Whether some are to be looked at, or too many are kept.
    #[inline]
    pub(crate) fn are_to_be_sorted(&self) -> bool {
        !self.listed.is_empty() || self.kept.len() > MAX_KEPT
    }

    /// The next peer in the list, and its next step.
    pub(crate) fn next_listed(&mut self, life: &PeerLanes) -> Option<(u32, Fate)> {
        while let Some(peer) = self.listed.pop() {
            if let Some(at) = self.peers.get_mut(peer as usize) {
                at.lists.is_listed = false;
                return Some((peer, at.fate(peer, life)));
            }
        }
        None
    }

    /// A peer is kept for its session alone. It gets its number when it comes back.
    pub(crate) fn keep(&mut self, peer: u32, now: Time) {
        self.know(peer);
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

    /// The peer whose session has rested longest, if too many are kept.
    pub(crate) fn too_many(&self, now: Time) -> Option<u32> {
        let (_, &oldest) = self.kept.first_key_value()?;
        let (since, _) = self.peers.get(oldest as usize)?.lists.kept?;
        (self.kept.len() > MAX_KEPT && now - since >= MIN_REST).then_some(oldest)
    }

    /// Forgets a peer that nothing leads to.
    pub(crate) fn forget(&mut self, peer: u32) -> Option<Peer> {
        self.use_again(peer);
        self.know(peer);
        let gone = self.peers.try_remove(peer as usize)?;
        debug_assert!(!gone.lists.is_listed);
        self.by_key.remove(&gone.key);
        give_back_room(&mut self.by_key);
        Some(gone)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.peers.len()
    }

    /// All of them, to be looked at.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().map(|(_, peer)| peer)
    }

    /// Whether there is one that has no number in the address vector and would use one: it has a
    /// lane, or a message that waits.
    pub(crate) fn has_unknown_sources(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::config::LaneChoice;
    use ferrofabric_protocol::rendezvous::TransferLimits;
    use ferrofabric_protocol::session::{Origin, Session, Start};

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
        let start = Start {
            name: 1,
            remote: SessionId(1),
            peer_grants_units: 1,
            we_grant_units: 1,
        };
        let numbers = Session::begin(Origin::default(), &start);
        let state = SessionState::new(numbers, &start, limits, limits);
        Some(Box::new(state))
    }

    fn fates(peers: &mut Peers) -> Vec<(u32, Fate)> {
        let life = PeerLanes::new(ferrofabric_protocol::lanes::Config {
            choice: LaneChoice::Auto,
            datagrams: true,
            requests_fit_datagrams: true,
            policy: ferrofabric_protocol::lane_policy::Config::default(),
        });
        std::iter::from_fn(|| peers.next_listed(&life)).collect()
    }

    /// A peer stays as long as anything leads to it, whichever of all goes last.
    #[test]
    fn what_leads_to_a_peer_keeps_it() {
        let mut peers = Peers::default();
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
        assert_eq!(fates(&mut peers), [(peer, Fate::Stays)]);
        peers.end_lane(peer);
        assert_eq!(fates(&mut peers), [(peer, Fate::Stays)]);
        peers.let_go(peer);
        assert_eq!(fates(&mut peers), [(peer, Fate::Goes)]);
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
        let mut peers = Peers::default();
        let first = peers.peer_of(key(1), 0, addr(5));
        assert_eq!(peers.follow(&PeerRoute::default()), None);
        let to_first = peers.route_to(first);
        assert_eq!(peers.follow(&to_first), Some(first));
        let second = peers.peer_of(key(2), 0, addr(5));
        assert_eq!(peers.routed(addr(5)), Some(second));
        assert_eq!(peers.follow(&to_first), None, "the route is over");
        assert_eq!(peers.follow(&peers.route_to(second)), Some(second));
        peers.list(first);
        assert_eq!(fates(&mut peers), [(first, Fate::Goes)]);
    }

    /// Of those that are kept for their sessions the oldest goes, once there are too many and it
    /// has rested for a while; who comes back is no longer among them. No insertion has to be
    /// announced to any of them.
    #[test]
    fn the_oldest_of_too_many_goes() {
        let mut peers = Peers::default();
        let (begin, rested) = (Time(1), Time(1) + MIN_REST);
        for number in 0..=MAX_KEPT as u64 {
            let peer = peers.peer_of(key(number), 0, FiAddr::NOTAVAIL);
            peers.at(peer).parked = session();
            assert!(peers.has_unknown_sources());
            peers.list(peer);
            assert_eq!(fates(&mut peers), [(peer, Fate::Rests)]);
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
