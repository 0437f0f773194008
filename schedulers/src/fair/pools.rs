//! Pools, their slots, and the order in which they get slots, updated with every fact, so that a
//! decision needs no scan.

use crate::{
    estimate::demand,
    params::Section,
    ranked_queue::{RankedQueue, Real},
    shares::{Claim, divide},
};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan,
    ids::JobId,
    job::{Job, JobSpec, Priority},
};
use std::collections::{BTreeMap, BTreeSet};

/// Pools below their minimum share first, by the part of it that they hold; then by slots relative
/// to weight.
type OrderKey = (bool, Real);

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) weight: f64,
    pub(super) min: PerPhase<u32>,
    pub(super) max_jobs: Option<u32>,
    pub(super) fifo: bool,
    /// Slots of its jobs, including finished jobs whose attempts have not ended.
    pub(super) held: PerPhase<u32>,
    /// Its fair share, as last computed.
    pub(super) share: PerPhase<f64>,
    /// Its jobs that can use a slot, in order.
    order: PerPhase<RankedQueue<JobId, Real>>,
    /// Its running jobs, oldest first. Only the first `max_jobs` get slots.
    jobs: BTreeSet<JobId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Member {
    pool: usize,
    weight: f64,
    held: PerPhase<u32>,
    share: PerPhase<f64>,
}

#[derive(Debug)]
pub(super) struct Pools {
    by_queue: bool,
    settings: BTreeMap<String, Settings>,
    numbers: BTreeMap<String, usize>,
    all: Vec<Pool>,
    members: BTreeMap<JobId, Member>,
    order: PerPhase<RankedQueue<usize, OrderKey>>,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    weight: f64,
    min: PerPhase<u32>,
    max_jobs: Option<u32>,
    fifo: bool,
}

impl Settings {
    fn read(section: &mut Section<'_>, name: &str) -> Self {
        let key = |field: &str| format!("pools.{name}.{field}");
        Self {
            weight: section.number(&key("weight"), 1.0, 0.001..=1000.0, "weight relative to other pools"),
            min: PerPhase {
                map: section.count(&key("min_maps"), 0, "minimum share of map slots, which is served first"),
                reduce: section.count(
                    &key("min_reduces"),
                    0,
                    "minimum share of reduce slots, which is served first",
                ),
            },
            max_jobs: section.limit(&key("max_jobs"), "maximum number of jobs that run at the same time"),
            fifo: section.choice(&key("order"), &[("fair", false), ("fifo", true)], "order of its jobs"),
        }
    }
}

impl Pools {
    pub(super) fn new(section: &mut Section<'_>) -> Self {
        let words = [("user", false), ("queue", true)];
        let by_queue = section.choice("pool_by", &words, "what determines the pool of a job");
        // `pools.default` applies to pools that are not configured.
        let mut names = section.names("pools");
        names.insert("default".into());
        let settings = names.into_iter().map(|name| {
            let read = Settings::read(section, &name);
            (name, read)
        });
        let settings = settings.collect();
        Self {
            by_queue,
            settings,
            numbers: BTreeMap::new(),
            all: Vec::new(),
            members: BTreeMap::new(),
            order: PerPhase::default(),
        }
    }

    pub(super) fn of(&self, job: JobId) -> Option<&Pool> {
        self.members.get(&job).map(|member| &self.all[member.pool])
    }

    /// Returns the number of the pool of a job: its position in `iter`.
    pub(super) fn number(&self, job: JobId) -> Option<usize> {
        self.members.get(&job).map(|member| member.pool)
    }

    pub(super) fn job_share(&self, job: JobId, phase: Phase) -> f64 {
        self.members.get(&job).map_or(0.0, |member| member.share[phase])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.all.iter()
    }

    /// Returns the jobs that can use a slot, with their pools, in the order in which they get a
    /// slot.
    pub(super) fn in_order(&self, phase: Phase) -> impl Iterator<Item = (&Pool, JobId)> {
        self.order[phase].iter().flat_map(move |number| {
            let pool = &self.all[number];
            pool.order[phase].iter().map(move |job| (pool, job))
        })
    }

    /// Returns the number of jobs that would get a slot before this one.
    pub(super) fn ahead_of(&self, job: JobId, phase: Phase) -> usize {
        self.in_order(phase).take_while(|(_, other)| *other != job).count()
    }

