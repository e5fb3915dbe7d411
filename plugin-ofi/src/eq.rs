//! Event queues (fi_eq(3)). What no connection and no asynchronous insertion writes to holds the application's own events.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_core::eq::{Event, EventQueue, Reading};
use ferrofabric_core::error::{Errno, OpError};

use crate::abi::{
    FI_AFFINITY, FI_CLASS_EQ, FI_PEEK, FI_WRITE, Roomy, fi_eq_attr, fi_eq_err_entry, fi_ops,
    fi_ops_eq, fid_eq,
};
use crate::cntr::timeout;
use crate::fabric::FabricObject;
use crate::fid::{Object, new_fid, object, ops_of};
use crate::guard::{Refused, data, value};
use crate::memory::copy_text;
use crate::wait::{self, WaitObject, Waitable};

/// Longest entry that an application may write, in bytes.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// An event queue.
#[repr(C)]
pub(crate) struct EqObject {
    raw: UnsafeCell<fid_eq>,
    queue: EventQueue,
    wait: WaitObject,
    /// Whether the application may write.
    writable: bool,
    _fabric: Arc<FabricObject>,
}

// SAFETY: `raw` is C's to use; nothing of ours reads it after the object is made.
unsafe impl Send for EqObject {}
// SAFETY: as above.
unsafe impl Sync for EqObject {}

// SAFETY: `fid_eq` comes first and starts with a `fid`.
unsafe impl Object for EqObject {
    type Raw = fid_eq;
    const CLASS: usize = FI_CLASS_EQ;
}

static FID_OPS: fi_ops = fi_ops {
    control: Some(wait::control::<EqObject>),
    ..ops_of::<EqObject>()
};

impl Waitable for EqObject {
    fn wait_object(&self) -> WaitObject {
        self.wait
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>, Refused> {
        Ok(self.queue.wait_fd()?)
    }

    fn try_wait(&self) -> Result<(), OpError> {
        self.queue.try_wait()
    }
}

static OPS: Roomy<fi_ops_eq> = Roomy::new(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
});

impl EqObject {
    /// Opens an event queue.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL.
    pub(crate) unsafe fn open(
        fabric: Arc<FabricObject>,
        attr: *const fi_eq_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, Refused> {
        let mut writable = false;
        let mut wait = WaitObject::NONE;
        // SAFETY: as the caller says.
        if let Some(attr) = unsafe { attr.as_ref() } {
            if attr.flags & !(FI_WRITE | FI_AFFINITY) != 0 {
                return Err(Errno::EBADFLAGS.into());
            }
            wait = WaitObject::of(attr.wait_obj)?;
            writable = attr.flags & FI_WRITE != 0;
        }
        Ok(Arc::new(Self {
            raw: UnsafeCell::new(fid_eq {
                fid: new_fid::<Self>(context, &FID_OPS),
                ops: OPS.as_ptr(),
            }),
            queue: EventQueue::new(),
            wait,
            writable,
            _fabric: fabric,
        }))
    }
}

/// Reads as `how` does it.
///
/// # Safety
///
/// As C calls us: there is room for the event's number, and `len` bytes at `buf`.
unsafe fn read_by(
    (eq, event): (*mut fid_eq, *mut u32),
    (buf, len): (*mut c_void, usize),
    flags: u64,
    how: impl FnOnce(&EventQueue, &mut [u8], Reading) -> Result<(u32, usize), OpError>,
) -> isize {
    data(|| {
        if event.is_null() || buf.is_null() && len != 0 {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        // SAFETY: as the caller says.
        let queue = unsafe { &object::<EqObject>(eq).queue };
        let out = match len {
            0 => &mut [],
            // SAFETY: as above; whatever bytes are there are some.
            _ => unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), len) },
        };
        let reading = match flags & FI_PEEK {
            0 => Reading::Take,
            _ => Reading::Peek,
        };
        let (number, bytes) = how(queue, out, reading)?;
        // SAFETY: as above.
        unsafe { event.write(number) };
        Ok(bytes as isize)
    })
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { read_by((eq, event), (buf, len), flags, EventQueue::read) }
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    let patience: Option<Duration> = timeout(timeout_ms);
    // SAFETY: as C calls us.
    unsafe {
        read_by((eq, event), (buf, len), flags, |queue, out, reading| {
            queue.sread(out, reading, patience)
        })
    }
}

/// There are no events in error.
unsafe extern "C" fn readerr(_eq: *mut fid_eq, _buf: *mut fi_eq_err_entry, _flags: u64) -> isize {
    -(Errno::EAGAIN.0 as isize)
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object::<EqObject>(eq) };
        if !this.writable || len > MAX_ENTRY_BYTES || buf.is_null() && len != 0 {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let entry = match len {
            0 => &[],
            // SAFETY: the entry has that many bytes.
            _ => unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) },
        };
        this.queue.write(Event {
            number: event,
            entry: entry.into(),
        });
        Ok(len as isize)
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    value(std::ptr::null(), || {
        if buf.is_null() || len == 0 {
            return c"there are no events in error".as_ptr();
        }
        // SAFETY: C has that much room.
        unsafe { copy_text(&Errno(prov_errno).message(), buf, len) };
        buf
    })
}
