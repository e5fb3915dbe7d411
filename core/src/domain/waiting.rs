//! Waiting for completions and counters: drives the domain, spins for a while, then sleeps until something comes.
//!
//! Threads wait for different things on one domain. Whoever does something that another waits for wakes it: what
//! completes within a call wakes no descriptor. And whoever drives the transports while others sleep has them watched
//! again afterwards: they take a call to progress for a sign that somebody looks.

use std::time::{Duration, Instant};

use slab::Slab;

use super::cntr::Count;
use super::{Backend, Inner, State};
use crate::cq::CqQueue;
use crate::error::{OpError, Result};
use crate::peer::Transport;

/// Looks that are taken at transports that do not come to rest before their sleepers are woken for it.
const LOOKS: usize = 4;

/// What a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// Something to read in a completion queue.
    Cq(usize),
    /// A counter that has reached a value, or counted more errors than it had.
    Cntr {
        index: usize,
        threshold: u64,
        errors: u64,
    },
}

impl Awaited {
    fn is_there(self, cqs: &Slab<CqQueue>, cntrs: &Slab<Count>) -> bool {
        match self {
            Self::Cq(index) => cqs.get(index).is_some_and(|cq| !cq.is_empty()),
            Self::Cntr {
                index,
                threshold,
                errors,
            } => cntrs
                .get(index)
                .is_some_and(|count| count.value >= threshold || count.errors != errors),
        }
    }
}

/// A thread that sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asleep {
    awaited: Awaited,
    /// It was woken, and has not come to itself yet.
    woken: bool,
}

/// When a wait is over; never, where that is beyond all that clocks can tell.
pub(super) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

impl<B: Backend> Inner<B> {
    /// Drives the domain until `done` has an answer or the deadline is there (`Again` then). `awaited` is what makes
    /// `done` worth asking.
    pub(super) fn wait_until<R>(
        &self,
        awaited: Awaited,
        deadline: Option<Instant>,
        mut done: impl FnMut(&mut State<B::Transport>) -> Option<Result<R, OpError>>,
    ) -> Result<R, OpError> {
        let mut spin_until = Instant::now() + self.spin;
        let mut sleeper = None;
        loop {
            let mut state = self.lock()?;
            self.progress(&mut state);
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
            let Some(sleeper) = &sleeper else {
                drop(state);
                let new = self.wait.sleeper();
                sleeper = Some(new.map_err(|e| OpError::Failed(e.errno()))?);
                continue;
            };
            if !state.arm()? {
                continue;
            }
            let asleep = state.asleep.insert(Asleep {
                awaited,
                woken: false,
            });
            drop(state);
            let slept = sleeper.sleep(deadline);
            self.lock()?.asleep.try_remove(asleep);
            slept.map_err(|e| OpError::Failed(e.errno()))?;
            spin_until = Instant::now() + self.spin;
        }
    }

    /// After a call that may have completed something: wakes those who sleep until that.
    #[inline]
    pub(super) fn wake(&self, state: &mut State<B::Transport>) {
        if !state.asleep.is_empty() {
            self.wake_sleepers(state);
        }
    }

    /// After a call to progress: has the transports watched for those who sleep, too.
    #[inline]
    pub(super) fn tend(&self, state: &mut State<B::Transport>) {
        if !state.asleep.is_empty() {
            self.tend_sleepers(state);
        }
    }

    #[cold]
    fn wake_sleepers(&self, state: &mut State<B::Transport>) {
        let mut any = false;
        for (_, thread) in &mut state.asleep {
            if !thread.woken && thread.awaited.is_there(&state.cqs, &state.cntrs) {
                thread.woken = true;
                any = true;
            }
        }
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
            false => self.wait.signal(),
        }
    }
}

impl<T: Transport> State<T> {
    /// Asks every endpoint to wake who sleeps. False when one of them has something already.
    fn arm(&mut self) -> Result<bool, OpError> {
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
