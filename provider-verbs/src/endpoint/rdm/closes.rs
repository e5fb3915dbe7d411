//! Closes of this side that wait for peers: a peer whose application computes does not drive its
//! endpoint, so its service thread is requested to have it driven (`docs/adr/0089`).

use ferrofabric_contracts::types::FiAddr;

use super::RdmTransport;
use crate::connect::ToService;

impl RdmTransport {
    /// As [`Transport::request_drive`](ferrofabric_contracts::peer::Transport::request_drive).
    #[cold]
    pub(super) fn request_drive_of(&mut self, addr: FiAddr) {
        if let Some(peer) = self.peers.routed(addr) {
            let peer = self.peers.at(peer).key;
            self.service.request(ToService::RequestDrive(peer));
        }
    }
}
