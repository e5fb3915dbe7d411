//! One end of a session: a short form of the verbs endpoint's engine, and an application that
//! checks its arrivals.

use std::collections::VecDeque;

use crate::Time;
use crate::credit::SendAdmission;
use crate::datagram_lane::{DatagramLane, HeldPacket, PacketArrival, SharedLaneState};
use crate::envelopes::{PulledMessages, WaitingKind, WaitingMessages};
use crate::fragmentation::{Assembly, FragmentPlan, PacketRole};
use crate::session::{Accept, Session};
use crate::wire::SessionId;
use crate::wire::data::{
    DataEnvelope, DataPacket, FinStatus, MAX_FIRST_HEADER_BYTES, MAX_HEADER_BYTES,
    MAX_NOTICE_BYTES, MAX_RTS_BYTES, MemorySegment,
};
use crate::wire::datagram::{self, DatagramPrefix, PREFIX_BYTES};

/// Largest datagram.
const MTU: u32 = 256;

/// Bytes of a message that a packet has room for.
pub(super) const ROOM: u32 = MTU - (PREFIX_BYTES + MAX_FIRST_HEADER_BYTES) as u32;

/// Packets on an RC lane that are not confirmed.
const RC_DEPTH: u32 = 100;

/// A model RC lane as one end sees it.
#[derive(Clone, Debug)]
pub(super) struct Rc {
    pub(super) epoch: u64,
    /// The other end is known to be up.
    pub(super) may_send: bool,
    /// The next number to post.
    next: u32,
}

/// An outgoing packet.
#[derive(Clone, Debug)]
pub(super) enum OutPacket {
    Datagram { bytes: Vec<u8>, numbered: bool },
    Rc { epoch: u64, bytes: Vec<u8> },
}

/// Parameters agreed on when the session began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// Tells sessions apart, for the checks alone.
    pub(super) serial: u64,
    pub(super) id: SessionId,
    pub(super) remote_id: SessionId,
    pub(super) cookie: u32,
    pub(super) remote_cookie: u32,
    pub(super) quota_units: u16,
    /// Where the numbers begin: in life always at 0.
    pub(super) start: u32,
}

/// Requests to send that an end has open at a time: beyond them the envelopes of messages go.
const OPEN_REQUESTS: u64 = 4;

#[derive(Clone, Debug)]
pub(super) struct DatagramEnd {
    pub(super) agreed: Agreed,
    pub(super) session: Session,
    pub(super) lane: DatagramLane<Vec<u8>>,
    pub(super) rc: Option<Rc>,
    /// Packets that are not confirmed, from the oldest on.
    kept: VecDeque<Vec<u8>>,
    assembly: Assembly,
    building: Vec<u8>,
    /// Lengths of the messages still to be sent.
    pub(super) to_send: VecDeque<u32>,
    /// How many of them may be sent now.
    pub(super) allowance: u64,
    /// Whether each message that comes allows one to be sent.
    pub(super) replies: bool,
    /// Whether what comes is consumed at once.
    pub(super) consumes: bool,
    unconsumed: Vec<u32>,
    fins: VecDeque<u64>,
    /// Messages that went without their bytes: as requests to send, or as envelopes.
    pub(super) requests: u64,
    pub(super) open_requests: u64,
    /// Messages that wait here, by number and length, and those of the peer.
    envelopes: WaitingMessages<(u64, u32)>,
    pulls: PulledMessages<(u64, u64)>,
    pulls_to_send: VecDeque<(u64, u64)>,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) acks_alone: u64,
    pub(super) held: usize,
}

impl DatagramEnd {
    pub(super) fn new(agreed: Agreed, shared: &SharedLaneState) -> Self {
        let session = Session::at(agreed.remote_id, agreed.quota_units, agreed.start);
        DatagramEnd {
            lane: DatagramLane::new(shared, &session, u64::from(agreed.cookie)),
            agreed,
            session,
            rc: None,
            kept: VecDeque::new(),
            assembly: Assembly::default(),
            building: Vec::new(),
            to_send: VecDeque::new(),
            allowance: u64::MAX,
            replies: false,
            consumes: true,
            unconsumed: Vec::new(),
            fins: VecDeque::new(),
            requests: 0,
            open_requests: 0,
            envelopes: WaitingMessages::new(usize::MAX, |_| WaitingKind::Plain),
            pulls: PulledMessages::default(),
            pulls_to_send: VecDeque::new(),
            sent: 0,
            received: 0,
            acks_alone: 0,
            held: 0,
        }
    }

