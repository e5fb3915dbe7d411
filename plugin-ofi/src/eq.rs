//! Event queues (fi_eq(3)): the application's own events, and those of asynchronous insertions.

mod imported;

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{Done, EqError, Event, PeerEq};
use ferrofabric_runtime::eq::{EventQueue, Reading};
use ferrofabric_runtime::fabric::Cq;
use ferrofabric_system::locks::Mutex;
use ferrofabric_system::wait::{Nap, NapOn, WaitFd, ms_until};

use crate::abi::{
    FI_AFFINITY, FI_CLASS_EQ, FI_PEEK, FI_PEER, FI_VERSION, FI_WRITE, Roomy, fi_eq_attr,
    fi_eq_err_entry, fi_ops, fi_ops_eq, fid, fid_eq,
};
use crate::cancel::{self, Looked, Waiter, testing, unwinding};
use crate::fabric::FabricObject;
use crate::fid::{Object, SharedObject, object_of};
use crate::guard::{Refused, data, value};
use crate::memory::{ErrorData, say};
use crate::reasons::words_of;
use crate::uses::{ObjectUse, UsableObject};
use crate::wait::{self, WaitObject, Waitable, timeout};
use imported::{IS_ERROR, ImportedEq};

/// Longest entry that an application may write, in bytes.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// The longest sleep where reads drive endpoints, in ms: their messages wake nobody here.
const DRIVEN_NAP_MS: i32 = 1;

/// An endpoint whose events come by its own messages, so that a read drives it.
pub(crate) trait DrivenByEvents: Send + Sync {
    /// Makes progress.
    fn drive(&self);

    /// Has a descriptor become readable when it needs another call.
    ///
    /// # Errors
    ///
    /// `Again`: it needs one now.
    fn watch(&self, descriptor: &WaitFd) -> Result<(), OpError>;
}

/// An event queue.
pub(crate) struct EqObject {
    queue: Arc<EventQueue>,
    /// The queue of another provider that gets the events in place of this one.
    imported: Option<Arc<ImportedEq>>,
    driven: Mutex<Vec<UsableObject<dyn DrivenByEvents>>>,
    /// The descriptor to wait on, made at the first request.
    descriptor: OnceLock<WaitFd>,
    error_data: ErrorData,
    wait: WaitObject,
    /// Whether the application may write.
    writable: bool,
    fabric: SharedObject<FabricObject>,
}

// SAFETY: `fid_eq` starts with the `fid`.
unsafe impl Object for EqObject {
    type Raw = fid_eq;
    const CLASS: usize = FI_CLASS_EQ;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_eq {
        let ops = match self.imported {
            Some(_) => imported::OPS.as_ptr(),
            None => OPS.as_ptr(),
        };
        fid_eq { fid, ops }
    }
}

static FID_OPS: fi_ops = wait::ops_of::<EqObject>();

