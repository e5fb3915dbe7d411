//! Completion queues (fi_cq(3)).

pub(crate) mod collective;
mod imported;
pub(crate) mod owners;

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use ferrofabric_av::format;
use ferrofabric_contracts::addr::AddrFormats;
use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_runtime::fabric::{Cq, CqAttr, DomainWait};

use crate::abi::{
    FI_AFFINITY, FI_CLASS_CQ, FI_PEER, FI_VERSION, Roomy, fi_addr_t, fi_cq_attr, fi_cq_data_entry,
    fi_cq_entry, fi_cq_err_entry, fi_cq_format, fi_cq_msg_entry, fi_cq_tagged_entry,
    fi_cq_wait_cond, fi_ops, fi_ops_cq, fid, fid_cq,
};
use crate::cancel::{self, Looked, Waiter, testing, unwinding};
use crate::domain::DomainObject;
use crate::fid::{Object, SharedObject, object_of};
use crate::guard::{Refused, control, data, value};
use crate::memory::{ErrorData, say};
use crate::reasons::{number_of, words_of};
use crate::srx::{BoundReceives, ForeignReceives};
use crate::wait::{self, WaitObject, Waitable, timeout};
use collective::CollectiveCq;
use imported::ImportedCq;

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
pub(crate) struct CqObject {
    pub(crate) cq: Arc<dyn Cq>,
    /// Bytes of an entry of its format.
    entry_bytes: usize,
    wait: WaitObject,
    /// Waits say how many entries they want (`FI_CQ_COND_THRESHOLD`).
    by_threshold: bool,
    error_data: ErrorData,
    /// The queue of another provider that gets the completions.
    pub(crate) imported: Option<ImportedCq>,
    /// Where the domain has collective operations.
    pub(crate) collective: Option<CollectiveCq>,
    /// Whether the receives that it reports are of other providers. All are of one kind.
    has_foreign: OnceLock<bool>,
    /// Messages that are announced when the owner reads.
    receives: BoundReceives,
    domain: SharedObject<DomainObject>,
}

// SAFETY: `fid_cq` starts with the `fid`.
unsafe impl Object for CqObject {
    type Raw = fid_cq;
    const CLASS: usize = FI_CLASS_CQ;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_cq {
        let ops = match (&self.imported, &self.collective) {
            (Some(_), _) => imported::OPS.as_ptr(),
            (_, Some(_)) => collective::OPS.as_ptr(),
            (None, None) => OPS.as_ptr(),
        };
        fid_cq { fid, ops }
    }
}

static FID_OPS: fi_ops = wait::ops_of::<CqObject>();

impl Waitable for CqObject {
    fn wait_object(&self) -> WaitObject {
        self.wait
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>, Refused> {
        match &self.collective {
            Some(part) => Ok(part.wait_fd()?),
            None => Ok(self.cq.wait_fd()?),
        }
    }

    fn try_wait(&self) -> Result<(), OpError> {
        match &self.collective {
            Some(part) => part.try_wait(&*self.cq),
            None => self.cq.try_wait(),
        }
    }
}

static OPS: Roomy<fi_ops_cq> = Roomy::new(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(unwinding!(
        read as fn(*mut fid_cq, *mut c_void, usize) -> isize
    )),
    readfrom: Some(unwinding!(
        readfrom as fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> isize
    )),
    readerr: Some(readerr),
    sread: Some(unwinding!(
        sread as fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize
    )),
    sreadfrom: Some(unwinding!(
        sreadfrom
            as fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t, *const c_void, c_int) -> isize
    )),
    signal: Some(signal),
    strerror: Some(strerror),
});

