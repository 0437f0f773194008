//! Facts change the cluster here and nowhere else, whether they are new or replayed.
//!
//! A fact that does not fit (an attempt of an unknown job, say) can only come from a damaged or foreign journal:
//! it is refused, and the cluster is as it was.

use super::Cluster;
use crate::{
    fact::Fact,
    ids::{AttemptId, HostId, JobId, RackId, RequestId, TaskId, TrackerId},
    job::{Job, JobOutcome, JobSpec, JobState, MapEvent, Preemption},
    phase::{PerPhase, Phase},
    task::{Attempt, AttemptResult, AttemptState, Checkpoint, Progress, Stage, Task},
    time::{Span, Time},
    tracker::{Tracker, TrackerState},
};
use std::{collections::BTreeSet, sync::Arc};

/// A fact that does not fit what went before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fact does not fit: {0}")]
pub struct ApplyError(pub String);

pub(super) fn apply_error<T>(what: impl std::fmt::Display) -> Result<T, ApplyError> {
    Err(ApplyError(what.to_string()))
}

impl Cluster {
    /// Takes one fact.
    pub fn apply(&mut self, at: Time, fact: &Fact) -> Result<(), ApplyError> {
        match fact {
            Fact::JobTrackerStarted { epoch, .. } => {
                self.epoch = *epoch;
                self.await_trackers(at);
                Ok(())
            }
            Fact::IdsSkipped { epoch, job } => {
                self.epoch = self.epoch.max(*epoch);
                self.next_job = self.next_job.max(*job);
                Ok(())
            }
            Fact::TrackerJoined { .. } => self.tracker_joined(at, fact),
            Fact::TrackerSuspected { tracker, .. } => self.set_state(*tracker, TrackerState::Suspect),
            Fact::TrackerRecovered { tracker } => self.set_state(*tracker, TrackerState::Live),
            Fact::TrackerLost { tracker, .. } => self.set_state(*tracker, TrackerState::Lost),
            Fact::JobSubmitted { job, request, spec } => self.job_submitted(at, *job, *request, spec),
            Fact::JobCommitting { job } => self.set_job_state(*job, JobState::Committing),
            Fact::JobEnded { job, outcome } => self.job_ended(at, *job, outcome),
            Fact::JobForgotten { job } => self.job_forgotten(*job),
            Fact::AttemptLaunched { .. } => self.attempt_launched(at, fact),
            Fact::PreemptionRequested { attempt, kind, why, fault, hold } => {
                self.preemption_requested(at, *attempt, *kind, fault.then_some(why), *hold)
            }
            Fact::MapSplit { attempt, position, result } => self.map_split(at, *attempt, *position, result),
            Fact::AttemptPaused { attempt, stage, bytes, bytes_in } => {
                self.attempt_paused(at, *attempt, (*stage, *bytes), *bytes_in)
            }
            Fact::StageLost { attempt, why, .. } => {
                self.set_error(*attempt, why);
                Ok(())
            }
            Fact::TaskReleased { task } => {
                let released = self.task_mut(*task)?;
                released.on_hold = false;
                // Whoever asked for that has taken it back: who asks once more is heard.
                for attempt in &mut released.attempts {
                    attempt.hold_requested = false;
                }
                self.finish_event(*task)
            }
            Fact::CheckpointLost { attempt, .. } => self.checkpoint_lost(*attempt),
            Fact::AttemptSucceeded { attempt, result } => self.attempt_succeeded(at, *attempt, result),
            Fact::AttemptFailed { attempt, error } => self.attempt_failed(at, *attempt, error),
            Fact::AttemptKilled { attempt, why, bytes_in } => {
                self.release(at, *attempt, AttemptState::Killed)?;
                self.set_error(*attempt, why);
                self.count_kill(at, *attempt, *bytes_in)
            }
            Fact::MapOutputLost { attempt, unfetched, .. } => self.map_output_lost(*attempt, *unfetched),
            Fact::MapOutputMoved { attempt } => self.map_output_moved(*attempt),
            Fact::MapOutputCopied { attempt, tracker, bytes } => {
                self.map_output_copied(*attempt, *tracker, *bytes)
            }
            Fact::CheckpointCopied { attempt, tracker, bytes } => {
                self.checkpoint_copied(*attempt, *tracker, *bytes)
            }
            Fact::TrackerDraining { tracker, by, until } => self.tracker_draining(at, *tracker, by, *until),
            Fact::DrainCancelled { tracker, .. } => self.tracker_returned(*tracker),
            Fact::PauseRefused { attempt } => self.preemption_refused(*attempt, None),
            Fact::PreemptionRefused { attempt, refusals, .. } => {
                self.preemption_refused(*attempt, Some(*refusals))
            }
            Fact::TrackerForgotten { tracker, .. } => self.tracker_forgotten(*tracker),
            Fact::PreemptionDeadlineSet { attempt, until } => self.set_preemption_deadline(*attempt, *until),
            Fact::TrackerBlacklisted { job, tracker } => {
                self.job_mut(*job)?.blacklist.insert(*tracker);
                Ok(())
            }
        }
    }

