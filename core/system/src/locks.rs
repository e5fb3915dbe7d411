//! Locks whose waiters the kernel alone knows, so that a child of fork starts with none.
//!
//! `parking_lot` lists the waiters of a whole process in one table. A child inherits the table with
//! its parent's waiters, which do not exist there: their memory is the stacks of the child's new
//! threads, which overwrite the lists. A thread of the child that is listed behind one of them is
//! never woken, however new its lock is.

use std::sync::{PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

pub use std::sync::MutexGuard;

/// A value for one thread at a time. A thread that panics while it has the value leaves it as it
/// is to the next one.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A value that no thread has.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits until no other thread has the value.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, if no thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, if the caller gets it within a time. For locks that threads have briefly.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        let until = Instant::now() + limit;
        loop {
            let is_over = Instant::now() >= until;
            match self.try_lock() {
                // A sleep would be a point where threads are cancelled.
                None if !is_over => thread::yield_now(),
                taken => return taken,
            }
        }
    }

    /// The value, which the caller has for itself.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Threads that wait for a change of a value behind a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// No thread waits.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Waits for a notification. It may return without one.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification until a time. It may return early.
    pub fn wait_until<'a, T>(&self, guard: MutexGuard<'a, T>, until: Instant) -> MutexGuard<'a, T> {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.0.wait_timeout(guard, left);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_wait_with_a_limit_ends_with_the_lock_or_with_the_limit() {
        let lock = Arc::new(Mutex::new(1));
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        let limit = Duration::from_millis(2);
        let begun = Instant::now();
        assert!(lock.try_lock_for(limit).is_none());
        assert!(begun.elapsed() >= limit);
        let waiter = thread::spawn({
            let lock = lock.clone();
            move || lock.try_lock_for(Duration::from_secs(60)).map(|held| *held)
        });
        drop(held);
        assert_eq!(waiter.join().unwrap(), Some(1));
    }

    #[test]
    fn a_panic_leaves_the_value_to_the_next_thread() {
        let lock = Arc::new(Mutex::new(1));
        let panics = thread::spawn({
            let lock = lock.clone();
            move || {
                *lock.lock() = 2;
                let _held = lock.lock();
                panic!("expected");
            }
        });
        assert!(panics.join().is_err());
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.try_lock().map(|held| *held), Some(2));
    }

    #[test]
    fn a_wait_ends_at_its_time() {
        let (lock, changed) = (Mutex::new(1), Condvar::new());
        let until = Instant::now() + Duration::from_millis(2);
        let mut value = lock.lock();
        while Instant::now() < until {
            value = changed.wait_until(value, until);
        }
        assert_eq!(*value, 1);
    }
}
