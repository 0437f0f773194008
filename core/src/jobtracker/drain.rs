//! Trackers are drained: nothing new goes there, what they run ends where it stands and continues elsewhere, and what jobs
//! still need of what they keep is copied by other trackers.
//!
//! A copy is of the same attempt: reducers are told another address, and a paused reduce continues from another place.
//! What cannot be copied, tried several times, is given up: the map runs again, the reduce starts over. Copies under
//! way are not durable; after a restart they are asked for again, and one that is there already is told at once.

use super::JobTracker;
use crate::{
    cluster::Cluster,
    event::{Effect, Order, Reply},
    fact::Fact,
    ids::{AttemptId, JobId, RequestId, TrackerId},
    job::Job,
    phase::{PerPhase, Phase},
    task::PreemptKind,
    time::{Span, Time},
    tracker::{Drain, DrainCost, Tracker, TrackerState},
};
use std::collections::{BTreeMap, BTreeSet};

/// Copies on their way to one tracker; it makes one at a time.
const COPIES_PER_TRACKER: usize = 4;
/// How often something is tried to be copied before it is given up.
const COPY_ATTEMPTS_MAX: u32 = 3;

/// Copies under way.
#[derive(Debug, Default)]
pub(super) struct Copies {
    to: BTreeMap<AttemptId, TrackerId>,
    failed: BTreeMap<AttemptId, u32>,
    /// Something has happened since it was last looked what there is to move.
    recheck: bool,
}

impl Copies {
    /// Whatever a tracker was told to copy it will not.
    pub(super) fn forget(&mut self, to: TrackerId) {
        self.to.retain(|_, on| *on != to);
    }

    /// Whether a fact makes it worth a look. What happens on trackers that nobody empties does not.
    pub(super) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        if self.recheck || cluster.draining.is_empty() {
            return;
        }
        self.recheck = match fact {
            Fact::TrackerDraining { .. } | Fact::TrackerJoined { .. } => true,
            Fact::AttemptLaunched { attempt, .. }
            | Fact::AttemptSucceeded { attempt, .. }
            | Fact::MapSplit { attempt, .. }
            | Fact::AttemptPaused { attempt, .. } => {
                cluster.attempt(*attempt).is_some_and(|at| cluster.draining.contains(&at.tracker))
            }
            _ => false,
        };
    }
}

/// Trackers that could take copies: the one that has least to copy first, and then that which keeps least.
struct CopyTargets(BTreeSet<(usize, usize, TrackerId)>);

impl CopyTargets {
    fn of(cluster: &Cluster, moves: &Copies) -> Self {
        let mut busy = BTreeMap::<TrackerId, usize>::new();
        for to in moves.to.values() {
            *busy.entry(*to).or_default() += 1;
        }
        let targets = cluster.trackers().filter(|tracker| tracker.accepts_work());
        let burden = |tracker: &Tracker| {
            let copies = busy.get(&tracker.id).copied().unwrap_or(0);
            (copies, tracker.outputs.len() + tracker.checkpoints.len(), tracker.id)
        };
        Self(targets.map(burden).collect())
    }

    fn next(&mut self) -> Option<TrackerId> {
        let (copies, keeps, id) = *self.0.first().filter(|(copies, ..)| *copies < COPIES_PER_TRACKER)?;
        self.0.remove(&(copies, keeps, id));
        self.0.insert((copies + 1, keeps, id));
        Some(id)
    }
}

/// How far a drain is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainStatus {
    /// None if the tracker is in use.
    pub drain: Option<(String, Time, DrainCost)>,
    /// Attempts that hold its slots.
    pub running: PerPhase<u32>,
    /// Map outputs that some job needs and nobody else has, and their bytes.
    pub outputs: (u32, u64),
    /// States of paused reduces that nobody else has, and their bytes.
    pub checkpoints: (u32, u64),
    /// Other trackers that take work.
    pub others: u32,
}

impl DrainStatus {
    /// Whether nothing on the tracker is of use to anybody.
    pub fn is_empty(&self) -> bool {
        let running = self.running.map + self.running.reduce;
        running + self.outputs.0 + self.checkpoints.0 == 0
    }
}

