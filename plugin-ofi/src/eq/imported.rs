//! An event queue of another provider, into which events of this one go.
//!
//! The contract (fi_peer(3)):
//!
//! - The owner's `fid_eq` is imported as it is. Its `write` is looked up when the queue is opened,
//!   and exists for longer than that. The context structure is read in that call alone.
//! - Events go to `write` in their order, by one thread at a time: those of asynchronous insertions
//!   from the thread that inserts, those of joins in reads of the endpoint's queues and in the call
//!   that joins. No lock is held meanwhile but that of the turn, so the owner may call this
//!   provider.
//! - fi_eq(3) has no call that writes an error. An entry of `fi_eq_readerr`, without error data, is
//!   written with the flag by which libfabric's own event queues take errors.
//! - An event for which the owner has no room (`-FI_EAGAIN`, `-FI_ENOMEM`) is kept, and is the
//!   first one next time; one that it refuses otherwise is lost, and the log has it.
//! - A read of no bytes from this queue passes on events that were kept. All other calls are the
//!   owner's.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{EqError, Event, PeerEq};
use ferrofabric_runtime::eq::is_event_of;
use ferrofabric_system::cancel::Uncancelled;
use ferrofabric_system::locks::Mutex;

use super::{EqObject, strerror};
use crate::abi::{FI_NOTIFY, Roomy, fi_eq_err_entry, fi_ops_eq, fi_peer_eq_context, fid, fid_eq};
use crate::fid::object_of;
use crate::guard::data;
use crate::memory::check_size;
use crate::turn::SharedWork;
use crate::unsupported::Unsupported;

/// libfabric's flag of `fi_eq_write` for entries of `fi_eq_readerr` (`UTIL_FLAG_ERROR`).
pub(super) const IS_ERROR: u64 = 1 << 60;

/// The owner's queue.
pub(crate) struct ImportedEq {
    owner: NonNull<fid_eq>,
    write: WriteEventFn,
    kept: Mutex<KeptEvents>,
    /// Passing events on.
    passing: SharedWork,
}

type WriteEventFn = unsafe extern "C" fn(*mut fid_eq, u32, *const c_void, usize, u64) -> isize;

/// Events that the owner does not have yet.
#[derive(Default)]
struct KeptEvents {
    waiting: VecDeque<KeptEvent>,
    /// Events that were removed while one is passed on, each by its number and its object.
    removed: Vec<(u32, u64)>,
    is_passing: bool,
}

/// An event for the owner.
enum KeptEvent {
    Event(Event),
    Error(EqError),
}

// SAFETY: event queues are for any thread.
unsafe impl Send for ImportedEq {}
// SAFETY: as above.
unsafe impl Sync for ImportedEq {}

/// The operations of such a queue.
pub(super) static OPS: Roomy<fi_ops_eq> = Roomy::new(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(drive),
    readerr: Some(Unsupported::ENOSYS),
    write: Some(Unsupported::ENOSYS),
    sread: Some(Unsupported::ENOSYS),
    strerror: Some(strerror),
});

impl KeptEvent {
    /// Whether it is an error of an object, or an event of this number.
    fn is_of(&self, number: u32, source: u64) -> bool {
        match self {
            Self::Event(event) => is_event_of(event, number, source),
            Self::Error(error) => error.source == source,
        }
    }
}

impl ImportedEq {
    /// The queue that a context names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context is too short, or has no queue that can be written.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it.
    pub(super) unsafe fn of(context: *const fi_peer_eq_context) -> Result<Self, Errno> {
        // SAFETY: as the caller says.
        unsafe {
            check_size(context)?;
            let owner = NonNull::new((*context).eq).ok_or(Errno::EINVAL)?;
            let ops: *const fi_ops_eq = owner.as_ref().ops;
            check_size(ops)?;
            Ok(Self {
                owner,
                write: (*ops).write.ok_or(Errno::EINVAL)?,
                kept: Mutex::default(),
                passing: SharedWork::default(),
            })
        }
    }

