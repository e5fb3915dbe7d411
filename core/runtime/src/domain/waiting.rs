//! Waiting for completions and counters: drives the domain, spins for a while, then sleeps until
//! something comes.
//!
//! Threads wait for different things on one domain. Whoever does something that another waits for
//! wakes it: what completes within a call wakes no descriptor. And whoever drives the transports
//! while others sleep has them watched again afterwards: they take a call to progress for a sign
//! that somebody looks.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

use slab::Slab;

use super::count::Count;
use super::endpoint_state::EndpointState;
use super::{Backend, Object, Shared, State};
use crate::cq::CqQueue;
use crate::wait::{Awaited, Next, Wait};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::peer::Transport;
use ferrofabric_system::wait::{WaitFd, WaitSet, WakeBell};

/// Looks that are taken at transports that do not come to rest before their sleepers are woken for
/// it.
const LOOKS: usize = 4;

/// Whether it is there.
fn is_there<T: Transport>(
    awaited: Awaited,
    endpoints: &Slab<EndpointState<T>>,
    cqs: &Slab<CqQueue>,
    cntrs: &Slab<Count>,
) -> bool {
    match awaited {
        Awaited::Drained(index) => endpoints.get(index).is_none_or(EndpointState::is_drained),
        Awaited::Cq { index, least } => cqs.get(index).is_some_and(|cq| cq.holds(least)),
        Awaited::Change(index) => cntrs.get(index).is_some_and(|count| !count.is_seen()),
        Awaited::Cntr {
            index,
            threshold,
            errors,
        } => cntrs
            .get(index)
            .is_some_and(|count| count.value >= threshold || count.errors != errors),
    }
}

/// A thread that sleeps, or an application that may, on a descriptor.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    awaited: Awaited,
    /// It was woken, and has not come to itself yet.
    woken: bool,
    /// What wakes it, if it is not the domain's signal.
    bell: Option<WakeBell>,
}

impl Waiter {
    /// Rings, where there is a bell: then there is nobody who comes to himself in a call, and this
    /// is over. Returns whether it is not.
    fn stays_when_woken(&self) -> bool {
        match &self.bell {
            Some(bell) => {
                bell.ring();
                false
            }
            None => true,
        }
    }

    /// Whether it is on an object.
    pub(super) fn is_on(&self, object: Object) -> bool {
        match (self.awaited, object) {
            (Awaited::Cq { index, .. }, Object::Cq(at)) => index == at,
            (Awaited::Cntr { index, .. } | Awaited::Change(index), Object::Cntr(at)) => index == at,
            _ => false,
        }
    }
}

/// The descriptor of an object, for those who ask for it.
#[derive(Default)]
pub(super) struct Descriptor(OnceLock<WaitFd>);

impl Descriptor {
    pub(super) fn open(&self, set: &WaitSet) -> Result<BorrowedFd<'_>> {
        if self.0.get().is_none() {
            let _ = self.0.set(set.descriptor()?);
        }
        match self.0.get() {
            Some(fd) => Ok(fd.as_fd()),
            None => Err(ferrofabric_contracts::error::Error::new(
                Errno::EINVAL,
                "open",
                "wait descriptor",
            )),
        }
    }

    /// Makes it readable.
    pub(super) fn ring(&self) {
        if let Some(fd) = self.0.get() {
            fd.bell().ring();
        }
    }
}

impl<B: Backend> Shared<B> {
    /// Begins a wait until the deadline.
    pub(super) fn begin_wait(&self, awaited: Awaited, timeout: Option<Duration>) -> Wait {
        Wait::begin(awaited, timeout, self.spin)
    }

    /// Drives the domain until `done` has an answer or the deadline is there (`Again` then), and no
    /// longer than the wait spins: `None` asks the caller to sleep and to look again. After a
    /// signal to the thread it looks once (`EINTR` then).
    pub(super) fn look<R>(
        &self,
        wait: &mut Wait,
        mut done: impl FnMut(&mut State<B::Transport>) -> Option<Result<R, OpError>>,
    ) -> Result<Option<R>, OpError> {
        loop {
            let mut state = self.lock()?;
            if let Some(waiter) = wait.end_sleep() {
                state.waiters.try_remove(waiter);
                wait.spin_anew(self.spin);
            }
            let moved = self.progress(&mut state);
            if let Some(answer) = done(&mut state) {
                return answer.map(Some);
            }
            match wait.after_empty_look()? {
                Next::Spin => {
                    drop(state);
                    wait.count_look(moved);
                    continue;
                }
                Next::TakeSet => {
                    // It has to be there before the look after which it sleeps.
                    drop(state);
                    let set = self.wait.take_set();
                    wait.sleep_on(set.map_err(|e| OpError::Failed(e.errno()))?);
                    continue;
                }
                Next::Sleep => {}
            }
            if !state.arm()? {
                continue;
            }
            wait.begin_sleep(state.waiters.insert(Waiter {
                awaited: wait.awaited(),
                woken: false,
                bell: None,
            }));
            return Ok(None);
        }
    }

