//! How an endpoint begins a read or a write.

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::types::{IoBuf, RmaKind, RmaOp};

use super::ordered_calls::{behind_of, way_of};
use super::shortcut_calls::took_shortcut;
use crate::domain::send_calls::{flush, send_locked};
use crate::domain::{Backend, Inner};
use crate::rma::orders::effects_of;
use crate::rma::plan::{Operation, Route, Way};

/// Begins an operation whose limits were checked.
///
/// # Safety
///
/// As [`Endpoint::rma`](crate::fabric::Endpoint::rma).
///
/// # Errors
///
/// As there.
pub(in crate::domain) unsafe fn begin<B: Backend>(
    domain: &Inner<B>,
    index: usize,
    op: &RmaOp,
    iov: &[IoBuf],
) -> Result<(), OpError> {
    let state = &mut *domain.lock()?;
    state.follow_changes();
    let (operation, effects) = (Operation::of(op), effects_of(op));
    let behind = behind_of(domain, state, index, (effects, op.flags), op.dest)?;
    let asked = (operation, behind);
    if way_of(domain, state, index, asked, Route::Unknown)? == Way::LookUp {
        // SAFETY: the caller keeps the buffers until the operation completes.
        if unsafe { took_shortcut(domain, state, index, op, iov) }? {
            return Ok(());
        }
        way_of(domain, state, index, asked, Route::Declined)?;
    }
    let remote = &mut state.endpoints[index].srx.remote;
    let begun = match op.kind {
        RmaKind::Write => Ok((remote.begin_write(op), None)),
        RmaKind::Read => (remote.begin_read(op, iov)).map(|(part, read)| (part, Some(read))),
    };
    let (part, request) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            flush(state, index);
            return Err(error);
        }
    };
    let from = request
        .as_ref()
        .map(|request| [IoBuf::new(request.as_ptr(), request.len())]);
    let from = from.as_ref().map_or(iov, |from| &from[..]);
    // SAFETY: the caller keeps the buffers of a write; a request is copied (`INJECT`).
    let sent = unsafe { send_locked(domain, state, index, &part, from) };
    let remote = &mut state.endpoints[index].srx.remote;
    match (&sent, op.kind) {
        (Ok(()), RmaKind::Read) => remote.set_requested(part.context),
        (Ok(()), RmaKind::Write) => {}
        (Err(_), _) => remote.forget(part.kind, part.context),
    }
    sent
}
