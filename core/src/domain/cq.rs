//! Completion queue objects (fi_cq(3)): reading drives the domain, waiting spins, then sleeps.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::empty_polls::EmptyPolls;
use super::waiting::{Awaited, Descriptor, deadline};
use super::{Backend, Inner, Object};
use crate::cq::CqQueue;
use crate::error::{Error, OpError, Result};
use crate::fabric::{Cq, CqAttr, ObjectId};
use crate::peer::{Completion, CqError};

const DEFAULT_SIZE: usize = 1024;

struct CqHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    index: usize,
    signaled: AtomicBool,
    descriptor: Descriptor,
    polls: EmptyPolls,
}

pub(super) fn open<B: Backend>(domain: &Arc<Inner<B>>, attr: &CqAttr) -> Result<Arc<dyn Cq>> {
    let size = match attr.size {
        0 => DEFAULT_SIZE,
        n => n,
    };
    let queue = CqQueue::new(size).map_err(|errno| {
        let object = format!("completion queue of {size} entries");
        Error::new(errno, "open", object)
            .mend("ask for fewer: a queue grows with what it holds, whatever its size")
    })?;
    let index = domain
        .lock_to("open", "completion queue")?
        .cqs
        .insert(queue);
    Ok(Arc::new(CqHandle {
        domain: domain.clone(),
        index,
        signaled: AtomicBool::new(false),
        descriptor: Descriptor::default(),
        polls: EmptyPolls::new(),
    }))
}

impl<B: Backend> Cq for CqHandle<B> {
    #[inline]
    fn read(&self, out: &mut [Completion]) -> Result<usize, OpError> {
        let mut state = self.domain.lock()?;
        let moved = (state.cqs[self.index].is_empty() || out.is_empty())
            && self.domain.progress(&mut state);
        let read = state.cqs[self.index].read(out);
        drop(state);
        let nothing = matches!(read, Err(OpError::Again) | Ok(0));
        self.polls.count(moved || !nothing);
        read
    }

    fn read_error(&self) -> Result<Option<CqError>, OpError> {
        Ok(self.domain.lock()?.cqs[self.index].read_error())
    }

    fn sread_many(
        &self,
        out: &mut [Completion],
        least: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, OpError> {
        let deadline = timeout.and_then(deadline);
        let awaited = Awaited::Cq {
            index: self.index,
            least,
        };
        let waited = self.domain.wait_until(awaited, deadline, |state| {
            let cq = &mut state.cqs[self.index];
            if cq.holds(least) {
                return Some(cq.read(out));
            }
            let signaled = self.signaled.swap(false, Ordering::Relaxed);
            signaled.then_some(Err(OpError::Again))
        });
        match waited {
            // It need not wait for the others.
            Err(OpError::Again) => self.domain.lock()?.cqs[self.index].read(out),
            waited => waited,
        }
    }

    fn signal(&self) {
        self.signaled.store(true, Ordering::Relaxed);
        self.domain.wait.signal();
        self.descriptor.ring();
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>> {
        self.descriptor.open(&self.domain.wait)
    }

    fn try_wait(&self) -> Result<(), OpError> {
        let awaited = Awaited::Cq {
            index: self.index,
            least: 1,
        };
        self.domain.try_wait(awaited, &self.descriptor)?;
        match self.signaled.swap(false, Ordering::Relaxed) {
            true => Err(OpError::Again),
            false => Ok(()),
        }
    }

    fn id(&self) -> ObjectId {
        ObjectId {
            domain: self.domain.id(),
            index: self.index,
        }
    }
}

impl<B: Backend> Drop for CqHandle<B> {
    fn drop(&mut self) {
        self.domain.close(Object::Cq(self.index));
    }
}
