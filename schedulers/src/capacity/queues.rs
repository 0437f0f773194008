//! The tree of queues with their slots and pending jobs, updated with every fact.

use crate::{estimate::demand, params::Section, ranked_queue::Real};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan,
    ids::JobId,
    job::{Job, JobSpec, Priority},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The position of a job in its queue.
type JobRank = (Reverse<Priority>, JobId);

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) name: String,
    parent: Option<usize>,
    children: Vec<usize>,
    /// The fraction of all slots of the cluster that the queue is guaranteed.
    guaranteed_part: f64,
    /// The maximum fraction of all slots of the cluster that the queue may hold.
    max_part: f64,
    /// The fraction of the queue's slots that each user may hold even if there are many users.
    user_limit: f64,
    /// The maximum slots of a user, in multiples of the guarantee of the queue.
    user_factor: f64,
    /// Number of slots held by jobs in this queue or in queues below it.
    pub(super) held_slots: PerPhase<u32>,
    /// Its jobs that can use a slot, in order.
    waiting_jobs: PerPhase<BTreeSet<JobRank>>,
    /// Its running jobs.
    jobs: BTreeSet<JobId>,
    /// Its users with running jobs or with slots.
    users: BTreeMap<String, User>,
}

#[derive(Debug, Clone, Copy, Default)]
struct User {
    jobs: u32,
    held: PerPhase<u32>,
}

impl Queue {
    /// Returns the number of slots that the queue is guaranteed.
    pub(super) fn guaranteed_slots(&self, phase: Phase, cluster: &Cluster) -> f64 {
        self.guaranteed_part * f64::from(cluster.slots(phase))
    }

    /// Returns the maximum number of slots of the queue. Slots that attempts hold on suspect or
    /// draining nodes are part of the total.
    pub(super) fn max_slots(&self, phase: Phase, cluster: &Cluster) -> f64 {
        let slots = cluster.slots(phase) + cluster.slots_on_excluded_trackers(phase);
        (self.max_part * f64::from(slots) - 1e-9).ceil()
    }

    /// Returns the current maximum number of slots of each user: the slots of the queue divided by
    /// its users, but at least the configured limit. The slots of the queue are its guarantee, or
    /// one more than it holds if that is more.
    pub(super) fn user_max(&self, phase: Phase, cluster: &Cluster) -> f64 {
        let guaranteed = self.guaranteed_slots(phase, cluster);
        let has = guaranteed.ceil().max(f64::from(self.held_slots[phase]) + 1.0);
        let users = self.users.values().filter(|user| user.jobs > 0).count().max(1) as f64;
        let limit = (has / users).ceil().max((has * self.user_limit).ceil());
        // A queue without a guarantee has no maximum per user.
        let max = if guaranteed > 0.0 { (guaranteed * self.user_factor).ceil().max(1.0) } else { limit };
        limit.min(max)
    }

    pub(super) fn user_held(&self, user: &str, phase: Phase) -> f64 {
        self.users.get(user).map_or(0.0, |user| f64::from(user.held[phase]))
    }

    pub(super) fn jobs_in_order(&self, phase: Phase) -> impl Iterator<Item = JobId> + '_ {
        self.waiting_jobs[phase].iter().map(|(_, job)| *job)
    }

    pub(super) fn jobs_ahead_of(&self, job: &Job, phase: Phase) -> usize {
        self.waiting_jobs[phase].range(..(Reverse(job.spec.priority), job.id)).count()
    }

    /// Returns the number of slots that the jobs of the queue could use, with each user at most at
    /// its limit.
    pub(super) fn demand(&self, phase: Phase, cluster: &Cluster) -> f64 {
        let mut users: BTreeMap<&str, f64> = BTreeMap::new();
        for job in self.jobs.iter().filter_map(|job| cluster.job(*job)) {
            *users.entry(&job.spec.user).or_default() += demand(job, phase, cluster);
        }
        let max = self.user_max(phase, cluster);
        users.values().map(|wanted| wanted.min(max)).sum()
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }
}

#[derive(Debug)]
struct JobEntry {
    queue: usize,
    user: String,
    held: PerPhase<u32>,
}

/// The tree of queues. The first queue is the root, which is the whole cluster.
#[derive(Debug)]
pub(super) struct Queues {
    queues: Vec<Queue>,
    jobs: BTreeMap<JobId, JobEntry>,
}

impl Queues {
    pub(super) fn new(section: &mut Section<'_>) -> Self {
        let root = Queue { guaranteed_part: 1.0, max_part: 1.0, user_limit: 1.0, ..Queue::default() };
        let mut queues = Self { queues: vec![root], jobs: BTreeMap::new() };
        let mut names = section.names("queues");
        names.insert("default".into());
        // The name of a queue starts with that of its parent, so parents come first.
        for name in names {
            queues.add_queue(section, &name);
        }
        queues
    }

