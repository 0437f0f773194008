//! Slots back for pools that have been below their shares for too long.

use super::{Limits, Pool, Pools};
use crate::{params::Section, victims::Victims};
use mrcore::{Phase, Plan, Span, Time, Why, ids::AttemptId};
use std::collections::BTreeMap;

/// Since when each pool has been below its minimum, and below half its fair share.
#[derive(Debug)]
pub(super) struct Reclaim {
    limits: Limits,
    below_min: BTreeMap<(String, Phase), Time>,
    below_half: BTreeMap<(String, Phase), Time>,
}

impl Reclaim {
    pub(super) fn new(section: &mut Section<'_>) -> Self {
        let limits = Limits {
            way: section.way(),
            min_share: section.span_or_never(
                "min_share_timeout",
                Some(Span::secs(15)),
                "how long a pool bears to be below its minimum before it gets slots back",
            ),
            fair_share: section.span_or_never(
                "fair_share_timeout",
                Some(Span::secs(30)),
                "how long a pool bears to be below half its fair share",
            ),
        };
        Self { limits, below_min: BTreeMap::new(), below_half: BTreeMap::new() }
    }

    pub(super) fn start_over(&mut self) {
        self.below_min.clear();
        self.below_half.clear();
    }

    pub(super) fn run(&mut self, pools: &Pools, plan: &mut Plan<'_>) {
        for phase in Phase::BOTH {
            let now = plan.now();
            let lacks = pools.iter().map(|pool| (pool, self.lack(pool, phase, now)));
            let lacks: Vec<(&Pool, u32)> = lacks.filter(|(_, lack)| *lack > 0).collect();
            if !lacks.is_empty() {
                self.take_back(pools, phase, &lacks, plan);
            }
        }
    }

    /// Slots that a pool has lacked for too long. A share is never more than the pool can use.
    fn lack(&mut self, pool: &Pool, phase: Phase, now: Time) -> u32 {
        let (held, share) = (f64::from(pool.held[phase]), pool.share[phase]);
        let min = f64::from(pool.min[phase]).min(share);
        let rules = [
            (&mut self.below_min, held < min, min, self.limits.min_share),
            (&mut self.below_half, held < share / 2.0, share, self.limits.fair_share),
        ];
        let mut lack = 0.0_f64;
        for (since, is_below, owed, timeout) in rules {
            let key = (pool.name.clone(), phase);
            if !is_below {
                since.remove(&key);
                continue;
            }
            let since = *since.entry(key).or_insert(now);
            if timeout.is_some_and(|timeout| now.since(since) >= timeout) {
                lack = lack.max(owed - held);
            }
        }
        lack.floor() as u32
    }

    /// Takes from pools above their shares, the youngest attempts first, and no more than is lacking.
    fn take_back(&self, pools: &Pools, phase: Phase, lacks: &[(&Pool, u32)], plan: &mut Plan<'_>) {
        let mut victims = Victims::youngest_first(phase, plan);
        let mut under_way = victims.slots_under_way();
        let above = |pool: &Pool| (pool.name.clone(), pool.keeps(phase, plan) - pool.share[phase]);
        let mut excess: BTreeMap<String, f64> = pools.iter().map(above).collect();
        for (pool, lack) in lacks {
            let spared = under_way.min(*lack);
            under_way -= spared;
            let why = Why::rule("pool-below-its-share").with("held", f64::from(pool.held[phase]));
            let why = why.with("share", pool.share[phase]);
            for _ in spared..*lack {
                let may = |id: AttemptId| {
                    let its = pools.of(id.job()).and_then(|pool| excess.get(&pool.name));
                    its.is_some_and(|excess| *excess >= 1.0 - 1e-9)
                };
                let Some(victim) = victims.next(may) else { return };
                let why = pool.jobs().next().map_or(why.clone(), |job| why.clone().benefit(job));
                if plan.take_back(victim, self.limits.way, why).is_ok()
                    && let Some(from) = pools.of(victim.job())
                {
                    excess.entry(from.name.clone()).and_modify(|excess| *excess -= 1.0);
                }
            }
        }
    }
}
