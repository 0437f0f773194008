//! Applies facts, both new ones and those replayed from the journal. The modules `outputs` and
//! `preempt` apply the facts about map outputs, drains and preemption.
//!
//! A fact that contradicts the state (an attempt of an unknown job, for example) can only come from
//! a damaged journal or from the journal of another cluster. It is refused, and nothing changes.

use super::Durable;
use crate::{
    fact::Fact,
    ids::{AttemptId, HostId, JobId, RackId, RequestId, TaskId, TrackerId},
    job::{Job, JobOutcome, JobSpec, JobState, MapEvent, Preemption},
    phase::{PerPhase, Phase},
    task::{Attempt, AttemptResult, AttemptState, Checkpoint, Stage, Task},
    time::{Span, Time},
    tracker::{Tracker, TrackerState},
};
use std::{collections::BTreeSet, sync::Arc};

/// A fact that contradicts the facts before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("inconsistent fact: {0}")]
pub struct ApplyError(pub String);

pub(super) fn apply_error<T>(what: impl std::fmt::Display) -> Result<T, ApplyError> {
    Err(ApplyError(what.to_string()))
}

impl Durable {
    /// Applies one fact.
    pub(crate) fn apply(&mut self, at: Time, fact: &Fact) -> Result<(), ApplyError> {
        match fact {
            Fact::JobTrackerStarted { epoch, .. } => {
                self.epoch = *epoch;
                self.await_trackers();
                Ok(())
            }
            Fact::IdsSkipped { epoch, job } => {
                self.epoch = self.epoch.max(*epoch);
                self.newest_job = self.newest_job.max(*job);
                Ok(())
            }
            Fact::TrackerJoined { .. } => self.tracker_joined(fact),
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
            Fact::AttemptPaused { attempt, stage, bytes, bytes_in, interrupted } => {
                self.task_mut(attempt.task)?.interruptions += u32::from(*interrupted);
                self.attempt_paused(at, *attempt, (*stage, *bytes), *bytes_in)
            }
            Fact::TaskReleased { task } => {
                let released = self.task_mut(*task)?;
                released.on_hold = false;
                // Cleared, so that a later request to pause with a hold counts as a new request.
                for attempt in &mut released.attempts {
                    attempt.hold_requested = false;
                }
                self.update_pending(*task)
            }
            Fact::CheckpointLost { attempt, .. } => self.checkpoint_lost(*attempt),
            Fact::AttemptSucceeded { attempt, result } => self.attempt_succeeded(at, *attempt, result),
            Fact::AttemptFailed { attempt, error } => self.attempt_failed(at, *attempt, error),
            Fact::AttemptKilled { attempt, why, bytes_in, interrupted } => {
                if *interrupted {
                    self.attempt_interrupted(*attempt)?;
                }
                self.release_slot(at, *attempt, AttemptState::Killed)?;
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
            Fact::DrainCancelled { tracker, .. } => self.drain_cancelled(*tracker),
            Fact::PreemptionRefused { attempt, refusals, .. } => self.preemption_refused(*attempt, *refusals),
            Fact::TrackerForgotten { tracker, .. } => self.tracker_forgotten(*tracker),
            Fact::PreemptionDeadlineSet { attempt, until } => self.set_preemption_deadline(*attempt, *until),
            Fact::TrackerBlacklisted { job, tracker } => {
                self.job_mut(*job)?.blacklist.insert(*tracker);
                Ok(())
            }
            Fact::RequestAnswered { request, refusal } => {
                self.answers.add(at, *request, refusal.clone());
                Ok(())
            }
        }
    }

    pub(super) fn job_mut(&mut self, id: JobId) -> Result<&mut Job, ApplyError> {
        match self.open_jobs.get_mut(&id) {
            Some(job) => Ok(job),
            None => self.ended_jobs.get_mut(&id).ok_or_else(|| ApplyError(format!("{id} is not known"))),
        }
    }

    pub(super) fn task_mut(&mut self, id: TaskId) -> Result<&mut Task, ApplyError> {
        let task = self.job_mut(id.job)?.tasks[id.phase].get_mut(id.index as usize);
        task.ok_or_else(|| ApplyError(format!("{id} is not known")))
    }

    fn await_trackers(&mut self) {
        let not_lost = self.trackers.values().filter(|tracker| tracker.state != TrackerState::Lost);
        for id in not_lost.map(|tracker| tracker.id).collect::<Vec<_>>() {
            self.change_tracker(id, |tracker| tracker.state = TrackerState::Awaited);
        }
    }

    fn set_state(&mut self, id: TrackerId, state: TrackerState) -> Result<(), ApplyError> {
        let changed = self.change_tracker(id, |tracker| tracker.state = state);
        changed.ok_or_else(|| ApplyError(format!("{id} is not known")))
    }

    fn tracker_joined(&mut self, fact: &Fact) -> Result<(), ApplyError> {
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
            return apply_error("the fact is not a registration");
        };
        let host = HostId(self.hosts.acquire(host));
        let rack = RackId(self.racks.acquire(rack));
        let before = self.trackers.remove(id);
        if let Some(before) = &before {
            self.remove_from_host(before);
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
            drain,
        };
        self.trackers.insert(*id, tracker);
        self.next_tracker = self.next_tracker.max(id.0 + 1);
        self.update_slots(*id, counted);
        self.tracker_by_name.insert(name.clone(), *id);
        self.set_rack(host, Some(rack));
        self.trackers_on.entry(host).or_default().insert(*id);
        self.update_unassigned_trackers(*id);
        Ok(())
    }

