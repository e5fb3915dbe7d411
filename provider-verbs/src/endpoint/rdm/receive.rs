//! Receiving: packets from the shared receive queue to where they belong, and large messages read from their senders.

use ferrofabric_core::error::Errno;
use ferrofabric_core::flags::Flags;
use ferrofabric_core::peer::{Arrived, Matched, Owner, PeerSrx, Start, Token};
use ferrofabric_core::protocol::rendezvous::{Fetched, Started};
use ferrofabric_core::protocol::wire::SessionId;
use ferrofabric_core::protocol::wire::data::{Envelope, FinStatus, Packet, Segment};
use ferrofabric_core::types::{IoBuf, MsgKind};
use ferrofabric_verbs_sys::ibv_sge;

use super::{POLL, RdmTransport, TRANSPORT};
use crate::connect::ToService;
use crate::mr::{Access, Mr};
use crate::post::{RecvRequest, Remote, SendFlags, SendRequest};
use crate::session::{Body, Fetching, HeldMessage, SendSlot, Wqe, WqeKind, receive_wr_id};

impl RdmTransport {
    /// A packet has come into a slot.
    #[inline]
    pub(super) fn received<O: Owner>(&mut self, slot: u32, bytes: u32, qp_num: u32, owner: &mut O) {
        let at = self.receives.address(slot);
        let len = (bytes as usize).min(self.receives.slot_bytes());
        // SAFETY: the device has written the slot and is done with it until it is posted again, below; no peer can
        // reach it.
        let packet = unsafe { std::slice::from_raw_parts(at, len) };
        self.poster.counters.packets_received += 1;
        self.packet(packet, qp_num, owner);
        self.spent.push(slot);
    }

    #[inline]
    fn packet<O: Owner>(&mut self, bytes: &[u8], qp_num: u32, owner: &mut O) {
        let Ok((header, packet)) = Packet::parse(bytes) else {
            return self.drop_packet(qp_num, "it is no data packet");
        };
        let session = header.session;
        if self.lanes.of(session).is_none() && self.service.has_messages() {
            // The lane may be up and we not know yet.
            self.take_messages(owner);
        }
        let Some(lane) = self.lanes.of(session) else {
            return self.drop_packet(qp_num, "its session is not there");
        };
        if lane.qp.number() != qp_num {
            return self.drop_packet(qp_num, "its session is another queue pair's");
        }
        if !lane.heard {
            lane.heard = true;
            if !lane.may_send {
                lane.may_send = true;
                let key = lane.key;
                self.service.request(ToService::LaneHeard(key));
                self.list(session);
            }
        }
        let Some(lane) = self.lanes.of(session) else {
            return;
        };
        let mut sound = lane.session.send_credit.on_credit(header.credit).is_ok();
        if packet.is_numbered() {
            sound &= lane.session.accept_in_order(header.sequence).is_ok();
        }
        if let Packet::Eager { payload, .. } = &packet {
            sound &= lane
                .session
                .receive_credit
                .take(payload.len() as u32)
                .is_ok();
        }
        if !sound {
            return self.break_lane(session, Errno::EPROTO, "the peer broke the protocol");
        }
        let peer = lane.peer;
        match packet {
            Packet::Eager { envelope, payload } => {
                self.eager_came(session, peer, envelope, payload, owner);
            }
            Packet::Rts { envelope, request } => {
                let (op, total) = (request.op, request.total_bytes);
                let segments = request.segments().collect();
                self.request_came(session, peer, envelope, (op, total, segments), owner);
            }
            Packet::Fin { op, status } => self.fin_came(session, op, status, owner),
            Packet::EagerFirst { .. } | Packet::EagerPart { .. } => self.break_lane(
                session,
                Errno::EPROTO,
                "the peer sent a message in parts, which lanes of RC do not carry",
            ),
            Packet::Credit | Packet::Ack => {}
        }
    }

    #[inline]
    fn eager_came<O: Owner>(
        &mut self,
        session: SessionId,
        peer: u32,
        envelope: Envelope,
        payload: &[u8],
        owner: &mut O,
    ) {
        let (kind, arrived) = self.announce(peer, envelope, payload.len() as u64);
        if let Some(matched) = owner.srx().arrive(kind, &arrived) {
            deliver(payload, matched.buf);
            owner.complete_recv(kind, &matched, &arrived);
            return self.return_credit(session, payload.len());
        }
        self.poster.counters.unexpected += 1;
        let value = self.held.keep(HeldMessage {
            peer,
            session,
            body: Body::Eager(payload.into()),
        });
        owner.srx().queue(kind, arrived, token(value));
    }

