//! Receiving: packets from the receive queues to their receives.

mod buffers;
mod census;
mod fragmentation;
mod lost;
mod own_queues;
mod pulled;
mod rendezvous;
mod requests;
mod shared_queue;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Owner, PeerSrx, Start, Token, deliver};
use ferrofabric_contracts::types::MsgKind;
use ferrofabric_protocol::credit::CreditError;
use ferrofabric_protocol::lanes::{BROKEN, protocol_broken};
use ferrofabric_protocol::session::Accept;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{DataEnvelope, DataPacket, FinStatus, Header};

use super::{RdmTransport, TRANSPORT};
use crate::session::{
    ControlMessage, RdmUnexpectedMessage, SessionState, TransferMethod, UnexpectedBody,
};

pub(super) use buffers::ReceivePool;
pub(super) use own_queues::ReceivingQueuePair;

impl RdmTransport {
    /// A packet has arrived in a slot.
    #[inline]
    pub(super) fn received<O: Owner>(&mut self, slot: u32, bytes: u32, qp_num: u32, owner: &mut O) {
        if self.ud.is_at(qp_num) {
            return self.on_datagram(slot, bytes, owner);
        }
        let at = self.receives.address(slot);
        let len = (bytes as usize).min(self.receives.slot_bytes());
        // SAFETY: the device has written the slot and is done with it until it is posted again,
        // below; no peer can reach it.
        let packet = unsafe { std::slice::from_raw_parts(at, len) };
        self.poster.counters.received.packets += 1;
        if !self.next_message(packet, qp_num, owner) {
            self.packet(packet, qp_num, owner);
        }
        self.receives.give_back(slot);
    }

    /// Takes a packet of the most frequent kind: a whole message, the next of its session, from a
    /// peer that keeps to the rules.
    #[inline]
    fn next_message<O: Owner>(&mut self, bytes: &[u8], qp_num: u32, owner: &mut O) -> bool {
        let Some((header, envelope, payload)) = DataPacket::parse_eager(bytes) else {
            return false;
        };
        let Some(lane) = self.lanes.rc(header.session) else {
            return false;
        };
        let SessionState {
            numbers, incoming, ..
        } = &mut lane.session;
        let is_next = lane.head.gate.peer_is_up()
            && lane.qp.number() == qp_num
            && numbers.is_next(header.sequence)
            && incoming.assembly.is_complete();
        // A packet that is rejected here is checked once more: neither call changes anything then.
        if !is_next
            || numbers.send_credit.on_credit(header.credit).is_err()
            || (numbers.receive_credit.take(payload.len() as u32)).is_err()
        {
            return false;
        }
        numbers.accept(header.sequence);
        let from = (lane.head.peer, lane.session.numbers.name());
        self.on_eager(header.session, from, envelope, payload, owner);
        true
    }

    fn packet<O: Owner>(&mut self, bytes: &[u8], qp_num: u32, owner: &mut O) {
        let Ok((header, packet)) = DataPacket::parse(bytes) else {
            return self.drop_packet(qp_num, "it is no data packet");
        };
        let session = header.session;
        if self.lanes.rc(session).is_none() && self.service.has_messages() {
            // The lane may be up while its message has not been read yet.
            self.take_messages(owner);
        }
        let Some(lane) = self.lanes.rc(session) else {
            if self.on_resume_packet(&header, &packet, qp_num, owner) {
                return;
            }
            return self.drop_packet(qp_num, "its session does not exist");
        };
        if lane.qp.number() != qp_num {
            return self.drop_packet(qp_num, "its session is another queue pair's");
        }
        if !lane.head.gate.peer_is_up() {
            self.packet_came(session, owner);
        }
        let Some(lane) = self.lanes.rc(session) else {
            return;
        };
        match judge(&mut lane.session, &header, &packet) {
            Ok(Accept::Deliver) => {}
            // Soft-RoCE repeats messages while a queue pair goes to error (docs/soft-roce.md).
            Ok(Accept::Duplicate) => return self.drop_packet(qp_num, "it was taken before"),
            Ok(Accept::Gap) => return self.break_lane(session, BROKEN),
            Err(why) => return self.break_protocol(session, &*why),
        }
        let from = (lane.head.peer, lane.session.numbers.name());
        self.take_packet(session, from, packet, owner);
    }

