//! Elements of atomic operations as values: the result of each operator.

use std::ops::{Add, BitAnd, BitOr, BitXor, Mul, Not, Sub};

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use ferrofabric_contracts::atomics::AtomicOperator as Op;

use super::words::{AtomicWord, WordPair};

/// A type of elements.
pub trait Element: Copy {
    /// The word that an element lies in.
    type Atomic: AtomicWord;

    /// The element in a word.
    fn of_word(word: <Self::Atomic as AtomicWord>::Word) -> Self;

    /// The word of an element.
    fn to_word(self) -> <Self::Atomic as AtomicWord>::Word;

    /// The word of a target changes to this; `None`: it stays. `operand` and `compare` are anything
    /// where the operator has none. Operators that the type does not have leave the target as it
    /// is: a request that names one is refused before.
    fn result(op: Op, target: Self, operand: Self, compare: Self) -> Option<Self>;
}

/// The operators of numbers that have an order: all but the bitwise ones.
fn ordered<T: PartialOrd + Copy>(
    op: Op,
    (target, operand, compare): (T, T, T),
    number: impl Numbers<T>,
) -> Option<T> {
    let truth = |value: bool| Some(number.truth(value));
    let (a, b) = (number.is_true(target), number.is_true(operand));
    match op {
        Op::Min => (operand < target).then_some(operand),
        Op::Max => (operand > target).then_some(operand),
        Op::Sum => Some(number.sum(target, operand)),
        Op::Prod => Some(number.product(target, operand)),
        Op::Diff => Some(number.difference(target, operand)),
        Op::Lor => truth(a || b),
        Op::Land => truth(a && b),
        Op::Lxor => truth(a != b),
        Op::Write => Some(operand),
        Op::Cswap => (compare == target).then_some(operand),
        Op::CswapNe => (compare != target).then_some(operand),
        Op::CswapLe => (compare <= target).then_some(operand),
        Op::CswapLt => (compare < target).then_some(operand),
        Op::CswapGe => (compare >= target).then_some(operand),
        Op::CswapGt => (compare > target).then_some(operand),
        Op::Read | Op::Bor | Op::Band | Op::Bxor | Op::Mswap => None,
    }
}

/// Arithmetic of a type.
trait Numbers<T> {
    fn sum(&self, a: T, b: T) -> T;
    fn product(&self, a: T, b: T) -> T;
    fn difference(&self, a: T, b: T) -> T;
    fn is_true(&self, value: T) -> bool;
    fn truth(&self, value: bool) -> T;
}

/// Integers wrap around.
struct Wrapping;

/// Floats and complex numbers.
struct Floating;

/// The bitwise operators.
fn bitwise<T>(op: Op, target: T, operand: T, compare: T) -> Option<T>
where
    T: BitAnd<Output = T> + BitOr<Output = T> + BitXor<Output = T> + Not<Output = T> + Copy,
{
    match op {
        Op::Bor => Some(target | operand),
        Op::Band => Some(target & operand),
        Op::Bxor => Some(target ^ operand),
        Op::Mswap => Some((operand & compare) | (target & !compare)),
        _ => None,
    }
}

macro_rules! integers {
    ($($integer:ty as $word:ty: $atomic:ty;)*) => {$(
        impl Numbers<$integer> for Wrapping {
            fn sum(&self, a: $integer, b: $integer) -> $integer {
                a.wrapping_add(b)
            }

            fn product(&self, a: $integer, b: $integer) -> $integer {
                a.wrapping_mul(b)
            }

            fn difference(&self, a: $integer, b: $integer) -> $integer {
                a.wrapping_sub(b)
            }

            fn is_true(&self, value: $integer) -> bool {
                value != 0
            }

            fn truth(&self, value: bool) -> $integer {
                value.into()
            }
        }

        impl Element for $integer {
            type Atomic = $atomic;

            #[inline]
            fn of_word(word: $word) -> Self {
                Self::from_ne_bytes(word.to_ne_bytes())
            }

            #[inline]
            fn to_word(self) -> $word {
                <$word>::from_ne_bytes(self.to_ne_bytes())
            }

            #[inline]
            fn result(op: Op, target: Self, operand: Self, compare: Self) -> Option<Self> {
                let values = (target, operand, compare);
                ordered(op, values, Wrapping).or_else(|| bitwise(op, target, operand, compare))
            }
        }
    )*};
}

