//! Tasks that take much longer than others of their kind.
//!
//! A slow map that can be divided is split, when a slot is free on another tracker: what it has read is kept, and the
//! rest is read there instead of twice. Only one that does not end when it is asked, or cannot, or whose job says that it
//! may not, is duplicated, and so are reduces; that is left to the policy.

use super::JobTracker;
use crate::{
    event::Effect,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    phase::Phase,
    plan::{Plan, Why},
    reserve::ReservedFor,
    task::{Attempt, AttemptState, PreemptKind},
    time::{Span, Time},
};
use std::collections::BTreeSet;

impl JobTracker {
    /// Notes the stragglers of every job that wants them found.
    pub(super) fn find_stragglers(&mut self, now: Time) {
        let jobs: Vec<JobId> =
            self.cluster.active_jobs().filter(|job| job.spec.speculation).map(|job| job.id).collect();
        for id in jobs {
            for phase in Phase::BOTH {
                let found = self.stragglers(now, id, phase);
                if let Some(job) = self.cluster.jobs.get_mut(&id) {
                    self.work_arrived |= !found.is_empty() && job.pending[phase].is_empty();
                    job.stragglers[phase] = found;
                }
            }
        }
    }

    fn stragglers(&self, now: Time, id: JobId, phase: Phase) -> BTreeSet<u32> {
        let Some(job) = self.cluster.job(id) else { return BTreeSet::new() };
        // One that was to be split and is not, after so long, does not hear.
        let unreachable = |at: &Attempt| {
            at.preempt_request.is_some_and(|(_, at)| now.since(at) >= self.config.straggler_after)
        };
        let goes_on = |attempt: &&Attempt| match attempt.state {
            AttemptState::Running => true,
            AttemptState::Splitting => unreachable(attempt),
            _ => false,
        };
        let running = job.running[phase].iter().filter_map(|id| self.cluster.attempt(*id));
        let alone =
            |attempt: &&Attempt| job.task(attempt.id.task).is_some_and(|task| task.viable().count() == 1);
        running
            .filter(goes_on)
            .filter(|attempt| self.is_slow(job, attempt, now))
            .filter(alone)
            .map(|attempt| attempt.id.task.index)
            .collect()
    }

    /// Whether an attempt has run much longer than others took for as much, and was not nearly done.
    fn is_slow(&self, job: &Job, attempt: &Attempt, at: Time) -> bool {
        let expected = job.task(attempt.id.task).and_then(|task| job.expected_time(task));
        let Some(expected) = expected.map(Span::as_secs_f64) else { return false };
        let run = at.since(attempt.launched);
        let (run_s, done) = (run.as_secs_f64(), f64::from(attempt.progress.done));
        let left_s = run_s * (1.0 - done) / done.max(0.001);
        run >= self.config.straggler_after
            && run_s > self.config.straggler_factor * expected
            && left_s > expected / 2.0
    }

    /// Splits slow maps, as many as there are slots for the rest.
    pub(super) fn split_stragglers(&mut self, now: Time, out: &mut Vec<Effect>) {
        let mut slow: Vec<AttemptId> = Vec::new();
        let mut free = self.cluster.free.map.clone();
        let plan = Plan::new(&self.cluster, &self.config, &self.reserved, now);
        // Whatever waits comes first.
        for job in self.cluster.active_jobs().filter(|job| job.pending.map.is_empty()) {
            let tasks = job.stragglers.map.iter().filter_map(|index| job.tasks.map.get(*index as usize));
            for attempt in tasks.filter_map(|task| task.viable().next()) {
                let fits = |on: &TrackerId| *on != attempt.tracker && plan.may_use(job, *on);
                let elsewhere = free.iter().copied().find(fits);
                if let Some(on) = elsewhere.filter(|_| self.cluster.is_better_split(job, attempt)) {
                    free.remove(&on);
                    slow.push(attempt.id);
                }
            }
        }
        for attempt in slow {
            let why = Why::rule("straggler-split");
            self.request_preemption(now, attempt, PreemptKind::Split, &why.to_string(), false, out);
            if let Some(job) = self.cluster.jobs.get_mut(&attempt.job()) {
                job.stragglers.map.remove(&attempt.task.index);
            }
        }
    }

    /// Whether an attempt was slow when it was preempted.
    pub(super) fn was_slow(&self, id: AttemptId) -> bool {
        let job = self.cluster.job(id.job()).filter(|job| job.spec.speculation);
        let (Some(job), Some(attempt)) = (job, self.cluster.attempt(id)) else { return false };
        attempt.preempt_request.is_some_and(|(_, asked)| self.is_slow(job, attempt, asked))
    }

    /// The rest of a map that was slow on a tracker goes elsewhere, if another that may run it has a slot: near its input
    /// best.
    pub(super) fn place_remainder(&mut self, now: Time, rest: TaskId, slow_on: TrackerId) {
        let Some(task) = self.cluster.task(rest) else { return };
        let distance =
            |id: &TrackerId| self.cluster.tracker(*id).map(|tracker| self.cluster.locality(task, tracker));
        let plan = Plan::new(&self.cluster, &self.config, &self.reserved, now);
        let fits = |on: &TrackerId| *on != slow_on && plan.could_run(rest, *on).is_ok();
        let elsewhere = self.cluster.free.map.iter().copied().filter(fits);
        if let Some(on) = elsewhere.min_by_key(distance) {
            self.reserved.insert(
                rest,
                (on, ReservedFor::ThisTracker),
                self.reserved_until(now),
                Why::rule("straggler-remainder"),
            );
        }
    }
}
