//! A domain of another provider, at which memory is registered that is registered here.
//!
//! The contract (fi_peer(3)):
//!
//! - The owner's `fid_domain` is imported as it is. Its `regv` is looked up when the domain is
//!   opened, and exists for longer than the regions. The context structure is read in that call
//!   alone.
//! - Each region is registered at the owner, too, with its rights and requested key, and closed
//!   there after it is closed here. A region that the owner refuses is refused with the same error.
//! - A registration within the owner's function registers memory of that owner's peers here alone,
//!   so an owner that passes registrations on to its peers gets no second one. No lock is held
//!   meanwhile.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use ferrofabric_contracts::error::Errno;
use ferrofabric_system::cancel::Uncancelled;
use libc::iovec;

use crate::abi::{fi_ops_mr, fi_peer_domain_context, fid, fid_domain, fid_mr};
use crate::memory::check_size;

/// The owner's domain.
pub(crate) struct ImportedDomain {
    owner: NonNull<fid_domain>,
    register: RegisterFn,
}

type RegisterFn = unsafe extern "C" fn(
    *mut fid,
    *const iovec,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut fid_mr,
    *mut c_void,
) -> c_int;

// SAFETY: the owner's domain is for any thread that may use this one.
unsafe impl Send for ImportedDomain {}
// SAFETY: as above.
unsafe impl Sync for ImportedDomain {}

thread_local! {
    /// The owners in whose functions the thread is.
    static WITHIN: RefCell<Vec<NonNull<fid_domain>>> = const { RefCell::new(Vec::new()) };
}

/// A call of an owner's function by this thread.
struct OwnersCall(NonNull<fid_domain>);

impl OwnersCall {
    /// `None`: the thread is within that function already, or ends.
    fn begin(owner: NonNull<fid_domain>) -> Option<Self> {
        let begun = WITHIN.try_with(|within| {
            let mut within = within.borrow_mut();
            let is_first = !within.contains(&owner);
            if is_first {
                within.push(owner);
            }
            is_first
        });
        (begun == Ok(true)).then_some(Self(owner))
    }
}

impl Drop for OwnersCall {
    fn drop(&mut self) {
        let _ = WITHIN.try_with(|within| within.borrow_mut().retain(|&owner| owner != self.0));
    }
}

impl ImportedDomain {
    /// The domain that a context names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context is too short, or has no domain that registers memory.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it.
    pub(crate) unsafe fn of(context: *const fi_peer_domain_context) -> Result<Self, Errno> {
        // SAFETY: as the caller says.
        unsafe {
            check_size(context)?;
            let owner = NonNull::new((*context).domain).ok_or(Errno::EINVAL)?;
            let ops: *const fi_ops_mr = owner.as_ref().mr;
            check_size(ops)?;
            let register = (*ops).regv.ok_or(Errno::EINVAL)?;
            Ok(Self { owner, register })
        }
    }

    /// Registers memory at the owner; `None` in a call of the owner's own registration.
    ///
    /// # Errors
    ///
    /// The owner's; `EINVAL` where its answer is none.
    ///
    /// # Safety
    ///
    /// The list has that many entries; the memory stays until the region is dropped.
    pub(crate) unsafe fn register(
        &self,
        iov: *const iovec,
        count: usize,
        access: u64,
        key: u64,
    ) -> Result<Option<OwnersRegion>, Errno> {
        let Some(_call) = OwnersCall::begin(self.owner) else {
            return Ok(None);
        };
        let mut region = null_mut();
        let result = {
            let _uncancelled = Uncancelled::begin();
            let owner = self.owner.as_ptr().cast();
            // SAFETY: the owner's domain is open for as long as this one; the rest as the caller
            // says.
            unsafe {
                (self.register)(
                    owner,
                    iov,
                    count,
                    access,
                    0,
                    key,
                    0,
                    &raw mut region,
                    null_mut(),
                )
            }
        };
        match (result, NonNull::new(region)) {
            (0, Some(region)) => Ok(Some(OwnersRegion(region))),
            (-4095..0, _) => Err(Errno(-result)),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// A region of the owner's, which is closed when this is dropped.
pub(crate) struct OwnersRegion(NonNull<fid_mr>);

// SAFETY: as of the domain.
unsafe impl Send for OwnersRegion {}
// SAFETY: as above.
unsafe impl Sync for OwnersRegion {}

impl Drop for OwnersRegion {
    fn drop(&mut self) {
        let _uncancelled = Uncancelled::begin();
        let fid: *mut fid = self.0.as_ptr().cast();
        // SAFETY: the region is open, and nobody else closes it.
        let closed = unsafe { (*fid).ops.as_ref().and_then(|ops| ops.close) };
        // SAFETY: as above.
        let result = closed.map(|close| unsafe { close(fid) });
        if result != Some(0) {
            tracing::warn!("a region of the owner does not close: {result:?}");
        }
    }
}
