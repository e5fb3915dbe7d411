//! The tables of an endpoint that is bound to objects of other providers.

use super::{atomics, rma, transfer};
use crate::abi::fid_ep;

/// Gives an endpoint the tables for the objects of other providers that it is bound to: without
/// receives if `leaves_receives`, with the owner's addresses if `imports_addrs`.
///
/// # Safety
///
/// `ep` is an endpoint of ours that is not closed, and on which no operation is called meanwhile.
pub(super) unsafe fn choose_tables(ep: *mut fid_ep, leaves_receives: bool, imports_addrs: bool) {
    let (msg, tagged) = match (imports_addrs, leaves_receives) {
        (false, false) => return,
        (false, true) => (&transfer::MSG_SENDS, &transfer::TAGGED_SENDS),
        (true, false) => (&transfer::OWNERS_MSG, &transfer::OWNERS_TAGGED),
        (true, true) => (&transfer::OWNERS_MSG_SENDS, &transfer::OWNERS_TAGGED_SENDS),
    };
    // SAFETY: as the caller says.
    unsafe {
        (*ep).msg = msg.as_ptr();
        (*ep).tagged = tagged.as_ptr();
        if imports_addrs {
            // Only of an endpoint that has such operations.
            if std::ptr::eq((*ep).rma, rma::RMA.as_ptr()) {
                (*ep).rma = rma::OWNERS_RMA.as_ptr();
                (*ep).atomic = atomics::OWNERS_ATOMIC.as_ptr();
            }
        }
    }
}
