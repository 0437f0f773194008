//! One round's decisions, checked as they are made.
//!
//! A plan is the policy's view and its list of decisions in one. It lays what this round has decided over the
//! cluster (slots taken, tasks no longer waiting) and refuses what is illegal at the door, so that carrying it out
//! cannot fail. Questions cost at most a few look-ups: policies ask many.

use crate::{
    cluster::{Cluster, Unfit},
    config::Config,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    phase::{PerPhase, Phase},
    task::{AttemptState, Recall, Task},
    time::Time,
    tracker::{Tracker, TrackerState},
};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Why something was decided: the rule's name, and the numbers that it went by.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Why {
    /// Such as `oldest-job`.
    pub rule: Cow<'static, str>,
    /// Such as `share = 0.25`.
    pub numbers: Vec<(Cow<'static, str>, f64)>,
}

impl Why {
    /// For a reason that is not a rule of a policy.
    pub fn named(reason: String) -> Self {
        Self { rule: Cow::Owned(reason), numbers: Vec::new() }
    }

    /// By this rule alone.
    pub const fn rule(rule: &'static str) -> Self {
        Self { rule: Cow::Borrowed(rule), numbers: Vec::new() }
    }

    /// And this number.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.numbers.push((Cow::Borrowed(name), value));
        self
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        self.numbers.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// How near a map's input is to a tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    /// On the same host.
    NodeLocal,
    /// In the same rack.
    RackLocal,
    /// Elsewhere, or nowhere in particular.
    OffRack,
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Locality::NodeLocal => "node-local",
            Locality::RackLocal => "rack-local",
            Locality::OffRack => "off-rack",
        })
    }
}

/// Why a plan would not take a decision. Nothing has changed; the policy may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Refused {
    #[error("task {0} neither waits nor may be duplicated")]
    NotPending(TaskId),
    #[error("{job} has too few maps done to start reduces")]
    SlowStart { job: JobId },
    #[error("tracker {tracker} has no free {phase} slot")]
    NoSlot { tracker: TrackerId, phase: Phase },
    #[error("{job} does not use tracker {tracker} any more")]
    Blacklisted { job: JobId, tracker: TrackerId },
    #[error("task {task} came to nothing on tracker {tracker}, and others can take it")]
    Shunned { task: TaskId, tracker: TrackerId },
    #[error("tracker {0} runs an attempt of this task already")]
    SameTracker(TrackerId),
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

/// A decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Run a task on a tracker.
    Assign {
        /// Which.
        task: TaskId,
        /// Where.
        on: TrackerId,
        /// It duplicates one that runs.
        speculative: bool,
        /// Why.
        why: Why,
    },
    /// Take an attempt's slot back.
    Preempt {
        /// Whose.
        attempt: AttemptId,
        /// How.
        how: Recall,
        /// Why.
        why: Why,
    },
}

