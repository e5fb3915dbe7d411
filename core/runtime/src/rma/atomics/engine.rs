//! Carries out atomic operations on memory of this process. Elements of up to 64 bits that are one
//! word are changed by the atomic instructions of the processor: threads of the application, and
//! other processes that map the memory, may use the same words with theirs at the same time
//! (fi_atomic(3)). Elements of two words are changed under a lock of the process.

use ferrofabric_contracts::atomics::{AtomicArrays, AtomicHead, AtomicOperator, Datatype};

use super::elements::{Complex, Element};
use super::words::AtomicWord;

/// The function for the elements of a data type.
macro_rules! on_elements {
    ($datatype:expr, $function:ident) => {
        match $datatype {
            Datatype::Int8 => $function::<i8>,
            Datatype::Uint8 => $function::<u8>,
            Datatype::Int16 => $function::<i16>,
            Datatype::Uint16 => $function::<u16>,
            Datatype::Int32 => $function::<i32>,
            Datatype::Uint32 => $function::<u32>,
            Datatype::Int64 => $function::<i64>,
            Datatype::Uint64 => $function::<u64>,
            Datatype::Float => $function::<f32>,
            Datatype::Double => $function::<f64>,
            Datatype::FloatComplex => $function::<Complex<f32>>,
            Datatype::DoubleComplex => $function::<Complex<f64>>,
            Datatype::Int128 => $function::<i128>,
            Datatype::Uint128 => $function::<u128>,
        }
    };
}

/// Combines elements in memory of a data type: each target changes to the operator's result of it
/// and its operand.
pub fn combine(datatype: Datatype, operator: AtomicOperator, targets: &mut [u8], operands: &[u8]) {
    on_elements!(datatype, combine_on)(operator, targets, operands);
}

/// As [`combine`], on elements of one type.
pub(crate) fn combine_on<E: Element>(
    operator: AtomicOperator,
    targets: &mut [u8],
    operands: &[u8],
) {
    let size = E::Atomic::BYTES;
    let pairs = targets
        .chunks_exact_mut(size)
        .zip(operands.chunks_exact(size));
    for (place, operand) in pairs {
        let element = |bytes: &[u8]| E::of_word(E::Atomic::read(bytes));
        let (target, operand) = (element(place), element(operand));
        if let Some(result) = E::result(operator, target, operand, operand) {
            E::Atomic::write(result.to_word(), place);
        }
    }
}

/// Changes each element at `target` in one step, the first one first. The elements from before the
/// operation go to `results`, one behind the other, as far as there is room.
///
/// # Safety
///
/// `target` is a multiple of the elements' alignment, and has room for the elements of the head.
/// Nothing uses them at the same time but by atomic instructions.
pub(crate) unsafe fn execute(
    head: &AtomicHead,
    target: *mut u8,
    arrays: &AtomicArrays<'_>,
    results: &mut [u8],
) {
    let execute = on_elements!(head.datatype, execute_on);
    // SAFETY: the caller's contract.
    unsafe { execute(head, target, arrays, results) };
}

/// As [`execute`], on elements of one type.
unsafe fn execute_on<E: Element>(
    head: &AtomicHead,
    target: *mut u8,
    arrays: &AtomicArrays<'_>,
    results: &mut [u8],
) {
    let size = E::Atomic::BYTES;
    let mut operands = arrays.operands.chunks_exact(size);
    let mut compares = arrays.compares.chunks_exact(size);
    let mut results = results.chunks_exact_mut(size);
    let element = |bytes: Option<&[u8]>| E::of_word(E::Atomic::read(bytes.unwrap_or_default()));
    for at in 0..head.count as usize {
        // SAFETY: the caller's contract.
        let place = unsafe { E::Atomic::at(target.add(at * size)) };
        let (operand, compare) = (element(operands.next()), element(compares.next()));
        let before = change::<E>(head.operator, place, operand, compare);
        if let Some(result) = results.next() {
            E::Atomic::write(before, result);
        }
    }
}

/// Changes one element. Returns the word from before.
fn change<E: Element>(
    operator: AtomicOperator,
    place: &E::Atomic,
    operand: E,
    compare: E,
) -> <E::Atomic as AtomicWord>::Word {
    let mut before = place.load();
    while let Some(after) = E::result(operator, E::of_word(before), operand, compare) {
        match place.replace(before, after.to_word()) {
            Ok(()) => break,
            Err(now) => before = now,
        }
    }
    before
}
