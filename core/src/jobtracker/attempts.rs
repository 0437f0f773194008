//! What trackers say of attempts, and what follows.

use super::JobTracker;
use crate::{
    event::{AttemptReport, AttemptStatus, Effect, FetchFailure, Order},
    fact::Fact,
    ids::{AttemptId, JobId, TrackerId},
    job::JobOutcome,
    phase::Phase,
    task::{AttemptResult, AttemptState, Progress},
    time::Time,
    tracker::TrackerState,
};

/// One reduce alone is believed after this many failures to fetch the same output.
const FETCHES_BY_ONE: u32 = 3;
/// This many reduces together are believed at once.
const FETCHERS: usize = 2;

impl JobTracker {
    pub(super) fn report(
        &mut self,
        now: Time,
        from: TrackerId,
        report: AttemptReport,
        out: &mut Vec<Effect>,
    ) {
        let AttemptReport { attempt: id, status } = report;
        let known = self.cluster.attempt(id).filter(|attempt| attempt.tracker == from);
        if known.is_none_or(|attempt| !attempt.state.holds_slot()) {
            // Given up on, or never heard of: whatever it says has no effect, and it must not run.
            if !Self::is_final(&status) {
                self.order(from, Order::Stop { attempt: id, why: "the JobTracker gave it up".into() });
            }
            return;
        }
        match status {
            AttemptStatus::Running(progress) => self.progressed(now, id, progress),
            AttemptStatus::Succeeded(result) => self.succeeded(now, id, result, out),
            AttemptStatus::Failed(error) => self.failed(now, id, error, out),
            AttemptStatus::Killed(why) => {
                match self.cluster.attempt(id).and_then(|known| known.blame.clone()) {
                    Some(blame) => self.failed(now, id, blame, out),
                    None => self.killed(now, id, &why, out),
                }
            }
        }
    }

    fn progressed(&mut self, now: Time, id: AttemptId, progress: Progress) {
        let wanted = self
            .cluster
            .job(id.job())
            .is_some_and(|job| job.is_running() && job.task(id.task).is_some_and(|task| !task.is_done()));
        let Some(attempt) = self.cluster.attempt_mut(id) else { return };
        attempt.heard = now;
        if attempt.state == AttemptState::Launching {
            attempt.state = AttemptState::Running;
        }
        if attempt.progress != progress {
            attempt.progress = progress;
            attempt.advanced = now;
        }
        if !wanted {
            self.stop(now, id, "it is not needed any more");
        }
    }

    /// The first to finish counts. Tasks never rename, so this is the whole of a task's commit: one entry in the
    /// journal names the attempt whose pieces will be moved when the job is done.
    fn succeeded(&mut self, now: Time, id: AttemptId, result: AttemptResult, out: &mut Vec<Effect>) {
        let job = self.cluster.job(id.job()).filter(|job| job.is_running());
        if job.and_then(|job| job.task(id.task)).is_none_or(crate::task::Task::is_done) {
            return self.killed(now, id, "it was done after another attempt, or after its job", out);
        }
        self.record(now, Fact::AttemptSucceeded { attempt: id, result }, out);
        let task = self.cluster.task(id.task).expect("it was just recorded");
        let twins: Vec<AttemptId> = task.live().map(|attempt| attempt.id).collect();
        for twin in twins {
            self.stop(now, twin, "another attempt was first");
        }
        self.advance(now, id.job(), out);
    }

    pub(super) fn failed(&mut self, now: Time, id: AttemptId, error: String, out: &mut Vec<Effect>) {
        let Some(attempt) = self.cluster.attempt(id) else { return };
        let error = match &attempt.blame {
            Some(blame) => blame.clone(),
            None if attempt.state == AttemptState::Stopping => return self.killed(now, id, &error, out),
            None => error,
        };
        self.record(now, Fact::AttemptFailed { attempt: id, error: error.clone() }, out);
        let (failures, tracker) = {
            let task = self.cluster.task(id.task).expect("it was just recorded");
            (task.failures, task.attempts[id.number as usize].tracker)
        };
        let Some(job) = self.cluster.job(id.job()).filter(|job| job.is_running()) else { return };
        if failures >= job.spec.attempts_max && job.task(id.task).is_some_and(|task| !task.is_done()) {
            let why = format!("{} failed {failures} times, the last time with: {error}", id.task);
            return self.end(now, id.job(), JobOutcome::Failed(why), out);
        }
        self.consider_blacklist(now, id.job(), tracker, out);
        self.reduce_ended(now, id, out);
    }

    pub(super) fn killed(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        self.record(now, Fact::AttemptKilled { attempt: id, why: why.into() }, out);
        self.reduce_ended(now, id, out);
    }

    fn reduce_ended(&mut self, now: Time, id: AttemptId, out: &mut Vec<Effect>) {
        if id.phase() == Phase::Reduce {
            self.require_outputs(now, id.job(), out);
        }
    }

    /// A job leaves a tracker alone on which it keeps failing; but only so many, or a job with a bug of its own
    /// would blacklist the whole cluster before it is found out.
    fn consider_blacklist(&mut self, now: Time, id: JobId, tracker: TrackerId, out: &mut Vec<Effect>) {
        let Some(job) = self.cluster.job(id) else { return };
        let failures = job.failures.get(&tracker).copied().unwrap_or(0);
        let live = self.cluster.trackers().filter(|tracker| tracker.state != TrackerState::Lost).count();
        let most = (live as f64 * self.config.blacklist_share).floor() as usize;
        let wanted = failures >= self.config.blacklist_after && !job.blacklist.contains(&tracker);
        if wanted && job.blacklist.len() < most {
            self.record(now, Fact::TrackerBlacklisted { job: id, tracker }, out);
        }
    }

    /// A reduce says that it cannot fetch a map's output. One may be mistaken or have a broken network of its own;
    /// two, or one that says so again and again, are believed, and so is anyone about a tracker that is suspect.
    pub(super) fn fetch_failed(&mut self, now: Time, failure: FetchFailure, out: &mut Vec<Effect>) {
        let FetchFailure { reduce, map } = failure;
        let Some(task) = self.cluster.task(map.task) else { return };
        let running = self.cluster.attempt(reduce).is_some_and(|attempt| attempt.state.holds_slot());
        if task.done_by != Some(map.number) || !running {
            return;
        }
        let on = task.attempts[map.number as usize].tracker;
        let doubtful = self.cluster.tracker(on).is_none_or(|tracker| tracker.state != TrackerState::Live);
        let counts = self.fetch_failures.entry(map).or_default();
        *counts.entry(reduce).or_default() += 1;
        if doubtful || counts.len() >= FETCHERS || counts[&reduce] >= FETCHES_BY_ONE {
            self.fetch_failures.remove(&map);
            let why = format!("{reduce} could not fetch it");
            self.record(now, Fact::MapOutputLost { attempt: map, why }, out);
        }
    }
}
