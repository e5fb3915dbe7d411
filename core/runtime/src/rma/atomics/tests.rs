//! The engine against a model that computes with wider numbers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ferrofabric_contracts::atomics::{
    AtomicArrays, AtomicForm, AtomicHead, AtomicOperator as Op, Datatype,
};
use proptest::prelude::*;

use super::engine::execute;

/// Memory with the alignment of every element.
#[repr(align(8))]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Aligned([u8; 64]);

fn head(operator: Op, datatype: Datatype, count: usize) -> AtomicHead {
    AtomicHead {
        number: 1,
        form: AtomicForm::Fetch,
        operator,
        datatype,
        count: count as u32,
    }
}

/// An integer of a type as a wide one.
fn integer(bytes: &[u8], datatype: Datatype) -> i128 {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = i128::from_le_bytes(wide);
    let bits = 8 * bytes.len();
    let is_signed = matches!(
        datatype,
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Int64
    );
    match is_signed && unsigned >> (bits - 1) == 1 {
        true => unsigned - (1 << bits),
        false => unsigned,
    }
}

/// The result of an operator on integers, of which the lowest bytes count.
fn integer_model(op: Op, target: i128, operand: i128, compare: i128) -> i128 {
    let chosen = |if_so: bool| if if_so { operand } else { target };
    match op {
        Op::Min => target.min(operand),
        Op::Max => target.max(operand),
        Op::Sum => target + operand,
        Op::Prod => target.wrapping_mul(operand),
        Op::Diff => target - operand,
        Op::Lor => i128::from(target != 0 || operand != 0),
        Op::Land => i128::from(target != 0 && operand != 0),
        Op::Lxor => i128::from((target != 0) ^ (operand != 0)),
        Op::Bor => target | operand,
        Op::Band => target & operand,
        Op::Bxor => target ^ operand,
        Op::Read => target,
        Op::Write => operand,
        Op::Cswap => chosen(compare == target),
        Op::CswapNe => chosen(compare != target),
        Op::CswapLe => chosen(compare <= target),
        Op::CswapLt => chosen(compare < target),
        Op::CswapGe => chosen(compare >= target),
        Op::CswapGt => chosen(compare > target),
        Op::Mswap => target ^ ((target ^ operand) & compare),
    }
}

/// The same on integers of 128 bits, by their halves.
fn wide_model(op: Op, [target, operand, compare]: [&[u8]; 3], datatype: Datatype) -> [u8; 16] {
    let halves = |bytes: &[u8]| -> (u64, u64) {
        let (low, high) = bytes.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        (half(low), half(high))
    };
    let (t, o, c) = (halves(target), halves(operand), halves(compare));
    let sign = match datatype {
        Datatype::Int128 => 1 << 63,
        _ => 0,
    };
    let order = |(low, high): (u64, u64)| (high ^ sign, low);
    let chosen = |if_so: bool| if if_so { o } else { t };
    let truth = |value: bool| (u64::from(value), 0);
    let (is_t, is_o) = (t != (0, 0), o != (0, 0));
    let (low, high) = match op {
        Op::Min => chosen(order(o) < order(t)),
        Op::Max => chosen(order(o) > order(t)),
        Op::Sum => {
            let (low, carry) = t.0.overflowing_add(o.0);
            (low, t.1.wrapping_add(o.1).wrapping_add(carry.into()))
        }
        Op::Diff => {
            let (low, borrow) = t.0.overflowing_sub(o.0);
            (low, t.1.wrapping_sub(o.1).wrapping_sub(borrow.into()))
        }
        Op::Prod => {
            let low = u128::from(t.0) * u128::from(o.0);
            let across = t.0.wrapping_mul(o.1).wrapping_add(t.1.wrapping_mul(o.0));
            (low as u64, ((low >> 64) as u64).wrapping_add(across))
        }
        Op::Lor => truth(is_t || is_o),
        Op::Land => truth(is_t && is_o),
        Op::Lxor => truth(is_t ^ is_o),
        Op::Bor => (t.0 | o.0, t.1 | o.1),
        Op::Band => (t.0 & o.0, t.1 & o.1),
        Op::Bxor => (t.0 ^ o.0, t.1 ^ o.1),
        Op::Read => t,
        Op::Write => o,
        Op::Cswap => chosen(c == t),
        Op::CswapNe => chosen(c != t),
        Op::CswapLe => chosen(order(c) <= order(t)),
        Op::CswapLt => chosen(order(c) < order(t)),
        Op::CswapGe => chosen(order(c) >= order(t)),
        Op::CswapGt => chosen(order(c) > order(t)),
        Op::Mswap => (t.0 ^ ((t.0 ^ o.0) & c.0), t.1 ^ ((t.1 ^ o.1) & c.1)),
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&high.to_le_bytes());
    bytes
}

