//! Counters (fi_cntr(3)).

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use ferro_fi::abi::{fi_cntr_attr, fi_cntr_events, fi_wait_obj, fid_cntr};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_runtime::fabric::{Cntr, CntrAttr, CntrEvents, DomainWait, ObjectId};

use super::domain::OpenDomain;
use super::{control, milliseconds, missing, op};
use crate::client::close;

/// A counter.
pub struct CounterByC {
    pub cntr: *mut fid_cntr,
    pub id: ObjectId,
    _domain: Arc<OpenDomain>,
}

// SAFETY: the domain is opened for calls of any threads (`FI_THREAD_SAFE`).
unsafe impl Send for CounterByC {}
// SAFETY: as above.
unsafe impl Sync for CounterByC {}

impl CounterByC {
    pub fn open(domain: &Arc<OpenDomain>, attr: &CntrAttr, id: ObjectId) -> Result<Self> {
        let mut attr = fi_cntr_attr {
            events: match attr.events {
                CntrEvents::Completions => fi_cntr_events::FI_CNTR_EVENTS_COMP,
                CntrEvents::Bytes => fi_cntr_events::FI_CNTR_EVENTS_BYTES,
            },
            wait_obj: fi_wait_obj::FI_WAIT_UNSPEC,
            ..fi_cntr_attr::default()
        };
        let mut cntr = null_mut();
        let at = domain.domain;
        // SAFETY: as fi_cntr(3) has it.
        let opened = unsafe { call!(at, ops.cntr_open(&raw mut attr, &raw mut cntr, null_mut())) };
        control(opened, "fi_cntr_open")?;
        Ok(Self {
            cntr,
            id,
            _domain: domain.clone(),
        })
    }

    fn changed(result: c_int) -> Result<(), OpError> {
        op(result as isize)
    }
}

impl Cntr for CounterByC {
    fn read(&self) -> Result<u64, OpError> {
        // SAFETY: the counter is open.
        Ok(unsafe { call!(self.cntr, ops.read()) })
    }

    fn read_errors(&self) -> Result<u64, OpError> {
        // SAFETY: as above.
        Ok(unsafe { call!(self.cntr, ops.readerr()) })
    }

    fn add(&self, value: u64) -> Result<(), OpError> {
        // SAFETY: as above.
        Self::changed(unsafe { call!(self.cntr, ops.add(value)) })
    }

    fn set(&self, value: u64) -> Result<(), OpError> {
        // SAFETY: as above.
        Self::changed(unsafe { call!(self.cntr, ops.set(value)) })
    }

    fn add_errors(&self, value: u64) -> Result<(), OpError> {
        // SAFETY: as above.
        Self::changed(unsafe { call!(self.cntr, ops.adderr(value)) })
    }

    fn set_errors(&self, value: u64) -> Result<(), OpError> {
        // SAFETY: as above.
        Self::changed(unsafe { call!(self.cntr, ops.seterr(value)) })
    }

    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<u64, OpError> {
        // SAFETY: as above.
        let waited = unsafe { call!(self.cntr, ops.wait(threshold, milliseconds(timeout))) };
        match op(waited as isize) {
            Ok(()) => self.read(),
            Err(OpError::Failed(Errno::ETIMEDOUT)) => Err(OpError::Again),
            Err(error) => Err(error),
        }
    }

    fn begin_wait(&self, _: u64, _: Option<Duration>) -> Result<DomainWait, OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }

    fn look(&self, _: &mut DomainWait) -> Result<Option<u64>, OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }

    fn end_wait(&self, _: &mut DomainWait) {}

    fn wait_fd(&self) -> Result<BorrowedFd<'_>> {
        Err(missing("FI_GETWAIT of a counter"))
    }

    fn try_wait(&self) -> Result<(), OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }

    fn id(&self) -> ObjectId {
        self.id
    }
}

impl Drop for CounterByC {
    fn drop(&mut self) {
        super::domain::closed(close(self.cntr.cast()), "counter");
    }
}
