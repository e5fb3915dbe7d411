//! The calls that send: a message, or a part of a one-sided operation.

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Transport;
use ferrofabric_contracts::types::{FiAddr, IoBuf, SendOp};

use super::{Backend, DomainState, Inner};

/// The send without `MORE`, for a transport that sleeps until it is woken: requests that a device
/// holds back would wake no thread.
#[cold]
fn without_more(op: &SendOp) -> SendOp {
    SendOp {
        flags: op.flags - Flags::MORE,
        ..*op
    }
}

/// Sends a message within the endpoint's limits. If the call fails, requests that earlier sends
/// held back for it go out all the same.
///
/// # Safety
///
/// As [`Endpoint::send`].
#[inline(always)]
pub(super) unsafe fn send_checked<B: Backend>(
    domain: &Inner<B>,
    index: usize,
    op: &SendOp,
    iov: &[IoBuf],
) -> Result<(), OpError> {
    // SAFETY: the caller's contract.
    unsafe { send_locked(domain, &mut *domain.lock()?, index, op, iov) }
}

/// As [`send_checked`], by a caller that has the lock of the domain.
///
/// # Safety
///
/// As [`Endpoint::send`].
#[inline(always)]
pub(super) unsafe fn send_locked<B: Backend>(
    domain: &Inner<B>,
    state: &mut DomainState<B::Transport>,
    index: usize,
    op: &SendOp,
    iov: &[IoBuf],
) -> Result<(), OpError> {
    state.follow_changes();
    let last;
    let mut op = op;
    if op.flags.intersects(Flags::MORE.union(Flags::FENCE)) {
        last = fenced_or_held_back(state, index, op)?;
        op = &last;
    }
    if state.waiting_sends != 0 {
        // SAFETY: the caller's contract.
        match unsafe { domain.queue_behind(state, index, op, iov) } {
            Ok(false) => {}
            waits => {
                flush(state, index);
                domain.wake(state);
                return waits.map(drop);
            }
        }
    }
    let (transport, mut owner) =
        state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    // SAFETY: the caller's contract.
    if let Err(error) = unsafe { transport.send(op, iov, &mut owner) } {
        // SAFETY: the caller's contract.
        return unsafe { domain.send_to_unresolved(error, state, index, op, iov) };
    }
    owner.start_deferred(transport);
    domain.wake(state);
    Ok(())
}

/// A send with `FI_FENCE` or `FI_MORE`, as the transport gets it.
#[cold]
fn fenced_or_held_back<T: Transport>(
    state: &mut DomainState<T>,
    index: usize,
    op: &SendOp,
) -> Result<SendOp, OpError> {
    let is_message = !op.kind.is_part();
    if is_message && op.flags.contains(Flags::FENCE) {
        wait_for_remote(state, index, op.dest)?;
    }
    match op.flags.contains(Flags::MORE) && state.is_watched() {
        true => Ok(without_more(op)),
        false => Ok(*op),
    }
}

/// Lets a fenced operation wait for the one-sided operations before it. The transport waits for
/// messages alone, and these operations may wait for an answer still.
///
/// # Errors
///
/// `Again`: some are not over.
#[cold]
pub(super) fn wait_for_remote<T: Transport>(
    state: &mut DomainState<T>,
    index: usize,
    peer: FiAddr,
) -> Result<(), OpError> {
    let (_, owner) = state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    let remote = &owner.srx.remote;
    if !remote.is_busy_with(peer)
        && !owner
            .first_of(peer)
            .is_some_and(|at| remote.is_busy_with(at))
    {
        return Ok(());
    }
    flush(state, index);
    Err(OpError::Again)
}

/// Sends the requests that earlier sends held back (fi_msg(3), `FI_MORE`), because the next send
/// does not reach the transport.
#[cold]
pub(super) fn flush<T: Transport>(state: &mut DomainState<T>, index: usize) {
    let (transport, mut owner) =
        state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    transport.flush(&mut owner);
    owner.start_deferred(transport);
}

/// Refuses a send. Requests that earlier sends held back for it go out (fi_msg(3), `FI_MORE`).
#[cold]
pub(super) fn refuse<B: Backend>(
    domain: &Inner<B>,
    index: usize,
    error: OpError,
) -> Result<(), OpError> {
    let mut guard = domain.lock()?;
    flush(&mut guard, index);
    domain.wake(&mut guard);
    Err(error)
}
