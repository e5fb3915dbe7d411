//! Sessions, credits and rendezvous between two endpoints, over a model RC lane: in order, nothing lost. What happens
//! next (a packet arrives, a read completes, the application posts) is drawn at random; every packet is real bytes.

use std::collections::VecDeque;
use std::time::Duration;

use super::network::{Network, Weather};
use crate::protocol::credit::Admission;
use crate::protocol::handshake::{Config, LaneKey, LaneUp};
use crate::protocol::rendezvous::{FetchLimits, Fetched, Fetcher, Read, SendTable, Started};
use crate::protocol::rng::Rng;
use crate::protocol::session::Session;
use crate::protocol::wire::control::Limits;
use crate::protocol::wire::data::{
    Envelope, FinStatus, Header, MAX_HEADER_BYTES, MAX_RTS_BYTES, MAX_SEGMENTS, Packet, Segment,
};
use proptest::prelude::*;

/// Messages up to this go eager, credit permitting.
const EAGER_BYTES: u64 = 512;
const LIMITS: FetchLimits = FetchLimits {
    chunk_bytes: 700,
    reads_per_lane: 6,
    reads_per_op: 2,
    ops_per_lane: 8,
};

/// Byte `at` of message number `index` is at this address of the sender: so a read shows what it fetches.
fn address_of(index: u64, at: u64) -> u64 {
    (index << 32) + at
}

enum Held {
    Eager { index: u64, bytes: u64 },
    Request { op: u64, segments: Vec<Segment> },
}

struct Receive {
    number: u64,
    buffer_bytes: u64,
    /// Next byte expected to be asked for.
    fetched: u64,
}

/// One end: what the verbs endpoint's engine does, in short.
struct End {
    lane: LaneKey,
    session: Session,
    sends: SendTable<u64>,
    fetcher: Fetcher<u64>,
    /// Requests and Fins for which there is no room yet.
    sent: u64,
    posted: VecDeque<Receive>,
    receives: u64,
    unexpected: VecDeque<Held>,
    fetching: Vec<Receive>,
    /// Fetches that had to wait for room in the fetcher, in order.
    waiting: VecDeque<(Receive, u64, Vec<Segment>)>,
    completed_receives: Vec<(u64, u64, u64)>,
    completed_sends: usize,
    eager: usize,
    credits_sent: usize,
    reads: Vec<Read>,
    wire: VecDeque<Vec<u8>>,
    max_held_units: u32,
}

impl End {
    fn new(up: &LaneUp, ours: Limits) -> Self {
        End {
            lane: up.lane,
            session: Session::new(
                up.remote_session,
                up.epoch,
                up.remote_limits.quota_units,
                ours.quota_units,
            ),
            sends: SendTable::new(1000),
            fetcher: Fetcher::new(LIMITS),
            sent: 0,
            posted: VecDeque::new(),
            receives: 0,
            unexpected: VecDeque::new(),
            fetching: Vec::new(),
            waiting: VecDeque::new(),
            completed_receives: Vec::new(),
            completed_sends: 0,
            eager: 0,
            credits_sent: 0,
            reads: Vec::new(),
            wire: VecDeque::new(),
            max_held_units: 0,
        }
    }

    /// Sends message number `self.sent`; its number travels as tag.
    fn send(&mut self, bytes: u64) {
        let index = self.sent;
        self.sent += 1;
        let envelope = Envelope {
            tag: Some(index),
            cq_data: (index % 3 == 0).then_some(bytes),
        };
        if bytes <= EAGER_BYTES && self.session.send_credit.admit(bytes as u32) == Admission::Eager
        {
            let mut out = [0; MAX_HEADER_BYTES];
            let length =
                self.session
                    .stamp()
                    .unwrap()
                    .write_eager(&envelope, bytes as u32, &mut out);
            self.wire
                .push_back([&out[..length], &vec![index as u8; bytes as usize]].concat());
            self.eager += 1;
            self.completed_sends += 1;
            return;
        }
        let op = self.sends.insert(index).unwrap();
        let pieces = (1 + index % MAX_SEGMENTS as u64).min(bytes);
        let mut at = 0;
        let segments: Vec<Segment> = (1..=pieces)
            .map(|piece| {
                let end = bytes * piece / pieces;
                let segment = Segment {
                    address: address_of(index, at),
                    length_bytes: end - at,
                    rkey: index as u32,
                };
                at = end;
                segment
            })
            .collect();
        let mut out = [0; MAX_RTS_BYTES];
        let length = self
            .session
            .stamp()
            .unwrap()
            .write_rts(&envelope, op, &segments, &mut out)
            .unwrap();
        self.wire.push_back(out[..length].to_vec());
    }

