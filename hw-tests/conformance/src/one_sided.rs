//! One-sided operations (fi_rma(3)): reads and writes of a peer's regions.

use std::sync::Arc;
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc, MsgKind, RmaKind, RmaOp, SendOp};
use ferrofabric_runtime::fabric::{Cntr, CntrAttr, Domain, EndpointConfig, Mr, MrAttr};

use crate::ends::{CompletionResult, PATIENCE, QueuedEndpoint, QueuedPair, any_tagged, is_gone};

/// Of every way that messages take.
const SIZES: [usize; 9] = [0, 1, 8, 48, 4000, 9000, 30_000, 120_000, 1 << 20];

/// Bytes of the target's region.
pub const REGION: usize = 2 << 20;

/// Its key.
pub const KEY: u64 = 0x5eed;

/// Both rights of peers.
pub const BOTH: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

/// A pair whose `b` has a region.
pub struct Target<'a> {
    /// The pair; `a` begins the operations.
    pub pair: QueuedPair,
    domain: &'a dyn Domain,
    memory: IoBuf,
}

impl<'a> Target<'a> {
    /// Opens both ends, and the memory of the region.
    pub fn open(domain_a: &dyn Domain, domain_b: &'a dyn Domain) -> Self {
        Self::open_with((domain_a, domain_b), |_| {}, |_| {})
    }

    fn open_with(
        (domain_a, domain_b): (&dyn Domain, &'a dyn Domain),
        differ_a: impl FnOnce(&mut EndpointConfig),
        differ_b: impl FnOnce(&mut EndpointConfig),
    ) -> Self {
        let av = AvAttr::default();
        let a = QueuedEndpoint::open_with(domain_a, &av, differ_a);
        let b = QueuedEndpoint::open_with(domain_b, &av, differ_b);
        let pair = QueuedPair::connect(a, b);
        let memory = pair.b.memory(REGION, 0);
        Self {
            pair,
            domain: domain_b,
            memory,
        }
    }

    /// Registers the memory.
    pub fn register(&self, key: u64, rights: Flags) -> Arc<dyn Mr> {
        let request = MrAttr {
            key: Some(key),
            ..MrAttr::new(self.memory, rights)
        };
        // SAFETY: the memory lives as long as the endpoint, which outlives the region.
        let region = unsafe { self.domain.register_region(&request) }.unwrap();
        assert_eq!(region.key(), key);
        region
    }

    /// An operation of `a`, with a completion.
    pub fn op(&self, kind: RmaKind, place: usize) -> RmaOp {
        RmaOp {
            kind,
            dest: self.pair.to_b,
            key: KEY,
            place: place as u64,
            data: 0,
            desc: MrDesc::NONE,
            context: self.pair.a.context(),
            flags: Flags::COMPLETION,
        }
    }

    /// Begins an operation as soon as there is room.
    pub fn begin(&self, op: &RmaOp, iov: &[IoBuf]) {
        // SAFETY: the buffers live as long as the endpoint.
        let begin = || match unsafe { self.pair.a.endpoint.rma(op, iov) } {
            Ok(()) => Some(()),
            Err(OpError::Again) => None,
            Err(error) => panic!("{error}: {op:?}"),
        };
        self.pair.until("no room for an operation", begin);
    }

    /// Waits for the end of an operation.
    pub fn over(&self, op: &RmaOp) -> CompletionResult {
        self.pair.wait(&self.pair.a.tx, op.context)
    }

    fn done(&self, op: &RmaOp, iov: &[IoBuf]) {
        self.begin(op, iov);
        let done = self
            .over(op)
            .unwrap_or_else(|error| panic!("{error}: {op:?}"));
        let flags = match op.kind {
            RmaKind::Read => Flags::RMA | Flags::READ,
            RmaKind::Write => Flags::RMA | Flags::WRITE,
        };
        assert_eq!(done.flags, flags);
    }

    fn refused(&self, op: &RmaOp, iov: &[IoBuf]) {
        self.begin(op, iov);
        let error = self.over(op).expect_err("a refused operation");
        assert_eq!(error.errno, Errno::EACCES, "{op:?}");
    }

    /// A statistic of `a`; 0 if there is none of that name.
    pub fn stat(&self, name: &str) -> u64 {
        let stats = self.pair.a.endpoint.stats().unwrap();
        stats
            .iter()
            .find(|(of, _)| *of == name)
            .map_or(0, |(_, n)| *n)
    }

    /// The number of operations that the device has carried out, or begun.
    pub fn by_device(&self) -> u64 {
        self.stat("verbs_rma_writes") + self.stat("verbs_rma_reads")
    }

    /// Writes 8 bytes to the start of the region until a device does it, where the endpoints have
    /// a queue pair of their own, and a lane for each of them alone.
    pub fn await_grant(&self) {
        let a = &self.pair.a;
        let before = self.by_device();
        for _ in 0..50 {
            self.done(&self.op(RmaKind::Write, 0), &[a.memory(8, 0)]);
            if self.by_device() > before {
                return;
            }
            self.pair.drive();
        }
        let has_lane = self.stat("verbs_rc_lanes_now") > 0;
        assert!(!has_lane, "no operation went by a device");
    }

    /// The content of the region.
    pub fn content(&self, place: usize, len: usize) -> Vec<u8> {
        self.pair.b.bytes(self.memory.addr + place, len)
    }
}

/// Memory of an endpoint with bytes of its own.
fn filled(end: &QueuedEndpoint, len: usize, seed: usize) -> (IoBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + seed) as u8).collect();
    let buf = end.memory(len, 0);
    // SAFETY: the memory is the endpoint's, and nothing uses it yet.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_mut_ptr(), len) };
    (buf, bytes)
}

