//! Records in the order of arrival in one arena. Small entries that refer to the records are
//! sorted.

use super::{STEP_RECORDS, combine::Combiner, memory};
use crate::{
    merge::{Cursor, Groups, SortOrder},
    segment::SegmentWriter,
};
use mrlib_api::{KeyOrder, Liveness, TaskError};
use std::thread;

/// How many records ahead of the record that is written are prefetched.
const PREFETCH_DISTANCE: usize = 16;
/// Minimum number of entries that are sorted with a second thread.
const PARALLEL_SORT_MIN: usize = 10_000;
/// Size of a cache line.
const CACHE_LINE_BYTES: usize = 64;

/// The sort key of a record. The record itself is read only if prefixes are equal.
#[derive(Debug, Clone, Copy)]
struct Entry {
    prefix: u64,
    partition: u32,
    /// The offset of the record in the arena.
    at: u32,
    key_bytes: u32,
    value_bytes: u32,
}

impl Entry {
    #[inline]
    fn rank(&self) -> u128 {
        u128::from(self.partition) << 64 | u128::from(self.prefix)
    }

    /// Prefetches a record of typical length.
    #[inline]
    fn prefetch(&self, arena: &[u8]) {
        let start = self.at as usize;
        for at in [start, start + CACHE_LINE_BYTES] {
            if let Some(byte) = arena.get(at) {
                memory::prefetch(byte);
            }
        }
    }

    #[inline]
    fn record<'a>(&self, arena: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        arena[self.at as usize..][..(self.key_bytes + self.value_bytes) as usize]
            .split_at(self.key_bytes as usize)
    }
}

/// Sorts by partition, then in `order`. Equal records stay in the order of their arrival, so that a
/// map gives the same output each time.
fn sort(entries: &mut [Entry], arena: &[u8], order: SortOrder, parallel: bool) {
    // Sort by the entries alone first, with a comparison that has no mispredicted branches.
    if parallel {
        sort_with_two_threads(entries);
    } else {
        entries.sort_unstable_by_key(Entry::rank);
    }
    let full = |a: &Entry, b: &Entry| match order.keys {
        // Keys of at most eight bytes are completely in the prefix; with equal prefixes they differ
        // only in trailing zeros, so comparing the lengths is enough.
        KeyOrder::Bytes if a.key_bytes.max(b.key_bytes) <= 8 && !order.values => {
            a.key_bytes.cmp(&b.key_bytes)
        }
        KeyOrder::Reverse if a.key_bytes.max(b.key_bytes) <= 8 && !order.values => {
            b.key_bytes.cmp(&a.key_bytes)
        }
        _ => order.compare(a.record(arena), b.record(arena)),
    };
    // A pair with an empty key and an empty value has the same offset as the next pair.
    let arrival = |a: &Entry, b: &Entry| (a.at, a.value_bytes).cmp(&(b.at, b.value_bytes));
    for same in entries.chunk_by_mut(|a, b| a.rank() == b.rank()).filter(|same| same.len() > 1) {
        same.sort_unstable_by(|a, b| full(a, b).then_with(|| arrival(a, b)));
    }
}

/// Sorts by rank with two threads.
fn sort_with_two_threads(entries: &mut [Entry]) {
    if entries.len() < PARALLEL_SORT_MIN {
        return entries.sort_unstable_by_key(Entry::rank);
    }
    let middle = entries.len() / 2;
    entries.select_nth_unstable_by_key(middle, Entry::rank);
    let (low, high) = entries.split_at_mut(middle);
    let started = thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, || low.sort_unstable_by_key(Entry::rank));
        high.sort_unstable_by_key(Entry::rank);
        other.is_ok()
    });
    if !started {
        // The thread could not be started.
        low.sort_unstable_by_key(Entry::rank);
    }
}

/// Returns the bytes of memory that a record needs.
pub(crate) fn memory_bytes(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + size_of::<Entry>()
}

#[derive(Debug)]
pub(crate) struct RecordBuffer {
    arena: Vec<u8>,
    entries: Vec<Entry>,
    order: SortOrder,
    bytes_max: usize,
}

