//! Completion queues (fi_cq(3)).

use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_GETWAIT, fi_addr_t, fi_cq_attr, fi_cq_err_entry, fi_cq_format,
    fi_cq_tagged_entry, fi_wait_obj, fid, fid_cq,
};
use ferrofabric_contracts::addr::MAX_ADDR_BYTES;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_runtime::fabric::{Cq, CqAttr, DomainWait, ObjectId};

use super::domain::OpenDomain;
use super::names::native;
use super::{control, errno, from_c, milliseconds, missing, op};
use crate::client::close;

/// The objects to wait on, best first: a provider may have none.
const WAITS: [fi_wait_obj; 3] = [
    fi_wait_obj::FI_WAIT_FD,
    fi_wait_obj::FI_WAIT_UNSPEC,
    fi_wait_obj::FI_WAIT_NONE,
];

/// A completion queue of the longest format.
pub struct QueueByC {
    pub cq: *mut fid_cq,
    pub id: ObjectId,
    domain: Arc<OpenDomain>,
}

// SAFETY: the domain is opened for calls of any threads (`FI_THREAD_SAFE`).
unsafe impl Send for QueueByC {}
// SAFETY: as above.
unsafe impl Sync for QueueByC {}

impl QueueByC {
    pub fn open(domain: &Arc<OpenDomain>, attr: &CqAttr, id: ObjectId) -> Result<Self> {
        if attr.discards {
            return Err(missing("fi_cq_open of a queue that nobody reads"));
        }
        let mut opened = Ok(());
        for wait_obj in WAITS {
            let mut attr = fi_cq_attr {
                size: attr.size,
                format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
                wait_obj,
                ..fi_cq_attr::default()
            };
            let (at, mut cq) = (domain.domain, null_mut());
            // SAFETY: as fi_cq(3) has it.
            let result = unsafe { call!(at, ops.cq_open(&raw mut attr, &raw mut cq, null_mut())) };
            opened = control(result, "fi_cq_open");
            if opened.is_ok() {
                return Ok(Self {
                    cq,
                    id,
                    domain: domain.clone(),
                });
            }
        }
        Err(opened.unwrap_err())
    }

    /// Has a call read as many entries as `out` has room for.
    fn read_by(
        &self,
        out: &mut [Completion],
        read: impl FnOnce(*mut fi_cq_tagged_entry, usize, *mut fi_addr_t) -> isize,
    ) -> Result<usize, OpError> {
        let mut entries = vec![fi_cq_tagged_entry::default(); out.len()];
        let mut sources = vec![FI_ADDR_NOTAVAIL; out.len()];
        let count = read(entries.as_mut_ptr(), out.len(), sources.as_mut_ptr());
        let count = match usize::try_from(count) {
            Ok(0) => return Err(OpError::Again),
            Ok(count) => count,
            Err(_) => return Err(OpError::from(errno(count))),
        };
        for ((out, entry), source) in out.iter_mut().zip(&entries).zip(&sources).take(count) {
            *out = Completion {
                context: self.domain.contexts.number(entry.op_context),
                flags: Flags::from_bits_retain(entry.flags),
                len: entry.len,
                buf: entry.buf as usize,
                data: entry.data,
                tag: entry.tag,
                src: from_c(*source),
            };
        }
        Ok(count)
    }
}

impl Cq for QueueByC {
    fn read(&self, out: &mut [Completion]) -> Result<usize, OpError> {
        self.read_by(out, |entries, count, sources| {
            // SAFETY: there is room for `count` entries and sources.
            unsafe { call!(self.cq, ops.readfrom(entries.cast(), count, sources)) }
        })
    }

    fn read_error(&self) -> Result<Option<CqError>, OpError> {
        let mut data = [0u8; MAX_ADDR_BYTES];
        let mut entry = fi_cq_err_entry {
            err_data: data.as_mut_ptr().cast(),
            err_data_size: data.len(),
            src_addr: FI_ADDR_NOTAVAIL,
            ..fi_cq_err_entry::default()
        };
        // SAFETY: there is room for the entry and its data.
        match unsafe { call!(self.cq, ops.readerr(&raw mut entry, 0)) } {
            1 => {}
            error => {
                let nothing = OpError::from(errno(error)) == OpError::Again;
                return if nothing {
                    Ok(None)
                } else {
                    op(error).map(|()| None)
                };
            }
        }
        let errno = Errno(entry.err);
        let sender = (errno == Errno::EADDRNOTAVAIL && entry.err_data_size > 0)
            .then(|| Box::new(native(&data[..entry.err_data_size])));
        Ok(Some(CqError {
            completion: Completion {
                context: self.domain.contexts.number(entry.op_context),
                flags: Flags::from_bits_retain(entry.flags),
                len: entry.len,
                buf: entry.buf as usize,
                data: entry.data,
                tag: entry.tag,
                src: from_c(entry.src_addr),
            },
            olen: entry.olen,
            errno,
            prov_errno: entry.prov_errno,
            why: "fi_cq_readerr",
            sender,
        }))
    }

    fn sread_many(
        &self,
        out: &mut [Completion],
        least: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, OpError> {
        if least != 1 {
            return Err(OpError::Failed(Errno::ENOSYS));
        }
        let timeout = milliseconds(timeout);
        let read = self.read_by(out, |entries, count, sources| {
            // SAFETY: there is room for `count` entries and sources.
            unsafe {
                call!(
                    self.cq,
                    ops.sreadfrom(entries.cast(), count, sources, null(), timeout)
                )
            }
        });
        match read {
            Err(OpError::Failed(Errno::EINTR)) => Err(OpError::Again),
            read => read,
        }
    }

    fn begin_wait(&self, _: usize, _: Option<Duration>) -> Result<DomainWait, OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }

    fn look(&self, _: &mut DomainWait, _: &mut [Completion]) -> Result<Option<usize>, OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }

    fn end_wait(&self, _: &mut DomainWait) {}

    fn signal(&self) {
        // SAFETY: the queue is open.
        let signalled = unsafe { call!(self.cq, ops.signal()) };
        assert_eq!(signalled, 0);
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>> {
        let (fid, mut fd): (*mut fid, i32) = (self.cq.cast(), -1);
        // SAFETY: the queue is open; the command takes a descriptor.
        let given =
            unsafe { (*(*fid).ops).control.unwrap()(fid, FI_GETWAIT, (&raw mut fd).cast()) };
        control(given, "fi_control(FI_GETWAIT)")?;
        // SAFETY: it is there as long as the queue.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn try_wait(&self) -> Result<(), OpError> {
        let mut fids: [*mut fid; 1] = [self.cq.cast()];
        let fabric = self.domain.fabric;
        // SAFETY: a list of one.
        op(unsafe { call!(fabric, ops.trywait(fids.as_mut_ptr(), 1)) } as isize)
    }

    fn id(&self) -> ObjectId {
        self.id
    }
}

impl Drop for QueueByC {
    fn drop(&mut self) {
        super::domain::closed(close(self.cq.cast()), "completion queue");
    }
}
