//! Signs of life: how a task that only sorts, merges or waits is told from one whose program hangs.
//!
//! The engine beats where work of its own continues, and with every pair that a program puts out; nothing beats while a
//! program keeps a record to itself. Whoever watches looks for a change, not for a rate.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A task's signs of life. Clones are the same pulse.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    beats: AtomicU64,
    /// Pairs put out. Written by one thread, so a plain store does.
    emitted: AtomicU64,
    /// One more than the offset of the record at hand; 0: none is.
    record: AtomicU64,
}

impl Liveness {
    /// Work goes on.
    pub fn mark_alive(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// So many pairs have been put out in all.
    #[inline]
    pub(crate) fn emitted(&self, pairs: u64) {
        self.0.emitted.store(pairs, Ordering::Relaxed);
    }

    /// All signs so far; it only grows.
    pub fn count(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed) + self.0.emitted.load(Ordering::Relaxed)
    }

    /// The mapper has been given the record at this offset.
    #[inline]
    pub(crate) fn at_record(&self, offset: u64) {
        self.0.record.store(offset.wrapping_add(1), Ordering::Relaxed);
    }

    /// The mapper has been given back.
    pub(crate) fn past_records(&self) {
        self.0.record.store(0, Ordering::Relaxed);
    }

    /// The offset of the record that a mapper has at hand.
    pub fn record(&self) -> Option<u64> {
        self.0.record.load(Ordering::Relaxed).checked_sub(1)
    }
}
