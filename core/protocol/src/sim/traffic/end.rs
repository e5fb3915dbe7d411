//! One end of the traffic: a short form of the verbs endpoint's engine.

use std::collections::VecDeque;

use crate::credit::SendAdmission;
use crate::envelopes::{PulledMessages, WaitingKind, WaitingMessages};
use crate::handshake::{LaneKey, LaneUp};
use crate::rendezvous::{Chunk, SendTable, TransferLimits, Transfers};
use crate::session::{Accept, Origin, Session, SessionStart};
use crate::table::{Key, KeyedTable};
use crate::wire::SessionId;
use crate::wire::control::LaneLimits;
use crate::wire::data::{
    DataEnvelope, DataPacket, FinStatus, Grant, MAX_HEADER_BYTES, MAX_NOTICE_BYTES, MAX_RTS_BYTES,
    MAX_SEGMENTS, MemorySegment, readdress,
};

/// Messages up to this go eager, credit permitting.
const EAGER_BYTES: u64 = 512;
const LIMITS: TransferLimits = TransferLimits {
    chunk_bytes: 700,
    chunks: 6,
    chunks_per_message: 2,
    messages: 8,
};

/// Byte `at` of message number `index` is at this address of the sender: so a move shows what it
/// moves.
fn address_of(index: u64, at: u64) -> u64 {
    (index << 32) + at
}

pub(super) enum UnexpectedSend {
    Eager {
        index: u64,
        bytes: u64,
    },
    Request {
        op: u64,
        total: u64,
        /// `None`: the sender writes.
        segments: Option<Vec<MemorySegment>>,
    },
    /// An envelope.
    Waiting {
        op: u64,
        total: u64,
    },
}

/// A receive that has matched an envelope of a message of so many bytes.
pub(super) struct PulledReceive {
    receive: SimReceive,
    total: u64,
}

/// A message of which the receiver has the envelope alone.
pub(super) struct WaitingSend {
    index: u64,
    bytes: u64,
}

pub(super) struct SimReceive {
    number: u64,
    buffer_bytes: u64,
}

/// A message that is being moved, at its receiver.
pub(super) struct Moving {
    number: u64,
    op: u64,
    total: u64,
    arrived: Vec<bool>,
}

/// A message that waits for its receiver, at its sender: where it lies.
pub(super) struct OpenSend {
    segments: Vec<MemorySegment>,
}

/// An entry of a send queue.
pub(super) enum QueuedRequest {
    Packet(Option<u32>, Vec<u8>),
    Write { receive: u64, chunk: Chunk },
}

/// A completion that the sender has not seen.
pub(super) enum SendCompletion {
    Packet(u32),
    Chunk(Key),
}

pub(super) struct TrafficEnd {
    pub(super) lane: LaneKey,
    pub(super) session: Session,
    sender_writes: bool,
    pub(super) sends: SendTable<OpenSend>,
    /// Messages that wait here, and those of the peer.
    pub(super) envelopes: WaitingMessages<WaitingSend>,
    pub(super) pulls: PulledMessages<PulledReceive>,
    pub(super) enveloped: usize,
    pub(super) reads: Transfers<Moving>,
    pub(super) writes: Transfers<u64>,
    /// Receives that are being written to.
    pub(super) written: KeyedTable<Moving>,
    sent: u64,
    posted: VecDeque<SimReceive>,
    receives: u64,
    pub(super) unexpected: VecDeque<UnexpectedSend>,
    /// Receives that had to wait for room among the reads, in order.
    waiting: VecDeque<(Moving, Vec<MemorySegment>)>,
    pub(super) completed_receives: Vec<(u64, u64, u64)>,
    pub(super) completed_sends: usize,
    pub(super) eager: usize,
    pub(super) credits_sent: usize,
    pub(super) reading: Vec<Chunk>,
    pub(super) wire: VecDeque<QueuedRequest>,
    pub(super) completions: VecDeque<SendCompletion>,
    /// Numbered packets that are not known to have arrived.
    pub(super) kept: VecDeque<(u32, Vec<u8>)>,
    /// Those of them that are to be sent again.
    replay: VecDeque<(u32, Vec<u8>)>,
    pub(super) max_held_units: u32,
}

