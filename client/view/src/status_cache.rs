//! Queries the masters for `mrctl web` and `mrctl top`, with the credentials of the user who runs
//! them, and caches the answers briefly: ten browser tabs cause no more requests than one. If a
//! master is unreachable, the error is part of the answer, and the data of the other master is
//! still shown.

use crate::{figures, from_history, output};
use anyhow::{Result, bail};
use client::{
    Error, JobTracker, Role,
    model::{Attempt, Job, Task, Tracker},
    scheduling::{Reason, Schedulers, WhyReply},
};
use daemon::Period;
use dfs_client::{Client, ClientError, Report};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tonic::Code;

/// After this time without an answer, a master or a TaskTracker counts as unreachable.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout for a list of tasks, which may be long, and for a history.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// A cached answer is valid for this time, or for four times the duration of the query if that is
/// longer, so that queries about a large job do not keep the JobTracker busy. If a master did not
/// answer, the result is valid only for `FRESH`, because the master may answer again at any time.
const FRESH: Duration = Duration::from_millis(900);
/// Maximum time for which a cached answer is valid.
const FRESH_MAX: Duration = Duration::from_secs(10);
/// The maximum number of jobs in the cache.
const CACHED_JOBS_MAX: usize = 32;
/// The maximum number of waiting jobs for which an overview includes the reason.
const REASONS_MAX: usize = 12;
/// The maximum size of a history. A longer history is refused.
const HISTORY_BYTES_MAX: usize = 64 << 20;
/// Only this many bytes from the end of a log are shown.
pub const LOG_BYTES_MAX: u64 = 32 << 10;

/// Why a query has no answer, with the text for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryError {
    /// The job, task or attempt does not exist.
    Unknown(String),
    /// The job belongs to another user.
    Forbidden(String),
    /// The reply cannot be shown. A retry would have the same result.
    Invalid(String),
    /// The master is unreachable.
    Unavailable(String),
}

impl QueryError {
    fn of(error: &anyhow::Error) -> Self {
        let reason_text = output::chain(error);
        match error.downcast_ref::<Error>() {
            Some(Error::Status { code: Code::NotFound | Code::InvalidArgument, .. }) => {
                Self::Unknown(reason_text)
            }
            Some(Error::Status { code: Code::PermissionDenied | Code::Unauthenticated, .. }) => {
                Self::Forbidden(reason_text)
            }
            Some(Error::Invalid(_)) => Self::Invalid(reason_text),
            _ => Self::Unavailable(reason_text),
        }
    }

    /// Returns the text for the user.
    pub fn describe(&self) -> &str {
        let (Self::Unknown(text) | Self::Forbidden(text) | Self::Invalid(text) | Self::Unavailable(text)) =
            self;
        text
    }
}

/// The answer to a query, or why there is none.
pub type QueryResult<T> = Result<T, QueryError>;

/// The state of the cluster: jobs, trackers, schedulers, and the report of the NameNode.
#[derive(Debug)]
pub struct Overview {
    /// All jobs that the JobTracker remembers.
    pub jobs: QueryResult<Vec<Job>>,
    /// All trackers.
    pub trackers: QueryResult<Vec<Tracker>>,
    pub schedulers: QueryResult<Schedulers>,
    /// The report of the NameNode.
    pub files: QueryResult<Report>,
    /// The first reason why each waiting job has no slot, by job ID.
    pub reasons: BTreeMap<String, String>,
}

impl Overview {
    /// Returns the slots in use and in total. Excludes trackers that are lost, and trackers that
    /// have not registered again since the JobTracker restarted (`awaited`).
    pub fn slots(&self) -> Slots {
        let trackers = self.trackers.as_deref().unwrap_or_default();
        let here = trackers.iter().filter(|own| !matches!(own.state.as_str(), "lost" | "awaited"));
        here.fold(Slots::default(), |sum, own| Slots {
            maps: (sum.maps.0 + own.maps_running, sum.maps.1 + own.map_slots),
            reduces: (sum.reduces.0 + own.reduces_running, sum.reduces.1 + own.reduce_slots),
        })
    }

    /// Returns the error of each master that is unreachable.
    pub fn query_errors(&self) -> impl Iterator<Item = &QueryError> {
        [self.jobs.as_ref().err(), self.files.as_ref().err()].into_iter().flatten()
    }
}