    fn add_queue(&mut self, section: &mut Section<'_>, name: &str) {
        let above = name.rsplit_once('.').map_or("", |(above, _)| above);
        let Some(parent) = self.queues.iter().position(|queue| queue.name == above) else {
            return section.refuse(format!("queue {name} has the parent {above}, which is not configured"));
        };
        let key = |field: &str| format!("queues.{name}.{field}");
        let taken: f64 =
            self.queues[parent].children.iter().map(|child| self.queues[*child].guaranteed_part).sum();
        let (whole, ceiling) = (self.queues[parent].guaranteed_part, self.queues[parent].max_part);
        // The default queue gets the remainder of 100 percent at the top level.
        let remainder = if name == "default" { (100.0 - percent_of_others(section)).max(0.0) } else { 0.0 };
        let capacity = section.number(
            &key("capacity"),
            remainder,
            0.0..=100.0,
            "guarantee of the queue, as a percentage of its parent's guarantee",
        );
        let max = section.number(
            &key("max_capacity"),
            100.0,
            0.0..=100.0,
            "maximum of the queue, as a percentage of its parent's maximum",
        );
        let about = "percentage of the queue that each user may hold even if there are many users";
        let user_limit = section.number(&key("user_limit"), 100.0, 1.0..=100.0, about);
        let about = "maximum of one user, in multiples of the guarantee of the queue";
        let user_factor = section.number(&key("user_factor"), 1000.0, 0.01..=1000.0, about);
        let guaranteed = whole * capacity / 100.0;
        if taken + guaranteed > whole + 1e-9 {
            section.refuse(format!(
                "queue {name} and the other queues with the same parent are guaranteed more than 100 percent in total"
            ));
        }
        if max < capacity {
            section.refuse(format!("queue {name} has a max_capacity below its capacity"));
        }
        let number = self.queues.len();
        self.queues[parent].children.push(number);
        self.queues.push(Queue {
            name: name.to_owned(),
            parent: Some(parent),
            guaranteed_part: guaranteed,
            max_part: ceiling * max / 100.0,
            user_limit: user_limit / 100.0,
            user_factor,
            ..Queue::default()
        });
    }

    pub(super) fn queue_of(&self, job: JobId) -> Option<&Queue> {
        self.queue_number(job).map(|number| &self.queues[number])
    }

    pub(super) fn queue_number(&self, job: JobId) -> Option<usize> {
        self.jobs.get(&job).map(|entry| entry.queue)
    }

    /// Returns the queues that can contain jobs.
    pub(super) fn leaves(&self) -> impl Iterator<Item = (usize, &Queue)> {
        self.queues.iter().enumerate().skip(1).filter(|(_, queue)| queue.is_leaf())
    }

    /// Returns the leaves that may get another slot. At each level of the tree, the queue that
    /// holds the smallest fraction of its guarantee comes first.
    pub(super) fn leaves_in_order(&self, phase: Phase, cluster: &Cluster) -> Vec<&Queue> {
        let mut leaves = Vec::new();
        self.collect_leaves(0, phase, cluster, &mut leaves);
        leaves
    }