impl CqObject {
    /// Opens a completion queue. `context` counts where the attributes have `FI_PEER`.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL. With `FI_PEER`, `context` is as fi_peer(3) has it.
    pub(crate) unsafe fn open(
        domain: SharedObject<DomainObject>,
        attr: *mut fi_cq_attr,
        context: *const c_void,
    ) -> Result<Self, Refused> {
        let mut wanted = CqAttr::default();
        let mut entry_bytes = size_of::<fi_cq_entry>();
        let (mut wait, mut by_threshold) = (WaitObject::NONE, false);
        let mut tells_format = false;
        let mut imported = None;
        if !attr.is_null() {
            // SAFETY: as the caller says. The structure is the same in all versions. It may be a
            // constant.
            let attr = unsafe { attr.read() };
            if attr.flags & !(FI_AFFINITY | FI_PEER) != 0 {
                return Err(Errno::EBADFLAGS.into());
            }
            if attr.flags & FI_PEER != 0 {
                domain.check_imports("a completion queue of another provider")?;
                // SAFETY: as the caller says.
                imported = Some(unsafe { ImportedCq::of(context.cast()) }?);
            } else {
                wait = WaitObject::of(attr.wait_obj)?;
            }
            by_threshold = match attr.wait_cond {
                // No thread can wait, so the condition is ignored (fi_cq(3)).
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
            // SAFETY: as the caller says. An application that leaves the choice open has to learn
            // of it.
            unsafe { (*attr).format = fi_cq_format::FI_CQ_FORMAT_CONTEXT };
        }
        Ok(Self {
            cq,
            entry_bytes,
            wait,
            by_threshold,
            error_data: ErrorData::default(),
            imported,
            collective: domain.has_collectives().then(CollectiveCq::default),
            has_foreign: OnceLock::new(),
            receives: BoundReceives::default(),
            domain,
        })
    }

    /// Checks that the queue can report receives, those of another provider or posted ones.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not the queue of another provider, or it reports receives of the other kind.
    pub(crate) fn check_receives(&self, foreign: bool) -> Result<(), Error> {
        let refused = |mend| Err(Error::new(Errno::EINVAL, "bind", "completion queue").mend(mend));
        match foreign {
            true if self.imported.is_none() => {
                refused("open the queue with FI_PEER, as the shared receive context")
            }
            _ if *self.has_foreign.get_or_init(|| foreign) != foreign => refused(
                "use one queue for endpoints with a shared receive context, another for those without",
            ),
            _ => Ok(()),
        }
    }

    /// Has the owner's reads announce these messages.
    pub(crate) fn add_receives(&self, receives: &Arc<ForeignReceives>) {
        self.receives.add(receives);
    }

    /// Forgets the entries of an endpoint that is closed.
    pub(crate) fn forget(&self, receives: &ForeignReceives) {
        if let Some(imported) = &self.imported {
            imported.forget(receives);
        }
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
    /// Fills in what the application's version of the structure has, and keeps what it points to.
    ///
    /// # Safety
    ///
    /// There is room for that, and for as much error data as the structure says.
    #[cold]
    pub(crate) unsafe fn write_error(&self, error: &CqError, to: *mut fi_cq_err_entry) {
        // Error data is the address of a sender; of all else `fi_cq_strerror` has what is known.
        let addr_format = self.domain.domain.info().addr_format;
        let data = match &error.sender {
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
            (*to).prov_errno = number_of(error.why, error.prov_errno);
            let sized = self.domain.speaks(ERR_DATA_SIZE);
            let room = match sized {
                true => (*to).err_data_size,
                false => 0,
            };
            // The beginning of such an address gives its length: an application that inserted half
            // of one would make us read beyond it.
            let is_whole = AddrFormats::SOCKADDR.has(addr_format);
            let bytes = (self.error_data).give(data, is_whole, &raw mut (*to).err_data, room);
            if sized {
                (*to).err_data_size = bytes;
            }
            if self.domain.speaks(ERR_SOURCE) {
                (*to).src_addr = done.src.0;
            }
        }
    }
}

unsafe extern "C-unwind" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { testing(read_entries(cq, buf, count, std::ptr::null_mut())) }
}

unsafe extern "C-unwind" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { testing(read_entries(cq, buf, count, sources)) }
}

/// Blank completions, as many as there is room for: a read of one entry pays for one alone.
#[inline]
fn blank(room: &mut [MaybeUninit<Completion>]) -> &mut [Completion] {
    for one in &mut *room {
        one.write(Completion::BLANK);
    }
    // SAFETY: each of them was just written.
    unsafe { &mut *(std::ptr::from_mut(room) as *mut [Completion]) }
}

