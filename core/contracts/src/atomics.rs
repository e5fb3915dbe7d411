//! Atomic operations on a peer's memory (fi_atomic(3)): data types, operators, and the request by
//! which one travels (`docs/adr/0064`).

mod request;

pub use request::{AtomicArrays, AtomicHead, RequestError};

use crate::flags::{Flags, Rights};
use crate::listed_enum;
use crate::types::{FiAddr, IoBuf, MrDesc, RmaKind};

listed_enum! {
    /// The data types that are offered, with libfabric's numbers. The others have no type in stable
    /// Rust: long doubles, and floats of 16 and 8 bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Datatype: u8 {
        /// `int8_t`.
        Int8 = 0,
        /// `uint8_t`.
        Uint8 = 1,
        /// `int16_t`.
        Int16 = 2,
        /// `uint16_t`.
        Uint16 = 3,
        /// `int32_t`.
        Int32 = 4,
        /// `uint32_t`.
        Uint32 = 5,
        /// `int64_t`.
        Int64 = 6,
        /// `uint64_t`.
        Uint64 = 7,
        /// `float`.
        Float = 8,
        /// `double`.
        Double = 9,
        /// Two floats, the real part first.
        FloatComplex = 10,
        /// Two doubles, the real part first.
        DoubleComplex = 11,
        /// `__int128`.
        Int128 = 14,
        /// `unsigned __int128`.
        Uint128 = 15,
    }
}

impl Datatype {
    /// Bytes of an element.
    #[inline]
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double | Self::FloatComplex => 8,
            Self::DoubleComplex | Self::Int128 | Self::Uint128 => 16,
        }
    }

    /// The number of which the address of an element is a multiple: as in C, but for integers of
    /// 128 bits, of which 8 bytes are enough.
    #[inline]
    #[must_use]
    pub const fn alignment(self) -> usize {
        match self {
            Self::FloatComplex | Self::DoubleComplex | Self::Int128 | Self::Uint128 => {
                self.size() / 2
            }
            _ => self.size(),
        }
    }

    /// Elements of one operation at most.
    #[inline]
    #[must_use]
    pub const fn max_count(self) -> usize {
        MAX_ATOMIC_BYTES / self.size()
    }

    /// Whether an element is one word of the processor's atomic instructions. The others are two
    /// words, which change together under a lock of the target's process.
    #[inline]
    #[must_use]
    pub const fn is_one_word(self) -> bool {
        self.alignment() == self.size() && self.size() <= size_of::<u64>()
    }

    const fn is_integer(self) -> bool {
        !matches!(self, Self::Float | Self::Double) && !self.is_complex()
    }

    const fn is_complex(self) -> bool {
        matches!(self, Self::FloatComplex | Self::DoubleComplex)
    }
}

listed_enum! {
    /// The operators of fi_atomic(3), with libfabric's numbers.
    ///
    /// Integers wrap around. Floats compare as in C: with a NaN on either side `Min` and `Max`
    /// leave the target as it is, of the comparing operators `CswapNe` alone swaps, and 0 equals
    /// -0. To logical operators all but zero is true, NaNs too, and their result is 1 or 0; as a
    /// complex number that has 0 as its imaginary part.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum AtomicOperator: u8 {
        /// The lesser of target and operand.
        Min = 0,
        /// The greater of both.
        Max = 1,
        /// Target plus operand.
        Sum = 2,
        /// Target times operand.
        Prod = 3,
        /// Logical or.
        Lor = 4,
        /// Logical and.
        Land = 5,
        /// Bitwise or.
        Bor = 6,
        /// Bitwise and.
        Band = 7,
        /// Logical exclusive or.
        Lxor = 8,
        /// Bitwise exclusive or.
        Bxor = 9,
        /// The target, unchanged.
        Read = 10,
        /// The operand.
        Write = 11,
        /// The operand if the compare value equals the target.
        Cswap = 12,
        /// The operand if the compare value is another than the target.
        CswapNe = 13,
        /// The operand if the compare value is at most the target.
        CswapLe = 14,
        /// The operand if the compare value is less than the target.
        CswapLt = 15,
        /// The operand if the compare value is at least the target.
        CswapGe = 16,
        /// The operand if the compare value is greater than the target.
        CswapGt = 17,
        /// The bits of the operand where the compare value has a 1, else those of the target.
        Mswap = 18,
        /// Target minus operand.
        Diff = 19,
    }
}

impl AtomicOperator {
    /// Whether it compares: then it is of [`AtomicForm::Compare`], and of no other form.
    #[inline]
    #[must_use]
    pub const fn compares(self) -> bool {
        matches!(
            self,
            Self::Cswap
                | Self::CswapNe
                | Self::CswapLe
                | Self::CswapLt
                | Self::CswapGe
                | Self::CswapGt
                | Self::Mswap
        )
    }

    /// Whether elements of the type have it: those without bits have no bitwise operators, and
    /// those without an order no comparisons.
    #[must_use]
    pub const fn applies_to(self, datatype: Datatype) -> bool {
        match self {
            Self::Bor | Self::Band | Self::Bxor | Self::Mswap => datatype.is_integer(),
            Self::Min
            | Self::Max
            | Self::CswapLe
            | Self::CswapLt
            | Self::CswapGe
            | Self::CswapGt => !datatype.is_complex(),
            _ => true,
        }
    }
}

