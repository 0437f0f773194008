//! Pools with their slots and the order in which they get slots. They are updated with every fact,
//! so that a decision needs no scan.

use crate::{
    estimate::demand,
    params::Section,
    ranked_queue::{RankedQueue, Real},
    shares::{Claim, divide},
};
use mrcore::{
    Cluster, Fact, PerPhase, Phase, Plan, Why,
    ids::JobId,
    job::{JobSpec, Priority},
};
use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

/// The position of a pool. Pools below their minimum share come first, ordered by the fraction of
/// the minimum share that they hold. The other pools are ordered by slots relative to weight.
type PoolRank = (bool, Real);

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) weight: f64,
    pub(crate) min: PerPhase<u32>,
    pub(crate) max_jobs: Option<u32>,
    pub(crate) fifo: bool,
    /// Number of slots that its jobs hold, including finished jobs whose attempts have not ended.
    pub(crate) held_slots: PerPhase<u32>,
    /// Its fair share, as last computed.
    pub(crate) fair_share: PerPhase<f64>,
    /// The sum of the demands of its jobs.
    demand: PerPhase<u32>,
    /// The weights and demands of its jobs when its fair share was last computed. Jobs without a
    /// demand are left out.
    claims: BTreeMap<JobId, (f64, PerPhase<u32>)>,
    /// The jobs whose demand has changed since then.
    changed_jobs: BTreeSet<JobId>,
    /// The shares of its jobs by `claims`. Few policies need them, so they are computed when one is
    /// asked for.
    job_shares: PerPhase<OnceCell<BTreeMap<JobId, f64>>>,
    /// Its jobs that can use a slot, in order.
    waiting_jobs: PerPhase<RankedQueue<JobId, Real>>,
    /// Its running jobs, oldest first. Only the first `max_jobs` get slots.
    jobs: BTreeSet<JobId>,
}

#[derive(Debug, Clone, Copy, Default)]
struct JobEntry {
    pool: usize,
    weight: f64,
    held: PerPhase<u32>,
    /// The number of slots that it can use; 0 while it waits for its pool.
    demand: PerPhase<u32>,
}

