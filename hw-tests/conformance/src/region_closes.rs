//! Regions that close while an initiator computes: it begins operations on them, and then makes no
//! call.

use std::sync::Arc;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{IoBuf, RmaKind, RmaOp};
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr};

use crate::region_memory::region_of;
use crate::target::{BOTH, KEY, REGION, Target, filled};

/// Calls of the target that let what has come arrive.
const CALLS: usize = 1000;

/// The lengths of operations: of one message, and of many.
const LENGTHS: [usize; 3] = [8, 5000, REGION];

/// A region of the initiator's, whose lock nobody gets while the initiator computes.
struct Computing(Arc<dyn Mr>);

impl Computing {
    /// `None`: one domain has both ends, and each call drives both.
    fn of(domain_a: &dyn Domain, domain_b: &dyn Domain, target: &Target<'_>) -> Option<Self> {
        if std::ptr::addr_eq(domain_a, domain_b) {
            return None;
        }
        let memory = target.pair.a.memory(8, 0);
        let request = MrAttr {
            key: Some(KEY + 1),
            ..region_of(memory, BOTH)
        };
        // SAFETY: the memory lives as long as the endpoint, which outlives the region.
        Some(Self(unsafe { domain_a.register_region(&request) }.unwrap()))
    }

    /// Does something while nobody drives the initiator.
    fn beside(&self, act: impl FnOnce()) {
        let mut act = Some(act);
        self.0
            .with_parts_still(&mut || act.take().unwrap()())
            .unwrap();
    }
}

/// Begins an operation, and lets its request arrive. Returns the operation.
fn begun(target: &Target<'_>, kind: RmaKind, buf: IoBuf, computing: &Computing) -> RmaOp {
    let op = target.op(kind, 0);
    target.begin(&op, &[buf]);
    computing.beside(|| {
        for _ in 0..CALLS {
            target.pair.b.rx.pump();
        }
    });
    op
}

/// The close of a region returns. From then on the memory is the application's: no write comes into
/// it, and no read has bytes of what the application puts there.
pub fn beside_initiators_that_compute(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let Some(computing) = Computing::of(domain_a, domain_b, &target) else {
        return;
    };
    let (a, b) = (&target.pair.a, &target.pair.b);
    for (kind, len) in [RmaKind::Read, RmaKind::Write]
        .into_iter()
        .flat_map(|kind| LENGTHS.map(|len| (kind, len)))
    {
        target.pair.barrier();
        // SAFETY: the memory is the endpoint's, and no region has it.
        unsafe { target.memory.as_mut_ptr().write_bytes(3, REGION) };
        let region = target.register(KEY, BOTH);
        let (buf, _) = filled(a, len, 5);
        let op = begun(&target, kind, buf, &computing);
        computing.beside(|| drop(region));
        // SAFETY: the region is closed.
        unsafe { target.memory.as_mut_ptr().write_bytes(9, REGION) };
        let over = target.over(&op);
        let fits = match &over {
            Ok(_) => kind == RmaKind::Write || a.bytes(buf.addr, len) == vec![3; len],
            Err(error) => [Errno::EACCES, Errno::ECONNRESET].contains(&error.errno),
        };
        assert!(fits, "{kind:?} of {len} bytes: {over:?}");
        target.pair.barrier();
        assert!(
            b.bytes(target.memory.addr, REGION) == vec![9; REGION],
            "{kind:?} of {len} bytes after the close"
        );
    }
}

/// A counter of reads moves when the target may change the memory: the initiator, which computes
/// meanwhile, gets the bytes from before.
///
/// Covers: GI-3
pub fn counted_reads_have_left(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let (target, _, of_b) = Target::open_counted(domain_a, domain_b);
    let Some(computing) = Computing::of(domain_a, domain_b, &target) else {
        return;
    };
    let a = &target.pair.a;
    let _region = target.register(KEY, BOTH);
    for (number, len) in (0..).zip(LENGTHS) {
        target.pair.barrier();
        // SAFETY: the memory is the endpoint's, and no operation reads it now.
        unsafe { target.memory.as_mut_ptr().write_bytes(3, REGION) };
        let buf = a.memory(len, 0);
        let op = begun(&target, RmaKind::Read, buf, &computing);
        let counts = || of_b[0].read().unwrap() > number;
        if !counts() {
            // It needs the initiator.
            target
                .pair
                .until("the read does not count", || counts().then_some(()));
        }
        // SAFETY: the region counts the read as over.
        unsafe { target.memory.as_mut_ptr().write_bytes(9, REGION) };
        target.over(&op).unwrap();
        assert!(
            a.bytes(buf.addr, len) == vec![3; len],
            "a read of {len} bytes has some from after it was counted"
        );
    }
}
