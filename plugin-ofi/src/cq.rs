//! Completion queues (fi_cq(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrofabric_core::addr::AddrFormats;
use ferrofabric_core::av::format;
use ferrofabric_core::error::{Errno, OpError};
use ferrofabric_core::fabric::{Cq, CqAttr};
use ferrofabric_core::peer::{Completion, CqError};

use crate::abi::{
    FI_AFFINITY, FI_CLASS_CQ, FI_VERSION, Roomy, fi_addr_t, fi_cq_attr, fi_cq_data_entry,
    fi_cq_entry, fi_cq_err_entry, fi_cq_format, fi_cq_msg_entry, fi_cq_tagged_entry,
    fi_cq_wait_cond, fi_ops, fi_ops_cq, fid_cq,
};
use crate::cntr::timeout;
use crate::domain::DomainObject;
use crate::fid::{Object, new_fid, object, ops_of};
use crate::guard::{Refused, control, data, value};
use crate::memory::copy_text;
use crate::wait::{self, WaitObject, Waitable};

// Every format is a prefix of the longest, and that is how a completion begins.
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Completion, context) == offset_of!(fi_cq_tagged_entry, op_context));
    assert!(offset_of!(Completion, flags) == offset_of!(fi_cq_tagged_entry, flags));
    assert!(offset_of!(Completion, len) == offset_of!(fi_cq_tagged_entry, len));
    assert!(offset_of!(Completion, buf) == offset_of!(fi_cq_tagged_entry, buf));
    assert!(offset_of!(Completion, data) == offset_of!(fi_cq_tagged_entry, data));
    assert!(offset_of!(Completion, tag) == offset_of!(fi_cq_tagged_entry, tag));
    assert!(offset_of!(fi_cq_data_entry, data) == offset_of!(Completion, data));
    assert!(offset_of!(fi_cq_msg_entry, len) == offset_of!(Completion, len));
};

/// Completions taken from the queue at a time.
const BATCH: usize = 16;

/// A completion queue.
#[repr(C)]
pub(crate) struct CqObject {
    raw: UnsafeCell<fid_cq>,
    pub(crate) cq: Arc<dyn Cq>,
    /// Bytes of an entry of its format.
    entry_bytes: usize,
    wait: WaitObject,
    /// Waits say how many entries they want (`FI_CQ_COND_THRESHOLD`).
    by_threshold: bool,
    last_error: Mutex<LastError>,
    domain: Arc<DomainObject>,
}

/// What C may still look at of the error that was read last.
struct LastError {
    /// What went wrong, in words, as a string.
    reason: Vec<u8>,
    /// Its error data.
    data: Vec<u8>,
}

// SAFETY: `raw` is C's to use; nothing of ours reads it after the object is made.
unsafe impl Send for CqObject {}
// SAFETY: as above.
unsafe impl Sync for CqObject {}

// SAFETY: `fid_cq` comes first and starts with a `fid`.
unsafe impl Object for CqObject {
    type Raw = fid_cq;
    const CLASS: usize = FI_CLASS_CQ;
}

static FID_OPS: fi_ops = fi_ops {
    control: Some(wait::control::<CqObject>),
    ..ops_of::<CqObject>()
};

impl Waitable for CqObject {
    fn wait_object(&self) -> WaitObject {
        self.wait
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>, Refused> {
        Ok(self.cq.wait_fd()?)
    }

    fn try_wait(&self) -> Result<(), OpError> {
        self.cq.try_wait()
    }
}

static OPS: Roomy<fi_ops_cq> = Roomy::new(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
});

