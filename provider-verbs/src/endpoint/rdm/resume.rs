//! Sessions that go on over another lane, or end.
//!
//! A lane that broke is drained here: its queue pair is in error, what was posted is flushed, what
//! came was taken. The session then waits at its peer. On the next lane each side says, once it has
//! drained the old one, which session it holds and what it has taken of it; having heard the same
//! of the other side, it sends the rest again. So nothing of the old lane can come after anything
//! of the new one, and a one-sided operation may be repeated.

use std::sync::Arc;

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::{LaneKey, LaneUp};
use ferrofabric_protocol::session::{Outcome, Said, SessionError};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{Header, MAX_NOTICE_BYTES, Packet, Predecessor, Resume};
use ferrofabric_protocol::wire::datagram::{Ack, Prefix};

use super::RdmTransport;
use super::complete::entered;
use super::endings::Ending;
use super::lane_ends::{BROKEN, LOST_BY_PEER, evidence, protocol_broken};
use super::lanes::start;
use super::resuming::Resuming;
use super::ud::{MAX_RESUME_INTERVAL, RESUME_INTERVAL, route};
use crate::connect::{Carrier, ToService};
use crate::origins::session_origin;
use crate::post::{Remote, SendFlags, SendRequest, inline_sge};
use crate::qp::RcQp;
use crate::session::{AfterLane, LaneEnd, Link, SessionState, WqeKind, send_wr_id};

/// Number of the requests that a lane has, one at a time, before it carries the session.
const RESUME_NUMBER: u32 = 0;

impl RdmTransport {
    /// A lane's session has left it.
    pub(super) fn session_left_lane<O: Owner>(
        &mut self,
        peer: u32,
        lane: LaneKey,
        mut state: SessionState,
        end: LaneEnd,
        owner: &mut O,
    ) {
        let at = self.peers.at(peer);
        // Else another session has begun on another lane, which may be gone by now: nobody will go
        // on with this one.
        let is_latest =
            [Link::Up(lane.session()), Link::Resuming(lane.session())].contains(&at.link);
        if is_latest {
            at.link = Link::Idle;
        }
        let key = at.key;
        let end = match (end.then, at.closed) {
            (AfterLane::Resume | AfterLane::Change | AfterLane::Rest, _) if !is_latest => {
                LOST_BY_PEER
            }
            // The goodbye came while the lane was given up for another reason.
            (AfterLane::Resume | AfterLane::Change | AfterLane::Rest, Some(goodbye)) => {
                evidence(goodbye.reason(lane))
            }
            _ => end,
        };
        at.lost_rc = end.then == AfterLane::Resume;
        // A lane that is left in good order may have had packets for us on their way, and so may
        // one on which nothing was said that we know of. (Strangers who only ever began a lane are
        // not called back all the same.)
        let goes_on = match end.then {
            AfterLane::Change => true,
            AfterLane::Resume => state.is_unused() || state.lane_lost(),
            // A peer that leaves has heard all that was said: who wants us to say it again and
            // again is out of order.
            AfterLane::Rest => state.is_settled() || state.lane_lost(),
            _ => false,
        };
        if goes_on {
            let rests = end.then == AfterLane::Rest && state.is_settled();
            let credit = &state.numbers.receive_credit;
            let (granted, held) = (credit.quota_units(), credit.held_units());
            at.parked = Some(Box::new(state));
            at.last_lane = Some(lane);
            if rests {
                self.lay_to_rest(peer, granted, held);
            }
        } else {
            self.service
                .request(ToService::SessionEnded { peer: key, lane });
            self.end_session(peer, state, end, owner);
        }
        self.next_lane(peer, owner);
    }

    /// A peer has no lane any more: a newer one may have come up meanwhile.
    fn next_lane<O: Owner>(&mut self, peer: u32, owner: &mut O) {
        match self.newer_lane(peer) {
            Some(newer) if !matches!(self.peers.at(peer).link, Link::Up(_)) => {
                self.peers.at(peer).link = Link::Resuming(newer);
                self.resume(newer, owner);
            }
            Some(_) => {}
            None => {
                self.reconnect_if_wanted(peer);
                self.lies_idle(peer);
            }
        }
    }

    /// The lanes on which sessions are to be taken up, and their peers.
    pub(super) fn lanes_that_resume(&self) -> Vec<(LaneKey, u32)> {
        let lanes = self.resuming.iter();
        lanes.map(|newer| (newer.up.lane, newer.peer)).collect()
    }

    /// A lane to a peer on which the session is to be taken up.
    pub(super) fn newer_lane(&self, peer: u32) -> Option<SessionId> {
        let newer = self.resuming.iter().find(|newer| newer.peer == peer)?;
        Some(newer.up.lane.session())
    }

