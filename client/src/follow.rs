//! Follows a job until it has ended. Reconnects if the JobTracker restarts, because its jobs
//! continue.

use crate::{Error, JobTracker, Result, Watch, jobtracker::RETRY_TIMEOUT, model::Job, scheduling::Reason};
use std::{
    collections::BTreeSet,
    pin::Pin,
    time::{Duration, Instant},
};

/// How long a connection must be lost, or a job must wait, before the observer is notified.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// Maximum interval between two queries for the reasons why a job waits.
const QUERY_INTERVAL_MAX: Duration = Duration::from_mins(1);
/// Interval between two attempts to reconnect.
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// Receives the events of a job that [`JobTracker::follow`] follows.
pub trait Observer {
    /// Called with each new status of the job.
    fn status(&mut self, job: &Job);

    /// Called when the JobTracker does not answer. The connection is retried for up to `timeout`.
    fn unreachable(&mut self, tracker: &JobTracker, job: &str, timeout: Duration);

    /// Called when the JobTracker answers again.
    fn reachable(&mut self, tracker: &JobTracker);

    /// Called with all reasons why the job waits, whenever there is a new reason. A job waits if it
    /// has no running attempt or if its output cannot be written.
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
        let mut disconnected = DisconnectedTime::default();
        // An error counts as no reasons: the next query may have an answer.
        let ask = move |job: String| async move {
            self.why(&job).await.map_or_else(|_| Vec::new(), |why| why.waiting_for)
        };
        let mut waits = WaitReasons::new(NOTICE_AFTER, ask);
        loop {
            let asked =
                disconnected.during(self.watch(id), || observer.unreachable(self, id, RETRY_TIMEOUT)).await;
            let watched = match asked {
                Ok(watch) => follow_watch(watch, self, observer, &mut disconnected, &mut waits).await,
                Err(refusal) => Err(refusal),
            };
            match watched {
                Ok(Some(job)) => return Ok(job),
                Err(refusal) if !refusal.is_transient() => return Err(refusal),
                Ok(None) | Err(_) => {}
            }
            let since = *disconnected.since.get_or_insert_with(Instant::now);
            if since.elapsed() > RETRY_TIMEOUT {
                return Err(Error::ConnectionLost {
                    addr: self.addr().to_owned(),
                    seconds: RETRY_TIMEOUT.as_secs(),
                    advice: self.advice(),
                    job: id.into(),
                });
            }
            disconnected
                .during(tokio::time::sleep(RETRY_INTERVAL), || {
                    observer.unreachable(self, id, RETRY_TIMEOUT);
                })
                .await;
        }
    }
}

/// Since when the JobTracker has been unreachable, and whether the observer was notified.
#[derive(Debug, Default)]
struct DisconnectedTime {
    since: Option<Instant>,
    is_reported: bool,
}

