//! Atomic operations (fi_atomic(3)) on a peer's regions.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicOp, AtomicOperator as Operator, Datatype, MAX_ATOMIC_BYTES,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc};
use ferrofabric_runtime::fabric::{Cntr, Domain, EndpointConfig};

use crate::ends::{CompletionResult, QueuedEndpoint};
use crate::target::{BOTH, KEY, REGION, Target};

const COMPLETION: Flags = Flags::COMPLETION;

pub(crate) fn op(form: AtomicForm, operator: Operator, datatype: Datatype) -> AtomicOp {
    AtomicOp {
        form,
        operator,
        datatype,
        dest: FiAddr::UNSPEC,
        key: KEY,
        place: 0,
        desc: MrDesc::NONE,
        context: 0,
        flags: COMPLETION,
    }
}

/// The buffers of an operation: one each, or none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Arrays {
    operands: Option<IoBuf>,
    compares: Option<IoBuf>,
    pub(crate) results: Option<IoBuf>,
}

impl Arrays {
    fn begin(&self, end: &QueuedEndpoint, op: &AtomicOp) -> Result<(), OpError> {
        let list = |buf: &Option<IoBuf>| buf.iter().copied().collect::<Vec<_>>();
        let lists = [&self.operands, &self.compares, &self.results].map(list);
        let buffers = AtomicBuffers {
            operands: &lists[0],
            compares: &lists[1],
            results: &lists[2],
        };
        // SAFETY: the buffers live as long as the endpoint.
        unsafe { end.endpoint.atomic(op, &buffers) }
    }
}

/// Operations of one initiator.
pub(crate) struct Initiator<'a, 'b> {
    target: &'a Target<'b>,
    pub(crate) end: &'a QueuedEndpoint,
    pub(crate) dest: FiAddr,
}

impl<'a, 'b> Initiator<'a, 'b> {
    pub(crate) fn of(target: &'a Target<'b>) -> Self {
        Self {
            target,
            end: &target.pair.a,
            dest: target.pair.to_b,
        }
    }

    /// Memory with bytes.
    fn filled(&self, bytes: &[u8]) -> IoBuf {
        let buf = self.end.memory(bytes.len(), 0);
        // SAFETY: the memory is the endpoint's, and nothing uses it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_mut_ptr(), bytes.len()) };
        buf
    }

    /// Begins an operation as soon as there is room. Returns its context.
    pub(crate) fn begin(&self, op: &AtomicOp, arrays: &Arrays) -> u64 {
        let op = AtomicOp {
            dest: self.dest,
            context: self.end.context(),
            ..*op
        };
        let begin = || match arrays.begin(self.end, &op) {
            Ok(()) => Some(()),
            Err(OpError::Again) => {
                self.end.tx.pump();
                None
            }
            Err(error) => panic!("{error}: {op:?}"),
        };
        self.target.pair.until("no room for an operation", begin);
        op.context
    }

    pub(crate) fn over(&self, context: u64) -> CompletionResult {
        let queue = &self.end.tx;
        let pair = &self.target.pair;
        pair.until("an operation does not complete", || {
            queue.pump();
            queue.take_of(context)
        })
    }

    /// Carries an operation out.
    pub(crate) fn done(&self, op: &AtomicOp, arrays: &Arrays) {
        let context = self.begin(op, arrays);
        let done = self.over(context);
        let done = done.unwrap_or_else(|error| panic!("{error}: {op:?}"));
        assert_eq!(done.flags, flags_of(op));
    }

    pub(crate) fn refused(&self, op: &AtomicOp, arrays: &Arrays, errno: Errno) {
        let context = self.begin(op, arrays);
        let error = self.over(context).expect_err("a refused operation");
        let came = (error.errno, error.completion.flags);
        assert_eq!(came, (errno, flags_of(op)), "{op:?}");
    }

