//! Signs of life, which distinguish a task that sorts, merges or waits from a task whose
//! program hangs.
//!
//! The engine marks a task as alive during its own work and with every pair that the program emits.
//! It does not mark the task while the program processes a record. The tracker only checks that the
//! count changes, not how fast.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The signs of life of a task. All clones share the same counts.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Signs of life other than emitted pairs.
    beats: AtomicU64,
    /// Number of emitted pairs. Only one thread writes this field, so a plain store is enough.
    emitted: AtomicU64,
    /// The offset of the current record in the input file, plus 1; 0 if there is no record.
    record: AtomicU64,
}

impl Liveness {
    /// Counts one sign of life.
    pub fn mark_alive(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the total number of pairs emitted.
    #[inline]
    pub fn set_emitted(&self, pairs: u64) {
        self.0.emitted.store(pairs, Ordering::Relaxed);
    }

    /// Returns the number of signs of life so far, which only grows.
    pub fn count(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed) + self.0.emitted.load(Ordering::Relaxed)
    }

    /// Sets the offset of the record that the mapper gets next.
    #[inline]
    pub fn set_record(&self, offset: u64) {
        self.0.record.store(offset.wrapping_add(1), Ordering::Relaxed);
    }

    /// Clears the offset when the mapper has processed its last record.
    pub fn clear_record(&self) {
        self.0.record.store(0, Ordering::Relaxed);
    }

    /// Returns the offset of the record that the mapper is processing.
    pub fn record(&self) -> Option<u64> {
        self.0.record.load(Ordering::Relaxed).checked_sub(1)
    }
}
