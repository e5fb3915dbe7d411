//! The send queue of a lane: its posted requests in order, and the places of their packets until
//! they have arrived.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::peer::{SendDone, ShortcutEnd};
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_protocol::rendezvous::Chunk;
use ferrofabric_protocol::table::Key;
use ferrofabric_protocol::wire::SessionId;

use super::records::{PacketRecord, PacketRecords};
use super::wr_id::send_wr_id;
use crate::registration::MemoryRegion;

/// A request that lies in the queue.
pub(crate) struct LaneWqe {
    /// Counts requests of this lane, modulo 2³².
    pub(crate) number: u32,
    /// The packet's number in the session, if it has one.
    pub(crate) sequence: Option<u32>,
    /// The work that it does.
    pub(crate) kind: WqeKind,
    /// The place of the packet until it has arrived.
    pub(crate) packet: PacketBuffer,
}

/// The work of a request.
pub(crate) enum WqeKind {
    /// A whole message.
    Message(SendDone),
    /// A control message: no operation ends with it.
    Control,
    /// The Done of a message that this side wrote.
    Done(Key),
    /// A read.
    Read(Box<Chunk>),
    /// A write.
    Write(Box<Chunk>),
    /// A one-sided operation, or the first of its two requests: the next of the queue's
    /// [`one_sided`](LaneSendQueue::one_sided).
    OneSided,
    /// The last request: when it is flushed, all are.
    Marker,
}

/// A request of a one-sided operation.
pub(crate) struct OneSidedWqe {
    /// The owner's number of the operation; `None`: a later request ends it.
    pub(crate) number: Option<u64>,
    /// How it ends if the lane breaks.
    pub(crate) end: ShortcutEnd,
    /// The regions of the buffers, unless they travel in the request or are bounce buffers.
    pub(crate) _regions: Option<Box<[Arc<MemoryRegion>]>>,
}

/// The place of a posted packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PacketBuffer {
    /// Nowhere: it need not be sent again.
    Nowhere,
    /// Among the records: it travels in the work request.
    Record(PacketRecord),
    /// A Resume, in a slot for those. It need not be sent again.
    Resume(u32),
    /// In a bounce buffer.
    Bounce { slot: u32, len: u32 },
    /// The header in a bounce buffer, the rest in the application's memory: in the next of the
    /// queue's [`described`](LaneSendQueue::described) regions.
    Split { slot: u32, head: u32, rest: IoBuf },
}

impl PacketBuffer {
    /// Its bounce buffer, if it has one.
    #[inline]
    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            PacketBuffer::Bounce { slot, .. } | PacketBuffer::Split { slot, .. } => Some(slot),
            PacketBuffer::Nowhere | PacketBuffer::Record(_) | PacketBuffer::Resume(_) => None,
        }
    }
}

/// The requests posted to a lane.
pub(crate) struct LaneSendQueue {
    requests: VecDeque<LaneWqe>,
    /// The packets that travel in their work requests.
    pub(crate) records: PacketRecords,
    /// The regions of the split packets in the queue, in the same order. The application may close
    /// them meanwhile.
    pub(crate) described: VecDeque<Arc<MemoryRegion>>,
    /// The one-sided requests in the queue, in the same order. Apart, for requests of messages are
    /// shorter then.
    pub(crate) one_sided: VecDeque<OneSidedWqe>,
    depth: usize,
    next_number: u32,
    /// Requests posted since the last that was signalled.
    unsignaled: u32,
}

/// Room in each send queue that messages leave to control messages and chunks.
const RESERVED: usize = 8;

impl LaneSendQueue {
    /// Makes an empty queue, whose first request has this number.
    pub(crate) fn new(depth: usize, first_number: u32) -> Self {
        Self {
            // It grows with the requests under way: most of many peers never have much.
            requests: VecDeque::new(),
            records: PacketRecords::default(),
            described: VecDeque::new(),
            one_sided: VecDeque::new(),
            depth,
            next_number: first_number,
            unsignaled: 0,
        }
    }

    /// The number of requests in it.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether nothing lies in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a message can be posted now.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.requests.len() + RESERVED < self.depth
    }

    /// Whether it is long enough for `packets` packets of a message.
    pub(crate) fn could_take(&self, packets: usize) -> bool {
        packets + RESERVED <= self.depth
    }

    /// Whether `packets` packets of a message can be posted now.
    pub(crate) fn has_room_for(&self, packets: usize) -> bool {
        self.requests.len() + packets + RESERVED <= self.depth
    }

    /// Whether a control message or a chunk can be posted now.
    #[inline]
    pub(crate) fn has_reserved_room(&self) -> bool {
        self.requests.len() + 1 < self.depth
    }

    /// Whether no signaled request is under way.
    pub(crate) fn has_no_signaled(&self) -> bool {
        self.requests.len() == self.unsignaled as usize
    }

    /// The number that the next request gets.
    #[inline]
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number
    }

    /// The number that the last request got.
    #[inline]
    pub(crate) fn last_number(&self) -> u32 {
        self.next_number.wrapping_sub(1)
    }

    /// Requests up to this number were posted before the lane had a queue of its own.
    pub(crate) fn begin_behind(&mut self, number: u32) {
        self.next_number = number + 1;
    }

    /// The ID of the next work request, and whether it must be signaled even if its completion is
    /// not needed: without a completion from time to time the queue would fill up.
    #[inline]
    pub(crate) fn next(&mut self, session: SessionId, signaled: bool) -> (u64, bool) {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let signaled = signaled || self.unsignaled as usize >= self.depth / 4;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        (send_wr_id(session, number), signaled)
    }

    /// Enters a request behind the others.
    #[inline]
    pub(crate) fn enter(&mut self, request: LaneWqe) {
        self.requests.push_back(request);
    }

    /// Takes out the oldest request.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<LaneWqe> {
        self.requests.pop_front()
    }

    /// Takes out all requests, the oldest first.
    pub(crate) fn take_all(&mut self) -> VecDeque<LaneWqe> {
        std::mem::take(&mut self.requests)
    }

    /// The last request.
    pub(crate) fn last(&self) -> Option<&LaneWqe> {
        self.requests.back()
    }

    /// All requests, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &LaneWqe> {
        self.requests.iter()
    }

    /// The one-sided requests from the request with this number on; none if that is another one.
    pub(crate) fn one_sided_since(
        &mut self,
        number: u32,
    ) -> impl Iterator<Item = &mut OneSidedWqe> {
        let is_one = |wqe: &LaneWqe| matches!(wqe.kind, WqeKind::OneSided);
        let at = self.requests.iter().position(|wqe| wqe.number == number);
        let at = at.filter(|at| is_one(&self.requests[*at]));
        let end = self.requests.len();
        let behind = (self.requests.range(at.unwrap_or(end)..)).filter(|wqe| is_one(wqe));
        let before = self.one_sided.len() - behind.count();
        self.one_sided.range_mut(before..)
    }

    /// The number of the request before the one with this number, if both are in the queue.
    pub(crate) fn before(&self, number: u32) -> Option<u32> {
        let at = self.iter().position(|wqe| wqe.number == number)?;
        let before = self.requests.get(at.checked_sub(1)?)?;
        Some(before.number)
    }
}
