//! The initiator's side: an operation is checked, and becomes a request.

use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicHead, AtomicOp, AtomicOperator,
};
use ferrofabric_contracts::buffers::gather;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::part::Part;
use ferrofabric_contracts::types::{IoBuf, MrDesc, RmaOp, SendOp, total_len};

use super::mapped_atomic_calls::took_mapping;
use super::ordered_calls::{behind_of, way_of};
use crate::domain::send_calls::{flush, send_locked};
use crate::domain::{Backend, Inner};
use crate::rma::operations::{RemoteOperations, message_of, place_of};
use crate::rma::orders::Effects;
use crate::rma::plan::{Operation, Route, Way};

/// The buffers of an operation that count: `Read` has no operands (fi_atomic(3)).
pub(in crate::domain) fn used_buffers<'a>(
    op: &AtomicOp,
    buffers: &AtomicBuffers<'a>,
) -> AtomicBuffers<'a> {
    match op.operator {
        AtomicOperator::Read => AtomicBuffers {
            operands: &[],
            ..*buffers
        },
        _ => *buffers,
    }
}

/// Checks an operation with its buffers.
///
/// # Errors
///
/// As of [`Endpoint::atomic`](crate::fabric::Endpoint::atomic).
pub(in crate::domain) fn check(op: &AtomicOp, buffers: &AtomicBuffers<'_>) -> Result<(), OpError> {
    let refuse = |errno| Err(OpError::Failed(errno));
    if !op.form.has(op.operator, op.datatype) || op.flags.contains(Flags::TAGGED) {
        return refuse(Errno::EOPNOTSUPP);
    }
    let target = target_bytes(op, buffers);
    let fits = |list, has: bool| total_len(list) == if has { target } else { 0 };
    let all_fit = fits(buffers.operands, op.operator != AtomicOperator::Read)
        && fits(buffers.compares, op.form == AtomicForm::Compare)
        && fits(buffers.results, op.form != AtomicForm::Base);
    let size = op.datatype.size();
    if target / size > op.datatype.max_count() {
        return refuse(Errno::EMSGSIZE);
    }
    let has_data = op.flags.contains(Flags::REMOTE_CQ_DATA);
    match target == 0 || target % size != 0 || !all_fit || has_data {
        true => refuse(Errno::EINVAL),
        false => Ok(()),
    }
}

/// Bytes of the target's memory.
fn target_bytes(op: &AtomicOp, buffers: &AtomicBuffers<'_>) -> usize {
    match op.operator {
        AtomicOperator::Read => total_len(buffers.results),
        _ => total_len(buffers.operands),
    }
}

/// Begins an operation that was checked.
///
/// # Safety
///
/// As [`Endpoint::atomic`](crate::fabric::Endpoint::atomic).
pub(in crate::domain) unsafe fn begin<B: Backend>(
    domain: &Inner<B>,
    index: usize,
    op: &AtomicOp,
    buffers: &AtomicBuffers<'_>,
) -> Result<(), OpError> {
    let state = &mut *domain.lock()?;
    state.follow_changes();
    let operation = Operation::atomic(op.datatype);
    let effects = Effects::of(op.form.kind(), Flags::ATOMIC);
    let behind = behind_of(domain, state, index, (effects, op.flags), op.dest)?;
    let asked = (operation, behind);
    if way_of(domain, state, index, asked, Route::Unknown)? == Way::LookUp {
        // SAFETY: the caller's contract.
        if unsafe {
            took_mapping(
                domain,
                state,
                index,
                op,
                (buffers, target_bytes(op, buffers)),
            )
        }? {
            return Ok(());
        }
        way_of(domain, state, index, asked, Route::Declined)?;
    }
    let remote = &mut state.endpoints[index].srx.remote;
    // SAFETY: the caller's contract.
    let (part, request) = match unsafe { remote.begin_atomic(op, buffers) } {
        Ok(begun) => begun,
        Err(error) => {
            flush(state, index);
            return Err(error);
        }
    };
    let from = [IoBuf::new(request.as_ptr(), request.len())];
    // SAFETY: the request is copied (`INJECT`).
    let sent = unsafe { send_locked(domain, state, index, &part, &from) };
    let remote = &mut state.endpoints[index].srx.remote;
    match sent {
        Ok(()) => remote.set_requested(part.context),
        Err(_) => remote.forget(part.kind, part.context),
    }
    sent
}

impl RemoteOperations {
    /// Enters an operation. Returns the message that requests it, and its bytes.
    ///
    /// # Safety
    ///
    /// As [`begin`].
    ///
    /// # Errors
    ///
    /// `Again`: as many reads and atomic operations as there may be are under way.
    unsafe fn begin_atomic(
        &mut self,
        op: &AtomicOp,
        buffers: &AtomicBuffers<'_>,
    ) -> Result<(SendOp, Vec<u8>), OpError> {
        let target_bytes = target_bytes(op, buffers);
        let awaited = RmaOp {
            kind: op.form.kind(),
            dest: op.dest,
            key: op.key,
            place: op.place,
            data: 0,
            desc: op.desc,
            context: op.context,
            flags: op.flags | Flags::ATOMIC,
        };
        let number = self.enter_read(&awaited, buffers.results, target_bytes)?;
        let head = AtomicHead {
            number,
            form: op.form,
            operator: op.operator,
            datatype: op.datatype,
            count: (target_bytes / op.datatype.size()) as u32,
        };
        let (operands, compares) = (total_len(buffers.operands), total_len(buffers.compares));
        let mut request = vec![0; AtomicHead::BYTES + operands + compares];
        request[..AtomicHead::BYTES].copy_from_slice(&head.to_bytes());
        let arrays = request[AtomicHead::BYTES..].as_mut_ptr();
        // SAFETY: the request has room for both, and the caller's buffers are valid for reads.
        unsafe {
            gather(buffers.operands, 0, operands, arrays);
            gather(buffers.compares, 0, compares, arrays.add(operands));
        }
        let flags = (op.flags & (Flags::MORE | Flags::FENCE)) | Flags::INJECT;
        let part = SendOp {
            // That of the operation is of the memory for the results.
            desc: MrDesc::NONE,
            ..message_of(&awaited, Part::Atomic(place_of(&awaited)), number, flags)
        };
        Ok((part, request))
    }
}
