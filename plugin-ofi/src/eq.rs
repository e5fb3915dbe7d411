//! Event queues (fi_eq(3)): the application's own events, and those of asynchronous insertions.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrofabric_core::eq::{EqError, Event, EventQueue, Reading};
use ferrofabric_core::error::{Errno, OpError};

use crate::abi::{
    FI_AFFINITY, FI_CLASS_EQ, FI_PEEK, FI_VERSION, FI_WRITE, Roomy, fi_eq_attr, fi_eq_err_entry,
    fi_ops, fi_ops_eq, fid, fid_eq,
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
    /// Of the error that was read last.
    last: Mutex<LastError>,
    wait: WaitObject,
    /// Whether the application may write.
    writable: bool,
    fabric: Arc<FabricObject>,
}

/// What stays of an error for later calls.
#[derive(Default)]
struct LastError {
    /// What belongs to it, for who left no room for that.
    data: Box<[u8]>,
    /// What went wrong, in words.
    reason: CString,
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
        if !attr.is_null() {
            // SAFETY: as the caller says. The structure is the same in all versions.
            let attr = unsafe { attr.read() };
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
            last: Mutex::default(),
            wait,
            writable,
            fabric,
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
    let wait = unsafe { object::<EqObject>(eq) }.wait;
    if wait == WaitObject::NONE {
        return -(Errno::ENOSYS.0 as isize);
    }
    // SAFETY: as C calls us.
    unsafe {
        read_by((eq, event), (buf, len), flags, |queue, out, reading| {
            queue.sread(out, reading, patience)
        })
    }
}

/// Since then the application may have room of its own for error data. The entry has always said
/// how much there is.
const ERR_DATA_SIZE: u32 = FI_VERSION(1, 5);

/// The error that is next. Its data go to the buffer that the entry brings; without one, to memory of the queue, where they
/// stay until the next error is read.
unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object::<EqObject>(eq) };
        if buf.is_null() {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let error = this
            .queue
            .read_error(reading(flags))
            .ok_or(OpError::Again)?;
        let mut last = this.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.reason = in_words(&error);
        let sized = this.fabric.speaks(ERR_DATA_SIZE);
        // SAFETY: there is room for an entry, which is the same in all versions. The application
        // says how much room there is for error data.
        unsafe {
            (*buf).fid = error.source as *mut fid;
            (*buf).context = error.context as *mut c_void;
            (*buf).data = error.data;
            (*buf).err = error.errno.0;
            (*buf).prov_errno = error.prov_errno;
            if !sized || (*buf).err_data_size == 0 {
                last.data = error.err_data;
                (*buf).err_data = match last.data.is_empty() {
                    true => std::ptr::null_mut(),
                    false => last.data.as_mut_ptr().cast(),
                };
                (*buf).err_data_size = last.data.len();
            } else {
                let fit = match (*buf).err_data.is_null() {
                    true => 0,
                    false => (*buf).err_data_size.min(error.err_data.len()),
                };
                let to = (*buf).err_data.cast::<u8>();
                to.copy_from(error.err_data.as_ptr(), fit);
                (*buf).err_data_size = fit;
            }
        }
        Ok(size_of::<fi_eq_err_entry>() as isize)
    })
}

/// What went wrong: what the error's data say, and else the meaning of its numbers.
fn in_words(error: &EqError) -> CString {
    let text = match (&error.err_data[..], error.prov_errno) {
        ([], 0) => error.errno.message().into(),
        ([], number) => Errno(number).message().into(),
        (data, _) => String::from_utf8_lossy(data),
    };
    let before_nul = text.split('\0').next().unwrap_or_default();
    CString::new(before_nul).unwrap_or_default()
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

/// The words of the error that was read last.
unsafe extern "C" fn strerror(
    eq: *mut fid_eq,
    _prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    value(std::ptr::null(), || {
        // SAFETY: as C calls us.
        let this = unsafe { object::<EqObject>(eq) };
        let last = this.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !buf.is_null() && len != 0 {
            // SAFETY: C has that much room.
            unsafe { copy_text(&last.reason.to_string_lossy(), buf, len) };
            return buf;
        }
        // Good until the next error is read.
        last.reason.as_ptr()
    })
}
