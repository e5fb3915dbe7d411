//! Sessions, credits and rendezvous between two endpoints, over model RC lanes: in order, nothing
//! lost until a lane breaks. Each next event (a packet arrives, a read completes, the application
//! posts, the lane breaks) is drawn at random; every packet is real bytes.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;

use super::network::{SimNetwork, Weather};
use crate::credit::SendAdmission;
use crate::handshake::{HandshakeConfig, LaneKey, LaneUp};
use crate::rendezvous::{Chunk, SendTable, TransferLimits, Transfers};
use crate::session::{Accept, Origin, Session, SessionStart};
use crate::table::{Key, KeyedTable};
use crate::wire::SessionId;
use crate::wire::control::LaneLimits;
use crate::wire::data::{
    DataEnvelope, DataPacket, FinStatus, Grant, Header, MAX_HEADER_BYTES, MAX_NOTICE_BYTES,
    MAX_RTS_BYTES, MAX_SEGMENTS, MemorySegment, readdress,
};
use proptest::prelude::*;

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

enum UnexpectedSend {
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
}

struct SimReceive {
    number: u64,
    buffer_bytes: u64,
}

/// A message that is being moved, at its receiver.
struct Moving {
    number: u64,
    op: u64,
    total: u64,
    arrived: Vec<bool>,
}

/// A message that waits for its receiver, at its sender: where it lies.
struct OpenSend {
    segments: Vec<MemorySegment>,
}

/// An entry of a send queue.
enum QueuedRequest {
    Packet(Option<u32>, Vec<u8>),
    Write { receive: u64, chunk: Chunk },
}

/// A completion that the sender has not seen.
enum SendCompletion {
    Packet(u32),
    Chunk(Key),
}

/// One end: a short form of the verbs endpoint's engine.
struct TrafficEnd {
    lane: LaneKey,
    session: Session,
    sender_writes: bool,
    sends: SendTable<OpenSend>,
    reads: Transfers<Moving>,
    writes: Transfers<u64>,
    /// Receives that are being written to.
    written: KeyedTable<Moving>,
    sent: u64,
    posted: VecDeque<SimReceive>,
    receives: u64,
    unexpected: VecDeque<UnexpectedSend>,
    /// Receives that had to wait for room among the reads, in order.
    waiting: VecDeque<(Moving, Vec<MemorySegment>)>,
    completed_receives: Vec<(u64, u64, u64)>,
    completed_sends: usize,
    eager: usize,
    credits_sent: usize,
    reading: Vec<Chunk>,
    wire: VecDeque<QueuedRequest>,
    completions: VecDeque<SendCompletion>,
    /// Numbered packets that are not known to have arrived.
    kept: VecDeque<(u32, Vec<u8>)>,
    /// Those of them that are to be sent again.
    replay: VecDeque<(u32, Vec<u8>)>,
    max_held_units: u32,
}

