//! Timeouts: trackers become suspect and lost, stuck attempts are killed, stragglers are found.
//!
//! Every tick, once a second, checks when each tracker was last seen. It checks the attempts only if
//! one of them may be late: `JobTracker::next_timeout` is a lower bound, so no queue of timers is
//! needed.

use super::JobTracker;
use crate::{
    config::Config,
    event::Effect,
    fact::Fact,
    ids::{AttemptId, TrackerId},
    phase::Phase,
    task::{Attempt, AttemptState, PreemptKind, Stage},
    time::{Span, Time},
    tracker::{Tracker, TrackerState},
};

/// When a tick has caused this many effects, it declares no more trackers lost. The journal record
/// of an event has room for many times that number.
const EFFECTS_PER_TICK_MAX: usize = 100_000;

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
        self.work_arrived |= self.reservations.expire(now);
        self.work_arrived |= self.cluster.volatile.end_delays(now);
        self.run_periodic_round_if_due(now, out);
    }

    /// Handles a pause of the JobTracker itself. If no event arrived for long, not even a tick, the
    /// process or its machine was paused. Heartbeats that were missed in this time do not count,
    /// and deadlines are extended.
    pub(super) fn handle_own_pause(&mut self, now: Time, out: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.last_event, now);
        let paused_for = now.since(before);
        if paused_for < self.config.absence {
            return;
        }
        self.cluster.extend_after_pause(now, paused_for);
        // After a restart the length of the pause is unknown, so deadlines, which are wall-clock
        // times, stay as they are.
        if before > Time(0) {
            self.reservations.extend(paused_for);
            self.extend_deadlines(now, paused_for, out);
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
        let drains = self.cluster.draining_trackers().iter().filter_map(|id| {
            let drain = self.cluster.tracker(*id)?.drain.as_ref()?;
            Some(Fact::TrackerDraining { tracker: *id, by: drain.by.clone(), until: drain.until + by })
        });
        for fact in slots.chain(drains).collect::<Vec<_>>() {
            self.record(now, fact, out);
        }
    }

    /// Restarts the timeouts of the attempts on a suspect tracker that is back: the tracker may not
    /// have received its orders yet.
    pub(super) fn restart_timeouts_on(&mut self, now: Time, id: TrackerId) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let running = Phase::BOTH.into_iter().flat_map(|phase| tracker.running[phase].iter().copied());
        for attempt in running.collect::<Vec<_>>() {
            self.cluster.set_reported(attempt, now);
        }
    }

    fn check_trackers(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Config { suspect_after, lost_after, forget_after, .. } = self.config;
        let shortest = suspect_after.min(lost_after).min(forget_after);
        let silent: Vec<&Tracker> = self.cluster.silent_trackers(now, shortest).collect();
        if silent.is_empty() {
            return;
        }
        let (mut lost, mut suspect) = (Vec::new(), Vec::new());
        for tracker in silent {
            let silent_for = now.since(self.cluster.last_seen(tracker.id));
            if silent_for >= lost_after && tracker.state != TrackerState::Lost {
                lost.push(tracker.id);
            } else if silent_for >= suspect_after && tracker.state == TrackerState::Live {
                suspect.push(tracker.id);
            }
        }
        for id in lost {
            // The facts of one event are one record of the journal, whose size is limited. The next
            // tick handles the remaining trackers.
            if out.len() >= EFFECTS_PER_TICK_MAX {
                break;
            }
            self.declare_lost(now, id, &format!("no heartbeat for {lost_after}"), out);
        }
        self.forget_lost(now, out);
        for id in suspect {
            self.declare_suspect(now, id, &format!("no heartbeat for {suspect_after}"), out);
        }
    }

    /// Stops attempts that did not start, made no progress or did not release their slot in time.
    /// Such an attempt holds its slot until its tracker reports that it has ended. It then counts
    /// as failed, so that a task that always gets stuck does not run forever.
    fn check_attempts(&mut self, now: Time, out: &mut Vec<Effect>) {
        if now < self.next_timeout {
            return;
        }
        let mut next_timeout = Time(u64::MAX);
        let mut late: Vec<(AttemptId, String)> = Vec::new();
        let mut gone: Vec<AttemptId> = Vec::new();
        let mut overdue: Vec<AttemptId> = Vec::new();
        for attempt in self.checked_attempts() {
            next_timeout = next_timeout.min(self.earliest_timeout(attempt));
            let reports = self.cluster.reports(attempt.id.job(), attempt.id.phase());
            let Config { launch_timeout, task_timeout, .. } = self.config;
            if preempt_deadline(attempt).is_some_and(|deadline| now >= deadline) {
                overdue.push(attempt.id);
            }
            if attempt.state == AttemptState::Running && !reports.has_started(attempt) {
                if now.since(reports.last_reported(attempt)) >= launch_timeout {
                    late.push((attempt.id, format!("its tracker did not start it within {launch_timeout}")));
                }
                continue;
            }
            match attempt.state {
                AttemptState::Running | AttemptState::Splitting | AttemptState::Pausing
                    if now.since(reports.last_progress(attempt)) >= task_timeout
                        && !self.waits_for_maps(attempt) =>
                {
                    let error = format!(
                        "no progress for {task_timeout}: report progress more often, or raise jobtracker.task_timeout"
                    );
                    late.push((attempt.id, error));
                }
                // A live tracker that has not reported the attempt since the order to kill it does
                // not run it.
                AttemptState::Killing if now.since(reports.last_reported(attempt)) >= launch_timeout => {
                    gone.push(attempt.id);
                }
                _ => {}
            }
        }
        self.next_timeout = next_timeout;
        // In the order of jobs, not of trackers.
        late.sort_unstable();
        overdue.sort_unstable();
        gone.sort_unstable();
        for (id, error) in late {
            self.kill_faulty_attempt(now, id, error, out);
        }
        for id in overdue {
            self.kill_past_deadline(now, id, out);
        }
        for id in gone {
            self.attempt_failed(
                now,
                id,
                "its tracker has not reported it since the order to kill it".into(),
                out,
            );
        }
    }

    /// Returns the attempts with timeouts. Attempts on a tracker that is suspect or awaited are
    /// handled when it comes back or is lost.
    fn checked_attempts(&self) -> impl Iterator<Item = &Attempt> {
        let live = self.cluster.trackers().filter(|tracker| tracker.state == TrackerState::Live);
        let running = live.flat_map(|tracker| tracker.running.map.iter().chain(&tracker.running.reduce));
        running.filter_map(|id| self.cluster.attempt(*id))
    }

    /// Returns a time before which an attempt cannot be late. A reduce that waits for maps is not
    /// late at that time, but it may be as soon as they are done.
    fn earliest_timeout(&self, attempt: &Attempt) -> Time {
        let reports = self.cluster.reports(attempt.id.job(), attempt.id.phase());
        let launch = reports.last_reported(attempt) + self.config.launch_timeout;
        let progress = reports.last_progress(attempt) + self.config.task_timeout;
        preempt_deadline(attempt).into_iter().fold(launch.min(progress), Time::min)
    }

    /// Updates the time before which no attempt can be late, after a fact. Reports need no update:
    /// they only make timeouts later.
    pub(super) fn update_next_timeout(&mut self, now: Time, fact: &Fact) {
        let Config { launch_timeout, task_timeout, .. } = self.config;
        let earliest = match fact {
            Fact::PreemptionDeadlineSet { until, .. } => *until,
            // The attempts of the tracker had no timeouts before. Some may be late already.
            Fact::TrackerJoined { .. } | Fact::TrackerRecovered { .. } => Time(0),
            // The timeouts of an attempt that is launched begin now.
            _ => now + launch_timeout.min(task_timeout),
        };
        self.next_timeout = self.next_timeout.min(earliest);
    }

    /// Checks that no attempt can be late before the next check of the attempts. For tests.
    pub fn check_next_timeout(&self) -> Result<(), String> {
        let early = |attempt: &&Attempt| self.earliest_timeout(attempt) < self.next_timeout;
        match self.checked_attempts().find(early) {
            Some(attempt) => Err(format!(
                "{} may be late at {}, before the next check of the attempts at {}",
                attempt.id,
                self.earliest_timeout(attempt),
                self.next_timeout
            )),
            None => Ok(()),
        }
    }

    /// Kills an attempt that still holds its slot at the deadline of its preemption. A program may
    /// process one record or one key for a long time.
    fn kill_past_deadline(&mut self, now: Time, id: AttemptId, out: &mut Vec<Effect>) {
        if self.cluster.may_preempt(id, PreemptKind::Kill).is_ok()
            && let Some((kind, asked)) = self.cluster.attempt(id).and_then(|attempt| attempt.preempt_request)
        {
            let why = format!("{kind} was requested {} ago, and it still holds its slot", now.since(asked));
            self.request_preemption(now, id, PreemptKind::Kill, &why, false, out);
        }
    }

    /// Returns whether a reduce makes no progress because it waits for maps: it is in its shuffle
    /// stage, and not all maps are done.
    fn waits_for_maps(&self, attempt: &Attempt) -> bool {
        self.cluster.progress(attempt).stage == Stage::Shuffle
            && self.cluster.job(attempt.id.job()).is_some_and(|job| !job.is_done(Phase::Map))
    }
}

/// Returns the time at which an attempt is killed that was requested to release its slot.
fn preempt_deadline(attempt: &Attempt) -> Option<Time> {
    let asked = matches!(attempt.state, AttemptState::Splitting | AttemptState::Pausing);
    attempt.preempt_deadline.filter(|_| asked)
}