/// Slots in use and in total, by phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Slots {
    /// Map slots in use and in total.
    pub maps: (u32, u32),
    /// Reduce slots in use and in total.
    pub reduces: (u32, u32),
}

/// A job, its tasks, and why it waits.
#[derive(Debug)]
pub struct JobDetails {
    pub job: Job,
    pub tasks: QueryResult<Vec<Task>>,
    /// Why it waits, and recent decisions about it.
    pub why: QueryResult<WhyReply>,
    /// The metrics of the job as sentences, if the JobTracker has forgotten the job and all data is
    /// from its history.
    pub past: Option<Vec<String>>,
}

/// The future of a new connection.
pub type Connecting<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Connects to the masters of a cluster, at first and whenever a connection is lost.
pub trait Masters: Send + Sync {
    /// Connects to the JobTracker.
    fn jobtracker(&self) -> Connecting<'_, JobTracker>;

    /// Connects to the NameNode, with this deadline for connections and calls.
    fn namenode(&self, timeout: Period) -> Connecting<'_, Client>;

    /// Returns the authenticated name of the caller; None if the cluster is open.
    fn authenticated_name(&self) -> Result<Option<String>>;

    /// Returns the error for a master that does not answer: its address, `why`, and what to do.
    fn no_answer(&self, master: Role, why: &str) -> anyhow::Error;
}

/// Connections to the masters, and the cached answers.
pub struct StatusCache {
    masters: Box<dyn Masters>,
    name: Option<String>,
    jobtracker: tokio::sync::Mutex<Option<JobTracker>>,
    namenode: tokio::sync::Mutex<Option<Client>>,
    overviews: CachedAnswers<Overview>,
    jobs: CachedAnswers<QueryResult<JobDetails>>,
}

impl StatusCache {
    /// Creates an empty cache. `name` is the authenticated name of the user; None in an open
    /// cluster.
    pub fn new(masters: Box<dyn Masters>, name: Option<String>) -> Self {
        Self {
            masters,
            name,
            jobtracker: tokio::sync::Mutex::default(),
            namenode: tokio::sync::Mutex::default(),
            overviews: CachedAnswers::default(),
            jobs: CachedAnswers::default(),
        }
    }

    /// Returns the user whose credentials the queries use.
    pub fn user(&self) -> String {
        self.name.clone().unwrap_or_else(daemon::account::user)
    }

    /// Returns the state of the cluster.
    pub async fn overview(&self) -> Arc<Overview> {
        let is_complete = |all: &Overview| {
            is_answered(&all.jobs)
                && is_answered(&all.trackers)
                && is_answered(&all.schedulers)
                && is_answered(&all.files)
        };
        self.overviews.get("", Box::pin(self.refresh()), is_complete).await
    }

    /// Returns a job and its tasks.
    pub async fn job(&self, id: &str) -> Arc<QueryResult<JobDetails>> {
        let is_complete = |answer: &QueryResult<JobDetails>| {
            answer.as_ref().map_or_else(|_| is_answered(answer), |job| is_answered(&job.tasks))
        };
        self.jobs.get(id, Box::pin(self.query_job(id)), is_complete).await
    }

    /// Returns why a task waits, and the scheduling decisions about it.
    pub async fn why(&self, of: &str) -> QueryResult<WhyReply> {
        let of = of.to_owned();
        self.query(REQUEST_TIMEOUT, |tracker| async move { anyhow::Ok(tracker.why(&of).await?) }).await
    }

