//! Capacity: a tree of queues with guarantees; first in, first out within a queue.
//!
//! The capacity scheduler of Hadoop, which the papers compare with. A queue is guaranteed a
//! fraction of the slots of its parent, and may hold more, up to its maximum, while other queues do
//! not use theirs. At each level of the tree, a free slot goes to the queue that holds the smallest
//! fraction of its guarantee, and within a leaf to the first job, by priority and age, whose user
//! is within the user limit. A queue that has been below its guarantee for `reclaim_after` and
//! could use more gets slots from queues above theirs; the youngest attempts are preempted first.
//!
//! Differs from Hadoop: attempts are split and paused unless `preempt = kill`. A job that names an
//! unknown queue is in `default`, which gets the remainder of 100 percent unless it is configured.
//!
//! Not implemented: delay scheduling (a slot gets the nearest map of a job at once), and memory as
//! a resource.

mod queues;

use crate::{
    fill::{SlotOrder, fill_in_order, locality_reason},
    params::Section,
    shares::should_move,
    victims::{GroupDeficit, HeldConditions, Victims, preempt_for_group},
};
use mrcore::{
    Cluster, Fact, Phase, Plan, Scheduler, Span, Time, Why,
    ids::{JobId, TaskId, TrackerId},
    job::Job,
    plan::{Locality, PreemptMode},
    scheduler::{Cause, Round},
};
use queues::{Queue, Queues};
use std::cmp::Reverse;

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    ("queue-capacity", "queue {queue} held {held} of its guaranteed {guaranteed} slots"),
    (
        "queue-share-of-map-slots",
        "queue {queue} holds {held map slot|map slots} of its guaranteed {guaranteed}, at most {at_most}; \
         {jobs_ahead job goes|jobs go} first",
    ),
    (
        "queue-share-of-reduce-slots",
        "queue {queue} holds {held reduce slot|reduce slots} of its guaranteed {guaranteed}, at most {at_most}; \
         {jobs_ahead job goes|jobs go} first",
    ),
    ("user-limit", "user {user} holds {held slot|slots} of queue {queue}, of at most {at_most}"),
    (
        "queue-below-guarantee",
        "the slot goes to the queue[ of {for_job:job}] that held {held slot|slots}, less than its guaranteed {guaranteed}",
    ),
];

/// The `capacity` policy.
#[derive(Debug)]
pub struct Capacity {
    queues: Queues,
    preempt_mode: PreemptMode,
    reclaim_after: Option<Span>,
    below_guarantee: HeldConditions<(usize, Phase)>,
}

impl Capacity {
    /// Reads the parameters.
    pub fn new(section: &mut Section<'_>) -> Self {
        let about = "how long a queue may be below its guarantee before it gets slots from others";
        Self {
            queues: Queues::new(section),
            preempt_mode: section.preempt_mode(),
            reclaim_after: section.span_or_never("reclaim_after", Some(Span::secs(15)), about),
            below_guarantee: HeldConditions::default(),
        }
    }

    /// Preempts attempts for queues that have been below their guarantees for too long.
    fn reclaim(&mut self, phase: Phase, plan: &mut Plan<'_>) {
        let (cluster, now) = (plan.cluster(), plan.now());
        let mut needy_groups = Vec::new();
        for (number, queue) in self.queues.leaves() {
            let below_minimum =
                queue.guaranteed_slots(phase, cluster).min(queue.demand(phase, cluster)).floor();
            let held = f64::from(queue.held_slots[phase]);
            if self.below_guarantee.has_held_for(
                (number, phase),
                held < below_minimum,
                now,
                self.reclaim_after,
            ) {
                let why = with_queue_numbers(Why::rule("queue-below-guarantee"), queue, phase, cluster);
                let jobs: Vec<JobId> = queue.jobs_in_order(phase).collect();
                let why = jobs.first().map_or(why.clone(), |job| why.with_beneficiary(*job));
                needy_groups.push((
                    number,
                    GroupDeficit { jobs, phase, deficit: (below_minimum - held) as u32, why },
                ));
            }
        }
        if needy_groups.is_empty() {
            return;
        }
        let mut victims = Victims::youngest_first(phase, plan);
        for (number, needy) in needy_groups {
            let mut excess = self.queues.excess_of_others(number, phase, plan);
            let of = |job| self.queues.queue_number(job);
            preempt_for_group(&needy, &mut victims, &mut excess, of, self.preempt_mode, plan);
        }
    }
}