impl CqObject {
    /// Opens a completion queue.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL.
    pub(crate) unsafe fn open(
        domain: Arc<DomainObject>,
        attr: *mut fi_cq_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, Refused> {
        let mut wanted = CqAttr::default();
        let mut entry_bytes = size_of::<fi_cq_entry>();
        let (mut wait, mut by_threshold) = (WaitObject::NONE, false);
        let mut tells_format = false;
        if !attr.is_null() {
            // SAFETY: as the caller says. The structure is the same in all versions. It may be a
            // constant.
            let attr = unsafe { attr.read() };
            if attr.flags & !FI_AFFINITY != 0 {
                return Err(Errno::EBADFLAGS.into());
            }
            wait = WaitObject::of(attr.wait_obj)?;
            by_threshold = match attr.wait_cond {
                // Nobody waits: whatever stands there is ignored (fi_cq(3)).
                _ if wait == WaitObject::NONE => false,
                fi_cq_wait_cond::FI_CQ_COND_NONE => false,
                fi_cq_wait_cond::FI_CQ_COND_THRESHOLD => true,
                _ => return Err(Errno::EINVAL.into()),
            };
            wanted.size = attr.size;
            tells_format = attr.format == fi_cq_format::FI_CQ_FORMAT_UNSPEC;
            entry_bytes = match attr.format {
                fi_cq_format::FI_CQ_FORMAT_UNSPEC | fi_cq_format::FI_CQ_FORMAT_CONTEXT => {
                    size_of::<fi_cq_entry>()
                }
                fi_cq_format::FI_CQ_FORMAT_MSG => size_of::<fi_cq_msg_entry>(),
                fi_cq_format::FI_CQ_FORMAT_DATA => size_of::<fi_cq_data_entry>(),
                fi_cq_format::FI_CQ_FORMAT_TAGGED => size_of::<fi_cq_tagged_entry>(),
                _ => return Err(Errno::EINVAL.into()),
            };
        }
        let cq = domain.domain.open_cq(&wanted)?;
        if tells_format {
            // SAFETY: as the caller says. Who leaves the choice open has to learn of it.
            unsafe { (*attr).format = fi_cq_format::FI_CQ_FORMAT_CONTEXT };
        }
        Ok(Arc::new(Self {
            raw: UnsafeCell::new(fid_cq {
                fid: new_fid::<Self>(context, &FID_OPS),
                ops: OPS.as_ptr(),
            }),
            cq,
            entry_bytes,
            wait,
            by_threshold,
            last_error: Mutex::new(LastError {
                reason: b"\0".to_vec(),
                data: Vec::new(),
            }),
            domain,
        }))
    }

    /// Writes completions out in the queue's format.
    ///
    /// # Safety
    ///
    /// There is room for all of them at `buf`, and at `sources` where that is not NULL.
    #[inline]
    unsafe fn write_out(&self, from: &[Completion], buf: *mut u8, sources: *mut fi_addr_t) {
        for (i, completion) in from.iter().enumerate() {
            // SAFETY: an entry is a prefix of a completion; there is room as the caller says.
            unsafe {
                let to = buf.add(i * self.entry_bytes);
                to.copy_from(std::ptr::from_ref(completion).cast(), self.entry_bytes);
                if !sources.is_null() {
                    sources.add(i).write(completion.src.0);
                }
            }
        }
    }
}

/// Since then error entries say how much error data there is.
const ERR_DATA_SIZE: u32 = FI_VERSION(1, 5);
/// Since then they have a source address.
const ERR_SOURCE: u32 = FI_VERSION(1, 20);

impl CqObject {
    fn last_error(&self) -> MutexGuard<'_, LastError> {
        (self.last_error.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills in what the application's version of the structure has, and keeps what it points to.
    ///
    /// # Safety
    ///
    /// There is room for that, and for as much error data as the structure says.
    #[cold]
    unsafe fn write_error(&self, error: &CqError, to: *mut fi_cq_err_entry) {
        let mut last = self.last_error();
        last.reason.clear();
        last.reason.extend_from_slice(error.why.as_bytes());
        last.reason.push(0);
        // Error data is the address of a sender; of all else `fi_cq_strerror` has what is known.
        let addr_format = self.domain.domain.info().addr_format;
        last.data = match &error.sender {
            Some(sender) => format::endpoint_to_bytes(addr_format, sender),
            None => Vec::new(),
        };
        let done = &error.completion;
        // SAFETY: as the caller says.
        unsafe {
            (*to).op_context = done.context as usize as *mut c_void;
            (*to).flags = done.flags.bits();
            (*to).len = done.len;
            (*to).buf = done.buf as *mut c_void;
            (*to).data = done.data;
            (*to).tag = done.tag;
            (*to).olen = error.olen;
            (*to).err = error.errno.0;
            (*to).prov_errno = error.prov_errno;
            let sized = self.domain.speaks(ERR_DATA_SIZE);
            if sized && (*to).err_data_size != 0 {
                let room = match (*to).err_data.is_null() {
                    true => 0,
                    false => (*to).err_data_size,
                };
                let fit = match room < last.data.len() {
                    // Such addresses are as long as their beginning says: whoever inserts half of one has us read beyond it.
                    true if AddrFormats::SOCKADDR.has(addr_format) => 0,
                    true => room,
                    false => last.data.len(),
                };
                (*to)
                    .err_data
                    .cast::<u8>()
                    .copy_from(last.data.as_ptr(), fit);
                (*to).err_data_size = fit;
            } else {
                // In memory of ours, good until the next error is read.
                (*to).err_data = match last.data.is_empty() {
                    true => std::ptr::null_mut(),
                    false => last.data.as_mut_ptr().cast(),
                };
                if sized {
                    (*to).err_data_size = last.data.len();
                }
            }
            if self.domain.speaks(ERR_SOURCE) {
                (*to).src_addr = done.src.0;
            }
        }
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: as C calls us.
    unsafe { readfrom(cq, buf, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object::<CqObject>(cq) };
        let mut batch = [Completion::BLANK; BATCH];
        let mut done = 0;
        loop {
            let want = (count - done).min(BATCH);
            let got = match this.cq.read(&mut batch[..want]) {
                Ok(got) => got,
                // What was read before is told first; the error stays.
                Err(_) if done != 0 => return Ok(done as isize),
                Err(error) => return Err(error),
            };
            // SAFETY: C has room for `count` entries.
            unsafe {
                let at = buf.cast::<u8>().add(done * this.entry_bytes);
                let sources = match sources.is_null() {
                    true => sources,
                    false => sources.add(done),
                };
                this.write_out(&batch[..got], at, sources);
            }
            done += got;
            if got < want || done == count {
                return Ok(done as isize);
            }
        }
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout_ms) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object::<CqObject>(cq) };
        let mut batch = [Completion::BLANK; BATCH];
        let want = count.min(BATCH);
        let least = match this.by_threshold {
            true => threshold(cond),
            false => 1,
        };
        let timeout = timeout(timeout_ms);
        let got = this.cq.sread_many(&mut batch[..want], least, timeout)?;
        // SAFETY: C has room for `count` entries.
        unsafe { this.write_out(&batch[..got], buf.cast(), sources) };
        Ok(got as isize)
    })
}

