//! Atomic operations on regions of several pieces and with counters, and on memory that devices and
//! the kernel reach, too.

use ferrofabric_contracts::atomics::{
    AtomicForm, AtomicOp, AtomicOperator as Operator, Datatype, MAX_ATOMIC_BYTES,
};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{RmaKind, RmaOp};
use ferrofabric_runtime::fabric::{CntrAttr, Domain, MrAttr};

use crate::atomics::{Initiator, arrays, op, set};
use crate::region_memory::region_of;
use crate::target::{BOTH, KEY, Target, filled};

const FORMS: [(AtomicForm, Operator); 3] = [
    (AtomicForm::Base, Operator::Bxor),
    (AtomicForm::Fetch, Operator::Bxor),
    (AtomicForm::Compare, Operator::Mswap),
];

/// An operation goes over the ends of pieces, and an element that would is refused.
pub fn over_pieces(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    // Not in the order of their addresses.
    const PIECES: [(usize, usize); 3] = [(8192, 1000), (64, 24), (2048, 4100)];

    let target = Target::open(domain_a, domain_b);
    let initiator = Initiator::of(&target);
    let pieces = PIECES.map(|(start, len)| target.memory.part(start, len));
    let region = MrAttr {
        key: Some(KEY),
        further: &pieces[1..],
        ..region_of(pieces[0], BOTH)
    };
    // SAFETY: the memory lives as long as the endpoint, which outlives the region.
    let _region = unsafe { domain_b.register_region(&region) }.unwrap();
    let read_all = || {
        let of = |(start, len)| target.content(start, len);
        PIECES.map(of).concat()
    };
    for (form, operator) in FORMS {
        for (place, len) in [(992, 16), (1000, 24), (0, MAX_ATOMIC_BYTES), (936, 4088)] {
            let ramp = |from: usize, len: usize| -> Vec<u8> {
                (0..len).map(|at| (at * 7 + from) as u8).collect()
            };
            for (number, (start, len)) in PIECES.into_iter().enumerate() {
                set(&target, start, &ramp(number, len));
            }
            let before = read_all();
            let (operands, compares) = (ramp(5, len), ramp(9, len));
            let op = AtomicOp {
                place: place as u64,
                ..op(form, operator, Datatype::Uint64)
            };
            let buffers = arrays(&initiator, &op, &operands, &compares);
            initiator.done(&op, &buffers);
            let mut after = before.clone();
            for (at, byte) in after[place..place + len].iter_mut().enumerate() {
                *byte = match form {
                    AtomicForm::Compare => (operands[at] & compares[at]) | (*byte & !compares[at]),
                    _ => *byte ^ operands[at],
                };
            }
            assert!(read_all() == after, "{form:?} at {place}, {len} bytes");
            if let Some(results) = buffers.results {
                let results = initiator.end.bytes(results.addr, len);
                assert!(results == before[place..place + len], "{form:?} at {place}");
            }
        }
    }
    // A piece that ends inside of an element.
    let odd = [pieces[0].part(0, 996), pieces[1], pieces[2]];
    let region = MrAttr {
        key: Some(KEY + 1),
        further: &odd[1..],
        ..region_of(odd[0], BOTH)
    };
    // SAFETY: as above.
    let _odd = unsafe { domain_b.register_region(&region) }.unwrap();
    let before = read_all();
    for (form, operator) in FORMS {
        for place in [992, 984] {
            let op = AtomicOp {
                key: KEY + 1,
                place,
                ..op(form, operator, Datatype::Uint64)
            };
            let buffers = arrays(&initiator, &op, &[1; 24], &[3; 24]);
            initiator.refused(&op, &buffers, Errno::EINVAL);
        }
    }
    assert!(read_all() == before);
}

