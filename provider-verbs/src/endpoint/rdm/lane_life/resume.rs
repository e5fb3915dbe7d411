//! Sessions that go on over another lane: the packets on that lane before it carries a session.

use std::time::Duration;

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::lanes::BROKEN;
use ferrofabric_protocol::session::{ResumeOutcome, ResumeState, SessionError};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{DataPacket, Header, MAX_NOTICE_BYTES, Resume};
use ferrofabric_protocol::wire::datagram::{Ack, DatagramPrefix};

use super::super::RdmTransport;
use super::super::ud::route;
use crate::connect::LaneCarrier;
use crate::lane::send_wr_id;
use crate::origins::session_origin;
use crate::post::{SendFlags, SendRequest};
use crate::session::SessionState;

/// Number of the requests that a lane has, one at a time, before it carries the session.
pub(super) const RESUME_NUMBER: u32 = 0;

impl RdmTransport {
    /// Handles a packet on a lane that does not carry its session yet. Returns whether the packet
    /// was a Resume.
    #[cold]
    pub(in super::super) fn on_resume_packet<O: Owner>(
        &mut self,
        header: &Header,
        packet: &DataPacket<'_>,
        qp_num: u32,
        owner: &mut O,
    ) -> bool {
        let session = header.session;
        let Some(lane) = self.lanes.without_session(session) else {
            return false;
        };
        let is_its = matches!(&lane.carrier, LaneCarrier::Rc(qp) if qp.number() == qp_num);
        let (DataPacket::Resume(held), true) = (packet, is_its) else {
            return false;
        };
        let heard = said(*held, header);
        self.packet_came(session, owner);
        self.apply(owner, |life, view, _| {
            life.resume_arrived(session, heard, view)
        })
    }

    /// Handles a datagram on a lane that does not carry its session yet. Returns whether it was a
    /// Resume.
    pub(in super::super) fn on_resume_datagram<O: Owner>(
        &mut self,
        prefix: &DatagramPrefix,
        header: &Header,
        packet: &DataPacket<'_>,
        owner: &mut O,
    ) -> bool {
        let session = header.session;
        let Some(lane) = self.lanes.without_session(session) else {
            return false;
        };
        let is_its =
            matches!(&lane.carrier, LaneCarrier::Ud(_)) && lane.start.name as u32 == prefix.cookie;
        let (DataPacket::Resume(held), true) = (packet, is_its) else {
            return false;
        };
        let heard = said(*held, header);
        self.packet_came(session, owner);
        // A repeated Resume has no effect, and is not one of an unknown source either.
        self.apply(owner, |life, view, _| {
            life.resume_arrived(session, heard, view)
        });
        true
    }