    pub(super) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, spec, .. } => self.join(*job, spec),
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => self.leave(*job, cluster),
            _ => {}
        }
        if let Some(job) = fact.job() {
            self.refresh(job, cluster);
        }
        if let Fact::JobForgotten { job } = fact {
            self.members.remove(job);
        }
        let divides = matches!(
            fact,
            Fact::JobTrackerStarted { .. }
                | Fact::JobSubmitted { .. }
                | Fact::JobCommitting { .. }
                | Fact::JobEnded { .. }
        );
        if divides || fact.changes_slots_of().is_some() {
            self.divide(cluster);
        }
    }

    fn join(&mut self, job: JobId, spec: &JobSpec) {
        let name = if self.by_queue { &spec.queue } else { &spec.user };
        let next = self.all.len();
        let pool = *self.numbers.entry(name.clone()).or_insert(next);
        if pool == next {
            let Settings { weight, min, max_jobs, fifo } =
                *self.settings.get(name).unwrap_or(&self.settings["default"]);
            self.all.push(Pool {
                name: name.clone(),
                weight,
                min,
                max_jobs,
                fifo,
                held: PerPhase::default(),
                share: PerPhase::default(),
                order: PerPhase::default(),
                jobs: BTreeSet::new(),
            });
        }
        self.all[pool].jobs.insert(job);
        self.members.insert(job, Member { pool, weight: weight(spec.priority), ..Member::default() });
    }

    /// Removes a job that has ended from its pool, so that another job of the pool may run.
    fn leave(&mut self, job: JobId, cluster: &Cluster) {
        let Some(member) = self.members.get(&job) else { return };
        let pool = &mut self.all[member.pool];
        pool.jobs.remove(&job);
        let most = pool.max_jobs.unwrap_or(0) as usize;
        if let Some(next) = most.checked_sub(1).and_then(|last| pool.jobs.iter().nth(last)).copied() {
            self.refresh(next, cluster);
        }
    }

    /// Updates the data of a job from the cluster.
    pub(super) fn refresh(&mut self, job: JobId, cluster: &Cluster) {
        let Some(member) = self.members.get(&job) else { return };
        let (pool, weight) = (member.pool, member.weight);
        let known = cluster.job(job);
        for phase in Phase::BOTH {
            let held = known.map_or(0, |job| job.running[phase].len() as u32);
            self.set_held(job, phase, held);
            let may = known.is_some_and(|job| job.may_start(phase) && !job.pending[phase].is_empty());
            let may = may && !self.all[pool].is_waiting_for_pool(job);
            self.update_order(job, pool, phase, may.then_some((held, weight)));
        }
    }

    /// Counts a slot that this round gives to a job. `refresh` reverts this.
    pub(super) fn charge(&mut self, job: JobId, phase: Phase) {
        let Some(member) = self.members.get(&job).copied() else { return };
        let held = member.held[phase] + 1;
        self.set_held(job, phase, held);
        self.update_order(job, member.pool, phase, Some((held, member.weight)));
    }

    fn set_held(&mut self, job: JobId, phase: Phase, held: u32) {
        let Some(member) = self.members.get_mut(&job) else { return };
        let before = std::mem::replace(&mut member.held[phase], held);
        let pool = &mut self.all[member.pool];
        pool.held[phase] = pool.held[phase] + held - before;
    }

    fn update_order(&mut self, job: JobId, number: usize, phase: Phase, waits: Option<(u32, f64)>) {
        let pool = &mut self.all[number];
        // By priority, which the weight stands for. Jobs with equal keys are ordered by ID, that is
        // by age.
        let in_order =
            |(held, weight): (u32, f64)| Real(if pool.fifo { -weight } else { f64::from(held) / weight });
        pool.order[phase].set(job, waits.map(in_order));
        let (held, min) = (pool.held[phase], pool.min[phase]);
        let order = if held < min {
            (false, Real(f64::from(held) / f64::from(min)))
        } else {
            (true, Real(f64::from(held) / pool.weight))
        };
        self.order[phase].set(number, (!pool.order[phase].is_empty()).then_some(order));
    }

    /// Divides all slots among the pools, and the slots of each pool among its jobs.
    pub(super) fn divide(&mut self, cluster: &Cluster) {
        for phase in Phase::BOTH {
            let jobs: Vec<Vec<(JobId, Claim)>> = self
                .all
                .iter()
                .map(|pool| {
                    let runs = pool.jobs.iter().filter(|job| !pool.is_waiting_for_pool(**job));
                    let claim = |job: &Job| Claim {
                        weight: weight(job.spec.priority),
                        min: 0.0,
                        demand: demand(job, phase),
                    };
                    runs.filter_map(|job| Some((*job, claim(cluster.job(*job)?)))).collect()
                })
                .collect();
            let claims: Vec<Claim> = self
                .all
                .iter()
                .zip(&jobs)
                .map(|(pool, jobs)| {
                    let demand = jobs.iter().map(|(_, claim)| claim.demand).sum();
                    Claim { weight: pool.weight, min: f64::from(pool.min[phase]), demand }
                })
                .collect();
            let shares = divide(f64::from(cluster.slots(phase)), &claims);
            for ((pool, share), jobs) in self.all.iter_mut().zip(shares).zip(jobs) {
                pool.share[phase] = share;
                let claims: Vec<Claim> = jobs.iter().map(|(_, claim)| *claim).collect();
                for ((job, _), share) in jobs.iter().zip(divide(share, &claims)) {
                    if let Some(member) = self.members.get_mut(job) {
                        member.share[phase] = share;
                    }
                }
            }
        }
    }
}

impl Pool {
    /// Returns whether a job waits because its pool runs its maximum number of jobs.
    pub(super) fn is_waiting_for_pool(&self, job: JobId) -> bool {
        let most = self.max_jobs.map_or(usize::MAX, |most| most as usize);
        self.jobs.len() > most && !self.jobs.iter().take(most).any(|first| *first == job)
    }

    /// Returns the number of slots that the running jobs of the pool hold, without those being
    /// preempted.
    pub(super) fn retained(&self, phase: Phase, plan: &Plan<'_>) -> f64 {
        let jobs = self.jobs.iter().filter_map(|job| plan.cluster().job(*job));
        jobs.map(|job| f64::from(plan.retained_slots(job, phase))).sum()
    }

    /// Returns the running jobs of the pool.
    pub(super) fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.iter().copied()
    }
}

/// Returns the weight of a job with this priority. As in Hadoop, each level doubles the weight.
fn weight(priority: Priority) -> f64 {
    match priority {
        Priority::VeryLow => 0.25,
        Priority::Low => 0.5,
        Priority::Normal => 1.0,
        Priority::High => 2.0,
        Priority::VeryHigh => 4.0,
    }
}
