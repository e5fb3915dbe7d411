//! Completion queue objects (fi_cq(3)): reading drives the domain, waiting spins, then sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Backend, Inner, Object, State};
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
        wait_until(&self.domain, deadline, |state| {
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

/// When a wait is over; never, where that is beyond all that clocks can tell.
pub(super) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Drives the domain until `done` has an answer or the deadline is there (`Again` then): spins for a while, then sleeps
/// until something comes.
pub(super) fn wait_until<B: Backend, R>(
    domain: &Inner<B>,
    deadline: Option<Instant>,
    mut done: impl FnMut(&mut State<B::Transport>) -> Option<Result<R, OpError>>,
) -> Result<R, OpError> {
    let mut spin_until = Instant::now() + domain.spin;
    loop {
        let mut state = domain.lock()?;
        domain.progress(&mut state);
        if let Some(answer) = done(&mut state) {
            return answer;
        }
        let now = Instant::now();
        if deadline.is_some_and(|at| now >= at) {
            return Err(OpError::Again);
        }
        if now < spin_until {
            drop(state);
            std::hint::spin_loop();
            continue;
        }
        if !arm(&mut state)? {
            continue;
        }
        state.sleepers += 1;
        drop(state);
        let slept = domain.wait.sleep(deadline);
        domain.lock()?.sleepers -= 1;
        slept.map_err(|e| OpError::Failed(e.errno()))?;
        spin_until = Instant::now() + domain.spin;
    }
}

/// Asks every endpoint to wake us. False when one of them has something already.
fn arm<T: crate::peer::Transport>(state: &mut State<T>) -> Result<bool, OpError> {
    let mut quiet = true;
    for (_, endpoint) in &mut state.endpoints {
        quiet &= endpoint
            .transport
            .arm()
            .map_err(|e| OpError::Failed(e.errno()))?;
    }
    Ok(quiet)
}
