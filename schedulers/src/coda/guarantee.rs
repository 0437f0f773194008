//! The guarantee of rule 5, checked in every round of builds with debug assertions, so in every test and
//! every simulation of a debug build: with n overdue jobs in a phase, each gets 1/n of the slots for
//! overdue jobs, rounded down, is not passed over below this share, and keeps it.
//!
//! Excluded are the slots that a job leaves free itself, because of their place or of a slow node.

use super::Coda;
use mrcore::{
    Phase, Plan,
    ids::{JobId, TrackerId},
    plan::Locality,
};

impl Coda {
    /// Returns the number of slots that each overdue job keeps, by phase.
    pub(super) fn slots_of_overdue_jobs(&self, plan: &Plan<'_>) -> Vec<(JobId, Phase, u32)> {
        let of_phase =
            |phase| self.overdue.iter().map(move |id| (*id, phase, Self::retained_slots(*id, phase, plan)));
        Phase::BOTH.into_iter().flat_map(of_phase).collect()
    }

    /// Panics if a round has taken slots from an overdue job that has no more than its share. `before`
    /// are the slots that these jobs kept before the round.
    pub(super) fn check_shares_are_kept(&self, before: &[(JobId, Phase, u32)], plan: &Plan<'_>) {
        for &(id, phase, before) in before {
            let (after, share) = (Self::retained_slots(id, phase, plan), self.overdue_share_of(id, phase));
            assert!(
                after >= before.min(share),
                "{id} is overdue, and keeps {after} {phase} slots of {before}: its share is {share}"
            );
        }
    }

    /// Panics if a slot goes to a job although an overdue job below its share could use it.
    pub(super) fn check_no_overdue_job_is_passed_over(
        &self,
        chosen: JobId,
        (phase, tracker): (Phase, TrackerId),
        plan: &Plan<'_>,
    ) {
        let is_below = |id| Self::retained_slots(id, phase, plan) < self.overdue_share_of(id, phase);
        if is_below(chosen) {
            return;
        }
        for id in self.overdue.iter().copied().filter(|id| is_below(*id)) {
            let job = plan.cluster().job(id).filter(|_| self.waiting_jobs[phase].key(id).is_some());
            let could_use = job.is_some_and(|job| match phase {
                Phase::Map => plan.next_map(job, tracker, Locality::OffRack).is_some(),
                Phase::Reduce => plan.next_reduce(job, tracker).is_some(),
            });
            let waits_for_place = match phase {
                Phase::Map => self.waits.locality.since(id).is_some(),
                Phase::Reduce => self.settings.waits_for_checkpoint && self.paused.count_of(id) > 0,
            };
            let leaves_it = waits_for_place || self.is_too_slow(id, phase, tracker);
            assert!(
                !could_use || leaves_it,
                "a {phase} slot goes to {chosen} although {id} is overdue and below its share"
            );
        }
    }

    /// Panics if an overdue job gets less than an equal part of the slots for overdue jobs, and could
    /// use more. `usable` are the numbers of slots that the overdue jobs can use.
    pub(super) fn check_shares_are_even(&self, phase: Phase, slots: u32, usable: &[u32]) {
        let jobs = usable.iter().filter(|usable| **usable > 0).count().max(1) as u32;
        for (id, usable) in self.overdue.iter().zip(usable) {
            let share = self.overdue_share_of(*id, phase);
            assert!(
                share >= (slots / jobs).min(*usable),
                "{id} gets {share} of {slots} {phase} slots for {jobs} overdue jobs, and could use {usable}"
            );
        }
    }

    /// Returns the number of slots that a job has precedence for because it is overdue.
    fn overdue_share_of(&self, id: JobId, phase: Phase) -> u32 {
        self.state(id).overdue_share(phase).unwrap_or(0)
    }
}