impl TrafficEnd {
    pub(super) fn new(
        up: &LaneUp,
        ours: LaneLimits,
        (sender_writes, requests): (bool, usize),
    ) -> Self {
        TrafficEnd {
            lane: up.lane,
            session: Session::begin(
                Origin::default(),
                &SessionStart {
                    name: up.name,
                    remote: up.remote_session,
                    peer_grants_units: up.remote_limits.quota_units,
                    we_grant_units: ours.quota_units,
                },
            ),
            sender_writes,
            sends: SendTable::new(requests),
            envelopes: WaitingMessages::new(1000, |_| WaitingKind::Plain),
            pulls: PulledMessages::default(),
            enveloped: 0,
            reads: Transfers::new(LIMITS),
            writes: Transfers::new(TransferLimits {
                messages: 1000,
                ..LIMITS
            }),
            written: KeyedTable::new(1000),
            sent: 0,
            posted: VecDeque::new(),
            receives: 0,
            unexpected: VecDeque::new(),
            waiting: VecDeque::new(),
            completed_receives: Vec::new(),
            completed_sends: 0,
            eager: 0,
            credits_sent: 0,
            reading: Vec::new(),
            wire: VecDeque::new(),
            completions: VecDeque::new(),
            kept: VecDeque::new(),
            replay: VecDeque::new(),
            max_held_units: 0,
        }
    }

    pub(super) fn idle(&self) -> bool {
        self.wire.is_empty()
            && self.completions.is_empty()
            && self.reading.is_empty()
            && self.replay.is_empty()
    }

    /// Sends message number `self.sent`; its number travels as tag.
    pub(super) fn send(&mut self, bytes: u64) {
        let index = self.sent;
        self.sent += 1;
        let envelope = DataEnvelope {
            tag: Some(index),
            cq_data: (index % 3 == 0).then_some(bytes),
            part: None,
        };
        if bytes <= EAGER_BYTES
            && self.session.send_credit.admit(bytes as u32) == SendAdmission::Eager
        {
            let header = self.session.stamp().unwrap();
            let mut out = [0; MAX_HEADER_BYTES];
            let length = header.write_eager(&envelope, bytes as u32, &mut out);
            let packet = [&out[..length], &vec![index as u8; bytes as usize]].concat();
            self.post(header.sequence, packet);
            self.eager += 1;
            self.completed_sends += 1;
            return;
        }
        if self.sends.is_full() {
            let op = self.envelopes.insert(WaitingSend { index, bytes });
            let header = self.session.stamp().unwrap();
            let mut out = [0; MAX_NOTICE_BYTES];
            let length = header.write_envelope(&envelope, op.ok().unwrap(), bytes, &mut out);
            self.post(header.sequence, out[..length].to_vec());
            self.enveloped += 1;
            return;
        }
        self.request(index, bytes, &envelope, None);
    }

    /// Sends a request to send; that of a message that a receive of the peer has pulled names it.
    fn request(&mut self, index: u64, bytes: u64, envelope: &DataEnvelope, pulled: Option<u64>) {
        let pieces = (1 + index % MAX_SEGMENTS as u64).min(bytes);
        let mut at = 0;
        let segments: Vec<MemorySegment> = (1..=pieces)
            .map(|piece| {
                let end = bytes * piece / pieces;
                let segment = MemorySegment {
                    address: address_of(index, at),
                    length_bytes: end - at,
                    rkey: index as u32,
                };
                at = end;
                segment
            })
            .collect();
        let send = OpenSend {
            segments: segments.clone(),
        };
        let op = match pulled {
            Some(_) => self.sends.insert_pulled(send),
            None => self.sends.insert(send),
        };
        let op = op.ok().unwrap();
        let header = self.session.stamp().unwrap();
        let mut out = [0; MAX_RTS_BYTES];
        let length = match (self.sender_writes, pulled) {
            (true, None) => Ok(header.write_offer(envelope, op, bytes, &mut out)),
            (false, None) => header.write_rts(envelope, op, &segments, &mut out),
            (true, Some(receive)) => Ok(header.write_pulled_offer(receive, op, bytes, &mut out)),
            (false, Some(receive)) => header.write_pulled_rts(receive, op, &segments, &mut out),
        };
        let length = length.unwrap();
        self.post(header.sequence, out[..length].to_vec());
    }