    /// Takes leave of the lanes that went down before they carried a session. All that had come on
    /// them was taken: so some may carry one by now.
    #[cold]
    pub(super) fn end_resuming<O: Owner>(&mut self, owner: &mut O) -> usize {
        let ending = self.ending.take_due();
        let done = ending.len();
        for (_, ending) in ending {
            let (session, end) = match ending {
                Ending::Lane(session, end) => (session, end),
                Ending::QueuePair(_) => continue,
                Ending::DataQueuePair => {
                    self.revive_data_queue_pair();
                    continue;
                }
            };
            match self.lanes.of(session) {
                Some(_) => self.give_up(session, end),
                None if self.ud.lanes.of(session).is_some() => {
                    self.ud_lane_down(session, end, owner);
                }
                None => self.resuming_lane_down(session, end, owner),
            }
        }
        done
    }

    /// Whether a lane is down, and is given up once all that has come on it was taken.
    pub(super) fn is_ending(&self, session: SessionId) -> bool {
        let mut ending = self.ending.iter();
        ending.any(|ending| matches!(ending, Ending::Lane(lane, _) if *lane == session))
    }

    /// Takes leave of a queue pair that never carried a session.
    fn part_with(&mut self, qp: Arc<RcQp>) {
        if let Err(error) = qp.to_error() {
            tracing::debug!("{error}");
        }
        self.ending.push(Ending::QueuePair(qp));
    }

    /// A lane is up on which an earlier session may go on.
    pub(super) fn begin_resuming<O: Owner>(
        &mut self,
        peer: u32,
        up: LaneUp,
        carrier: Carrier,
        owner: &mut O,
    ) {
        let session = up.lane.session();
        let at = self.peers.at(peer);
        // One lane at a time: this one comes after those that are there.
        if !matches!(at.link, Link::Up(_) | Link::Resuming(_)) {
            at.link = Link::Resuming(session);
        }
        if matches!(carrier, Carrier::Ud(_)) {
            self.ud.deadlines.begin(session);
        }
        self.peers.begin_lane(peer);
        self.resuming.begin(Resuming {
            may_send: up.may_send,
            up,
            carrier,
            peer,
            said: false,
            under_way: false,
            tries: 0,
            heard: None,
        });
        self.resume(session, owner);
    }