    pub(super) fn job_mut(&mut self, id: JobId) -> Result<&mut Job, ApplyError> {
        self.jobs.get_mut(&id).ok_or_else(|| ApplyError(format!("{id} is not known")))
    }

    pub(super) fn task_mut(&mut self, id: TaskId) -> Result<&mut Task, ApplyError> {
        let task = self.job_mut(id.job)?.tasks[id.phase].get_mut(id.index as usize);
        task.ok_or_else(|| ApplyError(format!("{id} is not known")))
    }

    /// After a restart nothing has been heard yet, and everybody gets the full time to come back.
    fn await_trackers(&mut self, at: Time) {
        let saved_work = self.trackers.values().filter(|tracker| tracker.state != TrackerState::Lost);
        for id in saved_work.map(|tracker| tracker.id).collect::<Vec<_>>() {
            self.change_tracker(id, |tracker| {
                tracker.state = TrackerState::Awaited;
                tracker.last_seen = at;
            });
        }
    }

    fn set_state(&mut self, id: TrackerId, state: TrackerState) -> Result<(), ApplyError> {
        let changed = self.change_tracker(id, |tracker| tracker.state = state);
        changed.ok_or_else(|| ApplyError(format!("{id} is not known")))
    }

    fn tracker_joined(&mut self, at: Time, fact: &Fact) -> Result<(), ApplyError> {
        let Fact::TrackerJoined {
            tracker: id,
            name,
            incarnation,
            host,
            rack,
            shuffle_addr,
            logs_addr,
            slots,
        } = fact
        else {
            return apply_error("not a registration");
        };
        let host = HostId(self.hosts.acquire(host));
        let rack = RackId(self.racks.acquire(rack));
        let before = self.trackers.remove(id);
        if let Some(before) = &before {
            self.leave_host(before);
        }
        let counted = before.as_ref().map(Tracker::capacity).unwrap_or_default();
        let (running, outputs, checkpoints, drain) = before.map_or_else(
            || (PerPhase::default(), BTreeSet::new(), BTreeSet::new(), None),
            |before| (before.running, before.outputs, before.checkpoints, before.drain),
        );
        let tracker = Tracker {
            id: *id,
            name: name.clone(),
            incarnation: *incarnation,
            host,
            rack,
            shuffle_addr: shuffle_addr.clone(),
            logs_addr: logs_addr.clone(),
            slots: *slots,
            state: TrackerState::Live,
            running,
            outputs,
            checkpoints,
            unknown_attempts: PerPhase::default(),
            last_seen: at,
            drain,
        };
        self.trackers.insert(*id, tracker);
        self.next_tracker = self.next_tracker.max(id.0 + 1);
        self.count_slots(*id, counted);
        self.by_name.insert(name.clone(), *id);
        self.set_rack(host, Some(rack));
        self.trackers_on.entry(host).or_default().insert(*id);
        self.refresh_free(*id);
        Ok(())
    }

    fn tracker_forgotten(&mut self, id: TrackerId) -> Result<(), ApplyError> {
        if self.trackers.get(&id).is_none_or(|tracker| tracker.state != TrackerState::Lost) {
            return apply_error(format!("{id} is not a lost tracker"));
        }
        let Some(tracker) = self.trackers.remove(&id) else { return Ok(()) };
        if self.by_name.get(&tracker.name) == Some(&id) {
            self.by_name.remove(&tracker.name);
        }
        for phase in Phase::BOTH {
            self.free[phase].remove(&id);
        }
        self.draining.remove(&id);
        self.leave_host(&tracker);
        Ok(())
    }

