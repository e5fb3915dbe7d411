//! Packets that notify peers of operations and return their credit.

use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::MAX_NOTICE_BYTES;

use super::RdmTransport;
use super::poster::{PostError, Poster};
use crate::post::{SendFlags, inline_sge};
use crate::session::{ControlMessage, PacketBuffer, RcLane, WqeKind};

impl RdmTransport {
    /// Posts the control messages that wait for a lane.
    pub(super) fn run_control_messages(&mut self, session: SessionId) -> usize {
        let Some(lane) = self.lanes.of(session) else {
            return 0;
        };
        if !lane.open {
            return 0;
        }
        match self.poster.control_messages(lane) {
            Ok(done) => done,
            Err(PostError::PoolExhausted) => {
                self.stall(session);
                0
            }
            Err(_) => {
                self.lane_broke(session);
                1
            }
        }
    }
}

impl Poster {
    fn control_messages(&mut self, lane: &mut RcLane) -> Result<usize, PostError> {
        let mut done = 0;
        while lane.has_reserved_room() {
            let mut bytes = [0; MAX_NOTICE_BYTES];
            if let Some(control) = lane.session.control_messages.front().copied() {
                if self.is_scarce() && !self.has_share(lane) {
                    return Err(PostError::PoolExhausted);
                }
                let header = Self::stamp(lane)?;
                lane.session.control_messages.pop_front();
                let mut kind = WqeKind::Control;
                let len = match control {
                    ControlMessage::Fin(op, status) => header.write_fin(op, status, &mut bytes),
                    ControlMessage::Cts(grant) => header.write_cts(&grant, &mut bytes),
                    ControlMessage::Done(transfer) => {
                        let writing = lane.session.writes.owner(transfer);
                        let receive = writing.map_or(0, |writing| writing.grant.receive);
                        kind = WqeKind::Done(transfer);
                        header.write_done(receive, &mut bytes)
                    }
                };
                self.control(lane, &bytes[..len], kind, header)?;
            } else if lane.session.numbers.receive_credit.is_return_due() {
                if self.is_scarce() && !self.has_share(lane) {
                    return Err(PostError::PoolExhausted);
                }
                let header = lane.session.numbers.stamp_credit();
                let len = header.write_credit(&mut bytes);
                let entry = inline_sge(&bytes[..len]);
                self.inline(lane, entry, WqeKind::Control, None, PacketBuffer::Nowhere)?;
            } else {
                break;
            }
            done += 1;
        }
        Ok(done)
    }

    /// Posts a signaled credit packet: only a living queue pair acknowledges it.
    pub(super) fn probe(&mut self, lane: &mut RcLane) -> Result<(), PostError> {
        if self.is_full() {
            return Ok(());
        }
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = lane.session.numbers.stamp_credit().write_credit(&mut bytes);
        let entries = [inline_sge(&bytes[..len])];
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        self.post(
            lane,
            entries,
            flags,
            WqeKind::Control,
            PacketBuffer::Nowhere,
            None,
        )
    }
}