    /// Returns the last part of the output of an attempt.
    pub async fn log(&self, attempt: &Attempt, stderr: bool) -> QueryResult<String> {
        let attempt = attempt.clone();
        let read = |tracker: JobTracker| async move {
            let mut text = Vec::new();
            let add = |bytes: &[u8]| {
                text.extend_from_slice(bytes);
                anyhow::Ok(())
            };
            let reading = tracker.log(&attempt, stderr, LOG_BYTES_MAX, add);
            let Ok(read) = tokio::time::timeout(REQUEST_TIMEOUT, reading).await else {
                let Attempt { attempt, tracker: node, logs_addr: addr, .. } = attempt.clone();
                return Err(Error::LogsUnreachable { attempt, node, addr }.into());
            };
            read?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        // The timeout includes connecting to the JobTracker.
        self.query(2 * REQUEST_TIMEOUT, read).await
    }

    async fn refresh(&self) -> Overview {
        let jobs =
            self.query(REQUEST_TIMEOUT, |tracker| async move { anyhow::Ok(tracker.jobs(true).await?) });
        let (jobs, files) = tokio::join!(jobs, self.report());
        let (trackers, schedulers) = if let Err(error) = &jobs {
            // The JobTracker is unreachable: do not query it again.
            (Err(error.clone()), Err(error.clone()))
        } else {
            tokio::join!(
                self.query(REQUEST_TIMEOUT, |tracker| async move { anyhow::Ok(tracker.trackers().await?) }),
                self.query(REQUEST_TIMEOUT, |tracker| async move { anyhow::Ok(tracker.schedulers().await?) })
            )
        };
        let mut reasons = BTreeMap::new();
        let waiting = jobs.iter().flatten().filter(|job| job.is_waiting()).take(REASONS_MAX);
        for id in waiting.map(|job| job.job.clone()).collect::<Vec<_>>() {
            // The JobTracker refuses this for jobs of other users. Their reasons are left out.
            if let Ok(why) = self.why(&id).await
                && let Some(first) = most_specific(why.waiting_for)
            {
                reasons.insert(id, first.text);
            }
        }
        Overview { jobs, trackers, schedulers, files, reasons }
    }

    async fn query_job(&self, id: &str) -> QueryResult<JobDetails> {
        let own = || id.to_owned();
        let (of_job, of_tasks) = (own(), own());
        let job = match self
            .query(REQUEST_TIMEOUT, |tracker| async move { anyhow::Ok(tracker.job(&of_job).await?) })
            .await
        {
            Err(QueryError::Unknown(reason_text)) => return self.query_history(id, reason_text).await,
            other => other?,
        };
        let (tasks, why) = tokio::join!(
            self.query(READ_TIMEOUT, |tracker| async move { anyhow::Ok(tracker.tasks(&of_tasks).await?) }),
            self.why(id)
        );
        Ok(JobDetails { job, tasks, why, past: None })
    }

    /// Reads the job from its history. If there is no history, returns an error with `reason_text`:
    /// why the JobTracker does not have the job.
    async fn query_history(&self, id: &str, reason_text: String) -> QueryResult<JobDetails> {
        let of = id.to_owned();
        let read = |tracker: JobTracker| async move {
            let mut text = String::new();
            let add = |lines: &str| {
                if text.len() + lines.len() > HISTORY_BYTES_MAX {
                    let why = format!("the history of {of} is too long for a page: use `mrctl history {of}`");
                    bail!(Error::Invalid(why));
                }
                text.push_str(lines);
                Ok(())
            };
            tracker.history(&of, add).await?;
            Ok(text)
        };
        let text = match self.query(READ_TIMEOUT, read).await {
            Err(QueryError::Unknown(_)) => return Err(QueryError::Unknown(reason_text)),
            other => other?,
        };
        let (job, tasks) =
            from_history::read(&text).map_err(|error| QueryError::Invalid(output::chain(&error)))?;
        let figures = figures::of_text(id, &text).unwrap_or_default();
        Ok(JobDetails {
            job,
            tasks: Ok(tasks),
            why: Err(QueryError::Unknown(reason_text)),
            past: Some(figures),
        })
    }

    async fn query<T, F>(&self, within: Duration, question: impl FnOnce(JobTracker) -> F) -> QueryResult<T>
    where
        F: Future<Output = Result<T>>,
    {
        let asking = async { question(self.jobtracker().await?).await };
        let error = match tokio::time::timeout(within, asking).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => self.no_answer(Role::JobTracker, within),
        };
        let of_tracker = matches!(error.downcast_ref(), Some(Error::LogsUnreachable { .. }));
        let error = QueryError::of(&error);
        if matches!(error, QueryError::Unavailable(_)) && !of_tracker {
            // The JobTracker may restart at another address.
            *self.jobtracker.lock().await = None;
        }
        Err(error)
    }

    fn no_answer(&self, master: Role, after: Duration) -> anyhow::Error {
        self.masters.no_answer(master, &format!("no answer for {} s", after.as_secs()))
    }

    async fn jobtracker(&self) -> Result<JobTracker> {
        let mut cached = self.jobtracker.lock().await;
        if let Some(tracker) = &*cached {
            return Ok(tracker.clone());
        }
        self.check_same_access()?;
        let tracker = self.masters.jobtracker().await?;
        *cached = Some(tracker.clone());
        Ok(tracker)
    }

