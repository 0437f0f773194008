//! The number of outputs that wait for the journal, and the limit at which the driver stops taking
//! events.
//!
//! Queued outputs are never dropped, so the limit applies to new events. Above [`BACKLOG_MAX`] the
//! driver reads nothing from trackers, the clock does not tick, and clients are refused with "try
//! later". An event that was accepted below the limit may still add all its effects.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Outputs in the queue at which no more events are taken. With thousands of trackers this is the
/// output of a few seconds.
pub(crate) const BACKLOG_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: AtomicUsize,
    below_max: Notify,
}

impl Backlog {
    pub(super) fn increment(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn decrement(&self) {
        if self.waiting.fetch_sub(1, Ordering::AcqRel) == BACKLOG_MAX {
            self.below_max.notify_waiters();
        }
    }

    /// Whether new events have to wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) >= BACKLOG_MAX
    }

    /// Waits until the backlog is below its limit. Returns whether it had to wait.
    pub(super) async fn wait_below_max(&self) -> bool {
        let mut waited = false;
        loop {
            // Subscribe before the check, so that a notification between the two is not missed.
            let below_max = self.below_max.notified();
            tokio::pin!(below_max);
            below_max.as_mut().enable();
            if !self.is_full() {
                return waited;
            }
            waited = true;
            below_max.await;
        }
    }
}
