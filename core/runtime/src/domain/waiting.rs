//! Waiting for completions and counters: drives the domain, spins for a while, then sleeps until it
//! is woken.
//!
//! Threads wait for different conditions on one domain. A thread that fulfils the condition of
//! another wakes it, since a completion within a call wakes no descriptor. A thread that drives the
//! transports while others sleep arms them again afterwards, since a transport wakes no sleeper
//! after a call to progress until it is armed.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slab::Slab;

use super::count::CounterValues;
use super::endpoint_state::EndpointState;
use super::{Backend, DomainShared, DomainState, ObjectKey, neighbours};
use crate::cq::CqQueue;
use crate::wait::{Awaited, DomainWait, WaitStep};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::peer::{PeerAv, Transport};
use ferrofabric_system::wait::{WaitFd, WaitSet, WakeBell};

/// Number of times that busy transports are polled again before their sleepers are woken instead.
const REARM_POLLS: usize = 4;

/// Longest sleep of a thread that waits for capacity. Events wake it; one that holds the table of
/// unresolved addresses for long does not.
const CAPACITY_SLEEP: Duration = Duration::from_millis(20);

/// Longest sleep of a thread that waits for peers, some of which only this thread may drive.
const NEIGHBOURS_SLEEP: Duration = Duration::from_millis(1);

