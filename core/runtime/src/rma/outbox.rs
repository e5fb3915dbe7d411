//! The parts of one-sided operations that an endpoint sends by itself: replies to peers' reads,
//! notices of its own writes, and those about grants. They wait by peer, so that one that takes
//! nothing holds up no other.

use std::collections::VecDeque;

use ferrofabric_contracts::types::{FiAddr, IoBuf, MAX_REQUESTS, SendOp};
use ferrofabric_matching::ReceiveBuffers;
use rustc_hash::FxHashMap;

/// A part to be sent.
#[derive(Clone, Debug)]
pub(crate) struct RemoteSend {
    pub(crate) op: SendOp,
    pub(crate) from: PartBytes,
}

/// The bytes of a part.
#[derive(Clone, Debug)]
pub(crate) enum PartBytes {
    /// In memory that stays until the part is sent and over.
    Memory(ReceiveBuffers),
    /// A grant, or results. The part has `INJECT`.
    Copied(Vec<u8>),
}

impl PartBytes {
    pub(crate) const NONE: Self = Self::Memory(ReceiveBuffers::One(IoBuf::EMPTY));

    /// Calls with the buffers that they are in.
    pub(crate) fn with_list<R>(&self, call: impl FnOnce(&[IoBuf]) -> R) -> R {
        match self {
            Self::Memory(bufs) => call(bufs.segments()),
            Self::Copied(bytes) => call(&[IoBuf::new(bytes.as_ptr(), bytes.len())]),
        }
    }
}

/// The parts that wait, in order for each peer.
#[derive(Default)]
pub(crate) struct PartOutbox {
    waiting: FxHashMap<FiAddr, VecDeque<RemoteSend>>,
    /// The memory of parts that have gone, for the next ones.
    spare: VecDeque<RemoteSend>,
    spare_peers: Vec<FiAddr>,
}

/// Room for so many parts is kept.
const SPARE: usize = 16;

impl PartOutbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of parts that wait for a peer.
    pub(crate) fn len_for(&self, peer: FiAddr) -> usize {
        self.waiting.get(&peer).map_or(0, VecDeque::len)
    }

    /// Number of replies that wait for a peer.
    pub(crate) fn replies_to(&self, peer: FiAddr) -> usize {
        let is_reply = |part: &&RemoteSend| part.op.kind.is_reply();
        match self.len_for(peer) {
            // As most of the time, there are not too many, whatever they are.
            few if few < MAX_REQUESTS => few,
            _ => self.of(peer).filter(is_reply).count(),
        }
    }

    pub(crate) fn push(&mut self, part: RemoteSend) {
        let spare = &mut self.spare;
        let of_peer = self.waiting.entry(part.op.dest);
        let parts = of_peer.or_insert_with(|| std::mem::take(spare));
        parts.push_back(part);
    }

    /// The parts that wait for a peer.
    pub(crate) fn of(&self, peer: FiAddr) -> impl Iterator<Item = &RemoteSend> {
        self.waiting.get(&peer).into_iter().flatten()
    }

    /// Takes the parts of a peer out.
    pub(crate) fn take_of(&mut self, peer: FiAddr) -> VecDeque<RemoteSend> {
        self.waiting.remove(&peer).unwrap_or_default()
    }

    /// The peers that parts wait for.
    pub(crate) fn peers(&mut self) -> Vec<FiAddr> {
        let mut peers = std::mem::take(&mut self.spare_peers);
        peers.extend(self.waiting.keys().copied());
        peers
    }

    /// Takes the memory of a list of peers back.
    pub(crate) fn put_back_peers(&mut self, mut peers: Vec<FiAddr>) {
        if peers.capacity() <= SPARE {
            peers.clear();
            self.spare_peers = peers;
        }
    }

    /// Puts parts of a peer back, before those that were pushed since.
    pub(crate) fn put_back(&mut self, peer: FiAddr, mut parts: VecDeque<RemoteSend>) {
        if !self.waiting.is_empty() {
            parts.extend(self.take_of(peer));
        }
        if !parts.is_empty() {
            self.waiting.insert(peer, parts);
        } else if parts.capacity() <= SPARE {
            self.spare = parts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::flags::Flags;
    use ferrofabric_contracts::types::{MrDesc, MsgKind, RemoteKind};

    fn part(dest: FiAddr, context: u64) -> RemoteSend {
        let op = SendOp {
            kind: MsgKind::Remote(RemoteKind::Notice),
            dest,
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context,
            flags: Flags::empty(),
        };
        RemoteSend {
            op,
            from: PartBytes::NONE,
        }
    }

    /// Parts that a transport did not take go before those that came in the meantime.
    #[test]
    fn parts_keep_their_order_for_each_peer() {
        let (a, b) = (FiAddr(0), FiAddr(1));
        let mut outbox = PartOutbox::default();
        for (peer, context) in [(a, 1), (b, 2), (a, 3)] {
            outbox.push(part(peer, context));
        }
        assert_eq!((outbox.len_for(a), outbox.len_for(b)), (2, 1));
        let mut of_a = outbox.take_of(a);
        assert_eq!(of_a.pop_front().map(|part| part.op.context), Some(1));
        outbox.push(part(a, 4));
        outbox.put_back(a, of_a);
        let order: Vec<_> = (outbox.take_of(a).iter())
            .map(|part| part.op.context)
            .collect();
        assert_eq!(order, [3, 4]);
        assert_eq!(outbox.peers(), [b]);
        outbox.take_of(b);
        assert!(outbox.is_empty());
    }
}
