//! The sender's side of messages that wait here: the peer has their envelopes, and pulls them.

use ferrofabric_contracts::flags::RECEIVER_LEVELS;
use ferrofabric_contracts::peer::{Owner, SendDone};
use ferrofabric_contracts::types::SendOp;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{
    Header, MAX_HEADER_BYTES, MAX_NOTICE_BYTES, PULLED_HEADER_BYTES,
};

use super::super::RdmTransport;
use super::super::poster::{PostError, Poster, envelope};
use crate::gather::Readable;
use crate::lane::{PacketBuffer, RcLane, WqeKind};
use crate::post::inline_sge;
use crate::session::{ControlMessage, Pending, SessionState};

impl RdmTransport {
    /// A receive of the peer has matched a message that waits here.
    #[cold]
    pub(in super::super) fn on_pull(&mut self, session: SessionId, op: u64, receive: u64) {
        let Some(state) = self.lanes.session(session) else {
            return;
        };
        match state.envelopes.on_pull(op, receive) {
            Ok(()) => self.list(session),
            Err(why) => self.break_protocol(session, &why),
        }
    }

    /// Posts the messages that the peer of a lane has pulled, with few doorbells. Returns their
    /// number.
    pub(in super::super) fn run_pulled<O: Owner>(
        &mut self,
        session: SessionId,
        owner: &mut O,
    ) -> usize {
        let has_pulled = |lane: &mut RcLane| lane.session.envelopes.has_pulled();
        if !self.lanes.rc(session).is_some_and(has_pulled) {
            return 0;
        }
        let done = self.chain_pulled(session, owner);
        self.post_held_back();
        done
    }

    #[cold]
    fn chain_pulled<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> usize {
        let mut done = 0;
        loop {
            if self.poster.holds_back() {
                self.make_way_for(session);
            }
            let Some(lane) = self
                .lanes
                .rc(session)
                .filter(|lane| lane.head.gate.is_open())
            else {
                return done;
            };
            let Some((receive, pending)) = lane.session.envelopes.next_pulled() else {
                return done;
            };
            let more = lane.session.envelopes.has_pulled();
            let poster = &mut self.poster;
            let posted = pending
                .with_buffers(|op, iov, copy| poster.answer(lane, (receive, op), iov, copy, more));
            match posted {
                Ok(()) => done += 1,
                Err(PostError::Refused(errno, why)) => {
                    (lane.session.control_messages).push_back(ControlMessage::Unsent(receive));
                    owner.fail_send(&pending.done(), errno, 0, why);
                    self.list(session);
                    done += 1;
                }
                Err(PostError::Broken) => {
                    self.lane_broke(session);
                    return done;
                }
                Err(stop) => {
                    lane.session.envelopes.put_back(receive, pending);
                    if matches!(stop, PostError::PoolExhausted) {
                        self.stall(session);
                    }
                    return done;
                }
            }
        }
    }
}

impl Poster {
    /// Posts the envelope of a message, which waits until the peer pulls it.
    ///
    /// # Errors
    ///
    /// Gives the message back, unless the lane is broken: then the message waits, and its envelope
    /// is sent again.
    #[cold]
    pub(super) fn envelope(
        &mut self,
        lane: &mut RcLane,
        pending: Pending,
    ) -> Result<(), (PostError, Option<Pending>)> {
        if !self.has_place_for_control(lane, MAX_NOTICE_BYTES) {
            return Err((PostError::PoolExhausted, Some(pending)));
        }
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let (len, header) = self
            .enter_waiting(&mut lane.session, pending, &mut bytes)
            .map_err(|back| (PostError::LaneFull, Some(back)))?;
        (self.control(lane, &bytes[..len], WqeKind::Control, header)).map_err(|stop| (stop, None))
    }

    /// Enters a message that waits, and writes its envelope.
    ///
    /// # Errors
    ///
    /// Gives the message back while too many wait.
    pub(in super::super) fn enter_waiting(
        &mut self,
        session: &mut SessionState,
        pending: Pending,
        bytes: &mut [u8; MAX_NOTICE_BYTES],
    ) -> Result<(usize, Header), Pending> {
        if session.envelopes.is_full() {
            return Err(pending);
        }
        let Some(header) = session.numbers.stamp() else {
            return Err(pending);
        };
        let (of, len) = (envelope(&pending.op), pending.len() as u64);
        let number = session.envelopes.insert(pending)?;
        self.counters.sent.envelopes += 1;
        Ok((header.write_envelope(&of, number, len, bytes), header))
    }

    /// Posts a message that the peer has pulled: as a whole if it fits into a packet, else as a
    /// request to send.
    #[cold]
    fn answer(
        &mut self,
        lane: &mut RcLane,
        (receive, op): (u64, &SendOp),
        iov: Readable<'_>,
        copy: Option<&[u8]>,
        more: bool,
    ) -> Result<(), PostError> {
        self.expect_more(more);
        if !lane.has_room() {
            return Err(PostError::LaneFull);
        }
        if self.is_scarce() && !self.has_share(lane) {
            return Err(PostError::PoolExhausted);
        }
        let len = iov.total_len();
        if !self.fits_whole(op, len, lane.packet_bytes) {
            return self.request(lane, op, iov, copy, Some(receive));
        }
        let fits_inline = len + PULLED_HEADER_BYTES <= self.tuning.inline_bytes;
        let slot = match fits_inline {
            true => None,
            false => Some(self.take_bounce(lane).ok_or(PostError::PoolExhausted)?),
        };
        let header = Self::stamp(lane)?;
        let kind = WqeKind::Message(SendDone::of(op, len));
        self.counters.sent.eager += 1;
        self.counters.sent.bytes += len as u64;
        let mut head = [0; MAX_HEADER_BYTES];
        let head_len = header.write_pulled(receive, len as u32, &mut head);
        let packet_len = head_len + len;
        let Some(slot) = slot else {
            let room = lane.queue.records.room(packet_len);
            room[..head_len].copy_from_slice(&head[..head_len]);
            // SAFETY: the message has that length, and the room behind the header, too.
            unsafe { iov.gather(0, len, room[head_len..].as_mut_ptr()) };
            let entry = inline_sge(&room[..packet_len]);
            let place = PacketBuffer::Record(lane.queue.records.enter(packet_len));
            return self.inline(lane, entry, kind, Some(header.sequence), place);
        };
        let at = self.bounces.address(slot);
        // SAFETY: the slot holds the largest header and message, and is ours until its request is
        // over.
        unsafe {
            at.copy_from_nonoverlapping(head.as_ptr(), head_len);
            iov.gather(0, len, at.wrapping_add(head_len));
        }
        let place = PacketBuffer::Bounce {
            slot,
            len: packet_len as u32,
        };
        self.bounced(lane, kind, Some(header.sequence), place)
    }

    /// Whether a pulled message goes in one packet.
    pub(in super::super) fn fits_whole(
        &self,
        op: &SendOp,
        len: usize,
        packet_bytes: usize,
    ) -> bool {
        len <= self.tuning.eager_bytes
            && len + PULLED_HEADER_BYTES <= packet_bytes
            && !op.flags.intersects(RECEIVER_LEVELS)
    }
}