/// The bytes of a write are in the region, there alone, and are read back.
pub fn reads_and_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    for (number, len) in SIZES.into_iter().enumerate() {
        for place in [0, 13, REGION - len] {
            let (from, bytes) = filled(a, len, number + place);
            target.done(&target.op(RmaKind::Write, place), &[from]);
            assert_eq!(target.content(place, len), bytes, "{len} bytes at {place}");
            let into = a.memory(len, 0xee);
            target.done(&target.op(RmaKind::Read, place), &[into]);
            assert_eq!(a.bytes(into.addr, len), bytes, "{len} bytes from {place}");
        }
    }
    // Nothing else changes.
    let before = target.content(0, REGION);
    let (from, bytes) = filled(a, 100, 3);
    target.done(&target.op(RmaKind::Write, 5000), &[from]);
    let after = target.content(0, REGION);
    assert!(after[..5000] == before[..5000] && after[5100..] == before[5100..]);
    assert_eq!(after[5000..5100], bytes);
}

/// Buffers are gathered and scattered, and a write that is injected needs them no longer.
pub fn lists_and_injects(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    for len in [30, 6000, 60_000] {
        let (from, bytes) = filled(a, len, len);
        let cut = len / 3;
        let parts = [from.part(0, cut), from.part(cut, len)];
        target.done(&target.op(RmaKind::Write, 77), &parts);
        assert_eq!(target.content(77, len), bytes);
        let into = a.memory(len, 0);
        let parts = [into.part(0, 2 * cut), into.part(2 * cut, len)];
        target.done(&target.op(RmaKind::Read, 77), &parts);
        assert_eq!(a.bytes(into.addr, len), bytes);
    }
    let len = domain_a.info().tx.inject_size;
    let (from, bytes) = filled(a, len, 9);
    let op = RmaOp {
        flags: Flags::COMPLETION | Flags::INJECT,
        ..target.op(RmaKind::Write, 1)
    };
    target.begin(&op, &[from]);
    // SAFETY: the operation does not use the memory any more.
    unsafe { from.as_mut_ptr().write_bytes(0, len) };
    target.over(&op).unwrap();
    assert_eq!(target.content(1, len), bytes);
}

/// CQ data comes to the target after the bytes that it came with.
pub fn writes_with_data(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let QueuedPair { a, b, to_a, .. } = &target.pair;
    for (number, len) in SIZES.into_iter().enumerate() {
        let (from, bytes) = filled(a, len, number + 40);
        let op = RmaOp {
            data: (1 << 40) | number as u64,
            flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
            ..target.op(RmaKind::Write, 300)
        };
        target.begin(&op, &[from]);
        let notice = target.pair.next(&b.rx).unwrap();
        assert_eq!(target.content(300, len), bytes);
        let flags = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
        let came = (notice.flags, notice.data, notice.len, notice.src);
        assert_eq!(came, (flags, op.data, len, *to_a));
        target.over(&op).unwrap();
    }
}

