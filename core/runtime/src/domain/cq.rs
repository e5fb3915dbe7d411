//! Completion queue objects (fi_cq(3)): reading drives the domain, waiting spins, then sleeps.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::waiting::Descriptor;
use super::{Backend, Inner, ObjectKey};
use crate::cq::CqQueue;
use crate::empty_polls::EmptyPolls;
use crate::fabric::{Cq, CqAttr, ObjectId};
use crate::wait::{Awaited, DomainWait};
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_system::wait::WaitFd;

const DEFAULT_SIZE: usize = 1024;

struct CqHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    index: usize,
    signals: Signals,
    descriptor: Descriptor,
    polls: EmptyPolls,
}

pub(super) fn open<B: Backend>(domain: &Arc<Inner<B>>, attr: &CqAttr) -> Result<Arc<dyn Cq>> {
    let size = match attr.size {
        0 => DEFAULT_SIZE,
        n => n,
    };
    let queue = match attr.discards {
        true => Ok(CqQueue::that_keeps_nothing()),
        false => CqQueue::new(size),
    };
    let queue = queue.map_err(|errno| {
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
        signals: Signals::default(),
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

    fn begin_wait(&self, least: usize, timeout: Option<Duration>) -> Result<DomainWait, OpError> {
        let awaited = Awaited::Cq {
            index: self.index,
            least,
        };
        let mut wait = self.domain.begin_wait(awaited, timeout);
        wait.signals_before = self.signals.enter();
        Ok(wait)
    }

    fn look(
        &self,
        wait: &mut DomainWait,
        out: &mut [Completion],
    ) -> Result<Option<usize>, OpError> {
        let Awaited::Cq { least, .. } = wait.awaited() else {
            return Err(OpError::Failed(Errno::EINVAL));
        };
        let signals_before = wait.signals_before;
        let looked = self.domain.look(wait, |state, _| {
            let cq = &mut state.cqs[self.index];
            if cq.is_ready(least) {
                return Some(cq.read(out));
            }
            let signaled = self.signals.has_come_since(signals_before);
            signaled.then_some(Err(OpError::Again))
        });
        match looked {
            // It returns fewer entries. A signal to the thread and the end of the wait's time have
            // the same number in fi_cq(3).
            Err(OpError::Again | OpError::Failed(Errno::EINTR)) => {
                self.domain.lock()?.cqs[self.index].read(out).map(Some)
            }
            looked => looked,
        }
    }

    fn end_wait(&self, wait: &mut DomainWait) {
        self.domain.end_wait(wait);
    }

    fn signal(&self) {
        self.signals.send();
        self.domain.wait.signal();
        self.descriptor.ring();
    }

    fn wait_fd(&self) -> Result<BorrowedFd<'_>> {
        self.descriptor.open(&self.domain.wait)
    }

    fn try_wait(&self) -> Result<(), OpError> {
        self.domain.try_wait(self.awaited(), &self.descriptor)?;
        match self.signals.has_come_since(self.signals.enter()) {
            true => Err(OpError::Again),
            false => Ok(()),
        }
    }

    fn try_wait_for_capacity(&self) -> Result<(), OpError> {
        let awaited = Awaited::CapacityOrCq(self.index);
        self.domain.try_wait(awaited, &self.descriptor)?;
        match self.signals.has_come_since(self.signals.enter()) {
            true => Err(OpError::Again),
            false => Ok(()),
        }
    }

    fn watch(&self, descriptor: &WaitFd) -> Result<(), OpError> {
        self.domain.watch(self.awaited(), descriptor)
    }

    fn unwatch(&self, descriptor: &WaitFd) {
        self.domain.unwatch(self.awaited(), descriptor);
    }

    fn id(&self) -> ObjectId {
        ObjectId {
            domain: self.domain.id(),
            index: self.index,
        }
    }
}

impl<B: Backend> CqHandle<B> {
    /// The condition of a wait on a descriptor.
    fn awaited(&self) -> Awaited {
        Awaited::Cq {
            index: self.index,
            least: 1,
        }
    }
}

impl<B: Backend> Drop for CqHandle<B> {
    fn drop(&mut self) {
        self.domain.close(ObjectKey::Cq(self.index));
    }
}

/// Signals to the threads that wait for a queue (`fi_cq_signal`): a signal ends all present waits,
/// or else the next one. A wait that ends for another reason leaves the signal to the next wait.
#[derive(Default)]
struct Signals {
    /// The count of signals so far.
    count: AtomicU64,
    /// The count up to which signals have ended a wait.
    answered: AtomicU64,
}

impl Signals {
    /// A wait begins: the count of the signals that do not end it.
    fn enter(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    fn send(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there was a signal beyond this count, which has then ended a wait.
    fn has_come_since(&self, before: u64) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        if count != before {
            self.answered.fetch_max(count, Ordering::Relaxed);
        }
        count != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_all_waits_and_none_that_comes_later() {
        let signals = Signals::default();
        let waits = [signals.enter(), signals.enter()];
        signals.send();
        assert!(waits.iter().all(|&before| signals.has_come_since(before)));
        assert!(!signals.has_come_since(signals.enter()));
    }

    #[test]
    fn a_signal_that_ended_no_wait_ends_the_next() {
        let signals = Signals::default();
        // The wait finds a completion, and does not check for signals.
        let _wait = signals.enter();
        signals.send();
        assert!(signals.has_come_since(signals.enter()));
        assert!(!signals.has_come_since(signals.enter()));
    }
}
