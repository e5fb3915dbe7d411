//! The one lock of a domain: everything that belongs to a domain lives in one value behind it.
//!
//! Its cost follows the threading level that the application asked for (fi_domain(3)): a mutex at
//! `FI_THREAD_SAFE`, nothing but a comparison with the thread's own address at `FI_THREAD_DOMAIN`,
//! where the domain belongs to the first thread that uses it, and nothing at all where the caller
//! vouches for it (the C plugin: libfabric's contract says that the application serializes its
//! calls).
//!
//! At the last two levels a thread of ours may visit the value between two calls
//! (`docs/adr/0090`). A caller writes that it has the value, then reads whether there is a visitor.
//! A visitor writes that it is there, has every processor that runs this process execute a barrier,
//! and then reads whether a caller has the value. So one of them sees the other, and the caller
//! executes no barrier.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};

use parking_lot::RawMutex;
use parking_lot::lock_api::{RawMutex as _, RawMutexFair as _};

use crate::foreign;
use crate::forked::Birth;
use crate::lock_order;
use crate::process_barrier;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::info::Threading;

enum LockMode {
    Mutex(RawMutex),
    OneThread(AtomicUsize),
    Unchecked,
}

/// A value that one caller at a time may use.
///
/// There is one guard at a time. A thread that has the value and locks it again gets `EBUSY`, or at
/// the levels with a mutex would wait for itself, so no call that has the guard takes the lock.
/// Functions of other authors may make such calls. Therefore a thread inside a
/// [`ForeignCall`](crate::foreign::ForeignCall) waits for no mutex: one that is held is `EBUSY`,
/// whichever thread holds it. In a child of fork, a mutex that is held is `EBUSY`, too: a thread of
/// the parent held it, and the child does not have that thread.
pub struct Serial<T> {
    mode: LockMode,
    birth: Birth,
    /// A caller has it, where there is no mutex. Only callers that may have it write this.
    held: AtomicBool,
    /// A visitor has it, or looks whether it can.
    is_visited: AtomicBool,
    /// Held by the visitor.
    visits: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: `lock` gives access to one caller at a time: by the mutex, by admitting one thread only,
// or by the contract of `unchecked`. `visit` gives access where no caller has it (`enter`).
unsafe impl<T: Send> Sync for Serial<T> {}

impl<T> Serial<T> {
    /// A value that is locked as the level requires.
    pub fn new(threading: Threading, value: T) -> Self {
        Self {
            mode: match threading {
                Threading::Domain => LockMode::OneThread(AtomicUsize::new(0)),
                Threading::Unspec
                | Threading::Safe
                | Threading::Fid
                | Threading::Completion
                | Threading::Endpoint => LockMode::Mutex(RawMutex::INIT),
            },
            birth: Birth::here(),
            held: AtomicBool::new(false),
            is_visited: AtomicBool::new(false),
            visits: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// A value that is not locked at all.
    ///
    /// # Safety
    ///
    /// The caller sees to it that no two threads use the value at a time, and that one's use is
    /// over and visible before the next's.
    pub unsafe fn unchecked(value: T) -> Self {
        Self {
            mode: LockMode::Unchecked,
            birth: Birth::here(),
            held: AtomicBool::new(false),
            is_visited: AtomicBool::new(false),
            visits: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Whether the calling thread may take the value, if it waits for it.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    pub fn admit(&self) -> Result<(), Errno> {
        self.admit_thread()?;
        match foreign::is_inside() && self.is_held() {
            true => Err(Errno::EBUSY),
            false => Ok(()),
        }
    }

    #[inline]
    fn admit_thread(&self) -> Result<(), Errno> {
        match &self.mode {
            LockMode::OneThread(owner) if owner.load(Ordering::Relaxed) != thread_mark() => {
                self.claim(owner)
            }
            _ => Ok(()),
        }
    }

    /// Whether a thread has it. With a mutex another thread may take or leave it meanwhile.
    fn is_held(&self) -> bool {
        match &self.mode {
            LockMode::Mutex(mutex) => mutex.is_locked(),
            LockMode::OneThread(_) | LockMode::Unchecked => {
                self.held.load(Ordering::Relaxed) || self.is_visited.load(Ordering::Relaxed)
            }
        }
    }

    /// Takes the value, waiting for it where threads share it.
    ///
    /// # Errors
    ///
    /// `EBUSY` at [`Threading::Domain`] when another thread has used the value before; of a value
    /// that is held, inside a [`ForeignCall`](crate::foreign::ForeignCall) and in a child of fork.
    #[inline]
    pub fn lock(&self) -> Result<SerialGuard<'_, T>, Errno> {
        match &self.mode {
            LockMode::Mutex(mutex) => {
                lock_order::about_to_lock_a_domain();
                if !mutex.try_lock() {
                    self.wait_for(mutex)?;
                }
            }
            LockMode::OneThread(_) => {
                self.admit_thread()?;
                self.enter()?;
            }
            LockMode::Unchecked => self.enter()?,
        }
        lock_order::count_domain(1);
        Ok(SerialGuard(self))
    }

    /// Takes the value where there is no mutex. Waits for a visitor.
    #[inline]
    fn enter(&self) -> Result<(), Errno> {
        match self.try_enter() {
            true => Ok(()),
            false => self.await_visitor(),
        }
    }

    /// Takes the value where there is no mutex, unless a caller or a visitor has it. A thread that
    /// visits sees that it does, so a call from within its visit does not touch the callers' mark.
    #[inline]
    fn try_enter(&self) -> bool {
        if self.held.load(Ordering::Relaxed) | self.is_visited.load(Ordering::Relaxed) {
            return false;
        }
        self.held.store(true, Ordering::Relaxed);
        process_barrier::frequent_half();
        let is_visited = self.is_visited.load(Ordering::Acquire);
        if is_visited {
            self.leave();
        }
        !is_visited
    }

    /// Gives the value back where there is no mutex.
    #[inline]
    fn leave(&self) {
        self.held.store(false, Ordering::Release);
    }

    #[cold]
    fn await_visitor(&self) -> Result<(), Errno> {
        loop {
            // A call within a call, which has to fail.
            if self.held.load(Ordering::Relaxed) {
                return Err(Errno::EBUSY);
            }
            if foreign::is_inside() || !self.birth.is_this_process() {
                return Err(Errno::EBUSY);
            }
            drop(self.visits.lock());
            if self.try_enter() {
                return Ok(());
            }
        }
    }

    /// Takes the value if that is sure to be allowed, and possible without waiting. At
    /// [`Threading::Domain`] it has to belong to the calling thread already. A value that is
    /// [`unchecked`](Self::unchecked) is never taken: its caller may be any thread.
    pub fn try_lock(&self) -> Option<SerialGuard<'_, T>> {
        let is_ours = match &self.mode {
            // Nobody holds a value that could be locked.
            LockMode::Mutex(mutex) => mutex.try_lock(),
            LockMode::OneThread(owner) => {
                owner.load(Ordering::Relaxed) == thread_mark() && self.try_enter()
            }
            LockMode::Unchecked => false,
        };
        if !is_ours {
            return None;
        }
        lock_order::count_domain(1);
        Some(SerialGuard(self))
    }

    /// Takes the value for a thread of ours, at each level, if no caller and no other visitor has
    /// it. A caller that comes meanwhile waits until the visit ends. Costs a system call where
    /// there is no mutex; `None`, too, where the system does not have it.
    #[cold]
    pub fn visit(&self) -> Option<Visit<'_, T>> {
        let kind = match &self.mode {
            LockMode::Mutex(_) => VisitKind::Locked(self.try_lock()?),
            LockMode::OneThread(_) | LockMode::Unchecked => {
                VisitKind::BetweenCalls(self.visit_between_calls()?)
            }
        };
        Some(Visit(kind))
    }

    fn visit_between_calls(&self) -> Option<BetweenCalls<'_, T>> {
        if !self.birth.is_this_process() {
            return None;
        }
        let visits = self.visits.try_lock()?;
        self.is_visited.store(true, Ordering::Relaxed);
        // From here on it is given back when it is dropped.
        lock_order::count_domain(1);
        let visit = BetweenCalls {
            serial: self,
            _visits: visits,
        };
        // Acquires what the last caller has written.
        let is_free = process_barrier::rare_half() && !self.held.load(Ordering::Acquire);
        is_free.then_some(visit)
    }

