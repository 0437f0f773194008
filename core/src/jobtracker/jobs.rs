//! Submits, commits, kills and ends jobs.

use super::JobTracker;
use crate::{
    event::{Effect, Order, Reply},
    fact::Fact,
    ids::{AttemptId, JobId, RequestId, TrackerId},
    job::{Job, JobOutcome, JobSpec, JobState},
    output::Leftovers,
    phase::Phase,
    task::PreemptKind,
    time::Time,
    tracker::TrackerState,
};
use std::{collections::BTreeSet, sync::Arc};

impl JobTracker {
    pub(super) fn submit_job(
        &mut self,
        now: Time,
        request: RequestId,
        spec: Arc<JobSpec>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(job) = self.cluster.job_of_request(request) {
            return Self::reply(request, Reply::Submitted(job), out);
        }
        if let Err(why) = self.check_job(request, &spec) {
            return Self::reply(request, Reply::JobRefused(why), out);
        }
        let job = JobId(self.cluster.newest_job().0 + 1);
        self.record(now, Fact::JobSubmitted { job, request, spec }, out);
        Self::reply(request, Reply::Submitted(job), out);
        self.commit_if_done(now, job, out);
        self.forget_old_jobs(now, out);
    }

    pub(super) fn kill_job(
        &mut self,
        now: Time,
        job: JobId,
        by: &str,
        out: &mut Vec<Effect>,
    ) -> Result<(), String> {
        match self.cluster.job(job).map(|job| job.state.clone()) {
            None => Err(format!("there is no {job}: `mrctl jobs` lists the jobs")),
            Some(JobState::Ended(_)) => Ok(()),
            Some(JobState::Committing) => Err(format!("{job} is committing its output: too late to kill it")),
            Some(JobState::Running) => {
                self.end_job(now, job, JobOutcome::Killed(format!("by {by}")), out);
                Ok(())
            }
        }
    }

    /// Commits the output of a job if all its tasks are done.
    pub(super) fn commit_if_done(&mut self, now: Time, id: JobId, out: &mut Vec<Effect>) {
        let Some(job) = self.cluster.job(id).filter(|job| job.is_running()) else { return };
        if job.is_done(Phase::Map) && job.is_done(Phase::Reduce) {
            self.record(now, Fact::JobCommitting { job: id }, out);
            out.push(Effect::CommitJob { job: id });
        }
    }

    /// Ends a job whose output was committed or could not be. `repeated` says that the commit was
    /// carried out before: the journal had lost the record that the job ended, so the job ran
    /// again. Its first output stays. The pieces of the second run are deleted, and the output
    /// folder if it is empty then, because the user may have moved the first output.
    pub(super) fn commit_result(
        &mut self,
        now: Time,
        id: JobId,
        repeated: bool,
        result: Result<(), String>,
        out: &mut Vec<Effect>,
    ) {
        let Some(job) = self.cluster.job(id).filter(|job| job.state == JobState::Committing) else { return };
        let leftovers = repeated.then(|| Leftovers::of_job(job, true));
        let outcome = match result {
            Ok(()) => JobOutcome::Succeeded,
            Err(why) => JobOutcome::Failed(format!("its output could not be committed: {why}")),
        };
        self.end_job(now, id, outcome, out);
        out.extend(leftovers.map(|leftovers| Effect::DeleteLeftovers { job: id, leftovers }));
    }

    /// Ends a job: orders trackers to kill its running attempts and to delete its files.
    pub(super) fn end_job(&mut self, now: Time, id: JobId, outcome: JobOutcome, out: &mut Vec<Effect>) {
        let why = format!("{id} {outcome}");
        let viable = self.viable_attempts(id);
        self.record(now, Fact::JobEnded { job: id, outcome }, out);
        self.lost_unneeded_outputs.remove(&id);
        for attempt in viable {
            self.queue_kill_order(attempt, &why);
        }
        self.jobs_with_ended_attempts.remove(&id);
        if let Some(job) = self.cluster.job(id) {
            out.push(Effect::DeleteLeftovers { job: id, leftovers: Leftovers::of_job(job, false) });
        }
        for tracker in self.trackers_used(id) {
            self.queue_order(tracker, Order::Clean(id));
        }
        self.fetch_failures.retain(|map, _| map.job() != id);
        self.trackers_reported_alone.retain(|reduce, _| reduce.job() != id);
        self.unreachable_counts.retain(|attempt, _| attempt.job() != id);
        self.outboxes.values_mut().for_each(|outbox| {
            outbox.map_events_sent.remove(&id);
        });
    }

