//! The sender's side of fragmentation: a message that takes several packets. The fragments go in a
//! row, from where the message lies, and only if lane and credit have room for all of them.

use std::ops::Range;
use std::sync::Arc;

use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::types::SendOp;
use ferrofabric_protocol::credit::SendAdmission;
use ferrofabric_protocol::fragmentation::FragmentPlan;
use ferrofabric_protocol::session::WINDOW;
use ferrofabric_protocol::wire::control::LaneLimits;
use ferrofabric_protocol::wire::data::{Header, MAX_FIRST_HEADER_BYTES, MAX_HEADER_BYTES};

use super::super::poster::{FragmentOutcome, PostError, Poster, envelope};
use crate::device::Mtu;
use crate::gather::Readable;
use crate::lane::{PacketBuffer, RcLane, WqeKind};
use crate::session::Registered;

/// Packets for one doorbell: the device sends these while the next are filled.
const AT_A_DOORBELL: usize = 4;

impl Poster {
    /// Sends a message of `len` bytes, which needs several packets, without a request to send: all
    /// its packets, or none.
    #[cold]
    pub(in super::super) fn send_fragments(
        &mut self,
        lane: &mut RcLane,
        op: &SendOp,
        iov: Readable<'_>,
        len: usize,
    ) -> Result<FragmentOutcome, PostError> {
        let Some(plan) = self.plan_fragments(lane, len)? else {
            return Ok(FragmentOutcome::NeedsRendezvous);
        };
        if plan.packets() == 1 {
            let slot = self.bounces.take();
            return self
                .eager(lane, op, iov, len, slot)
                .map(|()| FragmentOutcome::Posted);
        }
        self.counters.sent.eager += 1;
        self.counters.sent.fragmented += 1;
        self.counters.sent.bytes += len as u64;
        let registered = self.described(op, iov);
        let more = self.more_follow();
        let mut outcome = Ok(());
        for (number, range) in plan.ranges().enumerate() {
            // Room for both was checked above.
            let (Ok(header), Some(slot)) = (Self::stamp(lane), self.bounces.take()) else {
                break;
            };
            let is_last = range.end as usize == len;
            let place = self.fill(lane, slot, range, (&header, op, len), iov, &registered);
            let kind = match is_last {
                true => WqeKind::Message(SendDone::of(op, len)),
                false => WqeKind::Control,
            };
            if outcome.is_ok() && self.is_chain_full() {
                outcome = self.post_chain(lane);
            }
            self.expect_more(match is_last {
                true => more,
                false => (number + 1) % AT_A_DOORBELL != 0,
            });
            match outcome {
                Ok(()) => {
                    outcome = self.bounced(lane, kind, Some(header.sequence), place);
                }
                // The lane is dead: the remaining packets are entered, too, to be sent on the next
                // lane.
                Err(_) => self.enter(lane, kind, header.sequence, place),
            }
        }
        outcome.map(|()| FragmentOutcome::Posted)
    }

    /// The plan of the fragments of a message, if the lane and the peer's credit have room for all
    /// of them; it takes the credit. `None`: the message has to go by rendezvous.
    fn plan_fragments(
        &mut self,
        lane: &mut RcLane,
        len: usize,
    ) -> Result<Option<FragmentPlan>, PostError> {
        let plan = FragmentPlan::new(len as u32, self.fragment_bytes(lane) as u32);
        let packets = plan.packets() as usize;
        // If a message took more buffers, no completion might come before all of them were in use.
        if !lane.queue.could_take(packets) || packets > self.bounces.most_of_a_message() {
            return Ok(None);
        }
        if !lane.queue.has_room_for(packets)
            || lane.session.numbers.unconfirmed() + plan.packets() > WINDOW
        {
            return Err(PostError::LaneFull);
        }
        // Where places are scarce the lane may have one, which is enough for a request to send.
        if self.outstanding + packets > self.tuning.sends.free {
            return Ok(None);
        }
        let under_way = lane.queue.len() + packets;
        if self.bounces.are_scarce(under_way) && under_way > self.bounces.share() {
            // A request to send takes none.
            return match lane.queue.has_no_signaled() {
                true => Ok(None),
                false => Err(PostError::PoolExhausted),
            };
        }
        let admitted = lane.session.numbers.send_credit.admit(len as u32);
        Ok((admitted == SendAdmission::Eager).then_some(plan))
    }

    /// Writes the packet for a range of a message of `len` bytes to a bounce buffer. If the
    /// application has registered its buffer, only the header is written.
    #[inline]
    fn fill(
        &mut self,
        lane: &mut RcLane,
        slot: u32,
        range: Range<u32>,
        (header, op, len): (&Header, &SendOp, usize),
        iov: Readable<'_>,
        registered: &Option<Registered>,
    ) -> PacketBuffer {
        let (start, bytes) = (range.start as usize, range.len());
        let mut head = [0; MAX_FIRST_HEADER_BYTES];
        let head_len = match start {
            0 => header.write_first(&envelope(op), len as u32, range.end, &mut head),
            _ => {
                let mut further = [0; MAX_HEADER_BYTES];
                let head_len = header.write_fragment(range.start, bytes as u32, &mut further);
                head[..head_len].copy_from_slice(&further[..head_len]);
                head_len
            }
        };
        let at = self.bounces.address(slot);
        // SAFETY: the slot holds the largest packet, and belongs to it until its request ends.
        unsafe { at.copy_from_nonoverlapping(head.as_ptr(), head_len) };
        match registered {
            Some(Registered { buf, region }) => {
                lane.queue.described.push_back(Arc::clone(region));
                PacketBuffer::Split {
                    slot,
                    head: head_len as u32,
                    rest: buf.part(start, bytes),
                }
            }
            None => {
                // SAFETY: as above; the payload behind the header fits as well.
                unsafe { iov.gather(start, bytes, at.wrapping_add(head_len)) };
                PacketBuffer::Bounce {
                    slot,
                    len: (head_len + bytes) as u32,
                }
            }
        }
    }

    /// The longest packet that a peer accepts, in bytes.
    pub(in super::super) fn packet_bytes(&self, peer: &LaneLimits) -> usize {
        let slot_bytes = self.bounces.slot_bytes().min(peer.receive_bytes as usize);
        let frame = Mtu::from_code(peer.path_mtu).map_or(self.mtu, |mtu| mtu.min(self.mtu));
        match self.tuning.single_frames {
            true => slot_bytes.min(frame.bytes()),
            false => slot_bytes,
        }
    }

    /// Bytes of the message in each packet: as many as fill network packets, so that none travels
    /// nearly empty.
    fn fragment_bytes(&self, lane: &RcLane) -> usize {
        let packet_bytes = match lane.packet_bytes / self.mtu.bytes() {
            0 => lane.packet_bytes,
            frames => frames * self.mtu.bytes(),
        };
        packet_bytes.saturating_sub(MAX_FIRST_HEADER_BYTES)
    }
}