    #[cold]
    fn wait_for(&self, mutex: &RawMutex) -> Result<(), Errno> {
        if foreign::is_inside() || !self.birth.is_this_process() {
            return Err(Errno::EBUSY);
        }
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if !mutex.is_locked() && mutex.try_lock() {
                return Ok(());
            }
        }
        mutex.lock();
        Ok(())
    }

    #[cold]
    fn claim(&self, owner: &AtomicUsize) -> Result<(), Errno> {
        owner
            .compare_exchange(0, thread_mark(), Ordering::Acquire, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| Errno::EBUSY)
    }
}

/// Access to a [`Serial`] value.
pub struct SerialGuard<'a, T>(&'a Serial<T>);

impl<T> SerialGuard<'_, T> {
    /// Unlocks, and passes the mutex to the longest waiter if there is one. A thread that unlocks
    /// only to lock again would mostly have it back before a waiter is awake.
    pub fn hand_over(self) {
        lock_order::count_domain(-1);
        match &self.0.mode {
            // SAFETY: `lock` took the mutex for this `SerialGuard`, which is forgotten below.
            LockMode::Mutex(mutex) => unsafe { mutex.unlock_fair() },
            LockMode::OneThread(_) | LockMode::Unchecked => self.0.leave(),
        }
        std::mem::forget(self);
    }
}