/// A key, a range or a right that is not there fails one operation, writes nothing, and disturbs no
/// other.
pub fn refusals(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    let all = target.content(0, REGION);
    for len in [8, 5000, 100_000] {
        let (from, _) = filled(a, len, 1);
        let (write, read) = (
            || target.op(RmaKind::Write, 0),
            || target.op(RmaKind::Read, 0),
        );
        // No region has the key yet.
        target.refused(&write(), &[from]);
        target.refused(&read(), &[from]);
        let region = target.register(KEY, Flags::REMOTE_READ);
        target.refused(&write(), &[from]);
        target.done(&read(), &[a.memory(len, 0)]);
        drop(region);
        let region = target.register(KEY, Flags::REMOTE_WRITE);
        target.refused(&read(), &[from]);
        drop(region);
        let region = target.register(KEY, BOTH);
        for (key, place) in [
            (KEY + 1, 0),
            (u64::MAX, 0),
            (KEY, (REGION - len + 1) as u64),
            (KEY, REGION as u64),
            (KEY, u64::MAX),
            (KEY, u64::MAX - len as u64 + 1),
        ] {
            for op in [write(), read()] {
                target.refused(&RmaOp { key, place, ..op }, &[from]);
            }
        }
        // With data, too, and the target gets none.
        let op = RmaOp {
            key: 0,
            flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
            ..write()
        };
        target.refused(&op, &[from]);
        assert_eq!(target.pair.b.rx.take(), None);
        drop(region);
        assert_eq!(target.content(0, REGION), all);
    }
    target.pair.barrier();
}

/// By way of an endpoint without a right for peers, no region has that right.
pub fn rights_of_endpoints(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for (right, granted, refused) in [
        (Flags::REMOTE_READ, RmaKind::Read, RmaKind::Write),
        (Flags::REMOTE_WRITE, RmaKind::Write, RmaKind::Read),
    ] {
        let only = |config: &mut EndpointConfig| config.remote_rights = right;
        let target = Target::open_with((domain_a, domain_b), |_| {}, only);
        let _region = target.register(KEY, BOTH);
        let buf = target.pair.a.memory(100, 1);
        target.done(&target.op(granted, 0), &[buf]);
        target.refused(&target.op(refused, 0), &[buf]);
    }
}

/// A region that closes while operations use it: each ends, those that were begun after the close
/// fail, and nothing is written after it.
pub fn regions_that_close(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const EACH: usize = 40;

    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    for len in [8, 5000, 300_000] {
        let region = target.register(KEY, BOTH);
        let mut ops = Vec::new();
        for number in 0..EACH {
            let (buf, _) = filled(a, len, number);
            let kind = [RmaKind::Write, RmaKind::Read][number % 2];
            let op = target.op(kind, number * 1000);
            target.begin(&op, &[buf]);
            ops.push(op);
        }
        target.pair.drive();
        close_beside(region, a);
        let after = target.content(0, REGION);
        let ended: Vec<_> = ops.iter().map(|op| target.over(op)).collect();
        for error in ended.iter().filter_map(|one| one.as_ref().err()) {
            assert_eq!(error.errno, Errno::EACCES);
        }
        target.refused(&target.op(RmaKind::Write, 0), &[a.memory(len, 1)]);
        assert_eq!(target.content(0, REGION), after);
    }
}

/// Places are addresses of the target where it asked for that.
pub fn virtual_addresses(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    let first = target.memory.addr;
    let request = MrAttr {
        first_place: first as u64,
        ..MrAttr::new(target.memory, BOTH)
    };
    // SAFETY: the memory lives as long as the endpoint, which outlives the region.
    let region = unsafe { domain_b.register_region(&request) }.unwrap();
    let op = |kind, place| RmaOp {
        key: region.key(),
        ..target.op(kind, place)
    };
    let (from, bytes) = filled(a, 70, 5);
    let last = first + REGION - 70;
    for place in [first, first + 9, last] {
        target.done(&op(RmaKind::Write, place), &[from]);
        assert_eq!(target.content(place - first, 70), bytes);
        target.done(&op(RmaKind::Read, place), &[a.memory(70, 0)]);
    }
    for place in [0, first - 1, last + 1, usize::MAX] {
        target.refused(&op(RmaKind::Write, place), &[from]);
        target.refused(&op(RmaKind::Read, place), &[from]);
    }
}

