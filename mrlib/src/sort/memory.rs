//! Large memory: fewer page faults and address look-ups, and reads that are asked for ahead.

/// From here on, memory is had all at once and in large pages: smaller tasks would only pay for clearing them.
const LARGE_BYTES: usize = 4 << 20;

/// Makes room for `more` items in a vector that will never hold more than `max`.
#[cold]
pub(super) fn grow<T>(items: &mut Vec<T>, more: usize, max: usize) {
    let rest = max.saturating_sub(items.len()).max(more);
    let large = items.capacity() * size_of::<T>() >= LARGE_BYTES;
    // What is not used is address space only. A limit on that may be in the way: then as vectors grow.
    if large && items.try_reserve_exact(rest).is_ok() {
        prefer_large_pages(items.spare_capacity_mut());
    } else {
        items.reserve(more);
    }
}

/// So many of an item.
pub(super) fn filled<T: Copy>(item: T, count: usize) -> Vec<T> {
    let mut items = with_capacity_for(count);
    items.resize(count, item);
    items
}

/// An empty vector with room for so many items.
pub(crate) fn with_capacity_for<T>(count: usize) -> Vec<T> {
    let mut items = Vec::with_capacity(count);
    if count * size_of::<T>() >= LARGE_BYTES {
        prefer_large_pages(items.spare_capacity_mut());
    }
    items
}

/// Asks for pages of 2 MiB where the system has them.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "the system is told about memory by its address")]
fn prefer_large_pages<T>(memory: &mut [std::mem::MaybeUninit<T>]) {
    use rustix::mm::{Advice, madvise};
    let page = rustix::param::page_size();
    let start = memory.as_mut_ptr().cast::<u8>();
    let skip = start.align_offset(page);
    let bytes = size_of_val(memory).saturating_sub(skip) / page * page;
    if bytes > 0 {
        // SAFETY: whole pages within memory that is ours; this advice changes nothing of what they hold. Without it
        // all works as well, only slower: a failure is of no interest.
        let _ = unsafe { madvise(start.add(skip).cast(), bytes, Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
fn prefer_large_pages<T>(_: &mut [std::mem::MaybeUninit<T>]) {}

/// Has an item brought near that will be needed soon.
#[inline]
#[allow(unsafe_code, reason = "there is no other way to ask for memory without waiting for it")]
pub(super) fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it reads nothing, and the address is that of something that is there.
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
