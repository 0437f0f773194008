//! Why a job waits: first the reasons that are the same for every policy, then those of the current
//! policy.

use super::JobTracker;
use crate::{
    fact::Entry,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    phase::Phase,
    task::{AttemptState, Task},
    time::{Span, Time},
    tracker::{Tracker, TrackerState},
    why::Why,
};
use std::collections::BTreeSet;

/// Maximum number of trackers that are named as down if no tracker is live.
const DOWN_TRACKERS_MAX: usize = 4;

impl JobTracker {
    /// Returns the recent decisions and events of a job, oldest first.
    pub fn recent(&self, job: JobId) -> Vec<Entry> {
        self.recent_facts.of_job(job)
    }

    /// Returns the reasons why a job waits; none if the job is unknown.
    pub fn explain(&self, now: Time, job: JobId) -> Vec<Why> {
        let Some(job) = self.cluster.job(job) else { return Vec::new() };
        if !job.is_running() {
            return vec![Why::rule(if job.has_ended() { "job-ended" } else { "committing-output" })];
        }
        let mut reasons: Vec<Why> =
            Phase::BOTH.into_iter().flat_map(|phase| self.explain_phase(job, phase)).collect();
        reasons.extend(self.explain_trackers(now, job, &reasons));
        reasons.extend(self.scheduler.explain(job, now, &self.cluster));
        reasons
    }

    /// Explains how unreachable trackers delay the job. Its attempts on such a tracker wait until
    /// the tracker returns or is declared lost. Unreachable trackers that run none of its attempts
    /// only reduce the number of slots, so they are mentioned only if the job is already waiting
    /// for something.
    fn explain_trackers(&self, now: Time, job: &Job, reasons: &[Why]) -> Vec<Why> {
        if reasons.iter().any(|why| why.rule == "no-tracker") {
            return self.explain_down_trackers(now);
        }
        let unreachable = self.cluster.unreachable_trackers();
        let running = Phase::BOTH.into_iter().flat_map(|phase| &job.running[phase]);
        let used = running.filter_map(|id| Some(self.cluster.attempt(*id)?.tracker));
        let used: BTreeSet<TrackerId> = used.filter(|id| unreachable.contains(id)).collect();
        let used_trackers = used.iter().filter_map(|id| self.cluster.tracker(*id));
        let Some(longest) = used_trackers.max_by_key(|tracker| self.time_since_heartbeat(now, tracker))
        else {
            let missing = !reasons.is_empty() && !unreachable.is_empty();
            let why = missing.then(|| Why::rule("slots-unreachable").with("nodes", unreachable.len() as f64));
            return why.into_iter().collect();
        };
        let silent_s = self.time_since_heartbeat(now, longest).as_secs_f64();
        let lost_in_s = (self.config.lost_after.as_secs_f64() - silent_s).max(0.0);
        let others = used.len() as f64 - 1.0;
        let why = Why::rule("suspect-tracker").with("on_tracker", f64::from(longest.id.0));
        let why = why.with("silent_s", silent_s).with("lost_in_s", lost_in_s);
        vec![if others > 0.0 { why.with("others", others) } else { why }]
    }

    /// Lists the trackers that are not live. Those with the newest heartbeats come first.
    fn explain_down_trackers(&self, now: Time) -> Vec<Why> {
        let down = self.cluster.trackers().filter(|tracker| tracker.state != TrackerState::Live);
        let mut down: Vec<&Tracker> = down.collect();
        down.sort_by_key(|tracker| self.time_since_heartbeat(now, tracker));
        let others = down.len().saturating_sub(DOWN_TRACKERS_MAX);
        let silent_s = |tracker: &Tracker| self.time_since_heartbeat(now, tracker).as_secs_f64();
        let why = |tracker: &&Tracker| {
            let why = Why::rule("tracker-down").with("on_tracker", f64::from(tracker.id.0));
            why.with("silent_s", silent_s(tracker))
        };
        let shown = down.iter().take(DOWN_TRACKERS_MAX).map(why);
        shown.chain((others > 0).then(|| Why::rule("trackers-down").with("others", others as f64))).collect()
    }

    /// Returns the reasons why a task waits; none if the task is unknown.
    pub fn explain_task(&self, now: Time, id: TaskId) -> Vec<Why> {
        let Some(job) = self.cluster.job(id.job) else { return Vec::new() };
        let Some(task) = job.task(id) else { return Vec::new() };
        let mut reasons = Vec::new();
        if task.is_done() {
            reasons.push(Why::rule("task-is-done"));
        } else if job.has_ended() {
            reasons.push(Why::rule("job-ended"));
        } else if task.on_hold {
            reasons.push(Why::rule("on-hold"));
            reasons.extend(self.explain_checkpoint(task));
        } else if let Some(attempt) = task.viable_attempts().next() {
            let on = f64::from(attempt.tracker.0);
            let rule = match attempt.state {
                AttemptState::Splitting | AttemptState::Pausing => "being-preempted",
                _ => "task-running",
            };
            reasons.push(Why::rule(rule).with("on_tracker", on));
        } else if let Some(on) = self.reservations.tracker_for(id) {
            reasons.push(Why::rule("slot-reserved").with("on_tracker", f64::from(on.0)));
        } else {
            reasons.extend(self.explain_checkpoint(task));
            if self.cluster.is_delayed(id) {
                reasons.push(Why::rule("task-delayed").with("attempts", f64::from(task.interruptions)));
            }
            if !task.avoided_trackers.is_empty() {
                reasons
                    .push(Why::rule("avoids-trackers").with("trackers", task.avoided_trackers.len() as f64));
            }
            if job.is_running() {
                reasons.extend(self.explain_phase(job, id.phase));
                reasons.extend(self.explain_trackers(now, job, &reasons));
                reasons.extend(self.scheduler.explain(job, now, &self.cluster));
            }
        }
        reasons
    }

