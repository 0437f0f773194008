//! Attempts that can be preempted, in the order of a policy.

use mrcore::{
    Phase, Plan, Span, Time, Why,
    ids::{AttemptId, JobId, TrackerId},
    plan::PreemptMode,
    task::Attempt,
};
use std::collections::BTreeMap;

/// Running attempts that have not been preempted.
#[derive(Debug)]
pub struct Victims {
    /// In reverse order: the last one is preempted first.
    candidates: Vec<AttemptId>,
    /// Number of slots that are free or being released, by tracker.
    being_freed: BTreeMap<TrackerId, u32>,
}

/// Number of candidates at the front that were skipped.
#[derive(Debug, Default)]
pub struct Skipped(usize);

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
        candidates.retain(|(attempt, _)| plan.is_live(attempt.tracker));
        candidates.sort_by_cached_key(|(attempt, progress)| key(attempt, progress.unwrap_or_default().done));
        let mut being_freed: BTreeMap<TrackerId, u32> =
            plan.free_trackers(phase).map(|tracker| (tracker, plan.free_slots(tracker, phase))).collect();
        for (attempt, _) in preempted.iter().filter(|(attempt, _)| plan.is_slot_expected(attempt.id)) {
            *being_freed.entry(attempt.tracker).or_default() += 1;
        }
        Self { candidates: candidates.iter().map(|(attempt, _)| attempt.id).collect(), being_freed }
    }

    /// Returns the number of slots that are free or being released by preempted attempts.
    pub fn slots_being_freed(&self) -> u32 {
        self.being_freed.values().sum()
    }

    /// Reserves up to `deficit` slots that are free or being released on usable trackers. Returns
    /// their number.
    fn count_on(&mut self, deficit: u32, mut usable: impl FnMut(TrackerId) -> bool) -> u32 {
        let mut left = deficit;
        for (tracker, slots) in &mut self.being_freed {
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
        self.next_after(&mut Skipped::default(), may)
    }

    /// Works like [`Self::next`], but does not ask again about candidates that were skipped.
    pub fn next_after(
        &mut self,
        passed: &mut Skipped,
        mut may: impl FnMut(AttemptId) -> bool,
    ) -> Option<AttemptId> {
        let left = self.candidates.len().checked_sub(passed.0)?;
        let at = self.candidates[..left].iter().rposition(|id| may(*id));
        passed.0 = self.candidates.len() - at.map_or(0, |at| at + 1);
        at.map(|at| self.candidates.remove(at))
    }
}

/// A claim of a group of jobs to slots.
#[derive(Debug)]
pub struct Claim {
    /// Its running jobs.
    pub jobs: Vec<JobId>,
    /// The phase of the slots.
    pub phase: Phase,
    /// The number of missing slots.
    pub deficit: u32,
    /// The reason.
    pub why: Why,
}

/// Preempts attempts for a claim, from groups with more slots than their share. `excess` is the
/// difference for each group; no group is left with less than its share. Slots that are already
/// being released count. No attempt is preempted on a tracker where no task of the claim may run:
/// the slot would go back to its group and be preempted again.
pub fn level<G: Copy + Ord>(
    claim: &Claim,
    victims: &mut Victims,
    excess: &mut BTreeMap<G, f64>,
    group: impl Fn(JobId) -> Option<G>,
    preempt_mode: PreemptMode,
    plan: &mut Plan<'_>,
) {
    let cluster = plan.cluster();
    let mut known = BTreeMap::<TrackerId, bool>::new();
    let mut usable = |on: TrackerId, plan: &Plan<'_>| {
        let jobs = || claim.jobs.iter().filter_map(|job| cluster.job(*job));
        *known.entry(on).or_insert_with(|| jobs().any(|job| plan.has_work_for(job, claim.phase, on)))
    };
    let spared = victims.count_on(claim.deficit, |on| usable(on, plan));
    for _ in spared..claim.deficit {
        let is_rich = |group: G| excess.get(&group).is_some_and(|excess| *excess >= 1.0 - 1e-9);
        let mut may = |id: AttemptId| {
            group(id.job()).is_some_and(is_rich)
                && cluster.attempt(id).is_some_and(|attempt| usable(attempt.tracker, plan))
        };
        let Some(victim) = victims.next(&mut may) else { return };
        if plan.preempt_in_mode(victim, preempt_mode, claim.why.clone()).is_ok()
            && let Some(excess) = group(victim.job()).and_then(|group| excess.get_mut(&group))
        {
            *excess -= 1.0;
        }
    }
}

/// Since when a condition has held, by key.
#[derive(Debug)]
pub struct Overdue<K>(BTreeMap<K, Time>);

impl<K: Ord> Overdue<K> {
    /// Updates a condition and returns whether it has held for `limit`.
    pub fn is_over(&mut self, key: K, is_so: bool, now: Time, limit: Option<Span>) -> bool {
        if !is_so {
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

impl<K> Default for Overdue<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}
