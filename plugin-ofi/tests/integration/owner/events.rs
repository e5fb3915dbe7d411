//! An owner's event queue, which records the events of the provider.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Instant;

use ferro_fi::abi::{
    FI_CLASS_EQ, fi_eq_entry, fi_eq_err_entry, fi_ops_eq, fi_peer_eq_context, fid, fid_eq,
};

use crate::client::close;
use crate::two::PATIENCE;

/// libfabric's flag of entries that `fi_eq_readerr` returns (`UTIL_FLAG_ERROR`).
pub const IS_ERROR: u64 = 1 << 60;

/// An event that a provider has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenEvent {
    pub number: u32,
    pub fid: usize,
    pub context: usize,
    pub data: u64,
    /// 0: it is no error.
    pub error: c_int,
}

/// An owner's event queue.
#[repr(C)]
pub struct OwnerEvents {
    pub eq: fid_eq,
    pub ops: fi_ops_eq,
    pub written: Mutex<Vec<WrittenEvent>>,
    /// So many events are refused by this result before one is taken.
    pub refusals: AtomicUsize,
    pub refusal: Mutex<isize>,
    /// A queue that is read in each call.
    pub read_within: AtomicPtr<fid_eq>,
    /// Objects that the next call closes, in this order.
    pub close_within: Mutex<Vec<Closed>>,
}

/// An object that is closed.
pub struct Closed(pub *mut fid);

// SAFETY: any thread may close it.
unsafe impl Send for Closed {}

impl OwnerEvents {
    pub fn new() -> Box<Self> {
        let mut events = Box::new(Self {
            eq: fid_eq::default(),
            ops: fi_ops_eq {
                size: size_of::<fi_ops_eq>(),
                read: None,
                readerr: None,
                write: Some(write),
                sread: None,
                strerror: Some(strerror),
            },
            written: Mutex::default(),
            refusals: AtomicUsize::new(0),
            refusal: Mutex::new(-(libc::EAGAIN as isize)),
            read_within: AtomicPtr::default(),
            close_within: Mutex::default(),
        });
        events.eq.fid.fclass = FI_CLASS_EQ;
        events.eq.ops = &raw mut events.ops;
        events
    }

    pub fn context(&self) -> fi_peer_eq_context {
        fi_peer_eq_context {
            size: size_of::<fi_peer_eq_context>(),
            eq: (&raw const self.eq).cast_mut(),
        }
    }

    pub fn take(&self) -> Vec<WrittenEvent> {
        std::mem::take(&mut self.written.lock().unwrap())
    }

    /// Drives an imported queue until so many events were written.
    pub fn await_events(&self, eq: *mut fid_eq, number: usize) -> Vec<WrittenEvent> {
        let until = Instant::now() + PATIENCE;
        while self.written.lock().unwrap().len() < number {
            assert_eq!(drive_events(eq), 0);
            assert!(Instant::now() < until, "no event comes");
        }
        self.take()
    }
}

/// `fi_eq_read` of no bytes.
pub fn drive_events(eq: *mut fid_eq) -> isize {
    let mut number = 0;
    // SAFETY: the queue is open.
    unsafe { call!(eq, ops.read(&raw mut number, std::ptr::null_mut(), 0, 0)) }
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    number: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: the queue is the first field of an `OwnerEvents`.
    let events = unsafe { &*eq.cast::<OwnerEvents>() };
    let within = events.read_within.load(Ordering::Relaxed);
    if !within.is_null() {
        assert_eq!(drive_events(within), 0);
    }
    for object in std::mem::take(&mut *events.close_within.lock().unwrap()) {
        assert_eq!(close(object.0), 0);
    }
    let refuse = |left: usize| left.checked_sub(1);
    if (events.refusals)
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuse)
        .is_ok()
    {
        return *events.refusal.lock().unwrap();
    }
    // SAFETY: the entry has that many bytes.
    let written = unsafe {
        match flags {
            0 => {
                assert_eq!(len, size_of::<fi_eq_entry>());
                let entry = buf.cast::<fi_eq_entry>().read_unaligned();
                WrittenEvent {
                    number,
                    fid: entry.fid.addr(),
                    context: entry.context.addr(),
                    data: entry.data,
                    error: 0,
                }
            }
            _ => {
                assert_eq!((flags, len), (IS_ERROR, size_of::<fi_eq_err_entry>()));
                let entry = buf.cast::<fi_eq_err_entry>().read_unaligned();
                assert!(entry.err_data.is_null() && entry.err_data_size == 0);
                WrittenEvent {
                    number,
                    fid: entry.fid.addr(),
                    context: entry.context.addr(),
                    data: entry.data,
                    error: entry.err,
                }
            }
        }
    };
    events.written.lock().unwrap().push(written);
    len as isize
}

unsafe extern "C" fn strerror(
    _eq: *mut fid_eq,
    _prov_errno: c_int,
    _err_data: *const c_void,
    _buf: *mut c_char,
    _len: usize,
) -> *const c_char {
    c"".as_ptr()
}