    /// Keeps an event for the next call that passes events on.
    fn keep(&self, event: KeptEvent) {
        self.kept.lock().waiting.push_back(event);
    }

    /// The first event that is kept, without the lock.
    fn first(&self) -> Option<KeptEvent> {
        let kept = &mut *self.kept.lock();
        let event = kept.waiting.pop_front();
        kept.is_passing = event.is_some();
        kept.removed.clear();
        event
    }

    /// Keeps the first event for later, unless it was removed meanwhile.
    fn put_back(&self, event: KeptEvent) {
        let kept = &mut *self.kept.lock();
        kept.is_passing = false;
        if !(kept.removed.iter()).any(|&(number, source)| event.is_of(number, source)) {
            kept.waiting.push_front(event);
        }
    }

    /// Passes the events on that are kept.
    pub(crate) fn pass_on(&self) {
        self.passing.run(|| {
            while let Some(event) = self.first() {
                if !self.pass(&event) {
                    self.put_back(event);
                    return false;
                }
            }
            true
        });
    }

    /// Passes an event on. Returns whether it is over.
    fn pass(&self, event: &KeptEvent) -> bool {
        let written = match event {
            KeptEvent::Event(event) => {
                let entry = &event.entry;
                self.write(event.number, entry.as_ptr().cast(), entry.len(), 0)
            }
            KeptEvent::Error(error) => {
                let entry = fi_eq_err_entry {
                    fid: error.source as *mut fid,
                    context: error.context as *mut c_void,
                    data: error.data,
                    err: error.errno.0,
                    prov_errno: error.prov_errno,
                    // libfabric's queues free such data.
                    err_data: null_mut(),
                    err_data_size: 0,
                };
                let (at, len) = ((&raw const entry).cast(), size_of_val(&entry));
                self.write(FI_NOTIFY, at, len, IS_ERROR)
            }
        };
        let no_room = [Errno::EAGAIN, Errno::ENOMEM].map(|errno| -(errno.0 as isize));
        if written < 0 && !no_room.contains(&written) {
            tracing::warn!("the owner of an event queue took no event: {written}");
        }
        !no_room.contains(&written)
    }

    fn write(&self, number: u32, entry: *const c_void, len: usize, flags: u64) -> isize {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the owner's queue is open for as long as this one; the entry has that many bytes.
        unsafe { (self.write)(self.owner.as_ptr(), number, entry, len, flags) }
    }

    /// Keeps an event of a caller that has a lock.
    pub(crate) fn keep_event(&self, event: Event) {
        self.keep(KeptEvent::Event(event));
    }

    /// Removes what is kept of an object that is closed: its errors, and its events of this number.
    pub(crate) fn forget(&self, number: u32, source: u64) {
        let kept = &mut *self.kept.lock();
        (kept.waiting).retain(|event| !event.is_of(number, source));
        if kept.is_passing {
            kept.removed.push((number, source));
        }
    }

    /// As [`keep_event`](Self::keep_event), of an error.
    pub(crate) fn keep_error(&self, error: EqError) {
        self.keep(KeptEvent::Error(error));
    }
}

/// For threads that have no lock.
impl PeerEq for ImportedEq {
    fn write(&self, event: Event) {
        self.keep_event(event);
        self.pass_on();
    }

    fn write_error(&self, error: EqError) {
        self.keep_error(error);
        self.pass_on();
    }
}

/// `fi_eq_read`, of no bytes: events are read from the owner.
unsafe extern "C" fn drive(
    eq: *mut fid_eq,
    _event: *mut u32,
    _buf: *mut c_void,
    len: usize,
    _flags: u64,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let queue = unsafe { object_of::<EqObject>(eq) };
        if len != 0 {
            return Err(OpError::Failed(Errno::ENOSYS));
        }
        queue.drive();
        queue.pass_on();
        Ok(0)
    })
}
