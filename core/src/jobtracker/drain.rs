//! Draining of trackers. A draining tracker gets no new work, its attempts are preempted and
//! continue elsewhere, and other trackers copy the map outputs and checkpoints that jobs still
//! need.
//!
//! A copy belongs to the same attempt: reduces get the new address, and a paused reduce resumes
//! from the copy. A file that cannot be copied after several attempts is given up: the map runs
//! again, or the reduce starts over. Copies in progress are not durable. After a restart they are
//! ordered again, and a tracker that already has the copy reports it at once.

use super::JobTracker;
use crate::{
    cluster::Cluster,
    event::{Effect, Order},
    fact::Fact,
    ids::{AttemptId, JobId, TrackerId},
    phase::{PerPhase, Phase},
    task::PreemptKind,
    time::{Span, Time},
    tracker::{Drain, DrainCost, Tracker, TrackerState},
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of copies that one tracker is ordered to make at the same time. The tracker makes
/// them one after the other.
const COPIES_PER_TRACKER_MAX: usize = 4;
/// How often a copy is tried before the file is given up.
const COPY_ATTEMPTS_MAX: u32 = 3;

/// Copies in progress.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The tracker that was ordered to make each copy, by the attempt whose files are copied.
    targets: BTreeMap<AttemptId, TrackerId>,
    /// How often the files of an attempt could not be copied.
    failure_counts: BTreeMap<AttemptId, u32>,
    /// Whether anything has changed since the draining trackers were last checked.
    needs_recheck: bool,
}

impl Copies {
    /// Forgets the copies that a tracker was ordered to make.
    pub(super) fn forget(&mut self, to: TrackerId) {
        self.targets.retain(|_, on| *on != to);
    }

    /// Sets `needs_recheck` if a fact requires a new check. Facts about trackers that are not being
    /// drained do not.
    pub(super) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        if self.needs_recheck || cluster.draining_trackers().is_empty() {
            return;
        }
        self.needs_recheck = match fact {
            Fact::TrackerDraining { .. } | Fact::TrackerJoined { .. } => true,
            Fact::AttemptLaunched { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::MapSplit { attempt, .. }
            | Fact::AttemptPaused { attempt, .. } => {
                cluster.attempt(*attempt).is_some_and(|at| cluster.draining_trackers().contains(&at.tracker))
            }
            _ => false,
        };
    }
}

/// Trackers that can make copies, as (copies in progress, files, ID). The tracker with the fewest
/// copies in progress comes first, and among those the one with the fewest files.
struct CopyTargets(BTreeSet<(usize, usize, TrackerId)>);

impl CopyTargets {
    fn new(cluster: &Cluster, copies: &Copies) -> Self {
        let mut busy = BTreeMap::<TrackerId, usize>::new();
        for to in copies.targets.values() {
            *busy.entry(*to).or_default() += 1;
        }
        let targets = cluster.trackers().filter(|tracker| tracker.accepts_work());
        let load = |tracker: &Tracker| {
            let in_progress = busy.get(&tracker.id).copied().unwrap_or(0);
            (in_progress, tracker.outputs.len() + tracker.checkpoints.len(), tracker.id)
        };
        Self(targets.map(load).collect())
    }

    fn take_least_loaded(&mut self) -> Option<TrackerId> {
        let (in_progress, files, id) =
            *self.0.first().filter(|(in_progress, ..)| *in_progress < COPIES_PER_TRACKER_MAX)?;
        self.0.remove(&(in_progress, files, id));
        self.0.insert((in_progress + 1, files, id));
        Some(id)
    }
}

/// The progress of a drain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainStatus {
    /// The user who drains the tracker, the start time and the cost; `None` if the tracker is not
    /// being drained.
    pub drain: Option<(String, Time, DrainCost)>,
    /// Number of attempts that hold its slots.
    pub running: PerPhase<u32>,
    /// Number of map outputs that jobs still need and no other tracker has, and their total bytes.
    pub outputs: (u32, u64),
    /// Number of checkpoints of paused reduces that no other tracker has, and their total bytes.
    pub checkpoints: (u32, u64),
    /// Number of other trackers that accept work.
    pub others: u32,
}

impl DrainStatus {
    /// Returns whether the tracker runs nothing and has no file that a job needs.
    pub fn is_empty(&self) -> bool {
        let running = self.running.map + self.running.reduce;
        running + self.outputs.0 + self.checkpoints.0 == 0
    }
}

