//! Users, their slots and minimum shares, and their pending jobs by kind, updated with every fact.

use crate::{
    params::Section,
    ranked_queue::{RankedQueue, Real},
};
use mrcore::{
    Cluster, PerPhase, Phase, Plan,
    ids::JobId,
    job::{Job, Priority},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The position of a job among those of its user.
type JobRank = (Reverse<Priority>, JobId);

/// Pending jobs in order, by kind.
type Lines = BTreeMap<usize, BTreeSet<JobRank>>;

/// A user.
#[derive(Debug)]
pub(super) struct User {
    pub(super) weight: f64,
    pub(super) min: PerPhase<u32>,
    pub(super) held: PerPhase<u32>,
    /// Jobs with pending tasks that may start, by kind, ordered by priority and then by age.
    waiting: PerPhase<Lines>,
    /// Those among them that may also run on nodes that are not suggested for their kind.
    unbound: PerPhase<Lines>,
    jobs: BTreeSet<JobId>,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    weight: f64,
    min: PerPhase<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    user: usize,
    kind: usize,
    place: JobRank,
    held: PerPhase<u32>,
}

#[derive(Debug)]
pub(super) struct Users {
    settings: BTreeMap<String, Settings>,
    numbers: BTreeMap<String, usize>,
    all: Vec<User>,
    members: BTreeMap<JobId, Member>,
    /// Users with pending jobs, ordered by slots relative to weight.
    order: PerPhase<RankedQueue<usize, Real>>,
    /// Users with a minimum share.
    with_min_share: Vec<usize>,
}

impl Users {
    pub(super) fn new(section: &mut Section<'_>) -> Self {
        // `users.default` applies to users that are not configured.
        let mut names = section.names("users");
        names.insert("default".into());
        let read = |name: String| {
            let key = |field: &str| format!("users.{name}.{field}");
            let settings = Settings {
                weight: section.number(&key("weight"), 1.0, 0.001..=1000.0, "weight relative to other users"),
                min: PerPhase {
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
            };
            (name, settings)
        };
        Self {
            settings: names.into_iter().map(read).collect(),
            numbers: BTreeMap::new(),
            all: Vec::new(),
            members: BTreeMap::new(),
            order: PerPhase::default(),
            with_min_share: Vec::new(),
        }
    }

    /// Returns the number of a user. A new user gets the next number.
    pub(super) fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.all.len();
        let Settings { weight, min } = *self.settings.get(name).unwrap_or(&self.settings["default"]);
        self.numbers.insert(name.to_owned(), number);
        self.all.push(User {
            weight,
            min,
            held: PerPhase::default(),
            waiting: PerPhase::default(),
            unbound: PerPhase::default(),
            jobs: BTreeSet::new(),
        });
        if min != PerPhase::default() {
            self.with_min_share.push(number);
        }
        number
    }

    pub(super) fn get(&self, number: usize) -> &User {
        &self.all[number]
    }

    pub(super) fn of(&self, job: JobId) -> Option<&User> {
        self.members.get(&job).map(|member| &self.all[member.user])
    }

    pub(super) fn kind_of(&self, job: JobId) -> Option<usize> {
        self.members.get(&job).map(|member| member.kind)
    }

    pub(super) fn join(&mut self, job: &Job, user: usize, kind: usize) {
        let place = (Reverse(job.spec.priority), job.id);
        self.all[user].jobs.insert(job.id);
        self.members.insert(job.id, Member { user, kind, place, held: PerPhase::default() });
    }

    /// Removes a job that has ended from the running jobs of its user. Returns whether it was
    /// running.
    pub(super) fn leave(&mut self, job: JobId) -> bool {
        self.members.get(&job).is_some_and(|member| self.all[member.user].jobs.remove(&job))
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.members.remove(&job);
    }

    /// Updates the data of a job from the cluster.
    pub(super) fn refresh(&mut self, id: JobId, cluster: &Cluster) {
        let Some(member) = self.members.get(&id).copied() else { return };
        let job = cluster.job(id);
        for phase in Phase::BOTH {
            self.set_held(id, phase, job.map_or(0, |job| job.running[phase].len() as u32));
            let waits = job.filter(|job| job.may_start(phase) && !job.pending[phase].is_empty());
            let user = &mut self.all[member.user];
            put(&mut user.waiting[phase], member, waits.is_some());
            put(&mut user.unbound[phase], member, waits.is_some_and(has_failed_attempts));
            self.update_order(member.user, phase);
        }
    }

    /// Counts a slot that this round gives to a job. `refresh` reverts this.
    pub(super) fn charge(&mut self, job: JobId, phase: Phase) {
        let Some(member) = self.members.get(&job).copied() else { return };
        self.set_held(job, phase, member.held[phase] + 1);
        self.update_order(member.user, phase);
    }

    fn set_held(&mut self, job: JobId, phase: Phase, held: u32) {
        let Some(member) = self.members.get_mut(&job) else { return };
        let before = std::mem::replace(&mut member.held[phase], held);
        let user = &mut self.all[member.user];
        user.held[phase] = user.held[phase] + held - before;
    }

    fn update_order(&mut self, number: usize, phase: Phase) {
        let user = &self.all[number];
        let share = Real(f64::from(user.held[phase]) / user.weight);
        self.order[phase].set(number, (!user.waiting[phase].is_empty()).then_some(share));
    }

    /// Returns the users of stage 1: those below their minimum share with pending jobs, ordered by
    /// missing slots times weight, the greatest first.
    pub(super) fn below_minimum(&self, phase: Phase) -> Vec<usize> {
        let lacks = |number: usize| {
            let user = &self.all[number];
            let deficit = user.min[phase].saturating_sub(user.held[phase]);
            (deficit > 0 && !user.waiting[phase].is_empty())
                .then(|| Reverse(Real(f64::from(deficit) * user.weight)))
        };
        let mut below_minimum: Vec<(Reverse<Real>, usize)> =
            self.with_min_share.iter().filter_map(|number| Some((lacks(*number)?, *number))).collect();
        below_minimum.sort_unstable();
        below_minimum.into_iter().map(|(_, number)| number).collect()
    }

    /// Returns the users of stage 2: those with pending jobs, ordered by slots relative to weight.
    pub(super) fn in_order(&self, phase: Phase) -> impl Iterator<Item = usize> + '_ {
        self.order[phase].iter()
    }

    /// Returns the number of users that come before the user of a job.
    pub(super) fn ahead_of(&self, job: JobId, phase: Phase) -> usize {
        let user = self.members.get(&job).map_or(0, |member| member.user);
        self.order[phase].ahead_of(user).count()
    }
}

