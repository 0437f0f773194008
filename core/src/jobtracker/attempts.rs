//! Reports of trackers about attempts, fetch failures, and blacklists.

use super::JobTracker;
use crate::{
    event::{AttemptReport, AttemptStatus, Effect, FetchFailure, Order},
    fact::Fact,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::JobOutcome,
    output::piece_outside_folders,
    phase::Phase,
    task::{AttemptResult, AttemptState, INTERRUPTIONS_MAX, PreemptKind, Progress},
    time::{Span, Time},
    tracker::TrackerState,
};

/// Length limit for the reason that is recorded when an attempt is killed or lost, in bytes.
const KILL_REASON_BYTES_MAX: usize = 256;
/// If one reduce fails to fetch the same map output this often, the output is given up.
const FETCH_FAILURES_TO_GIVE_UP_OUTPUT: u32 = 3;
/// If this many reduces cannot fetch the same map output, the output is given up at once.
const REDUCES_TO_GIVE_UP_OUTPUT: usize = 2;
/// If a reduce is the only one that cannot fetch from this many trackers, the reduce itself has a
/// network problem and fails.
const TRACKERS_TO_FAIL_REDUCE: usize = 2;

impl JobTracker {
    pub(super) fn handle_report(
        &mut self,
        now: Time,
        from: TrackerId,
        report: AttemptReport,
        out: &mut Vec<Effect>,
    ) {
        let AttemptReport { attempt: id, status } = report;
        if Self::is_final(&status) {
            self.jobs_with_ended_attempts.insert(id.job());
        }
        let status = match status {
            AttemptStatus::Copied(bytes) => return self.copy_reported(now, from, id, Ok(bytes), out),
            AttemptStatus::CopyFailed(why) => return self.copy_reported(now, from, id, Err(why), out),
            status => status,
        };
        let known = self.cluster.attempt(id).filter(|attempt| attempt.tracker == from);
        if known.is_none_or(|attempt| !attempt.state.holds_slot()) {
            if matches!(status, AttemptStatus::Paused(_)) && !self.checkpoints(id.task).contains(&(id, from))
            {
                // The checkpoint is no longer needed.
                self.queue_order(from, Order::DropCheckpoint(id));
            }
            return self.handle_unknown_attempt(from, id, Self::is_final(&status));
        }
        if let AttemptStatus::Running(progress) = status {
            return self.attempt_progressed(now, id, progress, out);
        }
        let mut status = self.check_pieces(id, status);
        if let AttemptStatus::Succeeded(result) | AttemptStatus::Split(_, result) = &mut status
            && let Some(job) = self.cluster.job(id.job())
        {
            job.limit_counters(id.phase(), &mut result.counters);
        }
        match status {
            AttemptStatus::Succeeded(result) => self.attempt_succeeded(now, id, result, out),
            AttemptStatus::Split(position, result) => self.map_split(now, id, position, result, out),
            AttemptStatus::Paused(checkpoint) => self.attempt_paused(now, id, checkpoint, out),
            AttemptStatus::CheckpointCorrupt(why) => self.checkpoint_corrupt(now, id, &why, out),
            AttemptStatus::CheckpointUnreachable(why) => self.checkpoint_unreachable(now, id, &why, out),
            AttemptStatus::Failed(error) => self.attempt_failed(now, id, error, out),
            AttemptStatus::Fatal(error) => self.attempt_failed_fatally(now, id, error, out),
            AttemptStatus::Killed(why) => {
                match self.cluster.attempt(id).and_then(|known| known.fault.clone()) {
                    Some(fault) => self.attempt_failed(now, id, fault, out),
                    None => self.attempt_killed(now, id, &why, out),
                }
            }
            // Handled above.
            AttemptStatus::Running(_) | AttemptStatus::Copied(_) | AttemptStatus::CopyFailed(_) => {}
        }
    }