listed_enum! {
    /// The forms of atomic operations, with their numbers on the wire.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum AtomicForm: u8 {
        /// `fi_atomic`: nothing comes back.
        Base = 1,
        /// `fi_fetch_atomic`: the elements from before the operation come back.
        Fetch = 2,
        /// `fi_compare_atomic`: with compare values, and the elements come back.
        Compare = 3,
    }
}

impl AtomicForm {
    /// Whether there is such an operation.
    #[must_use]
    pub const fn has(self, operator: AtomicOperator, datatype: Datatype) -> bool {
        let has = match self {
            Self::Base => !operator.compares() && !matches!(operator, AtomicOperator::Read),
            Self::Fetch => !operator.compares(),
            Self::Compare => operator.compares(),
        };
        has && operator.applies_to(datatype)
    }

    /// The kind of operations among which such an operation counts, in counters and in the flags
    /// of completions (fi_cntr(3)).
    #[must_use]
    pub const fn kind(self) -> RmaKind {
        match self {
            Self::Base => RmaKind::Write,
            Self::Fetch | Self::Compare => RmaKind::Read,
        }
    }

    /// The rights at the target that an operation needs (fi_mr(3)).
    #[must_use]
    pub const fn rights(self, operator: AtomicOperator) -> Rights {
        match (self, operator) {
            (Self::Base, _) => Rights::WRITE,
            (_, AtomicOperator::Read) => Rights::READ,
            _ => Rights::all(),
        }
    }
}

/// Bytes of the elements of one operation at most.
pub const MAX_ATOMIC_BYTES: usize = 4096;

/// An atomic operation, without its buffers.
#[derive(Clone, Copy, Debug)]
pub struct AtomicOp {
    /// The form.
    pub form: AtomicForm,
    /// The operator.
    pub operator: AtomicOperator,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The peer.
    pub dest: FiAddr,
    /// The key of the region.
    pub key: u64,
    /// The place in the region: bytes from its start, or an address, as the target has chosen.
    pub place: u64,
    /// Memory descriptor of the buffers for results.
    pub desc: MrDesc,
    /// The application's context, returned in the completion.
    pub context: u64,
    /// `COMPLETION`, `INJECT`, `MORE` and `FENCE` count here.
    pub flags: Flags,
}

impl AtomicOp {
    /// The memory that the operation changes: so many bytes.
    #[inline]
    #[must_use]
    pub const fn target(&self, len: usize) -> AtomicTarget {
        AtomicTarget {
            dest: self.dest,
            key: self.key,
            place: self.place,
            len,
            rights: self.form.rights(self.operator),
            datatype: self.datatype,
        }
    }
}

/// A part of a peer's region that an atomic operation changes.
#[derive(Clone, Copy, Debug)]
pub struct AtomicTarget {
    /// The peer.
    pub dest: FiAddr,
    /// The key of the region.
    pub key: u64,
    /// The place in the region.
    pub place: u64,
    /// Its length in bytes: whole elements.
    pub len: usize,
    /// The rights that the operation needs.
    pub rights: Rights,
    /// The type of the elements.
    pub datatype: Datatype,
}

/// The buffers of an atomic operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtomicBuffers<'a> {
    /// The operands; of `Read` they do not count.
    pub operands: &'a [IoBuf],
    /// The compare values, of [`AtomicForm::Compare`] alone.
    pub compares: &'a [IoBuf],
    /// The room for the elements that come back; none for [`AtomicForm::Base`].
    pub results: &'a [IoBuf],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_one_word_are_those_of_instructions() {
        let words = Datatype::ALL.iter().filter(|of| of.is_one_word());
        let numbers: Vec<_> = words.map(|of| *of as u8).collect();
        assert_eq!(numbers, (0..=Datatype::Double as u8).collect::<Vec<_>>());
    }

    /// The operators of each form, as fi_atomic(3) lists them.
    #[test]
    fn forms_have_the_operators_of_the_manual() {
        use AtomicOperator as Op;
        let of = |form: AtomicForm, datatype| -> Vec<_> {
            let has = |op: &Op| form.has(*op, datatype);
            Op::ALL.iter().copied().filter(has).collect()
        };
        let reduce = [Op::Min, Op::Max, Op::Sum, Op::Prod, Op::Lor, Op::Land];
        let bits = [Op::Bor, Op::Band, Op::Lxor, Op::Bxor];
        let base = [&reduce[..], &bits, &[Op::Write, Op::Diff]].concat();
        let fetch = [&reduce[..], &bits, &[Op::Read, Op::Write, Op::Diff]].concat();
        let orders = [Op::CswapLe, Op::CswapLt, Op::CswapGe, Op::CswapGt];
        let compare = [&[Op::Cswap, Op::CswapNe], &orders[..], &[Op::Mswap]].concat();
        assert_eq!(of(AtomicForm::Base, Datatype::Int16), base);
        assert_eq!(of(AtomicForm::Fetch, Datatype::Uint64), fetch);
        assert_eq!(of(AtomicForm::Compare, Datatype::Uint8), compare);
        assert_eq!(of(AtomicForm::Compare, Datatype::Double), compare[..6]);
        let complex = [Op::Sum, Op::Prod, Op::Lor, Op::Land, Op::Lxor, Op::Write];
        let complex = [&complex[..], &[Op::Diff]].concat();
        assert_eq!(of(AtomicForm::Base, Datatype::FloatComplex), complex);
        assert_eq!(
            of(AtomicForm::Compare, Datatype::FloatComplex),
            [Op::Cswap, Op::CswapNe]
        );
    }
}