    fn request_came<O: Owner>(
        &mut self,
        session: SessionId,
        peer: u32,
        envelope: Envelope,
        (op, total, segments): (u64, u64, Vec<Segment>),
        owner: &mut O,
    ) {
        let (kind, arrived) = self.announce(peer, envelope, total);
        if let Some(matched) = owner.srx().arrive(kind, &arrived) {
            return self.fetch(session, (kind, arrived, matched), op, segments, owner);
        }
        self.poster.counters.unexpected += 1;
        let value = self.held.keep(HeldMessage {
            peer,
            session,
            body: Body::Request { op, segments },
        });
        owner.srx().queue(kind, arrived, token(value));
    }

    fn fin_came<O: Owner>(
        &mut self,
        session: SessionId,
        op: u64,
        status: FinStatus,
        owner: &mut O,
    ) {
        let Some(lane) = self.lanes.of(session) else {
            return;
        };
        match lane.sends.on_fin(op) {
            Ok(send) => match status {
                FinStatus::Ok | FinStatus::Cancelled => owner.complete_send(&send.done),
                FinStatus::ReadFailed => owner.fail_send(
                    &send.done,
                    Errno::EREMOTEIO,
                    0,
                    "the receiver could not read the message",
                ),
            },
            Err(_) => self.break_lane(
                session,
                Errno::EPROTO,
                "the peer ended an operation that is not there",
            ),
        }
    }

