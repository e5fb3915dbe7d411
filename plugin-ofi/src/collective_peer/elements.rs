//! Operations, and the elements that they have.

use ferrofabric_contracts::atomics::{AtomicForm, AtomicOperator, Datatype};
use ferrofabric_contracts::error::Errno;

use crate::abi::{fi_collective_attr, fi_collective_op, fi_datatype, fi_op};
use crate::datatypes::size_of_element;

/// Bytes of an operation at most, of all members: they are copied.
pub(super) const MAX_BYTES: usize = 1 << 30;

/// The number of members that a group may have.
const MAX_MEMBERS: usize = i32::MAX as usize;

/// The type and the operator of a reduction. The order of the members does not change its result.
///
/// # Errors
///
/// `EOPNOTSUPP`: there is no such reduction.
pub(super) fn reduction(
    datatype: fi_datatype,
    operator: fi_op,
) -> Result<(Datatype, AtomicOperator), Errno> {
    let found = || {
        let datatype = Datatype::from_number(u8::try_from(datatype.0).ok()?)?;
        let operator = AtomicOperator::from_number(u8::try_from(operator.0).ok()?)?;
        let reduces = operator as u8 <= AtomicOperator::Bxor as u8;
        let is_there = reduces && AtomicForm::Base.has(operator, datatype);
        is_there.then_some((datatype, operator))
    };
    found().ok_or(Errno::EOPNOTSUPP)
}

/// Fills in what an operation has.
///
/// # Errors
///
/// `EOPNOTSUPP`: there is no such operation, type or reduction.
pub(super) fn describe(coll: fi_collective_op, attr: &mut fi_collective_attr) -> Result<(), Errno> {
    let bytes = match coll {
        fi_collective_op::FI_BARRIER => None,
        fi_collective_op::FI_ALLREDUCE => Some(reduction(attr.datatype, attr.op)?.0.size()),
        fi_collective_op::FI_BROADCAST
        | fi_collective_op::FI_ALLGATHER
        | fi_collective_op::FI_SCATTER => {
            Some(size_of_element(attr.datatype).ok_or(Errno::EOPNOTSUPP)?)
        }
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if let Some(bytes) = bytes {
        attr.datatype_attr.size = bytes;
        attr.datatype_attr.count = MAX_BYTES / bytes;
    }
    attr.max_members = MAX_MEMBERS;
    attr.mode = 0;
    Ok(())
}
