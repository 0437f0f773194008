//! Keeps the lease on this client's open files: one task for all of them, as the NameNode counts by holder.

use super::call::What;
use super::{Client, Inner};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

#[derive(Default)]
pub(super) struct Leases {
    open: usize,
    period: Duration,
    renewing: Option<JoinHandle<()>>,
}

#[cfg(test)]
impl Leases {
    pub(super) fn is_idle(&self) -> bool {
        self.open == 0 && self.renewing.is_none()
    }
}

impl Client {
    /// Waits, at most `limit`, until this client has no file open to write: those given up are gone by then.
    /// For programs about to end; what is still open then goes when its lease ends.
    pub async fn wait_closed(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.inner.leases.lock().open > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// While one is alive, the lease is renewed.
pub(super) struct LeaseGuard {
    inner: Arc<Inner>,
}

impl LeaseGuard {
    /// Starts renewing every third of `lease_ms`, the answer of Create or Append.
    pub(super) fn new(client: &Client, lease_ms: u64) -> Self {
        let inner = client.inner.clone();
        let mut leases = inner.leases.lock();
        leases.open += 1;
        leases.period = Duration::from_millis((lease_ms / 3).clamp(10, 3_600_000));
        // A finished task may also be one whose runtime went away.
        if leases.renewing.as_ref().is_none_or(JoinHandle::is_finished) {
            leases.renewing = Some(tokio::spawn(renew(Arc::downgrade(&inner))));
        }
        drop(leases);
        Self { inner }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut leases = self.inner.leases.lock();
        leases.open -= 1;
        if leases.open == 0
            && let Some(task) = leases.renewing.take()
        {
            task.abort();
        }
    }
}

async fn renew(inner: Weak<Inner>) {
    loop {
        let Some(period) = inner.upgrade().map(|inner| inner.leases.lock().period) else { return };
        tokio::time::sleep(period).await;
        let Some(inner) = inner.upgrade() else { return };
        let client = Client { inner, acts_for: None };
        let request = proto::dfs::RenewLeaseRequest { holder: client.inner.holder.clone() };
        let answer = client
            .call(What("renew the lease", ""), request, |mut rpc, request| async move {
                rpc.renew_lease(request).await
            })
            .await;
        if let Err(error) = answer {
            // The writers learn of a lost lease from their next call; nothing to do here but go on.
            tracing::warn!("renewing the lease failed: {error}");
        }
    }
}