    /// Takes the next packet of a session.
    #[inline]
    pub(super) fn take_packet<O: Owner>(
        &mut self,
        session: SessionId,
        from: (u32, u64),
        packet: DataPacket<'_>,
        owner: &mut O,
    ) {
        match packet {
            DataPacket::Eager { envelope, payload } => {
                self.on_eager(session, from, envelope, payload, owner);
            }
            DataPacket::Rts { envelope, request } => {
                let method = TransferMethod::of(&request);
                let (op, total) = (request.op, request.total_bytes);
                self.on_rts(session, from, envelope, (op, total, method), owner);
            }
            DataPacket::Envelope {
                envelope,
                op,
                total_bytes,
            } => self.on_envelope(session, from, envelope, (op, total_bytes), owner),
            DataPacket::Pull { op, receive } => self.on_pull(session, op, receive),
            DataPacket::Pulled { receive, payload } => {
                self.on_pulled(session, from.0, (receive, payload), owner);
            }
            DataPacket::PulledRts { receive, request } => {
                self.on_pulled_rts(session, from, (receive, &request), owner);
            }
            DataPacket::Unsent { receive } => self.on_unsent(session, receive, owner),
            DataPacket::Fin { op, status } => self.on_fin(session, op, status, owner),
            DataPacket::EagerFirst { .. } | DataPacket::EagerPart { .. } => {
                self.on_fragment(session, from, &packet, owner);
            }
            DataPacket::Cts(grant) => self.on_cts(session, &grant, owner),
            DataPacket::Done { receive } => self.on_done(session, from.0, receive, owner),
            DataPacket::Credit | DataPacket::Ack | DataPacket::Resume(_) => {}
        }
    }

    #[inline]
    fn on_eager<O: Owner>(
        &mut self,
        lane: SessionId,
        (peer, session): (u32, u64),
        envelope: DataEnvelope,
        payload: &[u8],
        owner: &mut O,
    ) {
        let (kind, arrived) = self.count_arrival(peer, envelope, payload.len() as u64);
        if let Some(matched) = owner.srx().arrive(kind, &arrived) {
            // SAFETY: the buffer of a receive that is under way.
            unsafe { deliver(owner, &matched, 0, payload.as_ptr(), payload.len()) };
            owner.complete_recv(kind, &matched, &arrived, || self.peers.name(peer));
            if kind.is_answered() {
                self.send_refusals(peer, owner);
            }
            match self.lanes.rc(lane) {
                Some(of) => {
                    if release(&mut of.session, payload.len()) {
                        self.list(lane);
                    }
                }
                None => self.return_credit((peer, session), payload.len()),
            }
            return;
        }
        self.poster.counters.received.unexpected += 1;
        let value = self.keep_unexpected(RdmUnexpectedMessage {
            peer,
            session,
            body: UnexpectedBody::Eager(payload.into()),
        });
        owner.srx().queue(kind, arrived, token(value));
    }

    fn on_rts<O: Owner>(
        &mut self,
        lane: SessionId,
        (peer, session): (u32, u64),
        envelope: DataEnvelope,
        (op, total, method): (u64, u64, TransferMethod),
        owner: &mut O,
    ) {
        let (kind, arrived) = self.count_arrival(peer, envelope, total);
        if let Some(matched) = owner.srx().arrive(kind, &arrived) {
            return self.start_transfer(
                (peer, session),
                (kind, arrived, matched),
                op,
                method,
                owner,
            );
        }
        let state = self.lanes.session(lane);
        if let Some(Err(error)) = state.map(SessionState::count_rts) {
            return self.break_protocol(lane, &error);
        }
        self.poster.counters.received.unexpected += 1;
        let value = self.keep_unexpected(RdmUnexpectedMessage {
            peer,
            session,
            body: UnexpectedBody::Request { op, method },
        });
        owner.srx().queue(kind, arrived, token(value));
    }

    /// Counts a message and describes it for the owner.
    #[inline]
    pub(super) fn count_arrival(
        &mut self,
        peer: u32,
        envelope: DataEnvelope,
        len: u64,
    ) -> (MsgKind, Arrived) {
        self.poster.counters.received.messages += 1;
        self.poster.counters.received.bytes += len;
        let kind = match (envelope.part, envelope.tag) {
            (None, Some(_)) => MsgKind::Tagged,
            (None, None) => MsgKind::Msg,
            (Some(part), _) => MsgKind::Remote(part),
        };
        let of = self.peers.at(peer);
        let arrived = Arrived {
            src: match kind.is_request() {
                true => of.requester,
                false => of.addr,
            },
            tag: envelope.tag.unwrap_or(0),
            len,
            data: envelope.cq_data.unwrap_or(0),
            flags: match envelope.cq_data {
                Some(_) => Flags::REMOTE_CQ_DATA,
                None => Flags::empty(),
            },
        };
        (kind, arrived)
    }

    /// Keeps an unexpected message until a receive matches; returns the value of its token.
    #[inline]
    pub(super) fn keep_unexpected(&mut self, message: RdmUnexpectedMessage) -> u64 {
        self.peers.hold(message.peer);
        self.unexpected.keep(message)
    }

    #[inline]
    fn take_message(&mut self, token: u64) -> Option<RdmUnexpectedMessage> {
        let message = self.unexpected.take(token)?;
        self.peers.release_message(message.peer);
        Some(message)
    }