    fn post_receive(&mut self, buffer_bytes: u64) {
        let receive = Receive {
            number: self.receives,
            buffer_bytes,
            fetched: 0,
        };
        self.receives += 1;
        match self.unexpected.pop_front() {
            Some(held) => self.matched(receive, held),
            None => self.posted.push_back(receive),
        }
    }

    fn arrive(&mut self, bytes: &[u8]) {
        let (header, packet) = Packet::parse(bytes).unwrap();
        assert_eq!(header.session, self.lane.session());
        self.session.send_credit.on_credit(header.credit).unwrap();
        if packet.is_numbered() {
            self.session.accept_in_order(header.sequence).unwrap();
        }
        let held = match packet {
            Packet::Eager { envelope, payload } => {
                let index = envelope.tag.unwrap();
                assert!(payload.iter().all(|&byte| byte == index as u8));
                self.session
                    .receive_credit
                    .take(payload.len() as u32)
                    .unwrap();
                self.max_held_units = self
                    .max_held_units
                    .max(self.session.receive_credit.held_units());
                Held::Eager {
                    index,
                    bytes: payload.len() as u64,
                }
            }
            Packet::Rts { request, .. } => Held::Request {
                op: request.op,
                segments: request.segments().collect(),
            },
            Packet::Fin { op, status } => {
                assert_eq!(status, FinStatus::Ok);
                self.sends.on_fin(op).unwrap();
                self.completed_sends += 1;
                return;
            }
            Packet::EagerFirst { .. } | Packet::EagerPart { .. } => {
                panic!("RC carries eager messages whole")
            }
            Packet::Credit | Packet::Ack => return,
        };
        match self.posted.pop_front() {
            Some(receive) => self.matched(receive, held),
            None => self.unexpected.push_back(held),
        }
    }

    fn matched(&mut self, receive: Receive, held: Held) {
        match held {
            Held::Eager { index, bytes } => {
                assert_eq!(index, receive.number, "out of order");
                self.session.receive_credit.release(bytes as u32);
                self.completed_receives.push((
                    receive.number,
                    bytes.min(receive.buffer_bytes),
                    bytes,
                ));
                if self.session.receive_credit.owes() {
                    let mut out = [0; MAX_HEADER_BYTES];
                    let length = self.session.stamp_credit().write_credit(&mut out);
                    self.wire.push_back(out[..length].to_vec());
                    self.credits_sent += 1;
                }
            }
            Held::Request { op, segments } => {
                self.waiting.push_back((receive, op, segments));
                self.start_fetches();
            }
        }
    }

    fn start_fetches(&mut self) {
        while let Some((receive, op, segments)) = self.waiting.pop_front() {
            match self.fetcher.start_segments(
                receive.number,
                op,
                segments.clone(),
                receive.buffer_bytes,
            ) {
                Ok(Started::Reading(_)) => self.fetching.push(receive),
                Ok(Started::Done(fetched)) => self.fetched(fetched),
                Err(_) => {
                    self.waiting.push_front((receive, op, segments));
                    break;
                }
            }
        }
        while let Some(read) = self.fetcher.next_read() {
            // The segment's key is the number of the message: it must be that of the receive, and continue it.
            let number = u64::from(read.source.rkey);
            let receive = self
                .fetching
                .iter_mut()
                .find(|receive| receive.number == number)
                .expect("a wrong message");
            assert_eq!(
                (read.offset_bytes, read.source.address),
                (receive.fetched, address_of(number, receive.fetched))
            );
            receive.fetched += read.source.length_bytes;
            self.reads.push(read);
        }
    }

    fn read_completes(&mut self, which: usize) {
        let read = self.reads.swap_remove(which);
        if let Some(fetched) = self.fetcher.on_read(read.fetch, Ok(())) {
            let at = self
                .fetching
                .iter()
                .position(|receive| receive.number == fetched.receive)
                .unwrap();
            assert_eq!(self.fetching.swap_remove(at).fetched, fetched.fetched_bytes);
            self.fetched(fetched);
        }
        self.start_fetches();
    }

    fn fetched(&mut self, fetched: Fetched<u64>) {
        self.completed_receives
            .push((fetched.receive, fetched.fetched_bytes, fetched.total_bytes));
        let mut out = [0; MAX_HEADER_BYTES];
        let length = self
            .session
            .stamp()
            .unwrap()
            .write_fin(fetched.op, fetched.status, &mut out);
        self.wire.push_back(out[..length].to_vec());
    }
}

