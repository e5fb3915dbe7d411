//! Replay: packets that were under way on a lane that broke are sent again over the next one.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::renew_credit;

use super::RdmTransport;
use super::poster::{PostError, Poster};
use crate::lane::{LaneWqe, PacketBuffer, PacketRecords, RcLane, WqeKind};
use crate::post::inline_sge;
use crate::registration::MemoryRegion;
use crate::session::{Registered, ResendKind, ResendPacket};

impl RdmTransport {
    /// Posts the packets again that were under way on a lane that broke. The Done of a message that
    /// this side writes may be among them: the lost writes go first.
    pub(super) fn run_replay(&mut self, session: SessionId) -> usize {
        let mut done = self.run_writes(session);
        loop {
            let Some(lane) = self.lanes.rc(session) else {
                return done;
            };
            if !lane.head.gate.is_usable() || lane.session.writes.has_lost() {
                return done;
            }
            let Some(packet) = lane.session.resend_queue.pop_front() else {
                lane.reconsider();
                return done;
            };
            match self.poster.post_replay(lane, packet) {
                Ok(()) => done += 1,
                Err(PostError::Broken) => {
                    self.lane_broke(session);
                    return done;
                }
                Err(PostError::PoolExhausted) => {
                    self.stall(session);
                    return done;
                }
                Err(_) => return done,
            }
        }
    }
}

impl Poster {
    /// The record of a flushed request, should its packet have to be sent again.
    #[cold]
    pub(super) fn replay_packet(
        &self,
        records: &PacketRecords,
        described: &mut VecDeque<Arc<MemoryRegion>>,
        wqe: LaneWqe,
    ) -> Option<ResendPacket> {
        let slot_bytes = |slot: u32, len: u32| -> Box<[u8]> {
            // SAFETY: the slot holds that many bytes, and belongs to the entered request.
            unsafe { std::slice::from_raw_parts(self.bounces.address(slot), len as usize) }.into()
        };
        let (bytes, rest): (Box<[u8]>, _) = match wqe.packet {
            PacketBuffer::Nowhere | PacketBuffer::Resume(_) => return None,
            PacketBuffer::Record(record) => (records.bytes(record).into(), None),
            PacketBuffer::Bounce { slot, len } => (slot_bytes(slot, len), None),
            PacketBuffer::Split { slot, head, rest } => {
                let region = described.pop_front();
                let rest = region.map(|region| Registered { buf: rest, region });
                (slot_bytes(slot, head), rest)
            }
        };
        let kind = match wqe.kind {
            WqeKind::Message(done) => ResendKind::Message(done),
            WqeKind::Done(transfer) => ResendKind::Done(transfer),
            _ => ResendKind::Control,
        };
        Some(ResendPacket {
            sequence: wqe.sequence?,
            kind,
            bytes: bytes.into(),
            rest,
        })
    }

    /// Posts a packet again, or puts it back.
    #[cold]
    fn post_replay(&mut self, lane: &mut RcLane, packet: ResendPacket) -> Result<(), PostError> {
        let fits_inline = packet.rest.is_none() && packet.bytes.len() <= self.tuning.inline_bytes;
        let stop = match lane.has_reserved_room() {
            false => Some(PostError::LaneFull),
            true if self.is_scarce() && !self.has_share(lane) => Some(PostError::PoolExhausted),
            true => None,
        };
        let slot = match fits_inline || stop.is_some() {
            true => None,
            false => self.take_bounce(lane),
        };
        let stop = stop.or((!fits_inline && slot.is_none()).then_some(PostError::PoolExhausted));
        if let Some(stop) = stop {
            lane.session.resend_queue.push_front(packet);
            return Err(stop);
        }
        let ResendPacket {
            sequence,
            kind,
            mut bytes,
            rest,
        } = packet;
        renew_credit(&mut bytes, lane.session.numbers.receive_credit.field());
        let kind = match kind {
            ResendKind::Message(done) => WqeKind::Message(done),
            ResendKind::Done(transfer) => WqeKind::Done(transfer),
            ResendKind::Control => WqeKind::Control,
        };
        let Some(slot) = slot else {
            let room = lane.queue.records.room(bytes.len());
            room.copy_from_slice(&bytes);
            let entry = inline_sge(room);
            let place = PacketBuffer::Record(lane.queue.records.enter(bytes.len()));
            return self.inline(lane, entry, kind, Some(sequence), place);
        };
        let at = self.bounces.address(slot);
        // SAFETY: the packet was in such a slot before, and this slot belongs to the packet until
        // its request is over.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let len = bytes.len() as u32;
        let place = match rest {
            None => PacketBuffer::Bounce { slot, len },
            Some(Registered { buf, region }) => {
                lane.queue.described.push_back(region);
                PacketBuffer::Split {
                    slot,
                    head: len,
                    rest: buf,
                }
            }
        };
        self.bounced(lane, kind, Some(sequence), place)
    }
}
