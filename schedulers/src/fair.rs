//! Fair sharing: pools get slots by weight, and so do the jobs within a pool.
//!
//! The fair scheduler of Zaharia et al. with delay scheduling, which the papers compare with. A
//! pool is a user or a queue. A free slot goes to a pool below its minimum share, first to the pool
//! that holds the smallest fraction of it; otherwise to the pool with the fewest slots relative to
//! its weight. Within a pool it goes to the job with the fewest slots relative to its weight, or to
//! the first job if the pool is `fifo`. Maps wait for slots near their input for a limited time. A
//! pool that has been below its minimum share for `min_share_timeout`, or below half its fair share
//! for `fair_share_timeout`, gets slots from pools above their shares; the youngest attempts are
//! preempted first.
//!
//! Differs from Hadoop: attempts are split and paused unless `preempt = kill`.
//!
//! Pools cannot be nested.

pub(crate) mod pools;
mod reclaim;

use crate::{
    fill::{LocalityDelay, SlotOrder, fill_in_order, locality_reason},
    params::Section,
    shares::should_move,
};
use mrcore::{
    Cluster, Fact, Phase, Plan, Scheduler, Span, Time, Why,
    ids::{JobId, TaskId, TrackerId},
    job::Job,
    plan::PreemptMode,
    scheduler::{Cause, Round},
};
use pools::{Pool, Pools};
use reclaim::Reclaim;
use std::cmp::Reverse;

/// The texts of the rules of this policy.
pub const RULE_TEXTS: &[crate::explain::RuleText] = &[
    ("fair-share", "pool {pool} held {held slot|slots}[ of its fair share of {share}]"),
    (
        "pool-share-of-map-slots",
        "pool {pool} holds {held map slot|map slots}[ of its fair share of {share}] (weight {weight}, minimum {min}); \
         {jobs_ahead job goes|jobs go} first[; it preempts others in {preempts_in:s}]",
    ),
    (
        "pool-share-of-reduce-slots",
        "pool {pool} holds {held reduce slot|reduce slots}[ of its fair share of {share}] (weight {weight}, minimum {min}); \
         {jobs_ahead job goes|jobs go} first[; it preempts others in {preempts_in:s}]",
    ),
    (
        "pool-job-limit",
        "pool {pool} runs {max_jobs job|jobs}, its maximum: this job waits until one of them ends",
    ),
    (
        "locality-wait",
        "delay scheduling: its maps wait for node-local slots, and accept rack-local ones after {rack_after:s} and any slot after \
         {at_most:s}; {waited:s} so far",
    ),
    (
        "pool-below-share",
        "the slot goes to the pool[ of {for_job:job}] that held {held slot|slots}, less than its fair share of {share}",
    ),
];

/// The `fair` policy.
#[derive(Debug)]
pub struct Fair {
    pools: Pools,
    locality_delay: LocalityDelay,
    reclaim: Reclaim,
}

impl Fair {
    /// Reads the parameters.
    pub fn new(section: &mut Section<'_>) -> Self {
        Self::with_preemption(section, true)
    }

    /// Reads the parameters. Timeouts that are not set are `never` unless the policy `preempts`.
    pub(crate) fn with_preemption(section: &mut Section<'_>, preempts: bool) -> Self {
        let pools = Pools::new(section);
        let node_wait =
            section.span("node_wait", Span::secs(3), "how long a job waits for a node-local slot");
        let rack_wait =
            section.span("rack_wait", Span::secs(3), "how long it then waits for a rack-local slot");
        let locality_delay = LocalityDelay::new(node_wait, rack_wait);
        let reclaim = Reclaim::new(section, preempts);
        Self { pools, locality_delay, reclaim }
    }

    /// Preempts attempts of these phases for pools that have been below their shares for too long.
    pub(crate) fn reclaim(&mut self, phases: &[Phase], plan: &mut Plan<'_>) {
        self.pools.compute_shares(plan.cluster());
        self.reclaim.run(phases, &self.pools, plan);
    }

    /// Returns how attempts are preempted.
    pub(crate) fn preempt_mode(&self) -> PreemptMode {
        self.reclaim.preempt_mode()
    }