    /// Nothing is left to be sent or confirmed.
    pub(super) fn is_done(&self) -> bool {
        self.to_send.is_empty()
            && self.kept.is_empty()
            && self.open_requests == 0
            && self.envelopes.is_empty()
            && self.pulls.is_empty()
    }

    /// Sends what can be sent now.
    pub(super) fn run(
        &mut self,
        shared: &mut SharedLaneState,
        now: Time,
        out: &mut Vec<OutPacket>,
    ) {
        self.stamp();
        self.send(shared, now, out);
        if self.lane.is_ack_due(now) || self.session.receive_credit.is_return_due() {
            let header = self.session.stamp_ack();
            let mut bytes = [0; MAX_NOTICE_BYTES];
            let length = header.write_ack(&mut bytes);
            let datagram = self.datagram(&bytes[..length], false);
            self.acks_alone += 1;
            out.push(OutPacket::Datagram {
                bytes: datagram,
                numbered: false,
            });
        }
        assert_eq!(self.kept.len() as u32, self.session.unconfirmed());
        self.lane.assert_counts(&self.session);
    }

    fn send(&mut self, shared: &mut SharedLaneState, now: Time, out: &mut Vec<OutPacket>) {
        if let Some(rc) = &mut self.rc {
            let oldest = self.session.oldest_unconfirmed();
            let end = oldest.wrapping_add(self.session.unconfirmed());
            while rc.may_send && rc.next != end {
                let at = rc.next.wrapping_sub(oldest) as usize;
                out.push(OutPacket::Rc {
                    epoch: rc.epoch,
                    bytes: self.kept[at].clone(),
                });
                rc.next = rc.next.wrapping_add(1);
            }
        }
        while let Some(packet) = self.lane.next_packet(shared, &self.session, now) {
            let oldest = self.session.oldest_unconfirmed();
            let at = packet.sequence.wrapping_sub(oldest) as usize;
            let bytes = std::mem::take(&mut self.kept[at]);
            let datagram = self.datagram(&bytes, packet.ack_at_once);
            self.kept[at] = bytes;
            out.push(OutPacket::Datagram {
                bytes: datagram,
                numbered: true,
            });
        }
    }

    fn datagram(&mut self, packet: &[u8], ack_at_once: bool) -> Vec<u8> {
        let prefix = DatagramPrefix {
            ack_at_once,
            cookie: self.agreed.remote_cookie,
            ack: self.lane.ack(&self.session),
            credit: self.session.receive_credit.count(),
        };
        let bytes = [&prefix.to_bytes(), packet].concat();
        assert!(bytes.len() <= MTU as usize);
        bytes
    }

    /// Gives numbers to the application's messages, and to our control packets.
    fn stamp(&mut self) {
        while let Some(op) = self.fins.pop_front() {
            let header = self.session.stamp().unwrap();
            let mut bytes = [0; MAX_NOTICE_BYTES];
            let length = header.write_fin(op, FinStatus::Ok, &mut bytes);
            self.kept.push_back(bytes[..length].to_vec());
        }
        while self.has_room() {
            let Some((op, receive)) = self.pulls_to_send.pop_front() else {
                break;
            };
            let header = self.session.stamp().unwrap();
            let mut out = [0; MAX_NOTICE_BYTES];
            let length = header.write_pull(op, receive, &mut out);
            self.kept.push_back(out[..length].to_vec());
        }
        while self.has_room() {
            let Some((receive, (number, bytes))) = self.envelopes.next_pulled() else {
                break;
            };
            let header = self.session.stamp().unwrap();
            let mut out = [0; MAX_HEADER_BYTES];
            let length = header.write_pulled(receive, bytes, &mut out);
            let packet = [&out[..length], &content(number, bytes)].concat();
            self.kept.push_back(packet);
        }
        while self.allowance > 0 && !self.to_send.is_empty() {
            if !self.has_room() {
                return;
            }
            self.allowance -= 1;
            if let Some(bytes) = self.to_send.pop_front() {
                self.stamp_message(bytes);
            }
        }
    }

    fn has_room(&self) -> bool {
        match self.rc.as_ref().is_some_and(|rc| rc.may_send) {
            true => self.session.unconfirmed() < RC_DEPTH,
            false => self.lane.has_room(&self.session),
        }
    }

