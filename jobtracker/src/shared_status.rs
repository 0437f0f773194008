//! The status of a job, built once for all clients that follow the job.
//!
//! Building the status of a job with very many tasks takes long, and meanwhile trackers wait for the
//! lock. One of the followers waits for a change and builds the next status. The others wait for
//! it and then get the same status. If its client disconnects, another follower continues.

use crate::error::Refusal;
use mrcore::ids::JobId;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// Minimum time between two statuses. The status of an ended job follows at once.
const PERIOD: Duration = Duration::from_millis(100);
/// The time between two statuses is also at least this many times the time that it takes to build
/// one, up to [`MIN_PERIOD_MAX`].
const COST_FACTOR: u32 = 10;
/// Upper bound for the minimum time between two statuses.
const MIN_PERIOD_MAX: Duration = Duration::from_secs(5);

/// A status and its number. Numbers start at 1.
#[derive(Debug, Clone)]
pub(crate) struct Numbered<T> {
    pub(crate) number: u64,
    pub(crate) status: T,
}

#[derive(Debug)]
struct State {
    /// Notified when the job changes. The value says whether the job has ended.
    changes: watch::Receiver<bool>,
    /// Whether the job has changed since the newest status was built.
    is_outdated: bool,
    /// When the next status may be built.
    next_at: Instant,
}

/// The newest status of a job.
#[derive(Debug)]
pub(crate) struct SharedStatus<T> {
    /// Changed only by the follower that has locked `state`.
    newest: Mutex<Option<Numbered<T>>>,
    /// Locked by the follower that waits for the next change.
    state: tokio::sync::Mutex<State>,
}

impl<T: Clone> SharedStatus<T> {
    fn new(changes: watch::Receiver<bool>) -> Self {
        let state = State { changes, is_outdated: false, next_at: Instant::now() };
        Self { newest: Mutex::new(None), state: tokio::sync::Mutex::new(state) }
    }

    /// Returns the newest status if its number is higher than `number`.
    fn newest_after(&self, number: u64) -> Option<Numbered<T>> {
        self.newest.lock().as_ref().filter(|newest| newest.number > number).cloned()
    }

    /// Returns a status with a higher number than `number`. Waits until the job has changed, if
    /// needed. Returns None if no change can follow. May be cancelled.
    pub(crate) async fn newer_than(
        &self,
        number: u64,
        build: impl AsyncFnOnce() -> Result<T, Refusal>,
    ) -> Option<Result<Numbered<T>, Refusal>> {
        // Another follower has locked the state for as long as the job does not change.
        if let Some(newest) = self.newest_after(number) {
            return Some(Ok(newest));
        }
        let mut state = self.state.lock().await;
        if let Some(newest) = self.newest_after(number) {
            return Some(Ok(newest));
        }
        let State { changes, is_outdated, next_at } = &mut *state;
        let newest_number = self.newest.lock().as_ref().map_or(0, |newest| newest.number);
        if newest_number > 0 && !*is_outdated {
            changes.changed().await.ok()?;
            *is_outdated = true;
        }
        // Wait until the next status may be built, or until the job ends. Reading the cluster at
        // every change instead would make trackers wait for the lock.
        if let Ok(closed) = timeout_at(*next_at, changes.wait_for(|over| *over)).await {
            closed.ok()?;
        }
        changes.mark_unchanged();
        let began = Instant::now();
        let built = build().await.map(|status| Numbered { number: newest_number + 1, status });
        if let Ok(built) = &built {
            *is_outdated = false;
            *self.newest.lock() = Some(built.clone());
            *next_at = Instant::now() + (began.elapsed() * COST_FACTOR).clamp(PERIOD, MIN_PERIOD_MAX);
        }
        Some(built)
    }
}

/// A job in a state with this number: a leadership must not use what an earlier one has built.
type JobInState = (u64, JobId);

/// The statuses of all jobs that clients follow.
#[derive(Debug)]
pub(crate) struct SharedStatuses<T>(Mutex<BTreeMap<JobInState, Weak<SharedStatus<T>>>>);

impl<T> Default for SharedStatuses<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> SharedStatuses<T> {
    /// Returns the status of a job, which its followers share. `changes` returns the channel that is
    /// notified when the job changes.
    pub(crate) fn of(
        &self,
        job: JobInState,
        changes: impl FnOnce() -> watch::Receiver<bool>,
    ) -> Arc<SharedStatus<T>> {
        let mut all = self.0.lock();
        if let Some(shared) = all.get(&job).and_then(Weak::upgrade) {
            return shared;
        }
        all.retain(|_, shared| shared.strong_count() > 0);
        let shared = Arc::new(SharedStatus::new(changes()));
        all.insert(job, Arc::downgrade(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn followers_of_a_job_share_each_status() {
        let (sender, receiver) = watch::channel(false);
        let (statuses, builds) = (SharedStatuses::<u32>::default(), Arc::new(AtomicU32::new(0)));
        let shared = statuses.of((1, JobId(1)), || receiver);
        let get = |number: u64| {
            let (shared, builds) = (statuses.of((1, JobId(1)), || panic!("created twice")), builds.clone());
            tokio::spawn(async move {
                let build = async || Ok(builds.fetch_add(1, Relaxed) + 1);
                shared.newer_than(number, build).await.unwrap().unwrap().number
            })
        };
        let get_all = |number: u64| (0..100).map(|_| get(number)).collect::<Vec<_>>();
        for follower in get_all(0) {
            assert_eq!(follower.await.unwrap(), 1);
        }
        // A follower that is cancelled after a change must not make the others miss the change.
        let waiting = get(1);
        sender.send_replace(false);
        tokio::task::yield_now().await;
        waiting.abort();
        let _ = waiting.await;
        for follower in get_all(1) {
            assert_eq!(follower.await.unwrap(), 2);
        }
        let last = get_all(2);
        sender.send_replace(true);
        for follower in last {
            assert_eq!(follower.await.unwrap(), 3);
        }
        assert_eq!(builds.load(Relaxed), 3, "a status was built for each follower");
        drop(shared);
        assert!(statuses.0.lock().values().all(|shared| shared.strong_count() == 0));
    }

    #[tokio::test]
    async fn second_follower_of_an_idle_job_gets_the_first_status_at_once() {
        let (_sender, receiver) = watch::channel(false);
        let shared = Arc::new(SharedStatus::new(receiver));
        let first = shared.newer_than(0, async || Ok(7)).await.unwrap().unwrap();
        assert_eq!((first.number, first.status), (1, 7));
        let waiting = tokio::spawn({
            let shared = shared.clone();
            async move { shared.newer_than(1, async || Ok(8)).await.is_some() }
        });
        while shared.state.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        let second = shared.newer_than(0, async || panic!("the job has not changed"));
        let second = tokio::time::timeout(Duration::from_secs(20), second).await;
        assert_eq!(second.expect("the first status").unwrap().unwrap().number, 1);
        assert!(!waiting.is_finished());
        waiting.abort();
    }
}
