//! What time brings: silence turns into suspicion and loss, stuck attempts are ended, stragglers are found.
//!
//! Everything is looked at once a second. That is cheap (a few comparisons a tracker and attempt), and needs no
//! queue of alarms to keep right.

use super::JobTracker;
use crate::{
    config::Config,
    event::Effect,
    ids::{AttemptId, JobId, TrackerId},
    phase::Phase,
    task::{Attempt, AttemptState, Stage},
    time::{Span, Time},
    tracker::TrackerState,
};
use std::collections::BTreeSet;

impl JobTracker {
    pub(super) fn tick(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.last_tick = now;
        self.check_trackers(now, out);
        self.check_attempts(now, out);
        self.find_stragglers(now);
        self.policy_tick_round(now, out);
    }

    /// If nothing was heard for long, not even a tick, the JobTracker itself stood still (stopped, or its machine
    /// paused): what was not heard meanwhile is nobody's silence.
    pub(super) fn forgive_own_absence(&mut self, now: Time) {
        let away = now.since(self.last_event);
        self.last_event = now;
        if away < self.config.absence {
            return;
        }
        for tracker in self.cluster.trackers.values_mut() {
            tracker.last_heard = (tracker.last_heard + away).min(now);
        }
        for job in self.cluster.jobs.values_mut() {
            for phase in Phase::BOTH {
                for id in &job.running[phase] {
                    let attempt = &mut job.tasks[phase][id.task.index as usize].attempts[id.number as usize];
                    attempt.heard = (attempt.heard + away).min(now);
                    attempt.advanced = (attempt.advanced + away).min(now);
                }
            }
        }
    }

    fn check_trackers(&mut self, now: Time, out: &mut Vec<Effect>) {
        let silent = |limit: Span, states: &[TrackerState]| -> BTreeSet<TrackerId> {
            let trackers = self.cluster.trackers().filter(|tracker| states.contains(&tracker.state));
            trackers
                .filter(|tracker| now.since(tracker.last_heard) >= limit)
                .map(|tracker| tracker.id)
                .collect()
        };
        let all = [TrackerState::Live, TrackerState::Suspect, TrackerState::Awaited];
        let lost = silent(self.config.lost_after, &all);
        let suspect = silent(self.config.suspect_after, &[TrackerState::Live]);
        for id in &lost {
            self.lose(now, *id, &format!("not heard of for {}", self.config.lost_after), out);
        }
        for id in suspect.iter().filter(|id| !lost.contains(id)) {
            self.suspect(now, *id, &format!("not heard of for {}", self.config.suspect_after), out);
        }
    }

    /// An attempt that is late is told to stop and keeps its slot until its tracker says that it is gone. It then
    /// uses the budget: a task that gets stuck every time must not run for ever.
    fn check_attempts(&mut self, now: Time, out: &mut Vec<Effect>) {
        let mut late: Vec<(AttemptId, String)> = Vec::new();
        let mut gone: Vec<AttemptId> = Vec::new();
        let running = self.cluster.jobs().flat_map(|job| job.running.map.iter().chain(&job.running.reduce));
        for attempt in running.filter_map(|id| self.cluster.attempt(*id)) {
            // A tracker that is not live has its own clock running; its attempts are judged with it.
            let on = self.cluster.tracker(attempt.tracker);
            if on.is_none_or(|tracker| tracker.state != TrackerState::Live) {
                continue;
            }
            let Config { launch_timeout, task_timeout, .. } = self.config;
            match attempt.state {
                AttemptState::Launching if now.since(attempt.launched) >= launch_timeout => {
                    late.push((attempt.id, format!("its tracker did not start it within {launch_timeout}")));
                }
                AttemptState::Running | AttemptState::Splitting | AttemptState::Pausing
                    if now.since(attempt.advanced) >= task_timeout && !self.waits_for_maps(attempt) =>
                {
                    late.push((attempt.id, format!("it has not come further for {task_timeout}")));
                }
                // Told to stop, and a tracker that is well has not mentioned it since: it never knew it.
                AttemptState::Stopping if now.since(attempt.heard) >= launch_timeout => gone.push(attempt.id),
                _ => {}
            }
        }
        for (id, error) in late {
            self.blame(now, id, error, out);
        }
        for id in gone {
            self.failed(now, id, "its tracker has not mentioned it since it was told to stop".into(), out);
        }
    }

    /// A reduce that has fetched all there is can only wait for the rest.
    fn waits_for_maps(&self, attempt: &Attempt) -> bool {
        attempt.progress.stage == Stage::Shuffle
            && self.cluster.job(attempt.id.job()).is_some_and(|job| !job.is_done(Phase::Map))
    }

    /// A straggler has run much longer than the mean of its kind took, and is not nearly done.
    fn find_stragglers(&mut self, now: Time) {
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
        let Some(mean) = job.mean_time(phase).map(Span::as_secs_f64) else { return BTreeSet::new() };
        let is_slow = |attempt: &Attempt| {
            let run = now.since(attempt.launched);
            let run_s = run.as_secs_f64();
            let left_s =
                run_s * f64::from(1.0 - attempt.progress.done) / f64::from(attempt.progress.done.max(0.001));
            attempt.state == AttemptState::Running
                && run >= self.config.straggler_after
                && run_s > self.config.straggler_factor * mean
                && left_s > mean / 2.0
        };
        let running = job.running[phase].iter().filter_map(|id| self.cluster.attempt(*id));
        let alone =
            |attempt: &&Attempt| job.task(attempt.id.task).is_some_and(|task| task.trying().count() == 1);
        running
            .filter(|attempt| is_slow(attempt))
            .filter(alone)
            .map(|attempt| attempt.id.task.index)
            .collect()
    }
}