    fn stamp_message(&mut self, bytes: u32) {
        let number = self.sent;
        self.sent += 1;
        let envelope = DataEnvelope {
            tag: Some(number),
            cq_data: Some(self.agreed.serial),
            part: None,
        };
        if self.session.send_credit.admit(bytes) == SendAdmission::Rendezvous {
            if self.open_requests >= OPEN_REQUESTS && bytes <= ROOM {
                self.requests += 1;
                let op = self.envelopes.insert((number, bytes)).unwrap();
                let header = self.session.stamp().unwrap();
                let mut out = [0; MAX_NOTICE_BYTES];
                let length = header.write_envelope(&envelope, op, bytes.into(), &mut out);
                return self.kept.push_back(out[..length].to_vec());
            }
            let segment = MemorySegment {
                address: number,
                length_bytes: u64::from(bytes.max(1)),
                rkey: 1,
            };
            let mut out = [0; MAX_RTS_BYTES];
            let header = self.session.stamp().unwrap();
            let length = header
                .write_rts(&envelope, number, &[segment], &mut out)
                .unwrap();
            self.kept.push_back(out[..length].to_vec());
            self.requests += 1;
            self.open_requests += 1;
            return;
        }
        let message: Vec<u8> = content(number, bytes);
        let plan = FragmentPlan::new(bytes, ROOM);
        for range in plan.ranges() {
            let header = self.session.stamp().unwrap();
            let part = &message[range.start as usize..range.end as usize];
            let mut out = [0; MAX_FIRST_HEADER_BYTES];
            let length = if plan.packets() == 1 {
                let mut head = [0; MAX_HEADER_BYTES];
                let length = header.write_eager(&envelope, bytes, &mut head);
                out[..length].copy_from_slice(&head[..length]);
                length
            } else if range.start == 0 {
                header.write_first(&envelope, bytes, part.len() as u32, &mut out)
            } else {
                let mut head = [0; MAX_HEADER_BYTES];
                let length = header.write_fragment(range.start, part.len() as u32, &mut head);
                out[..length].copy_from_slice(&head[..length]);
                length
            };
            self.kept.push_back([&out[..length], part].concat());
        }
    }

    /// A datagram came; `may_hold`: whether it may be kept. `false` if it was for another session.
    pub(super) fn datagram_came(
        &mut self,
        shared: &mut SharedLaneState,
        bytes: &[u8],
        may_hold: bool,
        now: Time,
    ) -> bool {
        let (prefix, header, packet) = datagram::parse(bytes).unwrap();
        if header.session != self.agreed.id || prefix.cookie != self.agreed.cookie {
            return false;
        }
        self.session.send_credit.on_count(prefix.credit).unwrap();
        let newly = self
            .lane
            .on_ack(shared, &mut self.session, prefix.ack, now)
            .unwrap();
        self.kept.drain(..newly as usize);
        if !packet.is_numbered() {
            return true;
        }
        let packet = bytes[PREFIX_BYTES..].to_vec();
        let numbered = (header.sequence, prefix.ack_at_once);
        match self
            .lane
            .arrive(shared, &mut self.session, numbered, packet, may_hold, now)
        {
            PacketArrival::Deliver(packet) => {
                self.deliver(&packet);
                self.deliver_held();
            }
            PacketArrival::Hold => self.held += 1,
            PacketArrival::Drop(_) => {}
        }
        true
    }

    fn deliver_held(&mut self) {
        while let Some(held) = self.lane.next_held(&mut self.session) {
            self.held -= 1;
            if let HeldPacket::Deliver(packet) = held {
                self.deliver(&packet);
            }
        }
    }

    /// A packet came on the RC lane.
    pub(super) fn rc_came(&mut self, epoch: u64, bytes: &[u8]) {
        let Some(rc) = self.rc.as_mut().filter(|rc| rc.epoch == epoch) else {
            return;
        };
        rc.may_send = true;
        let (header, packet) = DataPacket::parse(bytes).unwrap();
        assert!(packet.is_numbered());
        match self.session.accept(header.sequence) {
            Accept::Deliver => {
                self.deliver(bytes);
                self.deliver_held();
            }
            Accept::Duplicate => {}
            Accept::Gap => panic!("a gap on a lane that keeps order"),
        }
    }

    /// A packet that was posted on the RC lane is known to have arrived.
    pub(super) fn rc_done(&mut self, epoch: u64, sequence: u32) {
        if self.rc.as_ref().is_some_and(|rc| rc.epoch == epoch) {
            let newly = self.session.confirm(sequence.wrapping_add(1)).unwrap();
            self.kept.drain(..newly as usize);
        }
    }

