//! How much waits to leave, and who must wait because of it.
//!
//! What waits is never thrown away, so the bound is on what may be added: above [`BACKLOG_MAX`] trackers are not listened
//! to, the clock does not tick, and clients are told to try later. One event that was let in may still add all its effects.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Things that wait to leave, before no more is taken in: seconds' worth, with thousands of trackers.
pub(crate) const BACKLOG_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: AtomicUsize,
    less: Notify,
}

impl Backlog {
    /// One more waits.
    pub(super) fn grew(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// One has left.
    pub(super) fn shrank(&self) {
        if self.waiting.fetch_sub(1, Ordering::AcqRel) == BACKLOG_MAX {
            self.less.notify_waiters();
        }
    }

    /// Whether no more may be taken in.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) >= BACKLOG_MAX
    }

    /// Waits until there is room; whether it had to.
    pub(super) async fn room(&self) -> bool {
        let mut waited = false;
        loop {
            // Listening starts before the look, so that nothing between the two is missed.
            let less = self.less.notified();
            tokio::pin!(less);
            less.as_mut().enable();
            if !self.is_full() {
                return waited;
            }
            waited = true;
            less.await;
        }
    }
}