impl DisconnectedTime {
    /// Called when the JobTracker is reachable again. Returns whether the observer was notified of
    /// the lost connection.
    fn end(&mut self) -> bool {
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

/// A job that waits, and the reasons that the observer was notified of.
struct WaitReasons<Ask, Query> {
    ask: Ask,
    /// The time from the start of the wait, or from a new reason, to the next query.
    first_interval: Duration,
    /// The current interval between queries. Doubles with each query without a new reason, up to
    /// [`QUERY_INTERVAL_MAX`], because hundreds of clients may follow jobs that wait for hours.
    interval: Duration,
    /// The ID of the job, and the time of the next query; None if the job does not wait.
    job: Option<(String, Instant)>,
    query: Option<Pin<Box<Query>>>,
    /// The rules of the reasons that were reported since the start of the wait.
    reported: BTreeSet<String>,
}

impl<Ask: Fn(String) -> Query, Query: Future<Output = Vec<Reason>>> WaitReasons<Ask, Query> {
    fn new(first_interval: Duration, ask: Ask) -> Self {
        let reported = BTreeSet::new();
        Self { ask, first_interval, interval: first_interval, job: None, query: None, reported }
    }

    fn update(&mut self, job: &Job) {
        let waits = job.is_waiting() || (!job.has_ended() && !job.why.is_empty());
        if !waits {
            (self.job, self.query) = (None, None);
            self.reported.clear();
        } else if self.job.is_none() {
            self.interval = self.first_interval;
            self.job = Some((job.job.clone(), Instant::now() + self.interval));
        }
    }

    /// Waits until the job has a reason that was not reported before. Returns the job and all its
    /// reasons. If the future is dropped, the next call continues its query.
    async fn next(&mut self) -> (String, Vec<Reason>) {
        loop {
            let Some((job, query_at)) = &mut self.job else { return std::future::pending().await };
            tokio::time::sleep_until((*query_at).into()).await;
            let reasons = self.query.get_or_insert_with(|| Box::pin((self.ask)(job.clone()))).await;
            self.query = None;
            let before = self.reported.len();
            self.reported.extend(reasons.iter().map(|reason| reason.rule.clone()));
            let is_new = self.reported.len() > before;
            self.interval =
                if is_new { self.first_interval } else { (2 * self.interval).min(QUERY_INTERVAL_MAX) };
            *query_at = Instant::now() + self.interval;
            if is_new {
                return (job.clone(), reasons);
            }
        }
    }
}

/// Follows a job over one connection. Returns None if the stream closes before the job has ended.
async fn follow_watch<Query: Future<Output = Vec<Reason>>>(
    mut watch: Watch,
    tracker: &JobTracker,
    observer: &mut impl Observer,
    disconnected: &mut DisconnectedTime,
    waits: &mut WaitReasons<impl Fn(String) -> Query, Query>,
) -> Result<Option<Job>> {
    loop {
        let job = tokio::select! {
            biased;
            job = watch.next() => job?,
            (job, reasons) = waits.next() => {
                observer.waits(&job, &reasons);
                continue;
            }
        };
        let Some(job) = job else { return Ok(None) };
        waits.update(&job);
        if disconnected.end() {
            observer.reachable(tracker);
        }
        observer.status(&job);
        if job.has_ended() {
            return Ok(Some(job));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        cell::{Cell, RefCell},
        collections::VecDeque,
    };

    #[tokio::test]
    async fn lost_connection_is_reported_once_after_a_delay() {
        let printed = Cell::new(0);
        let report = || printed.set(printed.get() + 1);
        let nap = || tokio::time::sleep(Duration::from_millis(50));
        let mut disconnected = DisconnectedTime::default();
        disconnected.during(nap(), report).await;
        assert_eq!(printed.get(), 0, "nothing was lost");
        disconnected.since = Some(Instant::now());
        disconnected.during(nap(), report).await;
        assert_eq!(printed.get(), 0, "too short");
        disconnected.since = Instant::now().checked_sub(NOTICE_AFTER);
        for _ in 0..2 {
            disconnected.during(nap(), report).await;
            assert_eq!(printed.get(), 1);
        }
        assert!(disconnected.end() && !disconnected.end());
    }

    fn reason_with_rule(rule: &str) -> Vec<Reason> {
        vec![Reason { rule: rule.into(), ..Reason::default() }]
    }

    fn waiting_job() -> Job {
        Job { job: "job_1".into(), state: "running".into(), ..Job::default() }
    }

    #[tokio::test]
    async fn each_reason_of_a_wait_is_reported_once() {
        let answers = [
            vec![],
            reason_with_rule("a"),
            reason_with_rule("a"),
            reason_with_rule("b"),
            reason_with_rule("a"),
        ];
        let answers = RefCell::new(VecDeque::from(answers));
        let mut waits = WaitReasons::new(Duration::from_millis(1), |_| {
            let answer = answers.borrow_mut().pop_front().unwrap();
            async { answer }
        });
        let mut job = waiting_job();
        waits.update(&job);
        assert_eq!(waits.next().await, ("job_1".into(), reason_with_rule("a")), "after an empty answer");
        assert_eq!(waits.next().await.1, reason_with_rule("b"));
        job.maps.running = 1;
        waits.update(&job);
        job.maps.running = 0;
        waits.update(&job);
        assert_eq!(waits.next().await.1, reason_with_rule("a"), "a new wait");
    }

    #[tokio::test]
    async fn interval_of_queries_doubles_while_the_reasons_stay_the_same() {
        let answers = ["a", "a", "a", "a", "b"].map(reason_with_rule);
        let answers = RefCell::new(VecDeque::from(answers));
        let mut waits = WaitReasons::new(Duration::from_millis(1), |_| {
            let answer = answers.borrow_mut().pop_front().unwrap();
            async { answer }
        });
        waits.update(&waiting_job());
        waits.next().await;
        assert_eq!(waits.interval, Duration::from_millis(1), "the reason is new");
        let begin = Instant::now();
        assert_eq!(waits.next().await.1, reason_with_rule("b"));
        assert!(begin.elapsed() >= Duration::from_millis(1 + 2 + 4 + 8), "{:?}", begin.elapsed());
        assert_eq!(waits.interval, Duration::from_millis(1), "the reason is new");
        waits.interval = QUERY_INTERVAL_MAX;
        waits.update(&Job { state: "succeeded".into(), ..waiting_job() });
        waits.update(&waiting_job());
        assert_eq!(waits.interval, Duration::from_millis(1), "a new wait");
    }

    #[tokio::test]
    async fn query_continues_when_a_status_arrives() {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let answered = Cell::new(Some(answered));
        let mut waits = WaitReasons::new(Duration::ZERO, |_| {
            let answered = answered.take().expect("it is asked once");
            async { answered.await.unwrap() }
        });
        waits.update(&waiting_job());
        for _ in 0..3 {
            tokio::select! {
                _ = waits.next() => panic!("there is no answer yet"),
                () = tokio::time::sleep(Duration::from_millis(10)) => waits.update(&waiting_job()),
            }
        }
        answer.send(reason_with_rule("a")).unwrap();
        assert_eq!(waits.next().await.1, reason_with_rule("a"));
    }
}