/// A fenced operation begins when those before it are over: a read has its bytes, and the data of a
/// write has come.
pub fn fences_after_reads_and_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const HALF: usize = REGION / 2;

    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let QueuedPair { a, b, .. } = &target.pair;
    for len in [8, 9000, HALF] {
        let (from, bytes) = filled(a, len, 60 + len);
        target.done(&target.op(RmaKind::Write, 0), &[from]);
        let between = a.memory(len, 0xee);
        let read = target.op(RmaKind::Read, 0);
        let fenced = RmaOp {
            flags: Flags::COMPLETION | Flags::FENCE | Flags::REMOTE_CQ_DATA,
            ..target.op(RmaKind::Write, HALF)
        };
        target.begin(&read, &[between]);
        target.begin(&fenced, &[between]);
        // A message behind the write comes after the notice of it.
        let message = SendOp {
            kind: MsgKind::Tagged,
            flags: Flags::COMPLETION | Flags::FENCE,
            ..target.pair.tagged(1)
        };
        let receive = any_tagged(b.context());
        b.recv(&receive, &[b.memory(8, 0)]).unwrap();
        a.send(b, message, 8, 1);
        let came = [target.pair.next(&b.rx), target.pair.next(&b.rx)].map(Result::unwrap);
        assert!(came[0].flags.contains(Flags::REMOTE_WRITE), "{came:?}");
        assert_eq!(came[1].context, receive.context);
        assert_eq!(target.content(HALF, len), bytes);
        target.over(&read).unwrap();
        target.over(&fenced).unwrap();
        target.pair.wait(&a.tx, message.context).unwrap();
    }
}

/// More reads than an endpoint has under way at a time.
pub fn many_reads(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const READS: usize = 3000;

    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    let (from, bytes) = filled(a, READS, 8);
    target.done(&target.op(RmaKind::Write, 0), &[from]);
    let into = a.memory(READS, 0);
    let reads: Vec<_> = (0..READS)
        .map(|number| {
            let op = target.op(RmaKind::Read, number);
            target.begin(&op, &[into.part(number, 1)]);
            op
        })
        .collect();
    for op in &reads {
        target.over(op).unwrap();
    }
    assert_eq!(a.bytes(into.addr, READS), bytes);
}

/// Closes a region. The close drives the target alone: this thread does the initiator's part.
pub fn close_beside(region: Arc<dyn Mr>, initiator: &QueuedEndpoint) {
    std::thread::scope(|threads| {
        let closing = threads.spawn(|| drop(region));
        while !closing.is_finished() {
            initiator.tx.pump();
        }
    });
}

/// Operations that are under way, of each kind and several lengths.
fn under_way(target: &Target<'_>) -> Vec<RmaOp> {
    let a = &target.pair.a;
    (0..60)
        .map(|number| {
            let kind = [RmaKind::Write, RmaKind::Read][number % 2];
            let data = [Flags::empty(), Flags::REMOTE_CQ_DATA][usize::from(number % 4 == 0)];
            let op = RmaOp {
                flags: Flags::COMPLETION | data,
                ..target.op(kind, number * 1000)
            };
            target.begin(
                &op,
                &[a.memory([8, 5000, 300_000][number % 3], number as u8)],
            );
            op
        })
        .collect()
}

/// Each operation on the memory of a target that closes ends, and its region closes.
pub fn a_target_that_closes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let ops = under_way(&target);
    // It has taken memory for parts whose bytes will never come.
    target.pair.b.rx.pump();
    let QueuedPair { a, b, .. } = target.pair;
    let memory = b.memory;
    drop(b.endpoint);
    drop(region);
    let mut open: Vec<_> = ops.iter().map(|op| op.context).collect();
    let until = Instant::now() + PATIENCE;
    while !open.is_empty() {
        a.tx.pump();
        open.retain(|&context| match a.tx.take_of(context) {
            Some(Err(error)) => {
                assert!(is_gone(error.errno), "{error:?}");
                false
            }
            Some(Ok(_)) => false,
            None => true,
        });
        assert!(Instant::now() < until, "{open:?} have not ended");
        std::thread::yield_now();
    }
    drop(memory);
}