    async fn report(&self) -> QueryResult<Report> {
        let asking = async {
            let client = self.namenode().await?;
            anyhow::Ok(client.report().await?)
        };
        let answer = match tokio::time::timeout(REQUEST_TIMEOUT, asking).await {
            Ok(Err(error)) => Err(match error.downcast_ref() {
                Some(ClientError::Deadline { kind: None, seconds, .. }) => {
                    self.no_answer(Role::NameNode, Duration::from_secs_f64(*seconds))
                }
                _ => error,
            }),
            Ok(answer) => answer,
            Err(_) => Err(self.no_answer(Role::NameNode, REQUEST_TIMEOUT)),
        };
        if answer.is_err() {
            *self.namenode.lock().await = None;
        }
        answer.map_err(|error| QueryError::of(&error))
    }

    async fn namenode(&self) -> Result<Client> {
        let mut cached = self.namenode.lock().await;
        if let Some(client) = &*cached {
            return Ok(client.clone());
        }
        self.check_same_access()?;
        let client = self.masters.namenode(Period(REQUEST_TIMEOUT / 2)).await?;
        *cached = Some(client.clone());
        Ok(client)
    }

    /// Refuses to reconnect if the authenticated name has changed since the start: a browser that
    /// was admitted before must not see the data of another identity.
    fn check_same_access(&self) -> Result<()> {
        if self.masters.authenticated_name()? != self.name {
            bail!("the identity for this cluster has changed since the start: restart `mrctl web`");
        }
        Ok(())
    }
}

/// Returns whether a master has answered the query. A refusal is an answer too.
fn is_answered<T>(answer: &QueryResult<T>) -> bool {
    !matches!(answer, Err(QueryError::Unavailable(_)))
}

/// Returns the first reason other than `policy-keeps-slots`, which only says that the policy leaves
/// slots free. Without another reason, returns that.
fn most_specific(reasons: Vec<Reason>) -> Option<Reason> {
    let at = reasons.iter().position(|reason| reason.rule != "policy-keeps-slots").unwrap_or(0);
    reasons.into_iter().nth(at)
}

/// Cached answers by key. Concurrent requests for one key cause one query.
struct CachedAnswers<T>(Mutex<HashMap<String, Arc<CacheSlot<T>>>>);

type CacheSlot<T> = tokio::sync::Mutex<Option<(Instant, Arc<T>)>>;

