//! Packets that notify peers of operations and return their credit.

use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::MAX_NOTICE_BYTES;

use super::RdmTransport;
use super::poster::{PostError, Poster};
use crate::lane::{RcLane, WqeKind};
use crate::post::SendRequest;
use crate::session::ControlMessage;

impl RdmTransport {
    /// Posts the control messages that wait for a lane.
    pub(super) fn run_control_messages(&mut self, session: SessionId) -> usize {
        let Some(lane) = self.lanes.rc(session) else {
            return 0;
        };
        if !lane.head.gate.is_open() {
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
            let control = lane.session.control_messages.front().copied();
            if control.is_none() && !lane.session.numbers.receive_credit.is_return_due() {
                break;
            }
            if (self.is_scarce() && !self.has_share(lane))
                || !self.has_place_for_control(lane, MAX_NOTICE_BYTES)
            {
                return Err(PostError::PoolExhausted);
            }
            if let Some(control) = control {
                let mut bytes = [0; MAX_NOTICE_BYTES];
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
                    ControlMessage::Pull { op, receive } => {
                        header.write_pull(op, receive, &mut bytes)
                    }
                    ControlMessage::Unsent(receive) => header.write_unsent(receive, &mut bytes),
                };
                self.control(lane, &bytes[..len], kind, header)?;
            } else {
                self.credit(lane)?;
            }
            done += 1;
        }
        Ok(done)
    }

    /// Posts a probe to a lane, if there is a place for it.
    pub(super) fn probe(&mut self, lane: &mut RcLane) -> Result<(), PostError> {
        if self.is_full() {
            return Ok(());
        }
        let (wr_id, _) = lane.next(true);
        self.post_alone(lane, &SendRequest::probe(wr_id), WqeKind::Control)
    }
}
