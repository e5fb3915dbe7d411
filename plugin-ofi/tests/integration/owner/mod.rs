//! An owner of peer objects (fi_peer(3)): a queue and a counter whose entries and counts the tests
//! look at.

pub mod events;
pub mod receives;
pub mod set;
pub mod vector;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use ferro_fi::abi::{
    fi_addr_t, fi_cq_err_entry, fi_ops_cntr_owner, fi_ops_cq_owner, fi_peer_cntr_context,
    fi_peer_cq_context, fid_cntr, fid_cq, fid_peer_cntr, fid_peer_cq,
};

use crate::two::{EAGAIN, PATIENCE, count};

/// An entry that a provider has written to an owner's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
    pub tag: u64,
    pub src: fi_addr_t,
    /// 0, or the error and the bytes that did not fit.
    pub error: (c_int, usize),
}

/// An owner's queue.
#[repr(C)]
pub struct OwnerQueue {
    peer: fid_peer_cq,
    ops: fi_ops_cq_owner,
    pub written: Mutex<Vec<Written>>,
    /// So many entries are refused before one is taken.
    pub refusals: AtomicUsize,
    /// A queue that is read in each call.
    pub read_within: AtomicPtr<fid_cq>,
}

impl OwnerQueue {
    pub fn new() -> Box<Self> {
        let mut queue = Box::new(Self {
            peer: fid_peer_cq::default(),
            ops: fi_ops_cq_owner {
                size: size_of::<fi_ops_cq_owner>(),
                write: Some(write),
                writeerr: Some(write_error),
            },
            written: Mutex::default(),
            refusals: AtomicUsize::new(0),
            read_within: AtomicPtr::default(),
        });
        queue.peer.owner_ops = &raw mut queue.ops;
        queue
    }

    fn take(&self, entry: Written) -> isize {
        let queue = self.read_within.load(Ordering::Relaxed);
        if !queue.is_null() {
            assert_eq!(drive(queue), 0);
        }
        let refuse = |left: usize| left.checked_sub(1);
        if (self.refusals)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuse)
            .is_ok()
        {
            return EAGAIN;
        }
        self.written.lock().unwrap().push(entry);
        0
    }

    pub fn context(&self) -> fi_peer_cq_context {
        fi_peer_cq_context {
            size: size_of::<fi_peer_cq_context>(),
            cq: (&raw const self.peer).cast_mut(),
        }
    }

    /// Reads a queue until so many entries were written.
    pub fn await_entries(&self, queue: *mut fid_cq, number: usize) -> Vec<Written> {
        let until = Instant::now() + PATIENCE;
        while self.written.lock().unwrap().len() < number {
            assert_eq!(drive(queue), 0);
            assert!(Instant::now() < until, "nothing completes");
        }
        std::mem::take(&mut self.written.lock().unwrap())
    }
}

#[allow(clippy::too_many_arguments, reason = "libfabric's signature")]
unsafe extern "C" fn write(
    cq: *mut fid_peer_cq,
    context: *mut c_void,
    flags: u64,
    len: usize,
    buf: *mut c_void,
    data: u64,
    tag: u64,
    src: fi_addr_t,
) -> isize {
    // SAFETY: the queue is the first field of an `OwnerQueue`.
    unsafe { &*cq.cast::<OwnerQueue>() }.take(Written {
        context: context.addr(),
        flags,
        len,
        buf: buf.addr(),
        data,
        tag,
        src,
        error: (0, 0),
    })
}

unsafe extern "C" fn write_error(cq: *mut fid_peer_cq, entry: *const fi_cq_err_entry) -> isize {
    // SAFETY: as above; the entry is there.
    let (queue, entry) = unsafe { (&*cq.cast::<OwnerQueue>(), *entry) };
    queue.take(Written {
        context: entry.op_context.addr(),
        flags: entry.flags,
        len: entry.len,
        buf: entry.buf.addr(),
        data: entry.data,
        tag: entry.tag,
        src: entry.src_addr,
        error: (entry.err, entry.olen),
    })
}

/// An owner's counter: operations, and those that failed.
#[repr(C)]
pub struct OwnerCounter {
    peer: fid_peer_cntr,
    ops: fi_ops_cntr_owner,
    values: [AtomicU64; 2],
    /// A counter that is read in each call.
    pub read_within: AtomicPtr<fid_cntr>,
}

impl OwnerCounter {
    pub fn new() -> Box<Self> {
        let mut counter = Box::new(Self {
            peer: fid_peer_cntr::default(),
            ops: fi_ops_cntr_owner {
                size: size_of::<fi_ops_cntr_owner>(),
                inc: Some(inc),
                incerr: Some(inc_error),
            },
            values: Default::default(),
            read_within: AtomicPtr::default(),
        });
        counter.peer.owner_ops = &raw mut counter.ops;
        counter
    }

    fn count(&self, which: usize) {
        let counter = self.read_within.load(Ordering::Relaxed);
        if !counter.is_null() {
            assert_eq!(count(counter), 0);
        }
        self.values[which].fetch_add(1, Ordering::Relaxed);
    }

    pub fn context(&self) -> fi_peer_cntr_context {
        fi_peer_cntr_context {
            size: size_of::<fi_peer_cntr_context>(),
            cntr: (&raw const self.peer).cast_mut(),
        }
    }

    pub fn values(&self) -> [u64; 2] {
        [0, 1].map(|which: usize| self.values[which].load(Ordering::Relaxed))
    }

    /// Reads a counter until the owner has these values.
    pub fn await_values(&self, counter: *mut fid_cntr, values: [u64; 2]) {
        let until = Instant::now() + PATIENCE;
        while self.values() != values {
            assert_eq!(count(counter), 0, "the owner has the value");
            assert!(
                Instant::now() < until,
                "{:?}, not {values:?}",
                self.values()
            );
        }
    }
}

unsafe extern "C" fn inc(cntr: *mut fid_peer_cntr) {
    // SAFETY: the counter is the first field of an `OwnerCounter`.
    unsafe { &*cntr.cast::<OwnerCounter>() }.count(0);
}

unsafe extern "C" fn inc_error(cntr: *mut fid_peer_cntr) {
    // SAFETY: as above.
    unsafe { &*cntr.cast::<OwnerCounter>() }.count(1);
}

/// `fi_cq_read` of no entries.
pub fn drive(cq: *mut fid_cq) -> isize {
    // SAFETY: the queue is open.
    unsafe { call!(cq, ops.read(null_mut(), 0)) }
}