    /// Drives the domain until an endpoint can close without loss, or the time is over.
    pub(super) fn wait_until_drained(
        &self,
        index: usize,
        timeout: Option<Duration>,
    ) -> Result<(), OpError> {
        if self.is_inherited() {
            // The parent's transports send what is left.
            return Ok(());
        }
        let mut wait = self.begin_wait(Awaited::Drained(index), timeout);
        let drained = loop {
            let looked = self.look(&mut wait, |state| {
                state.drain(index);
                state.endpoints[index].is_drained().then_some(Ok(()))
            });
            match looked {
                Ok(Some(())) => break Ok(()),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = wait.sleep() {
                break Err(error);
            }
        };
        self.end_wait(&mut wait);
        drained
    }

    /// Takes back what a wait holds.
    pub(super) fn end_wait(&self, wait: &mut Wait) {
        if let Some(waiter) = wait.end_sleep() {
            if let Ok(mut state) = self.lock() {
                state.waiters.try_remove(waiter);
            }
        }
        self.wait.put_back(wait.end());
    }

    /// Prepares for a wait on a descriptor, which what is awaited ends: `Again` when it is there
    /// already.
    pub(super) fn try_wait(
        &self,
        awaited: Awaited,
        descriptor: &Descriptor,
    ) -> Result<(), OpError> {
        let fd = descriptor.0.get().ok_or(OpError::Failed(Errno::EINVAL))?;
        let mut state = self.lock()?;
        state
            .waiters
            .retain(|_, one| one.bell.as_ref() != Some(fd.bell()));
        fd.bell().clear();
        for _ in 0..LOOKS {
            self.progress(&mut state);
            if is_there(awaited, &state.endpoints, &state.cqs, &state.cntrs) {
                break;
            }
            if state.arm()? {
                state.waiters.insert(Waiter {
                    awaited,
                    woken: false,
                    bell: Some(fd.bell().clone()),
                });
                return Ok(());
            }
        }
        Err(OpError::Again)
    }

    /// After a call that may have completed something: wakes those who sleep until that.
    #[inline]
    pub(super) fn wake(&self, state: &mut State<B::Transport>) {
        if !state.waiters.is_empty() {
            self.wake_sleepers(state);
        }
    }

    /// After a call to progress: has the transports watched for those who sleep, too.
    #[inline]
    pub(super) fn tend(&self, state: &mut State<B::Transport>) {
        if !state.waiters.is_empty() {
            self.tend_sleepers(state);
        }
    }

    #[cold]
    fn wake_sleepers(&self, state: &mut State<B::Transport>) {
        let State {
            waiters,
            endpoints,
            cqs,
            cntrs,
            ..
        } = state;
        let mut any = false;
        waiters.retain(|_, one| {
            if !one.woken && is_there(one.awaited, endpoints, cqs, cntrs) {
                one.woken = true;
                any |= one.bell.is_none();
                return one.stays_when_woken();
            }
            true
        });
        if any {
            self.wait.signal();
        }
    }

    #[cold]
    fn tend_sleepers(&self, state: &mut State<B::Transport>) {
        let mut at_rest = false;
        for _ in 0..LOOKS {
            match state.arm() {
                Ok(false) => state.progress(),
                Ok(true) => {
                    at_rest = true;
                    break;
                }
                // They find out for themselves.
                Err(_) => break,
            };
        }
        match at_rest {
            true => self.wake_sleepers(state),
            false => {
                state.waiters.retain(|_, one| one.stays_when_woken());
                self.wait.signal();
            }
        }
    }
}

impl<T: Transport> State<T> {
    /// Has the peers of an endpoint acknowledge what was sent to them.
    fn drain(&mut self, index: usize) {
        let (transport, mut owner) =
            self.endpoints[index].split(&mut self.cqs, &mut self.cntrs, &self.avs);
        transport.drain(&mut owner);
        owner.start_deferred(transport);
    }

    /// Asks every endpoint to wake who sleeps. False when one of them has something already.
    pub(super) fn arm(&mut self) -> Result<bool, OpError> {
        let mut at_rest = true;
        for (_, endpoint) in &mut self.endpoints {
            at_rest &= endpoint
                .transport
                .arm()
                .map_err(|e| OpError::Failed(e.errno()))?;
        }
        Ok(at_rest)
    }
}