/// One round's view and decisions.
#[derive(Debug)]
pub struct Plan<'a> {
    cluster: &'a Cluster,
    config: &'a Config,
    now: Time,
    decisions: Vec<Decision>,
    taken: BTreeMap<TrackerId, PerPhase<u32>>,
    /// Slots that this round gave to each job, for tasks that waited and for duplicates.
    given: BTreeMap<JobId, PerPhase<Given>>,
    given_tasks: BTreeSet<TaskId>,
    preempted: BTreeSet<AttemptId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Given {
    waiting: u32,
    duplicates: u32,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(cluster: &'a Cluster, config: &'a Config, now: Time) -> Self {
        Self {
            cluster,
            config,
            now,
            decisions: Vec::new(),
            taken: BTreeMap::new(),
            given: BTreeMap::new(),
            given_tasks: BTreeSet::new(),
            preempted: BTreeSet::new(),
        }
    }

    pub(crate) fn into_decisions(self) -> Vec<Decision> {
        self.decisions
    }

    /// When.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The cluster as it was before this round.
    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// Decisions so far.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Slots that are free after what this round has decided.
    pub fn free(&self, tracker: TrackerId, phase: Phase) -> u32 {
        let taken = self.taken.get(&tracker).map_or(0, |taken| taken[phase]);
        self.cluster.tracker(tracker).map_or(0, |tracker| tracker.free(phase)).saturating_sub(taken)
    }

    /// Slots that a job holds, with what this round gave it.
    pub fn held(&self, job: &Job, phase: Phase) -> u32 {
        let given = self.given_to(job, phase);
        job.running[phase].len() as u32 + given.waiting + given.duplicates
    }

    fn given_to(&self, job: &Job, phase: Phase) -> Given {
        self.given.get(&job.id).map_or(Given::default(), |given| given[phase])
    }

    /// Whether a job has a task that waits and may start now. Reduces wait for enough maps to be done.
    pub fn has_pending(&self, job: &Job, phase: Phase) -> bool {
        Self::may_start(job, phase) && job.pending[phase].len() > self.given_to(job, phase).waiting as usize
    }

    fn may_start(job: &Job, phase: Phase) -> bool {
        job.is_running() && (phase == Phase::Map || job.reduces_may_start())
    }

    /// Whether a job would use a tracker at all. A job that has turned away more of the live trackers than it may
    /// (for others have gone since) uses them all again, rather than wait for ever.
    pub fn may_use(&self, job: &Job, tracker: TrackerId) -> bool {
        if !job.blacklist.contains(&tracker) {
            return true;
        }
        let live = self.cluster.trackers().filter(|tracker| tracker.state == TrackerState::Live);
        let (mut all, mut turned_away) = (0_usize, 0_usize);
        for tracker in live {
            all += 1;
            turned_away += usize::from(job.blacklist.contains(&tracker.id));
        }
        turned_away as f64 > all as f64 * self.config.blacklist_share
    }

    /// Whether a task has come to nothing on a tracker, or has an attempt there that will not end, while some
    /// other tracker could take it.
    fn is_shunned(&self, job: &Job, task: &Task, on: TrackerId) -> bool {
        let shuns = |tracker: TrackerId| {
            task.shuns.contains(&tracker) || task.live().any(|attempt| attempt.tracker == tracker)
        };
        let could = |tracker: &Tracker| {
            tracker.state == TrackerState::Live
                && tracker.slots[task.id.phase] > 0
                && !shuns(tracker.id)
                && self.may_use(job, tracker.id)
        };
        shuns(on) && self.cluster.trackers().any(could)
    }

    /// The first of some waiting tasks that this round has not given away and that may run on a tracker.
    fn first_of(
        &self,
        job: &Job,
        phase: Phase,
        on: TrackerId,
        indexes: impl Iterator<Item = u32>,
    ) -> Option<TaskId> {
        let mut ids = indexes.map(|index| TaskId { job: job.id, phase, index });
        ids.find(|id| {
            !self.given_tasks.contains(id)
                && job.task(*id).is_some_and(|task| !self.is_shunned(job, task, on))
        })
    }

    /// A job's waiting map whose input is nearest to a tracker, no farther than `limit`.
    pub fn next_map(&self, job: &Job, tracker: TrackerId, limit: Locality) -> Option<(TaskId, Locality)> {
        if !self.has_pending(job, Phase::Map) || !self.may_use(job, tracker) {
            return None;
        }
        let at = self.cluster.tracker(tracker)?;
        let pending = &job.pending.map;
        if let Some(task) = self.first_of(job, Phase::Map, tracker, pending.on_host(at.host)) {
            return Some((task, Locality::NodeLocal));
        }
        if limit >= Locality::RackLocal
            && let Some(task) = self.in_rack(job, at)
        {
            return Some((task, Locality::RackLocal));
        }
        if limit < Locality::OffRack {
            return None;
        }
        let task = self.first_of(job, Phase::Map, tracker, pending.iter())?;
        Some((task, Locality::OffRack))
    }

    /// Walks whichever is shorter: the hosts of the rack, or the hosts that the job wants.
    fn in_rack(&self, job: &Job, at: &Tracker) -> Option<TaskId> {
        let hosts = self.cluster.hosts_in(at.rack)?;
        let pending = &job.pending.map;
        let on = |host| self.first_of(job, Phase::Map, at.id, pending.on_host(host));
        if pending.host_count() < hosts.len() {
            pending.hosts().filter(|host| hosts.contains(host)).find_map(on)
        } else {
            hosts.iter().copied().find_map(on)
        }
    }

    /// A job's next waiting reduce for a tracker: one whose state lies there; else the first, but not one that could
    /// go on where its state lies.
    pub fn next_reduce(&self, job: &Job, tracker: TrackerId) -> Option<TaskId> {
        if !self.has_pending(job, Phase::Reduce) || !self.may_use(job, tracker) {
            return None;
        }
        let waits = |index: &u32| job.pending.reduce.contains(*index);
        let at = self.cluster.tracker(tracker)?;
        let here = at.checkpoints.iter().filter(|attempt| attempt.job() == job.id);
        let here = here.map(|attempt| attempt.task.index).filter(waits);
        let aside_elsewhere = |index: &u32| {
            let task = &job.tasks.reduce[*index as usize];
            task.checkpoint.is_some_and(|checkpoint| {
                let there = checkpoint.tracker;
                self.free(there, Phase::Reduce) > 0
                    && self.may_use(job, there)
                    && !self.is_shunned(job, task, there)
            })
        };
        self.first_of(job, Phase::Reduce, tracker, here).or_else(|| {
            let others = job.pending.reduce.iter().filter(|index| !aside_elsewhere(index));
            self.first_of(job, Phase::Reduce, tracker, others)
        })
    }

    /// Takes an attempt's slot back. It is free when the attempt has ended in the way it was told: not in this round.
    pub fn preempt(&mut self, attempt: AttemptId, how: Recall, why: Why) -> Result<(), Refused> {
        self.cluster.may_recall(attempt, how)?;
        if !self.preempted.insert(attempt) {
            return Err(Unfit::Already(attempt).into());
        }
        self.decisions.push(Decision::Preempt { attempt, how, why });
        Ok(())
    }

    /// Slots of a tracker that attempts have been told to give back, this round included, and still hold.
    pub fn yielding(&self, tracker: TrackerId, phase: Phase) -> u32 {
        let running = self.cluster.tracker(tracker).into_iter().flat_map(|tracker| &tracker.running[phase]);
        let recalled = |id: &&AttemptId| {
            let before = self.cluster.attempt(**id).is_some_and(|attempt| attempt.recalled.is_some());
            before || self.preempted.contains(id)
        };
        running.filter(recalled).count() as u32
    }

    /// A straggler of a job that may be duplicated on a tracker.
    pub fn next_straggler(&self, job: &Job, phase: Phase, tracker: TrackerId) -> Option<TaskId> {
        let ids = job.stragglers[phase].iter().map(|index| TaskId { job: job.id, phase, index: *index });
        ids.into_iter().find(|task| self.check(*task, tracker).is_ok())
    }

    /// How near a task's input is to a tracker.
    pub fn locality(&self, task: TaskId, tracker: TrackerId) -> Locality {
        let (Some(task), Some(tracker)) = (self.cluster.task(task), self.cluster.tracker(tracker)) else {
            return Locality::OffRack;
        };
        self.cluster.locality(task, tracker)
    }

    /// Runs a task that waits, or duplicates a straggler.
    pub fn assign(&mut self, task: TaskId, on: TrackerId, why: Why) -> Result<(), Refused> {
        let speculative = self.check(task, on)?;
        self.taken.entry(on).or_default()[task.phase] += 1;
        let given = &mut self.given.entry(task.job).or_default()[task.phase];
        if speculative {
            given.duplicates += 1;
        } else {
            given.waiting += 1;
        }
        self.given_tasks.insert(task);
        self.decisions.push(Decision::Assign { task, on, speculative, why });
        Ok(())
    }

    /// Whether `assign` would take it; says whether it would be a duplicate.
    fn check(&self, id: TaskId, on: TrackerId) -> Result<bool, Refused> {
        let Some(job) = self.cluster.job(id.job).filter(|job| job.is_running()) else {
            return Err(Refused::NotPending(id));
        };
        let task = job.task(id).ok_or(Refused::NotPending(id))?;
        if !self.may_use(job, on) {
            return Err(Refused::Blacklisted { job: id.job, tracker: on });
        }
        if self.free(on, id.phase) == 0 {
            return Err(Refused::NoSlot { tracker: on, phase: id.phase });
        }
        if self.given_tasks.contains(&id) {
            return Err(Refused::NotPending(id));
        }
        if job.pending[id.phase].contains(id.index) {
            return match Self::may_start(job, id.phase) {
                false => Err(Refused::SlowStart { job: id.job }),
                true if self.is_shunned(job, task, on) => Err(Refused::Shunned { task: id, tracker: on }),
                true => Ok(false),
            };
        }
        if task.live().any(|attempt| attempt.tracker == on) {
            return Err(Refused::SameTracker(on));
        }
        let may_duplicate = job.spec.speculation
            && job.stragglers[id.phase].contains(&id.index)
            && !task.shuns.contains(&on)
            && task.trying().count() == 1
            && task.trying().all(|attempt| attempt.state == AttemptState::Running)
            && self.duplicates(job, id.phase) < self.duplicates_max(job, id.phase);
        if may_duplicate { Ok(true) } else { Err(Refused::NotPending(id)) }
    }

    fn duplicates(&self, job: &Job, phase: Phase) -> usize {
        let running = job.running[phase].iter().filter_map(|id| self.cluster.attempt(*id));
        let now = self.given_to(job, phase).duplicates as usize;
        running.filter(|attempt| attempt.speculative).count() + now
    }

    fn duplicates_max(&self, job: &Job, phase: Phase) -> usize {
        ((job.running[phase].len() as f64 * self.config.speculative_share).ceil() as usize).max(1)
    }

    /// Trackers that could take a task of this phase, by number.
    pub fn free_trackers(&self, phase: Phase) -> impl Iterator<Item = TrackerId> + '_ {
        self.cluster.free_trackers(phase).iter().copied().filter(move |id| self.free(*id, phase) > 0)
    }

    /// Whether a tracker can be relied on.
    pub fn is_live(&self, tracker: TrackerId) -> bool {
        self.cluster.tracker(tracker).is_some_and(|tracker| tracker.state == TrackerState::Live)
    }
}