impl<T> Default for CachedAnswers<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> CachedAnswers<T> {
    async fn get(
        &self,
        key: &str,
        make: impl Future<Output = T>,
        is_complete: impl Fn(&T) -> bool,
    ) -> Arc<T> {
        let slot = {
            let mut slots = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if slots.len() >= CACHED_JOBS_MAX && !slots.contains_key(key) {
                slots.clear();
            }
            slots.entry(key.to_owned()).or_default().clone()
        };
        let mut cached = slot.lock().await;
        if let Some((until, value)) = &*cached
            && Instant::now() < *until
        {
            return value.clone();
        }
        let began = Instant::now();
        let value = Arc::new(make.await);
        let fresh = if is_complete(&value) { FRESH.max(began.elapsed() * 4).min(FRESH_MAX) } else { FRESH };
        *cached = Some((Instant::now() + fresh, value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn specific_reason_is_preferred_to_policy_keeps_slots() {
        let reasons = |rules: &[&str]| -> Option<String> {
            let reason = |rule: &&str| Reason { rule: (*rule).to_owned(), ..Reason::default() };
            most_specific(rules.iter().map(reason).collect()).map(|reason| reason.rule)
        };
        assert_eq!(reasons(&["policy-keeps-slots", "locality-wait"]).unwrap(), "locality-wait");
        assert_eq!(reasons(&["policy-keeps-slots"]).unwrap(), "policy-keeps-slots");
        assert_eq!(reasons(&["no-free-slot", "jobs-ahead"]).unwrap(), "no-free-slot");
        assert_eq!(reasons(&[]), None);
    }

    #[tokio::test]
    async fn recent_answers_are_cached() {
        let (cache, asked) = (CachedAnswers::<u32>::default(), AtomicU32::new(0));
        let query = || async { asked.fetch_add(1, Ordering::Relaxed) };
        let (one, two) = tokio::join!(cache.get("a", query(), |_| true), cache.get("a", query(), |_| true));
        assert_eq!((*one, *two, *cache.get("b", query(), |_| true).await), (0, 0, 1));
        for key in 0..2 * CACHED_JOBS_MAX {
            cache.get(&key.to_string(), query(), |_| true).await;
        }
        assert!(cache.0.lock().unwrap().len() <= CACHED_JOBS_MAX);
    }

    #[tokio::test]
    async fn errors_are_cached_briefly_however_long_the_query_took() {
        let cache = CachedAnswers::<u32>::default();
        let slow = || async {
            tokio::time::sleep(FRESH).await;
            0
        };
        for (key, is_complete) in [("answer", true), ("error", false)] {
            cache.get(key, slow(), |_| is_complete).await;
        }
        let slots: Vec<_> = ["answer", "error"].map(|key| cache.0.lock().unwrap()[key].clone()).into();
        let mut left = Vec::new();
        for slot in slots {
            left.push(slot.lock().await.as_ref().unwrap().0.saturating_duration_since(Instant::now()));
        }
        assert!(left[0] > 2 * FRESH && left[1] <= FRESH, "{left:?}");
    }

    /// Masters to which no connection is ever established.
    struct Frozen;

    impl Masters for Frozen {
        fn jobtracker(&self) -> Connecting<'_, JobTracker> {
            Box::pin(std::future::pending())
        }

        fn namenode(&self, _: Period) -> Connecting<'_, Client> {
            Box::pin(std::future::pending())
        }

        fn authenticated_name(&self) -> Result<Option<String>> {
            Ok(None)
        }

        fn no_answer(&self, master: Role, why: &str) -> anyhow::Error {
            anyhow::anyhow!("{}: {why}; start it with `mrctl up`", master.title())
        }
    }

    #[tokio::test]
    async fn frozen_masters_are_reported_with_what_to_do() {
        let all = StatusCache::new(Box::new(Frozen), None).overview().await;
        let errors: Vec<&str> = all.query_errors().map(QueryError::describe).collect();
        let line = |master| format!("{master}: no answer for 4 s; start it with `mrctl up`");
        assert_eq!(errors, [line("JobTracker"), line("NameNode")]);
    }

    /// A JobTracker whose address accepts TCP connections but never answers.
    struct Silent(String);

    impl Masters for Silent {
        fn jobtracker(&self) -> Connecting<'_, JobTracker> {
            Box::pin(async {
                let credentials = client::credentials(&daemon::config::SecurityConfig::default())?;
                Ok(JobTracker::connect(&self.0, None, credentials).await?)
            })
        }

        fn namenode(&self, timeout: Period) -> Connecting<'_, Client> {
            Frozen.namenode(timeout)
        }

        fn authenticated_name(&self) -> Result<Option<String>> {
            Frozen.authenticated_name()
        }

        fn no_answer(&self, master: Role, why: &str) -> anyhow::Error {
            Frozen.no_answer(master, why)
        }
    }

    #[tokio::test]
    async fn frozen_tasktracker_is_not_reported_as_the_jobtracker() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = silent.local_addr().unwrap().to_string();
        let cache = StatusCache::new(Box::new(Silent(addr.clone())), None);
        let attempt = Attempt { tracker: "node7".into(), logs_addr: addr, ..Attempt::default() };
        let error = cache.log(&attempt, true).await.unwrap_err();
        assert!(error.describe().contains("on node7, whose TaskTracker at"), "{error:?}");
        assert!(cache.jobtracker.lock().await.is_some(), "the connection to the JobTracker is kept");
    }

    #[test]
    fn query_errors_are_distinguished() {
        let status =
            |code, message: &str| anyhow::Error::new(Error::Status { code, message: message.into() });
        assert_eq!(
            QueryError::of(&status(Code::NotFound, "no job_9")),
            QueryError::Unknown("no job_9".into())
        );
        assert_eq!(
            QueryError::of(&status(Code::PermissionDenied, "ann's")),
            QueryError::Forbidden("ann's".into())
        );
        assert!(matches!(QueryError::of(&status(Code::Unavailable, "later")), QueryError::Unavailable(_)));
        assert_eq!(QueryError::of(&anyhow::anyhow!("gone")).describe(), "gone");
        let invalid = QueryError::of(&anyhow::Error::new(Error::Invalid("too long".into())));
        assert_eq!(invalid, QueryError::Invalid("too long".into()));
        assert!(is_answered::<()>(&Err(invalid)));
        assert!(!is_answered::<()>(&Err(QueryError::Unavailable("later".into()))));
    }
}
