//! Why a job waits, in rules and numbers: what any policy would say, then what this one does.

use super::JobTracker;
use crate::{
    fact::Entry,
    ids::{JobId, TaskId},
    job::Job,
    phase::Phase,
    task::{AttemptState, Task},
    time::Time,
    why::Why,
};

impl JobTracker {
    /// What was decided and what befell a job lately, oldest first.
    pub fn recent(&self, job: JobId) -> Vec<Entry> {
        self.recent.of(job)
    }

    /// What a job waits for. Nothing if it is unknown.
    pub fn explain(&self, now: Time, job: JobId) -> Vec<Why> {
        let Some(job) = self.cluster.job(job) else { return Vec::new() };
        if !job.is_running() {
            return vec![Why::rule(if job.is_over() { "job-is-over" } else { "output-is-being-moved" })];
        }
        let mut reasons: Vec<Why> =
            Phase::BOTH.into_iter().flat_map(|phase| self.why_phase_waits(job, phase)).collect();
        reasons.extend(self.scheduler.explain(job, now, &self.cluster));
        reasons
    }

    /// What one task waits for. Nothing if it is unknown.
    pub fn explain_task(&self, now: Time, id: TaskId) -> Vec<Why> {
        let Some(job) = self.cluster.job(id.job) else { return Vec::new() };
        let Some(task) = job.task(id) else { return Vec::new() };
        let mut reasons = Vec::new();
        if task.is_done() {
            reasons.push(Why::rule("task-is-done"));
        } else if task.held {
            reasons.push(Why::rule("held-by-hand"));
        } else if let Some(attempt) = task.trying().next() {
            let on = f64::from(attempt.tracker.0);
            let rule = match attempt.state {
                AttemptState::Splitting | AttemptState::Pausing => "gives-its-slot-back",
                _ => "task-runs",
            };
            reasons.push(Why::rule(rule).with("on_tracker", on));
        } else if let Some(on) = self.reserved.place(id) {
            reasons.push(Why::rule("slot-reserved").with("on_tracker", f64::from(on.0)));
        } else {
            reasons.extend(why_task_is_particular(task));
            reasons.extend(self.explain(now, id.job));
        }
        reasons
    }

    fn why_phase_waits(&self, job: &Job, phase: Phase) -> Vec<Why> {
        let waiting = job.pending[phase].len();
        let mut reasons = Vec::new();
        let held = job.tasks[phase].iter().filter(|task| task.held && !task.is_done()).count();
        if held > 0 {
            reasons.push(Why::rule("held-by-hand").with("tasks", held as f64));
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
        let free: u32 = self.cluster.free_trackers(phase).iter().map(|id| self.free_on(*id, phase)).sum();
        let rule = if all == 0.0 {
            "no-tracker"
        } else if free == 0 {
            "no-free-slot"
        } else {
            "not-its-turn"
        };
        let running = job.running[phase].len() as f64;
        reasons.push(waits(rule).with("running", running).with("free", f64::from(free)).with(slots, all));
        let kept = self.reserved.of(job.id, phase).count();
        if kept > 0 {
            reasons.push(Why::rule("slots-reserved").with("tasks", kept as f64));
        }
        if !job.blacklist.is_empty() {
            reasons.push(Why::rule("avoids-trackers").with("trackers", job.blacklist.len() as f64));
        }
        reasons
    }

    fn free_on(&self, id: crate::ids::TrackerId, phase: Phase) -> u32 {
        self.cluster.tracker(id).map_or(0, |tracker| tracker.free(phase))
    }
}

fn why_task_is_particular(task: &Task) -> Vec<Why> {
    let mut reasons = Vec::new();
    if let Some(checkpoint) = task.checkpoint {
        let on = f64::from(checkpoint.tracker.0);
        reasons.push(Why::rule("paused").with("state_on_tracker", on));
    }
    if !task.shuns.is_empty() {
        reasons.push(Why::rule("avoids-trackers").with("trackers", task.shuns.len() as f64));
    }
    reasons
}