    fn sums(&self, operand: u64) -> Arrays {
        Arrays {
            operands: Some(self.filled(&operand.to_le_bytes())),
            results: Some(self.end.memory(8, 0xee)),
            ..Arrays::default()
        }
    }

    pub(crate) fn word(&self, buf: Option<IoBuf>) -> u64 {
        let bytes = self.end.bytes(buf.unwrap().addr, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }
}

/// The flags in the completion of an operation.
fn flags_of(op: &AtomicOp) -> Flags {
    match op.form {
        AtomicForm::Base => Flags::ATOMIC | Flags::WRITE,
        AtomicForm::Fetch | AtomicForm::Compare => Flags::ATOMIC | Flags::READ,
    }
}

/// Writes to the target's memory behind its back.
pub(crate) fn set(target: &Target<'_>, place: usize, bytes: &[u8]) {
    let to = target.memory.part(place, bytes.len());
    assert_eq!(to.len, bytes.len());
    // SAFETY: the memory is the target's, and no operation uses it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_mut_ptr(), bytes.len()) };
}

/// Small numbers as elements.
fn elements(datatype: Datatype, values: &[i8]) -> Vec<u8> {
    let element = |&value: &i8| -> Vec<u8> {
        match datatype {
            Datatype::Float => f32::from(value).to_le_bytes().to_vec(),
            Datatype::Double => f64::from(value).to_le_bytes().to_vec(),
            Datatype::FloatComplex => [f32::from(value).to_le_bytes(), [0; 4]].concat(),
            Datatype::DoubleComplex => [f64::from(value).to_le_bytes(), [0; 8]].concat(),
            _ => i128::from(value).to_le_bytes()[..datatype.size()].to_vec(),
        }
    };
    values.iter().flat_map(element).collect()
}

/// The result of an operator on small numbers.
fn model(operator: Operator, target: i8, operand: i8, compare: i8) -> i8 {
    let swapped = |swaps: bool| if swaps { operand } else { target };
    match operator {
        Operator::Min => target.min(operand),
        Operator::Max => target.max(operand),
        Operator::Sum => target + operand,
        Operator::Prod => target * operand,
        Operator::Diff => target - operand,
        Operator::Lor => (target != 0 || operand != 0).into(),
        Operator::Land => (target != 0 && operand != 0).into(),
        Operator::Lxor => ((target != 0) != (operand != 0)).into(),
        Operator::Bor => target | operand,
        Operator::Band => target & operand,
        Operator::Bxor => target ^ operand,
        Operator::Read => target,
        Operator::Write => operand,
        Operator::Cswap => swapped(compare == target),
        Operator::CswapNe => swapped(compare != target),
        Operator::CswapLe => swapped(compare <= target),
        Operator::CswapLt => swapped(compare < target),
        Operator::CswapGe => swapped(compare >= target),
        Operator::CswapGt => swapped(compare > target),
        Operator::Mswap => (operand & compare) | (target & !compare),
    }
}

/// The buffers that an operation has, with these contents.
pub(crate) fn arrays(
    initiator: &Initiator<'_, '_>,
    op: &AtomicOp,
    operands: &[u8],
    compares: &[u8],
) -> Arrays {
    Arrays {
        operands: (op.operator != Operator::Read).then(|| initiator.filled(operands)),
        compares: (op.form == AtomicForm::Compare).then(|| initiator.filled(compares)),
        results: (op.form != AtomicForm::Base).then(|| initiator.end.memory(operands.len(), 0xee)),
    }
}

/// Every operation that there is changes the elements that it is for, and no other memory, and
/// returns those from before it.
pub fn each_type_and_operator(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    carry_out_each(&Target::open(domain_a, domain_b));
}

/// The same, on a target that is there. Returns the types of the operations.
pub fn carry_out_each(target: &Target<'_>) -> Vec<Datatype> {
    const TARGETS: [i8; 6] = [5, 3, 0, 7, 6, 0];
    const OPERANDS: [i8; 6] = [4, 3, 0, 9, 0, 8];
    const COMPARES: [i8; 6] = [5, 4, 1, 6, 6, 1];
    const PLACE: usize = 64;

    let _region = target.register(KEY, BOTH);
    let initiator = Initiator::of(target);
    let mut types = Vec::new();
    for &datatype in Datatype::ALL {
        for &operator in Operator::ALL {
            for &form in AtomicForm::ALL {
                if !form.has(operator, datatype) {
                    continue;
                }
                let before = elements(datatype, &TARGETS);
                set(target, 0, &[0x5a; 256]);
                set(target, PLACE, &before);
                types.push(datatype);
                let op = AtomicOp {
                    place: PLACE as u64,
                    ..op(form, operator, datatype)
                };
                let (operands, compares) =
                    (elements(datatype, &OPERANDS), elements(datatype, &COMPARES));
                let arrays = arrays(&initiator, &op, &operands, &compares);
                initiator.done(&op, &arrays);
                let after: Vec<i8> = (0..TARGETS.len())
                    .map(|at| model(operator, TARGETS[at], OPERANDS[at], COMPARES[at]))
                    .collect();
                let (came, after) = (target.content(0, 256), elements(datatype, &after));
                let end = PLACE + after.len();
                assert_eq!(came[PLACE..end], after, "{op:?}");
                assert!(
                    came[..PLACE]
                        .iter()
                        .chain(&came[end..])
                        .all(|byte| *byte == 0x5a)
                );
                if let Some(results) = arrays.results {
                    let results = initiator.end.bytes(results.addr, before.len());
                    assert_eq!(results, before, "{op:?}");
                }
            }
        }
    }
    types
}

/// One element, and as many as there may be: short requests, long ones, and long results.
pub fn arrays_of_each_length(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    for len in [8, 16, 64, 128, 200, 1000, MAX_ATOMIC_BYTES] {
        let ramp = |from: usize| -> Vec<u8> { (0..len).map(|at| (at * 3 + from) as u8).collect() };
        for form in AtomicForm::ALL {
            let operator = match form {
                AtomicForm::Compare => Operator::Mswap,
                _ => Operator::Bxor,
            };
            for place in [0, REGION - len] {
                let (before, operands, compares) = (ramp(1), ramp(2), ramp(7));
                set(&target, place, &before);
                let op = AtomicOp {
                    place: place as u64,
                    ..op(*form, operator, Datatype::Uint64)
                };
                let arrays = arrays(&initiator, &op, &operands, &compares);
                initiator.done(&op, &arrays);
                let model = |at: usize| match form {
                    AtomicForm::Compare => {
                        (operands[at] & compares[at]) | (before[at] & !compares[at])
                    }
                    _ => before[at] ^ operands[at],
                };
                let after: Vec<u8> = (0..len).map(model).collect();
                assert_eq!(target.content(place, len), after, "{len} {form:?}");
                if let Some(results) = arrays.results {
                    assert_eq!(
                        initiator.end.bytes(results.addr, len),
                        before,
                        "{len} {form:?}"
                    );
                }
            }
        }
    }
}

/// Lists are gathered and scattered, and operands are free at return where they are injected.
pub fn lists_and_injected_operands(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    let bytes: Vec<u8> = (0..48).collect();
    set(&target, 0, &bytes);
    let (operands, results) = (initiator.filled(&[0xff; 48]), initiator.end.memory(48, 0));
    let buffers = AtomicBuffers {
        operands: &[operands.part(0, 16), operands.part(16, 32)],
        compares: &[],
        results: &[results.part(0, 40), results.part(40, 8)],
    };
    let op = AtomicOp {
        dest: initiator.dest,
        context: initiator.end.context(),
        ..op(AtomicForm::Fetch, Operator::Bxor, Datatype::Uint32)
    };
    // SAFETY: the buffers live as long as the endpoint.
    unsafe { initiator.end.endpoint.atomic(&op, &buffers) }.unwrap();
    initiator.over(op.context).unwrap();
    assert_eq!(initiator.end.bytes(results.addr, 48), bytes);
    let changed: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    assert_eq!(target.content(0, 48), changed);

    let len = domain_a.info().tx.inject_size / 8 * 8;
    let (operands, before) = (initiator.filled(&vec![0x0f; len]), target.content(0, len));
    let injected = AtomicOp {
        flags: COMPLETION | Flags::INJECT,
        ..self::op(AtomicForm::Base, Operator::Bxor, Datatype::Uint64)
    };
    let arrays = Arrays {
        operands: Some(operands),
        ..Arrays::default()
    };
    let context = initiator.begin(&injected, &arrays);
    // SAFETY: the operation does not use the memory any more.
    unsafe { operands.as_mut_ptr().write_bytes(0, len) };
    initiator.over(context).unwrap();
    let changed: Vec<u8> = before.iter().map(|byte| byte ^ 0x0f).collect();
    assert_eq!(target.content(0, len), changed);
}

/// Several initiators add to one word, with the target's own thread: each fetches another number,
/// so none of their operations is lost, and none is carried out twice.
pub fn each_sum_is_counted_once(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const EACH: usize = 150;

    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let name = target.pair.b.endpoint.name();
    let others = [domain_a, domain_b].map(QueuedEndpoint::open);
    let mut initiators = vec![Initiator::of(&target)];
    for end in &others {
        let dest = end.av.insert(&name.to_bytes()).unwrap();
        let to_end = end.endpoint.name().to_bytes();
        // The target replies to the sources of its address vector.
        target.pair.b.av.insert(&to_end).unwrap();
        initiators.push(Initiator {
            target: &target,
            end,
            dest,
        });
    }
    set(&target, 0, &0u64.to_le_bytes());
    let sum = op(AtomicForm::Fetch, Operator::Sum, Datatype::Uint64);
    let mut begun = Vec::new();
    for _ in 0..EACH {
        for initiator in &initiators {
            let arrays = initiator.sums(1);
            begun.push((initiator, initiator.begin(&sum, &arrays), arrays.results));
        }
    }
    // SAFETY: the word is aligned, and everything uses it atomically.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(target.memory.as_mut_ptr().cast()) };
    let mut fetched: BTreeSet<u64> = (0..EACH)
        .map(|_| word.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
        .collect();
    for (initiator, context, results) in begun {
        initiator.over(context).unwrap();
        assert!(fetched.insert(initiator.word(results)), "fetched twice");
    }
    let all = EACH * (initiators.len() + 1);
    assert!(fetched.into_iter().eq(0..all as u64));
    assert_eq!(target.content(0, 8), (all as u64).to_le_bytes());
}

/// A short operation does not overtake a long one: each finds what the one before it has left.
pub fn order_of_long_and_short_ones(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const OPS: usize = 120;

    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    set(&target, 0, &[0; MAX_ATOMIC_BYTES]);
    let mut begun = Vec::new();
    for number in 1..=OPS as u64 {
        let len = [8, MAX_ATOMIC_BYTES, 16, 2000][number as usize % 4];
        let (form, operator) = match number % 3 {
            0 => (AtomicForm::Compare, Operator::CswapNe),
            _ => (AtomicForm::Fetch, Operator::Write),
        };
        let op = op(form, operator, Datatype::Uint64);
        let operands = number.to_le_bytes().repeat(len / 8);
        let arrays = arrays(&initiator, &op, &operands, &vec![0xff; len]);
        begun.push((initiator.begin(&op, &arrays), arrays.results));
    }
    for (before, (context, results)) in begun.into_iter().enumerate() {
        initiator.over(context).unwrap();
        assert_eq!(initiator.word(results), before as u64);
    }
}

/// A key, a range, a right or an address that the target refuses fails one operation, and changes
/// nothing.
pub fn refusals_at_the_target(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let initiator = Initiator::of(&target);
    let all = target.content(0, REGION);
    let base = op(AtomicForm::Base, Operator::Write, Datatype::Uint64);
    let fetch = op(AtomicForm::Fetch, Operator::Write, Datatype::Uint64);
    let read = op(AtomicForm::Fetch, Operator::Read, Datatype::Uint64);
    let compare = op(AtomicForm::Compare, Operator::CswapNe, Datatype::Uint64);
    for len in [8, MAX_ATOMIC_BYTES] {
        let run = |op: &AtomicOp| arrays(&initiator, op, &vec![1; len], &vec![2; len]);
        let every = [base, fetch, read, compare];
        let refused = |op: &AtomicOp| initiator.refused(op, &run(op), Errno::EACCES);
        every.iter().for_each(refused);
        for (rights, may) in [
            (Flags::REMOTE_READ, [false, false, true, false]),
            (Flags::REMOTE_WRITE, [true, false, false, false]),
        ] {
            let region = target.register(KEY, rights);
            for (op, may) in every.iter().zip(may) {
                match may {
                    true => initiator.done(op, &run(op)),
                    false => refused(op),
                }
            }
            drop(region);
            set(&target, 0, &all);
        }
        let region = target.register(KEY, BOTH);
        for op in every {
            for (key, place) in [
                (KEY + 1, 0),
                (u64::MAX, 0),
                (KEY, REGION - len + 8),
                (KEY, REGION),
                (KEY, usize::MAX - 7),
            ] {
                let place = place as u64;
                refused(&AtomicOp { key, place, ..op });
            }
            for place in [1, 4, 7] {
                let op = AtomicOp { place, ..op };
                initiator.refused(&op, &run(&op), Errno::EINVAL);
            }
        }
        drop(region);
        assert!(target.content(0, REGION) == all);
    }
    // By way of an endpoint without a right, no region has it.
    let only = |config: &mut EndpointConfig| config.remote_rights = Rights::READ;
    let target = Target::open_with((domain_a, domain_b), |_| {}, only);
    let _region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    let run = |op: &AtomicOp| arrays(&initiator, op, &[1; 8], &[2; 8]);
    initiator.done(&read, &run(&read));
    initiator.refused(&fetch, &run(&fetch), Errno::EACCES);
}

/// A call that describes no operation begins none.
pub fn calls_that_are_refused(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    let all = target.content(0, 64);
    let refused = |op: &AtomicOp, arrays: Arrays, errno| {
        let op = AtomicOp {
            dest: initiator.dest,
            ..*op
        };
        let result = arrays.begin(initiator.end, &op);
        assert_eq!(result, Err(OpError::Failed(errno)), "{op:?}");
    };
    let of = |len| Some(initiator.end.memory(len, 1));
    let arrays = |operands, compares, results| Arrays {
        operands,
        compares,
        results,
    };
    let sum = op(AtomicForm::Base, Operator::Sum, Datatype::Uint32);
    for len in [0, 1, 7] {
        refused(&sum, arrays(of(len), None, None), Errno::EINVAL);
    }
    refused(&sum, arrays(of(8), None, of(8)), Errno::EINVAL);
    refused(&sum, arrays(of(8), of(8), None), Errno::EINVAL);
    let long = arrays(of(MAX_ATOMIC_BYTES + 4), None, None);
    refused(&sum, long, Errno::EMSGSIZE);
    let fetch = op(AtomicForm::Fetch, Operator::Sum, Datatype::Uint32);
    refused(&fetch, arrays(of(8), None, None), Errno::EINVAL);
    refused(&fetch, arrays(of(8), None, of(4)), Errno::EINVAL);
    let swap = op(AtomicForm::Compare, Operator::Cswap, Datatype::Uint32);
    refused(&swap, arrays(of(8), None, of(8)), Errno::EINVAL);
    let with_data = Flags::REMOTE_CQ_DATA;
    let with_data = AtomicOp {
        flags: with_data,
        ..sum
    };
    refused(&with_data, arrays(of(8), None, None), Errno::EINVAL);
    let tagged = AtomicOp {
        flags: Flags::TAGGED,
        ..sum
    };
    refused(&tagged, arrays(of(8), None, None), Errno::EOPNOTSUPP);
    let injected = AtomicOp {
        flags: Flags::INJECT,
        ..sum
    };
    let inject_size = domain_a.info().tx.inject_size;
    if inject_size < MAX_ATOMIC_BYTES {
        let long = arrays(of(inject_size / 4 * 4 + 4), None, None);
        refused(&injected, long, Errno::EMSGSIZE);
    }
    for (form, operator, datatype) in [
        (AtomicForm::Base, Operator::Read, Datatype::Uint32),
        (AtomicForm::Base, Operator::Cswap, Datatype::Uint32),
        (AtomicForm::Compare, Operator::Sum, Datatype::Uint32),
        (AtomicForm::Fetch, Operator::Bor, Datatype::Float),
        (AtomicForm::Fetch, Operator::Min, Datatype::FloatComplex),
    ] {
        let op = op(form, operator, datatype);
        refused(&op, arrays(of(8), of(8), of(8)), Errno::EOPNOTSUPP);
    }
    target.pair.barrier();
    assert_eq!(target.content(0, 64), all);
}

/// A fenced operation begins when a fetch before it has its result.
pub fn fences_after_fetches(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    for round in 1..20u64 {
        set(&target, 0, &round.to_le_bytes());
        let read = op(AtomicForm::Fetch, Operator::Read, Datatype::Uint64);
        let between = initiator.end.memory(8, 0xee);
        let fetched = Arrays {
            results: Some(between),
            ..Arrays::default()
        };
        let first = initiator.begin(&read, &fetched);
        let fenced = AtomicOp {
            place: 8,
            flags: COMPLETION | Flags::FENCE,
            ..op(AtomicForm::Base, Operator::Write, Datatype::Uint64)
        };
        let written = Arrays {
            operands: Some(between),
            ..Arrays::default()
        };
        let second = initiator.begin(&fenced, &written);
        initiator.over(first).unwrap();
        initiator.over(second).unwrap();
        assert_eq!(target.content(8, 8), round.to_le_bytes());
    }
}

/// Fetches count as reads, and others as writes, at both ends.
pub fn counts_at_both_ends(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let (target, of_a, of_b) = Target::open_counted(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    let counts = |cntr: &Arc<dyn Cntr>| (cntr.read().unwrap(), cntr.read_errors().unwrap());
    let silent = |form, operator| AtomicOp {
        flags: Flags::empty(),
        ..op(form, operator, Datatype::Uint64)
    };
    let ops = [
        silent(AtomicForm::Base, Operator::Sum),
        silent(AtomicForm::Fetch, Operator::Sum),
        silent(AtomicForm::Compare, Operator::Cswap),
    ];
    let run = |op: &AtomicOp| arrays(&initiator, op, &[1; 8], &[2; 8]);
    let before = initiator.end.tx.counts();
    for op in &ops {
        initiator.begin(op, &run(op));
    }
    target.pair.until("the operations do not count", || {
        let all = [&of_a[0], &of_a[1], &of_b[0], &of_b[1]].map(counts);
        (all == [(2, 0), (1, 0), (2, 0), (1, 0)]).then_some(())
    });
    assert_eq!(initiator.end.tx.counts(), before);
    assert_eq!(initiator.end.tx.take(), None);
    drop(region);
    for op in &ops {
        initiator.refused(op, &run(op), Errno::EACCES);
    }
    assert_eq!([&of_a[0], &of_a[1]].map(counts), [(2, 2), (1, 1)]);
    assert_eq!([&of_b[0], &of_b[1]].map(counts), [(2, 0), (1, 0)]);
}
