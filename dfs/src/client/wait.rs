//! Telling somebody why nothing happens: an operation that is still waiting after a moment says what for, once.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long an operation may wait in silence.
const NOTICE_AFTER: Duration = Duration::from_secs(2);

/// Who is told of waits, in one line each.
#[derive(Clone)]
pub struct Listener(Arc<dyn Fn(&str) + Send + Sync>);

impl Listener {
    /// `tell` gets the line.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// One wait, told at most once.
pub(super) struct Wait {
    listener: Option<Listener>,
    notify_at: Instant,
    end: Instant,
}

impl Wait {
    /// A wait that gives up at `end`.
    pub(super) fn until(end: Instant, listener: Option<&Listener>) -> Self {
        Self { listener: listener.cloned(), notify_at: Instant::now() + NOTICE_AFTER, end }
    }

    /// Does `work`; if the moment comes meanwhile, tells that it waits for `what`, and why.
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