    /// A tracker that was removed is no longer on its host. The host has the rack of a tracker that is left there.
    fn leave_host(&mut self, tracker: &Tracker) {
        let there = self.trackers_on.entry(tracker.host).or_default();
        there.remove(&tracker.id);
        let left = there.last().copied();
        if left.is_none() {
            self.trackers_on.remove(&tracker.host);
        }
        let rack = left.and_then(|id| self.trackers.get(&id)).map(|tracker| tracker.rack);
        self.set_rack(tracker.host, rack);
        self.hosts.release(tracker.host.0);
        self.racks.release(tracker.rack.0);
    }

    fn set_rack(&mut self, host: HostId, rack: Option<RackId>) {
        if let Some(before) = self.rack_of.remove(&host)
            && let Some(there) = self.hosts_in.get_mut(&before)
        {
            there.remove(&host);
            if there.is_empty() {
                self.hosts_in.remove(&before);
            }
        }
        if let Some(rack) = rack {
            self.rack_of.insert(host, rack);
            self.hosts_in.entry(rack).or_default().insert(host);
        }
    }

    fn job_submitted(
        &mut self,
        at: Time,
        id: JobId,
        request: RequestId,
        spec: &Arc<JobSpec>,
    ) -> Result<(), ApplyError> {
        if self.jobs.contains_key(&id) {
            return apply_error(format!("{id} is there already"));
        }
        let id_of = |phase, index| TaskId { job: id, phase, index };
        let mut maps = Vec::with_capacity(spec.splits.len());
        for (index, split) in spec.splits.iter().enumerate() {
            let mut hosts: Vec<HostId> = Vec::with_capacity(split.hosts.len());
            for host in &split.hosts {
                let host = HostId(self.hosts.acquire(host));
                if hosts.contains(&host) {
                    self.hosts.release(host.0);
                } else {
                    hosts.push(host);
                }
            }
            let index = index as u32;
            maps.push(Task::new(id_of(Phase::Map, index), index, split.start, split.end, hosts));
        }
        let reduces = (0..spec.reduces)
            .map(|index| Task::new(id_of(Phase::Reduce, index), index, 0, 0, Vec::new()))
            .collect();
        let mut job = Job {
            id,
            request,
            spec: spec.clone(),
            state: JobState::Running,
            submitted: at,
            first_launch: None,
            maps_done: None,
            ended: None,
            tasks: PerPhase { map: maps, reduce: reduces },
            pending: PerPhase::default(),
            running: PerPhase::default(),
            succeeded: PerPhase::default(),
            task_time: PerPhase::default(),
            bytes_mapped: 0,
            reduce_times: (Span(0), 0),
            counters: std::collections::BTreeMap::new(),
            preemption: Preemption::default(),
            failures: std::collections::BTreeMap::new(),
            blacklist: BTreeSet::new(),
            map_events: Vec::new(),
            stragglers: PerPhase::default(),
            extra_trackers: BTreeSet::new(),
        };
        for phase in Phase::BOTH {
            for task in &job.tasks[phase] {
                job.pending[phase].insert(task.id.index, &task.hosts);
            }
        }
        self.jobs.insert(id, job);
        self.active.insert(id);
        self.by_request.insert(request, id);
        self.next_job = self.next_job.max(id.0);
        Ok(())
    }

    fn set_job_state(&mut self, id: JobId, state: JobState) -> Result<(), ApplyError> {
        let job = self.job_mut(id)?;
        job.state = state;
        for phase in Phase::BOTH {
            job.pending[phase].clear();
        }
        self.active.remove(&id);
        Ok(())
    }