    #[inline]
    fn announce(&mut self, peer: u32, envelope: Envelope, len: u64) -> (MsgKind, Arrived) {
        self.poster.counters.messages_received += 1;
        self.poster.counters.bytes_received += len;
        let kind = match envelope.tag {
            Some(_) => MsgKind::Tagged,
            None => MsgKind::Msg,
        };
        let arrived = Arrived {
            src: self.peers.at(peer).addr,
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

    /// A receive has met a message that was kept.
    pub(super) fn start_held<O: Owner>(&mut self, start: Start, owner: &mut O) {
        let Start {
            kind,
            token,
            arrived,
            matched,
        } = start;
        let Some(message) = self.held.take(token.value) else {
            return owner.fail_recv(
                kind,
                &matched,
                &arrived,
                Errno::EIO,
                0,
                "the message is lost",
            );
        };
        match message.body {
            Body::Eager(payload) => {
                deliver(&payload, matched.buf);
                owner.complete_recv(kind, &matched, &arrived);
                self.return_credit(message.session, payload.len());
            }
            Body::Request { op, segments } => {
                self.fetch(
                    message.session,
                    (kind, arrived, matched),
                    op,
                    segments,
                    owner,
                );
            }
        }
    }

    /// A message that was kept is not wanted.
    pub(super) fn discard_held(&mut self, token: Token) {
        let Some(message) = self.held.take(token.value) else {
            return;
        };
        match message.body {
            Body::Eager(payload) => self.return_credit(message.session, payload.len()),
            Body::Request { op, .. } => {
                if let Some(lane) = self.lanes.of(message.session) {
                    lane.fins.push_back((op, FinStatus::Cancelled));
                    self.list(message.session);
                }
            }
        }
    }

    #[inline]
    fn return_credit(&mut self, session: SessionId, bytes: usize) {
        if let Some(lane) = self.lanes.of(session) {
            lane.session.receive_credit.release(bytes as u32);
            if lane.session.receive_credit.owes() {
                self.list(session);
            }
        }
    }

    /// Begins to read a message into the receive that it has met.
    fn fetch<O: Owner>(
        &mut self,
        session: SessionId,
        (kind, arrived, matched): (MsgKind, Arrived, Matched),
        op: u64,
        segments: Vec<Segment>,
        owner: &mut O,
    ) {
        let lane = self.lanes.of(session).filter(|lane| lane.failing.is_none());
        let Some(lane) = lane else {
            return owner.fail_recv(
                kind,
                &matched,
                &arrived,
                Errno::ECONNRESET,
                0,
                "the sender is gone and its message was not read yet",
            );
        };
        let fit = (matched.buf.len as u64).min(arrived.len);
        let (lkey, region) = match matched.desc as u32 {
            0 if fit != 0 => {
                // SAFETY: the receiver keeps the buffer until the completion, and the region ends before that.
                let region = unsafe {
                    Mr::register(
                        &self.poster.pd,
                        matched.buf.as_mut_ptr(),
                        fit as usize,
                        Access::LOCAL_WRITE,
                    )
                };
                match region {
                    Ok(region) => (region.lkey(), Some(region)),
                    Err(error) => {
                        tracing::warn!("{error}");
                        lane.fins.push_back((op, FinStatus::ReadFailed));
                        self.list(session);
                        return owner.fail_recv(
                            kind,
                            &matched,
                            &arrived,
                            error.errno(),
                            0,
                            "the receive buffer could not be registered with the device; the log says why (most often \
                             the limit of locked memory)",
                        );
                    }
                }
            }
            lkey => (lkey, None),
        };
        let fetching = Fetching {
            kind,
            arrived,
            matched,
            lkey,
            region,
        };
        match lane.fetches.start_segments(fetching, op, segments, fit) {
            Ok(Started::Reading(_)) => {
                self.run_reads(session);
                self.list(session);
            }
            Ok(Started::Done(fetched)) => self.fetched(session, fetched, owner),
            Err(Fetching {
                kind,
                arrived,
                matched,
                ..
            }) => {
                lane.fins.push_back((op, FinStatus::Cancelled));
                self.list(session);
                owner.fail_recv(
                    kind,
                    &matched,
                    &arrived,
                    Errno::ENOMEM,
                    0,
                    "too many transfers at a time",
                );
            }
        }
    }

    /// A message has been read, or will not be.
    pub(super) fn fetched<O: Owner>(
        &mut self,
        session: SessionId,
        fetched: Fetched<Fetching>,
        owner: &mut O,
    ) {
        let Fetching {
            kind,
            arrived,
            matched,
            region,
            ..
        } = fetched.receive;
        drop(region);
        let mut reason = None;
        if let Some(lane) = self.lanes.of(session) {
            reason = lane.failing;
            lane.fins.push_back((fetched.op, fetched.status));
            self.list(session);
        }
        match fetched.status {
            FinStatus::Ok => owner.complete_recv(kind, &matched, &arrived),
            FinStatus::Cancelled | FinStatus::ReadFailed => {
                let (errno, why) =
                    reason.unwrap_or((Errno::EIO, "reading the message from its sender failed"));
                owner.fail_recv(kind, &matched, &arrived, errno, 0, why);
            }
        }
    }

    /// Posts the reads that a lane may have under way.
    pub(super) fn run_reads(&mut self, session: SessionId) -> usize {
        let mut done = 0;
        loop {
            let Some(lane) = self.lanes.of(session) else {
                return done;
            };
            if lane.failing.is_some() || !lane.has_reserved_room() {
                return done;
            }
            let Some(read) = lane.fetches.next_read() else {
                return done;
            };
            let Some(fetching) = lane.fetches.receive(read.fetch) else {
                lane.fetches.not_posted(read);
                return done;
            };
            let entry = ibv_sge {
                addr: fetching.matched.buf.addr as u64 + read.offset_bytes,
                length: read.source.length_bytes as u32,
                lkey: fetching.lkey,
            };
            let remote = Remote {
                addr: read.source.address,
                rkey: read.source.rkey,
            };
            let (wr_id, _) = lane.next(true);
            let number = lane.next_number.wrapping_sub(1);
            let mut request = SendRequest::read(wr_id, [entry], remote).flags(SendFlags::SIGNALED);
            // SAFETY: the receive's buffer is kept, and nobody else's, until the receive completes: after the read.
            let posted = unsafe { request.post(&lane.qp) };
            lane.queue.push_back(Wqe {
                number,
                kind: WqeKind::Read(read.fetch),
                slot: SendSlot(None),
                sequence: None,
            });
            self.poster.outstanding += 1;
            done += 1;
            if let Err(error) = posted {
                tracing::warn!("posting a read failed: {error}");
                lane.refused = true;
                self.lane_broke(session);
                return done;
            }
        }
    }

    /// Posts spent receive buffers again.
    pub(super) fn post_spent(&mut self) {
        let lkey = self.receives.lkey();
        let length = self.receives.slot_bytes() as u32;
        while !self.spent.is_empty() {
            let from = self.spent.len().saturating_sub(POLL);
            let request = |slot: u32| {
                let addr = self.receives.address(slot) as u64;
                RecvRequest::new(receive_wr_id(slot), [ibv_sge { addr, length, lkey }])
            };
            let mut requests = [request(self.spent[from]); POLL];
            let count = self.spent.len() - from;
            for (request_of, &slot) in requests.iter_mut().zip(&self.spent[from..]) {
                *request_of = request(slot);
            }
            // SAFETY: the slots are the device's until their receives complete.
            let posted = unsafe { RecvRequest::post_all_shared(&mut requests[..count], &self.srq) };
            match posted {
                Ok(()) => self.spent.truncate(from),
                Err((error, taken)) => {
                    self.spent.drain(from..from + taken);
                    tracing::warn!("receives of {} not posted: {error}", self.srq);
                    return;
                }
            }
        }
    }

    #[cold]
    fn drop_packet(&mut self, qp_num: u32, why: &'static str) {
        self.poster.counters.dropped += 1;
        tracing::debug!("packet on queue pair {qp_num:#x} dropped: {why}");
    }
}

#[inline]
fn token(value: u64) -> Token {
    Token {
        transport: TRANSPORT,
        value,
    }
}

/// Copies what fits.
#[inline]
fn deliver(payload: &[u8], to: IoBuf) {
    // SAFETY: the receiver vouches for its buffer, which nobody else uses until the completion.
    unsafe {
        to.as_mut_ptr()
            .copy_from_nonoverlapping(payload.as_ptr(), payload.len().min(to.len));
    }
}
