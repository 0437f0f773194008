//! What time brings: silence turns into suspicion and loss, stuck attempts are ended, stragglers are looked for.
//!
//! Everything is looked at once a second. That is cheap (a few comparisons a tracker and attempt), and needs no
//! queue of alarms to keep right.

use super::JobTracker;
use crate::{
    config::Config,
    event::Effect,
    fact::Fact,
    ids::{AttemptId, TrackerId},
    phase::Phase,
    task::{Attempt, AttemptState, PreemptKind, Stage},
    time::{Span, Time},
    tracker::TrackerState,
};
use std::collections::BTreeSet;

/// Of one tick, if trackers are lost: a record of the journal holds many times as many.
const EFFECTS_MAX: usize = 100_000;

impl JobTracker {
    pub(super) fn tick(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.last_tick = now;
        self.check_trackers(now, out);
        self.check_attempts(now, out);
        self.find_stragglers(now);
        if !self.launches_suspended {
            self.split_stragglers(now, out);
        }
        self.recheck_drains();
        self.policy_tick_round(now, out);
    }

    /// If nothing was heard for long, not even a tick, the JobTracker itself stood still (stopped, or its machine
    /// paused): what was not heard meanwhile is nobody's silence, and what was to be given back by now has so much longer.
    pub(super) fn excuse_own_pause(&mut self, now: Time, out: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.last_event, now);
        let away = now.since(before);
        if away < self.config.absence {
            return;
        }
        for tracker in self.cluster.trackers.values_mut() {
            tracker.last_seen = (tracker.last_seen + away).min(now);
        }
        for job in self.cluster.jobs.values_mut() {
            for phase in Phase::BOTH {
                for id in &job.running[phase] {
                    let attempt = &mut job.tasks[phase][id.task.index as usize].attempts[id.number as usize];
                    attempt.last_reported = (attempt.last_reported + away).min(now);
                    attempt.last_progress = (attempt.last_progress + away).min(now);
                }
            }
        }
        // After a restart nobody knows how long it was; and a deadline is one of the clock on the wall.
        if before > Time(0) {
            self.reserved.extend(away);
            self.extend_deadlines(now, away, out);
        }
    }

    fn extend_deadlines(&mut self, now: Time, by: Span, out: &mut Vec<Effect>) {
        let running = self.cluster.jobs().flat_map(|job| job.running.map.iter().chain(&job.running.reduce));
        let attempts = running.filter_map(|id| self.cluster.attempt(*id));
        let slots = attempts.filter_map(|attempt| {
            attempt.preempt_deadline.map(|preempt_deadline| Fact::PreemptionDeadlineSet {
                attempt: attempt.id,
                until: preempt_deadline + by,
            })
        });
        let drains = self.cluster.draining.iter().filter_map(|id| {
            let drain = self.cluster.tracker(*id)?.drain.as_ref()?;
            Some(Fact::TrackerDraining { tracker: *id, by: drain.by.clone(), until: drain.until + by })
        });
        for fact in slots.chain(drains).collect::<Vec<_>>() {
            self.record(now, fact, out);
        }
    }

    /// A tracker that was silent may not have been told yet what it was ordered meanwhile: its attempts get the full
    /// time to be mentioned.
    pub(super) fn extend_deadlines_of(&mut self, now: Time, id: TrackerId) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let running = Phase::BOTH.into_iter().flat_map(|phase| tracker.running[phase].iter().copied());
        for attempt in running.collect::<Vec<_>>() {
            if let Some(attempt) = self.cluster.attempt_mut(attempt) {
                attempt.last_reported = now;
            }
        }
    }

    fn check_trackers(&mut self, now: Time, out: &mut Vec<Effect>) {
        let silent = |limit: Span, checkpoints: &[TrackerState]| -> BTreeSet<TrackerId> {
            let trackers = self.cluster.trackers().filter(|tracker| checkpoints.contains(&tracker.state));
            trackers
                .filter(|tracker| now.since(tracker.last_seen) >= limit)
                .map(|tracker| tracker.id)
                .collect()
        };
        let all = [TrackerState::Live, TrackerState::Suspect, TrackerState::Awaited];
        let lost = silent(self.config.lost_after, &all);
        let suspect = silent(self.config.suspect_after, &[TrackerState::Live]);
        for id in &lost {
            // All that happens at a time is one record of the journal, whose length has a limit: the rest with the next tick.
            if out.len() >= EFFECTS_MAX {
                break;
            }
            self.lose(now, *id, &format!("no heartbeat for {}", self.config.lost_after), out);
        }
        self.forget_lost(now, out);
        for id in suspect.iter().filter(|id| !lost.contains(id)) {
            self.suspect(now, *id, &format!("no heartbeat for {}", self.config.suspect_after), out);
        }
    }

    /// An attempt that is late is told to stop and keeps its slot until its tracker says that it is gone. It then
    /// uses the budget: a task that gets stuck every time must not run forever.
    fn check_attempts(&mut self, now: Time, out: &mut Vec<Effect>) {
        let mut late: Vec<(AttemptId, String)> = Vec::new();
        let mut gone: Vec<AttemptId> = Vec::new();
        let mut overdue: Vec<AttemptId> = Vec::new();
        let running = self.cluster.jobs().flat_map(|job| job.running.map.iter().chain(&job.running.reduce));
        for attempt in running.filter_map(|id| self.cluster.attempt(*id)) {
            // A tracker that is not live has its own clock running; its attempts are judged with it.
            let on = self.cluster.tracker(attempt.tracker);
            if on.is_none_or(|tracker| tracker.state != TrackerState::Live) {
                continue;
            }
            let Config { launch_timeout, task_timeout, .. } = self.config;
            let asked = matches!(attempt.state, AttemptState::Splitting | AttemptState::Pausing);
            if asked && attempt.preempt_deadline.is_some_and(|preempt_deadline| now >= preempt_deadline) {
                overdue.push(attempt.id);
            }
            match attempt.state {
                AttemptState::Launching if now.since(attempt.last_reported) >= launch_timeout => {
                    late.push((attempt.id, format!("its tracker did not start it within {launch_timeout}")));
                }
                AttemptState::Running | AttemptState::Splitting | AttemptState::Pausing
                    if now.since(attempt.last_progress) >= task_timeout && !self.waits_for_maps(attempt) =>
                {
                    late.push((attempt.id, format!("no progress for {task_timeout}")));
                }
                // Told to stop, and a tracker that is well has not mentioned it since: it never knew it.
                AttemptState::Stopping if now.since(attempt.last_reported) >= launch_timeout => {
                    gone.push(attempt.id)
                }
                _ => {}
            }
        }
        for (id, error) in late {
            self.fault(now, id, error, out);
        }
        for id in overdue {
            self.kill_past_deadline(now, id, out);
        }
        for id in gone {
            self.failed(now, id, "its tracker has not reported it since it was told to stop".into(), out);
        }
    }

    /// Whoever waits for a slot does not wait forever: a program may be long at one record or one key.
    fn kill_past_deadline(&mut self, now: Time, id: AttemptId, out: &mut Vec<Effect>) {
        if self.cluster.may_preempt(id, PreemptKind::Kill).is_ok()
            && let Some((kind, asked)) = self.cluster.attempt(id).and_then(|attempt| attempt.preempt_request)
        {
            let why = format!("{kind} was requested {} ago, and it still holds its slot", now.since(asked));
            self.request_preemption(now, id, PreemptKind::Kill, &why, false, out);
        }
    }

    /// A reduce that has fetched all there is can only wait for the rest.
    fn waits_for_maps(&self, attempt: &Attempt) -> bool {
        attempt.progress.stage == Stage::Shuffle
            && self.cluster.job(attempt.id.job()).is_some_and(|job| !job.is_done(Phase::Map))
    }
}
