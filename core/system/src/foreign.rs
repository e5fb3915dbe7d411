//! Calls into a provider of other authors, which calls functions of ours back (`docs/adr/0070`).
//!
//! Such a call has a domain locked. A function of ours that it calls back may be one that locks the
//! same domain, and would wait for its own thread. So a thread inside such a call waits for no
//! domain: [`Serial`](crate::serial::Serial) fails with `EBUSY`.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread is inside such a call as long as this is there. They nest.
#[derive(Debug)]
pub struct ForeignCall {
    /// It concerns the thread that made it.
    thread: PhantomData<*const ()>,
}

impl ForeignCall {
    /// The thread goes in.
    #[inline]
    pub fn begin() -> Self {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Self {
            thread: PhantomData,
        }
    }
}

impl Drop for ForeignCall {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Whether the calling thread is inside such a call.
#[inline]
pub fn is_inside() -> bool {
    DEPTH.with(Cell::get) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_nest_and_concern_their_thread() {
        assert!(!is_inside());
        let outer = ForeignCall::begin();
        let inner = ForeignCall::begin();
        drop(outer);
        assert!(is_inside());
        assert!(!std::thread::spawn(is_inside).join().unwrap());
        drop(inner);
        assert!(!is_inside());
    }
}
