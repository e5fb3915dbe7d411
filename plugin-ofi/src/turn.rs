//! Locks for work in which the owner's functions are called: nobody waits to do such work, but a
//! close waits until it is done. So does an insertion of addresses, unless the thread that inserts
//! them does such work in a frame above: two such threads would wait for each other.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrofabric_system::locks::{Mutex, MutexGuard};

/// The lock, with the state of the work.
#[derive(Default)]
pub(crate) struct TurnLock<T> {
    state: Mutex<T>,
    /// The thread that does the work; 0: none.
    thread: AtomicU64,
}

/// The work is this thread's.
pub(crate) struct TurnGuard<'a, T> {
    state: MutexGuard<'a, T>,
    thread: &'a AtomicU64,
}

impl<T> TurnLock<T> {
    /// Takes the work; `None`: another thread does it, or this one does in a frame above.
    pub(crate) fn try_take(&self) -> Option<TurnGuard<'_, T>> {
        let state = self.state.try_lock()?;
        Some(self.taken(state))
    }

    /// Waits until no other thread does the work, and takes it; `None`: this thread does such work
    /// in a frame above, maybe for another object.
    pub(crate) fn take_outside_work(&self) -> Option<TurnGuard<'_, T>> {
        match is_working() {
            true => None,
            false => self.take(),
        }
    }

    /// Waits until no other thread does the work, and takes it; `None`: this thread does it in a
    /// frame above.
    pub(crate) fn take(&self) -> Option<TurnGuard<'_, T>> {
        if self.thread.load(Ordering::Relaxed) == this_thread() {
            return None;
        }
        Some(self.taken(self.state.lock()))
    }

    /// Waits until no other thread does the work.
    pub(crate) fn wait(&self) {
        drop(self.take());
    }

    fn taken<'a>(&'a self, state: MutexGuard<'a, T>) -> TurnGuard<'a, T> {
        self.thread.store(this_thread(), Ordering::Relaxed);
        WORKS.with(|works| works.set(works.get() + 1));
        TurnGuard {
            state,
            thread: &self.thread,
        }
    }
}

impl<T> Deref for TurnGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> DerefMut for TurnGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T> Drop for TurnGuard<'_, T> {
    fn drop(&mut self) {
        self.thread.store(0, Ordering::Relaxed);
        WORKS.with(|works| works.set(works.get() - 1));
    }
}

thread_local! {
    /// How much such work the thread does, each within another.
    static WORKS: Cell<u32> = const { Cell::new(0) };
}

fn is_working() -> bool {
    WORKS.with(Cell::get) != 0
}

/// Work that comes up in any thread, and that one does at a time.
#[derive(Default)]
pub(crate) struct SharedWork {
    turn: TurnLock<()>,
    /// The thread that works is to look again.
    is_more: AtomicBool,
}

impl SharedWork {
    /// Does the work that there is. If another thread works, or this one in a frame above, it is
    /// left to that. `work` does all that there is, or returns false: the rest waits for the next
    /// call.
    pub(crate) fn run(&self, mut work: impl FnMut() -> bool) {
        self.is_more.store(true, Ordering::SeqCst);
        while self.is_more.load(Ordering::SeqCst) {
            let Some(turn) = self.turn.try_take() else {
                return;
            };
            self.is_more.store(false, Ordering::SeqCst);
            if !work() {
                return;
            }
            drop(turn);
        }
    }

    /// As [`run`](Self::run), after a preparation. If another thread works, or this one in a frame
    /// above, there is neither: a thread that polls would keep that one from its end.
    pub(crate) fn run_unless_busy(&self, prepare: impl FnOnce(), work: impl FnMut() -> bool) {
        let Some(turn) = self.turn.try_take() else {
            return;
        };
        prepare();
        drop(turn);
        self.run(work);
    }

    /// Waits until no other thread works.
    pub(crate) fn wait(&self) {
        self.turn.wait();
    }
}

/// A number for each thread, never 0.
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    }
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_comes_up_within_work_is_done_after_it() {
        let (work, left) = (SharedWork::default(), AtomicU64::new(3));
        let mut calls = 0;
        work.run(|| {
            calls += 1;
            if left.load(Ordering::Relaxed) != 0 {
                left.fetch_sub(1, Ordering::Relaxed);
                work.run(|| unreachable!("it is in a frame above"));
            }
            true
        });
        assert_eq!((calls, left.load(Ordering::Relaxed)), (4, 0));
        let mut calls = 0;
        work.run(|| {
            calls += 1;
            work.run(|| unreachable!("it is in a frame above"));
            false
        });
        assert_eq!(calls, 1);
        work.wait();
    }

    #[test]
    fn work_is_not_prolonged_by_threads_that_poll() {
        let work = SharedWork::default();
        let poll = || work.run_unless_busy(|| unreachable!(), || unreachable!());
        let mut calls = 0;
        work.run(|| {
            calls += 1;
            std::thread::scope(|threads| threads.spawn(poll).join().unwrap());
            poll();
            true
        });
        assert_eq!(calls, 1);
        let (prepared, mut calls) = (AtomicBool::new(false), 0);
        let work_that_is_left = || {
            assert!(prepared.load(Ordering::Relaxed));
            calls += 1;
            true
        };
        let prepare = || {
            work.run(|| unreachable!("the turn is this thread's"));
            prepared.store(true, Ordering::Relaxed);
        };
        work.run_unless_busy(prepare, work_that_is_left);
        assert_eq!(calls, 1);
    }

    #[test]
    fn a_thread_takes_its_own_work_once() {
        let lock = TurnLock::<u32>::default();
        let mut turn = lock.try_take().unwrap();
        *turn += 1;
        assert!(lock.try_take().is_none() && lock.take().is_none());
        lock.wait();
        assert!(TurnLock::<u32>::default().take_outside_work().is_none());
        std::thread::scope(|threads| {
            let other = threads.spawn(|| lock.try_take().is_none());
            assert!(other.join().unwrap());
            let waits = threads.spawn(|| *lock.take().unwrap());
            *turn += 1;
            drop(turn);
            assert_eq!(waits.join().unwrap(), 2);
        });
        assert_eq!(*lock.take_outside_work().unwrap(), 2);
    }
}
