//! What an operation has to wait for, among those of its endpoint that are under way
//! (`docs/adr/0065`).

use ferrofabric_contracts::types::{FiAddr, MsgKind, RemoteKind};

use super::operations::RemoteOperations;
use super::orders::{Effects, effects_of, kept_by_devices};
use super::plan::Behind;

impl RemoteOperations {
    /// What the operations before one leave open, or `None` if it has to wait for some. `peers`: its
    /// target's address, and another one of the same peer.
    pub(crate) fn behind_of(
        &self,
        effects: Effects,
        peers: (FiAddr, Option<FiAddr>),
    ) -> Option<Behind> {
        let before = self.orders.before(effects);
        if before.is_empty() {
            return Some(Behind::Nothing);
        }
        if self.waits_for_messages(effects, peers) {
            return None;
        }
        let by_device = self.shortcuts.effects_under_way(peers) & before;
        let follows_sends = before.contains(Effects::SEND);
        match by_device.is_empty() {
            true if follows_sends => Some(Behind::Messages),
            true => Some(Behind::Nothing),
            false if follows_sends => None,
            false => kept_by_devices(effects)
                .contains(by_device)
                .then_some(Behind::Device),
        }
    }

    /// Whether an operation has to wait for some that go as messages.
    pub(crate) fn waits_for_messages(
        &self,
        effects: Effects,
        peers: (FiAddr, Option<FiAddr>),
    ) -> bool {
        let before = self.orders.before(effects);
        !before.is_empty() && self.effects_by_messages(peers).intersects(before)
    }

    /// The effects of the operations on a peer's memory that are not over, but for those that a
    /// device carries out.
    fn effects_by_messages(&self, peers: (FiAddr, Option<FiAddr>)) -> Effects {
        let is_of = |of: FiAddr| of == peers.0 || Some(of) == peers.1;
        let reads = (self.reads())
            .filter(|read| read.targets().into_iter().flatten().any(is_of))
            .map(|read| Effects::of(read.op.kind, read.op.flags));
        let writes = (self.noticed.iter())
            .filter(|(_, write)| write.targets().into_iter().flatten().any(is_of))
            .map(|_| Effects::WRITE);
        let lost = (self.shortcuts.lost.iter())
            .filter(|one| is_of(one.op.dest))
            .map(|one| effects_of(&one.op));
        let notices = [Some(peers.0), peers.1].into_iter().flatten();
        let notices = notices
            .flat_map(|peer| self.outbox.of(peer))
            .filter(|part| part.op.kind == MsgKind::Remote(RemoteKind::Notice))
            .map(|_| Effects::WRITE);
        (reads.chain(writes).chain(lost).chain(notices)).fold(Effects::empty(), Effects::union)
    }
}