impl TrafficEnd {
    fn new(up: &LaneUp, ours: LaneLimits, sender_writes: bool) -> Self {
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
            sends: SendTable::new(1000),
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

    fn idle(&self) -> bool {
        self.wire.is_empty()
            && self.completions.is_empty()
            && self.reading.is_empty()
            && self.replay.is_empty()
    }

    /// Sends message number `self.sent`; its number travels as tag.
    fn send(&mut self, bytes: u64) {
        let index = self.sent;
        self.sent += 1;
        let envelope = DataEnvelope {
            tag: Some(index),
            cq_data: (index % 3 == 0).then_some(bytes),
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
        let op = self.sends.insert(send).ok().unwrap();
        let header = self.session.stamp().unwrap();
        let mut out = [0; MAX_RTS_BYTES];
        let length = match self.sender_writes {
            true => header.write_offer(&envelope, op, bytes, &mut out),
            false => header
                .write_rts(&envelope, op, &segments, &mut out)
                .unwrap(),
        };
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

    fn post_receive(&mut self, buffer_bytes: u64) {
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

    fn arrive(&mut self, bytes: &[u8]) {
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
            DataPacket::Fin { op, status } => {
                assert_eq!(status, FinStatus::Ok);
                self.sends.on_fin(op).unwrap();
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

    fn matched(&mut self, receive: SimReceive, held: UnexpectedSend) {
        match held {
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

    fn read_completes(&mut self, which: usize) {
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
    fn completes(&mut self, completion: &SendCompletion) {
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
    fn drained(&mut self) {
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

    fn resumes(&mut self, remote: SessionId, peer_expects: u32) {
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
    fn take(&mut self, chunk: &Chunk) {
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

/// Delivers what end `at` has posted first.
fn deliver(ends: &mut [TrafficEnd; 2], at: usize) {
    match ends[at].wire.pop_front() {
        Some(QueuedRequest::Packet(sequence, bytes)) => {
            ends[1 - at].arrive(&bytes);
            (ends[at].completions).extend(sequence.map(SendCompletion::Packet));
        }
        Some(QueuedRequest::Write { receive, chunk }) => {
            let key = Key::from_bits(receive);
            ends[1 - at].written.get_mut(key).unwrap().take(&chunk);
            (ends[at].completions).push_back(SendCompletion::Chunk(chunk.transfer));
        }
        None => {}
    }
}

/// The lane breaks: the entries of the queues are lost, and the session goes on over a new one.
fn change_lane(ends: &mut [TrafficEnd; 2]) {
    ends.iter_mut().for_each(TrafficEnd::drained);
    let expected = [0, 1].map(|at: usize| ends[at].session.expected());
    let names = [0, 1].map(|at: usize| ends[at].lane.session());
    for at in 0..2 {
        ends[at].resumes(names[1 - at], expected[1 - at]);
    }
}

/// A lane between two endpoints, by a real handshake over a bad network.
fn lane(quota_units: u16, sender_writes: bool, seed: u64) -> [TrafficEnd; 2] {
    let limits = LaneLimits {
        quota_units,
        ..LaneLimits::default()
    };
    let weather = Weather {
        loss_ppm: 200_000,
        ..Weather::FAIR
    };
    let mut network = SimNetwork::new(
        2,
        HandshakeConfig {
            limits,
            ..HandshakeConfig::default()
        },
        weather,
        seed,
    );
    network.connect(0, 1);
    network.connect(1, 0);
    assert!(network.run_until(Duration::from_secs(60), SimNetwork::settled));
    let end = |at: usize, to: usize| {
        let (_, lane) = network.nodes[at].usable(&network.key(to)).unwrap();
        TrafficEnd::new(&lane.up.unwrap(), limits, sender_writes)
    };
    [end(0, 1), end(1, 0)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Both ends send messages of all sizes while receives come early, late or with buffers too
    /// small, and the lane breaks at any moment. Order holds, no quota is exceeded, nothing waits
    /// for credit, and at the end every message has arrived once, in full or cut to fit.
    #[test]
    fn all_arrives_once_in_order_and_within_the_quota(
        seed in any::<u64>(),
        quota_units in 8u16..200,
        sizes in proptest::collection::vec(
            (prop_oneof![0..64u64, 0..600u64, 0..20_000u64], prop_oneof![4 => Just(u64::MAX), 1 => 0..1000u64]), 1..80),
        eagerness in 0..8u64,
        sender_writes in any::<bool>(),
        breaks in prop_oneof![Just(0u64), 1..30u64],
    ) {
        let mut ends = lane(quota_units, sender_writes, seed);
        let mut rng = Rng::with_seed(seed);
        let mut to_send = [sizes.clone(), sizes.clone()];
        let mut to_post = [sizes.clone(), sizes.clone()];
        to_send.iter_mut().chain(&mut to_post).for_each(|list| list.reverse());
        let mut breaks_left = breaks;
        loop {
            let at = rng.usize(..2);
            match rng.u64(..9 + eagerness) {
                0 | 1 => if let Some((bytes, _)) = to_send[at].pop() { ends[at].send(bytes) },
                2 | 3 => deliver(&mut ends, at),
                4 | 5 => if !ends[at].reading.is_empty() {
                    let which = rng.usize(..ends[at].reading.len());
                    ends[at].read_completes(which);
                },
                6 | 7 => if let Some(completion) = ends[at].completions.pop_front() {
                    ends[at].completes(&completion);
                },
                _ => if let Some((_, buffer)) = to_post[at].pop() { ends[at].post_receive(buffer) },
            }
            if breaks_left > 0 && rng.u64(..40) == 0 {
                breaks_left -= 1;
                change_lane(&mut ends);
            }
            if to_send.iter().chain(&to_post).all(Vec::is_empty) && ends.iter().all(TrafficEnd::idle) {
                break;
            }
        }
        for end in &mut ends {
            prop_assert!(end.max_held_units <= u32::from(quota_units));
            prop_assert_eq!(end.session.receive_credit.held_units(), 0);
            prop_assert!(end.sends.is_empty() && end.reads.is_empty() && end.unexpected.is_empty());
            prop_assert!(end.writes.is_empty() && end.written.is_empty() && end.kept.is_empty());
            prop_assert_eq!(end.completed_sends, sizes.len());
            end.completed_receives.sort();
            let expected = sizes.iter().enumerate().map(|(n, &(bytes, buffer))| (n as u64, bytes.min(buffer), bytes));
            prop_assert!(end.completed_receives.iter().copied().eq(expected));
            // Everything is consumed: most of the quota is known to be free again.
            let available = end.session.send_credit.available_units();
            prop_assert!(available * 4 > u32::from(quota_units) * 3 - 4, "{} of {}", available, quota_units);
        }
    }
}

/// A receiver that takes nothing: the sender's credit runs dry, the envelopes go on, and the
/// message that the receiver wants last gets through.
#[test]
fn a_full_receiver_is_not_a_deadlock() {
    for sender_writes in [false, true] {
        let mut ends = lane(64, sender_writes, 1);
        (0..500).for_each(|_| ends[0].send(8));
        assert_eq!(ends[0].eager, 32, "64 units of quota, 2 units a message");
        assert_eq!(ends[0].sends.len(), 468);
        while !ends[0].wire.is_empty() {
            deliver(&mut ends, 0);
        }
        assert_eq!(ends[1].max_held_units, 64);
        assert_eq!(ends[1].unexpected.len(), 500, "every envelope was taken");
        for _ in 0..500 {
            ends[1].post_receive(8);
            while !ends.iter().all(TrafficEnd::idle) {
                if !ends[1].reading.is_empty() {
                    ends[1].read_completes(0);
                }
                for at in 0..2 {
                    deliver(&mut ends, at);
                    if let Some(completion) = ends[at].completions.pop_front() {
                        ends[at].completes(&completion);
                    }
                }
            }
        }
        let [tx, rx] = &mut ends;
        assert_eq!(
            (rx.completed_receives.len(), tx.completed_sends),
            (500, 500)
        );
        assert_eq!(
            rx.credits_sent, 4,
            "one each quarter of the quota, and only for eager messages"
        );
        tx.send(8);
        assert_eq!(tx.eager, 33, "credit is back");
    }
}

/// Headers can be written for any session state. The peer's session expects a stamped header.
#[test]
fn a_header_names_the_peers_session() {
    let [mut a, b] = lane(64, false, 2);
    let header = a.session.stamp().unwrap();
    assert_eq!(
        header,
        Header {
            session: b.lane.session(),
            sequence: 0,
            credit: 0
        }
    );
}
