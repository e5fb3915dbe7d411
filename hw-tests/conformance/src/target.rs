//! A pair of endpoints of which one has memory for the other's one-sided operations.

use std::sync::Arc;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc, RmaKind, RmaOp};
use ferrofabric_runtime::fabric::{Cntr, CntrAttr, Domain, EndpointConfig, Mr, MrAttr};

use crate::ends::{CompletionResult, QueuedEndpoint, QueuedPair};
use crate::region_memory::region_of;

/// Bytes of the target's region.
pub const REGION: usize = 2 << 20;

/// Its key.
pub const KEY: u64 = 0x5eed;

/// Both rights of peers.
pub const BOTH: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

/// Counters of reads and of writes.
pub(crate) type CounterPair = [Arc<dyn Cntr>; 2];

/// A pair whose `b` has a region.
pub struct Target<'a> {
    /// The pair; `a` begins the operations.
    pub pair: QueuedPair,
    pub(crate) domain: &'a dyn Domain,
    pub(crate) memory: IoBuf,
}

impl<'a> Target<'a> {
    /// Opens both ends, and the memory of the region.
    pub fn open(domain_a: &dyn Domain, domain_b: &'a dyn Domain) -> Self {
        Self::open_with((domain_a, domain_b), |_| {}, |_| {})
    }

    /// The same, with endpoints that differ from the usual ones.
    pub fn open_with(
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

    /// Opens both ends with counters: of the reads and the writes that `a` begins, and of those
    /// that reach `b`.
    pub(crate) fn open_counted(
        domain_a: &dyn Domain,
        domain_b: &'a dyn Domain,
    ) -> (Self, CounterPair, CounterPair) {
        let cntrs = |domain: &dyn Domain| -> CounterPair {
            [(); 2].map(|()| domain.open_cntr(&CntrAttr::default()).unwrap())
        };
        let (of_a, of_b) = (cntrs(domain_a), cntrs(domain_b));
        let target = Self::open_with(
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
        (target, of_a, of_b)
    }

    /// Registers the memory.
    pub fn register(&self, key: u64, rights: Flags) -> Arc<dyn Mr> {
        let request = MrAttr {
            key: Some(key),
            ..region_of(self.memory, rights)
        };
        // SAFETY: the memory lives as long as the endpoint, which outlives the region.
        let region = unsafe { self.domain.register_region(&request) }.unwrap();
        if rights.intersects(BOTH) {
            assert_eq!(region.key(), key);
        }
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

    /// Carries an operation out.
    pub fn done(&self, op: &RmaOp, iov: &[IoBuf]) {
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

    /// Begins an operation that the target refuses.
    pub fn refused(&self, op: &RmaOp, iov: &[IoBuf]) {
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

    /// Puts bytes into the region, as its process does.
    pub fn put(&self, place: usize, bytes: &[u8]) {
        assert!(place + bytes.len() <= REGION);
        let to = self.memory.as_mut_ptr().wrapping_add(place);
        // SAFETY: the memory is the endpoint's; the callers wait until no operation uses this place.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// The content of the region.
    pub fn content(&self, place: usize, len: usize) -> Vec<u8> {
        self.pair.b.bytes(self.memory.addr + place, len)
    }
}

/// Memory of an endpoint with bytes of its own.
pub fn filled(end: &QueuedEndpoint, len: usize, seed: usize) -> (IoBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + seed) as u8).collect();
    let buf = end.memory(len, 0);
    // SAFETY: the memory is the endpoint's, and nothing uses it yet.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_mut_ptr(), len) };
    (buf, bytes)
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
