//! The one-sided operations that a transport carries out by itself (`docs/adr/0063`), until they
//! are over.

use std::collections::VecDeque;

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{FiAddr, RmaOp};
use slab::Slab;

use crate::rma::as_initiator::read_order::ReadPlace;
use crate::rma::orders::{Effects, effects_of};

/// An operation, until it is over.
pub(crate) struct ShortcutUnderWay {
    pub(crate) op: RmaOp,
    pub(crate) buffers: SendBuffers,
    /// The number of its grant.
    pub(crate) grant: u64,
    /// Of a read: its place among the reads of its peer, if it stands in their line.
    pub(crate) place: Option<ReadPlace>,
    /// It goes again, and nobody knows whether the device has carried it out.
    pub(crate) is_in_doubt: bool,
    /// Its peer is gone: it does not go again. In a box, because it is rare.
    pub(crate) ended: Option<Box<(Errno, &'static str)>>,
}

/// The operations under way at the transport, those that are to go again, and revocations that wait
/// for some of them.
#[derive(Default)]
pub(crate) struct Shortcuts {
    pub(crate) under_way: Slab<ShortcutUnderWay>,
    pub(crate) lost: VecDeque<ShortcutUnderWay>,
    pub(crate) revocations: Vec<(FiAddr, u64)>,
}

impl Shortcuts {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.lost.is_empty()
    }

    /// Whether some are to go again.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The operations that are not over.
    pub(crate) fn not_over(&self) -> impl Iterator<Item = &RmaOp> {
        let under_way = self.under_way.iter().map(|(_, one)| one);
        let going = (under_way.chain(&self.lost)).filter(|one| one.ended.is_none());
        going.map(|one| &one.op)
    }

    /// Whether operations on a peer's memory are not over.
    pub(crate) fn is_busy_with(&self, peer: FiAddr) -> bool {
        let under_way = self.under_way.iter().map(|(_, one)| one);
        (under_way.chain(&self.lost)).any(|one| one.op.dest == peer && one.ended.is_none())
    }

    /// The effects of the operations under way on a peer's memory, under any of its addresses.
    pub(crate) fn effects_under_way(&self, peers: (FiAddr, Option<FiAddr>)) -> Effects {
        let is_of = |of: FiAddr| of == peers.0 || Some(of) == peers.1;
        (self.under_way.iter().map(|(_, one)| one))
            .filter(|one| is_of(one.op.dest) && one.ended.is_none())
            .map(|one| effects_of(&one.op))
            .fold(Effects::empty(), Effects::union)
    }

    /// Whether an operation under way uses a grant, or one that is to go again.
    fn uses(&self, peer: FiAddr, grant: u64) -> bool {
        let under_way = self.under_way.iter().map(|(_, one)| one);
        (under_way.chain(&self.lost)).any(|one| one.op.dest == peer && one.grant == grant)
    }

    /// An operation with a grant has ended, or has gone again. Returns whether the peer has revoked
    /// the grant and waited for this operation: then the grant can be returned.
    pub(crate) fn was_last(&mut self, peer: FiAddr, grant: u64) -> bool {
        if self.revocations.is_empty() || self.uses(peer, grant) {
            return false;
        }
        let Some(at) = (self.revocations.iter()).position(|of| *of == (peer, grant)) else {
            return false;
        };
        self.revocations.swap_remove(at);
        true
    }

    /// A peer revokes a grant. Returns whether no operation uses it: else that is reported later.
    pub(crate) fn revoke(&mut self, peer: FiAddr, grant: u64) -> bool {
        let is_used = self.uses(peer, grant);
        if is_used && !self.revocations.contains(&(peer, grant)) {
            self.revocations.push((peer, grant));
        }
        !is_used
    }

    /// A peer is gone. Returns the operations that were to go again.
    pub(crate) fn end_peer(
        &mut self,
        peer: FiAddr,
        errno: Errno,
        why: &'static str,
    ) -> VecDeque<ShortcutUnderWay> {
        for (_, one) in &mut self.under_way {
            if one.op.dest == peer {
                one.ended.get_or_insert_with(|| Box::new((errno, why)));
            }
        }
        self.revocations.retain(|(of, _)| *of != peer);
        let lost = std::mem::take(&mut self.lost);
        let (ended, rest): (VecDeque<_>, _) = lost.into_iter().partition(|one| one.op.dest == peer);
        self.lost = rest;
        ended
    }

    /// An operation is to go again.
    pub(crate) fn lose(&mut self, one: ShortcutUnderWay) {
        self.lost.push_back(one);
    }
}