    /// Deletes the leftovers of ended jobs again, if attempts that outlived their job have ended in
    /// this event. These attempts may have written files since the job ended.
    pub(super) fn delete_late_leftovers(&mut self, out: &mut Vec<Effect>) {
        for id in std::mem::take(&mut self.jobs_with_ended_attempts) {
            if let Some(job) = self.cluster.job(id).filter(|job| job.has_ended()) {
                out.push(Effect::DeleteLeftovers { job: id, leftovers: Leftovers::of_job(job, true) });
            }
        }
    }

    fn viable_attempts(&self, id: JobId) -> Vec<AttemptId> {
        let Some(job) = self.cluster.job(id) else { return Vec::new() };
        let running = Phase::BOTH.into_iter().flat_map(|phase| job.running[phase].iter().copied());
        running.filter(|id| self.cluster.attempt(*id).is_some_and(|at| at.state.is_viable())).collect()
    }

    fn trackers_used(&self, id: JobId) -> BTreeSet<TrackerId> {
        let Some(job) = self.cluster.job(id) else { return BTreeSet::new() };
        let tasks = Phase::BOTH.into_iter().flat_map(|phase| &job.tasks[phase]);
        let ran = tasks.flat_map(|task| &task.attempts).map(|attempt| attempt.tracker);
        let used = ran.chain(self.cluster.volatile.extra_trackers(id));
        // A lost tracker gets no order: it reports its files when it registers again.
        used.filter(|id| self.cluster.tracker(*id).is_some_and(|tracker| tracker.state != TrackerState::Lost))
            .collect()
    }

    /// Orders a tracker to kill an attempt. The slot is free when the tracker reports the end of
    /// the attempt.
    pub(super) fn queue_kill_order(&mut self, id: AttemptId, why: &str) {
        if let Some(tracker) = self.cluster.attempt(id).map(|attempt| attempt.tracker) {
            self.queue_order(
                tracker,
                Order::Preempt { attempt: id, kind: PreemptKind::Kill, why: why.to_owned() },
            );
        }
    }

    /// Repeats commits that were in progress before a restart. Commits are idempotent.
    pub(super) fn resume_jobs(&mut self, now: Time, out: &mut Vec<Effect>) {
        let committing = self.cluster.open_jobs().filter(|job| job.state == JobState::Committing);
        let committing: Vec<JobId> = committing.map(|job| job.id).collect();
        out.extend(committing.into_iter().map(|job| Effect::CommitJob { job }));
        let active: Vec<JobId> = self.cluster.active_jobs().map(|job| job.id).collect();
        for job in active {
            self.commit_if_done(now, job, out);
        }
    }

    /// Removes old finished jobs from memory: all but the newest `jobs_kept`, and then the largest
    /// jobs until at most `tasks_kept` tasks remain. The largest jobs are removed first, so that
    /// more jobs can stay. The job that ended last always stays, because users are likely to ask
    /// for it. A job with attempts that have not ended stays until they have.
    fn forget_old_jobs(&mut self, now: Time, out: &mut Vec<Effect>) {
        let is_idle = |job: &&Job| Phase::BOTH.into_iter().all(|phase| job.running[phase].is_empty());
        let newest = self.cluster.ended_jobs().max_by_key(|job| (job.ended, job.id));
        let Some(newest) = newest.map(|job| job.id) else { return };
        let over = self.cluster.ended_jobs().filter(|job| job.id != newest).filter(is_idle);
        let mut over: Vec<(JobId, usize)> =
            over.map(|job| (job.id, job.tasks.map.len() + job.tasks.reduce.len())).collect();
        let mut forgotten: Vec<JobId> = Vec::new();
        let too_many = (over.len() + 1).saturating_sub(self.config.jobs_kept.max(1));
        forgotten.extend(over.drain(..too_many).map(|(job, _)| job));
        let mut tasks: usize = over.iter().map(|(_, tasks)| tasks).sum();
        if tasks > self.config.tasks_kept {
            over.sort_by_key(|(job, tasks)| (std::cmp::Reverse(*tasks), *job));
        }
        for (job, its) in over {
            if tasks <= self.config.tasks_kept {
                break;
            }
            forgotten.push(job);
            tasks -= its;
        }
        for job in forgotten {
            self.record(now, Fact::JobForgotten { job }, out);
        }
    }
}
