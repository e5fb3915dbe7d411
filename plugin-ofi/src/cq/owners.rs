//! The completion queue of another provider (fi_peer(3)), as its entries are written.

use std::ffi::c_void;
use std::ptr::NonNull;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_system::cancel::Uncancelled;

use crate::abi::{fi_addr_t, fi_cq_err_entry, fi_ops_cq_owner, fi_peer_cq_context, fid_peer_cq};
use crate::memory::check_size;

/// The owner's queue.
pub(crate) struct OwnersCq {
    owner: NonNull<fid_peer_cq>,
    write: WriteFn,
    write_error: WriteErrorFn,
}

type WriteFn = unsafe extern "C" fn(
    *mut fid_peer_cq,
    *mut c_void,
    u64,
    usize,
    *mut c_void,
    u64,
    u64,
    fi_addr_t,
) -> isize;
type WriteErrorFn = unsafe extern "C" fn(*mut fid_peer_cq, *const fi_cq_err_entry) -> isize;

// SAFETY: the owner's queue is for any thread (fi_peer(3): the owner sees to locks).
unsafe impl Send for OwnersCq {}
// SAFETY: as above.
unsafe impl Sync for OwnersCq {}

impl OwnersCq {
    /// The queue that a context names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context is too short, or has no queue with both operations.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it. The queue is open for as long as the
    /// result is used.
    pub(crate) unsafe fn of(context: *const fi_peer_cq_context) -> Result<Self, Errno> {
        // SAFETY: as the caller says.
        unsafe {
            check_size(context)?;
            let owner = NonNull::new((*context).cq).ok_or(Errno::EINVAL)?;
            let ops: *const fi_ops_cq_owner = owner.as_ref().owner_ops;
            check_size(ops)?;
            Ok(Self {
                owner,
                write: (*ops).write.ok_or(Errno::EINVAL)?,
                write_error: (*ops).writeerr.ok_or(Errno::EINVAL)?,
            })
        }
    }

    /// Writes a completion. Returns whether the owner has taken it.
    pub(crate) fn write(&self, done: &Completion) -> bool {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the owner's queue is open.
        let written = unsafe {
            (self.write)(
                self.owner.as_ptr(),
                done.context as usize as *mut c_void,
                done.flags.bits(),
                done.len,
                done.buf as *mut c_void,
                done.data,
                done.tag,
                done.src.0,
            )
        };
        written >= 0
    }

    /// Writes an error. Returns whether the owner has taken it.
    pub(crate) fn write_error(&self, entry: &fi_cq_err_entry) -> bool {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the owner's queue is open; the entry is whole.
        let written = unsafe { (self.write_error)(self.owner.as_ptr(), entry) };
        written >= 0
    }
}
