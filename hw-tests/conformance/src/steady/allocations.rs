//! An allocator that counts for each thread, and that can record where a thread allocates.

#![allow(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

thread_local! {
    static MADE: Cell<u64> = const { Cell::new(0) };
    static RECORDS: Cell<bool> = const { Cell::new(false) };
    static PLACES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The system's allocator, which counts: `#[global_allocator]` of a test program.
pub struct CountingAllocator;

/// Allocations that this thread has made, changes of size among them.
pub fn allocations() -> u64 {
    MADE.with(Cell::get)
}

/// The places at which this thread allocates in `run`: the calls that led there.
pub fn places(run: impl FnOnce()) -> Vec<String> {
    RECORDS.set(true);
    run();
    RECORDS.set(false);
    PLACES.take()
}

fn count() {
    MADE.with(|made| made.set(made.get() + 1));
    if RECORDS.get() {
        record();
    }
}

#[cold]
fn record() {
    // To record allocates, too.
    RECORDS.set(false);
    let place = Backtrace::force_capture().to_string();
    PLACES.with_borrow_mut(|places| places.push(place));
    RECORDS.set(true);
}

// SAFETY: the system's allocator does it all; a recorded place allocates while nothing records.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) };
    }
}