impl JobTracker {
    /// Somebody wants a tracker emptied, or used again.
    pub(super) fn drain(
        &mut self,
        now: Time,
        request: RequestId,
        id: TrackerId,
        within: Option<Span>,
        by: String,
        out: &mut Vec<Effect>,
    ) {
        let reply = match (self.refuse_drain(id, within.is_some()), within) {
            (Some(why), _) => Reply::Refused(why),
            (None, Some(within)) => {
                self.record(now, Fact::TrackerDraining { tracker: id, by, until: now + within }, out);
                Reply::Accepted
            }
            (None, None) => {
                if self.cluster.draining.contains(&id) {
                    self.record(now, Fact::DrainCancelled { tracker: id, by }, out);
                }
                Reply::Accepted
            }
        };
        Self::reply(request, reply, out);
    }

    fn refuse_drain(&self, id: TrackerId, begins: bool) -> Option<String> {
        let Some(tracker) = self.cluster.tracker(id) else {
            return Some(format!("there is no tracker {id}"));
        };
        let name = &tracker.name;
        if begins && tracker.state == TrackerState::Lost {
            return Some(format!("{name} is lost: what it ran runs elsewhere; start it again first"));
        }
        // One that is at it continues: whoever asks again may only set another deadline.
        if !begins || tracker.drain.is_some() {
            return None;
        }
        let others: Vec<&Tracker> = self.cluster.trackers().filter(|other| other.id != id).collect();
        if others.iter().any(|other| other.accepts_work()) {
            return None;
        }
        let expected = others.iter().any(|other| self.cluster.unreachable_trackers.contains(&other.id));
        let advice = if expected {
            "other trackers are suspect: try again soon"
        } else {
            "start more, or end another drain with `mrctl drain NODE --cancel`"
        };
        Some(format!("{name} cannot be drained, no other tracker takes work: {advice}"))
    }

    /// How far a drain is; of a tracker in use, what one would have to do.
    pub fn drain_status(&self, id: TrackerId) -> DrainStatus {
        let Some(tracker) = self.cluster.tracker(id) else { return DrainStatus::default() };
        let running =
            |phase: Phase| (tracker.running[phase].len() + tracker.unknown_attempts[phase].len()) as u32;
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
        let ordered = |drain: &Drain| (drain.by.clone(), drain.since, drain.cost);
        DrainStatus {
            drain: tracker.drain.as_ref().map(ordered),
            running: PerPhase { map: running(Phase::Map), reduce: running(Phase::Reduce) },
            outputs: (outputs.len() as u32, outputs.iter().map(bytes_out).sum()),
            checkpoints: (tracker.checkpoints.len() as u32, tracker.checkpoints.iter().map(checkpoint).sum()),
            others: self.cluster.trackers().filter(|other| other.id != id && other.accepts_work()).count()
                as u32,
        }
    }

    /// Map outputs of a tracker that reduces still need.
    fn needed_outputs(&self, tracker: &Tracker) -> Vec<AttemptId> {
        let mut needed: BTreeMap<JobId, bool> = BTreeMap::new();
        let mut is_needed = |id: JobId| {
            *needed.entry(id).or_insert_with(|| self.cluster.job(id).is_some_and(Job::needs_map_output))
        };
        tracker.outputs.iter().copied().filter(|attempt| is_needed(attempt.job())).collect()
    }