    /// Turns a success into a failure if the attempt reports pieces (output files) outside the
    /// folders that it may write to.
    fn check_pieces(&self, id: AttemptId, status: AttemptStatus) -> AttemptStatus {
        let (AttemptStatus::Succeeded(result) | AttemptStatus::Split(_, result)) = &status else {
            return status;
        };
        let job = self.cluster.job(id.job());
        match job.and_then(|job| piece_outside_folders(job, id, result)) {
            Some(piece) => {
                AttemptStatus::Failed(format!("reported output in {piece}, which is outside its folder"))
            }
            None => status,
        }
    }

    /// Handles a report about an attempt that was given up or is unknown. The report has no effect.
    /// A running attempt takes a slot and is to be killed.
    fn handle_unknown_attempt(&mut self, from: TrackerId, id: AttemptId, is_gone: bool) {
        if is_gone {
            self.cluster.volatile.retain_unknown(from, |unknown| *unknown != id);
        } else if self.cluster.volatile.add_unknown(from, id) {
            let why = "the JobTracker gave it up".into();
            self.queue_order(from, Order::Preempt { attempt: id, kind: PreemptKind::Kill, why });
        }
    }

    /// Removes unknown attempts that have ended. A heartbeat lists all attempts that are running on
    /// the tracker, so the unknown attempts that it does not list have ended.
    pub(super) fn forget_unknown_attempts(&mut self, from: TrackerId, reports: &[AttemptReport]) {
        let runs = |unknown: &AttemptId| {
            reports.iter().any(|report| report.attempt == *unknown && !Self::is_final(&report.status))
        };
        self.cluster.volatile.retain_unknown(from, runs);
    }

    /// Returns whether the result of an attempt can still count: its job is running, its task is
    /// not done, and the range of the task has not changed since the launch.
    pub(super) fn is_wanted(&self, id: AttemptId) -> bool {
        let job = self.cluster.job(id.job()).filter(|job| job.is_running());
        let Some(task) = job.and_then(|job| job.task(id.task)) else { return false };
        let attempt = task.attempts.get(id.number as usize);
        !task.is_done() && attempt.is_some_and(|attempt| attempt.end == task.end)
    }

    fn attempt_progressed(&mut self, now: Time, id: AttemptId, progress: Progress, out: &mut Vec<Effect>) {
        let Some(attempt) = self.cluster.set_progress(id, now, progress) else { return };
        // Only refusals since the last preemption request count.
        let refused = progress.refusals > attempt.refusals;
        if refused && matches!(attempt.state, AttemptState::Pausing | AttemptState::Splitting) {
            let why = progress.refused.map_or_else(String::new, |why| why.to_string());
            self.record(now, Fact::PreemptionRefused { attempt: id, refusals: progress.refusals, why }, out);
        }
    }

    /// Sends preemption orders again after a tracker has registered, because its earlier orders are
    /// void, or it may not have received them. Deadlines are extended to the full timeout.
    pub(super) fn repeat_preemptions(&mut self, now: Time, from: TrackerId, out: &mut Vec<Effect>) {
        let Some(tracker) = self.cluster.tracker(from) else { return };
        let running = Phase::BOTH.into_iter().flat_map(|phase| tracker.running[phase].iter().copied());
        let kind = |id: &AttemptId| match self.cluster.attempt(*id)?.state {
            AttemptState::Killing => Some(PreemptKind::Kill),
            AttemptState::Splitting => Some(PreemptKind::Split),
            AttemptState::Pausing => Some(PreemptKind::Pause),
            _ => None,
        };
        let requested: Vec<(AttemptId, PreemptKind)> =
            running.filter_map(|id| Some((id, kind(&id)?))).collect();
        for (attempt, kind) in requested {
            let why = "preemption requested before the tracker registered again".into();
            self.queue_order(from, Order::Preempt { attempt, kind, why });
            let until = now + self.config.preemption_timeout;
            if kind != PreemptKind::Kill
                && self
                    .cluster
                    .attempt(attempt)
                    .and_then(|attempt| attempt.preempt_deadline)
                    .is_some_and(|preempt_deadline| preempt_deadline < until)
            {
                self.record(now, Fact::PreemptionDeadlineSet { attempt, until }, out);
            }
        }
    }

