//! The exports of libibverbs. Calls find an object by the address of its handle alone, so that a
//! destroyed handle is an error.

mod completion;
mod device;
mod memory;
mod queue_pair;

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

use crate::model::{ControlCalls, DeviceModel, free, model};

/// In place of an errno: a failure that leaves errno as it was.
const KEEP_ERRNO: c_int = 0;

/// Sets errno; null, for calls that return a handle.
fn no<T>(errno: i32) -> *mut T {
    if errno != KEEP_ERRNO {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = errno.abs() };
    }
    ptr::null_mut()
}

/// The body of a call that returns a handle: counts it, and answers failure with null and errno.
fn make<T>(
    call: &'static str,
    body: impl FnOnce(&mut DeviceModel) -> Result<*mut T, i32>,
) -> *mut T {
    let mut model = model();
    let made = model.enter(call).and_then(|()| body(&mut model));
    drop(model);
    made.unwrap_or_else(no)
}

/// The body of a call that returns 0 or an errno.
fn act(call: &'static str, body: impl FnOnce(&mut DeviceModel) -> Result<(), i32>) -> c_int {
    let mut model = model();
    let done = model.enter(call).and_then(|()| body(&mut model));
    done.err().unwrap_or(0)
}

/// As [`make`], for a call that takes a NIC some time, by its profile. The time passes before the
/// lock is taken: calls of several threads run at the same time.
fn make_slowly<T>(
    call: &'static str,
    body: impl FnOnce(&mut DeviceModel) -> Result<*mut T, i32>,
) -> *mut T {
    spend_control_call();
    make(call, body)
}

/// As [`act`], likewise.
fn act_slowly(call: &'static str, body: impl FnOnce(&mut DeviceModel) -> Result<(), i32>) -> c_int {
    spend_control_call();
    act(call, body)
}

/// As [`act`], for a call that ends an object. It waits until no event of the object is taken and
/// not acknowledged. A real one waits for ever; here it is a misuse after a while.
fn end(
    call: &'static str,
    handle: usize,
    body: impl FnOnce(&mut DeviceModel) -> Result<(), i32>,
) -> c_int {
    let begun = Instant::now();
    let mut model = loop {
        let mut model = model();
        if !model.is_unacknowledged(handle) {
            break model;
        }
        if begun.elapsed() > Duration::from_secs(20) {
            model.misused("an object is destroyed with events not acknowledged".to_owned());
            break model;
        }
        drop(model);
        std::thread::yield_now();
    };
    let done = model.enter(call).and_then(|()| body(&mut model));
    done.err().unwrap_or(0)
}

fn spend_control_call() {
    let calls = model().control_calls;
    if let Some(ControlCalls { micros, sleep }) = calls {
        return sleep(micros);
    }
    let micros = model().profile().control_call_us;
    if micros > 0 {
        std::thread::sleep(Duration::from_micros(micros));
    }
}

/// A structure of C, all zeroes.
fn zeroed<T>() -> T {
    // SAFETY: only for structures of plain numbers, pointers, optional functions and locks, for
    // which zeroes are fine.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Frees a handle that came from `place` here.
fn release<T>(handle: *mut T) {
    // SAFETY: each kind of object has one kind of handle, which leaves its table just before.
    unsafe { free(handle) };
}

fn busy(model: &mut DeviceModel, what: &str) -> Result<(), i32> {
    model.misused(format!("{what} is destroyed under what is built on it"));
    Err(libc::EBUSY)
}

fn missing<T>(model: &mut DeviceModel, what: &str) -> Result<T, i32> {
    model.misused(format!("{what} is used that is not there"));
    Err(libc::EINVAL)
}
