//! Asks the masters what `mrctl web` and `mrctl top` show, as the one who runs this, and remembers the answers for a moment:
//! ten tabs ask no more than one. A master that is away is told as such, and all else is shown.

use crate::{
    job::{
        from_history,
        model::{Attempt, Job, Task, Tracker},
        refusal::Refusal,
        scheduling::{Schedulers, Why},
        statistics,
        wire::JobTracker,
    },
    locate::Target,
    output,
};
use anyhow::{Result, bail};
use daemon::Period;
use dfs::client::{Client, Report};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tonic::Code;

/// A master that says nothing for so long is away.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// A page with very many tasks, or a history.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// An answer counts for so long, and for four times as long as it took, so that a large job does not keep its master busy.
const FRESH: Duration = Duration::from_millis(900);
const FRESH_MAX: Duration = Duration::from_secs(10);
/// Different jobs that are remembered.
const CACHED_JOBS_MAX: usize = 32;
/// Of so many jobs that wait, the reason is asked for.
const REASONS_MAX: usize = 12;
/// Of a history.
const HISTORY_BYTES_MAX: usize = 64 << 20;
/// Of a log, its end.
pub(crate) const LOG_BYTES_MAX: u64 = 32 << 10;

/// Why there is no answer, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueryError {
    /// There is no such thing.
    Unknown(String),
    /// It is somebody else's.
    Forbidden(String),
    /// Nobody answers.
    Unavailable(String),
}

impl QueryError {
    fn of(error: &anyhow::Error) -> Self {
        let reason_text = output::chain(error);
        match error.downcast_ref::<Refusal>() {
            Some(Refusal::PaperFigures { code: Code::NotFound | Code::InvalidArgument, .. }) => {
                Self::Unknown(reason_text)
            }
            Some(Refusal::PaperFigures { code: Code::PermissionDenied | Code::Unauthenticated, .. }) => {
                Self::Forbidden(reason_text)
            }
            _ => Self::Unavailable(reason_text),
        }
    }

    pub(crate) fn describe(&self) -> &str {
        let (Self::Unknown(reason_text) | Self::Forbidden(reason_text) | Self::Unavailable(reason_text)) =
            self;
        reason_text
    }
}

pub(crate) type QueryResult<T> = Result<T, QueryError>;

/// The cluster at a glance.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(crate) jobs: QueryResult<Vec<Job>>,
    pub(crate) trackers: QueryResult<Vec<Tracker>>,
    pub(crate) schedulers: QueryResult<Schedulers>,
    pub(crate) files: QueryResult<Report>,
    /// What jobs that have no slot wait for.
    pub(crate) reasons: BTreeMap<String, String>,
}

impl Overview {
    /// Of those that take part: slots in use, and slots that there are.
    pub(crate) fn slots(&self) -> Slots {
        let trackers = self.trackers.as_deref().unwrap_or_default();
        let here = trackers.iter().filter(|own| !matches!(own.state.as_str(), "lost" | "awaited"));
        here.fold(Slots::default(), |sum, own| Slots {
            maps: (sum.maps.0 + own.maps_running, sum.maps.1 + own.map_slots),
            reduces: (sum.reduces.0 + own.reduces_running, sum.reduces.1 + own.reduce_slots),
        })
    }

    /// Why masters do not answer, each once.
    pub(crate) fn query_errors(&self) -> impl Iterator<Item = &QueryError> {
        [self.jobs.as_ref().err(), self.files.as_ref().err()].into_iter().flatten()
    }
}

/// Slots in use, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Slots {
    pub(crate) maps: (u32, u32),
    pub(crate) reduces: (u32, u32),
}

/// A job and all about it.
#[derive(Debug)]
pub(crate) struct JobDetails {
    pub(crate) job: Job,
    pub(crate) tasks: QueryResult<Vec<Task>>,
    pub(crate) why: QueryResult<Why>,
    /// What follows from its history, if that is all there is of it.
    pub(crate) past: Option<Vec<String>>,
}

/// Who asks, and whom.
pub(crate) struct StatusCache {
    target: Target,
    name: Option<String>,
    jobtracker: tokio::sync::Mutex<Option<JobTracker>>,
    namenode: tokio::sync::Mutex<Option<Client>>,
    overviews: CachedAnswers<Overview>,
    jobs: CachedAnswers<QueryResult<JobDetails>>,
}

