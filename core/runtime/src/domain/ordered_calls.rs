//! How operations keep an order (`docs/adr/0065`): one waits until those are over that it must come
//! after, or where a device keeps the order by itself, goes the same way.

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Transport;
use ferrofabric_contracts::types::{FiAddr, MsgKind, RemoteKind, RmaOp};

use super::DomainState;
use super::orders::{Effects, OrderedWay, effects_of, kept_by_devices};
use super::remote::RemoteOperations;
use super::send_calls::{flush, wait_for_remote};

impl RemoteOperations {
    /// The way of an operation, or `None` if it has to wait for some before it. `peers`: its
    /// target's address, and another one of the same peer.
    pub(super) fn ordered_way(
        &self,
        effects: Effects,
        peers: (FiAddr, Option<FiAddr>),
    ) -> Option<OrderedWay> {
        let before = self.orders.before(effects);
        if before.is_empty() {
            return Some(OrderedWay::Any);
        }
        if self.waits_for_messages(effects, peers) {
            return None;
        }
        let by_device = self.shortcuts.effects_under_way(peers) & before;
        let follows_sends = before.contains(Effects::SEND);
        match by_device.is_empty() {
            true if follows_sends => Some(OrderedWay::Messages),
            true => Some(OrderedWay::Any),
            false if follows_sends => None,
            false => kept_by_devices(effects)
                .contains(by_device)
                .then_some(OrderedWay::Device),
        }
    }

    /// Whether an operation has to wait for some that go as messages.
    pub(super) fn waits_for_messages(
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

/// The way of an operation, once those before it are over or go the same way.
///
/// # Errors
///
/// `Again`: some are not over.
#[cold]
pub(super) fn in_order<T: Transport>(
    state: &mut DomainState<T>,
    index: usize,
    effects: Effects,
    peer: FiAddr,
) -> Result<OrderedWay, OpError> {
    let (_, owner) = state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    let peers = (peer, owner.first_of(peer));
    if let Some(way) = owner.srx.remote.ordered_way(effects, peers) {
        return Ok(way);
    }
    flush(state, index);
    Err(OpError::Again)
}

impl<T: Transport> DomainState<T> {
    /// The way of a read or a write, after those before it that it must not overtake.
    ///
    /// # Errors
    ///
    /// `Again`: some are not over.
    #[inline]
    pub(super) fn way_of(&mut self, index: usize, op: &RmaOp) -> Result<OrderedWay, OpError> {
        if op.flags.contains(Flags::FENCE) {
            wait_for_remote(self, index, op.dest)?;
            return Ok(OrderedWay::Messages);
        }
        match self.endpoints[index].srx.remote.orders.is_any() {
            true => in_order(self, index, effects_of(op), op.dest),
            false => Ok(OrderedWay::Any),
        }
    }
}
