//! Chooses attempts to preempt, in the order of a policy.

use mrcore::{
    AcceptedSlots, Phase, Plan, Span, Time, Why,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::Job,
    plan::PreemptMode,
    task::Attempt,
};
use std::collections::{BTreeMap, BTreeSet};

/// Running attempts that have not been preempted.
#[derive(Debug)]
pub struct Victims {
    /// In reverse order: the last one is preempted first.
    candidates: Vec<AttemptId>,
    /// Number of slots that are free or being released, by tracker.
    expected_slots: BTreeMap<TrackerId, u32>,
    /// Number of slots that will soon be free without preemption.
    ending_soon: u32,
}

/// The number of candidates at the front that were skipped.
#[derive(Debug, Default)]
pub struct SkippedCandidates(usize);

impl Victims {
    /// Collects the attempts that may be preempted, the youngest first.
    pub fn youngest_first(phase: Phase, plan: &Plan<'_>) -> Self {
        Self::greatest_first(phase, plan, |attempt, _| (attempt.launched, attempt.id))
    }

    /// Collects the attempts that may be preempted, the one with the greatest key first. The key
    /// may depend on the progress.
    pub fn greatest_first<K: Ord>(phase: Phase, plan: &Plan<'_>, key: impl Fn(&Attempt, f32) -> K) -> Self {
        let cluster = plan.cluster();
        let held = cluster.active_jobs().flat_map(|job| cluster.running(job, phase));
        let (preempted, mut candidates): (Vec<_>, Vec<_>) =
            held.partition(|(attempt, _)| plan.is_preempted(attempt.id));
        candidates.retain(|(attempt, _)| plan.accepts_work(attempt.tracker));
        candidates.sort_by_cached_key(|(attempt, progress)| key(attempt, progress.unwrap_or_default().done));
        let mut being_freed: BTreeMap<TrackerId, u32> =
            plan.free_trackers(phase).map(|tracker| (tracker, plan.free_slots(tracker, phase))).collect();
        for (attempt, _) in preempted.iter().filter(|(attempt, _)| plan.is_slot_expected(attempt.id)) {
            *being_freed.entry(attempt.tracker).or_default() += 1;
        }
        Self {
            candidates: candidates.iter().map(|(attempt, _)| attempt.id).collect(),
            expected_slots: being_freed,
            ending_soon: 0,
        }
    }

    /// Returns the number of slots that are free or being released by preempted attempts.
    pub fn expected_slot_count(&self) -> u32 {
        self.expected_slots.values().sum()
    }

    /// Does not count the slots of some trackers as free or being released.
    #[must_use]
    pub fn without_slots_on(mut self, excluded: impl Fn(TrackerId) -> bool) -> Self {
        self.expected_slots.retain(|tracker, _| !excluded(*tracker));
        self
    }

    /// Also counts slots of attempts that will soon end by themselves.
    #[must_use]
    pub fn with_slots_ending_soon(mut self, slots: u32) -> Self {
        self.ending_soon = slots;
        self
    }

    /// Reserves up to `deficit` slots that are free or being released on usable trackers. Returns
    /// their number.
    fn reserve_expected_slots(&mut self, deficit: u32, mut usable: impl FnMut(TrackerId) -> bool) -> u32 {
        let mut left = deficit;
        for (tracker, slots) in &mut self.expected_slots {
            if left == 0 {
                break;
            }
            if *slots > 0 && usable(*tracker) {
                let counted = left.min(*slots);
                (*slots, left) = (*slots - counted, left - counted);
            }
        }
        deficit - left
    }

    /// Removes and returns the first candidate that may be preempted.
    pub fn next(&mut self, may: impl FnMut(AttemptId) -> bool) -> Option<AttemptId> {
        self.next_after(&mut SkippedCandidates::default(), may)
    }

    /// Works like [`Self::next`], but does not ask again about candidates that were skipped.
    pub fn next_after(
        &mut self,
        passed: &mut SkippedCandidates,
        mut may: impl FnMut(AttemptId) -> bool,
    ) -> Option<AttemptId> {
        let left = self.candidates.len().checked_sub(passed.0)?;
        let at = self.candidates[..left].iter().rposition(|id| may(*id));
        passed.0 = self.candidates.len() - at.map_or(0, |at| at + 1);
        at.map(|at| self.candidates.remove(at))
    }
}

