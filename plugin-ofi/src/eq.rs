//! Event queues (fi_eq(3)): the application's own events, and those of asynchronous insertions.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{Event, PeerEq};
use ferrofabric_runtime::eq::{EventQueue, Reading};
use ferrofabric_system::wait::{Nap, NapOn, ms_until};

use crate::abi::{
    FI_AFFINITY, FI_CLASS_EQ, FI_PEEK, FI_VERSION, FI_WRITE, Roomy, fi_eq_attr, fi_eq_err_entry,
    fi_ops, fi_ops_eq, fid, fid_eq,
};
use crate::cancel::{self, Looked, Waiter, testing, unwinding};
use crate::fabric::FabricObject;
use crate::fid::{Given, Object, new_fid, object, ops_of};
use crate::guard::{Refused, data, value};
use crate::memory::say;
use crate::reasons::words_of;
use crate::wait::{self, WaitObject, Waitable, timeout};

/// Longest entry that an application may write, in bytes.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// An event queue.
#[repr(C)]
pub(crate) struct EqObject {
    raw: Given<fid_eq>,
    queue: Arc<EventQueue>,
    /// The data of the error that was read last, for an application that left no room for them.
    last: Mutex<Box<[u8]>>,
    wait: WaitObject,
    /// Whether the application may write.
    writable: bool,
    fabric: Arc<FabricObject>,
}

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
    read: Some(unwinding!(
        read as fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize
    )),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(unwinding!(
        sread as fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize
    )),
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
            raw: Given::new(fid_eq {
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

/// Where a call wants an event.
#[derive(Clone, Copy)]
struct Wanted {
    eq: *const EqObject,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
}

impl Wanted {
    /// Reads the event that is next, and returns the bytes of its entry.
    ///
    /// # Safety
    ///
    /// As C calls us: there is room for the event's number, and `len` bytes at `buf`.
    unsafe fn read(&self) -> Result<isize, OpError> {
        if self.event.is_null() || self.buf.is_null() && self.len != 0 {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let out = match self.len {
            0 => &mut [],
            // SAFETY: as the caller says; whatever bytes are there are some.
            _ => unsafe { std::slice::from_raw_parts_mut(self.buf.cast::<u8>(), self.len) },
        };
        // SAFETY: as C calls us.
        let queue = unsafe { &(*self.eq).queue };
        let (number, bytes) = queue.read(out, reading(self.flags))?;
        // SAFETY: as the caller says.
        unsafe { self.event.write(number) };
        Ok(bytes as isize)
    }
}

unsafe extern "C-unwind" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    let wanted = Wanted {
        eq: eq.cast(),
        event,
        buf,
        len,
        flags,
    };
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { testing(data(|| wanted.read())) }
}

unsafe extern "C-unwind" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    // SAFETY: as C calls us.
    if unsafe { object::<EqObject>(eq) }.wait == WaitObject::NONE {
        return -(Errno::ENOSYS.0 as isize);
    }
    let wanted = Wanted {
        eq: eq.cast(),
        event,
        buf,
        len,
        flags,
    };
    let mut reader = Reader {
        wanted,
        deadline: timeout(timeout_ms).and_then(|timeout| Instant::now().checked_add(timeout)),
        is_interrupted: false,
    };
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { cancel::wait(&raw mut reader) }
}

/// A wait for an event.
struct Reader {
    wanted: Wanted,
    deadline: Option<Instant>,
    is_interrupted: bool,
}

impl Reader {
    /// The descriptor to sleep on.
    fn nap(&self) -> Result<Nap, OpError> {
        // SAFETY: C does not close a queue in a call that waits for it.
        let fd = unsafe { &(*self.wanted.eq).queue }.wait_fd();
        // Another reader may take what makes it readable: then this one sleeps again.
        let fd = fd.map_err(|e| OpError::Failed(e.errno()))?;
        Ok(Nap {
            on: NapOn::Descriptor(fd.as_raw_fd()),
            timeout_ms: ms_until(self.deadline),
        })
    }
}

impl Waiter for Reader {
    fn look(&mut self) -> Looked {
        // SAFETY: as C calls us, until the wait is over.
        let found = unsafe { self.wanted.read() };
        let is_late = || self.deadline.is_some_and(|at| Instant::now() >= at);
        let returned = match found {
            Err(OpError::Again) if !self.is_interrupted && !is_late() => match self.nap() {
                Ok(nap) => return Looked::Sleep(nap),
                Err(error) => Err(error),
            },
            found => found,
        };
        Looked::Over(returned.unwrap_or_else(|error| -(error.errno().0 as isize)))
    }

    fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    fn end(&mut self) {}
}

/// Since then the application may have room of its own for error data. The entry has always said
/// how much there is.
const ERR_DATA_SIZE: u32 = FI_VERSION(1, 5);

/// The error that is next. Its data go to the buffer that the entry brings; without one, to memory
/// of the queue, where they stay until the next error is read.
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
                *last = error.err_data;
                (*buf).err_data = match last.is_empty() {
                    true => std::ptr::null_mut(),
                    false => last.as_mut_ptr().cast(),
                };
                (*buf).err_data_size = last.len();
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
    // SAFETY: C has that much room.
    value(c"".as_ptr(), || unsafe {
        say(words_of(prov_errno), buf, len)
    })
}
