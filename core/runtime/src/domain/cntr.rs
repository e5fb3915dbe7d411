//! Counters (fi_cntr(3)).

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::count::CounterValues;
use super::waiting::Descriptor;
use super::{Backend, Inner, ObjectKey};
use crate::empty_polls::EmptyPolls;
use crate::fabric::{Cntr, CntrAttr, ObjectId};
use crate::wait::{Awaited, DomainWait};
use ferrofabric_contracts::error::{Errno, OpError, Result};

struct CntrHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    index: usize,
    descriptor: Descriptor,
    polls: EmptyPolls,
}

pub(super) fn open<B: Backend>(domain: &Arc<Inner<B>>, attr: &CntrAttr) -> Result<Arc<dyn Cntr>> {
    let index = domain
        .lock_to("open", "counter")?
        .cntrs
        .insert(CounterValues::of(attr.events));
    Ok(Arc::new(CntrHandle {
        domain: domain.clone(),
        index,
        descriptor: Descriptor::default(),
        polls: EmptyPolls::new(),
    }))
}

impl<B: Backend> CntrHandle<B> {
    /// Reads one of the numbers; `part` returns the number last read, and its present value.
    fn poll(
        &self,
        part: impl FnOnce(&mut CounterValues) -> (&mut u64, u64),
    ) -> Result<u64, OpError> {
        let mut state = self.domain.lock()?;
        let moved = self.domain.progress(&mut state);
        let (seen, value) = part(&mut state.cntrs[self.index]);
        let changed = std::mem::replace(seen, value) != value;
        drop(state);
        self.polls.count(moved || changed);
        Ok(value)
    }

    /// Changes the numbers, and wakes the waiting threads.
    fn change(&self, change: impl FnOnce(&mut CounterValues)) -> Result<(), OpError> {
        let mut state = self.domain.lock()?;
        change(&mut state.cntrs[self.index]);
        self.domain.wake(&mut state);
        Ok(())
    }
}

impl<B: Backend> Cntr for CntrHandle<B> {
    fn read(&self) -> Result<u64, OpError> {
        self.poll(|count| (&mut count.seen.0, count.value))
    }

    fn read_errors(&self) -> Result<u64, OpError> {
        self.poll(|count| (&mut count.seen.1, count.errors))
    }

    fn add(&self, value: u64) -> Result<(), OpError> {
        self.change(|count| count.value = count.value.wrapping_add(value))
    }

    fn set(&self, value: u64) -> Result<(), OpError> {
        self.change(|count| count.value = value)
    }

    fn add_errors(&self, value: u64) -> Result<(), OpError> {
        self.change(|count| count.errors = count.errors.wrapping_add(value))
    }

    fn set_errors(&self, value: u64) -> Result<(), OpError> {
        self.change(|count| count.errors = value)
    }

    fn begin_wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<DomainWait, OpError> {
        let awaited = Awaited::Cntr {
            index: self.index,
            threshold,
            errors: self.domain.lock()?.cntrs[self.index].errors,
        };
        Ok(self.domain.begin_wait(awaited, timeout))
    }

    fn look(&self, wait: &mut DomainWait) -> Result<Option<u64>, OpError> {
        let Awaited::Cntr {
            threshold, errors, ..
        } = wait.awaited()
        else {
            return Err(OpError::Failed(Errno::EINVAL));
        };
        self.domain.look(wait, |state, _| {
            let count = state.cntrs[self.index];
            if count.value >= threshold {
                Some(Ok(count.value))
            } else if count.errors != errors {
                Some(Err(OpError::Failed(Errno::EAVAIL)))
            } else {
                None
            }
        })
    }

    fn end_wait(&self, wait: &mut DomainWait) {
        self.domain.end_wait(wait);
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>> {
        self.descriptor.open(&self.domain.wait)
    }

    fn try_wait(&self) -> Result<(), OpError> {
        let awaited = Awaited::Change(self.index);
        let tried = self.domain.try_wait(awaited, &self.descriptor);
        if tried == Err(OpError::Again) {
            // Counts as read now: the application need not read both numbers before the next wait.
            let mut state = self.domain.lock()?;
            let count = &mut state.cntrs[self.index];
            count.seen = (count.value, count.errors);
        }
        tried
    }

    fn id(&self) -> ObjectId {
        ObjectId {
            domain: self.domain.id(),
            index: self.index,
        }
    }
}

impl<B: Backend> Drop for CntrHandle<B> {
    fn drop(&mut self) {
        self.domain.close(ObjectKey::Cntr(self.index));
    }
}
