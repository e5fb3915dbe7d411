//! The requests of atomic operations.

use ferrofabric_contracts::atomics::{
    AtomicForm, AtomicHead, AtomicOperator, Datatype, MAX_ATOMIC_BYTES,
};

use super::seed;
use crate::{FuzzTarget, saw};

/// A request that a target reads.
pub(super) const REQUESTS: FuzzTarget = FuzzTarget {
    name: "atomic_requests",
    take,
    seeds,
    words: &[],
};

fn take(bytes: &[u8]) -> u64 {
    match AtomicHead::parse(bytes) {
        Ok((head, arrays)) => {
            let len = head.target_bytes();
            assert!((1..=MAX_ATOMIC_BYTES).contains(&len));
            assert!(head.form.has(head.operator, head.datatype));
            for array in [arrays.operands, arrays.compares] {
                assert!(array.is_empty() || array.len() == len);
            }
            let again = [&head.to_bytes()[..], arrays.operands, arrays.compares].concat();
            assert_eq!(again, bytes);
            saw((head.form, head.operator, head.datatype))
        }
        Err(error) => saw(std::mem::discriminant(&error)),
    }
}

/// Each form with each of its operators, on a type that has it.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for &form in AtomicForm::ALL {
        for (number, &operator) in AtomicOperator::ALL.iter().enumerate() {
            let has = |datatype: &&Datatype| form.has(operator, **datatype);
            let datatypes = Datatype::ALL.iter().cycle().skip(number);
            let Some(&datatype) = datatypes.take(Datatype::ALL.len()).find(has) else {
                continue;
            };
            let head = AtomicHead {
                number: 7,
                form,
                operator,
                datatype,
                count: 2,
            };
            let arrays = match (form, operator) {
                (_, AtomicOperator::Read) => 0,
                (AtomicForm::Compare, _) => 2,
                _ => 1,
            };
            let arrays = vec![1; arrays * head.target_bytes()];
            let request = [&head.to_bytes()[..], &arrays].concat();
            all.push(seed(&format!("{form:?}_{operator:?}"), request));
        }
    }
    all
}
