//! Stragglers: tasks that take much longer than others of their phase.
//!
//! A slow map that is divisible is split when another tracker has a free slot: its work so far is
//! saved, and no input is read twice. Reduces get a speculative attempt. So do maps that cannot
//! be split, maps that do not react to the request, and maps of jobs that disable splitting. The
//! policy decides when it is launched.

use super::JobTracker;
use crate::{
    event::Effect,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    phase::{PerPhase, Phase},
    plan::{Plan, Why},
    reserve::AcceptedSlots,
    task::{Attempt, AttemptState, PreemptKind, Progress},
    time::{Span, Time},
};
use std::collections::{BTreeMap, BTreeSet};

impl JobTracker {
    /// Updates the list of stragglers of every job with speculative execution.
    pub(super) fn find_stragglers(&mut self, now: Time) {
        // A cluster with a backlog has many active jobs that run nothing.
        let runs = |job: &&Job| Phase::BOTH.into_iter().any(|phase| !job.running[phase].is_empty());
        let jobs: Vec<&Job> =
            self.cluster.active_jobs().filter(|job| job.spec.speculation).filter(runs).collect();
        let mut stragglers: PerPhase<BTreeMap<JobId, BTreeSet<u32>>> = PerPhase::default();
        for phase in Phase::BOTH {
            for job in &jobs {
                let found = self.slow_tasks(now, job, phase);
                if !found.is_empty() {
                    self.work_arrived |= job.pending[phase].is_empty();
                    stragglers[phase].insert(job.id, found);
                }
            }
        }
        self.cluster.volatile.stragglers = stragglers;
    }

    fn set_stragglers(&mut self, id: JobId, phase: Phase, found: BTreeSet<u32>) {
        let stragglers = &mut self.cluster.volatile.stragglers[phase];
        if found.is_empty() {
            stragglers.remove(&id);
        } else {
            stragglers.insert(id, found);
        }
    }

    fn slow_tasks(&self, now: Time, job: &Job, phase: Phase) -> BTreeSet<u32> {
        // Without a finished task, no time is expected that a task could exceed.
        if job.mean_time(phase).is_none() {
            return BTreeSet::new();
        }
        // An attempt that has not ended this long after the request to split it does not react.
        let does_not_react = |at: &Attempt| {
            at.preempt_request.is_some_and(|(_, at)| now.since(at) >= self.config.straggler_after)
        };
        let continues = |attempt: &Attempt, progress: Option<Progress>| match attempt.state {
            AttemptState::Running => progress.is_some(),
            AttemptState::Splitting => does_not_react(attempt),
            _ => false,
        };
        let alone = |attempt: &Attempt| {
            job.task(attempt.id.task).is_some_and(|task| task.viable_attempts().count() == 1)
        };
        let running = self.cluster.running(job, phase);
        let slow = running.filter(|(attempt, progress)| {
            let done = progress.unwrap_or_default().done;
            continues(attempt, *progress) && self.is_slow(job, attempt, done, now) && alone(attempt)
        });
        slow.map(|(attempt, _)| attempt.id.task.index).collect()
    }

    /// Returns whether an attempt has run much longer than expected for its input and is not nearly
    /// done.
    fn is_slow(&self, job: &Job, attempt: &Attempt, done: f32, at: Time) -> bool {
        let run = at.since(attempt.launched);
        if run < self.config.straggler_after {
            return false;
        }
        let expected = job.task(attempt.id.task).and_then(|task| job.expected_time(task));
        let Some(expected) = expected.map(Span::as_secs_f64) else { return false };
        let (run_s, done) = (run.as_secs_f64(), f64::from(done));
        let left_s = run_s * (1.0 - done) / done.max(0.001);
        run_s > self.config.straggler_factor * expected && left_s > expected / 2.0
    }

    /// Splits slow maps, at most as many as there are free slots for the remainders.
    pub(super) fn split_stragglers(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.cluster.jobs_with_stragglers(Phase::Map).next().is_none() {
            return;
        }
        let mut slow: Vec<AttemptId> = Vec::new();
        let mut free: BTreeSet<TrackerId> = self.cluster.free_trackers(Phase::Map).collect();
        let plan = Plan::new(&self.cluster, &self.config, &self.reservations, now);
        // If a job has pending maps, they get the free slots.
        let jobs = self.cluster.jobs_with_stragglers(Phase::Map);
        for job in jobs.filter(|job| job.pending.map.is_empty()) {
            let stragglers = self.cluster.stragglers(job.id, Phase::Map);
            let tasks = stragglers.filter_map(|index| job.tasks.map.get(index as usize));
            for attempt in tasks.filter_map(|task| task.viable_attempts().next()) {
                let fits = |on: &TrackerId| *on != attempt.tracker && plan.may_use(job, *on);
                let elsewhere = free.iter().copied().find(fits);
                if let Some(on) = elsewhere.filter(|_| self.cluster.should_split(job, attempt)) {
                    free.remove(&on);
                    slow.push(attempt.id);
                }
            }
        }
        for attempt in slow {
            let why = Why::rule("straggler-split");
            self.request_preemption(now, attempt, PreemptKind::Split, &why.to_string(), false, out);
            let mut left: BTreeSet<u32> = self.cluster.stragglers(attempt.job(), Phase::Map).collect();
            left.remove(&attempt.task.index);
            self.set_stragglers(attempt.job(), Phase::Map, left);
        }
    }

    /// Returns whether an attempt was a straggler when it was preempted.
    pub(super) fn was_slow(&self, id: AttemptId) -> bool {
        let job = self.cluster.job(id.job()).filter(|job| job.spec.speculation);
        let (Some(job), Some(attempt)) = (job, self.cluster.attempt(id)) else { return false };
        let done = self.cluster.progress(attempt).done;
        attempt.preempt_request.is_some_and(|(_, asked)| self.is_slow(job, attempt, done, asked))
    }

    /// Reserves a slot on another tracker for the remainder of a slow map, as near to its input as
    /// possible.
    pub(super) fn reserve_slot_for_remainder(&mut self, now: Time, remainder: TaskId, slow_on: TrackerId) {
        let Some(task) = self.cluster.task(remainder) else { return };
        let distance =
            |id: &TrackerId| self.cluster.tracker(*id).map(|tracker| self.cluster.locality(task, tracker));
        let plan = Plan::new(&self.cluster, &self.config, &self.reservations, now);
        let fits = |on: &TrackerId| *on != slow_on && plan.could_run(remainder, *on).is_ok();
        let elsewhere = self.cluster.free_trackers(Phase::Map).filter(fits);
        if let Some(on) = elsewhere.min_by_key(distance) {
            self.reservations.insert(
                remainder,
                (on, AcceptedSlots::ThisTracker),
                self.reserved_until(now),
                Why::rule("straggler-remainder"),
            );
        }
    }
}