    /// Posts a numbered packet, behind those that are to be sent again.
    fn post(&mut self, sequence: u32, bytes: Vec<u8>) {
        self.kept.push_back((sequence, bytes.clone()));
        match self.replay.is_empty() {
            true => self
                .wire
                .push_back(QueuedRequest::Packet(Some(sequence), bytes)),
            false => self.replay.push_back((sequence, bytes)),
        }
    }

    pub(super) fn post_receive(&mut self, buffer_bytes: u64) {
        let receive = SimReceive {
            number: self.receives,
            buffer_bytes,
        };
        self.receives += 1;
        match self.unexpected.pop_front() {
            Some(held) => self.matched(receive, held),
            None => self.posted.push_back(receive),
        }
    }

    pub(super) fn arrive(&mut self, bytes: &[u8]) {
        let (header, packet) = DataPacket::parse(bytes).unwrap();
        assert_eq!(header.session, self.lane.session());
        self.session.send_credit.on_credit(header.credit).unwrap();
        if packet.is_numbered() {
            assert_eq!(self.session.accept(header.sequence), Accept::Deliver);
        }
        let held = match packet {
            DataPacket::Eager { envelope, payload } => {
                let index = envelope.tag.unwrap();
                assert!(payload.iter().all(|&byte| byte == index as u8));
                self.session
                    .receive_credit
                    .take(payload.len() as u32)
                    .unwrap();
                self.max_held_units = self
                    .max_held_units
                    .max(self.session.receive_credit.held_units());
                UnexpectedSend::Eager {
                    index,
                    bytes: payload.len() as u64,
                }
            }
            DataPacket::Rts { request, .. } => UnexpectedSend::Request {
                op: request.op,
                total: request.total_bytes,
                segments: (!request.sender_writes).then(|| request.segments().collect()),
            },
            DataPacket::Envelope {
                op, total_bytes, ..
            } => {
                self.pulls.count().unwrap();
                UnexpectedSend::Waiting {
                    op,
                    total: total_bytes,
                }
            }
            DataPacket::Pull { op, receive } => {
                self.envelopes.on_pull(op, receive).unwrap();
                return self.answer();
            }
            DataPacket::Pulled { receive, payload } => {
                let PulledReceive { receive, total } = self.pulls.on_answer(receive).unwrap();
                assert!((payload.iter()).all(|&byte| byte == receive.number as u8));
                assert_eq!(payload.len() as u64, total);
                let fit = total.min(receive.buffer_bytes);
                (self.completed_receives).push((receive.number, fit, total));
                return;
            }
            DataPacket::PulledRts { receive, request } => {
                let PulledReceive { receive, total } = self.pulls.on_answer(receive).unwrap();
                assert_eq!(request.total_bytes, total);
                let held = UnexpectedSend::Request {
                    op: request.op,
                    total,
                    segments: (!request.sender_writes).then(|| request.segments().collect()),
                };
                return self.matched(receive, held);
            }
            DataPacket::Unsent { .. } => panic!("each message can be sent"),
            DataPacket::Fin { op, status } => {
                assert_eq!(status, FinStatus::Ok);
                match WaitingMessages::<WaitingSend>::is_op(op) {
                    true => drop(self.envelopes.on_fin(op).unwrap()),
                    false => drop(self.sends.on_fin(op).unwrap()),
                }
                self.completed_sends += 1;
                return;
            }
            DataPacket::EagerFirst { .. } | DataPacket::EagerPart { .. } => {
                panic!("RC carries eager messages whole")
            }
            DataPacket::Cts(grant) => {
                let segments = self.sends.on_fin(grant.op).unwrap().segments;
                let started = self.writes.start(grant.receive, segments, grant.fit_bytes);
                started.unwrap();
                return self.run();
            }
            DataPacket::Done { receive } => {
                let moved = self.written.remove(Key::from_bits(receive)).unwrap();
                assert!(moved.arrived.iter().all(|&arrived| arrived));
                self.receive_completes(&moved);
                return;
            }
            DataPacket::Credit | DataPacket::Ack | DataPacket::Resume(_) => return,
        };
        match self.posted.pop_front() {
            Some(receive) => self.matched(receive, held),
            None => self.unexpected.push_back(held),
        }
    }