/// The rules of a policy that preempts attempts of some jobs for others.
pub trait PreemptionRules {
    /// Returns how many more slots a job should have.
    fn deficit(&self, job: &Job, phase: Phase, plan: &Plan<'_>) -> u32;
    /// Returns whether a slot may move from a job to another. If it may not, it may not later in the
    /// same round either.
    fn may_preempt_from(&self, to: JobId, from: JobId, phase: Phase, plan: &Plan<'_>) -> bool;
    /// Returns whether an attempt must not be preempted now. The answer does not change within a
    /// round.
    fn is_protected(&self, victim: &Attempt, plan: &Plan<'_>) -> bool;
    /// Returns the task that a job would run in the slot of a victim, and the reason.
    fn task_in_slot(&self, job: &Job, victim: &Attempt, plan: &Plan<'_>) -> Option<(TaskId, Why)>;
    /// Returns the slots that a task may use for which an attempt was preempted.
    fn accepted_slots(&self) -> AcceptedSlots {
        AcceptedSlots::EquallyNear
    }
    /// Returns the reason why an attempt is preempted for a job.
    fn reason(&self, victim: AttemptId, beneficiary: JobId, plan: &Plan<'_>) -> Why;
}

/// Preempts attempts for jobs, at most for the slots that they miss. `in_need` are the jobs in the
/// order in which they get slots. A preempted slot is reserved for the job that it was preempted for:
/// otherwise it might go back to the job that it was taken from, and be preempted again.
pub fn preempt_for_jobs(
    in_need: &[JobId],
    phase: Phase,
    mut victims: Victims,
    rules: &impl PreemptionRules,
    preempt_mode: PreemptMode,
    plan: &mut Plan<'_>,
) {
    let cluster = plan.cluster();
    // Reserved slots that are being released do not count for other jobs.
    let reserved_slots: u32 = cluster.active_jobs().map(|job| plan.reserved_slots(job, phase)).sum();
    let mut being_freed = victims.expected_slot_count().saturating_sub(reserved_slots) + victims.ending_soon;
    let mut only_possible = false;
    for id in in_need {
        if victims.candidates.is_empty() {
            return;
        }
        let Some(job) = cluster.job(*id) else { continue };
        let deficit = rules.deficit(job, phase, plan);
        let spared = being_freed.min(deficit);
        being_freed -= spared;
        if spared == deficit {
            continue;
        }
        if !std::mem::replace(&mut only_possible, true) {
            victims.candidates.retain(|id| {
                plan.preempt_kind(*id, preempt_mode).is_some()
                    && cluster.attempt(*id).is_some_and(|victim| !rules.is_protected(victim, plan))
            });
        }
        let (mut refused, mut passed) = (BTreeSet::<JobId>::new(), SkippedCandidates::default());
        for _ in spared..deficit {
            let mut slot = None;
            let may = |id: AttemptId| {
                let from = id.job();
                if refused.contains(&from) {
                    return false;
                }
                if !rules.may_preempt_from(job.id, from, phase, plan) {
                    refused.insert(from);
                    return false;
                }
                slot = cluster.attempt(id).and_then(|victim| {
                    let (task, why) = rules.task_in_slot(job, victim, plan)?;
                    Some((task, victim.tracker, why))
                });
                slot.is_some()
            };
            let Some(victim) = victims.next_after(&mut passed, may) else { break };
            let Some((task, on, why)) = slot else { break };
            // An attempt that has already been preempted, for example by a user, is skipped.
            let reason = rules.reason(victim, job.id, plan);
            if plan.preempt_in_mode(victim, preempt_mode, reason).is_ok() {
                let _ = plan.reserve(task, (on, rules.accepted_slots()), why);
            }
        }
    }
}

/// A group of jobs (a pool or a queue) that misses slots.
#[derive(Debug)]
pub struct GroupDeficit {
    /// Its running jobs.
    pub jobs: Vec<JobId>,
    /// The phase of the slots.
    pub phase: Phase,
    /// The number of missing slots.
    pub deficit: u32,
    pub why: Why,
}

/// Preempts attempts for a group, from groups with more slots than their share. `excess` is the
/// number of slots above the share of each group; no group is left with less than its share. Slots
/// that are already being released count for it. No attempt is preempted on a tracker where no task
/// of the group may run: the group of the attempt would get the slot again, and the slot would be
/// preempted again. Returns the number of preempted attempts.
pub fn preempt_for_group<G: Copy + Ord>(
    needy: &GroupDeficit,
    victims: &mut Victims,
    excess: &mut BTreeMap<G, f64>,
    group: impl Fn(JobId) -> Option<G>,
    preempt_mode: PreemptMode,
    plan: &mut Plan<'_>,
) -> u32 {
    let cluster = plan.cluster();
    let mut known = BTreeMap::<TrackerId, bool>::new();
    let mut usable = |on: TrackerId, plan: &Plan<'_>| {
        let jobs = || needy.jobs.iter().filter_map(|job| cluster.job(*job));
        *known.entry(on).or_insert_with(|| jobs().any(|job| plan.has_work_for(job, needy.phase, on)))
    };
    let spared = victims.reserve_expected_slots(needy.deficit, |on| usable(on, plan));
    let mut preempted = 0;
    for _ in spared..needy.deficit {
        let has_excess = |group: G| excess.get(&group).is_some_and(|excess| *excess >= 1.0 - 1e-9);
        let mut may = |id: AttemptId| {
            group(id.job()).is_some_and(has_excess)
                && cluster.attempt(id).is_some_and(|attempt| usable(attempt.tracker, plan))
        };
        let Some(victim) = victims.next(&mut may) else { break };
        if plan.preempt_in_mode(victim, preempt_mode, needy.why.clone()).is_ok() {
            preempted += 1;
            if let Some(excess) = group(victim.job()).and_then(|group| excess.get_mut(&group)) {
                *excess -= 1.0;
            }
        }
    }
    preempted
}

/// Conditions that hold, and since when, by key.
#[derive(Debug)]
pub struct HeldConditions<K>(BTreeMap<K, Time>);

impl<K: Ord> HeldConditions<K> {
    /// Updates whether a condition holds, and returns whether it has held for `limit`. Without a
    /// limit, returns `false`.
    pub fn has_held_for(&mut self, key: K, holds: bool, now: Time, limit: Option<Span>) -> bool {
        if !holds {
            self.0.remove(&key);
            return false;
        }
        let since = *self.0.entry(key).or_insert(now);
        limit.is_some_and(|limit| now.since(since) >= limit)
    }

    /// Returns since when the condition has held, as of the last update.
    pub fn since(&self, key: &K) -> Option<Time> {
        self.0.get(key).copied()
    }

    /// Restarts all times.
    pub fn reset(&mut self) {
        self.0.clear();
    }
}

impl<K> Default for HeldConditions<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}
