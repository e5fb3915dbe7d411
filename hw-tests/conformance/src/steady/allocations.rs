//! An allocator that counts what a program has allocated, and records where a thread allocates.

#![allow(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static RECORDS: Cell<bool> = const { Cell::new(false) };
    static PLACES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The bytes that all threads have allocated, by the binary logarithm of the allocation's size.
static ALLOCATED: [AtomicUsize; usize::BITS as usize] =
    [const { AtomicUsize::new(0) }; usize::BITS as usize];

fn of_size(bytes: usize) -> &'static AtomicUsize {
    &ALLOCATED[bytes.max(1).ilog2() as usize]
}

/// The bytes that this program has allocated.
pub fn allocated_bytes() -> usize {
    allocated_by_size().map(|(_, bytes)| bytes).sum()
}

/// The same in classes of sizes: the least size of a class, and the bytes in allocations of the
/// class.
pub fn allocated_by_size() -> impl Iterator<Item = (usize, usize)> {
    let classes = ALLOCATED.iter().enumerate();
    classes.map(|(log, bytes)| (1 << log, bytes.load(Ordering::Relaxed)))
}

/// The system's allocator, which counts and records: `#[global_allocator]` of a test program.
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

// SAFETY: the system's allocator does the work. Counting allocates nothing, and a recorded place
// allocates while nothing records.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record();
        of_size(layout.size()).fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record();
        of_size(layout.size()).fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record();
        of_size(layout.size()).fetch_sub(layout.size(), Ordering::Relaxed);
        of_size(size).fetch_add(size, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        of_size(layout.size()).fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) };
    }
}