    /// An RC lane is up at this end.
    pub(super) fn rc_up(&mut self, epoch: u64, may_send: bool) {
        self.rc = Some(Rc {
            epoch,
            may_send,
            next: self.session.oldest_unconfirmed(),
        });
    }

    /// The RC lane may send its first packet: the packets that the UD lane has not confirmed go
    /// there.
    pub(super) fn rc_may_send(&mut self, epoch: u64) {
        if let Some(rc) = self.rc.as_mut().filter(|rc| rc.epoch == epoch) {
            rc.may_send = true;
        }
    }

    /// Follows the RC lane's state: sends here or there.
    pub(super) fn choose_lane(&mut self) {
        let on_rc = self.rc.as_ref().is_some_and(|rc| rc.may_send);
        if on_rc && !self.lane.is_paused() {
            self.lane.pause();
            if let Some(rc) = &mut self.rc {
                rc.next = self.session.oldest_unconfirmed();
            }
        } else if !on_rc && self.lane.is_paused() {
            self.lane.resume();
        }
    }

    pub(super) fn rc_gone(&mut self) {
        self.rc = None;
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let (_, packet) = DataPacket::parse(bytes).unwrap();
        let place = self.assembly.on_packet(&packet).unwrap();
        match packet {
            DataPacket::Eager { envelope, payload } => {
                self.expect(envelope);
                assert_eq!(payload, content(self.received, payload.len() as u32));
                let bytes = payload.len() as u32;
                self.session.receive_credit.take(bytes).unwrap();
                self.message_came();
                self.consume(bytes);
            }
            DataPacket::EagerFirst {
                envelope,
                total_bytes,
                part,
            } => {
                self.expect(envelope);
                self.session.receive_credit.take(total_bytes).unwrap();
                self.building = part.to_vec();
            }
            DataPacket::EagerPart { offset_bytes, part } => {
                assert_eq!(self.building.len() as u32, offset_bytes);
                self.building.extend_from_slice(part);
                if matches!(place, PacketRole::Fragment { last: true, .. }) {
                    let bytes = self.building.len() as u32;
                    assert_eq!(self.building, content(self.received, bytes));
                    self.message_came();
                    self.consume(bytes);
                }
            }
            DataPacket::Rts { envelope, request } => {
                self.expect(envelope);
                assert_eq!(request.op, self.received);
                self.message_came();
                self.fins.push_back(request.op);
            }
            DataPacket::Envelope {
                envelope,
                op,
                total_bytes,
            } => {
                self.expect(envelope);
                let receive = self.pulls.pull((self.received, total_bytes)).unwrap();
                self.message_came();
                self.pulls_to_send.push_back((op, receive));
            }
            DataPacket::Pull { op, receive } => self.envelopes.on_pull(op, receive).unwrap(),
            DataPacket::Pulled { receive, payload } => {
                let (number, bytes) = self.pulls.on_answer(receive).unwrap();
                assert_eq!(payload, content(number, bytes as u32));
            }
            DataPacket::PulledRts { .. } | DataPacket::Unsent { .. } => {
                panic!("each message that waits fits into a datagram")
            }
            DataPacket::Fin { .. } => self.open_requests -= 1,
            DataPacket::Cts(_) | DataPacket::Done { .. } | DataPacket::Resume(_) => {
                panic!("nobody writes here, and no lane is resumed")
            }
            DataPacket::Credit | DataPacket::Ack => panic!("not numbered"),
        }
    }

    fn expect(&self, envelope: DataEnvelope) {
        assert_eq!(
            (envelope.tag, envelope.cq_data),
            (Some(self.received), Some(self.agreed.serial)),
            "out of order, or of another session"
        );
    }

    fn message_came(&mut self) {
        self.received += 1;
        if self.replies {
            self.allowance += 1;
        }
    }

    fn consume(&mut self, bytes: u32) {
        match self.consumes {
            true => self.session.receive_credit.release(bytes),
            false => self.unconsumed.push(bytes),
        }
    }

    pub(super) fn consume_all(&mut self) {
        self.consumes = true;
        for bytes in std::mem::take(&mut self.unconsumed) {
            self.session.receive_credit.release(bytes);
        }
    }
}

/// The bytes of a message.
fn content(number: u64, bytes: u32) -> Vec<u8> {
    (0..bytes)
        .map(|at| (number.wrapping_mul(31) as u8).wrapping_add(at as u8))
        .collect()
}