    /// It is time to repeat a Resume that may be lost.
    pub(in super::super) fn repeat_resume<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        self.apply(owner, |life, _, _| life.resume_is_due(session));
    }

    /// The lanes on which sessions are to be resumed, and their peers.
    pub(in super::super) fn lanes_that_resume(&self) -> Vec<(LaneKey, u32)> {
        let lanes = self.lanes.new_lanes();
        lanes.map(|lane| (lane.head.key, lane.head.peer)).collect()
    }

    /// Posts a Resume on a lane: the session of this side and the number of packets that it has
    /// received.
    pub(super) fn post_resume(
        &mut self,
        peer: u32,
        session: SessionId,
        again_after: Option<Duration>,
    ) {
        let now = self.ud.now();
        let Some(lane) = self.lanes.without_session(session) else {
            return;
        };
        let state = self.peers.at(peer).parked.as_mut();
        let (said, credit) = match state {
            Some(state) => {
                let credit = state.numbers.receive_credit.released_units();
                (state.numbers.offer(), credit)
            }
            // The numbers of the session that begins then.
            None => {
                let origin = session_origin();
                let expected = origin.sequence;
                let held = Resume::default();
                (ResumeState { held, expected }, origin.credit_units)
            }
        };
        let header = Header {
            session: lane.start.remote,
            sequence: said.expected,
            credit: credit as u16,
        };
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = header.write_resume(&said.held, &mut bytes);
        lane.said = true;
        match &lane.carrier {
            LaneCarrier::Rc(qp) => {
                lane.under_way = true;
                self.poster.outstanding += 1;
                let wr_id = send_wr_id(session, RESUME_NUMBER);
                let posted = self.resume_slots.place(&bytes[..len]).map(|place| {
                    lane.slot = place.slot;
                    let mut request = SendRequest::send(wr_id, [place.entry])
                        .flags(SendFlags::SIGNALED | place.flags);
                    // SAFETY: inline data is copied before the call returns; a slot belongs to the
                    // lane until the request is over.
                    unsafe { request.post(qp) }
                });
                if let None | Some(Err(_)) = posted {
                    tracing::warn!("posting to {} failed: {posted:?}", **qp);
                    self.event(|life, _, now| life.orders().failed(session, BROKEN, now));
                }
            }
            LaneCarrier::Ud(destination) => {
                let prefix = DatagramPrefix {
                    ack_at_once: true,
                    cookie: lane.start.name as u32,
                    ack: Ack {
                        expected: said.expected,
                        held: 0,
                    },
                    credit,
                };
                let route = route(lane, destination.clone());
                if let Some(queue_pair) = &mut self.ud.queue_pair {
                    // The lane may be closed with no later request on it: the device has to report
                    // this one, so that its handle is free.
                    queue_pair.signal_next();
                    queue_pair.send(&mut self.poster, &route, &prefix.to_bytes(), &bytes[..len]);
                }
                let post_replay = again_after.map(|wait| now + wait);
                self.ud.deadlines.set(session, post_replay);
            }
        }
    }

    /// A lane that waits for its peer's Resume would not notice if the peer gave up the lane and
    /// its notice got lost. So each such lane gets a probe.
    pub(in super::super) fn probe_resuming_lanes(&mut self) {
        let mut broken = Vec::new();
        for lane in self.lanes.new_lanes_mut() {
            let session = lane.head.key.session();
            let LaneCarrier::Rc(qp) = &lane.carrier else {
                continue;
            };
            if !lane.said || lane.under_way {
                continue;
            }
            let wr_id = send_wr_id(session, RESUME_NUMBER);
            let mut request = SendRequest::probe(wr_id);
            lane.under_way = true;
            self.poster.outstanding += 1;
            // SAFETY: a probe names no memory.
            if unsafe { request.post(qp) }.is_err() {
                broken.push(session);
            }
        }
        for session in broken {
            self.lane_broke(session);
        }
    }

    /// The Resume, or a probe behind it, has arrived.
    pub(in super::super) fn resume_sent(&mut self, session: SessionId, number: u32) {
        if let Some(lane) = self.lanes.without_session(session) {
            if number == RESUME_NUMBER && std::mem::take(&mut lane.under_way) {
                self.poster.outstanding -= 1;
                if let Some(slot) = lane.slot.take() {
                    self.resume_slots.give(slot);
                }
            }
        }
    }

    /// Joins the parked session with the peer's Resume on a lane.
    pub(super) fn meet<O: Owner>(
        &mut self,
        peer: u32,
        lane: LaneKey,
        heard: ResumeState,
        owner: &mut O,
    ) {
        // Credit is counted anew if the session begins again.
        self.reclaim_credit(peer);
        let Some(mut state) = self.peers.at(peer).parked.take() else {
            return;
        };
        let outcome = self.meet_on(lane, &mut state, heard, owner);
        self.peers.at(peer).parked = Some(state);
        if let Err(error) = &outcome {
            tracing::warn!("{lane:?}: {error}");
        }
        self.event(|life, view, now| life.met(lane, outcome, view, now));
    }

    fn meet_on<O: Owner>(
        &mut self,
        lane: LaneKey,
        state: &mut SessionState,
        heard: ResumeState,
        owner: &mut O,
    ) -> Result<ResumeOutcome, SessionError> {
        let Some(start) = (self.lanes.without_session(lane.session())).map(|lane| lane.start)
        else {
            return Ok(ResumeOutcome::BeginsAgain);
        };
        let before = state.numbers.unconfirmed();
        let granted_units = state.numbers.receive_credit.quota_units();
        let outcome = state.numbers.meet(&start, heard, state.sends.len())?;
        let repeated = match outcome {
            ResumeOutcome::Continues(replay) => {
                let count = before - replay.count;
                state.confirm_arrived(count, &mut self.ud.packets, owner);
                state.readdress(start.remote);
                self.poster.counters.lanes.sessions_resumed += 1;
                replay.count
            }
            ResumeOutcome::BeginsAgain => {
                state.begins_again(&start);
                self.grants.end(granted_units, 0);
                self.grants.begin(start.we_grant_units);
                self.publish_grant();
                before
            }
            ResumeOutcome::Ends(_) => 0,
        };
        self.poster.counters.lanes.packets_repeated += u64::from(repeated);
        Ok(outcome)
    }
}

/// The contents of a Resume.
fn said(held: Resume, header: &Header) -> ResumeState {
    ResumeState {
        held,
        expected: header.sequence,
    }
}
