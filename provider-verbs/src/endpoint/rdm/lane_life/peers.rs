//! The start, use and end of peers.
//!
//! A peer is forgotten once nothing leads to it (`session/peers.rs`).

use ferrofabric_contracts::peer::{Owner, PeerAv};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_protocol::PeerKey;

use super::super::RdmTransport;
use crate::connect::ToService;
use crate::session::PeerFate;

/// Parked sessions that end in one call, at most: each costs a system call.
const FORGOTTEN_AT_ONCE: usize = 64;

impl RdmTransport {
    /// The peer of a key, made if there is none; `addr` leads to it from now on.
    pub(in super::super) fn peer_of(&mut self, key: PeerKey, shm_name: u64, addr: FiAddr) -> u32 {
        let peer = self.peers.peer_of(key, shm_name, addr);
        if self.peers.at(peer).is_routed() {
            self.life.inserted(peer);
        }
        peer
    }

    /// A packet has come on the lane: its peer needs an entry of the address vector. The peer may
    /// have been inserted since the lane came up, and insertions of such peers are not announced.
    #[cold]
    pub(in super::super) fn is_heard<O: Owner>(&mut self, peer: u32, owner: &mut O) {
        let (key, is_known) = {
            let at = self.peers.at(peer);
            (at.key, at.addr.is_some())
        };
        let name = self.peers.name(peer).filter(|_| !is_known);
        if let Some(name) = name {
            let addr = owner.av().find(&name);
            self.peer_of(key, name.shm.unwrap_or(0), addr);
        }
    }

    /// Forgets the peers that nothing refers to any more, and the longest-parked peers if there are
    /// too many. To be called at the ends of calls: nobody uses the index of a peer then.
    #[cold]
    pub(in super::super) fn sort_peers(&mut self) {
        let now = self.ud.now();
        while let Some((peer, fate)) = self.peers.next_listed(&self.life) {
            match fate {
                PeerFate::Stays => {}
                PeerFate::Goes => self.forget_peer(peer),
                PeerFate::Rests => {
                    self.apply_without_owner(|life, _, _| life.rest(peer));
                    self.peers.keep(peer, now);
                }
            }
        }
        for _ in 0..FORGOTTEN_AT_ONCE {
            match self.peers.too_many(now) {
                Some(peer) => self.forget_peer(peer),
                None => break,
            }
        }
    }

    /// Forgets a peer. If it has a session, that is parked.
    fn forget_peer(&mut self, peer: u32) {
        debug_assert!(!self.life.is_linked(peer) && !self.life.goes_on(peer));
        let Some(gone) = self.peers.forget(peer) else {
            return;
        };
        let last_lane = self.life.forget(peer);
        let Some(state) = gone.parked else {
            return;
        };
        // The credit that the session kept when it was parked, for messages that have been received
        // since.
        self.grants.take_back(gone.lent.unwrap_or(0));
        let credit = &state.numbers.receive_credit;
        (self.grants).end(credit.quota_units(), credit.held_units());
        self.publish_grant();
        if let Some(lane) = last_lane {
            let peer = gone.key;
            self.service.request(ToService::SessionEnded { peer, lane });
        }
    }

    /// The session of a peer is parked: other peers may have the credit that it was granted and has
    /// not used.
    pub(super) fn lend_credit(&mut self, peer: u32) {
        let at = self.peers.at(peer);
        let Some(state) = at.parked.as_ref().filter(|_| at.lent.is_none()) else {
            return;
        };
        let credit = &state.numbers.receive_credit;
        let unused = u32::from(credit.quota_units()).saturating_sub(credit.held_units());
        at.lent = Some(unused);
        self.grants.lend(unused);
        self.publish_grant();
    }

    /// The session of a peer is unparked or ends: it gets back the credit that was lent.
    pub(super) fn reclaim_credit(&mut self, peer: u32) {
        if let Some(units) = self.peers.at(peer).lent.take() {
            self.grants.take_back(units);
            self.publish_grant();
        }
    }
}