integers! {
    i8 as u8: AtomicU8;
    u8 as u8: AtomicU8;
    i16 as u16: AtomicU16;
    u16 as u16: AtomicU16;
    i32 as u32: AtomicU32;
    u32 as u32: AtomicU32;
    i64 as u64: AtomicU64;
    u64 as u64: AtomicU64;
    i128 as u128: WordPair<AtomicU64>;
    u128 as u128: WordPair<AtomicU64>;
}

macro_rules! floats {
    ($($float:ty as $word:ty: $atomic:ty;)*) => {$(
        impl Numbers<$float> for Floating {
            fn sum(&self, a: $float, b: $float) -> $float {
                a + b
            }

            fn product(&self, a: $float, b: $float) -> $float {
                a * b
            }

            fn difference(&self, a: $float, b: $float) -> $float {
                a - b
            }

            fn is_true(&self, value: $float) -> bool {
                value != 0.0
            }

            fn truth(&self, value: bool) -> $float {
                u8::from(value).into()
            }
        }

        impl Element for $float {
            type Atomic = $atomic;

            #[inline]
            fn of_word(word: $word) -> Self {
                Self::from_ne_bytes(word.to_ne_bytes())
            }

            #[inline]
            fn to_word(self) -> $word {
                <$word>::from_ne_bytes(self.to_ne_bytes())
            }

            #[inline]
            fn result(op: Op, target: Self, operand: Self, compare: Self) -> Option<Self> {
                ordered(op, (target, operand, compare), Floating)
            }
        }
    )*};
}

floats! {
    f32 as u32: AtomicU32;
    f64 as u64: AtomicU64;
}

/// A complex number, as C lays it out: the real part first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Complex<T> {
    re: T,
    im: T,
}

impl<T: Add<Output = T>> Add for Complex<T> {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            re: self.re + other.re,
            im: self.im + other.im,
        }
    }
}

impl<T: Sub<Output = T>> Sub for Complex<T> {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            re: self.re - other.re,
            im: self.im - other.im,
        }
    }
}

impl<T> Mul for Complex<T>
where
    T: Mul<Output = T> + Add<Output = T> + Sub<Output = T> + Copy,
{
    type Output = Self;

    /// The product as it is written on paper: infinities are not recovered from NaNs.
    fn mul(self, other: Self) -> Self {
        Self {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }
}

macro_rules! complex_numbers {
    ($($float:ty as $word:ty: $half:ty;)*) => {$(
        impl Element for Complex<$float> {
            type Atomic = WordPair<$half>;

            fn of_word(word: $word) -> Self {
                const HALF: usize = size_of::<$float>();
                let bytes = word.to_ne_bytes();
                let part = |at: usize| {
                    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk::<HALF>);
                    bytes.map_or(0.0, |bytes| <$float>::from_ne_bytes(*bytes))
                };
                Self {
                    re: part(0),
                    im: part(HALF),
                }
            }

            fn to_word(self) -> $word {
                let parts = [self.re.to_ne_bytes(), self.im.to_ne_bytes()];
                Self::Atomic::read(parts.as_flattened())
            }

            fn result(op: Op, target: Self, operand: Self, compare: Self) -> Option<Self> {
                let zero = Self { re: 0.0, im: 0.0 };
                let truth = |value: bool| {
                    Some(Self {
                        re: u8::from(value).into(),
                        im: 0.0,
                    })
                };
                let (a, b) = (target != zero, operand != zero);
                match op {
                    Op::Sum => Some(target + operand),
                    Op::Prod => Some(target * operand),
                    Op::Diff => Some(target - operand),
                    Op::Lor => truth(a || b),
                    Op::Land => truth(a && b),
                    Op::Lxor => truth(a != b),
                    Op::Write => Some(operand),
                    Op::Cswap => (compare == target).then_some(operand),
                    Op::CswapNe => (compare != target).then_some(operand),
                    _ => None,
                }
            }
        }
    )*};
}

complex_numbers! {
    f32 as u64: AtomicU32;
    f64 as u128: AtomicU64;
}