    fn collect_leaves<'a>(
        &'a self,
        number: usize,
        phase: Phase,
        cluster: &Cluster,
        leaves: &mut Vec<&'a Queue>,
    ) {
        let queue = &self.queues[number];
        if f64::from(queue.held_slots[phase]) + 1.0 > queue.max_slots(phase, cluster) {
            return;
        }
        if queue.is_leaf() {
            if !queue.waiting_jobs[phase].is_empty() {
                leaves.push(queue);
            }
            return;
        }
        let mut children = queue.children.clone();
        let used_part = |number: &usize| {
            let child = &self.queues[*number];
            let (held, guaranteed) =
                (f64::from(child.held_slots[phase]), child.guaranteed_slots(phase, cluster));
            // A queue without a guarantee comes after all queues that are within their guarantee.
            Real(if guaranteed > 0.0 { held / guaranteed } else { 1.0 + held })
        };
        children.sort_by_key(|number| (used_part(number), *number));
        for child in children {
            self.collect_leaves(child, phase, cluster, leaves);
        }
    }

    /// Returns the ancestors of two queues, or the queues themselves, just below their lowest
    /// common ancestor; `None` if the queues are the same.
    pub(super) fn diverging_queues(&self, a: usize, b: usize) -> Option<(usize, usize)> {
        let (from_a, from_b) = (self.path(a), self.path(b));
        let mut levels = from_a.iter().rev().zip(from_b.iter().rev());
        levels.find(|(a, b)| a != b).map(|(a, b)| (*a, *b))
    }

    /// Returns a queue and all its ancestors, the root last.
    fn path(&self, number: usize) -> Vec<usize> {
        std::iter::successors(Some(number), |number| self.queues[*number].parent).collect()
    }

    /// Returns the number of slots that a queue holds, without those being preempted, and its
    /// guarantee.
    pub(super) fn slots_and_guarantee(&self, number: usize, phase: Phase, plan: &Plan<'_>) -> (f64, f64) {
        (
            self.retained_slots(number, phase, plan),
            self.queues[number].guaranteed_slots(phase, plan.cluster()),
        )
    }

    fn retained_slots(&self, number: usize, phase: Phase, plan: &Plan<'_>) -> f64 {
        let queue = &self.queues[number];
        let jobs = queue.jobs.iter().filter_map(|job| plan.cluster().job(*job));
        let own: f64 = jobs.map(|job| f64::from(plan.retained_slots(job, phase))).sum();
        own + queue.children.iter().map(|child| self.retained_slots(*child, phase, plan)).sum::<f64>()
    }

    /// Returns whether a queue and all its ancestors may hold another slot.
    pub(super) fn has_room(&self, number: usize, phase: Phase, plan: &Plan<'_>) -> bool {
        let below_max = |number: &usize| {
            self.retained_slots(*number, phase, plan) + 1.0
                <= self.queues[*number].max_slots(phase, plan.cluster())
        };
        self.path(number).iter().all(below_max)
    }

    /// Returns for every other leaf how many of its slots may be preempted for `leaf`. Slots within
    /// the guarantee of the other leaf, or of an ancestor that the two leaves do not share, are
    /// protected.
    pub(super) fn excess_of_others(
        &self,
        leaf: usize,
        phase: Phase,
        plan: &Plan<'_>,
    ) -> BTreeMap<usize, f64> {
        let excess = |number: usize| {
            let (retained, guaranteed) = self.slots_and_guarantee(number, phase, plan);
            retained - guaranteed
        };
        let others =
            self.leaves().filter_map(|(other, _)| Some((other, self.diverging_queues(leaf, other)?.1)));
        let least = |(other, side): (usize, usize)| {
            let path = self.path(other);
            let upto = path.iter().position(|number| *number == side).unwrap_or(0);
            (other, path[..=upto].iter().map(|number| excess(*number)).fold(f64::INFINITY, f64::min))
        };
        others.map(least).collect()
    }

    /// Returns the leaf whose path is `name`, or the only leaf whose path ends with `name`; the
    /// default queue if there is no such leaf.
    fn leaf_for(&self, name: &str) -> usize {
        let whole = self.leaves().find(|(_, queue)| queue.name == name);
        let mut ends = self.leaves().filter(|(_, queue)| queue.name.rsplit('.').next() == Some(name));
        let by_end = || ends.next().filter(|_| ends.next().is_none());
        let default = || self.leaves().find(|(_, queue)| queue.name.starts_with("default"));
        whole.or_else(by_end).or_else(default).map_or(0, |(number, _)| number)
    }

    pub(super) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, spec, .. } => self.add_job(*job, spec),
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => self.end_job(*job),
            _ => {}
        }
        if let Some(job) = fact.job() {
            self.refresh(job, cluster);
        }
        if let Fact::JobForgotten { job } = fact {
            self.jobs.remove(job);
        }
    }

    fn add_job(&mut self, job: JobId, spec: &JobSpec) {
        let number = self.leaf_for(&spec.queue);
        let queue = &mut self.queues[number];
        queue.jobs.insert(job);
        queue.users.entry(spec.user.clone()).or_default().jobs += 1;
        let entry = JobEntry { queue: number, user: spec.user.clone(), held: PerPhase::default() };
        self.jobs.insert(job, entry);
    }

    fn end_job(&mut self, job: JobId) {
        let Some(entry) = self.jobs.get(&job) else { return };
        let queue = &mut self.queues[entry.queue];
        if queue.jobs.remove(&job)
            && let Some(user) = queue.users.get_mut(&entry.user)
        {
            user.jobs -= 1;
        }
    }

    /// Updates the data of a job from the cluster.
    pub(super) fn refresh(&mut self, id: JobId, cluster: &Cluster) {
        let Some(number) = self.queue_number(id) else { return };
        for phase in Phase::BOTH {
            let job = cluster.job(id);
            self.set_held_slots(id, phase, job.map_or(0, |job| job.running[phase].len() as u32));
            if let Some(job) = job {
                let order = (Reverse(job.spec.priority), id);
                let queue = &mut self.queues[number].waiting_jobs[phase];
                if job.may_start(phase) && !job.pending[phase].is_empty() {
                    queue.insert(order);
                } else {
                    queue.remove(&order);
                }
            }
        }
    }

    /// Counts a slot that this round gives to a job. Calling `refresh` reverts it.
    pub(super) fn charge(&mut self, job: JobId, phase: Phase) {
        if let Some(held) = self.jobs.get(&job).map(|entry| entry.held[phase]) {
            self.set_held_slots(job, phase, held + 1);
        }
    }

    fn set_held_slots(&mut self, job: JobId, phase: Phase, held: u32) {
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        let before = std::mem::replace(&mut entry.held[phase], held);
        if held == before {
            return;
        }
        let user = self.queues[entry.queue].users.entry(entry.user.clone()).or_default();
        user.held[phase] = user.held[phase] + held - before;
        let mut at = Some(entry.queue);
        while let Some(number) = at {
            let queue = &mut self.queues[number];
            queue.held_slots[phase] = queue.held_slots[phase] + held - before;
            at = queue.parent;
        }
    }
}

/// Returns the sum of the configured percentages of the other queues at the top level.
fn percent_of_others(section: &Section<'_>) -> f64 {
    let tops = section.names("queues").into_iter().filter(|name| !name.contains('.') && name != "default");
    tops.filter_map(|name| section.peek(&format!("queues.{name}.capacity"))).sum()
}
