//! Counters (fi_cntr(3)).

mod imported;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_runtime::fabric::{Cntr, CntrAttr, CntrEvents, DomainWait};

use crate::abi::{
    FI_CLASS_CNTR, FI_PEER, Roomy, fi_cntr_attr, fi_cntr_events, fi_ops, fi_ops_cntr, fid, fid_cntr,
};
use crate::cancel::{self, Looked, Waiter, unwinding};
use crate::domain::DomainObject;
use crate::fid::{Object, SharedObject, object_of};
use crate::guard::{Refused, control, data, value};
use crate::srx::{BoundReceives, ForeignReceives};
use crate::wait::{self, WaitObject, Waitable, timeout};
use imported::ImportedCntr;

/// A counter.
pub(crate) struct CntrObject {
    pub(crate) cntr: Arc<dyn Cntr>,
    wait: WaitObject,
    /// The counter of another provider that counts.
    pub(crate) imported: Option<ImportedCntr>,
    /// Messages that are announced when the owner reads.
    receives: BoundReceives,
    _domain: SharedObject<DomainObject>,
}

// SAFETY: `fid_cntr` starts with the `fid`.
unsafe impl Object for CntrObject {
    type Raw = fid_cntr;
    const CLASS: usize = FI_CLASS_CNTR;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_cntr {
        let ops = match self.imported {
            Some(_) => imported::OPS.as_ptr(),
            None => OPS.as_ptr(),
        };
        fid_cntr { fid, ops }
    }
}

static FID_OPS: fi_ops = wait::ops_of::<CntrObject>();

impl Waitable for CntrObject {
    fn wait_object(&self) -> WaitObject {
        self.wait
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>, Refused> {
        Ok(self.cntr.wait_fd()?)
    }

    fn try_wait(&self) -> Result<(), OpError> {
        self.cntr.try_wait()
    }
}

static OPS: Roomy<fi_ops_cntr> = Roomy::new(fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(read_errors),
    add: Some(add),
    set: Some(set),
    wait: Some(unwinding!(
        wait_for as fn(*mut fid_cntr, u64, c_int) -> c_int
    )),
    adderr: Some(add_errors),
    seterr: Some(set_errors),
});

impl CntrObject {
    /// Opens a counter. `context` counts where the attributes have `FI_PEER`.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL. With `FI_PEER`, `context` is as fi_peer(3) has it.
    pub(crate) unsafe fn open(
        domain: SharedObject<DomainObject>,
        attr: *const fi_cntr_attr,
        context: *const c_void,
    ) -> Result<Self, Refused> {
        let mut wait = WaitObject::NONE;
        let mut imported = None;
        let mut counted = CntrAttr::default();
        if !attr.is_null() {
            // SAFETY: as the caller says. The structure is the same in all versions.
            let attr = unsafe { attr.read() };
            if attr.flags & !FI_PEER != 0 {
                return Err(Errno::EBADFLAGS.into());
            }
            let is_peer = attr.flags & FI_PEER != 0;
            counted.events = match attr.events {
                fi_cntr_events::FI_CNTR_EVENTS_COMP => CntrEvents::Completions,
                fi_cntr_events::FI_CNTR_EVENTS_BYTES if !is_peer => CntrEvents::Bytes,
                _ => return Err(Errno::EINVAL.into()),
            };
            if is_peer {
                domain.check_imports("a counter of another provider")?;
                // SAFETY: as the caller says.
                imported = Some(unsafe { ImportedCntr::of(context.cast()) }?);
            } else {
                wait = WaitObject::of(attr.wait_obj)?;
            }
        }
        let cntr = domain.domain.open_cntr(&counted)?;
        Ok(Self {
            cntr,
            wait,
            imported,
            receives: BoundReceives::default(),
            _domain: domain,
        })
    }

    /// Has the owner's reads announce these messages.
    pub(crate) fn add_receives(&self, receives: &Arc<ForeignReceives>) {
        self.receives.add(receives);
    }
}

/// # Safety
///
/// As C calls us: the counter is open.
unsafe fn of<'a>(cntr: *const fid_cntr) -> &'a dyn Cntr {
    // SAFETY: as the caller says.
    unsafe { object_of::<CntrObject>(cntr) }.cntr.as_ref()
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: as C calls us.
    value(0, || unsafe { of(cntr) }.read().unwrap_or(0))
}

unsafe extern "C" fn read_errors(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: as C calls us.
    value(0, || unsafe { of(cntr) }.read_errors().unwrap_or(0))
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as C calls us.
    control(|| unsafe { of(cntr) }.add(value))
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as C calls us.
    control(|| unsafe { of(cntr) }.set(value))
}

unsafe extern "C" fn add_errors(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as C calls us.
    control(|| unsafe { of(cntr) }.add_errors(value))
}

unsafe extern "C" fn set_errors(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as C calls us.
    control(|| unsafe { of(cntr) }.set_errors(value))
}

unsafe extern "C-unwind" fn wait_for(
    cntr: *mut fid_cntr,
    threshold: u64,
    timeout_ms: c_int,
) -> c_int {
    let mut counting = MaybeUninit::<CounterWait>::uninit();
    // SAFETY: as C calls us; the thread may be cancelled. A wait that has begun is there.
    let returned = unsafe {
        match begin_wait(cntr, threshold, timeout_ms, &mut counting) {
            0 => cancel::wait(counting.as_mut_ptr()),
            error => error,
        }
    };
    returned as c_int
}

/// A wait for a value.
struct CounterWait {
    cntr: *const dyn Cntr,
    wait: DomainWait,
}

/// Begins a wait for a value: 0, or an error.
///
/// # Safety
///
/// As C calls us.
unsafe fn begin_wait(
    cntr: *mut fid_cntr,
    threshold: u64,
    timeout_ms: c_int,
    counting: &mut MaybeUninit<CounterWait>,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let cntr = unsafe { of(cntr) };
        counting.write(CounterWait {
            cntr,
            wait: cntr.begin_wait(threshold, timeout(timeout_ms))?,
        });
        Ok(0)
    })
}

impl Waiter for CounterWait {
    fn look(&mut self) -> Looked {
        // SAFETY: C does not close a counter in a call that waits for it.
        let looked = unsafe { &*self.cntr }.look(&mut self.wait);
        Looked::Over(match looked {
            Ok(None) => match self.wait.nap() {
                Some(nap) => return Looked::Sleep(nap),
                None => -(Errno::EINVAL.0 as isize),
            },
            Ok(Some(_)) => 0,
            Err(OpError::Again) => -(Errno::ETIMEDOUT.0 as isize),
            Err(error) => -(error.errno().0 as isize),
        })
    }

    fn interrupt(&mut self) {
        self.wait.interrupt();
    }

    fn end(&mut self) {
        // SAFETY: as above.
        unsafe { &*self.cntr }.end_wait(&mut self.wait);
    }
}
