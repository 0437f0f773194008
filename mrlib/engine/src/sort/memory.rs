//! Allocation of large memory with fewer page faults and TLB misses, and prefetching.

/// Vectors of at least this many bytes are allocated at once and in large pages. For smaller
/// vectors, clearing the pages would cost more than it saves.
const LARGE_BYTES: usize = 4 << 20;

/// Reserves memory for `more` items in a vector that never has more than `max` items.
#[cold]
pub(super) fn grow<T>(items: &mut Vec<T>, more: usize, max: usize) {
    let rest = max.saturating_sub(items.len()).max(more);
    let large = items.capacity() * size_of::<T>() >= LARGE_BYTES;
    // Unused memory is only address space. If a limit on that is reached, the vector grows in
    // smaller steps.
    if large && items.try_reserve_exact(rest).is_ok() {
        prefer_large_pages(items.spare_capacity_mut());
    } else {
        items.reserve(more);
    }
}

/// Returns a vector with `count` copies of an item.
pub(super) fn vec_of_copies<T: Copy>(item: T, count: usize) -> Vec<T> {
    let mut items = with_capacity_for(count);
    items.resize(count, item);
    items
}

/// Returns an empty vector with capacity for `count` items.
pub(crate) fn with_capacity_for<T>(count: usize) -> Vec<T> {
    let mut items = Vec::with_capacity(count);
    if count * size_of::<T>() >= LARGE_BYTES {
        prefer_large_pages(items.spare_capacity_mut());
    }
    items
}

/// Asks the kernel for pages of 2 MiB.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "madvise takes an address")]
fn prefer_large_pages<T>(memory: &mut [std::mem::MaybeUninit<T>]) {
    use rustix::mm::{Advice, madvise};
    let page = rustix::param::page_size();
    let start = memory.as_mut_ptr().cast::<u8>();
    let skip = start.align_offset(page);
    let bytes = size_of_val(memory).saturating_sub(skip) / page * page;
    if bytes > 0 {
        // SAFETY: the range consists of whole pages within memory that this process owns, and the
        // advice does not change their contents. Errors are ignored, because it is only an
        // optimisation.
        let _ = unsafe { madvise(start.add(skip).cast(), bytes, Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
fn prefer_large_pages<T>(_: &mut [std::mem::MaybeUninit<T>]) {}

/// Prefetches an item that will be needed soon.
#[inline]
#[allow(unsafe_code, reason = "prefetching needs an intrinsic")]
pub(super) fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: this is a hint that reads nothing, and the address is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grown_vectors_keep_their_contents() {
        let mut items: Vec<u64> = Vec::new();
        let max = 3 << 20;
        for number in 0..max {
            if items.len() == items.capacity() {
                grow(&mut items, 1, max);
            }
            items.push(number as u64);
            prefetch(&items[number / 2]);
        }
        assert!(items.iter().enumerate().all(|(at, number)| at as u64 == *number));
        assert!(items.capacity() == max, "{}", items.capacity());
    }
}
