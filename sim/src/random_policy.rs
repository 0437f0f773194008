//! A policy that decides at random.

use crate::rng::Rng;
use mrcore::{
    Phase, Plan, Scheduler, Span, Why,
    ids::{AttemptId, JobId, TrackerId},
    scheduler::{Cause, Round},
    task::PreemptKind,
};

/// Assigns slots to jobs in a random order, preempts at random, and launches speculative attempts.
#[derive(Debug)]
pub(crate) struct RandomPolicy(pub(crate) Rng);

impl Scheduler for RandomPolicy {
    fn name(&self) -> &'static str {
        "random"
    }

    fn outranks(&self, a: JobId, b: JobId, _phase: Phase, _plan: &Plan<'_>) -> bool {
        a < b
    }

    fn tick_interval(&self) -> Option<Span> {
        Some(Span::secs(1))
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        let Cause::Offer(tracker) = round.cause else { return };
        let cluster = plan.cluster();
        if self.0.one_in(6) {
            self.preempt_randomly(plan, tracker);
        }
        for phase in Phase::BOTH {
            let mut jobs: Vec<_> = cluster.active_jobs().collect();
            while plan.free_slots(tracker, phase) > 0 && !jobs.is_empty() {
                let at = self.0.below(jobs.len() as u64) as usize;
                let job = jobs[at];
                let waiting = match phase {
                    Phase::Map => {
                        plan.next_map(job, tracker, mrcore::plan::Locality::OffRack).map(|(task, _)| task)
                    }
                    Phase::Reduce => plan.next_reduce(job, tracker),
                };
                let task = waiting.or_else(|| plan.next_straggler(job, phase, tracker));
                if task.is_none_or(|task| plan.assign(task, tracker, Why::rule("random")).is_err()) {
                    jobs.remove(at);
                }
            }
        }
    }
}

impl RandomPolicy {
    /// Preempts a random attempt on a tracker with a random kind of preemption, which the plan may
    /// refuse.
    fn preempt_randomly(&mut self, plan: &mut Plan<'_>, tracker: TrackerId) {
        let running =
            plan.cluster().tracker(tracker).map(|tracker| tracker.running.clone()).unwrap_or_default();
        let attempts: Vec<AttemptId> = running.map.into_iter().chain(running.reduce).collect();
        if attempts.is_empty() {
            return;
        }
        let attempt = attempts[self.0.below(attempts.len() as u64) as usize];
        let kind = [
            PreemptKind::Split,
            PreemptKind::Pause,
            PreemptKind::Split,
            PreemptKind::Pause,
            PreemptKind::Kill,
        ];
        let before = plan.slots_being_freed(tracker, attempt.phase());
        if plan.preempt(attempt, kind[self.0.below(5) as usize], Why::rule("random")).is_ok() {
            assert!(plan.preempt(attempt, PreemptKind::Kill, Why::rule("twice")).is_err());
            assert!(plan.slots_being_freed(tracker, attempt.phase()) >= before);
        }
    }
}
