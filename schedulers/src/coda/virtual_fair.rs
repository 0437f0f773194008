//! Simulates fair sharing of the estimated work, to know when each job would end under it.
//!
//! In virtual time, pools share the slots of each phase by weight with their minimum shares, and so
//! do the jobs of a pool, as in `fair`. Reduces start when all maps of their job are done, and hold
//! no slots before. A job that has ended in reality leaves at once. All state is in fractions of
//! the work of a job, so that a corrected estimate corrects the virtual progress as well.

use super::estimator::Work;
use crate::shares::{Claim, divide};
use mrcore::{PerPhase, Phase, Time, ids::JobId};

/// A job and its claim to slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharingJob {
    pub(super) id: JobId,
    pub(super) submitted: Time,
    pub(super) pool: usize,
    pub(super) weight: f64,
    pub(super) work: Work,
}

/// The claim of a pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SharingPool {
    pub(super) weight: f64,
    pub(super) min: PerPhase<f64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct VirtualJob {
    /// Fraction of the work that is done.
    done: PerPhase<f64>,
    /// Up to when its progress was computed.
    until: Time,
    /// Seconds from submission to its end.
    completion_s: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct VirtualFair {
    /// Ordered by job.
    jobs: Vec<(JobId, VirtualJob)>,
}

impl VirtualFair {
    /// Returns the seconds from the submission of a job to its end under fair sharing, if it would
    /// have ended by now.
    pub(super) fn completion_s(&self, job: JobId) -> Option<f64> {
        let at = self.jobs.binary_search_by_key(&job, |(job, _)| *job).ok()?;
        self.jobs[at].1.completion_s
    }

    /// Advances all jobs to `now`. `jobs` are the active jobs in order of their IDs.
    pub(super) fn advance(
        &mut self,
        now: Time,
        jobs: &[SharingJob],
        pools: &[SharingPool],
        slots: PerPhase<f64>,
    ) {
        let mut before = std::mem::take(&mut self.jobs).into_iter().peekable();
        self.jobs.extend(jobs.iter().map(|job| {
            while before.next_if(|(id, _)| *id < job.id).is_some() {}
            let new = VirtualJob { until: job.submitted, ..VirtualJob::default() };
            before.next_if(|(id, _)| *id == job.id).unwrap_or((job.id, new))
        }));
        let its = self.jobs.iter_mut().map(|(_, virtual_job)| virtual_job).zip(jobs);
        let (mut active, jobs): (Vec<&mut VirtualJob>, Vec<&SharingJob>) =
            its.filter(|(virtual_job, _)| virtual_job.completion_s.is_none()).unzip();
        let mut shares = PerPhase { map: Vec::new(), reduce: Vec::new() };
        for phase in Phase::BOTH {
            let demands = active.iter().zip(&jobs).map(|(virtual_job, job)| virtual_job.demand(job, phase));
            let demands: Vec<f64> = demands.collect();
            shares[phase] = job_shares(&jobs, &demands, pools, phase, slots[phase]);
        }
        for (at, (virtual_job, job)) in active.iter_mut().zip(jobs).enumerate() {
            virtual_job.advance(now, job, PerPhase { map: shares.map[at], reduce: shares.reduce[at] });
        }
    }
}

impl VirtualJob {
    /// Returns the number of slots of a phase that the job can use in virtual time.
    fn demand(&self, job: &SharingJob, phase: Phase) -> f64 {
        let done = self.done;
        if phase == Phase::Reduce && done.map < 1.0 && job.work.total_s.map > 0.0 {
            return 0.0;
        }
        let left_s = job.work.total_s[phase] * (1.0 - done[phase]);
        (left_s / job.work.task_s[phase].max(1e-3)).ceil()
    }

    /// Advances the job to `now` on these slots. What remains of the time after its maps are done
    /// is not used for reduces: they start with the next call.
    fn advance(&mut self, now: Time, job: &SharingJob, slots: PerPhase<f64>) {
        let mut passed = now.since(self.until).as_secs_f64();
        self.until = self.until.max(now);
        for phase in Phase::BOTH {
            let total_s = job.work.total_s[phase];
            if self.done[phase] >= 1.0 || total_s <= 0.0 {
                self.done[phase] = 1.0;
                continue;
            }
            let needed = total_s * (1.0 - self.done[phase]) / slots[phase].max(1e-9);
            if needed > passed {
                self.done[phase] += (1.0 - self.done[phase]) * passed / needed;
                return;
            }
            self.done[phase] = 1.0;
            passed -= needed;
            if phase == Phase::Map && job.work.total_s.reduce > 0.0 && slots.reduce <= 0.0 {
                return;
            }
        }
        let age = now.since(job.submitted).as_secs_f64();
        self.completion_s = Some((age - passed).max(0.0));
    }
}

/// Divides slots among the pools, and those of each pool among its jobs.
fn job_shares(
    jobs: &[&SharingJob],
    demands: &[f64],
    pools: &[SharingPool],
    phase: Phase,
    slots: f64,
) -> Vec<f64> {
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); pools.len()];
    for (at, job) in jobs.iter().enumerate() {
        members[job.pool].push(at);
    }
    let claims: Vec<Claim> = pools
        .iter()
        .zip(&members)
        .map(|(pool, members)| Claim {
            weight: pool.weight,
            min: pool.min[phase],
            demand: members.iter().map(|at| demands[*at]).sum(),
        })
        .collect();
    let mut shares = vec![0.0; jobs.len()];
    for (members, pool_share) in members.iter().zip(divide(slots, &claims)) {
        let claim = |at: &usize| Claim { weight: jobs[*at].weight, min: 0.0, demand: demands[*at] };
        let claims: Vec<Claim> = members.iter().map(claim).collect();
        for (at, share) in members.iter().zip(divide(pool_share, &claims)) {
            shares[*at] = share;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u32, pool: usize, map_s: f64, reduce_s: f64) -> SharingJob {
        let total_s = PerPhase { map: map_s, reduce: reduce_s };
        let work = Work { total_s, task_s: PerPhase { map: 0.1, reduce: 0.1 }, ..Work::default() };
        SharingJob { id: JobId(id), submitted: Time(0), pool, weight: 1.0, work }
    }

    /// Returns when two jobs of 4 slots of each phase end, in steps of 100 ms.
    fn completions(jobs: &[SharingJob], pools: &[SharingPool]) -> Vec<f64> {
        let (mut fair, slots) = (VirtualFair::default(), PerPhase { map: 4.0, reduce: 4.0 });
        for step in 0..1000 {
            fair.advance(Time(step * 100_000), jobs, pools, slots);
        }
        jobs.iter().map(|job| fair.completion_s(job.id).expect("it has ended")).collect()
    }

    #[test]
    fn pools_share_slots_and_reduces_follow_maps() {
        let pools = [SharingPool { weight: 1.0, ..SharingPool::default() }; 2];
        // Alone: 40 / 4 + 20 / 4.
        let alone = completions(&[job(1, 0, 40.0, 20.0)], &pools);
        assert!((alone[0] - 15.0).abs() < 0.3, "{alone:?}");
        // Two users with 2 slots each, then the longer job has all 4: 20 / 2, and 10 + 20 / 4.
        let both = completions(&[job(1, 0, 20.0, 0.0), job(2, 1, 40.0, 0.0)], &pools);
        assert!((both[0] - 10.0).abs() < 0.3 && (both[1] - 15.0).abs() < 0.3, "{both:?}");
        // A weight of 3: 3 slots and 1 slot.
        let pools = [SharingPool { weight: 3.0, ..SharingPool::default() }, pools[1]];
        let both = completions(&[job(1, 0, 30.0, 0.0), job(2, 1, 30.0, 0.0)], &pools);
        assert!((both[0] - 10.0).abs() < 0.3 && (both[1] - 15.0).abs() < 0.3, "{both:?}");
    }
}