    /// Takes from trackers that are to be drained what they run, and has copied what they keep.
    pub(super) fn advance_drains(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.moves.recheck) || self.cluster.draining.is_empty() {
            return;
        }
        // Made once for all that is to be moved: this is in the way of every heartbeat.
        let mut targets = CopyTargets::of(&self.cluster, &self.moves);
        for id in self.cluster.draining.clone() {
            let Some(tracker) = self.cluster.tracker(id) else { continue };
            if tracker.state == TrackerState::Lost {
                continue;
            }
            let late = tracker.drain.as_ref().is_some_and(|drain| now >= drain.until);
            let saved_work: Vec<AttemptId> =
                tracker.checkpoints.iter().copied().chain(self.needed_outputs(tracker)).collect();
            self.preempt_all(now, id, late, out);
            for attempt in saved_work {
                self.copy_elsewhere(now, id, attempt, &mut targets, out);
            }
        }
    }

    /// Time has passed: what is left is looked at again.
    pub(super) fn recheck_drains(&mut self) {
        self.moves.recheck = true;
        if self.cluster.draining.is_empty() {
            // The next drain tries anew.
            self.moves.failed.clear();
        }
    }

    /// Everything ends where it stands. What cannot may continue while there is time.
    fn preempt_all(&mut self, now: Time, id: TrackerId, late: bool, out: &mut Vec<Effect>) {
        let Some(tracker) = self.cluster.tracker(id) else { return };
        let by = tracker.drain.as_ref().map_or("", |drain| &drain.by);
        let why = format!("{} is drained for {by}", tracker.name);
        let running = Phase::BOTH.into_iter().flat_map(|phase| tracker.running[phase].iter().copied());
        for attempt in running.collect::<Vec<_>>() {
            let lossless = match attempt.phase() {
                Phase::Map => PreemptKind::Split,
                Phase::Reduce => PreemptKind::Pause,
            };
            let kind = if late { PreemptKind::Kill } else { lossless };
            // One that has refused is not asked every second.
            let refuses = self.cluster.attempt(attempt).is_some_and(|attempt| attempt.refusals > 0);
            if !late && refuses {
                continue;
            }
            if self.cluster.may_preempt(attempt, kind).is_ok() {
                self.request_preemption(now, attempt, kind, &why, false, out);
            }
        }
    }

    /// Has something copied by another tracker, or gives it up.
    fn copy_elsewhere(
        &mut self,
        now: Time,
        from: TrackerId,
        attempt: AttemptId,
        targets: &mut CopyTargets,
        out: &mut Vec<Effect>,
    ) {
        if self.moves.to.contains_key(&attempt) {
            return;
        }
        if self.moves.failed.get(&attempt).is_some_and(|failed| *failed >= COPY_ATTEMPTS_MAX) {
            self.moves.failed.remove(&attempt);
            let why =
                format!("it could not be moved from a draining tracker, tried {COPY_ATTEMPTS_MAX} times");
            let fact = match attempt.phase() {
                Phase::Map => Fact::MapOutputLost { attempt, why, unfetched: false },
                Phase::Reduce => Fact::CheckpointLost { attempt, why },
            };
            self.record(now, fact, out);
            self.work_arrived = true;
            return self.require_outputs(now, attempt.job(), out);
        }
        let Some(to) = targets.next() else { return };
        self.moves.to.insert(attempt, to);
        if let Some(job) = self.cluster.jobs.get_mut(&attempt.job()) {
            job.extra_trackers.insert(to);
        }
        self.order(to, Order::CopyFiles { attempt, from });
    }

    /// A tracker has copied something, or could not.
    pub(super) fn copied(
        &mut self,
        now: Time,
        by: TrackerId,
        id: AttemptId,
        result: Result<u64, String>,
        out: &mut Vec<Effect>,
    ) {
        self.moves.to.remove(&id);
        self.moves.recheck = true;
        let Ok(bytes) = result else {
            *self.moves.failed.entry(id).or_default() += 1;
            return;
        };
        self.moves.failed.remove(&id);
        let leaves = |from: TrackerId| from != by && self.cluster.draining.contains(&from);
        let task =
            self.cluster.job(id.job()).filter(|job| job.is_running()).and_then(|job| job.task(id.task));
        match id.phase() {
            Phase::Map => {
                let winner = task.and_then(|task| task.winner()).filter(|winner| winner.id == id);
                if winner.is_some_and(|winner| leaves(winner.output_on)) {
                    self.record(now, Fact::MapOutputCopied { attempt: id, tracker: by, bytes }, out);
                }
            }
            Phase::Reduce => {
                let checkpoint =
                    task.and_then(|task| task.checkpoint).filter(|checkpoint| checkpoint.attempt == id);
                match checkpoint.map(|checkpoint| checkpoint.tracker) {
                    // Whoever is taking it up there is not disturbed.
                    Some(from) if leaves(from) => {
                        self.record(now, Fact::CheckpointCopied { attempt: id, tracker: by, bytes }, out);
                    }
                    _ if self.checkpoints(id.task).contains(&(id, by)) => {}
                    _ => self.order(by, Order::DropCheckpoint(id)),
                }
            }
        }
    }
}
