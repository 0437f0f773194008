//! The equations of hSRTF (Cheriere, Donat-Bouillud, Ibrahim and Simonin, SAC 2016). Each is a
//! plain function; the tests below compare it with values that were computed by hand.

use crate::shares::{SlotDemand, divide};
use mrcore::PerPhase;

/// The remaining tasks of a job and their durations.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Number of remaining tasks.
    pub tasks: PerPhase<f64>,
    /// Seconds that one task takes.
    pub seconds: PerPhase<f64>,
}

impl Work {
    /// Returns the remaining seconds of a job that is alone on this many slots: the waves of its
    /// maps plus the waves of its reduces (equation 1).
    pub fn remaining(&self, slots: PerPhase<f64>) -> f64 {
        let waves = |tasks: f64, slots: f64| (tasks / slots.max(1.0)).ceil();
        waves(self.tasks.map, slots.map) * self.seconds.map
            + waves(self.tasks.reduce, slots.reduce) * self.seconds.reduce
    }
}

/// Returns the seconds that a reduce takes: as long as a map with the same amount of input
/// (equation 2). The printed equation divides by the duration of a map and multiplies by the block
/// size, which does not give a time; `literal` uses this form.
pub fn reduce_seconds(bytes_per_reduce: f64, block_bytes: f64, map_seconds: f64, literal: bool) -> f64 {
    if literal {
        bytes_per_reduce / map_seconds * block_bytes
    } else {
        bytes_per_reduce / block_bytes * map_seconds
    }
}

/// Returns the share of each job, given as (remaining time, demand): slots in inverse proportion to
/// remaining times, at most the demand (equations 3 and 4). A job also gets at least one slot,
/// unless `literal` is set: the paper has no minimum.
pub fn shares(total: f64, jobs: &[(f64, f64)], literal: bool) -> Vec<f64> {
    let weighted = jobs.iter().map(|(remaining, demand)| (1.0 / remaining.max(1e-3), *demand));
    by_weight(total, weighted.collect(), literal)
}

/// Divides slots by weight among jobs, given as (weight, demand). A job gets at most its demand,
/// and at least one slot if it has demand and there are enough slots, unless `literal` is set.
fn by_weight(total: f64, jobs: Vec<(f64, f64)>, literal: bool) -> Vec<f64> {
    let with_demand = jobs.iter().filter(|(_, demand)| *demand > 0.0).count() as f64;
    let least = if with_demand <= total && !literal { 1.0 } else { 0.0 };
    let claim = |(weight, demand): (f64, f64)| SlotDemand { weight, min: demand.min(least), demand };
    divide(total, &jobs.into_iter().map(claim).collect::<Vec<_>>())
}

/// Returns how many times longer a job takes on its share than alone (equation 5).
pub fn starvation(since_launch: f64, remaining_on_share: f64, alone: f64) -> f64 {
    (since_launch + remaining_on_share) / alone.max(1e-3)
}

/// Returns the shares multiplied by starvation and scaled to the total. Jobs are given as (share,
/// starvation, demand).
pub fn apply_starvation(total: f64, jobs: &[(f64, f64, f64)], literal: bool) -> Vec<f64> {
    let weighted = jobs.iter().map(|(share, starvation, demand)| (share * starvation, *demand));
    by_weight(total, weighted.collect(), literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(got: &[f64], wanted: &[f64]) {
        assert_eq!(got.len(), wanted.len());
        assert!(got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?} is not {wanted:?}");
    }

    #[test]
    fn remaining_time_counts_waves_as_in_equation_1() {
        // 100 maps of 20 s on 48 slots are 3 waves, 10 reduces of 60 s on 12 slots are one: 3 * 20
        // + 1 * 60.
        let work = Work {
            tasks: PerPhase { map: 100.0, reduce: 10.0 },
            seconds: PerPhase { map: 20.0, reduce: 60.0 },
        };
        assert_close(&[work.remaining(PerPhase { map: 48.0, reduce: 12.0 })], &[120.0]);
        // No slots count as one slot, so the result is finite.
        assert_close(&[work.remaining(PerPhase { map: 0.0, reduce: 12.0 })], &[2060.0]);
    }

    #[test]
    fn equation_2_is_in_seconds_unless_literal() {
        // A reduce of 256 MB, if a map of 128 MB takes 20 s.
        assert_close(&[reduce_seconds(256.0, 128.0, 20.0, false)], &[40.0]);
        assert_close(&[reduce_seconds(256.0, 128.0, 20.0, true)], &[1638.4]);
    }

    #[test]
    fn equations_3_and_4_divide_by_remaining_time() {
        // 10 s, 20 s and 20 s: 2 to 1 to 1.
        assert_close(&shares(12.0, &[(10.0, 99.0), (20.0, 99.0), (20.0, 99.0)], false), &[6.0, 3.0, 3.0]);
        // The first job can use only 2 slots: the others get the remaining ones.
        assert_close(&shares(12.0, &[(10.0, 2.0), (20.0, 99.0), (20.0, 99.0)], false), &[2.0, 5.0, 5.0]);
        // More jobs than slots: no minimum.
        assert_close(&shares(2.0, &[(10.0, 9.0), (20.0, 9.0), (20.0, 9.0)], false), &[1.0, 0.5, 0.5]);
        // A job with a long remaining time gets one slot, a job without demand gets none.
        let jobs = [(1.0, 99.0), (1000.0, 99.0), (5.0, 0.0)];
        assert_close(&shares(12.0, &jobs, false), &[11.0, 1.0, 0.0]);
        // The paper has no minimum: 1000 to 1 of 12 slots.
        assert_close(&shares(12.0, &jobs, true), &[12_000.0 / 1001.0, 12.0 / 1001.0, 0.0]);
    }

    #[test]
    fn equation_5_favours_starving_jobs() {
        // Submitted 90 s ago, 60 s left on its share, 50 s alone: it takes three times as long.
        assert_close(&[starvation(90.0, 60.0, 50.0)], &[3.0]);
        // Shares of 8 and 4, starvation of 1 and 4: 12 slots are divided 8 to 16.
        assert_close(&apply_starvation(12.0, &[(8.0, 1.0, 99.0), (4.0, 4.0, 99.0)], false), &[4.0, 8.0]);
    }
}
