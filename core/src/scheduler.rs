//! The interface of scheduling policies.
//!
//! A policy observes every fact ([`Scheduler::observe`]), decides when a slot is free and
//! periodically ([`Scheduler::decide`]), and explains why a job waits ([`Scheduler::explain`]).
//!
//! **After a restart** the journal is replayed into `observe`, fact by fact, before the first
//! round. A compacted journal contains neither the facts of forgotten jobs nor facts that later
//! facts made void. Therefore the order of jobs must depend only on the [`Cluster`] and on facts of
//! jobs that are in it. What a policy has learned from forgotten jobs (averages, classes) may be
//! gone. Waiting times start again at `JobTrackerStarted`, which is always the last fact of a
//! replay.

use crate::{
    cluster::Cluster,
    compute::{Numbers, Problem},
    fact::Fact,
    ids::{JobId, TrackerId},
    job::Job,
    phase::Phase,
    plan::Plan,
    time::{Span, Time},
    why::Why,
};
use std::fmt;

/// Why a round is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// This tracker has a free slot.
    Offer(TrackerId),
    /// Time has passed, or the policy has requested a round.
    Tick,
}

/// One round of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// The current time.
    pub now: Time,
    /// Why the round is run.
    pub cause: Cause,
}

/// A scheduling policy.
///
/// Its decisions must depend only on the history: iterate in a fixed order, break ties by ID, and
/// use no clock and no randomness except from a configured seed.
pub trait Scheduler: Send + fmt::Debug {
    /// Returns the name of the policy, as configured.
    fn name(&self) -> &str;

    /// Observes a fact that has already been applied to the cluster.
    fn observe(&mut self, _now: Time, _fact: &Fact, _cluster: &Cluster) {}

    /// Fills the plan. A decision that the plan refuses has no effect, and the policy may continue.
    fn decide(&mut self, round: Round, plan: &mut Plan<'_>);

    /// Returns whether, in the ranking of this policy and the current state of the plan, a slot of
    /// this phase should move from job `b` to job `a`. It must never return `true` in both
    /// directions at the same time: a wrapper preempts slots until it returns `false`.
    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool;

    /// Returns whether `a` has less than its share and `b` has more, although moving a slot might
    /// only exchange their places. Policies without shares compare jobs as in [`Self::outranks`].
    /// The Chronos paper uses this rule for Fair. Like `outranks`, it must never return `true` in
    /// both directions.
    fn outranks_by_share(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool {
        self.outranks(a, b, phase, plan)
    }

    /// Returns whether a job may have another slot of this phase at all, even if slots are free.
    /// This is a maximum, not a ranking. A wrapper that assigns slots itself must call this
    /// function.
    fn may_have_slot(&self, _job: JobId, _phase: Phase, _plan: &Plan<'_>) -> bool {
        true
    }

    /// Returns the interval of periodic rounds, at least 100 ms; `None` for no periodic rounds.
    fn tick_interval(&self) -> Option<Span> {
        None
    }

    /// Returns whether the policy requests a round at once, with [`Cause::Tick`].
    fn needs_round(&self) -> bool {
        false
    }

    /// Returns what an active job waits for, as rules and numbers of this policy. The most
    /// important reason comes first.
    fn explain(&self, _job: &Job, _now: Time, _cluster: &Cluster) -> Vec<Why> {
        Vec::new()
    }

    /// Returns a long computation to run outside of the state machine, if there is one to start.
    /// The function is called after every event, except during replay and while a problem of this
    /// policy is being solved.
    fn next_computation(&mut self) -> Option<Problem> {
        None
    }

    /// Receives the solution of the last problem, which is empty if the computation failed. The
    /// cluster may have changed since the problem was created.
    fn finish_computation(&mut self, _now: Time, _answer: &Numbers, _cluster: &Cluster) {}
}
