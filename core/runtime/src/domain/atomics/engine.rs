//! Carries out atomic operations on memory of this process. Elements of up to 64 bits that are one
//! word are changed by the atomic instructions of the processor: threads of the application, and
//! other processes that map the memory, may use the same words with theirs at the same time
//! (fi_atomic(3)). Elements of two words are changed under a lock of the process.

use ferrofabric_contracts::atomics::{AtomicArrays, AtomicHead, AtomicOperator, Datatype};

use super::elements::{Complex, Element};
use super::words::AtomicWord;

/// Changes each element at `target` in one step, the first one first. The elements from before the
/// operation go to `results`, one behind the other, as far as there is room.
///
/// # Safety
///
/// `target` is a multiple of the elements' alignment, and has room for the elements of the head.
/// Nothing uses them at the same time but by atomic instructions.
pub(super) unsafe fn execute(
    head: &AtomicHead,
    target: *mut u8,
    arrays: &AtomicArrays<'_>,
    results: &mut [u8],
) {
    let execute = match head.datatype {
        Datatype::Int8 => execute_on::<i8>,
        Datatype::Uint8 => execute_on::<u8>,
        Datatype::Int16 => execute_on::<i16>,
        Datatype::Uint16 => execute_on::<u16>,
        Datatype::Int32 => execute_on::<i32>,
        Datatype::Uint32 => execute_on::<u32>,
        Datatype::Int64 => execute_on::<i64>,
        Datatype::Uint64 => execute_on::<u64>,
        Datatype::Float => execute_on::<f32>,
        Datatype::Double => execute_on::<f64>,
        Datatype::FloatComplex => execute_on::<Complex<f32>>,
        Datatype::DoubleComplex => execute_on::<Complex<f64>>,
        Datatype::Int128 => execute_on::<i128>,
        Datatype::Uint128 => execute_on::<u128>,
    };
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