    /// Records the success of an attempt. The first attempt of a task that succeeds counts, and
    /// this fact is the commit of the task: attempts do not rename files. The commit of the job
    /// moves the output files of the attempts that are recorded here.
    pub(super) fn attempt_succeeded(
        &mut self,
        now: Time,
        id: AttemptId,
        result: AttemptResult,
        out: &mut Vec<Effect>,
    ) {
        if !self.is_wanted(id) {
            return self.attempt_killed(
                now,
                id,
                "the job, or another attempt of the task, had already finished",
                out,
            );
        }
        self.trackers_reported_alone.remove(&id);
        let others = self.cluster.task(id.task).into_iter().flat_map(crate::task::Task::viable_attempts);
        let others: Vec<AttemptId> = others.map(|attempt| attempt.id).filter(|other| *other != id).collect();
        self.record(now, Fact::AttemptSucceeded { attempt: id, result }, out);
        for other in others {
            self.queue_kill_order(other, "another attempt of the task has succeeded");
        }
        self.commit_if_done(now, id.job(), out);
    }

    pub(super) fn attempt_failed(&mut self, now: Time, id: AttemptId, error: String, out: &mut Vec<Effect>) {
        let Some(attempt) = self.cluster.attempt(id) else { return };
        let error = attempt.fault.clone().unwrap_or(error);
        let unwanted = attempt.state == AttemptState::Killing && attempt.fault.is_none();
        // An attempt that is no longer needed does not count as failed.
        if unwanted || self.cluster.task(id.task).is_some_and(crate::task::Task::is_done) {
            return self.attempt_killed(now, id, &error, out);
        }
        self.record(now, Fact::AttemptFailed { attempt: id, error: error.clone() }, out);
        let (failures, tracker) = {
            let task = self.cluster.task(id.task).expect("it was just recorded");
            (task.failures, task.attempts[id.number as usize].tracker)
        };
        let Some(job) = self.cluster.job(id.job()).filter(|job| job.is_running()) else { return };
        if failures >= job.spec.attempts_max {
            let why = match failures {
                1 => format!("{} failed once: {error}", id.task),
                _ => format!("{} failed {failures} times: {error}", id.task),
            };
            return self.end_job(now, id.job(), JobOutcome::Failed(why), out);
        }
        self.consider_blacklist(now, id.job(), tracker, out);
        self.suspect_checkpoint(now, id, out);
        self.after_reduce_ended(now, id, out);
    }

    /// Ends the job as failed, because every other attempt would fail with the same error.
    fn attempt_failed_fatally(&mut self, now: Time, id: AttemptId, error: String, out: &mut Vec<Effect>) {
        if !self.is_wanted(id) {
            return self.attempt_killed(now, id, &error, out);
        }
        self.record(now, Fact::AttemptFailed { attempt: id, error: error.clone() }, out);
        let why = format!("{} failed: {error}", id.task);
        self.end_job(now, id.job(), JobOutcome::Failed(why), out);
    }

    /// Handles the report that an attempt has ended without a result that counts, and not because of
    /// an error.
    pub(super) fn attempt_killed(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        let interrupted = self.is_interrupted(id);
        self.record_killed(now, id, why, self.bytes_in(id), interrupted, out);
    }

    /// Gives up an attempt whose tracker is lost or no longer runs it.
    pub(super) fn attempt_lost(&mut self, now: Time, id: AttemptId, why: &str, out: &mut Vec<Effect>) {
        self.record_killed(now, id, why, self.bytes_in(id), false, out);
    }

    fn bytes_in(&self, id: AttemptId) -> u64 {
        self.cluster.attempt(id).map_or(0, |attempt| self.cluster.progress(attempt).bytes_in)
    }