    /// The peer's end of a lane is up.
    pub(super) fn resuming_may_send<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        if let Some(lane) = self.resuming.of(session) {
            lane.may_send = true;
            let peer = lane.peer;
            self.is_heard(peer, owner);
            self.resume(session, owner);
        }
    }

    /// A packet has come on a lane that does not carry its session yet. Says whether it was one for
    /// that.
    #[cold]
    pub(super) fn resuming_heard<O: Owner>(
        &mut self,
        header: &Header,
        packet: &Packet<'_>,
        qp_num: u32,
        owner: &mut O,
    ) -> bool {
        let Some(lane) = self.resuming.of(header.session) else {
            return false;
        };
        let is_its = matches!(&lane.carrier, Carrier::Rc(qp) if qp.number() == qp_num);
        let (Packet::Resume(held), None, true) = (packet, lane.heard, is_its) else {
            return false;
        };
        self.resume_heard(header.session, said(*held, header), owner);
        true
    }

    /// A datagram has come on a lane that does not carry its session yet. Says whether it was one
    /// for that.
    pub(super) fn resume_datagram_came<O: Owner>(
        &mut self,
        prefix: &Prefix,
        header: &Header,
        packet: &Packet<'_>,
        owner: &mut O,
    ) -> bool {
        let Some(lane) = self.resuming.of(header.session) else {
            return false;
        };
        let is_its =
            matches!(&lane.carrier, Carrier::Ud(_)) && lane.up.name as u32 == prefix.cookie;
        let (Packet::Resume(held), true) = (packet, is_its) else {
            return false;
        };
        if lane.heard.is_none() {
            self.resume_heard(header.session, said(*held, header), owner);
        }
        true
    }

    fn resume_heard<O: Owner>(&mut self, session: SessionId, heard: Said, owner: &mut O) {
        let Some(lane) = self.resuming.of(session) else {
            return;
        };
        lane.heard = Some(heard);
        if !lane.may_send {
            lane.may_send = true;
            let (key, peer) = (lane.up.lane, lane.peer);
            self.service.request(ToService::LaneHeard(key));
            self.is_heard(peer, owner);
        }
        self.resume(session, owner);
    }

    /// Time to say a Resume again that may be lost.
    pub(super) fn repeat_resume<O: Owner>(&mut self, session: SessionId, now: Time, owner: &mut O) {
        if self.resuming.of(session).is_some() {
            self.say_resume(session, now, owner);
        }
    }

    /// Says on a lane which session we hold and what it has taken.
    fn say_resume<O: Owner>(&mut self, session: SessionId, now: Time, owner: &mut O) {
        let Some(lane) = self.resuming.of(session) else {
            return;
        };
        let state = self.peers.at(lane.peer).parked.as_mut();
        let (said, credit) = match state {
            Some(state) => {
                let credit = state.numbers.receive_credit.released_units();
                (state.numbers.say(), credit)
            }
            // As of the session that begins then.
            None => {
                let origin = session_origin();
                let expected = origin.sequence;
                let held = Resume::default();
                (Said { held, expected }, origin.credit_units)
            }
        };
        let header = Header {
            session: lane.up.remote_session,
            sequence: said.expected,
            credit: credit as u16,
        };
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = header.write_resume(&said.held, &mut bytes);
        lane.said = true;
        match &lane.carrier {
            Carrier::Rc(qp) => {
                lane.under_way = true;
                self.poster.outstanding += 1;
                let wr_id = send_wr_id(session, RESUME_NUMBER);
                let mut request = SendRequest::send(wr_id, [inline_sge(&bytes[..len])])
                    .flags(SendFlags::SIGNALED | SendFlags::INLINE);
                // SAFETY: inline data is copied before the call returns.
                if let Err(error) = unsafe { request.post(qp) } {
                    tracing::warn!("posting to {} failed: {error}", **qp);
                    self.resuming_lane_broke(session, owner);
                }
            }
            Carrier::Ud(way) => {
                let prefix = Prefix {
                    asks: true,
                    cookie: lane.up.name as u32,
                    ack: Ack {
                        expected: said.expected,
                        held: 0,
                    },
                    credit,
                };
                let route = route(&lane.up, way.clone());
                if let Some(queue_pair) = &mut self.ud.queue_pair {
                    // The lane may be given up with nothing behind this on it: then the device is
                    // to be done with its handle.
                    queue_pair.signal_next();
                    queue_pair.send(&mut self.poster, &route, &prefix.to_bytes(), &bytes[..len]);
                }
                let wait = RESUME_INTERVAL.saturating_mul(1 << lane.tries.min(16));
                lane.tries += 1;
                let again = now + wait.min(MAX_RESUME_INTERVAL);
                self.ud.deadlines.set(session, Some(again));
            }
        }
    }

    /// A lane whose peer's Resume is awaited would never learn that the peer gave it up, if word of
    /// that got lost. So each gets a write of nothing, which only a living queue pair acknowledges
    /// and of which the peer knows nothing.
    pub(super) fn probe_resuming_lanes<O: Owner>(&mut self, owner: &mut O) {
        let mut broken = Vec::new();
        for lane in self.resuming.iter_mut() {
            let session = lane.up.lane.session();
            let Carrier::Rc(qp) = &lane.carrier else {
                continue;
            };
            if !lane.said || lane.under_way {
                continue;
            }
            let wr_id = send_wr_id(session, RESUME_NUMBER);
            let nowhere = Remote { addr: 0, rkey: 0 };
            let mut request = SendRequest::write(wr_id, [inline_sge(&[])], nowhere)
                .flags(SendFlags::SIGNALED | SendFlags::INLINE);
            lane.under_way = true;
            self.poster.outstanding += 1;
            // SAFETY: an empty inline write names no memory.
            if unsafe { request.post(qp) }.is_err() {
                broken.push(session);
            }
        }
        for session in broken {
            self.resuming_lane_broke(session, owner);
        }
    }

    /// The Resume, or a probe behind it, has arrived.
    pub(super) fn resume_sent(&mut self, session: SessionId, number: u32) {
        if let Some(lane) = self.resuming.of(session) {
            if number == RESUME_NUMBER && std::mem::take(&mut lane.under_way) {
                self.poster.outstanding -= 1;
            }
        }
    }

    /// A lane broke before it carried the session.
    #[cold]
    pub(super) fn resuming_lane_broke<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        self.give_up_resuming(session, BROKEN, owner);
    }

    /// Gives up a lane before it carries the session, and has the service thread drop it.
    #[cold]
    pub(super) fn give_up_resuming<O: Owner>(
        &mut self,
        session: SessionId,
        end: LaneEnd,
        owner: &mut O,
    ) {
        if let Some(lane) = self.resuming.of(session) {
            let key = lane.up.lane;
            self.service.request(ToService::LaneBroken(key));
            self.resuming_lane_down(session, end, owner);
        }
    }

    /// A lane is no more that never carried the session.
    #[cold]
    pub(super) fn resuming_lane_down<O: Owner>(
        &mut self,
        session: SessionId,
        end: LaneEnd,
        owner: &mut O,
    ) {
        let Some(lane) = self.resuming.end(session) else {
            return;
        };
        self.peers.end_lane(lane.peer);
        self.poster.outstanding -= usize::from(lane.under_way);
        if let Carrier::Rc(qp) = lane.carrier {
            self.part_with(qp);
        }
        let peer = self.peers.at(lane.peer);
        if peer.link == Link::Resuming(session) {
            if let Some(state) = peer.parked.take() {
                return self.session_left_lane(lane.peer, lane.up.lane, *state, end, owner);
            }
            peer.link = Link::Idle;
        }
        self.next_lane(lane.peer, owner);
    }

    /// Takes the session up again, as far as that goes: the old lane is to be drained, the peer's
    /// end up, both sides heard.
    fn resume<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        let Some(lane) = self.resuming.of(session) else {
            return;
        };
        let peer = self.peers.at(lane.peer);
        if peer.link != Link::Resuming(session) || !lane.may_send {
            return;
        }
        if !lane.said {
            self.hold_session(session);
            let now = self.ud.now();
            self.say_resume(session, now, owner);
        }
        if (self.resuming.of(session)).is_some_and(|lane| lane.heard.is_some()) {
            self.resumed(session, owner);
        }
    }

    /// Who holds no session holds from here on the one that starts with this lane. The peer begins
    /// it as soon as it hears that, so it is kept even if the lane ends before we have heard the
    /// peer.
    fn hold_session(&mut self, session: SessionId) {
        let Some(lane) = self.resuming.of(session) else {
            return;
        };
        let (peer, up) = (lane.peer, lane.up);
        if self.peers.at(peer).parked.is_none() {
            let state = Box::new(self.new_session(&up, Predecessor::default()));
            self.peers.at(peer).parked = Some(state);
        }
    }

    /// Both sides have said what they hold: the lane carries the session from here on.
    fn resumed<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        let Some(lane) = self.resuming.end(session) else {
            return;
        };
        self.peers.end_lane(lane.peer);
        let heard = lane.heard.unwrap_or_default();
        let state = match self.peers.at(lane.peer).parked.take() {
            None => self.new_session(&lane.up, Predecessor::default()),
            Some(mut state) => match self.meet(lane.peer, &lane.up, &mut state, heard, owner) {
                Ok(None) => *state,
                Ok(Some(before)) => {
                    self.end_session(lane.peer, *state, LOST_BY_PEER, owner);
                    self.new_session(&lane.up, before)
                }
                Err(error) => {
                    tracing::warn!("{:?}: {error}", lane.up.lane);
                    let end = protocol_broken("the peer confirmed what was never sent");
                    self.poster.outstanding -= usize::from(lane.under_way);
                    self.service.request(ToService::LaneBroken(lane.up.lane));
                    let (peer, key) = (lane.peer, lane.up.lane);
                    if let Carrier::Rc(qp) = lane.carrier {
                        self.part_with(qp);
                    }
                    return self.session_left_lane(peer, key, *state, end, owner);
                }
            },
        };
        let up = LaneUp {
            may_send: true,
            ..lane.up
        };
        self.enter(lane.peer, &up, lane.carrier, state);
        if let Some(entry) = self.lanes.of(session) {
            entry.heard = true;
            entry.queue.begin_behind(RESUME_NUMBER);
            if lane.under_way {
                entry.queue.enter(entered(RESUME_NUMBER, WqeKind::Notice));
            }
        }
    }

    /// Has a session meet what the peer said on a lane. If it does not go on over the lane, returns
    /// the session before the one that begins.
    fn meet<O: Owner>(
        &mut self,
        peer: u32,
        up: &LaneUp,
        state: &mut SessionState,
        heard: Said,
        owner: &mut O,
    ) -> Result<Option<Predecessor>, SessionError> {
        let start = start(up);
        let before = state.numbers.unconfirmed();
        let granted_units = state.numbers.receive_credit.quota_units();
        let repeated = match state.numbers.meet(&start, heard, state.sends.len())? {
            Outcome::Continues(replay) => {
                let count = before - replay.count;
                state.arrived_after_all(count, &mut self.ud.packets, owner);
                state.readdress(start.remote);
                self.poster.counters.lanes.sessions_resumed += 1;
                replay.count
            }
            Outcome::BeginsAgain => {
                state.begins_again(&start);
                self.awaken(peer);
                self.grants.end(granted_units, 0);
                self.grants.begin(start.we_grant_units);
                self.tell_grant();
                before
            }
            Outcome::Ends(before) => return Ok(Some(before)),
        };
        self.poster.counters.lanes.packets_repeated += u64::from(repeated);
        Ok(None)
    }
}

/// What a Resume says.
fn said(held: Resume, header: &Header) -> Said {
    Said {
        held,
        expected: header.sequence,
    }
}