/// A lane between two endpoints, by a real handshake over a bad network.
fn lane(quota_units: u16, seed: u64) -> [End; 2] {
    let limits = Limits {
        quota_units,
        ..Limits::default()
    };
    let weather = Weather {
        loss_ppm: 200_000,
        ..Weather::FAIR
    };
    let mut network = Network::new(
        2,
        Config {
            limits,
            ..Config::default()
        },
        weather,
        seed,
    );
    network.connect(0, 1);
    network.connect(1, 0);
    assert!(network.run_until(Duration::from_secs(60), Network::settled));
    let end = |at: usize, to: usize| {
        let (_, lane) = network.nodes[at].usable(&network.key(to)).unwrap();
        End::new(&lane.up.unwrap(), limits)
    };
    [end(0, 1), end(1, 0)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Both ends send messages of all sizes while receives come early, late or with buffers too small. Order holds, no
    /// quota is exceeded, nothing waits for credit, and at the end every message has arrived in full, or cut to fit.
    #[test]
    fn all_arrives_once_in_order_and_within_the_quota(
        seed in any::<u64>(),
        quota_units in 8u16..200,
        sizes in proptest::collection::vec(
            (prop_oneof![0..64u64, 0..600u64, 0..20_000u64], prop_oneof![4 => Just(u64::MAX), 1 => 0..1000u64]), 1..80),
        eagerness in 0..8u64,
    ) {
        let mut ends = lane(quota_units, seed);
        let mut rng = Rng::new(seed);
        let mut to_send = [sizes.clone(), sizes.clone()];
        let mut to_post = [sizes.clone(), sizes.clone()];
        to_send.iter_mut().chain(&mut to_post).for_each(|list| list.reverse());
        loop {
            let at = rng.below(2) as usize;
            match rng.below(8 + eagerness) {
                0 | 1 => if let Some((bytes, _)) = to_send[at].pop() { ends[at].send(bytes) },
                2 | 3 => if let Some(bytes) = ends[at].wire.pop_front() { ends[1 - at].arrive(&bytes) },
                4 | 5 => if !ends[at].reads.is_empty() {
                    let which = rng.below(ends[at].reads.len() as u64) as usize;
                    ends[at].read_completes(which);
                },
                _ => if let Some((_, buffer)) = to_post[at].pop() { ends[at].post_receive(buffer) },
            }
            let idle = |end: &End| end.wire.is_empty() && end.reads.is_empty();
            if to_send.iter().chain(&to_post).all(Vec::is_empty) && ends.iter().all(idle) {
                break;
            }
        }
        for end in &mut ends {
            prop_assert!(end.max_held_units <= u32::from(quota_units));
            prop_assert_eq!(end.session.receive_credit.held_units(), 0);
            prop_assert!(end.sends.is_empty() && end.fetcher.is_empty() && end.unexpected.is_empty());
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

/// A receiver that takes nothing: the sender's credit runs dry, the envelopes go on, and the message that the receiver
/// wants last gets through.
#[test]
fn a_full_receiver_is_not_a_deadlock() {
    let [mut tx, mut rx] = lane(64, 1);
    (0..500).for_each(|_| tx.send(8));
    assert_eq!(tx.eager, 32, "64 units of quota, 2 units a message");
    assert_eq!(tx.sends.len(), 468);
    while let Some(bytes) = tx.wire.pop_front() {
        rx.arrive(&bytes);
    }
    assert_eq!(rx.max_held_units, 64);
    assert_eq!(rx.unexpected.len(), 500, "every envelope was taken");
    for _ in 0..500 {
        rx.post_receive(8);
        while !rx.reads.is_empty() {
            rx.read_completes(0);
        }
        while let Some(bytes) = rx.wire.pop_front() {
            tx.arrive(&bytes);
        }
    }
    assert_eq!(
        (rx.completed_receives.len(), tx.completed_sends),
        (500, 500)
    );
    assert_eq!(
        rx.credits_sent, 4,
        "one each quarter of the quota, and only for what was eager"
    );
    tx.send(8);
    assert_eq!(tx.eager, 33, "credit is back");
}

/// Headers can be written for any session state; a stamped header is what the peer's session expects.
#[test]
fn a_header_names_the_peers_session() {
    let [mut a, b] = lane(64, 2);
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
