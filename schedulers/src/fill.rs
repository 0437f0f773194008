//! What policies do alike: fill a tracker's slots one by one, and wait a while for a better place.

use mrcore::{
    Cluster, Phase, Plan, Span, Time, Why,
    ids::{JobId, TaskId, TrackerId},
    job::Job,
    plan::Locality,
};
use std::collections::BTreeMap;

/// Fills a tracker's free slots with what `next` chooses; when that is nothing, with duplicates of stragglers.
/// `next` is told what it has chosen through the plan.
pub fn fill(
    plan: &mut Plan<'_>,
    tracker: TrackerId,
    mut next: impl FnMut(&mut Plan<'_>, Phase) -> Option<(TaskId, Why)>,
) {
    for phase in Phase::BOTH {
        while plan.free(tracker, phase) > 0 {
            let Some((task, why)) = next(plan, phase).or_else(|| straggler(plan, phase, tracker)) else {
                break;
            };
            if plan.assign(task, tracker, why).is_err() {
                break;
            }
        }
    }
}

/// A policy whose turns move with every slot that a round gives away.
pub trait SlotOrder {
    /// What is put into a slot.
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)>;
    /// A slot that this round gives a job counts at once.
    fn charge(&mut self, job: JobId, phase: Phase, plan: &Plan<'_>);
    /// A job stands where the cluster shows it: what a round gave is seen there when it has become fact.
    fn restore(&mut self, job: JobId, cluster: &Cluster);
}

/// Fills a tracker's free slots in turn.
pub fn fill_in_order(policy: &mut impl SlotOrder, tracker: TrackerId, plan: &mut Plan<'_>) {
    let mut lent = Vec::new();
    fill(plan, tracker, |plan, phase| {
        let (task, why) = policy.choose(phase, tracker, plan)?;
        lent.push(task.job);
        policy.charge(task.job, phase, plan);
        Some((task, why))
    });
    for job in lent {
        policy.restore(job, plan.cluster());
    }
}

/// A straggler of any job, the oldest job first.
fn straggler(plan: &Plan<'_>, phase: Phase, tracker: TrackerId) -> Option<(TaskId, Why)> {
    let mut jobs = plan.cluster().active_jobs().filter(|job| !job.stragglers[phase].is_empty());
    jobs.find_map(|job| plan.next_straggler(job, phase, tracker)).map(|task| (task, Why::rule("straggler")))
}

/// A rule's name with how near a map's input is.
pub fn with_locality(rules: [&'static str; 3], near: Locality) -> Why {
    Why::rule(rules[near as usize])
}

/// Delay scheduling (Zaharia et al., 2010), by time and a level at a time: a job whose turn it is and that has no
/// map near a free slot lets others go first, for a while; then it takes one in the rack, and after another while
/// any. One that gets a near one waits anew.
#[derive(Debug, Default)]
pub struct LocalityDelay {
    /// How long for a slot on a host of the input, and then for one in a rack of it.
    pub node_wait: Span,
    /// See above.
    pub rack_wait: Span,
    since: BTreeMap<JobId, Time>,
}

impl LocalityDelay {
    /// With these waits.
    pub fn new(node_wait: Span, rack_wait: Span) -> Self {
        Self { node_wait, rack_wait, since: BTreeMap::new() }
    }

    /// How far a job's input may be by now.
    pub fn limit(&self, job: JobId, now: Time) -> Locality {
        let waited = self.since.get(&job).map_or(Span(0), |since| now.since(*since));
        if waited >= self.node_wait + self.rack_wait {
            Locality::OffRack
        } else if waited >= self.node_wait {
            Locality::RackLocal
        } else {
            Locality::NodeLocal
        }
    }

    /// Whether a job has waited long enough to go anywhere. If it has not waited at all, it begins to.
    pub fn is_over(&mut self, job: JobId, now: Time) -> bool {
        self.since.entry(job).or_insert(now);
        self.limit(job, now) == Locality::OffRack
    }

    /// The map that a job takes on a tracker now, if any is near enough. If none is, it has begun to wait; one in a hurry
    /// takes any.
    pub fn next_map(
        &mut self,
        job: &Job,
        tracker: TrackerId,
        in_a_hurry: bool,
        plan: &Plan<'_>,
    ) -> Option<(TaskId, Locality)> {
        // Input that is nowhere in particular is as near as it will ever be.
        let anywhere = in_a_hurry || job.pending.map.host_count() == 0;
        let limit = if anywhere { Locality::OffRack } else { self.limit(job.id, plan.now()) };
        let mut found = plan.next_map(job, tracker, limit);
        if found.is_none() && limit < Locality::OffRack {
            // A map that failed where its input is, or whose nodes are silent or drained, has nothing to wait for.
            let possible = plan.best_possible_locality(job);
            if possible > limit {
                found = plan.next_map(job, tracker, possible);
            }
        }
        match found {
            None if plan.has_pending(job, Phase::Map) && plan.may_use(job, tracker) => {
                self.since.entry(job.id).or_insert(plan.now());
            }
            Some((_, Locality::NodeLocal)) => {
                self.since.remove(&job.id);
            }
            // It has waited long enough for a host, but may do so for a rack.
            Some((_, Locality::RackLocal)) => {
                let since = Time(plan.now().0.saturating_sub(self.node_wait.0));
                self.since.insert(job.id, since);
            }
            _ => {}
        }
        found
    }

    /// Since when a job has been waiting.
    pub fn since(&self, job: JobId) -> Option<Time> {
        self.since.get(&job).copied()
    }

    /// It waits no longer.
    pub fn forget(&mut self, job: JobId) {
        self.since.remove(&job);
    }

    /// All waits begin again.
    pub fn reset(&mut self) {
        self.since.clear();
    }
}
