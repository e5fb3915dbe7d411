//! Closes of this side that wait for peers: a peer whose application computes does not drive its
//! endpoint, so its service thread is requested to have it driven (`docs/adr/0089`).

use std::collections::HashSet;
use std::time::Duration;

use ferrofabric_contracts::types::FiAddr;
use ferrofabric_protocol::PeerKey;

use super::RdmTransport;
use crate::connect::ToService;
use crate::lane::Lane;
use crate::session::{RdmPeer, SessionState};

/// How long the close of an endpoint waits for acknowledgements before it requests that peers be
/// driven. Those of peers that are driven have mostly come by then.
const BEFORE_REQUEST: Duration = Duration::from_millis(1);

/// The time between the first two such requests, of which each may be lost, or come when nothing can
/// move. It doubles each time, up to the longest.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(5);
const LONGEST_BETWEEN_REQUESTS: Duration = Duration::from_millis(160);

impl RdmTransport {
    /// As [`Transport::request_drive`](ferrofabric_contracts::peer::Transport::request_drive).
    #[cold]
    pub(super) fn request_drive_of(&mut self, addr: FiAddr) {
        if let Some(peer) = self.peers.routed(addr) {
            let peer = self.peers.at(peer).key;
            self.service.request(ToService::RequestDrive(peer));
        }
    }

    /// This endpoint closes, and waits until its peers have taken all that was sent.
    #[cold]
    pub(super) fn request_drive_of_all(&mut self) {
        let now = self.ud.now();
        let first = (now + BEFORE_REQUEST, BETWEEN_REQUESTS);
        let (due, pause) = *self.drives_due.get_or_insert(first);
        if now < due {
            return;
        }
        let next_pause = (2 * pause).min(LONGEST_BETWEEN_REQUESTS);
        self.drives_due = Some((now + pause, next_pause));
        for peer in self.awaited_peers() {
            self.service.request(ToService::RequestDrive(peer));
        }
    }

    /// The peers that have not taken all that was sent to them.
    fn awaited_peers(&mut self) -> HashSet<PeerKey> {
        let is_drained = |lane: &Lane| {
            lane.session().is_none_or(SessionState::is_drained) && lane.undelivered() == 0
        };
        let with_lanes: Vec<u32> = (self.lanes.iter())
            .filter(|lane| !is_drained(lane))
            .map(|lane| lane.head().peer)
            .collect();
        let waits = |peer: &&RdmPeer| {
            let parked = peer.parked.as_deref();
            !peer.pending.is_empty() || parked.is_some_and(|session| !session.is_drained())
        };
        let mut awaited: HashSet<_> =
            (self.peers.iter().filter(waits).map(|peer| peer.key)).collect();
        let with_lanes = with_lanes.into_iter().map(|peer| self.peers.at(peer).key);
        awaited.extend(with_lanes);
        awaited
    }
}