    fn job_ended(&mut self, at: Time, id: JobId, outcome: &JobOutcome) -> Result<(), ApplyError> {
        self.set_job_state(id, JobState::Ended(outcome.clone()))?;
        let job = self.job_mut(id)?;
        job.ended = Some(at);
        let live: Vec<AttemptId> =
            Phase::BOTH.into_iter().flat_map(|phase| job.running[phase].iter().copied()).collect();
        for attempt in live {
            self.mark_stopping(at, attempt, None)?;
        }
        let job = self.job_mut(id)?;
        let outputs: Vec<(TrackerId, AttemptId)> = job
            .tasks
            .map
            .iter()
            .filter_map(Task::winner)
            .map(|attempt| (attempt.output_on, attempt.id))
            .collect();
        job.tasks.reduce.iter_mut().for_each(|task| task.on_hold = false);
        let checkpoints: Vec<Checkpoint> =
            job.tasks.reduce.iter().filter_map(|task| task.checkpoint).collect();
        for (tracker, attempt) in outputs {
            if let Some(tracker) = self.trackers.get_mut(&tracker) {
                tracker.outputs.remove(&attempt);
            }
        }
        for checkpoint in checkpoints {
            self.forget_checkpoint(checkpoint);
        }
        Ok(())
    }

    fn job_forgotten(&mut self, id: JobId) -> Result<(), ApplyError> {
        let Some(job) = self.jobs.remove(&id) else { return apply_error(format!("{id} is not known")) };
        self.by_request.remove(&job.request);
        self.active.remove(&id);
        // Tasks that came of a split share the hosts of the task that was split.
        for host in job.tasks.map[..job.spec.splits.len()].iter().flat_map(|task| &task.hosts) {
            self.hosts.release(host.0);
        }
        Ok(())
    }

    fn attempt_launched(&mut self, at: Time, fact: &Fact) -> Result<(), ApplyError> {
        let Fact::AttemptLaunched { attempt: id, tracker: on, speculative, from, why } = fact else {
            return apply_error("not a launch");
        };
        let (id, on, speculative, from) = (*id, *on, *speculative, *from);
        if !self.trackers.contains_key(&on) {
            return apply_error(format!("{on} is not known"));
        }
        let task = self.task_mut(id.task)?;
        if task.attempts.len() != id.number as usize {
            return apply_error(format!("{id} is not the next attempt"));
        }
        let checkpoint = task.checkpoint.filter(|checkpoint| Some(checkpoint.attempt) == from);
        if checkpoint.is_some() != from.is_some() {
            return apply_error(format!("{id} resumes from a checkpoint that does not exist"));
        }
        // Not where its state lies: that may have been moved since.
        let paused_on = from.and_then(|from| task.attempts.get(from.number as usize)).map(|at| at.tracker);
        let stage = match id.phase() {
            Phase::Map => Stage::Map,
            Phase::Reduce => checkpoint.map_or(Stage::Shuffle, |checkpoint| checkpoint.stage),
        };
        task.attempts.push(Attempt {
            id,
            tracker: on,
            end: task.end,
            from,
            checkpoint_on: checkpoint.map(|checkpoint| checkpoint.tracker),
            prior_work: checkpoint.map(|checkpoint| checkpoint.work).unwrap_or_default(),
            output_on: on,
            state: AttemptState::Launching,
            launched: at,
            last_progress: at,
            ended: None,
            last_reported: at,
            preempt_request: None,
            hold_requested: false,
            preempt_deadline: None,
            refusals: 0,
            work_done: None,
            fault: None,
            why: why.clone(),
            error: None,
            progress: Progress { stage, ..Progress::default() },
            speculative,
            result: None,
        });
        let job = self.job_mut(id.job())?;
        job.running[id.phase()].insert(id);
        job.first_launch.get_or_insert(at);
        if checkpoint.is_some() {
            job.preemption.resumes += 1;
            job.preemption.migrations += u32::from(paused_on != Some(on));
        }
        if let Some(tracker) = self.trackers.get_mut(&on) {
            tracker.running[id.phase()].insert(id);
        }
        self.finish_event(id.task)?;
        self.refresh_free(on);
        Ok(())
    }

    /// An attempt is to stop: it keeps its slot until it is gone, but its task need not wait for that.
    pub(super) fn mark_stopping(
        &mut self,
        at: Time,
        id: AttemptId,
        fault: Option<&String>,
    ) -> Result<(), ApplyError> {
        if let Some(attempt) = self.attempt_mut(id).filter(|attempt| attempt.state.is_viable()) {
            attempt.state = AttemptState::Stopping;
            attempt.last_reported = at;
            attempt.fault = fault.cloned();
        }
        self.finish_event(id.task)
    }

