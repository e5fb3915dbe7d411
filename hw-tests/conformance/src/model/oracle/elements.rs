//! Elements of atomic operations as plain bytes: the result of each operator.

use ferrofabric_contracts::atomics::{AtomicOperator as Op, Datatype};

/// The bytes of an element after an operation. `operand` and `compare` are empty where the operator
/// has none.
pub(super) fn changed(
    operator: Op,
    datatype: Datatype,
    target: &[u8],
    operand: &[u8],
    compare: &[u8],
) -> Vec<u8> {
    let bytes = (target, operand, compare);
    match datatype {
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Int64 | Datatype::Int128 => {
            integer(operator, true, bytes)
        }
        Datatype::Uint8
        | Datatype::Uint16
        | Datatype::Uint32
        | Datatype::Uint64
        | Datatype::Uint128 => integer(operator, false, bytes),
        Datatype::Float => single::number(operator, bytes),
        Datatype::Double => double::number(operator, bytes),
        Datatype::FloatComplex => single::complex(operator, bytes),
        Datatype::DoubleComplex => double::complex(operator, bytes),
    }
}

/// Whether an element has these bytes. One NaN is as good as another: which of two goes on is the
/// processor's choice.
pub(super) fn is_same(datatype: Datatype, a: &[u8], b: &[u8]) -> bool {
    let parts = |size: usize| a.chunks(size).zip(b.chunks(size));
    match datatype {
        Datatype::Float | Datatype::FloatComplex => parts(4).all(|(a, b)| single::is_same(a, b)),
        Datatype::Double | Datatype::DoubleComplex => parts(8).all(|(a, b)| double::is_same(a, b)),
        _ => a == b,
    }
}

/// Whether elements of the type are bits and nothing else, so that those of several sizes may have
/// the same bytes.
pub(super) fn is_integer(datatype: Datatype) -> bool {
    Op::Bxor.applies_to(datatype)
}

/// Small numbers as elements.
pub(crate) fn elements(datatype: Datatype, values: impl Iterator<Item = i8>) -> Vec<u8> {
    let element = |value: i8| -> Vec<u8> {
        match datatype {
            Datatype::Float => f32::from(value).to_le_bytes().to_vec(),
            Datatype::Double => f64::from(value).to_le_bytes().to_vec(),
            Datatype::FloatComplex => [f32::from(value), 1.0].map(f32::to_le_bytes).concat(),
            Datatype::DoubleComplex => [f64::from(value), 1.0].map(f64::to_le_bytes).concat(),
            _ => i128::from(value).to_le_bytes()[..datatype.size()].to_vec(),
        }
    };
    values.flat_map(element).collect()
}

/// Integers of any size: those with a sign compare as if they began at the least one.
fn integer(
    operator: Op,
    is_signed: bool,
    (target, operand, compare): (&[u8], &[u8], &[u8]),
) -> Vec<u8> {
    let size = target.len();
    let number = |bytes: &[u8]| {
        let mut all = [0; 16];
        all[..bytes.len()].copy_from_slice(bytes);
        u128::from_le_bytes(all)
    };
    let rank = |value: u128| value ^ (u128::from(is_signed) << (size * 8 - 1));
    let (t, o, c) = (number(target), number(operand), number(compare));
    let swapped = |swaps: bool| if swaps { o } else { t };
    let after = match operator {
        Op::Min => swapped(rank(o) < rank(t)),
        Op::Max => swapped(rank(o) > rank(t)),
        Op::Sum => t.wrapping_add(o),
        Op::Prod => t.wrapping_mul(o),
        Op::Diff => t.wrapping_sub(o),
        Op::Lor => u128::from(t != 0 || o != 0),
        Op::Land => u128::from(t != 0 && o != 0),
        Op::Lxor => u128::from((t != 0) != (o != 0)),
        Op::Bor => t | o,
        Op::Band => t & o,
        Op::Bxor => t ^ o,
        Op::Read => t,
        Op::Write => o,
        Op::Cswap => swapped(c == t),
        Op::CswapNe => swapped(c != t),
        Op::CswapLe => swapped(rank(c) <= rank(t)),
        Op::CswapLt => swapped(rank(c) < rank(t)),
        Op::CswapGe => swapped(rank(c) >= rank(t)),
        Op::CswapGt => swapped(rank(c) > rank(t)),
        Op::Mswap => (o & c) | (t & !c),
    };
    after.to_le_bytes()[..size].to_vec()
}

macro_rules! floats {
    ($($name:ident: $float:ty;)*) => {$(
        mod $name {
            use super::Op;

            const BYTES: usize = size_of::<$float>();

            fn value(bytes: &[u8]) -> $float {
                bytes.first_chunk().map_or(0.0, |bytes| <$float>::from_le_bytes(*bytes))
            }

            pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
                a == b || (value(a).is_nan() && value(b).is_nan())
            }

            pub(super) fn number(
                operator: Op,
                (target, operand, compare): (&[u8], &[u8], &[u8]),
            ) -> Vec<u8> {
                let (t, o, c) = (value(target), value(operand), value(compare));
                let truth = |is: bool| if is { 1.0 } else { 0.0 };
                let swaps = match operator {
                    Op::Sum => return (t + o).to_le_bytes().to_vec(),
                    Op::Prod => return (t * o).to_le_bytes().to_vec(),
                    Op::Diff => return (t - o).to_le_bytes().to_vec(),
                    Op::Lor => return <$float>::to_le_bytes(truth(t != 0.0 || o != 0.0)).to_vec(),
                    Op::Land => return <$float>::to_le_bytes(truth(t != 0.0 && o != 0.0)).to_vec(),
                    Op::Lxor => {
                        return <$float>::to_le_bytes(truth((t != 0.0) != (o != 0.0))).to_vec();
                    }
                    Op::Min => o < t,
                    Op::Max => o > t,
                    Op::Write => true,
                    Op::Cswap => c == t,
                    Op::CswapNe => c != t,
                    Op::CswapLe => c <= t,
                    Op::CswapLt => c < t,
                    Op::CswapGe => c >= t,
                    Op::CswapGt => c > t,
                    _ => false,
                };
                if swaps { operand.to_vec() } else { target.to_vec() }
            }

            pub(super) fn complex(
                operator: Op,
                (target, operand, compare): (&[u8], &[u8], &[u8]),
            ) -> Vec<u8> {
                let parts = |bytes: &[u8]| {
                    let (re, im) = bytes.split_at(BYTES.min(bytes.len()));
                    (value(re), value(im))
                };
                let (t, o, c) = (parts(target), parts(operand), parts(compare));
                let (is_t, is_o) = (t != (0.0, 0.0), o != (0.0, 0.0));
                let truth = |is: bool| (if is { 1.0 } else { 0.0 }, 0.0);
                let (re, im) = match operator {
                    Op::Sum => (t.0 + o.0, t.1 + o.1),
                    Op::Diff => (t.0 - o.0, t.1 - o.1),
                    Op::Prod => (t.0 * o.0 - t.1 * o.1, t.0 * o.1 + t.1 * o.0),
                    Op::Lor => truth(is_t || is_o),
                    Op::Land => truth(is_t && is_o),
                    Op::Lxor => truth(is_t != is_o),
                    Op::Write => return operand.to_vec(),
                    Op::Cswap if c == t => return operand.to_vec(),
                    Op::CswapNe if c != t => return operand.to_vec(),
                    _ => return target.to_vec(),
                };
                [re, im].map(<$float>::to_le_bytes).concat()
            }
        }
    )*};
}

floats! {
    single: f32;
    double: f64;
}