/// Adds a job to the queue of its kind, or removes it.
fn put(lines: &mut Lines, Member { kind, place, .. }: Member, is_in: bool) {
    if is_in {
        lines.entry(kind).or_default().insert(place);
    } else if let Some(queue) = lines.get_mut(&kind) {
        queue.remove(&place);
        if queue.is_empty() {
            lines.remove(&kind);
        }
    }
}

/// Returns whether a job may have tasks that cannot run where its class is suggested, because they
/// failed there or because their checkpoint is elsewhere. Such tasks may run on any node, otherwise
/// they could wait forever.
fn has_failed_attempts(job: &Job) -> bool {
    !job.failures.is_empty() || !job.blacklist.is_empty() || job.preemption.pauses > 0
}

impl User {
    /// Returns the first value that `take` returns for a pending job, in the order of the jobs.
    /// Jobs of kinds that are not suggested are tried only if they are unbound.
    pub(super) fn first<T>(
        &self,
        phase: Phase,
        is_suggested: impl Fn(usize) -> bool,
        take: impl Fn(bool, JobId) -> Option<T>,
    ) -> Option<T> {
        let firsts = self.waiting[phase].iter().filter_map(|(kind, queue)| {
            let suggested = is_suggested(*kind);
            let queue = if suggested { queue } else { self.unbound[phase].get(kind)? };
            queue.iter().find_map(|place| take(suggested, place.1).map(|taken| (*place, taken)))
        });
        firsts.min_by_key(|(place, _)| *place).map(|(_, taken)| taken)
    }

    /// Returns the number of slots that the running jobs of the user hold, without those being
    /// preempted.
    pub(super) fn retained(&self, phase: Phase, plan: &Plan<'_>) -> u32 {
        let jobs = self.jobs.iter().filter_map(|job| plan.cluster().job(*job));
        jobs.map(|job| plan.retained_slots(job, phase)).sum()
    }
}