/// The same on floats, whose sums and products are those of the type.
fn float_model(op: Op, [target, operand, compare]: [f64; 3], datatype: Datatype) -> f64 {
    let rounded = |exact: f64| match datatype {
        // Twice rounding is as good as rounding once: a double has more than twice the bits.
        Datatype::Float => f64::from(exact as f32),
        _ => exact,
    };
    let chosen = |if_so: bool| if if_so { operand } else { target };
    let truth = |value: bool| f64::from(u8::from(value));
    match op {
        Op::Min => chosen(operand < target),
        Op::Max => chosen(operand > target),
        Op::Sum => rounded(target + operand),
        Op::Prod => rounded(target * operand),
        Op::Diff => rounded(target - operand),
        Op::Lor => truth(target != 0.0 || operand != 0.0),
        Op::Land => truth(target != 0.0 && operand != 0.0),
        Op::Lxor => truth((target != 0.0) ^ (operand != 0.0)),
        Op::Read => target,
        Op::Write => operand,
        Op::Cswap => chosen(compare == target),
        Op::CswapNe => chosen(compare != target),
        Op::CswapLe => chosen(compare <= target),
        Op::CswapLt => chosen(compare < target),
        Op::CswapGe => chosen(compare >= target),
        Op::CswapGt => chosen(compare > target),
        Op::Bor | Op::Band | Op::Bxor | Op::Mswap => unreachable!("no operator of floats"),
    }
}

fn float(bytes: &[u8]) -> f64 {
    match bytes.len() {
        4 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    }
}

/// Runs an operation on three elements in the midst of others, and compares each with the model.
fn check(op: Op, datatype: Datatype, memory: Aligned, operands: &Aligned, compares: &Aligned) {
    // As little aligned as it may be.
    let (size, from, count) = (datatype.size(), datatype.alignment(), 3);
    let len = size * count;
    let arrays = AtomicArrays {
        operands: match op {
            Op::Read => &[],
            _ => &operands.0[..len],
        },
        compares: match op.compares() {
            true => &compares.0[..len],
            false => &[],
        },
    };
    let mut after = memory;
    let mut results = [0; 48];
    // SAFETY: the memory is aligned, and has room for three elements.
    unsafe {
        let target = after.0.as_mut_ptr().add(from);
        execute(
            &head(op, datatype, count),
            target,
            &arrays,
            &mut results[..len],
        );
    }
    assert_eq!(results[..len], memory.0[from..from + len]);
    assert_eq!(after.0[..from], memory.0[..from]);
    assert_eq!(after.0[from + len..], memory.0[from + len..]);
    for at in (0..len).step_by(size) {
        let came = &after.0[from + at..from + at + size];
        let before = &memory.0[from + at..from + at + size];
        let (operand, compare) = (&operands.0[at..at + size], &compares.0[at..at + size]);
        let what = format!("{op:?} {datatype:?} {before:?} {operand:?} {compare:?} {came:?}");
        match datatype {
            Datatype::Float | Datatype::Double => {
                let expected = float_model(op, [before, operand, compare].map(float), datatype);
                let same = float(came) == expected || float(came).is_nan() && expected.is_nan();
                assert!(same, "{what}");
            }
            Datatype::FloatComplex | Datatype::DoubleComplex => {
                complex(op, [before, operand, compare, came], datatype, &what);
            }
            Datatype::Int128 | Datatype::Uint128 => {
                let expected = wide_model(op, [before, operand, compare], datatype);
                assert_eq!(came, expected, "{what}");
            }
            _ => {
                let of = |bytes| integer(bytes, datatype);
                let expected = integer_model(op, of(before), of(operand), of(compare));
                assert_eq!(came, &expected.to_le_bytes()[..size], "{what}");
            }
        }
    }
}