impl SlotOrder for Capacity {
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let cluster = plan.cluster();
        self.queues.leaves_in_order(phase, cluster).into_iter().find_map(|queue| {
            let max = queue.user_max(phase, cluster);
            let jobs = queue.jobs_in_order(phase).filter_map(|job| cluster.job(job));
            let mut within = jobs.filter(|job| queue.user_held(&job.spec.user, phase) < max);
            let (task, why) = within.find_map(|job| match phase {
                Phase::Map => {
                    let (task, near) = plan.next_map(job, tracker, Locality::OffRack)?;
                    let rules =
                        ["queue-capacity,node-local", "queue-capacity,rack-local", "queue-capacity,off-rack"];
                    Some((task, locality_reason(rules, near)))
                }
                Phase::Reduce => Some((plan.next_reduce(job, tracker)?, Why::rule("queue-capacity"))),
            })?;
            Some((task, with_queue_numbers(why, queue, phase, cluster)))
        })
    }

    fn charge(&mut self, job: JobId, phase: Phase, _plan: &Plan<'_>) {
        self.queues.charge(job, phase);
    }

    fn restore(&mut self, job: JobId, cluster: &Cluster) {
        self.queues.refresh(job, cluster);
    }
}

fn with_queue_numbers(why: Why, queue: &Queue, phase: Phase, cluster: &Cluster) -> Why {
    let guaranteed = queue.guaranteed_slots(phase, cluster);
    why.with("held", f64::from(queue.held_slots[phase])).with("guaranteed", guaranteed)
}

impl Scheduler for Capacity {
    fn name(&self) -> &'static str {
        "capacity"
    }

    fn observe(&mut self, _now: Time, fact: &Fact, cluster: &Cluster) {
        if let Fact::JobTrackerStarted { .. } = fact {
            self.below_guarantee.reset();
        }
        self.queues.observe(fact, cluster);
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        match round.cause {
            Cause::Offer(tracker) => fill_in_order(self, tracker, plan),
            Cause::Tick => {
                for phase in Phase::BOTH {
                    self.reclaim(phase, plan);
                }
            }
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        self.reclaim_after.map(|_| Span::secs(1))
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        let queues = &self.queues;
        let Some((of_a, of_b)) = queues.queue_number(a).zip(queues.queue_number(b)) else { return false };
        let Some((side_a, side_b)) = queues.diverging_queues(of_a, of_b) else {
            let place = |id: JobId| plan.cluster().job(id).map(|job| (Reverse(job.spec.priority), id));
            return place(a).zip(place(b)).is_some_and(|(a, b)| a < b);
        };
        should_move(
            queues.slots_and_guarantee(side_a, phase, plan),
            queues.slots_and_guarantee(side_b, phase, plan),
        )
    }

    fn may_have_slot(&self, job: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.queues.queue_number(job).is_none_or(|number| self.queues.has_room(number, phase, plan))
    }

    fn explain(&self, job: &Job, _now: Time, cluster: &Cluster) -> Vec<Why> {
        let Some(queue) = self.queues.queue_of(job.id) else { return Vec::new() };
        let mut reasons = Vec::new();
        for phase in Phase::BOTH.into_iter().filter(|phase| !job.pending[*phase].is_empty()) {
            let (held, max) = (queue.user_held(&job.spec.user, phase), queue.user_max(phase, cluster));
            if held >= max {
                reasons.push(Why::rule("user-limit").with("held", held).with("at_most", max));
            }
            let rule = match phase {
                Phase::Map => "queue-share-of-map-slots",
                Phase::Reduce => "queue-share-of-reduce-slots",
            };
            let why = with_queue_numbers(Why::rule(rule), queue, phase, cluster);
            let ahead = queue.jobs_ahead_of(job, phase) as f64;
            reasons.push(why.with("at_most", queue.max_slots(phase, cluster)).with("jobs_ahead", ahead));
        }
        reasons
    }
}
