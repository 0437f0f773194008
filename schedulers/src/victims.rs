//! Whose slots can be taken back, in the order in which a policy would.

use mrcore::{
    Phase, Plan, Span, Time, Why,
    ids::{AttemptId, JobId, TrackerId},
    plan::PreemptMode,
    task::Attempt,
};
use std::collections::BTreeMap;

/// Attempts that run and have not been told to release their slots.
#[derive(Debug)]
pub struct Victims {
    /// The last goes first.
    candidates: Vec<AttemptId>,
    /// Slots that are free, or about to be, where.
    being_freed: BTreeMap<TrackerId, u32>,
}

/// How many at the front of the line were passed over.
#[derive(Debug, Default)]
pub struct Skipped(usize);

impl Victims {
    /// The one that was launched last first.
    pub fn youngest_first(phase: Phase, plan: &Plan<'_>) -> Self {
        Self::greatest_first(phase, plan, |attempt| (attempt.launched, attempt.id))
    }

    /// The one with the greatest key first.
    pub fn greatest_first<K: Ord>(phase: Phase, plan: &Plan<'_>, key: impl Fn(&Attempt) -> K) -> Self {
        let cluster = plan.cluster();
        let held = cluster.active_jobs().flat_map(|job| &job.running[phase]);
        let (told, free): (Vec<AttemptId>, Vec<AttemptId>) = held.partition(|id| plan.is_preempted(**id));
        let mut candidates: Vec<&Attempt> = free.iter().filter_map(|id| cluster.attempt(*id)).collect();
        candidates.retain(|attempt| plan.is_live(attempt.tracker));
        candidates.sort_by_cached_key(|attempt| key(attempt));
        let mut being_freed: BTreeMap<TrackerId, u32> =
            plan.free_trackers(phase).map(|tracker| (tracker, plan.free(tracker, phase))).collect();
        let coming =
            told.iter().filter(|id| plan.is_slot_expected(**id)).filter_map(|id| cluster.attempt(*id));
        for attempt in coming {
            *being_freed.entry(attempt.tracker).or_default() += 1;
        }
        Self { candidates: candidates.iter().map(|attempt| attempt.id).collect(), being_freed }
    }

    /// Slots that are free, or will be as soon as attempts that were told so have given them back.
    pub fn slots_being_freed(&self) -> u32 {
        self.being_freed.values().sum()
    }

    /// Has somebody who lacks so many slots count on those under way where they can be used; how many that are.
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

    /// The first that may be taken, once.
    pub fn next(&mut self, may: impl FnMut(AttemptId) -> bool) -> Option<AttemptId> {
        self.next_after(&mut Skipped::default(), may)
    }

    /// The same, if who was passed over is not asked again.
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

/// Somebody who is to get slots back.
#[derive(Debug)]
pub struct Claim {
    /// Its running jobs.
    pub jobs: Vec<JobId>,
    /// Of which kind.
    pub phase: Phase,
    /// How many.
    pub deficit: u32,
    /// Why.
    pub why: Why,
}

/// Preempts slots for a claim from groups that hold more than their share: `excess` says by how much, and nobody is
/// left with less than its share. What is under way already is not asked for again, and nothing is taken where none of the
/// claim's tasks may run: it would go back to whom it was taken from, and be taken again.
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

/// Since when something that should not be has been.
#[derive(Debug)]
pub struct Overdue<K>(BTreeMap<K, Time>);

impl<K: Ord> Overdue<K> {
    /// Whether it has been so for this long, now that it is or is not.
    pub fn is_over(&mut self, key: K, is_so: bool, now: Time, limit: Option<Span>) -> bool {
        if !is_so {
            self.0.remove(&key);
            return false;
        }
        let since = *self.0.entry(key).or_insert(now);
        limit.is_some_and(|limit| now.since(since) >= limit)
    }

    /// Since when it has been so, as far as was last said.
    pub fn since(&self, key: &K) -> Option<Time> {
        self.0.get(key).copied()
    }

    /// All begins again.
    pub fn reset(&mut self) {
        self.0.clear();
    }
}

impl<K> Default for Overdue<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}