/// The entries that a condition asks for. fi_cq(3) has it "interpreted as a size_t": some programs
/// pass the number, some its address. What no memory is at is a number.
fn threshold(cond: *const c_void) -> usize {
    /// The kernel gives no process memory below this, unless its administrator lets it.
    const LEAST_ADDRESS: usize = 1 << 16;
    match cond.addr() {
        0 => 1,
        number if number < LEAST_ADDRESS => number,
        number => word_at(cond.cast()).unwrap_or(number),
    }
}

/// What stands at an address that may be none: the kernel looks.
fn word_at(at: *const usize) -> Option<usize> {
    let mut word = 0usize;
    let part = |at: *mut usize| libc::iovec {
        iov_base: at.cast(),
        iov_len: size_of::<usize>(),
    };
    let (to, from) = (part(&raw mut word), part(at.cast_mut()));
    // SAFETY: there is room for a word; the other address is checked by the kernel.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (read == size_of::<usize>() as isize).then_some(word)
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object::<CqObject>(cq) };
        if buf.is_null() {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let error = this.cq.read_error()?.ok_or(OpError::Again)?;
        // SAFETY: C has room for the entry, as long as it is in the application's version: never a reference, which would
        // be to all of ours.
        unsafe { this.write_error(&error, buf) };
        Ok(1)
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        unsafe { object::<CqObject>(cq) }.cq.signal();
        Ok::<_, Errno>(())
    })
}

/// The words of the error that was read last.
unsafe extern "C" fn strerror(
    cq: *mut fid_cq,
    _prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    value(std::ptr::null(), || {
        // SAFETY: as C calls us.
        let this = unsafe { object::<CqObject>(cq) };
        let reason = &this.last_error().reason;
        if !buf.is_null() && len != 0 {
            let text = String::from_utf8_lossy(&reason[..reason.len() - 1]);
            // SAFETY: C has that much room.
            unsafe { copy_text(&text, buf, len) };
            return buf;
        }
        // Good until the next error is read.
        reason.as_ptr().cast()
    })
}
