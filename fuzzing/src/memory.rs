//! Measures the memory that a thread allocates, to detect allocations from a damaged length field.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    /// Bytes that this thread has allocated and not freed since the start of the measurement, and
    /// their maximum.
    static COUNT: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system allocator with a count per thread, for use as `#[global_allocator]` of a fuzzing
/// program.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting;

fn add(bytes: isize) {
    // A thread that is ending has no count any more.
    let _ended = COUNT.try_with(|count| {
        let (live, most) = count.get();
        let live = live + bytes;
        count.set((live, most.max(live)));
    });
}

#[allow(
    unsafe_code,
    reason = "the interface of an allocator is unsafe; each call is passed to the system allocator unchanged"
)]
// SAFETY: every method passes its arguments on to `System`, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The maximum memory that this thread held while `work` ran, in addition to what it held before. 0
/// if [`Counting`] is not the allocator.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    COUNT.set((0, 0));
    let result = work();
    (result, COUNT.get().1.max(0) as usize)
}