impl RecordBuffer {
    /// Creates an empty buffer. `bytes_max` must be below 4 GiB.
    pub(crate) fn new(order: SortOrder, bytes_max: usize) -> Self {
        Self { arena: Vec::new(), entries: Vec::new(), order, bytes_max }
    }

    /// Adds a record. Returns false if it does not fit.
    #[inline]
    pub(crate) fn put(&mut self, partition: u32, key: &[u8], value: &[u8]) -> bool {
        let used = self.arena.len() + self.entries.len() * size_of::<Entry>();
        if used + memory_bytes(key, value) > self.bytes_max {
            return false;
        }
        if self.entries.len() == self.entries.capacity() {
            memory::grow(&mut self.entries, 1, self.bytes_max / size_of::<Entry>());
        }
        let length = key.len() + value.len();
        if self.arena.capacity() - self.arena.len() < length {
            memory::grow(&mut self.arena, length, self.bytes_max);
        }
        self.entries.push(Entry {
            prefix: self.order.prefix(key),
            partition,
            at: self.arena.len() as u32,
            key_bytes: key.len() as u32,
            value_bytes: value.len() as u32,
        });
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(value);
        true
    }

    /// Writes all records in order. They stay in the buffer, so that writing can be repeated on
    /// another disk. `parallel` allows a second thread.
    pub(crate) fn write(
        &mut self,
        writer: &mut SegmentWriter,
        combiner: Option<&mut Combiner>,
        liveness: &Liveness,
        parallel: bool,
    ) -> Result<(), TaskError> {
        let (arena, order) = (&self.arena, self.order);
        liveness.mark_alive();
        sort(&mut self.entries, arena, order, parallel);
        liveness.mark_alive();
        let Some(combiner) = combiner else {
            for (at, entry) in self.entries.iter().enumerate() {
                if let Some(soon) = self.entries.get(at + PREFETCH_DISTANCE) {
                    soon.prefetch(arena);
                }
                let (key, value) = entry.record(arena);
                writer.append(entry.partition, key, value)?;
                if (at as u64).is_multiple_of(STEP_RECORDS) {
                    liveness.mark_alive();
                }
            }
            return Ok(());
        };
        for own in self.entries.chunk_by(|a, b| a.partition == b.partition) {
            let partition = own[0].partition;
            let mut groups =
                Groups::new(SortedRecords { arena, rest: own.iter(), current: None }, order.keys);
            while let Some((key, mut values)) = groups.next()? {
                let put = &mut |key: &[u8], value: &[u8]| {
                    liveness.mark_alive();
                    writer.append(partition, key, value)
                };
                combiner.run(key, &mut values, order, put)?;
            }
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn clear(&mut self) {
        self.arena.clear();
        self.entries.clear();
    }
}

/// The sorted records of one partition.
struct SortedRecords<'a> {
    arena: &'a [u8],
    rest: std::slice::Iter<'a, Entry>,
    current: Option<&'a Entry>,
}

impl Cursor for SortedRecords<'_> {
    fn next(&mut self) -> Result<bool, TaskError> {
        self.current = self.rest.next();
        Ok(self.current.is_some())
    }

    fn key(&self) -> &[u8] {
        self.current.map_or(&[], |entry| entry.record(self.arena).0)
    }

    fn value(&self) -> &[u8] {
        self.current.map_or(&[], |entry| entry.record(self.arena).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_sort_gives_the_same_order() {
        let mut record_buffer = RecordBuffer::new(SortOrder::default(), 8 << 20);
        for number in 0..3 * PARALLEL_SORT_MIN as u32 {
            // Many entries have equal ranks, also around the middle, where the entries are divided.
            let key = (number.wrapping_mul(2_654_435_761) >> 22).to_be_bytes();
            assert!(record_buffer.put(
                number % 3,
                &[&key[..], b"12345", &key].concat(),
                &number.to_le_bytes()
            ));
        }
        let (mut sequential, mut parallel) = (record_buffer.entries.clone(), record_buffer.entries);
        sort(&mut sequential, &record_buffer.arena, record_buffer.order, false);
        sort(&mut parallel, &record_buffer.arena, record_buffer.order, true);
        let places = |entries: &[Entry]| entries.iter().map(|entry| entry.at).collect::<Vec<_>>();
        assert!(places(&sequential) == places(&parallel));
    }
}