#[derive(Debug)]
pub(crate) struct Pools {
    by_queue: bool,
    settings: BTreeMap<String, Settings>,
    number_of_name: BTreeMap<String, usize>,
    pools: Vec<Pool>,
    jobs: BTreeMap<JobId, JobEntry>,
    waiting_pools: PerPhase<RankedQueue<usize, PoolRank>>,
    /// Whether tasks were delayed when a demand was computed. No fact says when a delay ends.
    has_seen_delays: bool,
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
    pub(crate) fn new(section: &mut Section<'_>) -> Self {
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
            number_of_name: BTreeMap::new(),
            pools: Vec::new(),
            jobs: BTreeMap::new(),
            waiting_pools: PerPhase::default(),
            has_seen_delays: false,
        }
    }

    pub(crate) fn pool_of(&self, job: JobId) -> Option<&Pool> {
        self.jobs.get(&job).map(|entry| &self.pools[entry.pool])
    }

    /// Returns the number of the pool of a job: its position in `iter`.
    pub(crate) fn pool_number(&self, job: JobId) -> Option<usize> {
        self.jobs.get(&job).map(|entry| entry.pool)
    }

    /// Returns the fair share of a job, as of the last call of `compute_shares`.
    pub(crate) fn job_share(&self, job: JobId, phase: Phase) -> f64 {
        let Some(pool) = self.pool_of(job) else { return 0.0 };
        let shares = pool.job_shares[phase].get_or_init(|| {
            let claim = |(weight, demand): &(f64, PerPhase<u32>)| Claim {
                weight: *weight,
                min: 0.0,
                demand: f64::from(demand[phase]),
            };
            let claims: Vec<Claim> = pool.claims.values().map(claim).collect();
            pool.claims.keys().copied().zip(divide(pool.fair_share[phase], &claims)).collect()
        });
        shares.get(&job).copied().unwrap_or(0.0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter()
    }

    /// Returns the jobs that can use a slot, with their pools, in the order in which they get a
    /// slot.
    pub(crate) fn jobs_in_order(&self, phase: Phase) -> impl Iterator<Item = (&Pool, JobId)> {
        self.waiting_pools[phase].iter().flat_map(move |number| {
            let pool = &self.pools[number];
            pool.waiting_jobs[phase].iter().map(move |job| (pool, job))
        })
    }

    /// Returns the number of jobs that would get a slot before this one.
    pub(crate) fn jobs_ahead_of(&self, job: JobId, phase: Phase) -> usize {
        self.jobs_in_order(phase).take_while(|(_, other)| *other != job).count()
    }

    /// Updates slots and order. Does not compute shares.
    pub(crate) fn observe(&mut self, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobSubmitted { job, spec, .. } => self.add_job(*job, spec),
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => self.end_job(*job, cluster),
            _ => {}
        }
        if let Some(job) = fact.job() {
            self.refresh(job, cluster);
        }
        if let Fact::JobForgotten { job } = fact {
            self.jobs.remove(job);
        }
    }

    /// Computes the shares again if a fact has changed the jobs or the slots. Called after
    /// `observe`.
    pub(crate) fn update_shares(&mut self, fact: &Fact, cluster: &Cluster) {
        let changes_demand = matches!(
            fact,
            Fact::JobTrackerStarted { .. }
                | Fact::JobSubmitted { .. }
                | Fact::JobCommitting { .. }
                | Fact::JobEnded { .. }
        );
        if changes_demand || fact.changes_slots_of().is_some() {
            self.compute_shares(cluster);
        }
    }

    fn add_job(&mut self, job: JobId, spec: &JobSpec) {
        let name = if self.by_queue { &spec.queue } else { &spec.user };
        let next = self.pools.len();
        let pool = *self.number_of_name.entry(name.clone()).or_insert(next);
        if pool == next {
            let Settings { weight, min, max_jobs, fifo } =
                *self.settings.get(name).unwrap_or(&self.settings["default"]);
            self.pools.push(Pool {
                name: name.clone(),
                weight,
                min,
                max_jobs,
                fifo,
                held_slots: PerPhase::default(),
                fair_share: PerPhase::default(),
                demand: PerPhase::default(),
                claims: BTreeMap::new(),
                changed_jobs: BTreeSet::new(),
                job_shares: PerPhase::default(),
                waiting_jobs: PerPhase::default(),
                jobs: BTreeSet::new(),
            });
        }
        self.pools[pool].jobs.insert(job);
        self.jobs.insert(job, JobEntry { pool, weight: weight(spec.priority), ..JobEntry::default() });
    }

    /// Removes a job that has ended from its pool, so that another job of the pool may run.
    fn end_job(&mut self, job: JobId, cluster: &Cluster) {
        let Some(entry) = self.jobs.get(&job) else { return };
        let pool = &mut self.pools[entry.pool];
        pool.jobs.remove(&job);
        let most = pool.max_jobs.unwrap_or(0) as usize;
        if let Some(next) = most.checked_sub(1).and_then(|last| pool.jobs.iter().nth(last)).copied() {
            self.refresh(next, cluster);
        }
    }

    /// Updates the data of a job from the cluster.
    pub(crate) fn refresh(&mut self, job: JobId, cluster: &Cluster) {
        let Some(entry) = self.jobs.get(&job) else { return };
        let (pool, weight) = (entry.pool, entry.weight);
        let known = cluster.job(job);
        for phase in Phase::BOTH {
            let held = known.map_or(0, |job| job.running[phase].len() as u32);
            self.set_held_slots(job, phase, held);
            let may = known.is_some_and(|job| job.may_start(phase) && !job.pending[phase].is_empty());
            let may = may && !self.pools[pool].is_waiting_for_pool(job);
            self.update_order(job, pool, phase, may.then_some((held, weight)));
        }
        self.update_demand(job, cluster);
    }

    fn update_demand(&mut self, job: JobId, cluster: &Cluster) {
        self.has_seen_delays |= cluster.has_delayed_tasks();
        let demand = self.demand_of(job, cluster);
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        let pool = &mut self.pools[entry.pool];
        if demand != entry.demand {
            pool.changed_jobs.insert(job);
        }
        for phase in Phase::BOTH {
            pool.demand[phase] = pool.demand[phase] + demand[phase] - entry.demand[phase];
        }
        entry.demand = demand;
    }

    /// Returns the number of slots that a job can use; 0 if it does not run or waits for its pool.
    fn demand_of(&self, job: JobId, cluster: &Cluster) -> PerPhase<u32> {
        let runs = |pool: &Pool| pool.jobs.contains(&job) && !pool.is_waiting_for_pool(job);
        match cluster.job(job).filter(|_| self.pool_of(job).is_some_and(runs)) {
            Some(job) => PerPhase {
                map: demand(job, Phase::Map, cluster) as u32,
                reduce: demand(job, Phase::Reduce, cluster) as u32,
            },
            None => PerPhase::default(),
        }
    }

    /// Counts a slot that this round gives to a job. Calling `refresh` reverts it.
    pub(crate) fn charge(&mut self, job: JobId, phase: Phase) {
        let Some(entry) = self.jobs.get(&job).copied() else { return };
        let held = entry.held[phase] + 1;
        self.set_held_slots(job, phase, held);
        self.update_order(job, entry.pool, phase, Some((held, entry.weight)));
    }

    fn set_held_slots(&mut self, job: JobId, phase: Phase, held: u32) {
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        let before = std::mem::replace(&mut entry.held[phase], held);
        let pool = &mut self.pools[entry.pool];
        pool.held_slots[phase] = pool.held_slots[phase] + held - before;
    }

    fn update_order(&mut self, job: JobId, number: usize, phase: Phase, waits: Option<(u32, f64)>) {
        let pool = &mut self.pools[number];
        // In a `fifo` pool, jobs are ordered by priority, which is the order of their weights. Jobs
        // with equal keys are ordered by ID, that is by age.
        let in_order =
            |(held, weight): (u32, f64)| Real(if pool.fifo { -weight } else { f64::from(held) / weight });
        pool.waiting_jobs[phase].set(job, waits.map(in_order));
        let (held, min) = (pool.held_slots[phase], pool.min[phase]);
        let order = if held < min {
            (false, Real(f64::from(held) / f64::from(min)))
        } else {
            (true, Real(f64::from(held) / pool.weight))
        };
        self.waiting_pools[phase].set(number, (!pool.waiting_jobs[phase].is_empty()).then_some(order));
    }

    /// Divides all slots among the pools, and the slots of each pool among its jobs.
    pub(crate) fn compute_shares(&mut self, cluster: &Cluster) {
        if self.has_seen_delays || cluster.has_delayed_tasks() {
            self.has_seen_delays = false;
            let jobs: Vec<JobId> = self.pools.iter().flat_map(Pool::jobs).collect();
            for job in jobs {
                self.update_demand(job, cluster);
            }
        }
        debug_assert!(self.jobs.iter().all(|(job, entry)| entry.demand == self.demand_of(*job, cluster)));
        for phase in Phase::BOTH {
            let claim = |pool: &Pool| Claim {
                weight: pool.weight,
                min: f64::from(pool.min[phase]),
                demand: f64::from(pool.demand[phase]),
            };
            let claims: Vec<Claim> = self.pools.iter().map(claim).collect();
            let shares = divide(f64::from(cluster.slots(phase)), &claims);
            for (pool, share) in self.pools.iter_mut().zip(shares) {
                pool.fair_share[phase] = share;
            }
        }
        for pool in &mut self.pools {
            pool.job_shares = PerPhase::default();
            for job in std::mem::take(&mut pool.changed_jobs) {
                match self.jobs.get(&job).filter(|entry| entry.demand != PerPhase::default()) {
                    Some(entry) => pool.claims.insert(job, (entry.weight, entry.demand)),
                    None => pool.claims.remove(&job),
                };
            }
        }
    }
}

