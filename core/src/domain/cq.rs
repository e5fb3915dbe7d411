//! Completion queue objects (fi_cq(3)): reading drives the domain, waiting spins, then sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::waiting::{Awaited, deadline};
use super::{Backend, Inner, Object};
use crate::cq::CqQueue;
use crate::error::{Errno, Error, OpError, Result};
use crate::fabric::{Cq, CqAttr, ObjectId};
use crate::peer::{Completion, CqError};

/// Larger queues are refused: a size is memory taken at once.
const MAX_SIZE: usize = 1 << 24;

const DEFAULT_SIZE: usize = 1024;

struct CqHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    index: usize,
    signaled: AtomicBool,
}

pub(super) fn open<B: Backend>(domain: &Arc<Inner<B>>, attr: &CqAttr) -> Result<Arc<dyn Cq>> {
    if attr.size > MAX_SIZE {
        return Err(Error::new(
            Errno::EINVAL,
            "open",
            format!("completion queue of {} entries", attr.size),
        )
        .mend(format!("the largest has {MAX_SIZE}; 0 takes the default")));
    }
    let size = match attr.size {
        0 => DEFAULT_SIZE,
        n => n,
    };
    let index = domain
        .lock_to("open", "completion queue")?
        .cqs
        .insert(CqQueue::new(size));
    Ok(Arc::new(CqHandle {
        domain: domain.clone(),
        index,
        signaled: AtomicBool::new(false),
    }))
}

impl<B: Backend> Cq for CqHandle<B> {
    #[inline]
    fn read(&self, out: &mut [Completion]) -> Result<usize, OpError> {
        let mut state = self.domain.lock()?;
        if state.cqs[self.index].is_empty() || out.is_empty() {
            self.domain.progress(&mut state);
        }
        state.cqs[self.index].read(out)
    }

    fn read_error(&self) -> Result<Option<CqError>, OpError> {
        Ok(self.domain.lock()?.cqs[self.index].read_error())
    }

    fn sread(&self, out: &mut [Completion], timeout: Option<Duration>) -> Result<usize, OpError> {
        let deadline = timeout.and_then(deadline);
        let awaited = Awaited::Cq(self.index);
        self.domain.wait_until(awaited, deadline, |state| {
            match state.cqs[self.index].read(out) {
                Err(OpError::Again) if self.signaled.swap(false, Ordering::Relaxed) => {
                    Some(Err(OpError::Again))
                }
                Err(OpError::Again) => None,
                done => Some(done),
            }
        })
    }

    fn signal(&self) {
        self.signaled.store(true, Ordering::Relaxed);
        self.domain.wait.signal();
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