impl JobTracker {
    /// Handles the request of a user to drain a tracker, or to cancel the drain.
    pub(super) fn drain_for_user(
        &mut self,
        now: Time,
        id: TrackerId,
        within: Option<Span>,
        by: String,
        out: &mut Vec<Effect>,
    ) -> Result<(), String> {
        if let Some(why) = self.refusal_of_drain(id, within.is_some()) {
            return Err(why);
        }
        if let Some(within) = within {
            self.record(now, Fact::TrackerDraining { tracker: id, by, until: now + within }, out);
        } else if self.cluster.draining_trackers().contains(&id) {
            self.record(now, Fact::DrainCancelled { tracker: id, by }, out);
        }
        Ok(())
    }

    fn refusal_of_drain(&self, id: TrackerId, begins: bool) -> Option<String> {
        let Some(tracker) = self.cluster.tracker(id) else {
            return Some(format!("there is no tracker {id}"));
        };
        let name = &tracker.name;
        if begins && tracker.state == TrackerState::Lost {
            return Some(format!(
                "{name} is lost and its tasks run elsewhere: start its TaskTracker again before you drain it"
            ));
        }
        // Cancelling is always allowed, and a repeated request only changes the deadline.
        if !begins || tracker.drain.is_some() {
            return None;
        }
        let others: Vec<&Tracker> = self.cluster.trackers().filter(|other| other.id != id).collect();
        if others.iter().any(|other| other.accepts_work()) {
            return None;
        }
        let expected = others.iter().any(|other| self.cluster.unreachable_trackers().contains(&other.id));
        let advice = if expected {
            "other trackers are suspect: try again soon"
        } else {
            "start more, or end another drain with `mrctl drain NODE --cancel`"
        };
        Some(format!("cannot drain {name}, because no other tracker accepts work: {advice}"))
    }

    /// Returns the progress of a drain. For a tracker that is not being drained, returns what a
    /// drain would have to do.
    pub fn drain_status(&self, id: TrackerId) -> DrainStatus {
        let Some(tracker) = self.cluster.tracker(id) else { return DrainStatus::default() };
        let running =
            |phase: Phase| tracker.running[phase].len() as u32 + self.cluster.unknown_attempts(id, phase);
        let bytes_out = |attempt: &AttemptId| {
            self.cluster
                .attempt(*attempt)
                .and_then(|attempt| attempt.result.as_ref())
                .map_or(0, |r| r.bytes_out)
        };
        let checkpoint = |attempt: &AttemptId| {
            self.cluster
                .task(attempt.task)
                .and_then(|task| task.checkpoint)
                .map_or(0, |checkpoint| checkpoint.bytes)
        };
        let outputs = self.needed_outputs(tracker);
        let summary = |drain: &Drain| (drain.by.clone(), drain.since, drain.cost);
        DrainStatus {
            drain: tracker.drain.as_ref().map(summary),
            running: PerPhase { map: running(Phase::Map), reduce: running(Phase::Reduce) },
            outputs: (outputs.len() as u32, outputs.iter().map(bytes_out).sum()),
            checkpoints: (tracker.checkpoints.len() as u32, tracker.checkpoints.iter().map(checkpoint).sum()),
            others: self.cluster.trackers().filter(|other| other.id != id && other.accepts_work()).count()
                as u32,
        }
    }

    /// Returns the map outputs on a tracker that reduces still need.
    fn needed_outputs(&self, tracker: &Tracker) -> Vec<AttemptId> {
        let mut needed: BTreeMap<JobId, bool> = BTreeMap::new();
        let mut is_needed = |id: JobId| {
            *needed
                .entry(id)
                .or_insert_with(|| self.cluster.job(id).is_some_and(|job| self.cluster.needs_map_output(job)))
        };
        self.cluster.outputs_on(tracker).filter(|attempt| is_needed(attempt.job())).collect()
    }

