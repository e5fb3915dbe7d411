//! The types of the elements of atomic operations, and the values that go with an operation.

use std::fmt;
use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
};

use super::Buffer;
use crate::rma::atomics::{AtomicWord, Element, combine_on};
use ferrofabric_contracts::atomics::{AtomicOperator, Datatype};
use ferrofabric_contracts::error::Result;

/// A type that atomic operations change: an integer of 8 to 128 bits, `f32` or `f64`.
pub trait AtomicElement: Element + PartialOrd + fmt::Debug + Send + Sync + 'static {
    /// Its number in libfabric.
    const DATATYPE: Datatype;
}

/// A type of elements that has bitwise operators.
pub trait AtomicInteger: AtomicElement + Eq {}

/// An integer for which [`std::sync::atomic`] has a type.
pub trait StdAtomicInteger: AtomicInteger {
    /// That type.
    type StdAtomic: Sync;
}

macro_rules! elements {
    ($($element:ty: $datatype:ident;)*) => {$(
        const _: () = assert!(size_of::<$element>() == Datatype::$datatype.size());

        impl AtomicElement for $element {
            const DATATYPE: Datatype = Datatype::$datatype;
        }
    )*};
}

elements! {
    i8: Int8;
    u8: Uint8;
    i16: Int16;
    u16: Uint16;
    i32: Int32;
    u32: Uint32;
    i64: Int64;
    u64: Uint64;
    i128: Int128;
    u128: Uint128;
    f32: Float;
    f64: Double;
}

macro_rules! std_atomics {
    ($($element:ty: $atomic:ty;)*) => {$(
        const _: () = assert!(size_of::<$element>() == size_of::<$atomic>());
        const _: () = assert!(align_of::<$atomic>() == Datatype::alignment(<$element>::DATATYPE));

        impl AtomicInteger for $element {}

        impl StdAtomicInteger for $element {
            type StdAtomic = $atomic;
        }
    )*};
}

std_atomics! {
    i8: AtomicI8;
    u8: AtomicU8;
    i16: AtomicI16;
    u16: AtomicU16;
    i32: AtomicI32;
    u32: AtomicU32;
    i64: AtomicI64;
    u64: AtomicU64;
}

impl AtomicInteger for i128 {}
impl AtomicInteger for u128 {}

/// The values of an atomic operation: one element, or a slice of them.
pub trait ElementValues<E: AtomicElement> {
    /// The form in which the elements from before a fetching operation come back: `E` for one
    /// element, `Vec<E>` for a slice.
    type Fetched: FetchedValues;

    /// The values.
    fn as_elements(&self) -> &[E];
}

impl<E: AtomicElement> ElementValues<E> for E {
    type Fetched = E;

    fn as_elements(&self) -> &[E] {
        std::slice::from_ref(self)
    }
}

impl<E: AtomicElement> ElementValues<E> for &[E] {
    type Fetched = Vec<E>;

    fn as_elements(&self) -> &[E] {
        self
    }
}

impl<E: AtomicElement, const N: usize> ElementValues<E> for &[E; N] {
    type Fetched = Vec<E>;

    fn as_elements(&self) -> &[E] {
        *self
    }
}

impl<E: AtomicElement> ElementValues<E> for &Vec<E> {
    type Fetched = Vec<E>;

    fn as_elements(&self) -> &[E] {
        self
    }
}

/// Elements that come back from an operation: `E`, or `Vec<E>`.
pub trait FetchedValues: sealed::OfBuffer {}

impl<E: AtomicElement> FetchedValues for E {}
impl<E: AtomicElement> FetchedValues for Vec<E> {}

mod sealed {
    use super::{AtomicElement, elements_of, of_bytes};

    /// Reads the elements that came back.
    pub trait OfBuffer: Sized {
        /// The elements in memory, which are of the type and number of the operation's.
        fn of_memory(bytes: &[u8]) -> Self;
    }

    impl<E: AtomicElement> OfBuffer for E {
        fn of_memory(bytes: &[u8]) -> Self {
            of_bytes(bytes.get(..size_of::<E>()).unwrap_or_default())
        }
    }

    impl<E: AtomicElement> OfBuffer for Vec<E> {
        fn of_memory(bytes: &[u8]) -> Self {
            elements_of(bytes)
        }
    }
}

/// The bytes of some elements, as peers have them in memory.
pub fn bytes_of<E: AtomicElement>(values: &[E]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(values)];
    write_elements(values, &mut bytes);
    bytes
}

fn write_elements<E: AtomicElement>(values: &[E], memory: &mut [u8]) {
    for (place, value) in memory.chunks_exact_mut(size_of::<E>()).zip(values) {
        E::Atomic::write(value.to_word(), place);
    }
}

/// The elements in some bytes.
pub fn elements_of<E: AtomicElement>(bytes: &[u8]) -> Vec<E> {
    bytes.chunks_exact(size_of::<E>()).map(of_bytes).collect()
}

/// Combines elements in memory: each target changes to the operator's result of it and its operand.
pub fn combine<E: AtomicElement>(operator: AtomicOperator, targets: &mut [u8], operands: &[u8]) {
    combine_on::<E>(operator, targets, operands);
}

/// The element in as many bytes as it has, 0 if there are none.
pub(super) fn of_bytes<E: AtomicElement>(bytes: &[u8]) -> E {
    E::of_word(E::Atomic::read(bytes))
}

/// A buffer with some elements, in memory that `allocate` makes.
pub(super) fn buffer_of<E: AtomicElement>(
    values: &[E],
    allocate: impl FnOnce(usize) -> Result<Buffer>,
) -> Result<Buffer> {
    let mut buffer = allocate(size_of_val(values))?;
    write_elements(values, &mut buffer);
    Ok(buffer)
}