    fn explain_checkpoint(&self, task: &Task) -> Option<Why> {
        let tracker = self.cluster.tracker(task.checkpoint?.tracker)?;
        let rule = match tracker.state {
            TrackerState::Live => "paused",
            TrackerState::Suspect | TrackerState::Awaited => "checkpoint-unreachable",
            TrackerState::Lost => "checkpoint-on-lost-tracker",
        };
        Some(Why::rule(rule).with("checkpoint_on_tracker", f64::from(tracker.id.0)))
    }

    fn explain_phase(&self, job: &Job, phase: Phase) -> Vec<Why> {
        let waiting = job.pending[phase].len();
        let mut reasons = Vec::new();
        let on_hold = job.tasks_on_hold(phase);
        if on_hold > 0 {
            reasons.push(Why::rule("on-hold").with("tasks", on_hold as f64));
        }
        if waiting == 0 {
            return reasons;
        }
        let (name, slots) = match phase {
            Phase::Map => ("maps_waiting", "map_slots"),
            Phase::Reduce => ("reduces_waiting", "reduce_slots"),
        };
        let waits = |rule| Why::rule(rule).with(name, waiting as f64);
        if !job.may_start(phase) {
            let (done, wanted) = (f64::from(job.succeeded.map), f64::from(job.maps_before_reduces()));
            reasons.push(waits("slow-start").with("maps_done", done).with("maps_wanted", wanted));
            return reasons;
        }
        let all = f64::from(self.cluster.slots(phase));
        let free: u32 = self.cluster.free_trackers(phase).map(|id| self.free_slots_on(id, phase)).sum();
        let is_unreachable = |index: u32| {
            let checkpoint = job.tasks[phase].get(index as usize).and_then(|task| task.checkpoint);
            checkpoint
                .is_some_and(|checkpoint| self.cluster.unreachable_trackers().contains(&checkpoint.tracker))
        };
        let is_delayed = |index| self.cluster.is_delayed(TaskId { job: job.id, phase, index });
        let accepts =
            |tracker: &Tracker| tracker.state == TrackerState::Live && tracker.capacity()[phase] > 0;
        let rule = if self.launches_suspended {
            "launches-suspended"
        } else if job.pending[phase].iter().all(is_unreachable) {
            "checkpoints-unreachable"
        } else if job.pending[phase].iter().all(is_delayed) {
            "tasks-delayed"
        } else if !self.cluster.trackers().any(accepts) {
            "no-tracker"
        } else if free == 0 {
            "no-free-slot"
        } else {
            "policy-keeps-slots"
        };
        // `all` does not include the slots of trackers that are suspect or being drained, so
        // attempts there are counted separately.
        let counted = |id: &&AttemptId| {
            let tracker =
                self.cluster.attempt(**id).and_then(|attempt| self.cluster.tracker(attempt.tracker));
            tracker.is_some_and(|tracker| tracker.capacity()[phase] > 0)
        };
        let here = job.running[phase].iter().filter(counted).count();
        let excluded = job.running[phase].len() - here;
        let why = waits(rule).with("running", here as f64).with("free", f64::from(free)).with(slots, all);
        let known = self.cluster.trackers().count() as f64;
        let why = if rule == "no-tracker" && known > 0.0 { why.with("known", known) } else { why };
        reasons.push(if excluded > 0 { why.with("excluded", excluded as f64) } else { why });
        let reserved = self.reservations.tasks_of(job.id, phase).count();
        if reserved > 0 {
            reasons.push(Why::rule("slots-reserved").with("tasks", reserved as f64));
        }
        if !job.blacklist.is_empty() {
            reasons.push(Why::rule("avoids-trackers").with("trackers", job.blacklist.len() as f64));
        }
        reasons
    }

    /// Returns how long ago the last heartbeat of a tracker was.
    fn time_since_heartbeat(&self, now: Time, tracker: &Tracker) -> Span {
        now.since(self.cluster.last_seen(tracker.id))
    }

    fn free_slots_on(&self, id: TrackerId, phase: Phase) -> u32 {
        self.cluster.tracker(id).map_or(0, |tracker| self.cluster.free_slots(tracker, phase))
    }
}
