//! Regions that close while thousands of one-sided operations are under way, at both sides: each
//! operation ends once, in success or with an error, nothing is written after a close, and nothing
//! else is disturbed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RmaKind, RmaOp, SendOp};
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr};

use crate::ends::{CompletionResult, PATIENCE, QueuedEndpoint, QueuedPair, any_tagged, context_of};
use crate::region_memory::region_of;
use crate::target::BOTH;

/// Regions of each side. The last one stays open.
const REGIONS: usize = 6;

/// Operations on each region.
const OPS: usize = 180;

/// Bytes of the operations, by turns.
const LENGTHS: [usize; 4] = [8, 200, 3000, 20_000];

/// Bytes on both sides of a region, which nobody may touch.
const GUARD_BYTES: usize = 64;

/// Operations between two messages.
const BETWEEN_MESSAGES: usize = 25;

/// The content of a region that has closed.
const CLOSED: u8 = 0xc1;

/// The order in which a side closes its regions.
#[derive(Clone, Copy, Debug)]
enum CloseOrder {
    Forward,
    Reverse,
    Random,
}

/// Both sides close their regions: in order, in reverse, or at random, as is drawn.
pub fn regions_under_fire(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let order = fastrand::choice([CloseOrder::Forward, CloseOrder::Reverse, CloseOrder::Random]);
    fire(domain_a, domain_b, order.unwrap(), fastrand::u64(..));
}

