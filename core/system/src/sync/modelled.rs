//! `loom`'s counterparts of what it has not, or not with the calls and the care that the models
//! take.

use loom::sync::MutexGuard;
use loom::sync::atomic::{self, Ordering};
use loom::thread::{self, ThreadId};

/// An atomic of `loom` with separate records of the threads that read it.
///
/// `loom` tries another order of two accesses if one of them writes, but of each word it remembers
/// the last access alone. A thread that reads a word before it writes it hides another thread's
/// earlier read from `loom`, which then never tries the later reads of that thread. So there is one
/// more word for each of two threads: a reader first reads its own one, a writer first writes the
/// other's.
macro_rules! atomic {
    ($($name:ident of $value:ty),*) => {$(
        #[derive(Debug, Default)]
        pub struct $name {
            word: atomic::$name,
            readers: Readers,
        }

        impl $name {
            pub fn new(value: $value) -> Self {
                Self {
                    word: atomic::$name::new(value),
                    readers: Readers::default(),
                }
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.readers.read();
                self.word.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.readers.write();
                self.word.store(value, order);
            }

            #[allow(dead_code, reason = "not every kind is used so")]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.readers.write();
                self.word.compare_exchange(current, new, success, failure)
            }

            #[allow(dead_code, reason = "not every kind is used so")]
            pub fn fetch_add(&self, more: $value, order: Ordering) -> $value {
                self.readers.write();
                self.word.fetch_add(more, order)
            }

            #[allow(dead_code, reason = "not every kind is used so")]
            pub fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.readers.write();
                self.word.fetch_or(bits, order)
            }

            #[allow(dead_code, reason = "not every kind is used so")]
            pub fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                self.readers.write();
                self.word.fetch_and(bits, order)
            }
        }
    )*};
}

atomic!(AtomicU32 of u32, AtomicU64 of u64, AtomicUsize of usize);

/// The reader of a word: the thread that made it, or another.
#[derive(Debug)]
struct Readers {
    maker: ThreadId,
    beside: [atomic::AtomicBool; 2],
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            maker: thread::current().id(),
            beside: Default::default(),
        }
    }
}

impl Readers {
    fn is_other(&self) -> usize {
        usize::from(thread::current().id() != self.maker)
    }

    fn read(&self) {
        self.beside[self.is_other()].load(Ordering::Relaxed);
    }

    fn write(&self) {
        self.beside[1 - self.is_other()].store(true, Ordering::Relaxed);
    }
}

/// `loom`'s lock with the calls of [`crate::locks::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(held) => held,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// `std`'s cell, whose guarantee `loom` sees: a thread that finds the value sees all writes from
/// before it was put in.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    there: atomic::AtomicBool,
    turn: Mutex<()>,
}

impl<T> OnceLock<T> {
    pub fn new() -> Self {
        Self {
            value: std::sync::OnceLock::new(),
            there: atomic::AtomicBool::new(false),
            turn: Mutex::new(()),
        }
    }

    pub fn get(&self) -> Option<&T> {
        match self.there.load(Ordering::Acquire) {
            true => self.value.get(),
            false => None,
        }
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.there.store(true, Ordering::Release);
        Ok(())
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let _turn = self.turn.lock();
        let value = self.value.get_or_init(make);
        self.there.store(true, Ordering::Release);
        value
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}
