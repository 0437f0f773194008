//! Preempts attempts for pools that have been below their shares for too long.

use super::pools::{Pool, Pools};
use crate::{
    params::Section,
    victims::{GroupDeficit, HeldConditions, Victims, preempt_for_group},
};
use mrcore::{Phase, Plan, Span, Time, Why, ids::JobId, plan::PreemptMode};
use std::collections::{BTreeMap, BTreeSet};

/// When attempts are preempted for pools below their shares.
#[derive(Debug)]
pub(super) struct Reclaim {
    preempt_mode: PreemptMode,
    min_share_timeout: Option<Span>,
    fair_share_timeout: Option<Span>,
    /// Since when pools have been below their minimum share.
    below_min: HeldConditions<(usize, Phase)>,
    /// Since when pools have been below half their fair share.
    below_half: HeldConditions<(usize, Phase)>,
    /// Pools below their shares for which maps have been preempted.
    reclaiming_pools: BTreeSet<usize>,
}

impl Reclaim {
    pub(super) fn new(section: &mut Section<'_>, preempts: bool) -> Self {
        let timeout = |seconds| preempts.then_some(Span::secs(seconds));
        let about = "how long a pool may be below its minimum share before it gets slots from others";
        let min_share_timeout = section.span_or_never("min_share_timeout", timeout(15), about);
        let about = "how long a pool may be below half its fair share before it gets slots from others";
        let fair_share_timeout = section.span_or_never("fair_share_timeout", timeout(30), about);
        let (below_min, below_half) = (HeldConditions::default(), HeldConditions::default());
        Self {
            preempt_mode: section.preempt_mode(),
            min_share_timeout,
            fair_share_timeout,
            below_min,
            below_half,
            reclaiming_pools: BTreeSet::new(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.below_min.reset();
        self.below_half.reset();
        self.reclaiming_pools.clear();
    }

    pub(super) fn preempt_mode(&self) -> PreemptMode {
        self.preempt_mode
    }

    /// Returns whether maps have been preempted for a pool that is still below its share. Its jobs
    /// then do not wait for locality. Otherwise the slot would go back to the pool that it was taken
    /// from, and would be preempted again.
    pub(super) fn is_reclaiming(&self, pool: Option<usize>) -> bool {
        pool.is_some_and(|pool| self.reclaiming_pools.contains(&pool))
    }

    /// Returns how long it takes until attempts of other pools are preempted for a pool below its
    /// share; `None` if the pool is not below its share or the timeout is `never`.
    pub(super) fn preempts_in(&self, pool: usize, phase: Phase, now: Time) -> Option<Span> {
        let left = |below: &HeldConditions<(usize, Phase)>, limit: Option<Span>| {
            Some(Span(limit?.0.saturating_sub(now.since(below.since(&(pool, phase))?).0)))
        };
        let both =
            [left(&self.below_min, self.min_share_timeout), left(&self.below_half, self.fair_share_timeout)];
        both.into_iter().flatten().min()
    }

    /// Preempts attempts of pools above their shares, the youngest first, for the missing slots.
    pub(super) fn run(&mut self, phases: &[Phase], pools: &Pools, plan: &mut Plan<'_>) {
        for phase in phases.iter().copied() {
            let mut needy_pools = Vec::new();
            for (number, pool) in pools.iter().enumerate() {
                let deficit = self.deficit(number, pool, phase, plan.now());
                if deficit > 0 {
                    let why = Why::rule("pool-below-share").with("held", f64::from(pool.held_slots[phase]));
                    let why = why.with("share", pool.fair_share[phase]);
                    let jobs: Vec<JobId> = pool.jobs().collect();
                    let why = jobs.first().map_or(why.clone(), |job| why.with_beneficiary(*job));
                    needy_pools.push((number, GroupDeficit { jobs, phase, deficit, why }));
                } else if phase == Phase::Map {
                    self.reclaiming_pools.remove(&number);
                }
            }
            if needy_pools.is_empty() {
                continue;
            }
            let above = |pool: &Pool| pool.retained_slots(phase, plan) - pool.fair_share[phase];
            let mut excess: BTreeMap<usize, f64> = pools.iter().map(above).enumerate().collect();
            let mut victims = Victims::youngest_first(phase, plan);
            for (number, needy) in &needy_pools {
                let pool_of = |job| pools.pool_number(job);
                let preempted =
                    preempt_for_group(needy, &mut victims, &mut excess, pool_of, self.preempt_mode, plan);
                if phase == Phase::Map && preempted > 0 {
                    self.reclaiming_pools.insert(*number);
                }
            }
        }
    }

    /// Returns the number of slots that a pool has missed for too long. A share is never more than
    /// the pool can use.
    fn deficit(&mut self, number: usize, pool: &Pool, phase: Phase, now: Time) -> u32 {
        let (held, share) = (f64::from(pool.held_slots[phase]), pool.fair_share[phase]);
        let (min, key) = (f64::from(pool.min[phase]).min(share), (number, phase));
        let mut deficit = 0.0_f64;
        if self.below_min.has_held_for(key, held < min, now, self.min_share_timeout) {
            deficit = min - held;
        }
        if self.below_half.has_held_for(key, held < share / 2.0, now, self.fair_share_timeout) {
            deficit = deficit.max(share - held);
        }
        deficit.floor() as u32
    }
}
