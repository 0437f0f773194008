//! Whose slots can be taken back, in the order in which a policy would.

use mrcore::{
    Phase, Plan, Span, Time, Why,
    ids::{AttemptId, JobId},
    plan::Way,
    task::Attempt,
};
use std::collections::BTreeMap;

/// Attempts that run and have not been told to give their slots back.
#[derive(Debug)]
pub struct Victims {
    /// The last goes first.
    line: Vec<AttemptId>,
    under_way: u32,
}

/// How many at the front of the line were passed over.
#[derive(Debug, Default)]
pub struct Passed(usize);

impl Victims {
    /// The one that was launched last first.
    pub fn youngest_first(phase: Phase, plan: &Plan<'_>) -> Self {
        Self::greatest_first(phase, plan, |attempt| (attempt.launched, attempt.id))
    }

    /// The one with the greatest key first.
    pub fn greatest_first<K: Ord>(phase: Phase, plan: &Plan<'_>, key: impl Fn(&Attempt) -> K) -> Self {
        let cluster = plan.cluster();
        let held = cluster.active_jobs().flat_map(|job| &job.running[phase]);
        let (told, free): (Vec<AttemptId>, Vec<AttemptId>) = held.partition(|id| plan.is_recalled(**id));
        let mut line: Vec<&Attempt> = free.iter().filter_map(|id| cluster.attempt(*id)).collect();
        line.retain(|attempt| plan.is_live(attempt.tracker));
        line.sort_by_cached_key(|attempt| key(attempt));
        let idle: u32 = plan.free_trackers(phase).map(|tracker| plan.free(tracker, phase)).sum();
        Self { line: line.iter().map(|attempt| attempt.id).collect(), under_way: told.len() as u32 + idle }
    }

    /// Slots that are free, or will be as soon as attempts that were told so have given them back.
    pub fn slots_under_way(&self) -> u32 {
        self.under_way
    }

    /// The first that may be taken, once.
    pub fn next(&mut self, may: impl FnMut(AttemptId) -> bool) -> Option<AttemptId> {
        self.next_after(&mut Passed::default(), may)
    }

    /// The same, if who was passed over is not asked again.
    pub fn next_after(
        &mut self,
        passed: &mut Passed,
        mut may: impl FnMut(AttemptId) -> bool,
    ) -> Option<AttemptId> {
        let left = self.line.len().checked_sub(passed.0)?;
        let at = self.line[..left].iter().rposition(|id| may(*id));
        passed.0 = self.line.len() - at.map_or(0, |at| at + 1);
        at.map(|at| self.line.remove(at))
    }
}

/// Takes so many slots back, for this reason, from groups that hold more than their share: `excess` says by how much,
/// and nobody is left with less than its share. What is under way already is not asked for again.
pub fn level<G: Copy + Ord>(
    (lack, why): (u32, &Why),
    victims: &mut Victims,
    excess: &mut BTreeMap<G, f64>,
    group: impl Fn(JobId) -> Option<G>,
    way: Way,
    plan: &mut Plan<'_>,
) {
    let spared = victims.under_way.min(lack);
    victims.under_way -= spared;
    for _ in spared..lack {
        let is_rich = |group: G| excess.get(&group).is_some_and(|excess| *excess >= 1.0 - 1e-9);
        let Some(victim) = victims.next(|id| group(id.job()).is_some_and(is_rich)) else { return };
        if plan.take_back(victim, way, why.clone()).is_ok()
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
    pub fn start_over(&mut self) {
        self.0.clear();
    }
}

impl<K> Default for Overdue<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}
