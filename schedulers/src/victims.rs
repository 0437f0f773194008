//! Whose slots can be taken back, in the order in which a policy would.

use mrcore::{Phase, Plan, ids::AttemptId, task::Attempt};

/// Attempts that run and have not been told to give their slots back.
#[derive(Debug)]
pub struct Victims {
    /// The last goes first.
    line: Vec<AttemptId>,
    under_way: u32,
}

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
    pub fn next(&mut self, may: impl Fn(AttemptId) -> bool) -> Option<AttemptId> {
        let at = self.line.iter().rposition(|id| may(*id))?;
        Some(self.line.remove(at))
    }
}