    /// Preempts the attempts on draining trackers and orders copies of their files.
    pub(super) fn advance_drains(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.copies.needs_recheck) || self.cluster.draining_trackers().is_empty() {
            return;
        }
        // Computed once for all draining trackers: this function is called for every heartbeat.
        let mut targets = CopyTargets::new(&self.cluster, &self.copies);
        for id in self.cluster.draining_trackers().clone() {
            let Some(tracker) = self.cluster.tracker(id) else { continue };
            if tracker.state == TrackerState::Lost {
                continue;
            }
            let late = tracker.drain.as_ref().is_some_and(|drain| now >= drain.until);
            let files: Vec<AttemptId> =
                tracker.checkpoints.iter().copied().chain(self.needed_outputs(tracker)).collect();
            self.preempt_attempts_on(now, id, late, out);
            for attempt in files {
                self.copy_elsewhere(now, id, attempt, &mut targets, out);
            }
        }
    }

    /// Makes the next call of `advance_drains` check all draining trackers. Called with every tick.
    pub(super) fn recheck_drains(&mut self) {
        self.copies.needs_recheck = true;
        if self.cluster.draining_trackers().is_empty() {
            // The next drain tries all copies again.
            self.copies.failure_counts.clear();
        }
    }

    /// Preempts all attempts on a draining tracker without loss; after the deadline, kills them.
    /// Attempts that cannot be preempted without loss continue until the deadline.
    fn preempt_attempts_on(&mut self, now: Time, id: TrackerId, late: bool, out: &mut Vec<Effect>) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let by = tracker.drain.as_ref().map_or("", |drain| &drain.by);
        let why = format!("{} is being drained by {by}", tracker.name);
        let running = Phase::BOTH.into_iter().flat_map(|phase| tracker.running[phase].iter().copied());
        for attempt in running.collect::<Vec<_>>() {
            let kind = if late { PreemptKind::Kill } else { PreemptKind::lossless(attempt.phase()) };
            // An attempt that has refused is not preempted again before the deadline.
            let refuses = self.cluster.attempt(attempt).is_some_and(|attempt| attempt.refusals > 0);
            if !late && refuses {
                continue;
            }
            if self.cluster.may_preempt(attempt, kind).is_ok() {
                self.request_preemption(now, attempt, kind, &why, false, out);
            }
        }
    }

    /// Orders another tracker to copy the files of an attempt, or gives them up.
    fn copy_elsewhere(
        &mut self,
        now: Time,
        from: TrackerId,
        attempt: AttemptId,
        targets: &mut CopyTargets,
        out: &mut Vec<Effect>,
    ) {
        if self.copies.targets.contains_key(&attempt) {
            return;
        }
        if self.copies.failure_counts.get(&attempt).is_some_and(|failed| *failed >= COPY_ATTEMPTS_MAX) {
            self.copies.failure_counts.remove(&attempt);
            let why = format!("{COPY_ATTEMPTS_MAX} tries to move it from a draining tracker failed");
            let fact = match attempt.phase() {
                Phase::Map => Fact::MapOutputLost { attempt, why, unfetched: false },
                Phase::Reduce => Fact::CheckpointLost { attempt, why },
            };
            self.record(now, fact, out);
            self.work_arrived = true;
            return self.require_outputs(now, attempt.job(), out);
        }
        let Some(to) = targets.take_least_loaded() else { return };
        self.copies.targets.insert(attempt, to);
        self.cluster.volatile.add_extra_tracker(attempt.job(), to);
        self.queue_order(to, Order::CopyFiles { attempt, from });
    }

    /// Handles the report that a tracker has made a copy, or could not make it.
    pub(super) fn copy_reported(
        &mut self,
        now: Time,
        by: TrackerId,
        id: AttemptId,
        result: Result<u64, String>,
        out: &mut Vec<Effect>,
    ) {
        self.copies.targets.remove(&id);
        self.copies.needs_recheck = true;
        let Ok(bytes) = result else {
            *self.copies.failure_counts.entry(id).or_default() += 1;
            return;
        };
        self.copies.failure_counts.remove(&id);
        let leaves = |from: TrackerId| from != by && self.cluster.draining_trackers().contains(&from);
        let task =
            self.cluster.job(id.job()).filter(|job| job.is_running()).and_then(|job| job.task(id.task));
        match id.phase() {
            Phase::Map => {
                let winner = task.and_then(|task| task.winning_attempt()).filter(|winner| winner.id == id);
                if winner.is_some_and(|winner| leaves(winner.output_on)) {
                    self.record(now, Fact::MapOutputCopied { attempt: id, tracker: by, bytes }, out);
                }
            }
            Phase::Reduce => {
                let checkpoint =
                    task.and_then(|task| task.checkpoint).filter(|checkpoint| checkpoint.attempt == id);
                match checkpoint.map(|checkpoint| checkpoint.tracker) {
                    // An attempt that is already reading the checkpoint on the draining tracker
                    // continues to do so.
                    Some(from) if leaves(from) => {
                        self.record(now, Fact::CheckpointCopied { attempt: id, tracker: by, bytes }, out);
                    }
                    _ if self.checkpoints(id.task).contains(&(id, by)) => {}
                    _ => self.queue_order(by, Order::DropCheckpoint(id)),
                }
            }
        }
    }
}