    /// An attempt ends and its slot is free.
    pub(super) fn release(&mut self, at: Time, id: AttemptId, state: AttemptState) -> Result<(), ApplyError> {
        let Some(attempt) = self.attempt_mut(id) else { return apply_error(format!("{id} is not known")) };
        if !attempt.state.holds_slot() {
            return apply_error(format!("{id} holds no slot"));
        }
        attempt.state = state;
        attempt.ended = Some(at);
        let on = attempt.tracker;
        self.job_mut(id.job())?.running[id.phase()].remove(&id);
        if let Some(tracker) = self.trackers.get_mut(&on) {
            tracker.running[id.phase()].remove(&id);
        }
        self.refresh_free(on);
        self.finish_event(id.task)
    }

    pub(super) fn attempt_succeeded(
        &mut self,
        at: Time,
        id: AttemptId,
        result: &AttemptResult,
    ) -> Result<(), ApplyError> {
        if self.task_mut(id.task)?.is_done() {
            return apply_error(format!("{} is done already", id.task));
        }
        self.release(at, id, AttemptState::Succeeded)?;
        let task = self.task_mut(id.task)?;
        task.done_by = Some(id.number);
        task.on_hold = false;
        let checkpoint = task.checkpoint.take();
        let attempt = &mut task.attempts[id.number as usize];
        attempt.result = Some(result.clone());
        attempt.progress.done = 1.0;
        let duplicates: Vec<AttemptId> = task.viable().map(|attempt| attempt.id).collect();
        let attempt = &task.attempts[id.number as usize];
        let (on, prior_work) = (attempt.tracker, attempt.prior_work);
        // One that continues from another's state took as long as both.
        let time = |attempt: &Attempt| attempt.ended.unwrap_or(at).since(attempt.launched).0;
        let task_time = Span(task.chain(id.number).map(time).sum());
        let bytes = task.bytes();
        // What it took up has not been for nothing, and whatever else was checkpointed has.
        self.update_saved_work(id.task, prior_work)?;
        let job = self.job_mut(id.job())?;
        job.succeeded[id.phase()] += 1;
        job.task_time[id.phase()].0 += task_time.0;
        if let Some(time) = job.reduce_time(id, at) {
            job.reduce_times = (job.reduce_times.0 + time, job.reduce_times.1 + 1);
        }
        for (name, value) in &result.counters {
            let sum = job.counters.entry(name.clone()).or_default();
            *sum = sum.wrapping_add(*value);
        }
        if id.phase() == Phase::Map {
            job.bytes_mapped += bytes;
            if job.is_done(Phase::Map) {
                job.maps_done = Some(at);
            }
            if job.spec.reduces > 0 {
                job.map_events.push(MapEvent::Available(id, on));
                if let Some(tracker) = self.trackers.get_mut(&on) {
                    tracker.outputs.insert(id);
                }
            }
        }
        for twin in duplicates {
            self.mark_stopping(at, twin, None)?;
        }
        if let Some(checkpoint) = checkpoint {
            self.forget_checkpoint(checkpoint);
        }
        self.finish_event(id.task)
    }

    fn set_error(&mut self, id: AttemptId, error: &str) {
        if let Some(attempt) = self.attempt_mut(id) {
            attempt.error = Some(error.to_owned());
        }
    }

    fn attempt_failed(&mut self, at: Time, id: AttemptId, error: &str) -> Result<(), ApplyError> {
        self.release(at, id, AttemptState::Failed)?;
        self.set_error(id, error);
        let task = self.task_mut(id.task)?;
        task.failures += 1;
        let on = task.attempts[id.number as usize].tracker;
        task.avoided_trackers.insert(on);
        *self.job_mut(id.job())?.failures.entry(on).or_default() += 1;
        Ok(())
    }

    /// A task waits exactly when its job runs, it is not done, nobody holds it, and no attempt of it tries.
    pub(super) fn finish_event(&mut self, id: TaskId) -> Result<(), ApplyError> {
        let job = self.job_mut(id.job)?;
        let Some(task) = job.tasks[id.phase].get(id.index as usize) else {
            return apply_error(format!("{id} is not known"));
        };
        if job.state == JobState::Running && task.waits() {
            job.pending[id.phase].insert(id.index, &task.hosts);
        } else {
            job.pending[id.phase].remove(id.index, &task.hosts);
        }
        Ok(())
    }
}
