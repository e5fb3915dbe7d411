//! The effects of insertions into the address vector and of removals.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{Owner, PEER_REMOVED, PeerSrx, SendDone};
use ferrofabric_contracts::types::FiAddr;

use super::ShmTransport;
use crate::peers::PeerState;
use crate::service::ServiceCommand;

impl ShmTransport {
    /// A peer was inserted: its messages have a source now.
    pub(super) fn inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        let Some(id) = name.shm else { return };
        let mut met = None;
        if let Some(&mut PeerState::Up(key)) = self.peers.get_mut(id) {
            let link = &mut *self.links[key];
            if link.native() == *name && !link.addr().is_some() {
                link.set_addr(addr);
                self.peers.set_id(addr, id);
                self.unwatch(key);
                met = Some(key);
            }
        }
        if met.is_none() && !self.receiver.has_linkless() {
            return;
        }
        let receiver = &self.receiver;
        (owner.srx()).resolve(addr, |token| receiver.is_from(token, met, name));
    }

    /// A peer was removed: its waiting sends fail, and its link is closed once it is idle.
    pub(super) fn removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        owner.srx().forget_source(addr);
        self.unroute(addr, Errno::ECANCELED, PEER_REMOVED, owner);
    }

    /// No send to an address goes to its peer any more: those that wait fail, and the link is closed
    /// once it is idle.
    pub(super) fn unroute<O: Owner>(
        &mut self,
        addr: FiAddr,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let mut id = self.peers.forget_addr(addr);
        for (_, link) in self.links.iter_mut().filter(|(_, l)| l.addr() == addr) {
            link.set_addr(FiAddr::NOTAVAIL);
            id = Some(link.id());
        }
        let Some(id) = id else { return };
        let mut is_connecting = false;
        let queue = match self.peers.get_mut(id) {
            Some(PeerState::Connecting(queue)) => {
                is_connecting = true;
                queue
            }
            Some(&mut PeerState::Up(key)) => {
                if !self.links[key].addr().is_some() {
                    self.watch_removed(key);
                }
                self.links[key].pending_mut()
            }
            Some(PeerState::IdleClosed(_)) => {
                self.peers.remove(id);
                self.service
                    .request(ServiceCommand::Forget(id, None, false));
                return;
            }
            Some(PeerState::Gone(_)) => {
                self.peers.remove(id);
                return;
            }
            None => return,
        };
        for send in queue.take(|send| send.op.dest == addr) {
            owner.fail_send(&SendDone::of(&send.op, 0), errno, 0, why);
        }
        if is_connecting && queue.is_empty() {
            self.peers.remove(id);
            self.service.request(ServiceCommand::Cancel(id));
        }
    }
}
