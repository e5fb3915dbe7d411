//! An allocator that records where a thread allocates.

#![allow(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

thread_local! {
    static RECORDS: Cell<bool> = const { Cell::new(false) };
    static PLACES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The system's allocator, which records: `#[global_allocator]` of a test program.
pub struct RecordingAllocator;

/// The places at which this thread allocates in `run`, or changes the size of an allocation: the
/// calls that led there.
pub fn places(run: impl FnOnce()) -> Vec<String> {
    RECORDS.set(true);
    run();
    RECORDS.set(false);
    PLACES.take()
}

fn record() {
    if !RECORDS.get() {
        return;
    }
    // To record allocates, too.
    RECORDS.set(false);
    let place = Backtrace::force_capture().to_string();
    PLACES.with_borrow_mut(|places| places.push(place));
    RECORDS.set(true);
}

// SAFETY: the system's allocator does it all; a recorded place allocates while nothing records.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) };
    }
}
