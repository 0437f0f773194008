//! Renews the lease of this client while it has files open for writing. One task renews the lease
//! of all files, because the NameNode has one lease per client.

use super::call::Operation;
use super::rpc;
use super::{Client, Inner};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

#[derive(Default)]
pub(super) struct Leases {
    open_files: usize,
    renew_period: Duration,
    renew_task: Option<JoinHandle<()>>,
}

#[cfg(test)]
impl Leases {
    pub(super) fn is_idle(&self) -> bool {
        self.open_files == 0 && self.renew_task.is_none()
    }
}

impl Client {
    /// Waits until this client has no file open for writing, but at most for `limit`. Discarded
    /// files are deleted by then. A program calls this before it exits. The NameNode recovers files
    /// that are still open when their lease expires.
    pub async fn wait_closed(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.inner.leases.lock().open_files > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Keeps the lease renewed as long as the guard exists.
pub(super) struct LeaseGuard {
    inner: Arc<Inner>,
}

impl LeaseGuard {
    /// Starts to renew the lease at intervals of a third of `lease_ms`, which is the duration of
    /// the lease in the reply to Create or Append.
    pub(super) fn new(client: &Client, lease_ms: u64) -> Self {
        let inner = client.inner.clone();
        let mut leases = inner.leases.lock();
        leases.open_files += 1;
        leases.renew_period = Duration::from_millis((lease_ms / 3).clamp(10, 3_600_000));
        // The task may have finished because its runtime was shut down.
        if leases.renew_task.as_ref().is_none_or(JoinHandle::is_finished) {
            leases.renew_task = Some(tokio::spawn(renew_periodically(Arc::downgrade(&inner))));
        }
        drop(leases);
        Self { inner }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut leases = self.inner.leases.lock();
        leases.open_files -= 1;
        if leases.open_files == 0
            && let Some(task) = leases.renew_task.take()
        {
            task.abort();
        }
    }
}

async fn renew_periodically(inner: Weak<Inner>) {
    loop {
        let Some(renew_period) = inner.upgrade().map(|inner| inner.leases.lock().renew_period) else {
            return;
        };
        tokio::time::sleep(renew_period).await;
        let Some(inner) = inner.upgrade() else { return };
        let client = Client { inner, acts_for: None };
        let request = proto::dfs::RenewLeaseRequest { holder: client.inner.holder.clone() };
        let answer = client.call(Operation("renew the lease", ""), request, rpc::renew_lease).await;
        if let Err(error) = answer {
            // A writer notices a lost lease in its next call. Keep trying.
            tracing::warn!("renewing the lease failed: {error}");
        }
    }
}
