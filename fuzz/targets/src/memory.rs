//! Measures the memory that a thread allocates, to detect allocations from a damaged length field.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    /// Bytes that this thread has allocated and not freed since the start of the measurement, and
    /// the maximum of that number.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system allocator, which also counts the bytes of each thread. Used as `#[global_allocator]`
/// of fuzzing programs.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

fn count_bytes(bytes: isize) {
    // A thread that is ending has no counter any more.
    let _ended = BYTES.try_with(|count| {
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
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_bytes(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_bytes(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count_bytes(-layout.size().cast_signed());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_bytes(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work`, and returns its result and the maximum memory that this thread used in addition to
/// what it used before. The maximum is 0 if [`CountingAllocator`] is not the allocator.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    BYTES.set((0, 0));
    let result = work();
    (result, BYTES.get().1.max(0) as usize)
}