/// Whether the condition of a wait is fulfilled.
fn is_fulfilled<T: Transport>(
    awaited: Awaited,
    may_have_capacity: bool,
    endpoints: &Slab<EndpointState<T>>,
    cqs: &Slab<CqQueue>,
    cntrs: &Slab<CounterValues>,
) -> bool {
    match awaited {
        Awaited::Drained(index) => endpoints.get(index).is_none_or(EndpointState::is_drained),
        Awaited::Delivered(index) => endpoints.get(index).is_none_or(EndpointState::is_delivered),
        Awaited::Cq { index, least } => cqs.get(index).is_some_and(|cq| cq.is_ready(least)),
        Awaited::Capacity => may_have_capacity,
        Awaited::CapacityOrCq(index) => {
            may_have_capacity || cqs.get(index).is_some_and(|cq| cq.is_ready(1))
        }
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

/// A sleeping thread, or an application that may sleep on a descriptor.
#[derive(Clone, Debug)]
pub(super) struct DomainWaiter {
    awaited: Awaited,
    /// It was woken, and has not run yet.
    woken: bool,
    /// The bell that wakes it, if it is not the domain's signal.
    bell: Option<WakeBell>,
}

impl DomainWaiter {
    /// Rings the bell, if there is one: then no thread returns from a sleeping call, and the waiter
    /// is removed. Returns whether it stays.
    fn stays_when_woken(&self) -> bool {
        match &self.bell {
            Some(bell) => {
                bell.ring();
                false
            }
            None => true,
        }
    }

    /// Whether it waits for this, with this bell.
    fn is_of(&self, awaited: Awaited, bell: &WakeBell) -> bool {
        self.awaited == awaited && self.bell.as_ref() == Some(bell)
    }

    /// Whether it waits for an object.
    pub(super) fn is_on(&self, object: ObjectKey) -> bool {
        match (self.awaited, object) {
            (Awaited::Cq { index, .. } | Awaited::CapacityOrCq(index), ObjectKey::Cq(at)) => {
                index == at
            }
            (Awaited::Cntr { index, .. } | Awaited::Change(index), ObjectKey::Cntr(at)) => {
                index == at
            }
            _ => false,
        }
    }
}

/// The descriptor of an object, made at the first request.
#[derive(Default)]
pub(super) struct Descriptor {
    fd: OnceLock<WaitFd>,
    /// Its last wait is for capacity, too.
    waits_for_capacity: AtomicBool,
}

impl Descriptor {
    pub(super) fn open(&self, set: &WaitSet) -> Result<BorrowedFd<'_>> {
        if self.fd.get().is_none() {
            let _ = self.fd.set(set.descriptor()?);
        }
        match self.fd.get() {
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
        if let Some(fd) = self.fd.get() {
            fd.bell().ring();
        }
    }
}

impl<B: Backend> DomainShared<B> {
    /// Begins a wait until the deadline.
    pub(super) fn begin_wait(&self, awaited: Awaited, timeout: Option<Duration>) -> DomainWait {
        DomainWait::begin(awaited, timeout, self.spin)
    }

    /// Drives the domain until `done` has an answer or the deadline has come (`Again` then), and no
    /// longer than the wait spins: `None` means that the caller must sleep and call again. After a
    /// signal to the thread it checks once (`EINTR` then). `done` gets whether something moved.
    pub(super) fn look<R>(
        &self,
        wait: &mut DomainWait,
        mut done: impl FnMut(&mut DomainState<B::Transport>, bool) -> Option<Result<R, OpError>>,
    ) -> Result<Option<R>, OpError> {
        loop {
            let mut state = self.lock()?;
            if let Some(waiter) = wait.end_sleep() {
                state.waiters.try_remove(waiter);
                wait.spin_again(self.spin);
            }
            let moved = self.progress(&mut state);
            if let Some(answer) = done(&mut state, moved) {
                return answer.map(Some);
            }
            match wait.after_empty_look()? {
                WaitStep::Spin => {
                    drop(state);
                    wait.count_look(moved);
                    continue;
                }
                WaitStep::TakeSet => {
                    // The set must exist before the check after which the thread sleeps.
                    drop(state);
                    let set = self.wait.take_set();
                    wait.sleep_on(set.map_err(|e| OpError::Failed(e.errno()))?);
                    continue;
                }
                WaitStep::Sleep => {}
            }
            if !state.arm()? {
                continue;
            }
            wait.begin_sleep(state.waiters.insert(DomainWaiter {
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
            // The transports of the parent process send the rest.
            return Ok(());
        }
        self.drain_until(Awaited::Drained(index), index, timeout)
    }

    /// Drives the domain until an endpoint has delivered what the application takes for sent, for as
    /// long as closing may take. What is lost then is in the log.
    #[cold]
    pub(super) fn deliver_before_close(&self, index: usize) {
        let awaited = Awaited::Delivered(index);
        match self.lock() {
            Ok(state) if !state.fulfills(awaited, false) => {}
            // There is nothing to deliver, or the domain's own thread closes the endpoint later.
            _ => return,
        }
        let timeout = self.close_timeout;
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            match self.drain_until(awaited, index, left) {
                Err(OpError::Failed(Errno::EINTR)) => {}
                _ => break,
            }
        }
        let Ok(state) = self.lock() else { return };
        let Some(endpoint) = state.endpoints.get(index) else {
            return;
        };
        endpoint.report_undelivered(&mut |peer, messages| {
            let name = state.avs[endpoint.binding.av].lookup(peer);
            let peer = name.map_or_else(|| "an unknown peer".to_owned(), |name| name.to_string());
            tracing::warn!(
                peer,
                messages,
                ?timeout,
                "an endpoint closes and loses messages: the peer has not taken them in time; raise \
                 FERRO_CLOSE_TIMEOUT, or let the peer drive its endpoint"
            );
        });
    }

    /// Drives the domain until an endpoint fulfils a condition, or its time has passed.
    fn drain_until(
        &self,
        awaited: Awaited,
        index: usize,
        timeout: Option<Duration>,
    ) -> Result<(), OpError> {
        let mut wait = self.begin_wait(awaited, timeout);
        let drained = loop {
            let looked = self.look(&mut wait, |state, moved| {
                state.drain(index);
                state.fulfills(awaited, moved).then_some(Ok(()))
            });
            match looked {
                Ok(Some(())) => break Ok(()),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            // This thread may be the one that drives the peers.
            neighbours::drive();
            if let Err(error) = wait.sleep_at_most(NEIGHBOURS_SLEEP) {
                break Err(error);
            }
        };
        self.end_wait(&mut wait);
        drained
    }

    /// As [`Endpoint::wait_for_capacity`](crate::fabric::Endpoint::wait_for_capacity).
    #[cold]
    pub(super) fn wait_for_capacity(
        &self,
        timeout: Option<Duration>,
        attempt: &mut dyn FnMut() -> bool,
    ) -> Result<(), OpError> {
        let mut wait = self.begin_wait(Awaited::Capacity, timeout);
        let accepted = loop {
            if attempt() {
                break Ok(());
            }
            match self.look(&mut wait, |_, moved| moved.then_some(Ok(()))) {
                Ok(Some(())) => continue,
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            // What another thread moved before this one was among the sleepers wakes nobody.
            if attempt() {
                break Ok(());
            }
            if let Err(error) = wait.sleep_at_most(CAPACITY_SLEEP) {
                break Err(error);
            }
        };
        self.end_wait(&mut wait);
        accepted
    }

    /// Frees the resources of a wait.
    pub(super) fn end_wait(&self, wait: &mut DomainWait) {
        if let Some(waiter) = wait.end_sleep() {
            if let Ok(mut state) = self.lock() {
                state.waiters.try_remove(waiter);
            }
        }
        self.wait.put_back(wait.end());
    }

    /// Prepares for a wait on a descriptor, which becomes readable when the condition is fulfilled:
    /// `Again` if it is fulfilled already. One that waits for capacity gets `Again` also if that
    /// may have come since the last call.
    pub(super) fn try_wait(
        &self,
        awaited: Awaited,
        descriptor: &Descriptor,
    ) -> Result<(), OpError> {
        let fd = (descriptor.fd.get()).ok_or(OpError::Failed(Errno::EINVAL))?;
        let mut state = self.lock()?;
        let for_capacity = matches!(awaited, Awaited::CapacityOrCq(_));
        let waited = descriptor.waits_for_capacity.load(Ordering::Relaxed);
        // The waiter of the last call is gone if its bell was rung: clearing the bell loses that.
        let is_of_last = |one: &DomainWaiter| one.is_of(awaited, fd.bell());
        let came = for_capacity && waited && !state.waiters.iter().any(|(_, one)| is_of_last(one));
        state
            .waiters
            .retain(|_, one| one.bell.as_ref() != Some(fd.bell()));
        fd.bell().clear();
        let armed = match came {
            true => Err(OpError::Again),
            false => self.arm_bell(&mut state, awaited, fd.bell()),
        };
        let waits = for_capacity && armed.is_ok();
        (descriptor.waits_for_capacity).store(waits, Ordering::Relaxed);
        armed
    }

    /// Has a descriptor, which may be that of more objects, become readable when the condition is
    /// fulfilled: `Again` if it is fulfilled already.
    pub(super) fn watch(&self, awaited: Awaited, descriptor: &WaitFd) -> Result<(), OpError> {
        let joined = self.wait.make_readable(descriptor);
        joined.map_err(|e| OpError::Failed(e.errno()))?;
        let (mut state, bell) = (self.lock()?, descriptor.bell());
        state.waiters.retain(|_, one| !one.is_of(awaited, bell));
        self.arm_bell(&mut state, awaited, bell)
    }

    /// Takes that back.
    pub(super) fn unwatch(&self, awaited: Awaited, descriptor: &WaitFd) {
        if self.is_inherited() {
            // The descriptor is that of the parent process, too.
            return;
        }
        self.wait.leave(descriptor);
        if let Ok(mut state) = self.lock() {
            let bell = descriptor.bell();
            state.waiters.retain(|_, one| !one.is_of(awaited, bell));
        }
    }

    fn arm_bell(
        &self,
        state: &mut DomainState<B::Transport>,
        awaited: Awaited,
        bell: &WakeBell,
    ) -> Result<(), OpError> {
        for _ in 0..REARM_POLLS {
            let moved = self.progress(state);
            if state.fulfills(awaited, moved) {
                break;
            }
            if state.arm()? {
                state.waiters.insert(DomainWaiter {
                    awaited,
                    woken: false,
                    bell: Some(bell.clone()),
                });
                return Ok(());
            }
        }
        Err(OpError::Again)
    }

    /// After a call that may have completed operations: wakes the threads that wait for those.
    #[inline]
    pub(super) fn wake(&self, state: &mut DomainState<B::Transport>) {
        if !state.waiters.is_empty() {
            self.wake_sleepers(state);
        }
    }

    /// After a call to progress, in which something `moved` or not: arms the transports again for
    /// the threads that sleep.
    #[inline]
    pub(super) fn rearm(&self, state: &mut DomainState<B::Transport>, moved: bool) {
        if state.is_watched() {
            self.rearm_for_sleepers(state, moved);
        }
    }

    #[cold]
    fn wake_sleepers(&self, state: &mut DomainState<B::Transport>) {
        let may_have_capacity = std::mem::take(&mut state.may_have_capacity);
        let DomainState {
            waiters,
            endpoints,
            cqs,
            cntrs,
            ..
        } = state;
        let mut any = false;
        waiters.retain(|_, one| {
            if !one.woken && is_fulfilled(one.awaited, may_have_capacity, endpoints, cqs, cntrs) {
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
    fn rearm_for_sleepers(&self, state: &mut DomainState<B::Transport>, moved: bool) {
        state.may_have_capacity |= moved;
        let mut at_rest = false;
        for _ in 0..REARM_POLLS {
            match state.arm() {
                Ok(false) => state.may_have_capacity |= state.progress() != 0,
                Ok(true) => {
                    at_rest = true;
                    break;
                }
                // The sleepers find the error themselves.
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

impl<T: Transport> DomainState<T> {
    /// Whether the condition of a wait is fulfilled.
    fn fulfills(&self, awaited: Awaited, may_have_capacity: bool) -> bool {
        is_fulfilled(
            awaited,
            may_have_capacity,
            &self.endpoints,
            &self.cqs,
            &self.cntrs,
        )
    }

    /// Makes the peers of an endpoint acknowledge the messages that were sent to them.
    fn drain(&mut self, index: usize) {
        let (transport, mut owner) =
            self.endpoints[index].split(&mut self.cqs, &mut self.cntrs, &self.avs);
        transport.drain(&mut owner);
        owner.start_deferred(transport);
    }

    /// Arms every endpoint to wake sleepers. False if one of them has work already.
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
