//! Cancellation of an application's threads (pthread_cancel(3)).
//!
//! glibc ends a cancelled thread by forced unwinding, from within a function that is a cancellation
//! point. Rust functions that own something must not be unwound like that: the process aborts. Code
//! that calls such functions of C libraries puts the cancellation off for that time.

use std::ffi::c_int;
use std::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE`, in glibc as in musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The calling thread is not cancelled as long as this is there. Afterwards its state is as before,
/// so these nest. A cancellation that comes meanwhile stays pending.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// It concerns the thread that made it.
    thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Puts cancellation off.
    #[inline]
    pub fn begin() -> Self {
        let mut before = DISABLE;
        // SAFETY: a place for the state of before. The call fails for an unknown state alone, and
        // is none that unwinds.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self {
            before,
            thread: PhantomData,
        }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        if self.before != DISABLE {
            // SAFETY: a state that the library gave. Applications use deferred cancellation here
            // (asynchronous cancellation allows no call of this library), so this acts on nothing.
            unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        let mut state = -1;
        // SAFETY: a place for the state, which is put back.
        unsafe {
            pthread_setcancelstate(DISABLE, &raw mut state);
            pthread_setcancelstate(state, std::ptr::null_mut());
        }
        state
    }

    #[test]
    fn the_state_of_before_comes_back() {
        let enabled = state();
        assert_ne!(enabled, DISABLE);
        let outer = Uncancelled::begin();
        {
            let _inner = Uncancelled::begin();
            assert_eq!(state(), DISABLE);
        }
        assert_eq!(state(), DISABLE);
        drop(outer);
        assert_eq!(state(), enabled);
    }
}
