//! First in, first out: the most urgent job takes every slot it can use, then the next.
//!
//! Jobs go by priority, then by age. Each free map slot gets the first job's map whose input is nearest, wherever
//! that is: no waiting for locality. Each free reduce slot gets the first job's next reduce, but not one that could
//! only hold its slot: of a job whose maps wait behind those of a more urgent one. When nothing waits, a slot may
//! duplicate a straggler.
//! Deliberately absent: preemption, shares, users, queues.

use crate::fill::{fill, with_locality};
use mrcore::{
    Cluster, Fact, Phase, Plan, Scheduler, Time, Why,
    ids::{JobId, TaskId, TrackerId},
    job::{Job, Priority},
    plan::Locality,
    scheduler::{Cause, Round},
};
use std::{cmp::Reverse, collections::BTreeSet};

/// What its rules mean in words.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    ("first-in-queue", "its job is the first in line that can use the slot"),
    (
        "jobs-ahead",
        "{jobs job goes|jobs go} first by priority and age, {first_job:job} at the head, with {waiting_tasks task|tasks} waiting",
    ),
];

/// The policy.
#[derive(Debug, Default)]
pub struct Fifo {
    /// Running jobs in the order in which they are served.
    queue: BTreeSet<(Reverse<Priority>, JobId)>,
}

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn observe(&mut self, _now: Time, fact: &Fact, _cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, spec, .. } => {
                self.queue.insert((Reverse(spec.priority), *job));
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => {
                self.queue.retain(|(_, waiting)| waiting != job);
            }
            _ => {}
        }
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
    /// What the first job that can use a slot would put there.
    fn next(&self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let mut jobs = self.queue.iter().filter_map(|(_, id)| plan.cluster().job(*id));
        let mut maps_wait = false;
        jobs.find_map(|job| match phase {
            Phase::Map => {
                let (task, near) = plan.next_map(job, tracker, Locality::OffRack)?;
                let rules =
                    ["first-in-queue,node-local", "first-in-queue,rack-local", "first-in-queue,off-rack"];
                Some((task, with_locality(rules, near)))
            }
            Phase::Reduce => {
                let held_up = maps_wait && plan.has_pending(job, Phase::Map);
                maps_wait |= plan.has_pending(job, Phase::Map);
                let task = if held_up { None } else { plan.next_reduce(job, tracker) };
                Some((task?, Why::rule("first-in-queue")))
            }
        })
    }
}
