//! The operators of atomic operations.

use std::fmt;
use std::marker::PhantomData;

use ferrofabric_contracts::atomics::AtomicOperator;
use ferrofabric_runtime::owning::{AtomicElement, AtomicInteger};

/// An operator of [`RdmEndpoint::atomic`], [`RdmEndpoint::fetch_atomic`] and
/// [`RdmEndpoint::allreduce`], on elements of type `T`.
///
/// Integers wrap around. Floats compare as in C: with a NaN on either side [`MIN`](Self::MIN) and
/// [`MAX`](Self::MAX) leave the element as it is. To logical operators all but zero is true, and
/// their result is 1 or 0.
///
/// Floats have no bitwise operators:
///
/// ```compile_fail,E0277
/// # use ferrofabric::{FiAddr, Operator, RdmEndpoint, RemoteAtomicRegion};
/// fn mask(endpoint: &mut RdmEndpoint, peer: FiAddr, weights: RemoteAtomicRegion<f64>) {
///     let _ = endpoint.atomic(peer, weights, Operator::BIT_AND, 1.0);
/// }
/// ```
///
/// [`RdmEndpoint::atomic`]: crate::RdmEndpoint::atomic
/// [`RdmEndpoint::fetch_atomic`]: crate::RdmEndpoint::fetch_atomic
/// [`RdmEndpoint::allreduce`]: crate::RdmEndpoint::allreduce
#[derive(Clone, Copy)]
pub struct Operator<T> {
    pub(crate) operator: AtomicOperator,
    element: PhantomData<fn() -> T>,
}

impl<T: AtomicElement> Operator<T> {
    /// The lesser of element and operand.
    pub const MIN: Self = Self::of(AtomicOperator::Min);
    /// The greater of both.
    pub const MAX: Self = Self::of(AtomicOperator::Max);
    /// Element plus operand.
    pub const SUM: Self = Self::of(AtomicOperator::Sum);
    /// Element minus operand.
    pub const DIFFERENCE: Self = Self::of(AtomicOperator::Diff);
    /// Element times operand.
    pub const PRODUCT: Self = Self::of(AtomicOperator::Prod);
    /// Logical or.
    pub const LOGICAL_OR: Self = Self::of(AtomicOperator::Lor);
    /// Logical and.
    pub const LOGICAL_AND: Self = Self::of(AtomicOperator::Land);
    /// Logical exclusive or.
    pub const LOGICAL_XOR: Self = Self::of(AtomicOperator::Lxor);
    /// The operand.
    pub const WRITE: Self = Self::of(AtomicOperator::Write);

    const fn of(operator: AtomicOperator) -> Self {
        Self {
            operator,
            element: PhantomData,
        }
    }
}

impl<T> Operator<T> {
    /// Whether the elements of many members can be combined in pairs.
    pub(crate) fn reduces(self) -> bool {
        self.operator != AtomicOperator::Diff
    }
}

impl<T: AtomicInteger> Operator<T> {
    /// Bitwise or.
    pub const BIT_OR: Self = Self::of(AtomicOperator::Bor);
    /// Bitwise and.
    pub const BIT_AND: Self = Self::of(AtomicOperator::Band);
    /// Bitwise exclusive or.
    pub const BIT_XOR: Self = Self::of(AtomicOperator::Bxor);
}

impl<T> fmt::Debug for Operator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operator({:?})", self.operator)
    }
}

/// An operator of [`RdmEndpoint::compare_atomic`], on elements of type `T`: when an element changes
/// to its operand.
///
/// A NaN is equal to nothing, and neither less nor greater than anything; 0 equals -0.
///
/// [`RdmEndpoint::compare_atomic`]: crate::RdmEndpoint::compare_atomic
#[derive(Clone, Copy)]
pub struct CompareOperator<T> {
    pub(crate) operator: AtomicOperator,
    element: PhantomData<fn() -> T>,
}

impl<T: AtomicElement> CompareOperator<T> {
    /// If the compare value equals the element: compare-and-swap.
    pub const EQUAL: Self = Self::of(AtomicOperator::Cswap);
    /// If the compare value is another than the element.
    pub const NOT_EQUAL: Self = Self::of(AtomicOperator::CswapNe);
    /// If the compare value is at most the element.
    pub const LESS_OR_EQUAL: Self = Self::of(AtomicOperator::CswapLe);
    /// If the compare value is less than the element.
    pub const LESS: Self = Self::of(AtomicOperator::CswapLt);
    /// If the compare value is at least the element.
    pub const GREATER_OR_EQUAL: Self = Self::of(AtomicOperator::CswapGe);
    /// If the compare value is greater than the element.
    pub const GREATER: Self = Self::of(AtomicOperator::CswapGt);

    const fn of(operator: AtomicOperator) -> Self {
        Self {
            operator,
            element: PhantomData,
        }
    }
}

impl<T: AtomicInteger> CompareOperator<T> {
    /// In the bits that are 1 in the compare value; the others stay.
    pub const MASK: Self = Self::of(AtomicOperator::Mswap);
}

impl<T> fmt::Debug for CompareOperator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompareOperator({:?})", self.operator)
    }
}
