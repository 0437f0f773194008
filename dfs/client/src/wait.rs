//! Reports to a listener, once, that an operation is still waiting after a short time, and what it
//! waits for.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long an operation waits before the listener is called.
const NOTICE_AFTER: Duration = Duration::from_secs(2);

/// Receives one line for each operation that waits.
#[derive(Clone)]
pub struct Listener(Arc<dyn Fn(&str) + Send + Sync>);

impl Listener {
    /// Creates a listener that calls `notify` with the line.
    pub fn new(notify: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(notify))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// Reports the wait of one operation to the listener, at most once.
pub(super) struct WaitReport {
    listener: Option<Listener>,
    notify_at: Instant,
    end: Instant,
}

impl WaitReport {
    /// Creates the report of an operation that times out at `end`.
    pub(super) fn until(end: Instant, listener: Option<&Listener>) -> Self {
        Self { listener: listener.cloned(), notify_at: Instant::now() + NOTICE_AFTER, end }
    }

    /// Awaits `work`. If it takes too long, calls the listener with `what` the operation waits for,
    /// and `why`.
    pub(super) async fn during<T>(&mut self, what: &str, why: &str, work: impl Future<Output = T>) -> T {
        if self.listener.is_none() {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until(self.notify_at.into()) => {}
        }
        if let Some(listener) = self.listener.take() {
            let left = self.end.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
            (listener.0)(&format!("waiting for {what}: {why}; timeout in {left} s"));
        }
        work.await
    }
}
