//! The functions that an owner calls: a queued message has got a receive, is to be dropped, or its
//! source is wanted.

use std::ffi::c_int;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::{FiAddr, MsgKind};

use super::entries::{self, EntryState};
use super::owner::RxEntry;
use crate::abi::{Roomy, fi_addr_t, fi_ops_srx_peer, fi_peer_rx_entry};
use crate::fi_addr::returned;
use crate::guard::{Refused, control, value};

pub(super) static OPS: Roomy<fi_ops_srx_peer> = Roomy::new(fi_ops_srx_peer {
    size: size_of::<fi_ops_srx_peer>(),
    start_msg: Some(start_msg),
    start_tag: Some(start_tag),
    discard_msg: Some(discard_msg),
    discard_tag: Some(discard_tag),
});

unsafe extern "C" fn start_msg(entry: *mut fi_peer_rx_entry) -> c_int {
    // SAFETY: as the owner calls us.
    unsafe { leave(entry, MsgKind::Msg, EntryState::Started) }
}

unsafe extern "C" fn start_tag(entry: *mut fi_peer_rx_entry) -> c_int {
    // SAFETY: as above.
    unsafe { leave(entry, MsgKind::Tagged, EntryState::Started) }
}

unsafe extern "C" fn discard_msg(entry: *mut fi_peer_rx_entry) -> c_int {
    // SAFETY: as above.
    unsafe { leave(entry, MsgKind::Msg, EntryState::Discarded) }
}

unsafe extern "C" fn discard_tag(entry: *mut fi_peer_rx_entry) -> c_int {
    // SAFETY: as above.
    unsafe { leave(entry, MsgKind::Tagged, EntryState::Discarded) }
}

/// An entry has left its owner's queue.
///
/// # Safety
///
/// `entry` is NULL, or one that its owner has not freed.
unsafe fn leave(entry: *mut fi_peer_rx_entry, kind: MsgKind, state: EntryState) -> c_int {
    control(|| {
        let entry = RxEntry::of(entry).ok_or(Errno::EINVAL)?;
        // SAFETY: as the caller says.
        let number = unsafe { entry.number() };
        let left = entries::leave_queue(number, entry, kind, state);
        let holder = left.map_err(|errno| {
            Error::new(errno, "start or discard", "a receive entry")
                .mend("pass one that this provider has queued, once, while its endpoint is open")
        })?;
        match state {
            EntryState::Discarded => holder.discard(kind, number),
            _ => holder.start(kind, number, entry),
        }
        Ok::<_, Refused>(())
    })
}

/// The source of the message of an entry; `FI_ADDR_UNSPEC` where it is unknown.
pub(super) unsafe extern "C" fn source_of(entry: *mut fi_peer_rx_entry) -> fi_addr_t {
    value(returned(FiAddr::UNSPEC), || {
        let Some(entry) = RxEntry::of(entry) else {
            return returned(FiAddr::UNSPEC);
        };
        // SAFETY: as the owner calls us: an entry of its queue.
        let number = unsafe { entry.number() };
        let source = entries::held(number)
            .filter(|held| held.entry == entry)
            .and_then(|held| held.holder.upgrade()?.source_of(held.kind, number));
        returned(source.unwrap_or(FiAddr::NOTAVAIL))
    })
}