    /// A receive has matched an unexpected message.
    pub(super) fn start_unexpected<O: Owner>(&mut self, start: Start, owner: &mut O) {
        let Start {
            kind,
            token,
            arrived,
            matched,
        } = start;
        let Some(message) = self.take_message(token.value) else {
            return owner.fail_recv(
                kind,
                &matched,
                &arrived,
                Errno::EIO,
                0,
                "the message is lost",
            );
        };
        let from = (message.peer, message.session);
        match message.body {
            UnexpectedBody::Eager(payload) => {
                // SAFETY: the buffer of a receive that is under way.
                unsafe { deliver(owner, &matched, 0, payload.as_ptr(), payload.len()) };
                owner.complete_recv(kind, &matched, &arrived, || self.peers.name(from.0));
                self.return_credit(from, payload.len());
            }
            UnexpectedBody::Arriving { bytes, .. } => {
                self.redirect(from, &bytes, (kind, arrived, matched), owner);
            }
            UnexpectedBody::Request { op, method } => {
                self.request_is_met(from);
                self.start_transfer(from, (kind, arrived, matched), op, method, owner);
            }
            UnexpectedBody::Envelope { op } => {
                self.envelope_is_met(from);
                self.pull(from, (kind, arrived, matched), op, owner);
            }
        }
    }

    /// An unexpected message was discarded.
    pub(super) fn discard_unexpected(&mut self, token: Token) {
        let Some(message) = self.take_message(token.value) else {
            return;
        };
        let (peer, session) = (message.peer, message.session);
        match message.body {
            UnexpectedBody::Eager(payload) => self.return_credit((peer, session), payload.len()),
            UnexpectedBody::Arriving { total_bytes, .. } => {
                self.drop_rest((peer, session));
                self.return_credit((peer, session), total_bytes);
            }
            UnexpectedBody::Request { op, .. } => {
                self.request_is_met((peer, session));
                self.notify(peer, session, ControlMessage::Fin(op, FinStatus::Cancelled));
            }
            UnexpectedBody::Envelope { op } => {
                self.envelope_is_met((peer, session));
                self.notify(peer, session, ControlMessage::Fin(op, FinStatus::Cancelled));
            }
        }
    }

    fn request_is_met(&mut self, (peer, session): (u32, u64)) {
        if let Some((state, _)) = self.session_named(peer, session) {
            state.uncount_rts();
        }
    }

    pub(super) fn return_credit(&mut self, (peer, session): (u32, u64), bytes: usize) {
        if let Some((state, lane)) = self.session_named(peer, session) {
            let owes = release(state, bytes);
            if let Some(lane) = lane.filter(|_| owes) {
                self.list(lane);
            }
        } else {
            self.release_message_of_ended(bytes);
        }
    }

    /// The unexpected message of a session that has ended is gone.
    #[cold]
    fn release_message_of_ended(&mut self, bytes: usize) {
        self.grants.release_message(bytes);
        self.publish_grant();
    }

    /// The peer broke the protocol: the session and all its operations end with an error.
    #[cold]
    pub(super) fn break_protocol(
        &mut self,
        session: SessionId,
        error: &(dyn std::error::Error + 'static),
    ) {
        if let Some(lane) = self.lanes.rc(session) {
            let peer = &self.peers.at(lane.head.peer).key;
            tracing::warn!("{} to {peer:?} is closed: {error}", **lane.qp);
        }
        let why = match error.downcast_ref() {
            Some(CreditError::OverQuota) => "the peer sent more unexpected messages than its quota",
            Some(CreditError::OverRequested) => {
                "the peer announced more unexpected messages than its quota"
            }
            Some(CreditError::OverEnveloped) => {
                "the peer sent more envelopes of waiting messages than are kept"
            }
            _ => "the peer broke the protocol",
        };
        self.break_lane(session, protocol_broken(why));
    }

    #[cold]
    fn drop_packet(&mut self, qp_num: u32, why: &'static str) {
        self.poster.counters.received.dropped += 1;
        tracing::debug!("packet on queue pair {qp_num:#x} dropped: {why}");
    }
}

/// Processes a packet's number and credit, and returns the meaning of the number.
#[inline]
fn judge(
    state: &mut SessionState,
    header: &Header,
    packet: &DataPacket<'_>,
) -> Result<Accept, Box<dyn std::error::Error>> {
    let numbers = &mut state.numbers;
    numbers.send_credit.on_credit(header.credit)?;
    if packet.is_numbered() {
        let accept = numbers.accept(header.sequence);
        if accept != Accept::Deliver {
            return Ok(accept);
        }
    }
    take_credit(state, packet)?;
    Ok(Accept::Deliver)
}

/// Charges the credit for a packet that is the next of its session.
#[inline]
pub(super) fn take_credit(
    state: &mut SessionState,
    packet: &DataPacket<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    match packet {
        DataPacket::Eager { payload, .. } => {
            state.incoming.assembly.on_packet(packet)?;
            (state.numbers.receive_credit).take(payload.len() as u32)?;
        }
        DataPacket::Rts { .. } | DataPacket::Envelope { .. } => {
            state.incoming.assembly.on_packet(packet)?;
        }
        DataPacket::Resume(_) => return Err("a session is resumed in its middle".into()),
        _ => {}
    }
    Ok(())
}

/// The room of a message is free again. Returns whether the peer has to get its credit back now.
#[inline]
pub(super) fn release(state: &mut SessionState, bytes: usize) -> bool {
    let credit = &mut state.numbers.receive_credit;
    credit.release(bytes as u32);
    credit.is_return_due()
}

#[inline]
pub(super) fn token(value: u64) -> Token {
    Token {
        transport: TRANSPORT,
        value,
    }
}
