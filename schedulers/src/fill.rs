//! Code that policies share: it fills the slots of a tracker one by one, and lets jobs wait for
//! locality.

use mrcore::{
    Cluster, Phase, Plan, Span, Time, Why,
    ids::{JobId, TaskId, TrackerId},
    job::Job,
    plan::Locality,
};
use std::collections::BTreeMap;

/// Fills the free slots of a tracker with the tasks that `next` returns, then with speculative
/// attempts of stragglers. The plan that `next` gets contains its previous choices.
pub fn fill(
    plan: &mut Plan<'_>,
    tracker: TrackerId,
    mut next: impl FnMut(&mut Plan<'_>, Phase) -> Option<(TaskId, Why)>,
) {
    for phase in Phase::BOTH {
        while plan.free_slots(tracker, phase) > 0 {
            let Some((task, why)) = next(plan, phase).or_else(|| next_straggler(plan, phase, tracker)) else {
                break;
            };
            if plan.assign(task, tracker, why).is_err() {
                break;
            }
        }
    }
}

/// A policy whose order of jobs changes with every slot that a round assigns.
pub trait SlotOrder {
    /// Returns the task that gets a slot.
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)>;
    /// Counts a slot that this round gives to a job.
    fn charge(&mut self, job: JobId, phase: Phase, plan: &Plan<'_>);
    /// Reverts `charge`: updates the data of a job from the cluster.
    fn restore(&mut self, job: JobId, cluster: &Cluster);
}

/// Fills the free slots of a tracker, updating the order after each slot.
pub fn fill_in_order(policy: &mut impl SlotOrder, tracker: TrackerId, plan: &mut Plan<'_>) {
    let mut charged = Vec::new();
    fill(plan, tracker, |plan, phase| {
        let (task, why) = policy.choose(phase, tracker, plan)?;
        charged.push(task.job);
        policy.charge(task.job, phase, plan);
        Some((task, why))
    });
    for job in charged {
        policy.restore(job, plan.cluster());
    }
}

/// Returns a straggler of the oldest job that has one which may get a speculative attempt on the
/// tracker.
fn next_straggler(plan: &Plan<'_>, phase: Phase, tracker: TrackerId) -> Option<(TaskId, Why)> {
    let mut jobs = plan.cluster().jobs_with_stragglers(phase);
    jobs.find_map(|job| plan.next_straggler(job, phase, tracker)).map(|task| (task, Why::rule("straggler")))
}

/// Returns a reason with the rule for a locality. `rules` are those for node-local, rack-local and
/// off-rack.
pub fn locality_reason(rules: [&'static str; 3], near: Locality) -> Why {
    Why::rule(rules[near as usize])
}

/// Delay scheduling (Zaharia et al., 2010), by time and per level: a job without a map near the
/// free slot skips its turn for `node_wait`, then accepts rack-local maps, and after `rack_wait`
/// more any map. A job that gets a node-local map starts to wait again.
#[derive(Debug, Default)]
pub struct LocalityDelay {
    /// How long a job waits for a node-local slot.
    pub node_wait: Span,
    /// How long it then waits for a rack-local slot.
    pub rack_wait: Span,
    /// Since when each job has been waiting.
    since: BTreeMap<JobId, Time>,
}

impl LocalityDelay {
    /// Creates a delay with these waiting times.
    pub fn new(node_wait: Span, rack_wait: Span) -> Self {
        Self { node_wait, rack_wait, since: BTreeMap::new() }
    }

    /// Returns the worst locality that a job accepts now.
    pub fn accepted_locality(&self, job: JobId, now: Time) -> Locality {
        let waited = self.since.get(&job).map_or(Span(0), |since| now.since(*since));
        if waited >= self.node_wait + self.rack_wait {
            Locality::OffRack
        } else if waited >= self.node_wait {
            Locality::RackLocal
        } else {
            Locality::NodeLocal
        }
    }

    /// Returns whether a job has waited long enough to accept any tracker. If it has not waited
    /// yet, it starts to wait.
    pub fn is_over(&mut self, job: JobId, now: Time) -> bool {
        self.since.entry(job).or_insert(now);
        self.accepted_locality(job, now) == Locality::OffRack
    }

    /// Returns the map that a job launches on a tracker now, if the job accepts its locality.
    /// Otherwise the job starts to wait. With `ignore_locality`, any map is accepted.
    pub fn next_map(
        &mut self,
        job: &Job,
        tracker: TrackerId,
        ignore_locality: bool,
        plan: &Plan<'_>,
    ) -> Option<(TaskId, Locality)> {
        // Maps without preferred hosts do not wait.
        let anywhere = ignore_locality || job.pending.map.host_count() == 0;
        let limit = if anywhere { Locality::OffRack } else { self.accepted_locality(job.id, plan.now()) };
        let mut found = plan.next_map(job, tracker, limit);
        if found.is_none() && limit < Locality::OffRack {
            // If a map has failed on the hosts of its input, or these are suspect or draining,
            // waiting is useless.
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
            // The job has waited for a node-local slot, and may wait again for a rack-local one.
            Some((_, Locality::RackLocal)) => {
                let since = Time(plan.now().0.saturating_sub(self.node_wait.0));
                self.since.insert(job.id, since);
            }
            _ => {}
        }
        found
    }

    /// Returns since when a job has been waiting.
    pub fn since(&self, job: JobId) -> Option<Time> {
        self.since.get(&job).copied()
    }

    /// Returns the reason that the maps of a job wait for slots near their input, while they wait.
    /// The job waits at most for `limit` in all.
    pub fn reason(&self, job: &Job, limit: Span, now: Time, cluster: &Cluster) -> Option<Why> {
        let since = self.since(job.id)?;
        let (rack_after, at_most) = (self.node_wait.min(limit), (self.node_wait + self.rack_wait).min(limit));
        if now.since(since) >= at_most || cluster.slots(Phase::Map) == 0 || job.pending.map.is_empty() {
            return None;
        }
        let why = Why::rule("locality-wait").with("waited", now.since(since).as_secs_f64());
        let why = why.with("rack_after", rack_after.as_secs_f64());
        Some(why.with("at_most", at_most.as_secs_f64()))
    }

    /// Ends the wait of a job.
    pub fn forget(&mut self, job: JobId) {
        self.since.remove(&job);
    }

    /// Restarts all waits.
    pub fn reset(&mut self) {
        self.since.clear();
    }
}