impl Pool {
    /// Returns whether a job waits because its pool runs its maximum number of jobs.
    pub(crate) fn is_waiting_for_pool(&self, job: JobId) -> bool {
        let most = self.max_jobs.map_or(usize::MAX, |most| most as usize);
        self.jobs.len() > most && !self.jobs.iter().take(most).any(|first| *first == job)
    }

    /// Returns the reason why a job waits that waits for its pool.
    pub(crate) fn job_limit_reason(&self, job: JobId) -> Option<Why> {
        let most = f64::from(self.max_jobs.unwrap_or(0));
        self.is_waiting_for_pool(job).then(|| Why::rule("pool-job-limit").with("max_jobs", most))
    }

    /// Returns the number of slots that the running jobs of the pool hold, without those being
    /// preempted.
    pub(crate) fn retained_slots(&self, phase: Phase, plan: &Plan<'_>) -> f64 {
        let jobs = self.jobs.iter().filter_map(|job| plan.cluster().job(*job));
        jobs.map(|job| f64::from(plan.retained_slots(job, phase))).sum()
    }

    /// Returns the running jobs of the pool.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.iter().copied()
    }
}

/// Returns the weight of a job with this priority. As in Hadoop, each level doubles the weight.
pub(crate) fn weight(priority: Priority) -> f64 {
    match priority {
        Priority::VeryLow => 0.25,
        Priority::Low => 0.5,
        Priority::Normal => 1.0,
        Priority::High => 2.0,
        Priority::VeryHigh => 4.0,
    }
}
