//! The parts of one-sided operations that an endpoint sends by itself: replies to peers' reads, and
//! notices of its own writes. They wait by peer, so that one that takes nothing holds up no other.

use std::collections::{HashMap, VecDeque};

use ferrofabric_contracts::types::{FiAddr, IoBuf, SendOp};

/// A part to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteSend {
    pub(super) op: SendOp,
    pub(super) from: IoBuf,
}

/// The parts that wait, in order for each peer.
#[derive(Default)]
pub(super) struct PartOutbox(HashMap<FiAddr, VecDeque<RemoteSend>>);

impl PartOutbox {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of parts that wait for a peer.
    pub(super) fn len_for(&self, peer: FiAddr) -> usize {
        self.0.get(&peer).map_or(0, VecDeque::len)
    }

    pub(super) fn push(&mut self, part: RemoteSend) {
        self.0.entry(part.op.dest).or_default().push_back(part);
    }

    /// Takes the parts of a peer out.
    pub(super) fn take_of(&mut self, peer: FiAddr) -> VecDeque<RemoteSend> {
        self.0.remove(&peer).unwrap_or_default()
    }

    /// The peers that parts wait for.
    pub(super) fn peers(&self) -> Vec<FiAddr> {
        self.0.keys().copied().collect()
    }

    /// Puts parts of a peer back, before those that were pushed since.
    pub(super) fn put_back(&mut self, peer: FiAddr, mut parts: VecDeque<RemoteSend>) {
        if let Some(since) = self.0.remove(&peer) {
            parts.extend(since);
        }
        if !parts.is_empty() {
            self.0.insert(peer, parts);
        }
    }
}
