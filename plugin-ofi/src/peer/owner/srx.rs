//! The owner's functions of a shared receive context, which C calls.

use std::ffi::c_int;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::MsgKind;

use super::late::{arrive_late, drain_calls, free_late, queue_late, resolve_late};
use super::mailbox::SourceFn;
use super::queued::resolve_by;
use super::receives::{arrive, free, queue};
use super::scope::with_owner;
use crate::abi::{Roomy, fi_ops_srx_owner, fi_peer_match_attr, fi_peer_rx_entry, fid_peer_srx};
use crate::guard::value;

pub(super) static OPS: Roomy<fi_ops_srx_owner> = Roomy::new(fi_ops_srx_owner {
    size: size_of::<fi_ops_srx_owner>(),
    get_msg: Some(get_msg),
    get_tag: Some(get_tag),
    queue_msg: Some(queue_msg),
    queue_tag: Some(queue_tag),
    foreach_unspec_addr: Some(foreach_unspec_addr),
    free_entry: Some(free_entry),
});

unsafe extern "C" fn get_msg(
    srx: *mut fid_peer_srx,
    attr: *mut fi_peer_match_attr,
    entry: *mut *mut fi_peer_rx_entry,
) -> c_int {
    // SAFETY: as C calls us.
    unsafe { get(MsgKind::Msg, srx, attr, entry) }
}

unsafe extern "C" fn get_tag(
    srx: *mut fid_peer_srx,
    attr: *mut fi_peer_match_attr,
    entry: *mut *mut fi_peer_rx_entry,
) -> c_int {
    // SAFETY: as above.
    unsafe { get(MsgKind::Tagged, srx, attr, entry) }
}

/// # Safety
///
/// Each pointer is there or NULL. `srx` may be a copy of ours.
#[inline(always)]
unsafe fn get(
    kind: MsgKind,
    srx: *mut fid_peer_srx,
    attr: *mut fi_peer_match_attr,
    entry: *mut *mut fi_peer_rx_entry,
) -> c_int {
    value(-Errno::EIO.0, || {
        if srx.is_null() || attr.is_null() || entry.is_null() {
            return -Errno::EINVAL.0;
        }
        // SAFETY: as the caller says.
        let (context, attr) = unsafe { ((*srx).ep_fid.fid.context, *attr) };
        let found = with_owner(
            |block| (block.address() == context).then_some(()),
            |block, owner, ()| {
                if block.mailbox.has_calls() {
                    // Earlier messages match first.
                    drain_calls(block, owner);
                }
                arrive(block, owner, kind, &attr)
            },
        );
        let (code, found) = found.unwrap_or_else(|| arrive_late(context, kind, &attr));
        // SAFETY: as the caller says.
        unsafe { entry.write(found) };
        code
    })
}

unsafe extern "C" fn queue_msg(entry: *mut fi_peer_rx_entry) -> c_int {
    queue_entry(entry, MsgKind::Msg)
}

unsafe extern "C" fn queue_tag(entry: *mut fi_peer_rx_entry) -> c_int {
    queue_entry(entry, MsgKind::Tagged)
}

fn queue_entry(entry: *mut fi_peer_rx_entry, kind: MsgKind) -> c_int {
    value(-Errno::EIO.0, || {
        with_owner(
            |block| block.chunks.of(entry),
            |block, owner, slot| queue(block, owner, slot, kind),
        )
        .unwrap_or_else(|| queue_late(entry, kind))
    })
}

unsafe extern "C" fn free_entry(entry: *mut fi_peer_rx_entry) {
    value((), || {
        with_owner(
            |block| block.chunks.of(entry),
            |block, owner, slot| {
                free(block, owner, slot);
            },
        )
        .unwrap_or_else(|| free_late(entry));
    });
}

unsafe extern "C" fn foreach_unspec_addr(srx: *mut fid_peer_srx, source: Option<SourceFn>) {
    value((), || {
        let Some(source) = source.filter(|_| !srx.is_null()) else {
            return;
        };
        // SAFETY: as C calls us.
        let context = unsafe { (*srx).ep_fid.fid.context };
        with_owner(
            |block| (block.address() == context).then_some(()),
            |block, owner, ()| resolve_by(block, owner, source),
        )
        .unwrap_or_else(|| resolve_late(context, source));
    });
}
