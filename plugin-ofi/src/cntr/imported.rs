//! A counter of another provider, which counts operations of this one.
//!
//! The contract (fi_peer(3)):
//!
//! - The owner allocates the `fid_peer_cntr` and its operations. They exist for longer than the
//!   counter that is opened here. The context structure is read in that call alone.
//! - The owner reads this counter to drive this provider. In these calls alone, `inc` and `incerr`
//!   get an operation each, by one thread at a time. No lock of the domain is held meanwhile, so
//!   they may call this provider. A read within them does nothing.
//! - The owner has the values, wakes its waiters, and counts operations, not their bytes.

use std::ptr::NonNull;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_system::locks::Mutex;

use super::CntrObject;
use crate::abi::{
    Roomy, fi_ops_cntr, fi_ops_cntr_owner, fi_peer_cntr_context, fid_cntr, fid_peer_cntr,
};
use crate::fid::object_of;
use crate::guard::value;
use crate::memory::check_size;
use crate::unsupported::Unsupported;

/// The owner's counter.
pub(crate) struct ImportedCntr {
    owner: NonNull<fid_peer_cntr>,
    count: CountFn,
    count_error: CountFn,
    /// Operations that the owner has counted, and those that failed. The thread that passes counts
    /// on has it.
    passed: Mutex<[u64; 2]>,
}

type CountFn = unsafe extern "C" fn(*mut fid_peer_cntr);

// SAFETY: the owner's counter is for any thread (fi_peer(3): the owner sees to locks).
unsafe impl Send for ImportedCntr {}
// SAFETY: as above.
unsafe impl Sync for ImportedCntr {}

/// The operations of such a counter.
pub(crate) static OPS: Roomy<fi_ops_cntr> = Roomy::new(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(drive),
    readerr: Some(Unsupported::ENOSYS),
    add: Some(Unsupported::ENOSYS),
    set: Some(Unsupported::ENOSYS),
    wait: Some(Unsupported::ENOSYS),
    adderr: Some(Unsupported::ENOSYS),
    seterr: Some(Unsupported::ENOSYS),
});

impl ImportedCntr {
    /// The counter that a context names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context is too short, or has no counter with both operations.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it.
    pub(crate) unsafe fn of(context: *const fi_peer_cntr_context) -> Result<Self, Errno> {
        // SAFETY: as the caller says.
        unsafe {
            check_size(context)?;
            let owner = NonNull::new((*context).cntr).ok_or(Errno::EINVAL)?;
            let ops: *const fi_ops_cntr_owner = owner.as_ref().owner_ops;
            check_size(ops)?;
            Ok(Self {
                owner,
                count: (*ops).inc.ok_or(Errno::EINVAL)?,
                count_error: (*ops).incerr.ok_or(Errno::EINVAL)?,
                passed: Mutex::default(),
            })
        }
    }

    /// Drives the domain of a counter, and passes on what it has counted.
    fn drive(&self, counter: &CntrObject) -> Result<(), OpError> {
        // Another thread does it, or the owner reads in one of the calls below.
        let Some(mut passed) = self.passed.try_lock() else {
            return Ok(());
        };
        let cntr = &counter.cntr;
        let mut now = [cntr.read()?, cntr.read_errors()?];
        let mut announced = counter.receives.announce();
        while let Ok(true) = announced {
            now = [cntr.read()?, cntr.read_errors()?];
            announced = counter.receives.announce();
        }
        let calls = [self.count, self.count_error];
        for ((passed, now), call) in passed.iter_mut().zip(now).zip(calls) {
            while *passed != now {
                *passed += 1;
                // SAFETY: the owner's counter is open for as long as this one.
                unsafe { call(self.owner.as_ptr()) };
            }
        }
        announced.map(|_| ())
    }
}

/// `fi_cntr_read`: the value is the owner's.
unsafe extern "C" fn drive(cntr: *mut fid_cntr) -> u64 {
    value(0, || {
        // SAFETY: as C calls us.
        let counter = unsafe { object_of::<CntrObject>(cntr) };
        if let Some(imported) = &counter.imported {
            // A later call passes on the counts that can not be read now.
            let _ = imported.drive(counter);
        }
        0
    })
}