    fn tracker_forgotten(&mut self, id: TrackerId) -> Result<(), ApplyError> {
        if self.trackers.get(&id).is_none_or(|tracker| tracker.state != TrackerState::Lost) {
            return apply_error(format!("{id} is not a lost tracker"));
        }
        let Some(tracker) = self.trackers.remove(&id) else { return Ok(()) };
        if self.tracker_by_name.get(&tracker.name) == Some(&id) {
            self.tracker_by_name.remove(&tracker.name);
        }
        for phase in Phase::BOTH {
            self.unassigned_trackers[phase].remove(&id);
        }
        self.draining_trackers.remove(&id);
        self.remove_from_host(&tracker);
        Ok(())
    }

    /// Removes a tracker from its host. The host gets the rack of a tracker that remains there.
    fn remove_from_host(&mut self, tracker: &Tracker) {
        let there = self.trackers_on.entry(tracker.host).or_default();
        there.remove(&tracker.id);
        let remaining = there.last().copied();
        if remaining.is_none() {
            self.trackers_on.remove(&tracker.host);
        }
        let rack = remaining.and_then(|id| self.trackers.get(&id)).map(|tracker| tracker.rack);
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
        if self.job(id).is_some() {
            return apply_error(format!("{id} already exists"));
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
        };
        for phase in Phase::BOTH {
            for task in &job.tasks[phase] {
                job.pending[phase].insert(task.id.index, &task.hosts);
            }
        }
        self.open_jobs.insert(id, job);
        self.job_by_request.insert(request, id);
        self.newest_job = self.newest_job.max(id.0);
        Ok(())
    }

    fn set_job_state(&mut self, id: JobId, state: JobState) -> Result<(), ApplyError> {
        let mut job = self.remove_job(id)?;
        job.state = state;
        for phase in Phase::BOTH {
            job.pending[phase].clear();
        }
        let jobs = if job.has_ended() { &mut self.ended_jobs } else { &mut self.open_jobs };
        jobs.insert(id, job);
        Ok(())
    }

    fn remove_job(&mut self, id: JobId) -> Result<Job, ApplyError> {
        let removed = self.open_jobs.remove(&id).or_else(|| self.ended_jobs.remove(&id));
        removed.ok_or_else(|| ApplyError(format!("{id} is not known")))
    }

    fn job_ended(&mut self, at: Time, id: JobId, outcome: &JobOutcome) -> Result<(), ApplyError> {
        self.set_job_state(id, JobState::Ended(outcome.clone()))?;
        let job = self.job_mut(id)?;
        job.ended = Some(at);
        let live: Vec<AttemptId> =
            Phase::BOTH.into_iter().flat_map(|phase| job.running[phase].iter().copied()).collect();
        for attempt in live {
            self.mark_killing(at, attempt, None)?;
        }
        let job = self.job_mut(id)?;
        let outputs: Vec<(TrackerId, AttemptId)> = job
            .tasks
            .map
            .iter()
            .filter_map(Task::winning_attempt)
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
        let job = self.remove_job(id)?;
        self.job_by_request.remove(&job.request);
        // Only the maps as submitted hold references to host names. The remainder of a split map
        // shares those of the task that was split.
        for host in job.tasks.map[..job.spec.splits.len()].iter().flat_map(|task| &task.hosts) {
            self.hosts.release(host.0);
        }
        Ok(())
    }

