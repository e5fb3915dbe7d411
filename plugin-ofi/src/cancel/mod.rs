//! Cancellation of an application's threads (pthread_cancel(3)) in calls of this library.
//!
//! glibc ends a cancelled thread by forced unwinding, which must not meet a Rust function that owns
//! something. So:
//!
//! - System calls of this library are no cancellation points ([`system_calls`]).
//! - Calls that may take a while in other libraries put cancellation off
//!   ([`Uncancelled`](ferrofabric_system::cancel::Uncancelled), by [`crate::guard`]).
//! - Waits sleep here, at the edge to C, in functions that own nothing. A cleanup handler
//!   gives back the wait and all that it holds, before any handler of the application runs.
//! - Polls that found nothing test for cancellation here: a thread that does nothing else would
//!   otherwise never end.

#[cfg(system_calls)]
mod system_calls;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrofabric_contracts::error::Errno;
use ferrofabric_system::wait::{Nap, NapOn};
use libc::{epoll_event, pollfd, sigset_t, timespec};

/// As the C library lays it out: glibc uses all of it, musl a part.
#[repr(C)]
struct CleanupBuffer {
    routine: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    cancel_type: c_int,
    before: *mut CleanupBuffer,
}

// Functions that may unwind a cancelled thread. The cleanup handlers are those of the Linux
// Standard Base, which C programs reach by a macro.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        timeout_ms: c_int,
        mask: *const sigset_t,
    ) -> c_int;
    fn ppoll(
        fds: *mut pollfd,
        count: libc::nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    fn _pthread_cleanup_push(
        buffer: *mut CleanupBuffer,
        routine: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut CleanupBuffer, execute: c_int);
}

/// The result of a look at a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// The call returns this.
    Over(isize),
    /// Nothing yet: sleep, and look again.
    Sleep(Nap),
}

/// A wait that a call of C carries out.
pub(crate) trait Waiter {
    /// Looks whether it is over.
    fn look(&mut self) -> Looked;

    /// A signal came to the thread: the next look is the last.
    fn interrupt(&mut self);

    /// Gives back what the wait holds. It is not used any more.
    fn end(&mut self);
}

/// Carries out a wait, and returns what the call returns. The thread may be cancelled in it.
///
/// # Safety
///
/// Only functions that own nothing lie between this and C. The waiter is there, and nobody else
/// uses it; this ends it, but does not drop it.
#[inline(never)]
pub(crate) unsafe fn wait<W: Waiter>(waiter: *mut W) -> isize {
    let mut cleanup = MaybeUninit::<CleanupBuffer>::uninit();
    // SAFETY: both stay where they are until the handler is popped, or run by the unwinding.
    unsafe {
        _pthread_cleanup_push(cleanup.as_mut_ptr(), end::<W>, waiter.cast());
        let returned = loop {
            match look(waiter) {
                Looked::Over(returned) => break returned,
                Looked::Sleep(nap) => {
                    if !sleep(nap) {
                        interrupt(waiter);
                    }
                }
            }
        };
        _pthread_cleanup_pop(cleanup.as_mut_ptr(), 1);
        testing(returned)
    }
}

/// Sleeps; returns false when a signal came to the thread, or the system can not wait.
///
/// # Safety
///
/// As [`wait`].
unsafe fn sleep(nap: Nap) -> bool {
    let woken = match nap.on {
        NapOn::Set(set) => {
            let mut events = [const { epoll_event { events: 0, u64: 0 } }; 2];
            // SAFETY: there is room for as many events as it says.
            unsafe {
                epoll_pwait(
                    set,
                    events.as_mut_ptr(),
                    2,
                    nap.timeout_ms,
                    std::ptr::null(),
                )
            }
        }
        NapOn::Descriptor(fd) => {
            let mut polled = pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            let ms = i64::from(nap.timeout_ms);
            let timeout = timespec {
                tv_sec: (ms / 1000) as libc::time_t,
                tv_nsec: (ms % 1000 * 1_000_000) as _,
            };
            let timeout = match ms < 0 {
                true => std::ptr::null(),
                false => &raw const timeout,
            };
            // SAFETY: one entry, and a time or none.
            unsafe { ppoll(&raw mut polled, 1, timeout, std::ptr::null()) }
        }
    };
    woken >= 0
}

/// Ends the thread if it is cancelled and the call has found nothing; else hands the result
/// through.
///
/// # Safety
///
/// Only functions that own nothing lie between this and C.
#[inline]
pub(crate) unsafe fn testing(returned: isize) -> isize {
    let errnos = [Errno::EAGAIN, Errno::ETIMEDOUT];
    if errnos.iter().any(|errno| returned == -(errno.0 as isize)) {
        // SAFETY: the caller's promise.
        unsafe { pthread_testcancel() };
    }
    returned
}

/// # Safety
///
/// As [`wait`].
#[inline(never)]
unsafe fn look<W: Waiter>(waiter: *mut W) -> Looked {
    // SAFETY: the caller's promise.
    catch_unwind(AssertUnwindSafe(|| unsafe { (*waiter).look() }))
        .unwrap_or_else(|payload| Looked::Over(crate::guard::panicked(payload)))
}

/// # Safety
///
/// As [`wait`].
#[inline(never)]
unsafe fn interrupt<W: Waiter>(waiter: *mut W) {
    // SAFETY: the caller's promise.
    crate::guard::value((), || unsafe { (*waiter).interrupt() });
}

/// # Safety
///
/// As [`wait`]; once for a waiter.
#[inline(never)]
unsafe extern "C" fn end<W: Waiter>(waiter: *mut c_void) {
    // SAFETY: the caller's promise.
    crate::guard::value((), || unsafe { (*waiter.cast::<W>()).end() });
}

/// A function as libfabric's tables take it: its headers know nothing of unwinding, and C code,
/// which is all that calls through them, lets it pass.
macro_rules! unwinding {
    ($function:ident as fn($($argument:ty),*) -> $returned:ty) => {{
        let function: unsafe extern "C-unwind" fn($($argument),*) -> $returned = $function;
        // SAFETY: the two kinds are called alike.
        unsafe {
            std::mem::transmute::<
                unsafe extern "C-unwind" fn($($argument),*) -> $returned,
                unsafe extern "C" fn($($argument),*) -> $returned,
            >(function)
        }
    }};
}
pub(crate) use unwinding;