    /// Returns whether an attempt that its tracker reports as killed or paused was interrupted
    /// ([`crate::task::Task::interruptions`]).
    pub(super) fn is_interrupted(&self, id: AttemptId) -> bool {
        self.cluster.attempt(id).is_some_and(|attempt| attempt.state == AttemptState::Running)
    }

    /// Records that an attempt was killed or lost after it had read `bytes_in` bytes.
    pub(super) fn record_killed(
        &mut self,
        now: Time,
        id: AttemptId,
        why: &str,
        bytes_in: u64,
        interrupted: bool,
        out: &mut Vec<Effect>,
    ) {
        let why = &why[..why.floor_char_boundary(KILL_REASON_BYTES_MAX)];
        self.record(now, Fact::AttemptKilled { attempt: id, why: why.into(), bytes_in, interrupted }, out);
        // The attempt may have been given up with its tracker, so that no report follows.
        let job = self.cluster.job(id.job());
        if job.is_some_and(|job| job.running.map.is_empty() && job.running.reduce.is_empty()) {
            self.jobs_with_ended_attempts.insert(id.job());
        }
        self.after_reduce_ended(now, id, out);
        if interrupted {
            self.after_interruption(now, id.task, why, out);
        }
    }

    /// Called after an attempt of a task was interrupted. The task waits before its next launch.
    /// After too many interruptions the job fails: a program can cause them, and the JobTracker
    /// stores every attempt.
    pub(super) fn after_interruption(&mut self, now: Time, id: TaskId, why: &str, out: &mut Vec<Effect>) {
        let job = self.cluster.job(id.job).filter(|job| job.is_running());
        let Some(task) = job.and_then(|job| job.task(id)) else { return };
        if task.interruptions >= INTERRUPTIONS_MAX {
            let times = task.interruptions;
            let why = format!("{times} attempts of {id} ended without a result, the last one because: {why}");
            return self.end_job(now, id.job, JobOutcome::Failed(why), out);
        }
        let delay = task.retry_delay();
        if delay > Span(0) {
            self.cluster.volatile.delay_task(id, now + delay);
        }
    }

    fn after_reduce_ended(&mut self, now: Time, id: AttemptId, out: &mut Vec<Effect>) {
        if id.phase() == Phase::Reduce {
            self.trackers_reported_alone.remove(&id);
            self.require_outputs(now, id.job(), out);
        }
    }

    /// Blacklists a tracker on which a job keeps failing. The number of blacklisted trackers is
    /// limited, because a job with a bug fails everywhere.
    fn consider_blacklist(&mut self, now: Time, id: JobId, tracker: TrackerId, out: &mut Vec<Effect>) {
        let Some(job) = self.cluster.job(id) else { return };
        let failures = job.failures.get(&tracker).copied().unwrap_or(0);
        let here =
            |id: &TrackerId| self.cluster.tracker(*id).is_some_and(|at| at.state != TrackerState::Lost);
        let all = self.cluster.trackers().filter(|tracker| here(&tracker.id)).count();
        let most = (all as f64 * self.config.blacklist_share).floor() as usize;
        let avoided = job.blacklist.iter().filter(|id| here(id)).count();
        let wanted = failures >= self.config.blacklist_after && !job.blacklist.contains(&tracker);
        if wanted && avoided < most {
            self.record(now, Fact::TrackerBlacklisted { job: id, tracker }, out);
        }
    }

