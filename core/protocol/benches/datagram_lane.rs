//! Cost of the UD lane's protocol, in nanoseconds per message of 8 bytes, beside that of a lane
//! that keeps order.
//!
//! `cargo bench -p ferrofabric-protocol`. Both ends are counted: number, header, window, parsing,
//! order, acknowledgement. `stream`: 64 packets, then what they are acknowledged with; `ping_pong`:
//! every packet acknowledges.

#![allow(missing_docs, reason = "what the macros make is public")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferrofabric_protocol::Time;
use ferrofabric_protocol::datagram_lane::{DatagramLane, PacketArrival, SharedLaneState};
use ferrofabric_protocol::session::{Accept, Origin, Session, SessionStart};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{
    DataEnvelope, DataPacket, HEADER_BYTES, MAX_HEADER_BYTES, MAX_NOTICE_BYTES,
};
use ferrofabric_protocol::wire::datagram::{self, DatagramPrefix, PREFIX_BYTES};

const ENVELOPE: DataEnvelope = DataEnvelope {
    tag: Some(7),
    cq_data: None,
    part: None,
};

const DATAGRAM_BYTES: usize = PREFIX_BYTES + HEADER_BYTES + 8;

fn session() -> Session {
    Session::begin(
        Origin::default(),
        &SessionStart {
            name: 1,
            remote: SessionId(1),
            peer_grants_units: 4096,
            we_grant_units: 4096,
        },
    )
}

struct BenchEnd {
    session: Session,
    lane: DatagramLane<u32>,
    shared: SharedLaneState,
}

impl BenchEnd {
    fn new() -> Self {
        let (session, shared) = (session(), SharedLaneState::default());
        BenchEnd {
            lane: DatagramLane::new(&shared, &session, 1),
            session,
            shared,
        }
    }

    /// Writes the next message, if the window allows one.
    fn send(&mut self, now: Time) -> Option<[u8; DATAGRAM_BYTES]> {
        if !self.lane.has_room(&self.session) {
            return None;
        }
        let header = self.session.stamp()?;
        let packet = (self.lane).next_packet(&mut self.shared, &self.session, now)?;
        let mut head = [0; MAX_HEADER_BYTES];
        let length = header.write_eager(&ENVELOPE, 8, &mut head);
        let mut out = [0; DATAGRAM_BYTES];
        out[..PREFIX_BYTES].copy_from_slice(&self.prefix(packet.ack_at_once));
        out[PREFIX_BYTES..PREFIX_BYTES + length].copy_from_slice(&head[..length]);
        Some(out)
    }

    fn ack(&mut self) -> Vec<u8> {
        let mut head = [0; MAX_NOTICE_BYTES];
        let length = self.session.stamp_ack().write_ack(&mut head);
        [&self.prefix(false), &head[..length]].concat()
    }

    fn prefix(&mut self, ack_at_once: bool) -> [u8; PREFIX_BYTES] {
        DatagramPrefix {
            ack_at_once,
            cookie: 1,
            ack: self.lane.ack(&self.session),
            credit: self.session.receive_credit.count(),
        }
        .to_bytes()
    }

    fn receive(&mut self, bytes: &[u8], now: Time) {
        let (prefix, header, packet) = datagram::parse(bytes).expect("a datagram");
        let credited = self.session.send_credit.on_count(prefix.credit);
        let acked = (self.lane).on_ack(&mut self.shared, &mut self.session, prefix.ack, now);
        assert!(credited.is_ok() && acked.is_ok());
        if packet.is_numbered() {
            let numbered = (header.sequence, prefix.ack_at_once);
            let arrival =
                self.lane
                    .arrive(&mut self.shared, &mut self.session, numbered, 0, true, now);
            assert_eq!(arrival, PacketArrival::Deliver(0));
            assert!(self.lane.next_held(&mut self.session).is_none());
            black_box(packet);
        }
    }
}

fn in_order(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("in_order_lane");
    group.throughput(Throughput::Elements(64));
    let (mut tx, mut rx) = (session(), session());
    group.bench_function("stream", |bencher| {
        bencher.iter(|| {
            let mut last = 0;
            for _ in 0..64 {
                let header = tx.stamp().expect("a number");
                let mut bytes = [0; HEADER_BYTES + 8];
                let mut head = [0; MAX_HEADER_BYTES];
                let length = header.write_eager(&ENVELOPE, 8, &mut head);
                bytes[..length].copy_from_slice(&head[..length]);
                let (header, packet) = DataPacket::parse(black_box(&bytes)).expect("a packet");
                assert!(rx.send_credit.on_credit(header.credit).is_ok());
                assert_eq!(rx.accept(header.sequence), Accept::Deliver);
                black_box(packet);
                last = header.sequence;
            }
            tx.confirm(last.wrapping_add(1)).expect("sent")
        });
    });
    group.finish();
}

fn datagrams(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ud_lane");
    group.throughput(Throughput::Elements(64));
    let (mut tx, mut rx) = (BenchEnd::new(), BenchEnd::new());
    let mut now = Time(1);
    let mut step = move || {
        now = now + Duration::from_nanos(100);
        now
    };
    group.bench_function("stream", |bencher| {
        bencher.iter(|| {
            let mut sent = 0;
            while sent < 64 {
                let now = step();
                match tx.send(now) {
                    Some(bytes) => {
                        rx.receive(black_box(&bytes), now);
                        sent += 1;
                    }
                    None => {
                        let ack = rx.ack();
                        tx.receive(black_box(&ack), now);
                    }
                }
            }
        });
    });
    let (mut a, mut b) = (BenchEnd::new(), BenchEnd::new());
    group.bench_function("ping_pong", |bencher| {
        bencher.iter(|| {
            for _ in 0..32 {
                let now = step();
                let ping = a.send(now).expect("room");
                b.receive(black_box(&ping), now);
                let pong = b.send(now).expect("room");
                a.receive(black_box(&pong), now);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, in_order, datagrams);
criterion_main!(benches);
