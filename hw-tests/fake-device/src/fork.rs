//! The device's state in a child of fork: a copy, in which no operation of another thread is half
//! done. The lock of that thread would never be released in the child.

use std::cell::RefCell;
use std::sync::{MutexGuard, Once};

use crate::model::{DeviceModel, model};

thread_local! {
    /// The lock of a thread that forks.
    static LOCKED: RefCell<Option<MutexGuard<'static, DeviceModel>>> = const { RefCell::new(None) };
}

/// From now on each fork waits for the operation that is under way.
pub(crate) fn wait_for_operations() {
    static WAITS: Once = Once::new();
    WAITS.call_once(|| {
        // SAFETY: the handlers are functions of this library, which the C library forgets when it
        // unloads this one.
        unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
    });
}

unsafe extern "C" fn lock() {
    let guard = model();
    LOCKED.with(|locked| locked.replace(Some(guard)));
}

/// In the parent as in the child the thread that has forked has the lock.
unsafe extern "C" fn unlock() {
    drop(LOCKED.take());
}
