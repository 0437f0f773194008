//! Asks the masters what `mrctl web` and `mrctl top` show, as the one who runs this, and remembers the answers for a moment:
//! ten tabs ask no more than one. A master that is away is told as such, and all else is shown.

use crate::{
    job::{
        figures,
        model::{Attempt, Job, Task, Tracker},
        past,
        refusal::Refusal,
        scheduling::{Schedulers, Why},
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
const ASK_WITHIN: Duration = Duration::from_secs(4);
/// A page with very many tasks, or a history.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// An answer counts for so long, and for four times as long as it took, so that a large job does not keep its master busy.
const FRESH: Duration = Duration::from_millis(900);
const FRESH_MAX: Duration = Duration::from_secs(10);
/// Different jobs that are remembered.
const KEPT_MAX: usize = 32;
/// Of so many jobs that wait, the reason is asked for.
const REASONS_MAX: usize = 12;
/// Of a history.
const HISTORY_BYTES_MAX: usize = 64 << 20;
/// Of a log, its end.
pub(crate) const LOG_BYTES_MAX: u64 = 32 << 10;

/// Why there is no answer, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// There is no such thing.
    Unknown(String),
    /// It is somebody else's.
    NotYours(String),
    /// Nobody answers.
    Away(String),
}

impl Trouble {
    fn of(error: &anyhow::Error) -> Self {
        let words = output::chain(error);
        match error.downcast_ref::<Refusal>() {
            Some(Refusal::Said { code: Code::NotFound | Code::InvalidArgument, .. }) => Self::Unknown(words),
            Some(Refusal::Said { code: Code::PermissionDenied | Code::Unauthenticated, .. }) => {
                Self::NotYours(words)
            }
            _ => Self::Away(words),
        }
    }

    pub(crate) fn words(&self) -> &str {
        let (Self::Unknown(words) | Self::NotYours(words) | Self::Away(words)) = self;
        words
    }
}

pub(crate) type Told<T> = Result<T, Trouble>;

/// The cluster at a glance.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(crate) jobs: Told<Vec<Job>>,
    pub(crate) trackers: Told<Vec<Tracker>>,
    pub(crate) schedulers: Told<Schedulers>,
    pub(crate) files: Told<Report>,
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
    pub(crate) fn troubles(&self) -> impl Iterator<Item = &Trouble> {
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
pub(crate) struct Whole {
    pub(crate) job: Job,
    pub(crate) tasks: Told<Vec<Task>>,
    pub(crate) why: Told<Why>,
    /// What follows from its history, if that is all there is of it.
    pub(crate) past: Option<Vec<String>>,
}

/// Who asks, and whom.
pub(crate) struct Desk {
    target: Target,
    name: Option<String>,
    jobtracker: tokio::sync::Mutex<Option<JobTracker>>,
    namenode: tokio::sync::Mutex<Option<Client>>,
    overviews: Kept<Overview>,
    jobs: Kept<Told<Whole>>,
}

impl Desk {
    /// Of this cluster; as this name, if it has to be proved.
    pub(crate) fn new(target: Target, name: Option<String>) -> Self {
        Self {
            target,
            name,
            jobtracker: tokio::sync::Mutex::default(),
            namenode: tokio::sync::Mutex::default(),
            overviews: Kept::default(),
            jobs: Kept::default(),
        }
    }

    /// As whom it asks.
    pub(crate) fn user(&self) -> String {
        self.name.clone().unwrap_or_else(daemon::account::user)
    }

    pub(crate) async fn overview(&self) -> Arc<Overview> {
        self.overviews.get("", Box::pin(self.look())).await
    }

    pub(crate) async fn job(&self, id: &str) -> Arc<Told<Whole>> {
        self.jobs.get(id, Box::pin(self.look_at(id))).await
    }

    /// What a task waits for, and what was decided for it.
    pub(crate) async fn why(&self, of: &str) -> Told<Why> {
        let of = of.to_owned();
        self.ask(ASK_WITHIN, |tracker| async move { tracker.why(&of).await }).await
    }

    /// The end of what an attempt printed.
    pub(crate) async fn log(&self, attempt: &Attempt, stderr: bool) -> Told<String> {
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
        self.ask(ASK_WITHIN, read).await
    }

    async fn look(&self) -> Overview {
        let jobs = self.ask(ASK_WITHIN, |tracker| async move { tracker.jobs(true).await });
        let (jobs, files) = tokio::join!(jobs, self.report());
        let (trackers, schedulers) = if let Err(trouble) = &jobs {
            // Who has just not answered is not asked again.
            (Err(trouble.clone()), Err(trouble.clone()))
        } else {
            tokio::join!(
                self.ask(ASK_WITHIN, |tracker| async move { tracker.trackers().await }),
                self.ask(ASK_WITHIN, |tracker| async move { tracker.schedulers().await })
            )
        };
        let mut reasons = BTreeMap::new();
        let waiting = jobs.iter().flatten().filter(|job| job.waits()).take(REASONS_MAX);
        for id in waiting.map(|job| job.job.clone()).collect::<Vec<_>>() {
            // What others wait for is their own.
            if let Ok(why) = self.why(&id).await
                && let Some(first) = why.waits.into_iter().next()
            {
                reasons.insert(id, first.words);
            }
        }
        Overview { jobs, trackers, schedulers, files, reasons }
    }

    async fn look_at(&self, id: &str) -> Told<Whole> {
        let own = || id.to_owned();
        let (of_job, of_tasks) = (own(), own());
        let job = match self.ask(ASK_WITHIN, |tracker| async move { tracker.job(&of_job).await }).await {
            Err(Trouble::Unknown(words)) => return self.look_back(id, words).await,
            other => other?,
        };
        let (tasks, why) = tokio::join!(
            self.ask(READ_WITHIN, |tracker| async move { tracker.tasks(&of_tasks).await }),
            self.why(id)
        );
        Ok(Whole { job, tasks, why, past: None })
    }

    /// Out of its history, if there is one; `words` say why it comes to that.
    async fn look_back(&self, id: &str, words: String) -> Told<Whole> {
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
        let text = match self.ask(READ_WITHIN, read).await {
            Err(Trouble::Unknown(_)) => return Err(Trouble::Unknown(words)),
            other => other?,
        };
        let (job, tasks) = past::read(&text).map_err(|error| Trouble::of(&error))?;
        let figures = figures::of_text(id, &text).unwrap_or_default();
        Ok(Whole { job, tasks: Ok(tasks), why: Err(Trouble::Unknown(words)), past: Some(figures) })
    }

    async fn ask<T, F>(&self, within: Duration, question: impl FnOnce(JobTracker) -> F) -> Told<T>
    where
        F: Future<Output = Result<T>>,
    {
        let asking = async { question(self.jobtracker().await?).await };
        let error = match tokio::time::timeout(within, asking).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("the JobTracker has not answered for {} s", within.as_secs()),
        };
        let trouble = Trouble::of(&error);
        if matches!(trouble, Trouble::Away(_)) {
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
        self.still_the_same()?;
        let tracker = self.target.jobtracker().await?;
        *kept = Some(tracker.clone());
        Ok(tracker)
    }

    async fn report(&self) -> Told<Report> {
        let asking = async {
            let client = self.namenode().await?;
            Ok(client.report().await?)
        };
        let answer = match tokio::time::timeout(ASK_WITHIN, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(anyhow::anyhow!("the NameNode has not answered for {} s", ASK_WITHIN.as_secs())),
        };
        if answer.is_err() {
            *self.namenode.lock().await = None;
        }
        answer.map_err(|error| Trouble::of(&error))
    }

    async fn namenode(&self) -> Result<Client> {
        let mut kept = self.namenode.lock().await;
        if let Some(client) = &*kept {
            return Ok(client.clone());
        }
        self.still_the_same()?;
        let client = self.target.connect_briefly(Period(ASK_WITHIN / 2)).await?;
        *kept = Some(client.clone());
        Ok(client)
    }

    /// A cluster that has been closed, or is now shown to as another, is not shown to who was let in before.
    fn still_the_same(&self) -> Result<()> {
        if self.target.proved_name()? != self.name {
            bail!(
                "another name is shown to the cluster now than at the start: end `mrctl web` and start it again"
            );
        }
        Ok(())
    }
}

/// Answers that are not asked for twice at a time.
struct Kept<T>(Mutex<HashMap<String, Arc<Place<T>>>>);

type Place<T> = tokio::sync::Mutex<Option<(Instant, Arc<T>)>>;

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Kept<T> {
    async fn get(&self, key: &str, make: impl Future<Output = T>) -> Arc<T> {
        let place = {
            let mut places = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if places.len() >= KEPT_MAX && !places.contains_key(key) {
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
    async fn what_was_asked_a_moment_ago_is_not_asked_again() {
        let (kept, asked) = (Kept::<u32>::default(), AtomicU32::new(0));
        let ask = || async { asked.fetch_add(1, Ordering::Relaxed) };
        let (one, two) = tokio::join!(kept.get("a", ask()), kept.get("a", ask()));
        assert_eq!((*one, *two, *kept.get("b", ask()).await), (0, 0, 1));
        for key in 0..2 * KEPT_MAX {
            kept.get(&key.to_string(), ask()).await;
        }
        assert!(kept.0.lock().unwrap().len() <= KEPT_MAX);
    }

    #[test]
    fn refusals_are_told_apart() {
        let said = |code, message: &str| anyhow::Error::new(Refusal::Said { code, message: message.into() });
        assert_eq!(Trouble::of(&said(Code::NotFound, "no job_9")), Trouble::Unknown("no job_9".into()));
        assert_eq!(Trouble::of(&said(Code::PermissionDenied, "ann's")), Trouble::NotYours("ann's".into()));
        assert!(matches!(Trouble::of(&said(Code::Unavailable, "later")), Trouble::Away(_)));
        assert_eq!(Trouble::of(&anyhow::anyhow!("gone")).words(), "gone");
    }
}