/// Compares the element that came from a target, an operand and a compare value.
fn complex(op: Op, elements: [&[u8]; 4], datatype: Datatype, what: &str) {
    let half = datatype.size() / 2;
    let [a, b, c, came] = elements.map(|bytes| (float(&bytes[..half]), float(&bytes[half..])));
    let part = match datatype {
        Datatype::FloatComplex => Datatype::Float,
        _ => Datatype::Double,
    };
    let rounded = |op, x: f64, y: f64| float_model(op, [x, y, 0.0], part);
    let (sum, difference) = (
        |x, y| rounded(Op::Sum, x, y),
        |x, y| rounded(Op::Diff, x, y),
    );
    let product = |x, y| rounded(Op::Prod, x, y);
    let truth = |value: bool| (f64::from(u8::from(value)), 0.0);
    let (is_a, is_b) = (a != (0.0, 0.0), b != (0.0, 0.0));
    let expected = match op {
        Op::Sum => (sum(a.0, b.0), sum(a.1, b.1)),
        Op::Diff => (difference(a.0, b.0), difference(a.1, b.1)),
        Op::Prod => (
            difference(product(a.0, b.0), product(a.1, b.1)),
            sum(product(a.0, b.1), product(a.1, b.0)),
        ),
        Op::Lor => truth(is_a || is_b),
        Op::Land => truth(is_a && is_b),
        Op::Lxor => truth(is_a ^ is_b),
        Op::Read => a,
        Op::Cswap if c != a => a,
        Op::CswapNe if c == a => a,
        _ => b,
    };
    let same = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan();
    assert!(
        same(came.0, expected.0) && same(came.1, expected.1),
        "{what}"
    );
}

/// Elements of any bits, and often small numbers that are equal or one apart.
fn elements(datatype: Datatype) -> impl Strategy<Value = Aligned> {
    let size = datatype.size();
    let small = prop::collection::vec(0u8..3, 64).prop_map(move |values| {
        let mut bytes = [0; 64];
        for (element, value) in bytes.chunks_exact_mut(size).zip(values) {
            match datatype {
                Datatype::Float => element.copy_from_slice(&f32::from(value).to_le_bytes()),
                Datatype::Double => element.copy_from_slice(&f64::from(value).to_le_bytes()),
                Datatype::FloatComplex => {
                    element[..4].copy_from_slice(&f32::from(value).to_le_bytes());
                }
                Datatype::DoubleComplex => {
                    element[..8].copy_from_slice(&f64::from(value).to_le_bytes());
                }
                _ => element[0] = value,
            }
        }
        Aligned(bytes)
    });
    let edges = prop::collection::vec(prop::sample::select(vec![0, 0xff, 0x80, 0x7f]), 64)
        .prop_map(|bytes| Aligned(bytes.try_into().unwrap()));
    let any =
        prop::collection::vec(any::<u8>(), 64).prop_map(|bytes| Aligned(bytes.try_into().unwrap()));
    prop_oneof![small, edges, any]
}