/// # Safety
///
/// As C calls us: there is room for `count` entries, and sources where those are wanted.
unsafe fn read_entries(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object_of::<CqObject>(cq) };
        let mut room = [const { MaybeUninit::uninit() }; BATCH];
        let mut done = 0;
        loop {
            let want = (count - done).min(BATCH);
            let batch = blank(&mut room[..want]);
            let got = match this.cq.read(batch) {
                Ok(got) => got,
                // Return the entries that were read already; the error stays in the queue.
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

unsafe extern "C-unwind" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout_ms) }
}

unsafe extern "C-unwind" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    let mut reader = MaybeUninit::<CqWait>::uninit();
    // SAFETY: as C calls us; the thread may be cancelled. A wait that has begun has a reader.
    unsafe {
        match begin_read(cq, (buf, count, sources), cond, timeout_ms, &mut reader) {
            0 => cancel::wait(reader.as_mut_ptr()),
            error => error,
        }
    }
}

/// A wait for entries.
struct CqWait {
    cq: *const CqObject,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    wait: DomainWait,
}

/// Begins a wait for entries: 0, or an error.
///
/// # Safety
///
/// As C calls us: there is room for `count` entries, and sources where those are wanted, until the
/// wait is over.
unsafe fn begin_read(
    cq: *mut fid_cq,
    (buf, count, sources): (*mut c_void, usize, *mut fi_addr_t),
    cond: *const c_void,
    timeout_ms: c_int,
    reader: &mut MaybeUninit<CqWait>,
) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object_of::<CqObject>(cq) };
        let least = match this.by_threshold {
            true => threshold(cond),
            false => 1,
        };
        reader.write(CqWait {
            cq: this,
            buf,
            count,
            sources,
            wait: this.cq.begin_wait(least, timeout(timeout_ms))?,
        });
        Ok(0)
    })
}

impl Waiter for CqWait {
    fn look(&mut self) -> Looked {
        // SAFETY: C does not close a queue in a call that waits for it.
        let this = unsafe { &*self.cq };
        let mut room = [const { MaybeUninit::uninit() }; BATCH];
        let batch = blank(&mut room[..self.count.min(BATCH)]);
        match this.cq.look(&mut self.wait, batch) {
            Ok(None) => match self.wait.nap() {
                Some(nap) => Looked::Sleep(nap),
                None => Looked::Over(-(Errno::EINVAL.0 as isize)),
            },
            Ok(Some(got)) => {
                // SAFETY: C has room for `count` entries.
                unsafe { this.write_out(&batch[..got], self.buf.cast(), self.sources) };
                Looked::Over(got as isize)
            }
            Err(error) => Looked::Over(-(error.errno().0 as isize)),
        }
    }

    fn interrupt(&mut self) {
        self.wait.interrupt();
    }

    fn end(&mut self) {
        // SAFETY: as above.
        unsafe { &*self.cq }.cq.end_wait(&mut self.wait);
    }
}

/// The number of entries that a condition requires. fi_cq(3) has it "interpreted as a size_t": some
/// programs pass the number, some its address. Where no memory is, it is a number.
fn threshold(cond: *const c_void) -> usize {
    /// The kernel gives no process memory below this, unless its administrator lets it.
    const LEAST_ADDRESS: usize = 1 << 16;
    match cond.addr() {
        0 => 1,
        number if number < LEAST_ADDRESS => number,
        number => word_at(cond.cast()).unwrap_or(number),
    }
}

/// The number at an address that may be none: the kernel looks.
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
    if read == size_of::<usize>() as isize {
        return Some(word);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // SAFETY: the kernel may not look (some containers forbid it): the manual has it that this
        // is the address of a number.
        Some(libc::EPERM | libc::ENOSYS) => Some(unsafe { at.read_unaligned() }),
        _ => None,
    }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object_of::<CqObject>(cq) };
        if buf.is_null() {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let error = this.cq.read_error()?.ok_or(OpError::Again)?;
        // SAFETY: C has room for the entry, as long as it is in the application's version: never a
        // reference, which would be to all of ours.
        unsafe { this.write_error(&error, buf) };
        Ok(1)
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        unsafe { object_of::<CqObject>(cq) }.cq.signal();
        Ok::<_, Errno>(())
    })
}

pub(crate) unsafe extern "C" fn strerror(
    _cq: *mut fid_cq,
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
