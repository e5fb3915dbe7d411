//! How operations keep an order (`docs/adr/0065`): one waits until those are over that it must come
//! after, or where a device keeps the order by itself, goes the same way.

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Transport;
use ferrofabric_contracts::types::FiAddr;

use crate::domain::send_calls::{flush, wait_for_remote};
use crate::domain::{Backend, DomainState, Inner};
use crate::rma::orders::Effects;
use crate::rma::plan::{Behind, Operation, Route, Way, plan};

/// What the operations before one leave open, once it need not wait for any of them.
///
/// # Errors
///
/// `Again`: some are not over.
#[cold]
pub(in crate::domain) fn in_order<T: Transport>(
    state: &mut DomainState<T>,
    index: usize,
    effects: Effects,
    peer: FiAddr,
) -> Result<Behind, OpError> {
    let (_, owner) = state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    let peers = (peer, owner.first_of(peer));
    if let Some(behind) = owner.srx.remote.behind_of(effects, peers) {
        return Ok(behind);
    }
    flush(state, index);
    Err(OpError::Again)
}

/// What the operations before one on a peer's memory leave open, after those that it must not
/// overtake. `effects` and `flags` are its own.
///
/// # Errors
///
/// `Again`: some are not over.
#[inline]
pub(super) fn behind_of<B: Backend>(
    domain: &Inner<B>,
    state: &mut DomainState<B::Transport>,
    index: usize,
    (effects, flags): (Effects, Flags),
    peer: FiAddr,
) -> Result<Behind, OpError> {
    let is_fenced = flags.contains(Flags::FENCE);
    let behind = match (is_fenced, state.endpoints[index].srx.remote.orders.is_any()) {
        (true, _) => wait_for_remote(state, index, peer).map(|()| Behind::Messages),
        (false, true) => in_order(state, index, effects, peer),
        (false, false) => return Ok(Behind::Nothing),
    };
    if behind.is_err() {
        domain.wake(state);
    }
    behind
}

/// The way of an operation, as far as the route to its target is known.
///
/// # Errors
///
/// `Again`: an order leaves only the device, which does not carry the operation out now.
#[inline]
pub(super) fn way_of<B: Backend>(
    domain: &Inner<B>,
    state: &mut DomainState<B::Transport>,
    index: usize,
    (operation, behind): (Operation, Behind),
    route: Route,
) -> Result<Way, OpError> {
    match plan(operation, behind, route).way() {
        Way::Again => {
            flush(state, index);
            domain.wake(state);
            Err(OpError::Again)
        }
        way => Ok(way),
    }
}
