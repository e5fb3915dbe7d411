//! A set of addresses of another provider (fi_av_set(3)), whose members are looked up where they
//! are used.
//!
//! The contract (fi_peer(3)):
//!
//! - The owner allocates the `fid_peer_av_set` and its operations. They exist for longer than the
//!   set that is opened here. The context structure is read in that call alone.
//! - `members` is called in joins by the set, and in calls that combine it with another one. No
//!   lock is held meanwhile. Its addresses are those of the address vector that the set was opened
//!   on.
//! - A set of the owner is changed by the owner alone.

use std::ptr::NonNull;

use ferrofabric_contracts::error::Errno;

use crate::abi::{
    FI_ETOOSMALL, fi_addr_t, fi_ops_av_set_owner, fi_peer_av_set_context, fid_peer_av_set,
};
use crate::memory::check_size;

/// The flag of `fi_av_set` for such a set. The manual calls it `FI_PEER_AV`, which has no number in
/// libfabric's headers; `FI_PEER` has that of `FI_ALLREDUCE_SET`.
pub(crate) const PEER_AV: u64 = 1 << 62;

/// Members for which there is room in the first call.
const FEW: usize = 16;

/// Calls for a set that grows meanwhile.
const CALLS: usize = 8;

/// The owner's set.
pub(crate) struct ImportedSet {
    owner: NonNull<fid_peer_av_set>,
    members: MembersFn,
}

type MembersFn = unsafe extern "C" fn(*mut fid_peer_av_set, *mut fi_addr_t, *mut usize) -> i32;

// SAFETY: the owner's set is for any thread (fi_peer(3): the owner sees to locks).
unsafe impl Send for ImportedSet {}
// SAFETY: as above.
unsafe impl Sync for ImportedSet {}

impl ImportedSet {
    /// The set that a context names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context is too short, or has no set with its operation.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it.
    pub(super) unsafe fn of(context: *const fi_peer_av_set_context) -> Result<Self, Errno> {
        // SAFETY: as the caller says. The headers have no definition of the pointer's type.
        unsafe {
            check_size(context)?;
            let owner = NonNull::new((*context).av_set.cast::<fid_peer_av_set>());
            let owner = owner.ok_or(Errno::EINVAL)?;
            let ops: *const fi_ops_av_set_owner = owner.as_ref().owner_ops;
            check_size(ops)?;
            let members = (*ops).members.ok_or(Errno::EINVAL)?;
            Ok(Self { owner, members })
        }
    }

    /// The members at this moment, `most` at most.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there are more, or the owner's answer is none. `EAGAIN`: the set does not stop to
    /// grow. The owner's.
    pub(super) fn members(&self, most: usize) -> Result<Vec<fi_addr_t>, Errno> {
        let mut addrs = vec![0; FEW];
        for _ in 0..CALLS {
            let (room, mut count) = (addrs.len(), addrs.len());
            // SAFETY: the owner's set is open for as long as this one; the room is as stated.
            let result =
                unsafe { (self.members)(self.owner.as_ptr(), addrs.as_mut_ptr(), &raw mut count) };
            match result.wrapping_neg() {
                0 if count <= room => {
                    addrs.truncate(count);
                    return Ok(addrs);
                }
                FI_ETOOSMALL if count > room && count <= most => addrs.resize(count, 0),
                error @ 1..4096 if error != FI_ETOOSMALL => return Err(Errno(error)),
                _ => return Err(Errno::EINVAL),
            }
        }
        Err(Errno::EAGAIN)
    }
}