/// An operator, a type that has it, the target's elements, operands and compare values.
fn operations() -> impl Strategy<Value = (Op, Datatype, Aligned, Aligned, Aligned)> {
    let all: Vec<_> = (Op::ALL.iter())
        .flat_map(|&op| Datatype::ALL.iter().map(move |&datatype| (op, datatype)))
        .filter(|(op, datatype)| op.applies_to(*datatype))
        .collect();
    prop::sample::select(all).prop_flat_map(|(op, datatype)| {
        let elements = || elements(datatype);
        (Just(op), Just(datatype), elements(), elements(), elements())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    #[test]
    fn results_are_those_of_the_model((op, datatype, memory, operands, compares) in operations()) {
        check(op, datatype, memory, &operands, &compares);
    }
}

/// Each type with each operator that it has, whatever the random numbers leave out.
#[test]
fn each_type_has_each_of_its_operators() {
    let ramp = |from: u8| Aligned(std::array::from_fn(|at| from.wrapping_add(at as u8)));
    for &datatype in Datatype::ALL {
        for &op in Op::ALL.iter().filter(|op| op.applies_to(datatype)) {
            check(op, datatype, ramp(1), &ramp(7), &ramp(9));
            check(op, datatype, ramp(9), &ramp(3), &ramp(17));
        }
    }
}

#[test]
fn floats_compare_as_in_c() {
    let run = |op, target: f64, operand: f64, compare: f64| {
        let mut memory = Aligned([0; 64]);
        memory.0[..8].copy_from_slice(&target.to_le_bytes());
        let arrays = AtomicArrays {
            operands: &operand.to_le_bytes(),
            compares: &compare.to_le_bytes(),
        };
        // SAFETY: there is an aligned element.
        unsafe {
            let head = head(op, Datatype::Double, 1);
            execute(&head, memory.0.as_mut_ptr(), &arrays, &mut []);
        }
        float(&memory.0[..8])
    };
    for op in [Op::Min, Op::Max] {
        assert_eq!(run(op, 1.0, f64::NAN, 0.0), 1.0);
        assert!(run(op, f64::NAN, 1.0, 0.0).is_nan());
    }
    assert_eq!(run(Op::Min, 2.0, -f64::INFINITY, 0.0), -f64::INFINITY);
    assert_eq!(run(Op::Cswap, 0.0, 5.0, -0.0), 5.0);
    assert!(run(Op::Cswap, f64::NAN, 5.0, f64::NAN).is_nan());
    assert_eq!(run(Op::CswapNe, f64::NAN, 5.0, f64::NAN), 5.0);
    assert_eq!(run(Op::Lor, f64::NAN, 0.0, 0.0), 1.0);
}

/// Threads that add at the same time as others with their own instructions lose nothing.
#[test]
fn concurrent_sums_are_exact() {
    const ADDS: usize = 20_000;

    let (words, floats) = ([const { AtomicU32::new(0) }; 2], AtomicU64::new(0));
    let one_and_two = [1u32.to_le_bytes(), 2u32.to_le_bytes()].concat();
    let engine = || {
        for _ in 0..ADDS {
            let arrays = AtomicArrays {
                operands: &one_and_two,
                compares: &[],
            };
            // SAFETY: both words are there, and all use them atomically.
            unsafe {
                let target = words[0].as_ptr().cast();
                execute(
                    &head(Op::Sum, Datatype::Uint32, 2),
                    target,
                    &arrays,
                    &mut [],
                );
            }
            let arrays = AtomicArrays {
                operands: &1.0f64.to_le_bytes(),
                compares: &[],
            };
            // SAFETY: as above.
            unsafe {
                let target = floats.as_ptr().cast();
                execute(
                    &head(Op::Sum, Datatype::Double, 1),
                    target,
                    &arrays,
                    &mut [],
                );
            }
        }
    };
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(engine);
        }
        threads.spawn(|| {
            for _ in 0..ADDS {
                words[1].fetch_add(5, Ordering::Relaxed);
            }
        });
    });
    let sums = words.map(AtomicU32::into_inner);
    assert_eq!(sums, [3 * ADDS as u32, (3 * 2 + 5) * ADDS as u32]);
    assert_eq!(f64::from_bits(floats.into_inner()), 3.0 * ADDS as f64);
}

/// Threads that change elements of two words at the same time lose nothing.
#[test]
fn concurrent_sums_of_pairs_are_exact() {
    const ADDS: u64 = 20_000;
    const START: u128 = u64::MAX as u128 - 7;

    let words = [const { AtomicU64::new(0) }; 4];
    words[0].store(START as u64, Ordering::Relaxed);
    let complex = [1.0f64, 2.0].map(f64::to_le_bytes);
    let engine = || {
        for _ in 0..ADDS {
            let sums: [(usize, Datatype, &[u8]); 2] = [
                (0, Datatype::Uint128, &1u128.to_le_bytes()),
                (2, Datatype::DoubleComplex, complex.as_flattened()),
            ];
            for (at, datatype, operands) in sums {
                let arrays = AtomicArrays {
                    operands,
                    compares: &[],
                };
                // SAFETY: both words are there, and all use them atomically.
                unsafe {
                    let target = words[at].as_ptr().cast();
                    execute(&head(Op::Sum, datatype, 1), target, &arrays, &mut []);
                }
            }
        }
    };
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(engine);
        }
    });
    let [low, high, re, im] = words.map(AtomicU64::into_inner);
    let sum = (u128::from(high) << 64) | u128::from(low);
    assert_eq!(sum, START + 3 * u128::from(ADDS));
    let parts = [re, im].map(f64::from_bits);
    assert_eq!(parts, [3.0 * ADDS as f64, 6.0 * ADDS as f64]);
}
