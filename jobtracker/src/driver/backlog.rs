//! Counts the outputs of the driver (messages, commits, history lines) that wait for the journal,
//! and defines the limit at which the driver accepts no more events.
//!
//! Queued outputs are never dropped, so the limit applies to new events. From [`BACKLOG_MAX`] on,
//! the driver reads nothing from trackers, handles no clock ticks, and refuses clients with "try
//! again later". An event that was accepted below the limit may still add all its effects.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Number of queued outputs from which on no more events are accepted. With thousands of trackers
/// this is the output of a few seconds.
pub(crate) const BACKLOG_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    queued_outputs: AtomicUsize,
    /// Notified when the number of queued outputs falls below [`BACKLOG_MAX`].
    below_max: Notify,
}

impl Backlog {
    pub(super) fn increment(&self) {
        self.queued_outputs.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn decrement(&self) {
        if self.queued_outputs.fetch_sub(1, Ordering::AcqRel) == BACKLOG_MAX {
            self.below_max.notify_waiters();
        }
    }

    /// Returns whether new events have to wait.
    pub(super) fn is_full(&self) -> bool {
        self.queued_outputs.load(Ordering::Acquire) >= BACKLOG_MAX
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
