//! First in, first out: slots go to the job with the highest priority, then to the oldest one.
//!
//! A free map slot gets the nearest map of the first job, without waiting for locality. A free
//! reduce slot gets the next reduce of the first job. Exception: if the maps of a job have to wait
//! behind those of a job ahead of it, its reduces are not launched, because they would only hold
//! their slots. If no task is pending, a slot may get a speculative attempt
//! of a straggler.
//!
//! Not used: preemption, shares, users, queues.

use crate::fill::{fill, locality_reason};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Scheduler, Time, Why,
    ids::{JobId, TaskId, TrackerId},
    job::{Job, Priority},
    plan::{Decision, Locality},
    scheduler::{Cause, Round},
};
use std::{
    cmp::Reverse,
    collections::BTreeSet,
    ops::Bound::{Excluded, Included, Unbounded},
};

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    ("first-in-queue", "its job is the first in the queue that can use the slot"),
    (
        "jobs-ahead",
        "{jobs job is|jobs are} ahead by priority and age, with {waiting_tasks pending task|pending tasks}; the first one is {first_job:job}",
    ),
];

/// The `fifo` policy.
#[derive(Debug, Default)]
pub struct Fifo {
    /// Running jobs in the order in which they get slots.
    queue: BTreeSet<Place>,
    /// Those of them that can use a slot.
    waiting_jobs: PerPhase<BTreeSet<Place>>,
    /// Those of them that can use a reduce slot and have no pending maps.
    without_maps: BTreeSet<Place>,
}

/// The place of a job in the queue.
type Place = (Reverse<Priority>, JobId);

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn observe(&mut self, _now: Time, fact: &Fact, cluster: &Cluster) {
        let Some(job) = fact.job().and_then(|id| cluster.job(id)) else { return };
        let place = (Reverse(job.spec.priority), job.id);
        set(&mut self.queue, place, job.is_running());
        for phase in Phase::BOTH {
            let waits = job.may_start(phase) && !job.pending[phase].is_empty();
            set(&mut self.waiting_jobs[phase], place, waits);
        }
        let PerPhase { map, reduce } = &self.waiting_jobs;
        set(&mut self.without_maps, place, reduce.contains(&place) && !map.contains(&place));
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        let Cause::Offer(tracker) = round.cause else { return };
        fill(plan, tracker, |plan, phase| self.next(phase, tracker, plan));
    }

    fn outranks(&self, a: JobId, b: JobId, _phase: Phase, plan: &Plan<'_>) -> bool {
        let place = |id: JobId| plan.cluster().job(id).map(|job| (Reverse(job.spec.priority), id));
        place(a).zip(place(b)).is_some_and(|(a, b)| a < b)
    }

    fn explain(&self, job: &Job, _now: Time, cluster: &Cluster) -> Vec<Why> {
        let place = (Reverse(job.spec.priority), job.id);
        let ahead = self.queue.range(..place).filter_map(|(_, id)| cluster.job(*id));
        let (mut jobs, mut tasks) = (0_u32, 0);
        for job in ahead {
            jobs += 1;
            tasks += Phase::BOTH.into_iter().map(|phase| job.pending[phase].len()).sum::<usize>();
        }
        let Some((_, first)) = self.queue.first().filter(|_| jobs > 0) else { return Vec::new() };
        let why = Why::rule("jobs-ahead").with("jobs", f64::from(jobs)).with("waiting_tasks", tasks as f64);
        vec![why.with("first_job", f64::from(first.0))]
    }
}

impl Fifo {
    /// Returns the task that gets a slot, of the first job that can use the slot.
    fn next(&self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        match phase {
            Phase::Map => self.waiting_jobs.map.iter().find_map(|place| {
                let job = plan.cluster().job(place.1)?;
                let (task, near) = plan.next_map(job, tracker, Locality::OffRack)?;
                let rules =
                    ["first-in-queue,node-local", "first-in-queue,rack-local", "first-in-queue,off-rack"];
                Some((task, locality_reason(rules, near)))
            }),
            Phase::Reduce => {
                let task = self.reduce_candidates(plan).find_map(|job| plan.next_reduce(job, tracker))?;
                Some((task, Why::rule("first-in-queue")))
            }
        }
    }

    /// Returns the jobs that may get a reduce slot: those whose maps do not wait behind those of a
    /// job ahead.
    fn reduce_candidates<'a>(&'a self, plan: &'a Plan<'_>) -> impl Iterator<Item = &'a Job> {
        let has_maps =
            |(_, id): &Place| plan.cluster().job(*id).is_some_and(|job| plan.has_pending(job, Phase::Map));
        let reduces = &self.waiting_jobs.reduce;
        let first_with_maps = self.waiting_jobs.map.iter().find(|place| has_maps(place));
        let ahead = reduces.range((Unbounded, first_with_maps.map_or(Unbounded, Included)));
        // With a backlog there are many jobs behind. Only if some of their pending maps cannot start,
        // it is necessary to look at each.
        let is_map = |decision: &Decision| matches!(decision, Decision::Assign { task, .. } if task.phase == Phase::Map);
        let sets_suffice = plan.all_pending_maps_may_start() && !plan.decisions().iter().any(is_map);
        let queue = if sets_suffice { &self.without_maps } else { reduces };
        let behind = first_with_maps.map(|first| queue.range((Excluded(first), Unbounded)));
        let behind = behind.into_iter().flatten().filter(move |place| sets_suffice || !has_maps(place));
        ahead.chain(behind).filter_map(|(_, id)| plan.cluster().job(*id))
    }
}

/// Adds a job to a queue or removes it.
fn set(queue: &mut BTreeSet<Place>, place: Place, is_in: bool) {
    if is_in {
        queue.insert(place);
    } else {
        queue.remove(&place);
    }
}