    /// Sends the messages that the peer has pulled.
    fn answer(&mut self) {
        while let Some((receive, WaitingSend { index, bytes })) = self.envelopes.next_pulled() {
            if bytes > EAGER_BYTES {
                self.request(index, bytes, &DataEnvelope::default(), Some(receive));
                continue;
            }
            let header = self.session.stamp().unwrap();
            let mut out = [0; MAX_HEADER_BYTES];
            let length = header.write_pulled(receive, bytes as u32, &mut out);
            let packet = [&out[..length], &vec![index as u8; bytes as usize]].concat();
            self.post(header.sequence, packet);
            self.completed_sends += 1;
        }
    }

    fn matched(&mut self, receive: SimReceive, held: UnexpectedSend) {
        match held {
            UnexpectedSend::Waiting { op, total } => {
                self.pulls.uncount();
                let header = self.session.stamp().unwrap();
                let mut out = [0; MAX_NOTICE_BYTES];
                let length = match total.min(receive.buffer_bytes) {
                    0 => {
                        (self.completed_receives).push((receive.number, 0, total));
                        header.write_fin(op, FinStatus::Ok, &mut out)
                    }
                    _ => {
                        let pulled = self.pulls.pull(PulledReceive { receive, total });
                        header.write_pull(op, pulled.ok().unwrap(), &mut out)
                    }
                };
                self.post(header.sequence, out[..length].to_vec());
            }
            UnexpectedSend::Eager { index, bytes } => {
                assert_eq!(index, receive.number, "out of order");
                self.session.receive_credit.release(bytes as u32);
                self.completed_receives.push((
                    receive.number,
                    bytes.min(receive.buffer_bytes),
                    bytes,
                ));
                if self.session.receive_credit.is_return_due() {
                    self.send_credit();
                }
            }
            UnexpectedSend::Request {
                op,
                total,
                segments,
            } => {
                let fit = total.min(receive.buffer_bytes);
                let moving = Moving {
                    number: receive.number,
                    op,
                    total,
                    arrived: vec![false; fit as usize],
                };
                if fit == 0 {
                    return self.fin(&moving);
                }
                match segments {
                    Some(segments) => self.waiting.push_back((moving, segments)),
                    None => {
                        let receive = self.written.insert(moving).ok().unwrap().to_bits();
                        let grant = Grant {
                            op,
                            receive,
                            address: 1,
                            fit_bytes: fit,
                            rkey: 0,
                        };
                        let header = self.session.stamp().unwrap();
                        let mut out = [0; MAX_NOTICE_BYTES];
                        let length = header.write_cts(&grant, &mut out);
                        self.post(header.sequence, out[..length].to_vec());
                    }
                }
                self.run();
            }
        }
    }

    fn send_credit(&mut self) {
        let mut out = [0; MAX_NOTICE_BYTES];
        let length = self.session.stamp_credit().write_credit(&mut out);
        self.wire
            .push_back(QueuedRequest::Packet(None, out[..length].to_vec()));
        self.credits_sent += 1;
    }

    /// Posts all requests that can go. Of the lost requests the writes go first, for a Done may be
    /// behind them.
    fn run(&mut self) {
        while let Some(chunk) = self.writes.next_chunk() {
            let receive = *self.writes.owner(chunk.transfer).unwrap();
            self.wire.push_back(QueuedRequest::Write { receive, chunk });
            let told = (self.kept.iter()).any(|(_, bytes)| {
                matches!(DataPacket::parse(bytes).unwrap().1, DataPacket::Done { receive: told } if told == receive)
            });
            if chunk.is_last && !told {
                let header = self.session.stamp().unwrap();
                let mut out = [0; MAX_NOTICE_BYTES];
                let length = header.write_done(receive, &mut out);
                self.post(header.sequence, out[..length].to_vec());
            }
        }
        if !self.writes.has_lost() {
            for (sequence, bytes) in self.replay.drain(..) {
                self.wire
                    .push_back(QueuedRequest::Packet(Some(sequence), bytes));
            }
        }
        while let Some((moving, segments)) = self.waiting.pop_front() {
            let fit = moving.arrived.len() as u64;
            if let Err(moving) = self.reads.start(moving, segments.clone(), fit) {
                self.waiting.push_front((moving, segments));
                break;
            }
        }
        while let Some(chunk) = self.reads.next_chunk() {
            self.reading.push(chunk);
        }
    }