impl<T> Deref for SerialGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a `SerialGuard` exists once at a time: `held` is set, and only the holder of the
        // mode's lock gets to set it.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SerialGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` keeps out other uses of this `SerialGuard`.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SerialGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        lock_order::count_domain(-1);
        // With a mutex nobody reads that.
        self.0.leave();
        if let LockMode::Mutex(mutex) = &self.0.mode {
            // SAFETY: `lock` took the mutex for this `SerialGuard`.
            unsafe { mutex.unlock() };
        }
    }
}

/// Access of a visitor to a [`Serial`] value.
pub struct Visit<'a, T>(VisitKind<'a, T>);

enum VisitKind<'a, T> {
    Locked(SerialGuard<'a, T>),
    BetweenCalls(BetweenCalls<'a, T>),
}

/// The access where there is no mutex, or the attempt to get it.
struct BetweenCalls<'a, T> {
    serial: &'a Serial<T>,
    _visits: MutexGuard<'a, ()>,
}

impl<T> Deref for Visit<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            VisitKind::Locked(guard) => guard,
            // SAFETY: no caller has the value, and one that comes waits; there is one visitor.
            VisitKind::BetweenCalls(visit) => unsafe { &*visit.serial.value.get() },
        }
    }
}

impl<T> DerefMut for Visit<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            VisitKind::Locked(guard) => guard,
            // SAFETY: as in `deref`; `&mut self` keeps out other uses of this visit.
            VisitKind::BetweenCalls(visit) => unsafe { &mut *visit.serial.value.get() },
        }
    }
}

impl<T> Drop for BetweenCalls<'_, T> {
    fn drop(&mut self) {
        lock_order::count_domain(-1);
        // Before the next visitor may come.
        self.serial.is_visited.store(false, Ordering::Release);
    }
}

/// Looks at a mutex that is held before the thread sleeps: most hold it for less time than falling
/// asleep and waking take.
const LOOKS: u32 = 200;