impl Waitable for EqObject {
    fn wait_object(&self) -> WaitObject {
        self.wait
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>, Refused> {
        Ok(self.descriptor()?.as_fd())
    }

    /// Drives the endpoints whose events it gets, and has what they wait for end the wait.
    fn try_wait(&self) -> Result<(), OpError> {
        let fd = self.descriptor.get();
        let fd = fd.ok_or(OpError::Failed(Errno::EINVAL))?;
        // A completion from here on rings it.
        fd.bell().clear();
        let driven = self.endpoints();
        driven.iter().for_each(|endpoint| endpoint.drive());
        // There may be an event that an endpoint has no part in.
        self.queue.try_wait()?;
        (driven.iter()).try_for_each(|endpoint| endpoint.watch(fd))?;
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
    /// The queue as threads write to it that have no lock.
    pub(crate) fn events(&self) -> Arc<dyn PeerEq> {
        match &self.imported {
            Some(imported) => imported.clone(),
            None => self.queue.clone(),
        }
    }

    /// Puts in that an operation is over, for a caller that has a lock. Another provider gets it
    /// when that calls [`pass_on`](Self::pass_on) without.
    pub(crate) fn keep_done(&self, number: u32, done: &Done) {
        let entry = done.bytes();
        match &self.imported {
            Some(imported) => imported.keep_event(Event { number, entry }),
            None => self.queue.write(Event { number, entry }),
        }
    }

    /// As [`keep_done`](Self::keep_done), of an error.
    pub(crate) fn keep_error(&self, error: EqError) {
        match &self.imported {
            Some(imported) => imported.keep_error(error),
            None => self.queue.write_error(error),
        }
    }

    /// Removes the events of this number of an object that is closed, and its errors.
    pub(crate) fn forget(&self, number: u32, source: u64) {
        match &self.imported {
            Some(imported) => imported.forget(number, source),
            None => self.queue.forget(number, source),
        }
    }

    /// Whether another provider gets the events.
    pub(crate) fn is_imported(&self) -> bool {
        self.imported.is_some()
    }

    /// Passes events on to another provider.
    pub(crate) fn pass_on(&self) {
        self.imported.iter().for_each(|imported| imported.pass_on());
    }

    /// Has reads drive an endpoint.
    pub(crate) fn add_driven(&self, endpoint: UsableObject<dyn DrivenByEvents>) {
        let mut driven = self.driven.lock();
        driven.retain(UsableObject::is_there);
        driven.push(endpoint);
        drop(driven);
        // A sleeper does not wait for this one yet.
        (self.descriptor.get().iter()).for_each(|fd| fd.bell().ring());
    }

    /// An endpoint with these queues is closed. They may be those of other endpoints, too: a
    /// sleeper looks again.
    pub(crate) fn unwatch(&self, queues: &[&dyn Cq]) {
        if let Some(fd) = self.descriptor.get() {
            queues.iter().for_each(|queue| queue.unwatch(fd));
            fd.bell().ring();
        }
    }

    /// The open endpoints whose events it gets. None of them closes before the caller drops them.
    fn endpoints(&self) -> Vec<ObjectUse<dyn DrivenByEvents>> {
        let driven = self.driven.lock();
        driven.iter().filter_map(UsableObject::enter).collect()
    }

    /// Drives the endpoints whose events it gets.
    fn drive(&self) {
        let driven = self.endpoints();
        driven.iter().for_each(|endpoint| endpoint.drive());
    }

    /// The descriptor to wait on.
    fn descriptor(&self) -> Result<&WaitFd, Refused> {
        if self.descriptor.get().is_none() {
            let fd = WaitFd::new()?;
            fd.add(self.queue.wait_fd()?)?;
            let _ = self.descriptor.set(fd);
        }
        Ok(self.descriptor.get().ok_or(Errno::EINVAL)?)
    }

    /// Opens an event queue. `context` counts where the attributes have `FI_PEER`.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL. With `FI_PEER`, `context` is as fi_peer(3) has it.
    pub(crate) unsafe fn open(
        fabric: SharedObject<FabricObject>,
        attr: *const fi_eq_attr,
        context: *const c_void,
    ) -> Result<Self, Refused> {
        let mut imported = None;
        let mut writable = false;
        let mut wait = WaitObject::NONE;
        if !attr.is_null() {
            // SAFETY: as the caller says. The structure is the same in all versions.
            let attr = unsafe { attr.read() };
            if attr.flags & !(FI_WRITE | FI_AFFINITY | FI_PEER) != 0 {
                return Err(Errno::EBADFLAGS.into());
            }
            if attr.flags & FI_PEER != 0 {
                // SAFETY: as the caller says.
                imported = Some(Arc::new(unsafe { ImportedEq::of(context.cast()) }?));
            } else {
                wait = WaitObject::of(attr.wait_obj)?;
                writable = attr.flags & FI_WRITE != 0;
            }
        }
        Ok(Self {
            queue: Arc::new(EventQueue::new()),
            imported,
            driven: Mutex::default(),
            descriptor: OnceLock::new(),
            error_data: ErrorData::default(),
            wait,
            writable,
            fabric,
        })
    }
}

/// Whether the flags of a call ask to take the event or to leave it in the queue.
fn reading(flags: u64) -> Reading {
    match flags & FI_PEEK {
        0 => Reading::Take,
        _ => Reading::Peek,
    }
}

/// Where a call wants an event.
#[derive(Clone, Copy)]
struct EventRequest {
    eq: *const fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
}

impl EventRequest {
    fn of(
        eq: *const fid_eq,
        (event, buf, len): (*mut u32, *mut c_void, usize),
        flags: u64,
    ) -> Self {
        Self {
            eq,
            event,
            buf,
            len,
            flags,
        }
    }

    /// # Safety
    ///
    /// As C calls us: the queue is open.
    unsafe fn queue(&self) -> &EventQueue {
        // SAFETY: as the caller says.
        &unsafe { object_of::<EqObject>(self.eq) }.queue
    }

    /// Whether reads drive endpoints.
    ///
    /// # Safety
    ///
    /// As of [`queue`](Self::queue).
    unsafe fn is_driven(&self) -> bool {
        // SAFETY: as the caller says.
        !unsafe { object_of::<EqObject>(self.eq) }
            .driven
            .lock()
            .is_empty()
    }

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
            // SAFETY: as the caller says; any value of a byte is valid.
            _ => unsafe { std::slice::from_raw_parts_mut(self.buf.cast::<u8>(), self.len) },
        };
        // SAFETY: as C calls us.
        unsafe { object_of::<EqObject>(self.eq) }.drive();
        // SAFETY: as C calls us.
        let (number, bytes) = unsafe { self.queue() }.read(out, reading(self.flags))?;
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
    let wanted = EventRequest::of(eq, (event, buf, len), flags);
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
    if unsafe { object_of::<EqObject>(eq) }.wait == WaitObject::NONE {
        return -(Errno::ENOSYS.0 as isize);
    }
    let wanted = EventRequest::of(eq, (event, buf, len), flags);
    let mut reader = EqWait {
        wanted,
        deadline: timeout(timeout_ms).and_then(|timeout| Instant::now().checked_add(timeout)),
        is_interrupted: false,
    };
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { cancel::wait(&raw mut reader) }
}

/// A wait for an event.
struct EqWait {
    wanted: EventRequest,
    deadline: Option<Instant>,
    is_interrupted: bool,
}

impl EqWait {
    /// The descriptor to sleep on.
    fn nap(&self) -> Result<Nap, OpError> {
        // SAFETY: C does not close a queue in a call that waits for it.
        let fd = unsafe { self.wanted.queue() }.wait_fd();
        // Another reader may take what makes it readable: then this one sleeps again.
        let fd = fd.map_err(|e| OpError::Failed(e.errno()))?;
        // SAFETY: as above.
        let is_driven = unsafe { self.wanted.is_driven() };
        let left = ms_until(self.deadline);
        Ok(Nap {
            on: NapOn::Descriptor(fd.as_raw_fd()),
            timeout_ms: match is_driven && !(0..=DRIVEN_NAP_MS).contains(&left) {
                true => DRIVEN_NAP_MS,
                false => left,
            },
        })
    }
}

impl Waiter for EqWait {
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
        let this = unsafe { object_of::<EqObject>(eq) };
        if buf.is_null() {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let error = this
            .queue
            .read_error(reading(flags))
            .ok_or(OpError::Again)?;
        // SAFETY: there is room for an entry, which is the same in all versions. The application
        // says how much room there is for error data.
        unsafe {
            (*buf).fid = error.source as *mut fid;
            (*buf).context = error.context as *mut c_void;
            (*buf).data = error.data;
            (*buf).err = error.errno.0;
            (*buf).prov_errno = error.prov_errno;
            let room = match this.fabric.speaks(ERR_DATA_SIZE) {
                true => (*buf).err_data_size,
                false => 0,
            };
            let at = &raw mut (*buf).err_data;
            (*buf).err_data_size = (this.error_data).give(error.err_data.into(), false, at, room);
        }
        Ok(size_of::<fi_eq_err_entry>() as isize)
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object_of::<EqObject>(eq) };
        if !this.writable || len > MAX_ENTRY_BYTES || buf.is_null() && len != 0 {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let entry = match len {
            0 => &[],
            // SAFETY: the entry has that many bytes.
            _ => unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) },
        };
        if flags & IS_ERROR != 0 && len == size_of::<fi_eq_err_entry>() {
            // SAFETY: the entry is whole.
            let entry = unsafe { buf.cast::<fi_eq_err_entry>().read_unaligned() };
            this.queue.write_error(EqError {
                source: entry.fid as u64,
                context: entry.context as u64,
                data: entry.data,
                errno: Errno(entry.err),
                prov_errno: entry.prov_errno,
                err_data: Box::default(),
            });
        } else {
            this.queue.write(Event {
                number: event,
                entry: entry.into(),
            });
        }
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
