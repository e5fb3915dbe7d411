//! Objects that threads reach by way of others, and that may close meanwhile: the endpoints that a
//! read of a queue drives.
//!
//! A close waits until no thread uses the object, and none uses it from then on. So nothing of it
//! is left when the close returns.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use ferrofabric_system::forked::Birth;
use ferrofabric_system::locks::{Condvar, Mutex};

/// The uses of an object by threads, which may be within each other.
pub(crate) struct Uses {
    state: Mutex<UseState>,
    is_unused: Condvar,
    birth: Birth,
}

#[derive(Default)]
struct UseState {
    number: usize,
    is_closed: bool,
}

/// An object that others use, without keeping it open.
pub(crate) struct UsableObject<T: ?Sized> {
    object: Weak<T>,
    uses: Arc<Uses>,
}

/// A use of an object.
pub(crate) struct ObjectUse<T: ?Sized> {
    // Dropped first: the close that waits for the use is to have the last reference.
    object: Arc<T>,
    _end: UseEnd,
}

/// Ends a use.
struct UseEnd(Arc<Uses>);

impl Uses {
    /// None so far.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            is_unused: Condvar::new(),
            birth: Birth::here(),
        })
    }

    /// Refuses further uses, and waits for those that there are. The threads of a parent process
    /// do not exist here: no use of theirs ends.
    pub(crate) fn close(&self) {
        if !self.birth.is_this_process() {
            return;
        }
        let mut state = self.state.lock();
        state.is_closed = true;
        while state.number != 0 {
            state = self.is_unused.wait(state);
        }
    }

    fn begin(self: &Arc<Self>) -> Option<UseEnd> {
        let mut state = self.state.lock();
        state.number += usize::from(!state.is_closed);
        (!state.is_closed).then(|| UseEnd(self.clone()))
    }
}

impl Drop for UseEnd {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.number -= 1;
        // Only a close waits, and the call takes a system call, though nobody waits.
        if state.number == 0 && state.is_closed {
            self.0.is_unused.notify_all();
        }
    }
}

impl<T: ?Sized> UsableObject<T> {
    pub(crate) fn new(object: Weak<T>, uses: Arc<Uses>) -> Self {
        Self { object, uses }
    }

    /// Whether there still is an object.
    pub(crate) fn is_there(&self) -> bool {
        self.object.strong_count() != 0
    }

    /// Begins a use; `None`: the object is closed.
    pub(crate) fn enter(&self) -> Option<ObjectUse<T>> {
        let end = self.uses.begin()?;
        Some(ObjectUse {
            object: self.object.upgrade()?,
            _end: end,
        })
    }
}

impl<T: ?Sized> Deref for ObjectUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_close_waits_for_uses() {
        let (uses, object) = (Uses::new(), Arc::new(5));
        let usable = UsableObject::new(Arc::downgrade(&object), uses.clone());
        let used = usable.enter().unwrap();
        let closer = thread::spawn(move || uses.close());
        // No use begins once the close has.
        while usable.enter().is_some() {
            thread::yield_now();
        }
        assert!(!closer.is_finished());
        assert_eq!(*used, 5);
        drop(used);
        closer.join().unwrap();
        assert_eq!(Arc::strong_count(&object), 1);
        assert!(usable.enter().is_none() && usable.is_there());
    }
}
