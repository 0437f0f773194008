//! Users with their slots, minimum shares, and pending jobs by kind. They are updated with every
//! fact.

use crate::{
    params::Section,
    ranked_queue::{RankedQueue, Real},
};
use mrcore::{
    Cluster, PerPhase, Phase, Plan, Span,
    ids::JobId,
    job::{Job, Priority},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The position of a job among those of its user.
type JobRank = (Reverse<Priority>, JobId);

/// Pending jobs of each kind, in order.
type JobsByKind = BTreeMap<usize, BTreeSet<JobRank>>;

#[derive(Debug)]
pub(super) struct User {
    pub(super) weight: f64,
    pub(super) min_slots: PerPhase<u32>,
    held_slots: PerPhase<u32>,
    /// Jobs with pending tasks that may start, by kind, ordered by priority and then by age.
    waiting_jobs: PerPhase<JobsByKind>,
    /// The waiting jobs that may also run on nodes that are not suggested for their kind.
    any_node_jobs: PerPhase<JobsByKind>,
    jobs: BTreeSet<JobId>,
    /// Whether slots and minimum shares of both phases count together.
    joint: bool,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    weight: f64,
    min_slots: PerPhase<u32>,
    /// Given durations of tasks, on a node of speed 1. Without them, durations are learned.
    task_time: PerPhase<Option<Span>>,
}

/// What is known about a job.
#[derive(Debug, Clone, Copy)]
struct JobEntry {
    user: usize,
    kind: usize,
    rank: JobRank,
    held: PerPhase<u32>,
}

#[derive(Debug)]
pub(super) struct Users {
    settings: BTreeMap<String, Settings>,
    number_of_name: BTreeMap<String, usize>,
    users: Vec<User>,
    jobs: BTreeMap<JobId, JobEntry>,
    /// Users with pending jobs, ordered by slots relative to weight.
    waiting_users: PerPhase<RankedQueue<usize, Real>>,
    /// Users with a minimum share.
    with_min_share: Vec<usize>,
    /// Whether a user has one share of all slots, as in the paper, and not one for each phase.
    pub(super) joint_shares: bool,
}

impl Users {
    pub(super) fn new(section: &mut Section<'_>) -> Self {
        // `users.default` applies to users that are not configured.
        let mut names = section.names("users");
        names.insert("default".into());
        let about = "duration of a task of this user on a node of speed 1, if it is given and not learned";
        let read = |name: String| {
            let key = |field: &str| format!("users.{name}.{field}");
            let settings = Settings {
                weight: section.number(&key("weight"), 1.0, 0.001..=1000.0, "weight relative to other users"),
                min_slots: PerPhase {
                    map: section.count(
                        &key("min_maps"),
                        0,
                        "minimum share of map slots, which is served first",
                    ),
                    reduce: section.count(
                        &key("min_reduces"),
                        0,
                        "minimum share of reduce slots, which is served first",
                    ),
                },
                task_time: PerPhase {
                    map: section.span_or("learned", &key("map_time"), None, about),
                    reduce: section.span_or("learned", &key("reduce_time"), None, about),
                },
            };
            (name, settings)
        };
        Self {
            settings: names.into_iter().map(read).collect(),
            number_of_name: BTreeMap::new(),
            users: Vec::new(),
            jobs: BTreeMap::new(),
            waiting_users: PerPhase::default(),
            with_min_share: Vec::new(),
            joint_shares: false,
        }
    }

    fn settings_of(&self, name: &str) -> Settings {
        *self.settings.get(name).unwrap_or(&self.settings["default"])
    }

    /// Returns the given durations of the tasks of a user in seconds.
    pub(super) fn given_seconds(&self, name: &str) -> PerPhase<Option<f64>> {
        let PerPhase { map, reduce } = self.settings_of(name).task_time;
        PerPhase { map: map.map(Span::as_secs_f64), reduce: reduce.map(Span::as_secs_f64) }
    }

    /// Returns the number of a user. A new user gets the next number.
    pub(super) fn user_number(&mut self, name: &str) -> usize {
        if let Some(number) = self.number_of_name.get(name) {
            return *number;
        }
        let number = self.users.len();
        let Settings { weight, min_slots, .. } = self.settings_of(name);
        self.number_of_name.insert(name.to_owned(), number);
        self.users.push(User {
            weight,
            min_slots,
            held_slots: PerPhase::default(),
            waiting_jobs: PerPhase::default(),
            any_node_jobs: PerPhase::default(),
            jobs: BTreeSet::new(),
            joint: self.joint_shares,
        });
        if min_slots != PerPhase::default() {
            self.with_min_share.push(number);
        }
        number
    }

    pub(super) fn user(&self, number: usize) -> &User {
        &self.users[number]
    }

    pub(super) fn user_of(&self, job: JobId) -> Option<&User> {
        self.jobs.get(&job).map(|entry| &self.users[entry.user])
    }

    pub(super) fn kind_of(&self, job: JobId) -> Option<usize> {
        self.jobs.get(&job).map(|entry| entry.kind)
    }

    pub(super) fn add_job(&mut self, job: &Job, user: usize, kind: usize) {
        let rank = (Reverse(job.spec.priority), job.id);
        self.users[user].jobs.insert(job.id);
        self.jobs.insert(job.id, JobEntry { user, kind, rank, held: PerPhase::default() });
    }

    /// Removes a job that has ended from the running jobs of its user. Returns whether it was
    /// running.
    pub(super) fn end_job(&mut self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|entry| self.users[entry.user].jobs.remove(&job))
    }

    pub(super) fn forget_job(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Updates the data of a job from the cluster.
    pub(super) fn refresh(&mut self, id: JobId, cluster: &Cluster) {
        let Some(entry) = self.jobs.get(&id).copied() else { return };
        let job = cluster.job(id);
        for phase in Phase::BOTH {
            self.set_held_slots(id, phase, job.map_or(0, |job| job.running[phase].len() as u32));
            let waits = job.filter(|job| job.may_start(phase) && !job.pending[phase].is_empty());
            let user = &mut self.users[entry.user];
            set_waiting(&mut user.waiting_jobs[phase], entry, waits.is_some());
            set_waiting(&mut user.any_node_jobs[phase], entry, waits.is_some_and(may_need_other_nodes));
            self.update_order(entry.user, phase);
        }
    }

    /// Counts a slot that this round gives to a job. Calling `refresh` reverts it.
    pub(super) fn charge(&mut self, job: JobId, phase: Phase) {
        let Some(entry) = self.jobs.get(&job).copied() else { return };
        self.set_held_slots(job, phase, entry.held[phase] + 1);
        self.update_order(entry.user, phase);
    }

    fn set_held_slots(&mut self, job: JobId, phase: Phase, held: u32) {
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        let before = std::mem::replace(&mut entry.held[phase], held);
        let user = &mut self.users[entry.user];
        user.held_slots[phase] = user.held_slots[phase] + held - before;
    }

    fn update_order(&mut self, number: usize, phase: Phase) {
        let user = &self.users[number];
        for phase in Phase::BOTH.into_iter().filter(|each| *each == phase || user.joint) {
            let share = Real(f64::from(user.held(phase)) / user.weight);
            self.waiting_users[phase].set(number, (!user.waiting_jobs[phase].is_empty()).then_some(share));
        }
    }

    /// Returns the users of stage 1: those below their minimum share with pending jobs, ordered by
    /// missing slots times weight, the greatest first. `lot` orders users in the same position.
    pub(super) fn users_below_minimum(&self, phase: Phase, lot: impl Fn(usize) -> u64) -> Vec<usize> {
        let lacks = |number: usize| {
            let user = &self.users[number];
            let deficit = user.minimum(phase).saturating_sub(user.held(phase));
            (deficit > 0 && !user.waiting_jobs[phase].is_empty())
                .then(|| Reverse(Real(f64::from(deficit) * user.weight)))
        };
        let mut below_minimum: Vec<(Reverse<Real>, u64, usize)> = self
            .with_min_share
            .iter()
            .filter_map(|number| Some((lacks(*number)?, lot(*number), *number)))
            .collect();
        below_minimum.sort_unstable();
        below_minimum.into_iter().map(|(_, _, number)| number).collect()
    }

    /// Returns the users of [`Self::users_in_order`], with users in the same position ordered by
    /// `lot`.
    pub(super) fn users_by_lot(&self, phase: Phase, lot: impl Fn(usize) -> u64) -> Vec<usize> {
        let mut users: Vec<(Option<Real>, u64, usize)> = self.waiting_users[phase]
            .iter()
            .map(|number| (self.waiting_users[phase].key(number), lot(number), number))
            .collect();
        users.sort_unstable();
        users.into_iter().map(|(_, _, number)| number).collect()
    }

    /// Returns the users of stage 2: those with pending jobs, ordered by slots relative to weight.
    pub(super) fn users_in_order(&self, phase: Phase) -> impl Iterator<Item = usize> + '_ {
        self.waiting_users[phase].iter()
    }

    /// Returns the number of users that come before the user of a job.
    pub(super) fn users_ahead_of(&self, job: JobId, phase: Phase) -> usize {
        let user = self.jobs.get(&job).map_or(0, |entry| entry.user);
        self.waiting_users[phase].ahead_of(user).count()
    }
}