    /// Handles the report of a reduce that it cannot fetch a map output. One report can be due to a
    /// network problem of the reduce. The output is given up when two reduces report it, when one
    /// reduce reports it repeatedly, or when the tracker of the output is suspect.
    pub(super) fn fetch_failed(
        &mut self,
        now: Time,
        from: TrackerId,
        failure: FetchFailure,
        out: &mut Vec<Effect>,
    ) {
        let Some(on) = self.suspected_tracker(from, &failure) else { return };
        let FetchFailure { reduce, map, addr } = failure;
        let tracker = self.cluster.tracker(on);
        let state = tracker.map(|tracker| tracker.state);
        // The failure does not count if the reduce used an outdated address. An awaited tracker may
        // register with a different address, which the reduce then gets.
        let outdated = tracker.is_some_and(|tracker| tracker.shuffle_addr != addr);
        if outdated || state == Some(TrackerState::Awaited) {
            return;
        }
        let doubtful = matches!(state, None | Some(TrackerState::Suspect | TrackerState::Lost));
        let counts = self.fetch_failures.entry(map).or_default();
        *counts.entry(reduce).or_default() += 1;
        let together = doubtful || counts.len() >= REDUCES_TO_GIVE_UP_OUTPUT;
        if !together {
            if counts[&reduce] < FETCH_FAILURES_TO_GIVE_UP_OUTPUT {
                return;
            }
            let reported = self.trackers_reported_alone.entry(reduce).or_default();
            reported.insert(on);
            if reported.len() >= TRACKERS_TO_FAIL_REDUCE {
                let why = format!(
                    "it was the only reduce that could not fetch map output from {} trackers",
                    reported.len()
                );
                return self.kill_faulty_attempt(now, reduce, why, out);
            }
        }
        self.fetch_failures.remove(&map);
        self.give_up_unfetchable_output(now, reduce, map, on, out);
    }

    /// Returns the tracker of the map output that could not be fetched. Returns `None` if the
    /// report is to be ignored: it must come from the tracker of the reduce, and must be about a
    /// completed map of the same running job whose output is still in use.
    fn suspected_tracker(&self, from: TrackerId, failure: &FetchFailure) -> Option<TrackerId> {
        let FetchFailure { reduce, map, .. } = *failure;
        let job = self.cluster.job(map.job()).filter(|job| job.is_running())?;
        let reducer = self.cluster.attempt(reduce)?;
        let fits = reduce.job() == map.job()
            && (reduce.phase(), map.phase()) == (Phase::Reduce, Phase::Map)
            && reducer.tracker == from
            && reducer.state.is_viable();
        let winner = job.task(map.task)?.winning_attempt()?;
        (fits && winner.id == map).then_some(winner.output_on)
    }

    /// Gives up a map output that `reduce` could not fetch. The map runs again, if possible on
    /// another tracker. If this happens too often, the job fails.
    fn give_up_unfetchable_output(
        &mut self,
        now: Time,
        reduce: AttemptId,
        map: AttemptId,
        on: TrackerId,
        out: &mut Vec<Effect>,
    ) {
        let why = format!("{reduce} could not fetch it");
        self.record(now, Fact::MapOutputLost { attempt: map, why, unfetched: true }, out);
        let Some(job) = self.cluster.job(map.job()) else { return };
        let times = job.task(map.task).map_or(0, |task| task.unfetched);
        if times >= job.spec.attempts_max {
            let name = self.cluster.tracker(on).map_or("?", |tracker| &tracker.name);
            let task = map.task;
            let why = match times {
                1 => format!("the output of {task} could not be fetched from {name}"),
                _ => format!(
                    "the output of {task} could not be fetched {times} times, the last time from {name}"
                ),
            };
            return self.end_job(now, map.job(), JobOutcome::Failed(why), out);
        }
        self.consider_blacklist(now, map.job(), on, out);
    }

    /// Orders a tracker to kill an attempt because of an error of the attempt. The attempt counts
    /// as failed when it has ended.
    pub(super) fn kill_faulty_attempt(
        &mut self,
        now: Time,
        id: AttemptId,
        error: String,
        out: &mut Vec<Effect>,
    ) {
        let (kind, why) = (PreemptKind::Kill, error.clone());
        self.record(now, Fact::PreemptionRequested { attempt: id, kind, why, fault: true, hold: false }, out);
        self.queue_kill_order(id, &error);
    }
}