    fn attempt_launched(&mut self, at: Time, fact: &Fact) -> Result<(), ApplyError> {
        let Fact::AttemptLaunched { attempt: id, tracker: on, speculative, resumed_from, why } = fact else {
            return apply_error("the fact is not a launch");
        };
        let (id, on, speculative, resumed_from) = (*id, *on, *speculative, *resumed_from);
        if !self.trackers.contains_key(&on) {
            return apply_error(format!("{on} is not known"));
        }
        let task = self.task_mut(id.task)?;
        if task.attempts.len() != id.number as usize {
            return apply_error(format!("{id} does not have the next attempt number of its task"));
        }
        let checkpoint = task.checkpoint.filter(|checkpoint| Some(checkpoint.attempt) == resumed_from);
        if checkpoint.is_some() != resumed_from.is_some() {
            return apply_error(format!("{id} resumes from a checkpoint that does not exist"));
        }
        // The resume is a migration if it is on a different tracker than the pause, even if the
        // checkpoint has been copied to that tracker since.
        let paused = resumed_from.and_then(|paused| task.attempts.get(paused.number as usize));
        let paused_on = paused.map(|attempt| attempt.tracker);
        let stage = match id.phase() {
            Phase::Map => Stage::Map,
            Phase::Reduce => checkpoint.map_or(Stage::Shuffle, |checkpoint| checkpoint.stage),
        };
        task.attempts.push(Attempt {
            id,
            tracker: on,
            end: task.end,
            resumed_from,
            checkpoint_on: checkpoint.map(|checkpoint| checkpoint.tracker),
            prior_work: checkpoint.map(|checkpoint| checkpoint.work).unwrap_or_default(),
            output_on: on,
            state: AttemptState::Running,
            launched: at,
            last_order: at,
            ended: None,
            preempt_request: None,
            hold_requested: false,
            preempt_deadline: None,
            refusals: 0,
            work_done: None,
            fault: None,
            why: why.clone(),
            error: None,
            stage,
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
        self.update_pending(id.task)?;
        self.update_unassigned_trackers(on);
        Ok(())
    }

    /// Marks an attempt as being killed: it holds its slot until its process has ended, but its
    /// task may be launched again before that.
    pub(super) fn mark_killing(
        &mut self,
        at: Time,
        id: AttemptId,
        fault: Option<&String>,
    ) -> Result<(), ApplyError> {
        if let Some(attempt) = self.attempt_mut(id).filter(|attempt| attempt.state.is_viable()) {
            attempt.state = AttemptState::Killing;
            attempt.last_order = at;
            attempt.fault = fault.cloned();
        }
        self.update_pending(id.task)
    }

    /// Ends an attempt and frees its slot.
    pub(super) fn release_slot(
        &mut self,
        at: Time,
        id: AttemptId,
        state: AttemptState,
    ) -> Result<(), ApplyError> {
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
        self.update_unassigned_trackers(on);
        self.update_pending(id.task)
    }

    pub(super) fn attempt_succeeded(
        &mut self,
        at: Time,
        id: AttemptId,
        result: &AttemptResult,
    ) -> Result<(), ApplyError> {
        if self.task_mut(id.task)?.is_done() {
            return apply_error(format!("{} is already done", id.task));
        }
        self.release_slot(at, id, AttemptState::Succeeded)?;
        let task = self.task_mut(id.task)?;
        task.done_by = Some(id.number);
        task.on_hold = false;
        let checkpoint = task.checkpoint.take();
        let attempt = &mut task.attempts[id.number as usize];
        attempt.result = Some(result.clone());
        let others: Vec<AttemptId> = task.viable_attempts().map(|attempt| attempt.id).collect();
        let attempt = &task.attempts[id.number as usize];
        let (on, prior_work) = (attempt.tracker, attempt.prior_work);
        // The duration of a task that was paused is the sum over the attempts that resumed from
        // each other.
        let time = |attempt: &Attempt| attempt.ended.unwrap_or(at).since(attempt.launched).0;
        let task_time = Span(task.resume_chain(id.number).map(time).sum());
        let bytes = task.bytes();
        // Only the work in the checkpoint that this attempt resumed from is saved. Work in other
        // checkpoints of the task is lost.
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
        for other in others {
            self.mark_killing(at, other, None)?;
        }
        if let Some(checkpoint) = checkpoint {
            self.forget_checkpoint(checkpoint);
        }
        self.update_pending(id.task)
    }

    /// Counts an interruption of an attempt that is killed. A task that is interrupted often avoids
    /// the trackers where this happens.
    fn attempt_interrupted(&mut self, id: AttemptId) -> Result<(), ApplyError> {
        let Some(on) = self.attempt(id).map(|attempt| attempt.tracker) else {
            return apply_error(format!("{id} is not known"));
        };
        let task = self.task_mut(id.task)?;
        task.interruptions += 1;
        if task.is_interrupted_often() {
            task.avoided_trackers.insert(on);
        }
        Ok(())
    }

    fn set_error(&mut self, id: AttemptId, error: &str) {
        if let Some(attempt) = self.attempt_mut(id) {
            attempt.error = Some(error.to_owned());
        }
    }

    fn attempt_failed(&mut self, at: Time, id: AttemptId, error: &str) -> Result<(), ApplyError> {
        self.release_slot(at, id, AttemptState::Failed)?;
        self.set_error(id, error);
        let task = self.task_mut(id.task)?;
        task.failures += 1;
        let on = task.attempts[id.number as usize].tracker;
        task.avoided_trackers.insert(on);
        *self.job_mut(id.job())?.failures.entry(on).or_default() += 1;
        self.update_pending(id.task)
    }

    /// Updates the list of pending tasks. A task is pending if its job is running, it is not done
    /// and not on hold, it has no viable attempt, and it may be launched again.
    pub(super) fn update_pending(&mut self, id: TaskId) -> Result<(), ApplyError> {
        let job = self.job_mut(id.job)?;
        let Some(task) = job.tasks[id.phase].get(id.index as usize) else {
            return apply_error(format!("{id} is not known"));
        };
        if job.state == JobState::Running && task.is_pending(job.spec.attempts_max) {
            job.pending[id.phase].insert(id.index, &task.hosts);
        } else {
            job.pending[id.phase].remove(id.index, &task.hosts);
        }
        Ok(())
    }
}