/// All that change the region count as writes of it, and those that fetch as reads as well
/// (fi_mr(3)); those that are refused do not count. One counter of both counts each once.
pub fn counters_of_regions(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let initiator = Initiator::of(&target);
    let region = target.register(KEY, BOTH);
    let cntrs = [(); 2].map(|()| domain_b.open_cntr(&CntrAttr::default()).unwrap());
    for (cntr, kind) in cntrs.iter().zip([Flags::REMOTE_READ, Flags::REMOTE_WRITE]) {
        region.count_remote(cntr, kind).unwrap();
    }
    for (round, (form, operator)) in FORMS.into_iter().enumerate() {
        for (place, is_refused) in [(0, false), (1, true)] {
            let op = AtomicOp {
                place,
                ..op(form, operator, Datatype::Uint64)
            };
            let buffers = arrays(&initiator, &op, &[1; 8], &[2; 8]);
            match is_refused {
                false => initiator.done(&op, &buffers),
                true => initiator.refused(&op, &buffers, Errno::EINVAL),
            }
            let counts = [&cntrs[0], &cntrs[1]].map(|cntr| cntr.read().unwrap());
            let done = round as u64;
            assert_eq!(counts, [done, done + 1], "{form:?}");
        }
    }
    // It changes nothing.
    let read = op(AtomicForm::Fetch, Operator::Read, Datatype::Uint64);
    initiator.done(&read, &arrays(&initiator, &read, &[0; 8], &[]));
    let counts = [&cntrs[0], &cntrs[1]].map(|cntr| cntr.read().unwrap());
    assert_eq!(counts, [3, 3]);

    let region = target.register(KEY + 1, BOTH);
    let cntr = domain_b.open_cntr(&CntrAttr::default()).unwrap();
    region.count_remote(&cntr, BOTH).unwrap();
    for (round, (form, operator)) in FORMS.into_iter().enumerate() {
        let op = AtomicOp {
            key: KEY + 1,
            ..op(form, operator, Datatype::Uint64)
        };
        initiator.done(&op, &arrays(&initiator, &op, &[1; 8], &[2; 8]));
        assert_eq!(cntr.read().unwrap(), round as u64 + 1, "{form:?}");
    }
}

/// On memory that a device or the kernel reads and writes for the initiator, too, each operation
/// sees those that completed before it.
pub fn beside_reads_and_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let initiator = Initiator::of(&target);
    let _region = target.register(KEY, BOTH);
    target.await_grant();
    let fetch = op(AtomicForm::Fetch, Operator::Bxor, Datatype::Uint64);
    for (number, len) in [8, 48, 1000, MAX_ATOMIC_BYTES]
        .into_iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        let (from, written) = filled(initiator.end, len, number);
        target.done(&target.op(RmaKind::Write, 0), &[from]);
        let (operands, changed): (Vec<u8>, Vec<u8>) = written
            .iter()
            .map(|byte| (byte.wrapping_mul(3), byte ^ byte.wrapping_mul(3)))
            .unzip();
        let buffers = arrays(&initiator, &fetch, &operands, &[]);
        initiator.done(&fetch, &buffers);
        let fetched = initiator.end.bytes(buffers.results.unwrap().addr, len);
        assert!(fetched == written, "{len} bytes");
        let into = initiator.end.memory(len, 0xee);
        target.done(&target.op(RmaKind::Read, 0), &[into]);
        assert!(
            initiator.end.bytes(into.addr, len) == changed,
            "{len} bytes"
        );
    }
}

/// A region for atomic operations on elements of one type refuses all others, on every way that
/// they have to another region of the domain.
pub fn of_elements(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const START: usize = 4096;
    const LEN: usize = 64;

    let target = Target::open(domain_a, domain_b);
    let initiator = Initiator::of(&target);
    let _beside = target.register(KEY, BOTH);
    target.await_grant();
    let region = MrAttr {
        key: Some(KEY + 1),
        elements: Some(Datatype::Uint64),
        ..region_of(target.memory.part(START, LEN), BOTH)
    };
    // SAFETY: the memory lives as long as the endpoint, which outlives the region.
    let _region = unsafe { domain_b.register_region(&region) }.unwrap();
    set(&target, START, &[0; LEN]);
    for round in 1..=20 {
        for kind in [RmaKind::Write, RmaKind::Read] {
            let op = RmaOp {
                key: KEY + 1,
                ..target.op(kind, 0)
            };
            target.refused(&op, &[initiator.end.memory(LEN, 0xee)]);
        }
        for datatype in [Datatype::Int64, Datatype::Uint32, Datatype::FloatComplex] {
            let other = AtomicOp {
                key: KEY + 1,
                ..op(AtomicForm::Fetch, Operator::Sum, datatype)
            };
            let buffers = arrays(&initiator, &other, &[1; LEN], &[]);
            initiator.refused(&other, &buffers, Errno::EACCES);
        }
        let sum = AtomicOp {
            key: KEY + 1,
            ..op(AtomicForm::Base, Operator::Sum, Datatype::Uint64)
        };
        let ones = 1_u64.to_ne_bytes().repeat(LEN / 8);
        initiator.done(&sum, &arrays(&initiator, &sum, &ones, &[]));
        let sums = u64::to_ne_bytes(round).repeat(LEN / 8);
        assert!(target.content(START, LEN) == sums, "round {round}");
    }
}