    /// Returns what the tasks of a job in these phases wait for.
    pub(crate) fn reasons(&self, phases: &[Phase], job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        let Some(pool) = self.pools.pool_of(job.id) else { return Vec::new() };
        if let Some(why) = pool.job_limit_reason(job.id) {
            return vec![why];
        }
        let wait = self.locality_delay.reason(job, Span(u64::MAX), now, cluster);
        let mut reasons: Vec<Why> = wait.into_iter().collect();
        for phase in phases.iter().copied().filter(|phase| !job.pending[*phase].is_empty()) {
            let rule = match phase {
                Phase::Map => "pool-share-of-map-slots",
                Phase::Reduce => "pool-share-of-reduce-slots",
            };
            let why = with_pool_numbers(Why::rule(rule), pool, phase).with("weight", pool.weight);
            let ahead = self.pools.jobs_ahead_of(job.id, phase);
            let why = why.with("min", f64::from(pool.min[phase])).with("jobs_ahead", ahead as f64);
            let preempts_in =
                self.pools.pool_number(job.id).and_then(|pool| self.reclaim.preempts_in(pool, phase, now));
            reasons.push(match preempts_in {
                Some(wait) => why.with("preempts_in", wait.as_secs_f64()),
                None => why,
            });
        }
        reasons
    }

    /// Returns whether job `a` ranks above job `b`. `moves` compares two pools, or two jobs of a
    /// pool, each given as (slots, share).
    fn ranks_above(
        &self,
        a: JobId,
        b: JobId,
        phase: Phase,
        plan: &Plan<'_>,
        moves: impl Fn((f64, f64), (f64, f64)) -> bool,
    ) -> bool {
        let (Some(pool_a), Some(pool_b)) = (self.pools.pool_of(a), self.pools.pool_of(b)) else {
            return false;
        };
        if pool_a.name != pool_b.name {
            let retained = |pool: &Pool| (pool.retained_slots(phase, plan), pool.fair_share[phase]);
            return moves(retained(pool_a), retained(pool_b));
        }
        if pool_a.fifo {
            let place = |id: JobId| plan.cluster().job(id).map(|job| (Reverse(job.spec.priority), id));
            return place(a).zip(place(b)).is_some_and(|(a, b)| a < b);
        }
        let retained = |job: JobId| {
            let held = plan.cluster().job(job).map_or(0, |job| plan.retained_slots(job, phase));
            (f64::from(held), self.pools.job_share(job, phase))
        };
        moves(retained(a), retained(b))
    }
}

impl SlotOrder for Fair {
    fn choose(&mut self, phase: Phase, tracker: TrackerId, plan: &Plan<'_>) -> Option<(TaskId, Why)> {
        let Self { pools, locality_delay, reclaim } = self;
        let cluster = plan.cluster();
        pools.jobs_in_order(phase).find_map(|(pool, id)| {
            let job = cluster.job(id)?;
            let (task, why) = match phase {
                Phase::Map => {
                    let (task, near) = locality_delay.next_map(
                        job,
                        tracker,
                        reclaim.is_reclaiming(pools.pool_number(id)),
                        plan,
                    )?;
                    let rules = ["fair-share,node-local", "fair-share,rack-local", "fair-share,off-rack"];
                    (task, locality_reason(rules, near))
                }
                Phase::Reduce => (plan.next_reduce(job, tracker)?, Why::rule("fair-share")),
            };
            Some((task, with_pool_numbers(why, pool, phase)))
        })
    }

    fn charge(&mut self, job: JobId, phase: Phase, _plan: &Plan<'_>) {
        self.pools.charge(job, phase);
    }

    fn restore(&mut self, job: JobId, cluster: &Cluster) {
        self.pools.refresh(job, cluster);
    }
}

/// Adds the slots and the share of a pool. The share is left out if it has not been computed yet.
fn with_pool_numbers(why: Why, pool: &Pool, phase: Phase) -> Why {
    let why = why.with("held", f64::from(pool.held_slots[phase]));
    if pool.fair_share[phase] > 0.0 { why.with("share", pool.fair_share[phase]) } else { why }
}

impl Scheduler for Fair {
    fn name(&self) -> &'static str {
        "fair"
    }

    fn observe(&mut self, _now: Time, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::JobTrackerStarted { .. } => {
                self.locality_delay.reset();
                self.reclaim.reset();
            }
            Fact::JobCommitting { job } | Fact::JobEnded { job, .. } => self.locality_delay.forget(*job),
            _ => {}
        }
        self.pools.observe(fact, cluster);
        self.pools.update_shares(fact, cluster);
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        match round.cause {
            Cause::Offer(tracker) => fill_in_order(self, tracker, plan),
            Cause::Tick => self.reclaim(&Phase::BOTH, plan),
        }
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(Span::secs(1))
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.ranks_above(a, b, phase, plan, should_move)
    }

    fn outranks_by_share(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.ranks_above(a, b, phase, plan, |(held_a, share_a), (held_b, share_b)| {
            held_a < share_a && held_b > share_b
        })
    }

    fn explain(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        self.reasons(&Phase::BOTH, job, now, cluster)
    }
}

impl Default for Fair {
    fn default() -> Self {
        Self::new(&mut Section::of("fair", &crate::Params::new()))
    }
}