    pub(super) fn read_completes(&mut self, which: usize) {
        let chunk = self.reading.swap_remove(which);
        self.reads.owner_mut(chunk.transfer).unwrap().take(&chunk);
        if self.reads.on_chunk(chunk.transfer) {
            let moved = self.reads.remove(chunk.transfer).unwrap();
            self.fin(&moved);
        }
        self.run();
    }

    fn fin(&mut self, moved: &Moving) {
        self.receive_completes(moved);
        let header = self.session.stamp().unwrap();
        let mut out = [0; MAX_NOTICE_BYTES];
        let length = header.write_fin(moved.op, FinStatus::Ok, &mut out);
        self.post(header.sequence, out[..length].to_vec());
    }

    fn receive_completes(&mut self, moved: &Moving) {
        assert!(moved.arrived.iter().all(|&arrived| arrived));
        self.completed_receives
            .push((moved.number, moved.arrived.len() as u64, moved.total));
    }

    /// The sender's completion: its packet has arrived.
    pub(super) fn completes(&mut self, completion: &SendCompletion) {
        match completion {
            SendCompletion::Packet(sequence) => {
                let newly = self.session.confirm(sequence.wrapping_add(1)).unwrap();
                for (_, bytes) in self.kept.drain(..newly as usize) {
                    if let DataPacket::Done { receive } = DataPacket::parse(&bytes).unwrap().1 {
                        self.writes.remove_of(receive);
                        self.completed_sends += 1;
                    }
                }
            }
            SendCompletion::Chunk(key) => {
                self.writes.on_chunk(*key);
                self.run();
            }
        }
    }

    /// The lane is in error and drained: nothing of it will arrive any more.
    pub(super) fn drained(&mut self) {
        for chunk in self.reading.drain(..) {
            self.reads
                .on_lost(chunk.transfer, chunk.offset_bytes, chunk.source);
        }
        for item in self.wire.drain(..) {
            if let QueuedRequest::Write { chunk, .. } = item {
                self.writes
                    .on_lost(chunk.transfer, chunk.offset_bytes, chunk.source);
            }
        }
        // Flushed: whether these have arrived the sender does not know. Writes are repeated,
        // packets perhaps.
        for completion in std::mem::take(&mut self.completions) {
            if let SendCompletion::Chunk(key) = completion {
                self.writes.on_chunk(key);
            }
        }
        self.replay.clear();
    }

    pub(super) fn resumes(&mut self, remote: SessionId, peer_expects: u32) {
        let before = self.session.unconfirmed();
        let replay = self.session.change_lane(remote, peer_expects).unwrap();
        for (_, bytes) in self.kept.drain(..(before - replay.count) as usize) {
            if let DataPacket::Done { receive } = DataPacket::parse(&bytes).unwrap().1 {
                self.writes.remove_of(receive);
                self.completed_sends += 1;
            }
        }
        for (_, bytes) in &mut self.kept {
            readdress(bytes, remote);
        }
        self.replay = self.kept.clone();
        self.run();
        if self.session.receive_credit.is_return_due() {
            self.send_credit();
        }
    }
}

impl Moving {
    /// A chunk of the message has come: it must be of this message, and from its place.
    pub(super) fn take(&mut self, chunk: &Chunk) {
        let (at, length) = (chunk.offset_bytes, chunk.source.length_bytes);
        assert_eq!(u64::from(chunk.source.rkey), self.number, "a wrong message");
        assert_eq!(chunk.source.address, address_of(self.number, at));
        self.arrived[at as usize..(at + length) as usize].fill(true);
    }
}

impl Transfers<u64> {
    fn remove_of(&mut self, receive: u64) {
        let key = self.find(|&of| of == receive).unwrap();
        self.remove(key).unwrap();
    }
}