fn fire(domain_a: &dyn Domain, domain_b: &dyn Domain, order: CloseOrder, seed: u64) {
    println!("{order:?}, seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    round(domain_a, domain_b, order, &mut rng);
}

/// As `regions_under_fire`, in each order so many times.
pub fn regions_under_long_fire(domain_a: &dyn Domain, domain_b: &dyn Domain, times: usize) {
    for _ in 0..times {
        for order in [CloseOrder::Forward, CloseOrder::Reverse, CloseOrder::Random] {
            fire(domain_a, domain_b, order, fastrand::u64(..));
        }
    }
}

fn round(a: &dyn Domain, b: &dyn Domain, order: CloseOrder, rng: &mut fastrand::Rng) {
    let QueuedPair {
        a: a_end,
        b: b_end,
        to_a,
        to_b,
    } = QueuedPair::open(a, b);
    let mut sides = [
        FiringSide::open(a, a_end, to_b, 0, order, rng),
        FiringSide::open(b, b_end, to_a, 1, order, rng),
    ];
    let progress = RoundProgress::default();
    std::thread::scope(|threads| {
        for side in &mut sides {
            threads.spawn(|| side.fire(&progress));
        }
    });
    let [a, b] = &mut sides;
    a.end_with(b);
    for (side, peer) in [(&*a, &*b), (&*b, &*a)] {
        side.check(peer);
    }
}

/// How far both sides of a round are.
#[derive(Default)]
struct RoundProgress {
    /// Operations that each has begun.
    begun: [AtomicUsize; 2],
    /// Sides that are done.
    finished: AtomicUsize,
}

/// One side of a round: it operates on its peer's regions, and closes its own.
struct FiringSide {
    // Closed before the endpoint, which has their memory.
    regions: Vec<FiredRegion>,
    end: QueuedEndpoint,
    peer: FiAddr,
    number: usize,
    /// Operations to begin, in this order: a region, and a place among its operations.
    ops: Vec<(usize, usize)>,
    /// Regions to close, the next one last.
    closes: Vec<usize>,
    /// This side does nothing else while it closes a region.
    waits: bool,
    begun: HashMap<u64, BegunOp>,
    sends: Vec<u64>,
    sent: usize,
    /// Contexts of the receives of messages, in their order.
    receives: Vec<u64>,
    received: usize,
    /// CQ data that has come.
    notices: Vec<u64>,
}

struct FiredRegion {
    /// The memory, with its guards.
    memory: IoBuf,
    open: Option<Arc<dyn Mr>>,
    /// The content when the close had returned.
    closed: Option<Vec<u8>>,
}

struct BegunOp {
    region: usize,
    at: usize,
    buf: IoBuf,
    over: Option<Result<(), Errno>>,
}

/// Where an operation lies in its region.
fn place_of(at: usize) -> usize {
    let whole: usize = LENGTHS.iter().sum();
    at / LENGTHS.len() * whole + LENGTHS[..at % LENGTHS.len()].iter().sum::<usize>()
}

fn len_of(at: usize) -> usize {
    LENGTHS[at % LENGTHS.len()]
}

/// Reads, writes, and writes with CQ data, of each length.
fn kind_of(at: usize) -> (RmaKind, Flags) {
    match at / LENGTHS.len() % 3 {
        0 => (RmaKind::Read, Flags::empty()),
        1 => (RmaKind::Write, Flags::empty()),
        _ => (RmaKind::Write, Flags::REMOTE_CQ_DATA),
    }
}

/// Bytes of which each is unlike its neighbours, and unlike that of other numbers.
fn content(number: usize, len: usize) -> impl Iterator<Item = u8> {
    let seed = (number + 1).wrapping_mul(0x9e37_79b9);
    (0..len).map(move |at| {
        let mixed = seed ^ at.wrapping_mul(0x85eb_ca6b);
        (mixed ^ (mixed >> 15)) as u8
    })
}

/// The number of an operation among all of a side.
fn op_number(region: usize, at: usize) -> usize {
    region * OPS + at
}

fn key_of(side: usize, region: usize) -> u64 {
    0xf12e_0000 + (side * REGIONS + region) as u64
}

/// The content of a region before the operations, with its guards.
fn before(side: usize, region: usize) -> Vec<u8> {
    let number = 1_000_000 + side * REGIONS + region;
    content(number, place_of(OPS) + 2 * GUARD_BYTES).collect()
}

fn fill(buf: IoBuf, bytes: &[u8]) {
    // SAFETY: the memory is the test's, of this length, and nothing else uses it now.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_mut_ptr(), bytes.len()) };
}

impl FiringSide {
    fn open(
        domain: &dyn Domain,
        end: QueuedEndpoint,
        peer: FiAddr,
        number: usize,
        order: CloseOrder,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let regions = (0..REGIONS).map(|region| {
            let bytes = before(number, region);
            let memory = end.memory(bytes.len(), 0);
            fill(memory, &bytes);
            let inside = memory.part(GUARD_BYTES, place_of(OPS));
            let request = MrAttr {
                key: Some(key_of(number, region)),
                ..region_of(inside, BOTH)
            };
            FiredRegion {
                memory,
                // SAFETY: the memory lives as long as the endpoint, which closes after the region.
                open: Some(unsafe { domain.register_region(&request) }.unwrap()),
                closed: None,
            }
        });
        let regions = regions.collect();
        let mut ops: Vec<_> = (0..REGIONS)
            .flat_map(|region| (0..OPS).map(move |at| (region, at)))
            .collect();
        rng.shuffle(&mut ops);
        let mut closes: Vec<_> = (0..REGIONS - 1).collect();
        match order {
            CloseOrder::Forward => closes.reverse(),
            CloseOrder::Reverse => {}
            CloseOrder::Random => rng.shuffle(&mut closes),
        }
        let receives = (0..ops.len() / BETWEEN_MESSAGES).map(|_| {
            let receive = any_tagged(end.context());
            end.recv(&receive, &[end.memory(64, 0)]).unwrap();
            receive.context
        });
        let receives = receives.collect();
        Self {
            regions,
            end,
            peer,
            number,
            ops,
            closes,
            waits: rng.bool(),
            begun: HashMap::new(),
            sends: Vec::new(),
            sent: 0,
            receives,
            received: 0,
            notices: Vec::new(),
        }
    }

    /// Begins all operations, and closes a region now and then, until both sides are done.
    fn fire(&mut self, progress: &RoundProgress) {
        let ops = self.ops.clone();
        let messages = ops.len() / BETWEEN_MESSAGES;
        let between_closes = ops.len() / REGIONS;
        let mut closer: Option<(usize, JoinHandle<Vec<u8>>)> = None;
        let (mut next, mut is_finished) = (0, false);
        let mut until = Instant::now() + PATIENCE;
        while progress.finished.load(Ordering::Acquire) < 2 {
            if next < ops.len() && self.begin(ops[next].0, ops[next].1) {
                next += 1;
                until = Instant::now() + PATIENCE;
                progress.begun[self.number].store(next, Ordering::Relaxed);
            } else {
                self.pump();
                std::thread::yield_now();
            }
            // Both sides have operations under way at each close.
            let begun = (progress
                .begun
                .iter()
                .map(|begun| begun.load(Ordering::Relaxed)))
            .min();
            let closed = REGIONS - 1 - self.closes.len();
            if closer.is_none() && begun.is_some_and(|begun| begun >= (closed + 1) * between_closes)
            {
                closer = self.close_next();
            }
            if self.sent < messages.min(next / BETWEEN_MESSAGES) {
                self.send();
            }
            while self.waits
                && closer
                    .as_ref()
                    .is_some_and(|(_, closer)| !closer.is_finished())
            {
                assert!(Instant::now() < until, "a close takes too long");
                std::thread::yield_now();
            }
            if let Some((region, done)) = closer.take_if(|(_, closer)| closer.is_finished()) {
                self.regions[region].closed = Some(done.join().unwrap());
            }
            let over = next == ops.len()
                && self.sent == messages
                && self.received == messages
                && self.closes.is_empty()
                && closer.is_none()
                && self.sends.is_empty()
                && self.begun.values().all(|op| op.over.is_some());
            if over && !is_finished {
                is_finished = true;
                progress.finished.fetch_add(1, Ordering::AcqRel);
            }
            assert!(Instant::now() < until, "{}", self.state(closer.is_some()));
        }
    }

    fn state(&self, closes: bool) -> String {
        let open = self.begun.values().filter(|op| op.over.is_none());
        let mut open: Vec<_> = open.map(|op| (op.region, op.at)).collect();
        open.sort_unstable();
        format!(
            "side {}: open {open:?}; {} begun, {} sent, {} received, sends {:?}, a close: {closes}",
            self.number,
            self.begun.len(),
            self.sent,
            self.received,
            self.sends,
        )
    }

    /// Begins an operation, if there is room.
    fn begin(&mut self, region: usize, at: usize) -> bool {
        let len = len_of(at);
        let buf = self.end.memory(len, 0xee);
        let (kind, data) = kind_of(at);
        let number = op_number(region, at);
        if kind == RmaKind::Write {
            fill(buf, &content(number, len).collect::<Vec<_>>());
        }
        let op = RmaOp {
            kind,
            dest: self.peer,
            key: key_of(1 - self.number, region),
            place: place_of(at) as u64,
            data: number as u64,
            desc: MrDesc::NONE,
            context: self.end.context(),
            flags: Flags::COMPLETION | data,
        };
        // SAFETY: the buffer lives as long as the endpoint.
        match unsafe { self.end.endpoint.rma(&op, &[buf]) } {
            Ok(()) => {
                let begun = BegunOp {
                    region,
                    at,
                    buf,
                    over: None,
                };
                self.begun.insert(op.context, begun);
                true
            }
            Err(OpError::Again) => false,
            Err(error) => panic!("{error}: {op:?}"),
        }
    }

    fn send(&mut self) {
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: self.peer,
            tag: self.sent as u64,
            data: 0,
            desc: MrDesc::NONE,
            context: self.end.context(),
            flags: Flags::COMPLETION,
        };
        let buf = self.end.memory(64, self.sent as u8);
        // SAFETY: the buffer lives as long as the endpoint.
        match unsafe { self.end.endpoint.send(&op, &[buf]) } {
            Ok(()) => {
                self.sends.push(op.context);
                self.sent += 1;
            }
            Err(OpError::Again) => {}
            Err(error) => panic!("{error}: {op:?}"),
        }
    }

    /// Closes the next region in another thread, which then fills its memory, and returns the
    /// content before that.
    fn close_next(&mut self) -> Option<(usize, JoinHandle<Vec<u8>>)> {
        let region = self.closes.pop()?;
        let FiredRegion { memory, open, .. } = &mut self.regions[region];
        let (memory, open) = (*memory, open.take());
        let closer = std::thread::spawn(move || {
            drop(open);
            // SAFETY: the memory lives as long as the endpoint, and nothing uses it any more.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len) };
            let closed = bytes.to_vec();
            bytes[GUARD_BYTES..memory.len - GUARD_BYTES].fill(CLOSED);
            closed
        });
        Some((region, closer))
    }

    fn pump(&mut self) {
        let (sent, received) = self.end.take_all();
        for done in sent {
            self.is_over(&done);
        }
        for done in received {
            let done = done.unwrap();
            if done.flags.contains(Flags::RMA) {
                self.notices.push(done.data);
                continue;
            }
            // Messages keep their order beside all that fails. Their completions need not: one
            // that the peer had no credit for is fetched, and the next may overtake that.
            let receive = self.receives[done.tag as usize];
            assert_eq!(done.context, receive, "message {}", done.tag);
            self.received += 1;
        }
    }

    fn is_over(&mut self, done: &CompletionResult) {
        let context = context_of(done);
        if let Some(at) = self.sends.iter().position(|send| *send == context) {
            self.sends.swap_remove(at);
            assert!(done.is_ok(), "a message fails: {done:?}");
            return;
        }
        let op = self.begun.get_mut(&context);
        let op = op.unwrap_or_else(|| panic!("no operation completes: {done:?}"));
        let over = done.as_ref().map(drop).map_err(|error| error.errno);
        assert_eq!(op.over.replace(over), None, "it completes twice: {done:?}");
    }

    /// Waits for the CQ data of the writes that have succeeded, and sees that there is no more.
    fn end_with(&mut self, other: &mut Self) {
        let until = Instant::now() + PATIENCE;
        while self.notices.len() < other.noticed().len()
            || other.notices.len() < self.noticed().len()
        {
            self.pump();
            other.pump();
            assert!(Instant::now() < until, "CQ data of writes is missing");
            std::thread::yield_now();
        }
        for _ in 0..100 {
            self.pump();
            other.pump();
        }
    }

    /// The CQ data of the writes that have succeeded.
    fn noticed(&self) -> Vec<u64> {
        let ops = self.begun.values().filter(|op| {
            op.over == Some(Ok(())) && kind_of(op.at).1.contains(Flags::REMOTE_CQ_DATA)
        });
        let mut all: Vec<_> = ops.map(|op| op_number(op.region, op.at) as u64).collect();
        all.sort_unstable();
        all
    }

    /// Checks the outcome of this side's operations, and their effect on its peer's memory.
    fn check(&self, peer: &Self) {
        let mut notices = peer.notices.clone();
        notices.sort_unstable();
        assert_eq!(notices, self.noticed());
        let mut failed = 0;
        let mut expected: Vec<Vec<u8>> = (0..REGIONS).map(|r| before(peer.number, r)).collect();
        let mut after: Vec<Vec<u8>> = Vec::new();
        for (region, fired) in peer.regions.iter().enumerate() {
            let FiredRegion { memory, closed, .. } = fired;
            let now = peer.end.bytes(memory.addr, memory.len);
            if closed.is_some() {
                let inside = &now[GUARD_BYTES..now.len() - GUARD_BYTES];
                let written = inside.iter().position(|byte| *byte != CLOSED);
                assert_eq!(written, None, "region {region} is written after its close");
            }
            after.push(closed.clone().unwrap_or(now));
        }
        for op in self.begun.values() {
            let (number, len) = (op_number(op.region, op.at), len_of(op.at));
            let from = GUARD_BYTES + place_of(op.at);
            let place = from..from + len;
            let what = format!("operation {} on region {}: {:?}", op.at, op.region, op.over);
            let may_fail = peer.regions[op.region].closed.is_some();
            match (op.over.unwrap(), kind_of(op.at).0) {
                (Ok(()), RmaKind::Read) => {
                    let came = self.end.bytes(op.buf.addr, len);
                    assert!(came == expected[op.region][place], "{what}: other bytes");
                }
                (Ok(()), RmaKind::Write) => {
                    for (at, byte) in place.zip(content(number, len)) {
                        expected[op.region][at] = byte;
                    }
                }
                (Err(errno), kind) => {
                    failed += 1;
                    assert!(may_fail && errno == Errno::EACCES, "{what}");
                    let mine = content(number, len);
                    // Of a write that fails, some bytes may have come.
                    for (at, byte) in place.zip(mine).filter(|_| kind == RmaKind::Write) {
                        if after[op.region][at] == byte {
                            expected[op.region][at] = byte;
                        }
                    }
                }
            }
        }
        for (region, (after, expected)) in after.iter().zip(&expected).enumerate() {
            let differs = after.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(
                differs, None,
                "the memory of region {region} is not as written"
            );
        }
        println!("{failed} of {} operations failed", self.begun.len());
    }
}