/// Adds a job to the queue of its kind, or removes it.
fn set_waiting(jobs_by_kind: &mut JobsByKind, JobEntry { kind, rank, .. }: JobEntry, waits: bool) {
    if waits {
        jobs_by_kind.entry(kind).or_default().insert(rank);
    } else if let Some(queue) = jobs_by_kind.get_mut(&kind) {
        queue.remove(&rank);
        if queue.is_empty() {
            jobs_by_kind.remove(&kind);
        }
    }
}

/// Returns whether a job may have tasks that cannot run where its class is suggested, because they
/// failed there or because their checkpoint is elsewhere. Such tasks may run on any node, otherwise
/// they could wait forever.
fn may_need_other_nodes(job: &Job) -> bool {
    !job.failures.is_empty() || !job.blacklist.is_empty() || job.preemption.pauses > 0
}

impl User {
    /// Returns the first value that `take` returns for a pending job, in the order of the jobs.
    /// Jobs of kinds that are not suggested are tried only if they may run on any node.
    pub(super) fn find_job<T>(
        &self,
        phase: Phase,
        is_suggested: impl Fn(usize) -> bool,
        take: impl Fn(bool, JobId) -> Option<T>,
    ) -> Option<T> {
        let firsts = self.waiting_jobs[phase].iter().filter_map(|(kind, queue)| {
            let suggested = is_suggested(*kind);
            let queue = if suggested { queue } else { self.any_node_jobs[phase].get(kind)? };
            queue.iter().find_map(|rank| take(suggested, rank.1).map(|taken| (*rank, taken)))
        });
        firsts.min_by_key(|(rank, _)| *rank).map(|(_, taken)| taken)
    }

    /// Returns the sum over the phases that count together with `phase`.
    fn total(&self, phase: Phase, slots: impl Fn(Phase) -> u32) -> u32 {
        if self.joint { Phase::BOTH.into_iter().map(slots).sum() } else { slots(phase) }
    }

    /// Returns the number of slots that the user holds.
    pub(super) fn held(&self, phase: Phase) -> u32 {
        self.total(phase, |phase| self.held_slots[phase])
    }

    /// Returns the minimum share.
    pub(super) fn minimum(&self, phase: Phase) -> u32 {
        self.total(phase, |phase| self.min_slots[phase])
    }

    /// Returns the number of slots that the running jobs of the user hold, without those being
    /// preempted.
    pub(super) fn retained_slots(&self, phase: Phase, plan: &Plan<'_>) -> u32 {
        let jobs = || self.jobs.iter().filter_map(|job| plan.cluster().job(*job));
        self.total(phase, |phase| jobs().map(|job| plan.retained_slots(job, phase)).sum())
    }
}
