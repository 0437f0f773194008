//! Follows a job until it has ended. Reconnects if the JobTracker restarts, because its jobs
//! continue.

use crate::{Error, JobTracker, Result, Watch, model::Job, scheduling::Reason};
use std::time::{Duration, Instant};

/// How long to retry after the connection to the JobTracker is lost, and how long without a
/// message.
const RECONNECT_TIMEOUT: Duration = Duration::from_mins(1);
const NOTICE_AFTER: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(300);

/// Is told what happens to a job that is followed.
pub trait Observer {
    /// A new status of the job.
    fn status(&mut self, job: &Job);

    /// The JobTracker does not answer. It is retried for up to `timeout`.
    fn unreachable(&mut self, tracker: &JobTracker, job: &str, timeout: Duration);

    /// The JobTracker answers again.
    fn reachable(&mut self, tracker: &JobTracker);

    /// The job waits for these reasons: it has no running attempt, or its output cannot be written.
    fn waits(&mut self, job: &str, reasons: &[Reason]);
}

/// An observer that does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn status(&mut self, _: &Job) {}
    fn unreachable(&mut self, _: &JobTracker, _: &str, _: Duration) {}
    fn reachable(&mut self, _: &JobTracker) {}
    fn waits(&mut self, _: &str, _: &[Reason]) {}
}

impl JobTracker {
    /// Follows a job until it has ended. If the caller drops the future, the job continues.
    pub async fn follow(&self, id: &str, observer: &mut impl Observer) -> Result<Job> {
        let mut silence = DisconnectedTime::default();
        loop {
            let asked =
                silence.during(self.watch(id), || observer.unreachable(self, id, RECONNECT_TIMEOUT)).await;
            let watched = match asked {
                Ok(watch) => watch_on(watch, self, observer, &mut silence).await,
                Err(refusal) => Err(refusal),
            };
            match watched {
                Ok(Some(job)) => return Ok(job),
                Err(refusal) if !refusal.is_transient() => return Err(refusal),
                Ok(None) | Err(_) => {}
            }
            let since = *silence.since.get_or_insert_with(Instant::now);
            if since.elapsed() > RECONNECT_TIMEOUT {
                return Err(Error::ConnectionLost {
                    addr: self.addr().to_owned(),
                    seconds: RECONNECT_TIMEOUT.as_secs(),
                    advice: self.advice(),
                    job: id.into(),
                });
            }
            silence
                .during(tokio::time::sleep(RETRY), || observer.unreachable(self, id, RECONNECT_TIMEOUT))
                .await;
        }
    }
}

/// Since when the JobTracker has been unreachable, and whether the observer was told.
#[derive(Debug, Default)]
struct DisconnectedTime {
    since: Option<Instant>,
    is_reported: bool,
}

impl DisconnectedTime {
    /// The JobTracker is reachable. Returns whether the observer was told about the lost
    /// connection.
    fn is_over(&mut self) -> bool {
        std::mem::take(self).is_reported
    }

    /// Runs `work`. Calls `report` once if the JobTracker stays unreachable for `NOTICE_AFTER`.
    async fn during<T>(&mut self, work: impl Future<Output = T>, report: impl FnOnce()) -> T {
        let Some(since) = self.since.filter(|_| !self.is_reported) else { return work.await };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until((since + NOTICE_AFTER).into()) => {}
        }
        self.is_reported = true;
        report();
        work.await
    }
}

/// A job that waits, since when, and whether the observer was told the reason.
#[derive(Debug, Default)]
struct Waits {
    job: Option<(String, Instant)>,
    is_reported: bool,
}

impl Waits {
    fn update(&mut self, job: &Job) {
        let waits = job.is_waiting() || (!job.is_over() && !job.why.is_empty());
        // The status of a job with a running attempt arrives often: the time of the first one counts.
        let since = self.job.take().map_or_else(Instant::now, |(_, since)| since);
        self.job = waits.then(|| (job.job.clone(), since));
        self.is_reported &= waits;
    }

    /// Runs `work`. If the job still waits after `NOTICE_AFTER`, reports the reason once.
    async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
        tracker: &JobTracker,
        observer: &mut impl Observer,
    ) -> T {
        let Some((job, since)) = self.job.as_ref().filter(|_| !self.is_reported) else { return work.await };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until((*since + NOTICE_AFTER).into()) => {}
        }
        self.is_reported = true;
        if let Ok(why) = tracker.why(job).await
            && !why.waiting_for.is_empty()
        {
            observer.waits(job, &why.waiting_for);
        }
        work.await
    }
}

async fn watch_on(
    mut watch: Watch,
    tracker: &JobTracker,
    observer: &mut impl Observer,
    silence: &mut DisconnectedTime,
) -> Result<Option<Job>> {
    let mut waits = Waits::default();
    while let Some(job) = waits.during(watch.next(), tracker, observer).await? {
        waits.update(&job);
        if silence.is_over() {
            observer.reachable(tracker);
        }
        observer.status(&job);
        if job.is_over() {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn lost_connection_is_reported_once_after_a_delay() {
        let printed = Cell::new(0);
        let report = || printed.set(printed.get() + 1);
        let nap = || tokio::time::sleep(Duration::from_millis(50));
        let mut silence = DisconnectedTime::default();
        silence.during(nap(), report).await;
        assert_eq!(printed.get(), 0, "nothing was lost");
        silence.since = Some(Instant::now());
        silence.during(nap(), report).await;
        assert_eq!(printed.get(), 0, "too short");
        silence.since = Instant::now().checked_sub(NOTICE_AFTER);
        for _ in 0..2 {
            silence.during(nap(), report).await;
            assert_eq!(printed.get(), 1);
        }
        assert!(silence.is_over() && !silence.is_over());
    }
}
