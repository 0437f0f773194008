//! Measures how long a policy takes to decide, with a clock that the daemon or the simulator passes
//! in.
//!
//! The decisions of the policy do not change. Computations outside of the core are not measured.

use mrcore::{
    Cluster, Fact, Phase, Plan, Scheduler, Span, Time, Why,
    compute::{Numbers, Problem},
    ids::JobId,
    job::Job,
    scheduler::Round,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Durations of decisions.
#[derive(Debug, Default)]
pub struct DecisionTimes {
    rounds: AtomicU64,
    nanos: AtomicU64,
    longest: AtomicU64,
}

/// The values of [`DecisionTimes`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecisionStats {
    /// Number of rounds.
    pub rounds: u64,
    /// Total duration.
    pub total: Duration,
    /// The longest duration.
    pub longest: Duration,
}

impl DecisionTimes {
    fn add(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.rounds.fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
        self.longest.fetch_max(nanos, Relaxed);
    }

    /// Returns the durations so far.
    pub fn snapshot(&self) -> DecisionStats {
        DecisionStats {
            rounds: self.rounds.load(Relaxed),
            total: Duration::from_nanos(self.nanos.load(Relaxed)),
            longest: Duration::from_nanos(self.longest.load(Relaxed)),
        }
    }
}

impl DecisionStats {
    /// Returns the mean duration of a round.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.total.as_nanos() as u64 / self.rounds.max(1))
    }
}

/// The time since a fixed point.
pub type Clock = Box<dyn Fn() -> Duration + Send>;

/// A policy whose rounds are measured.
pub struct Timed {
    inner: Box<dyn Scheduler>,
    clock: Clock,
    decision_times: Arc<DecisionTimes>,
}

impl Timed {
    /// Wraps a policy.
    pub fn new(inner: Box<dyn Scheduler>, clock: Clock, decision_times: Arc<DecisionTimes>) -> Self {
        Self { inner, clock, decision_times }
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Scheduler for Timed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn observe(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        self.inner.observe(now, fact, cluster);
    }

    fn decide(&mut self, round: Round, plan: &mut Plan<'_>) {
        let began = (self.clock)();
        self.inner.decide(round, plan);
        self.decision_times.add((self.clock)().saturating_sub(began));
    }

    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.inner.outranks(a, b, phase, plan)
    }

    fn outranks_by_share(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.inner.outranks_by_share(a, b, phase, plan)
    }

    fn may_have_slot(&self, job: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.inner.may_have_slot(job, phase, plan)
    }

    fn tick_interval(&self) -> Option<Span> {
        self.inner.tick_interval()
    }

    fn needs_round(&self) -> bool {
        self.inner.needs_round()
    }

    fn explain(&self, job: &Job, now: Time, cluster: &Cluster) -> Vec<Why> {
        self.inner.explain(job, now, cluster)
    }

    fn next_computation(&mut self) -> Option<Problem> {
        self.inner.next_computation()
    }

    fn finish_computation(&mut self, now: Time, answer: &Numbers, cluster: &Cluster) {
        self.inner.finish_computation(now, answer, cluster);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_times_add_up() {
        let decision_times = DecisionTimes::default();
        assert_eq!(decision_times.snapshot().mean(), Duration::ZERO);
        decision_times.add(Duration::from_micros(10));
        decision_times.add(Duration::from_micros(30));
        let snapshot = decision_times.snapshot();
        assert_eq!((snapshot.rounds, snapshot.total), (2, Duration::from_micros(40)));
        assert_eq!(
            (snapshot.mean(), snapshot.longest),
            (Duration::from_micros(20), Duration::from_micros(30))
        );
    }
}