impl StatusCache {
    /// Of this cluster; as this name, if it has to be proved.
    pub(crate) fn new(target: Target, name: Option<String>) -> Self {
        Self {
            target,
            name,
            jobtracker: tokio::sync::Mutex::default(),
            namenode: tokio::sync::Mutex::default(),
            overviews: CachedAnswers::default(),
            jobs: CachedAnswers::default(),
        }
    }

    /// As whom it asks.
    pub(crate) fn user(&self) -> String {
        self.name.clone().unwrap_or_else(daemon::account::user)
    }

    pub(crate) async fn overview(&self) -> Arc<Overview> {
        self.overviews.get("", Box::pin(self.refresh())).await
    }

    pub(crate) async fn job(&self, id: &str) -> Arc<QueryResult<JobDetails>> {
        self.jobs.get(id, Box::pin(self.query_job(id))).await
    }

    /// What a task waits for, and what was decided for it.
    pub(crate) async fn why(&self, of: &str) -> QueryResult<Why> {
        let of = of.to_owned();
        self.query(REQUEST_TIMEOUT, |tracker| async move { tracker.why(&of).await }).await
    }

    /// The end of what an attempt printed.
    pub(crate) async fn log(&self, attempt: &Attempt, stderr: bool) -> QueryResult<String> {
        let attempt = attempt.clone();
        let read = |tracker: JobTracker| async move {
            let mut text = Vec::new();
            let add = |bytes: &[u8]| {
                text.extend_from_slice(bytes);
                Ok(())
            };
            tracker.log(&attempt, stderr, LOG_BYTES_MAX, add).await?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        self.query(REQUEST_TIMEOUT, read).await
    }

    async fn refresh(&self) -> Overview {
        let jobs = self.query(REQUEST_TIMEOUT, |tracker| async move { tracker.jobs(true).await });
        let (jobs, files) = tokio::join!(jobs, self.report());
        let (trackers, schedulers) = if let Err(trouble) = &jobs {
            // Who has just not answered is not asked again.
            (Err(trouble.clone()), Err(trouble.clone()))
        } else {
            tokio::join!(
                self.query(REQUEST_TIMEOUT, |tracker| async move { tracker.trackers().await }),
                self.query(REQUEST_TIMEOUT, |tracker| async move { tracker.schedulers().await })
            )
        };
        let mut reasons = BTreeMap::new();
        let waiting = jobs.iter().flatten().filter(|job| job.waiting_for()).take(REASONS_MAX);
        for id in waiting.map(|job| job.job.clone()).collect::<Vec<_>>() {
            // What others wait for is their own.
            if let Ok(why) = self.why(&id).await
                && let Some(first) = why.waiting_for.into_iter().next()
            {
                reasons.insert(id, first.text);
            }
        }
        Overview { jobs, trackers, schedulers, files, reasons }
    }

    async fn query_job(&self, id: &str) -> QueryResult<JobDetails> {
        let own = || id.to_owned();
        let (of_job, of_tasks) = (own(), own());
        let job = match self.query(REQUEST_TIMEOUT, |tracker| async move { tracker.job(&of_job).await }).await
        {
            Err(QueryError::Unknown(reason_text)) => return self.query_history(id, reason_text).await,
            other => other?,
        };
        let (tasks, why) = tokio::join!(
            self.query(READ_TIMEOUT, |tracker| async move { tracker.tasks(&of_tasks).await }),
            self.why(id)
        );
        Ok(JobDetails { job, tasks, why, past: None })
    }

    /// Out of its history, if there is one; `text` say why it comes to that.
    async fn query_history(&self, id: &str, reason_text: String) -> QueryResult<JobDetails> {
        let of = id.to_owned();
        let read = |tracker: JobTracker| async move {
            let mut text = String::new();
            let add = |lines: &str| {
                if text.len() + lines.len() > HISTORY_BYTES_MAX {
                    bail!("the history of {of} is too long for a page: `mrctl history {of}` has it");
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
        let (job, tasks) = from_history::read(&text).map_err(|error| QueryError::of(&error))?;
        let figures = statistics::of_text(id, &text).unwrap_or_default();
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
            Err(_) => anyhow::anyhow!("the JobTracker has not answered for {} s", within.as_secs()),
        };
        let trouble = QueryError::of(&error);
        if matches!(trouble, QueryError::Unavailable(_)) {
            // It may come back at another address.
            *self.jobtracker.lock().await = None;
        }
        Err(trouble)
    }

    async fn jobtracker(&self) -> Result<JobTracker> {
        let mut kept = self.jobtracker.lock().await;
        if let Some(tracker) = &*kept {
            return Ok(tracker.clone());
        }
        self.check_same_access()?;
        let tracker = self.target.jobtracker().await?;
        *kept = Some(tracker.clone());
        Ok(tracker)
    }

    async fn report(&self) -> QueryResult<Report> {
        let asking = async {
            let client = self.namenode().await?;
            Ok(client.report().await?)
        };
        let answer = match tokio::time::timeout(REQUEST_TIMEOUT, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                Err(anyhow::anyhow!("the NameNode has not answered for {} s", REQUEST_TIMEOUT.as_secs()))
            }
        };
        if answer.is_err() {
            *self.namenode.lock().await = None;
        }
        answer.map_err(|error| QueryError::of(&error))
    }

    async fn namenode(&self) -> Result<Client> {
        let mut kept = self.namenode.lock().await;
        if let Some(client) = &*kept {
            return Ok(client.clone());
        }
        self.check_same_access()?;
        let client = self.target.connect_briefly(Period(REQUEST_TIMEOUT / 2)).await?;
        *kept = Some(client.clone());
        Ok(client)
    }

    /// A cluster that has been closed, or is now shown to as another, is not shown to who was let in before.
    fn check_same_access(&self) -> Result<()> {
        if self.target.proved_name()? != self.name {
            bail!(
                "another name is shown to the cluster now than at the start: end `mrctl web` and start it again"
            );
        }
        Ok(())
    }
}

/// Answers that are not asked for twice at a time.
struct CachedAnswers<T>(Mutex<HashMap<String, Arc<CacheSlot<T>>>>);

type CacheSlot<T> = tokio::sync::Mutex<Option<(Instant, Arc<T>)>>;

impl<T> Default for CachedAnswers<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> CachedAnswers<T> {
    async fn get(&self, key: &str, make: impl Future<Output = T>) -> Arc<T> {
        let place = {
            let mut places = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if places.len() >= CACHED_JOBS_MAX && !places.contains_key(key) {
                places.clear();
            }
            places.entry(key.to_owned()).or_default().clone()
        };
        let mut kept = place.lock().await;
        if let Some((until, value)) = &*kept
            && Instant::now() < *until
        {
            return value.clone();
        }
        let began = Instant::now();
        let value = Arc::new(make.await);
        let fresh = FRESH.max(began.elapsed() * 4).min(FRESH_MAX);
        *kept = Some((Instant::now() + fresh, value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn recent_answers_are_cached() {
        let (kept, asked) = (CachedAnswers::<u32>::default(), AtomicU32::new(0));
        let query = || async { asked.fetch_add(1, Ordering::Relaxed) };
        let (one, two) = tokio::join!(kept.get("a", query()), kept.get("a", query()));
        assert_eq!((*one, *two, *kept.get("b", query()).await), (0, 0, 1));
        for key in 0..2 * CACHED_JOBS_MAX {
            kept.get(&key.to_string(), query()).await;
        }
        assert!(kept.0.lock().unwrap().len() <= CACHED_JOBS_MAX);
    }

    #[test]
    fn query_errors_are_distinguished() {
        let paper_figures =
            |code, message: &str| anyhow::Error::new(Refusal::PaperFigures { code, message: message.into() });
        assert_eq!(
            QueryError::of(&paper_figures(Code::NotFound, "no job_9")),
            QueryError::Unknown("no job_9".into())
        );
        assert_eq!(
            QueryError::of(&paper_figures(Code::PermissionDenied, "ann's")),
            QueryError::Forbidden("ann's".into())
        );
        assert!(matches!(
            QueryError::of(&paper_figures(Code::Unavailable, "later")),
            QueryError::Unavailable(_)
        ));
        assert_eq!(QueryError::of(&anyhow::anyhow!("gone")).describe(), "gone");
    }
}
