//! Event queues (fi_eq(3)): the application's own events, and those of asynchronous insertions.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrofabric_core::eq::{Event, EventQueue, Reading};
use ferrofabric_core::error::{Errno, OpError};

use crate::abi::{
    FI_AFFINITY, FI_CLASS_EQ, FI_PEEK, FI_WRITE, Roomy, fi_eq_attr, fi_eq_err_entry, fi_ops,
    fi_ops_eq, fid, fid_eq,
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
    queue: Arc<EventQueue>,
    /// What belongs to the error that was read last, for who left no room for it.
    err_data: Mutex<Box<[u8]>>,
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
    /// The events.
    pub(crate) fn queue(&self) -> &Arc<EventQueue> {
        &self.queue
    }

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
            queue: Arc::new(EventQueue::new()),
            err_data: Mutex::default(),
            wait,
            writable,
            _fabric: fabric,
        }))
    }
}

/// What the flags of a call say of the event that it reads.
fn reading(flags: u64) -> Reading {
    match flags & FI_PEEK {
        0 => Reading::Take,
        _ => Reading::Peek,
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
        let (number, bytes) = how(queue, out, reading(flags))?;
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

/// The error that is next. Its data go to the buffer that the entry brings; without one, to memory of the queue, where they
/// stay until the next error is read.
unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let (this, out) = unsafe { (object::<EqObject>(eq), buf.as_mut()) };
        let out = out.ok_or(OpError::Failed(Errno::EINVAL))?;
        let error = this
            .queue
            .read_error(reading(flags))
            .ok_or(OpError::Again)?;
        out.fid = error.source as *mut fid;
        out.context = error.context as *mut c_void;
        out.data = error.data;
        out.err = error.errno.0;
        out.prov_errno = error.prov_errno;
        match out.err_data_size {
            0 => {
                let mut kept = this.err_data.lock().unwrap_or_else(PoisonError::into_inner);
                *kept = error.err_data;
                out.err_data_size = kept.len();
                out.err_data = match kept.is_empty() {
                    true => std::ptr::null_mut(),
                    false => kept.as_mut_ptr().cast(),
                };
            }
            room => {
                let fit = match out.err_data.is_null() {
                    true => 0,
                    false => room.min(error.err_data.len()),
                };
                // SAFETY: the application says that there is that much room.
                unsafe {
                    out.err_data
                        .cast::<u8>()
                        .copy_from(error.err_data.as_ptr(), fit)
                };
                out.err_data_size = fit;
            }
        }
        Ok(size_of::<fi_eq_err_entry>() as isize)
    })
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
            return c"there is no room for a message".as_ptr();
        }
        // SAFETY: C has that much room.
        unsafe { copy_text(&Errno(prov_errno).message(), buf, len) };
        buf
    })
}