/// A region whose initiator closes in the midst of operations closes, too.
pub fn an_initiator_that_closes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    under_way(&target);
    target.pair.drive();
    let QueuedPair { a, b, .. } = target.pair;
    drop(a.endpoint);
    b.rx.pump();
    drop(region);
}

/// The reads of a peer that is removed from the address vector end.
pub fn a_target_that_is_removed(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let ops = under_way(&target);
    let a = &target.pair.a;
    a.av.remove(target.pair.to_b).unwrap();
    for op in &ops {
        if let Err(error) = target.over(op) {
            // Of a write with data, the bytes may be there, and the data is not sent any more.
            let expected = [Errno::ECANCELED, Errno::EADDRNOTAVAIL];
            assert!(expected.contains(&error.errno), "{error:?}");
        }
    }
    close_beside(region, a);
}

/// Operations count where counters are bound, at both ends.
pub fn counters(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let cntrs = |domain: &dyn Domain| -> [Arc<dyn Cntr>; 2] {
        [(); 2].map(|()| domain.open_cntr(&CntrAttr::default()).unwrap())
    };
    let (of_a, of_b) = (cntrs(domain_a), cntrs(domain_b));
    let target = Target::open_with(
        (domain_a, domain_b),
        |config| {
            config.read_cntr = Some(of_a[0].clone());
            config.write_cntr = Some(of_a[1].clone());
        },
        |config| {
            config.remote_read_cntr = Some(of_b[0].clone());
            config.remote_write_cntr = Some(of_b[1].clone());
        },
    );
    let region = target.register(KEY, BOTH);
    let (a, b) = (&target.pair.a, &target.pair.b);
    let counts = |cntr: &Arc<dyn Cntr>| (cntr.read().unwrap(), cntr.read_errors().unwrap());
    let (sends, receives) = (a.tx.counts(), b.rx.counts());
    let silent = |kind| RmaOp {
        flags: Flags::empty(),
        ..target.op(kind, 0)
    };
    let buf = a.memory(9000, 1);
    for number in 1..=3 {
        target.begin(&silent(RmaKind::Write), &[buf]);
        target.begin(&silent(RmaKind::Read), &[buf]);
        target.pair.until("the operations do not count", || {
            let all = [&of_a[0], &of_a[1], &of_b[0], &of_b[1]].map(counts);
            (all == [(number, 0); 4]).then_some(())
        });
    }
    drop(region);
    for (kind, cntr) in [(RmaKind::Read, &of_a[0]), (RmaKind::Write, &of_a[1])] {
        target.refused(&target.op(kind, 0), &[buf]);
        assert_eq!(counts(cntr), (3, 1));
    }
    assert_eq!([&of_b[0], &of_b[1]].map(counts), [(3, 0); 2]);
    // They are no sends and receives, and had no completions.
    assert_eq!((a.tx.counts(), b.rx.counts()), (sends, receives));
    assert!(a.tx.take().is_none());
}

/// Once a device has a grant, it carries out what it can, with the same effect as messages; and a
/// region that closes takes its grants with it, even if another one gets its key.
pub fn by_devices(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    for round in 0..3 {
        let region = target.register(KEY, BOTH);
        target.await_grant();
        for (number, len) in SIZES.into_iter().enumerate() {
            let (from, bytes) = filled(a, len, number + round);
            for level in [Flags::empty(), Flags::DELIVERY_COMPLETE] {
                let write = RmaOp {
                    flags: Flags::COMPLETION | level,
                    ..target.op(RmaKind::Write, 100)
                };
                let cleared = a.memory(len, 0);
                target.done(&target.op(RmaKind::Write, 100), &[cleared]);
                target.done(&write, &[from]);
                assert_eq!(target.content(100, len), bytes);
            }
            let into = a.memory(len, 0xee);
            target.done(&target.op(RmaKind::Read, 100), &[into]);
            assert_eq!(a.bytes(into.addr, len), bytes);
        }
        close_beside(region, a);
        let (from, _) = filled(a, 8, 0);
        target.refused(&target.op(RmaKind::Write, 0), &[from]);
    }
}