/// A number that no two living threads share.
#[inline]
fn thread_mark() -> usize {
    #[cfg(not(loom))]
    thread_local!(static MARK: Cell<u8> = const { Cell::new(0) });
    #[cfg(loom)]
    loom::thread_local!(static MARK: Box<Cell<u8>> = Box::new(Cell::new(0)));
    #[cfg(loom)]
    return MARK.with(|mark| std::ptr::from_ref(&**mark) as usize);
    #[cfg(not(loom))]
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::ForeignCall;
    use std::sync::Arc;

    /// At each level, and without a lock.
    fn each_mode() -> [Serial<u32>; 3] {
        [
            Serial::new(Threading::Safe, 7),
            Serial::new(Threading::Domain, 7),
            // SAFETY: one thread alone uses it.
            unsafe { Serial::unchecked(7) },
        ]
    }

    #[test]
    fn threads_take_turns_at_the_safe_level() {
        let counter = Arc::new(Serial::new(Threading::Safe, 0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counter = counter.clone();
                std::thread::spawn(move || {
                    for _ in 0..10_000 {
                        *counter.lock().unwrap() += 1;
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(*counter.lock().unwrap(), 40_000);
    }

    #[test]
    fn a_second_thread_is_refused_at_the_domain_level() {
        let value = Arc::new(Serial::new(Threading::Domain, 7));
        assert_eq!(*value.lock().unwrap(), 7);
        let other = value.clone();
        let refused = std::thread::spawn(move || other.lock().err())
            .join()
            .unwrap();
        assert_eq!(refused, Some(Errno::EBUSY));
        assert_eq!(*value.lock().unwrap(), 7);
    }

    #[test]
    fn one_thread_can_not_hold_it_twice() {
        let value = Serial::new(Threading::Domain, 7);
        let held = value.lock().unwrap();
        assert_eq!(value.lock().err(), Some(Errno::EBUSY));
        drop(held);
        assert!(value.lock().is_ok());
    }

    #[test]
    fn a_foreign_call_waits_for_nothing() {
        for value in each_mode() {
            let call = ForeignCall::begin();
            let held = value.lock().unwrap();
            for _ in 0..2 {
                assert_eq!(value.lock().err(), Some(Errno::EBUSY));
                assert_eq!(value.admit(), Err(Errno::EBUSY));
                assert!(value.try_lock().is_none());
            }
            drop(held);
            assert_eq!(value.lock().map(|held| *held), Ok(7));
            assert_eq!(value.admit(), Ok(()));
            drop(call);
            assert_eq!(value.lock().map(|held| *held), Ok(7));
        }
    }

    #[test]
    fn a_thread_waits_for_the_foreign_call_of_another() {
        let value = Serial::new(Threading::Safe, 7);
        let mut held = value.lock().unwrap();
        let call = ForeignCall::begin();
        std::thread::scope(|threads| {
            let other = threads.spawn(|| value.lock().map(|held| *held));
            *held = 8;
            drop(held);
            assert_eq!(other.join().unwrap(), Ok(8));
        });
        drop(call);
    }

    /// A child of fork has none of its parent's threads, so it would wait for one for ever.
    #[test]
    fn a_forked_child_waits_for_no_thread_of_its_parent() {
        let value = Serial::new(Threading::Safe, 7);
        let held = value.lock().unwrap();
        // SAFETY: the child tries to take a lock, which needs no other thread, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends a child that waits, with a signal.
            unsafe { libc::alarm(60) };
            let refused = value.lock().err() == Some(Errno::EBUSY);
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        drop(held);
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_try_takes_what_is_free_and_sure() {
        for threading in [Threading::Safe, Threading::Domain] {
            let value = Serial::new(threading, 7);
            let held = value.lock().unwrap();
            assert!(value.try_lock().is_none());
            drop(held);
            assert_eq!(value.try_lock().map(|held| *held), Some(7));
            assert_eq!(value.try_lock().map(|held| *held), Some(7));
            let is_shared = threading == Threading::Safe;
            std::thread::scope(|threads| {
                let other = threads.spawn(|| value.try_lock().is_some());
                assert_eq!(other.join().unwrap(), is_shared);
            });
        }
        // Of no thread yet.
        assert!(Serial::new(Threading::Domain, 7).try_lock().is_none());
        // SAFETY: one thread alone uses it.
        assert!(unsafe { Serial::unchecked(7) }.try_lock().is_none());
    }

    #[test]
    fn a_visitor_comes_between_two_calls() {
        for value in each_mode() {
            let held = value.lock().unwrap();
            let comes = || std::thread::scope(|s| s.spawn(|| visited(&value)).join().unwrap());
            assert_eq!(comes(), None);
            drop(held);
            assert_eq!(comes(), Some(8));
            assert_eq!(comes(), Some(9));
            assert_eq!(value.lock().map(|held| *held), Ok(9));
        }
    }

    fn visited(value: &Serial<u32>) -> Option<u32> {
        let mut visit = value.visit()?;
        assert!(value.visit().is_none() && value.try_lock().is_none());
        *visit += 1;
        Some(*visit)
    }

    /// A foreign call that finds a visitor waits for nothing, nor does one of the visitor.
    #[test]
    fn a_foreign_call_waits_for_no_visitor() {
        for value in each_mode() {
            drop(value.lock());
            let visit = value.visit().unwrap();
            let call = ForeignCall::begin();
            assert_eq!(value.lock().err(), Some(Errno::EBUSY));
            assert_eq!(value.admit(), Err(Errno::EBUSY));
            drop(call);
            drop(visit);
            assert_eq!(value.lock().map(|held| *held), Ok(7));
        }
    }

    /// The caller executes no barrier, and both sides have the value often.
    #[test]
    fn a_caller_and_visitors_take_turns() {
        const CALLS: u64 = 300_000;
        // SAFETY: one thread calls, and the others visit.
        let value = unsafe { Serial::unchecked([0u64; 2]) };
        let ends = AtomicBool::new(false);
        let visits = std::thread::scope(|threads| {
            let visitors = [(); 2].map(|()| {
                threads.spawn(|| {
                    let mut visits = 0;
                    while !ends.load(Ordering::Relaxed) || visits == 0 {
                        if let Some(mut visit) = value.visit() {
                            visit.iter_mut().for_each(|count| *count += 1);
                            visits += 1;
                        }
                    }
                    visits
                })
            });
            for _ in 0..CALLS {
                let mut held = value.lock().unwrap();
                held.iter_mut().for_each(|count| *count += 1);
            }
            ends.store(true, Ordering::Relaxed);
            let counts = visitors.map(|visitor| visitor.join().unwrap());
            counts.iter().sum::<u64>()
        });
        assert_eq!(*value.lock().unwrap(), [CALLS + visits; 2]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// At the level of one thread, whoever comes first has the value for itself, and the others are
    /// refused, in every order.
    #[test]
    fn one_thread_has_it() {
        loom::model(|| {
            let value = Arc::new(Serial::new(Threading::Domain, UnsafeCell::new(0u32)));
            let uses = |value: &Serial<UnsafeCell<u32>>| {
                (0..2)
                    .filter(|_| match value.lock() {
                        Ok(held) => {
                            // SAFETY: nobody else has it; loom checks that.
                            held.with_mut(|value| unsafe { *value += 1 });
                            true
                        }
                        Err(errno) => {
                            assert_eq!(errno, Errno::EBUSY);
                            false
                        }
                    })
                    .count()
            };
            let theirs = Arc::clone(&value);
            let other = thread::spawn(move || uses(&theirs));
            let (ours, theirs) = (uses(&value), other.join().unwrap());
            assert_eq!([ours.min(theirs), ours.max(theirs)], [0, 2]);
        });
    }

    /// In every order, a visitor has the value between two calls, or not at all.
    #[test]
    fn a_visitor_has_it_between_calls() {
        loom::model(|| {
            // SAFETY: one thread calls.
            let value = Arc::new(unsafe { Serial::unchecked(UnsafeCell::new(0u32)) });
            let theirs = Arc::clone(&value);
            let visitor = thread::spawn(move || {
                theirs.visit().is_some_and(|visit| {
                    // SAFETY: nobody else has it; loom checks that.
                    visit.with_mut(|value| unsafe { *value += 1 });
                    true
                })
            });
            for _ in 0..2 {
                let held = value.lock().unwrap();
                // SAFETY: as above.
                held.with_mut(|value| unsafe { *value += 1 });
            }
            let visits = u32::from(visitor.join().unwrap());
            let held = value.lock().unwrap();
            // SAFETY: as above.
            assert_eq!(held.with(|value| unsafe { *value }), 2 + visits);
        });
    }
}
