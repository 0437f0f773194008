//! What a scheduling policy is.
//!
//! A policy is told every fact ([`Scheduler::observe`]), is asked what to do with free slots and when time passes
//! ([`Scheduler::decide`]), and can say for itself why a job waits ([`Scheduler::explain`]).
//!
//! **After a restart** the journal is replayed into `observe`, fact by fact, before anything is asked; a compacted
//! journal has left out all facts of forgotten jobs and what later facts made void. So what decides job priority must
//! follow from the [`Cluster`] and the facts of jobs that it still shows. What was learned of forgotten jobs (averages,
//! classes) may be gone and is learned anew, and waits that were being timed begin again at `JobTrackerStarted`, which
//! is always the last fact of a replay.

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

/// Why the policy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// This tracker can take work.
    Offer(TrackerId),
    /// Time has passed, or the policy wanted to be asked.
    Tick,
}

/// One question to a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// When.
    pub now: Time,
    /// Why.
    pub cause: Cause,
}

/// A policy: watches what happens, and decides what runs where.
///
/// It must decide the same for the same history: fixed orders, ties broken by id, no clock, no randomness but what
/// it was seeded with.
pub trait Scheduler: Send + fmt::Debug {
    /// As chosen at start-up.
    fn name(&self) -> &str;

    /// Something has happened. The cluster already shows it.
    fn observe(&mut self, _now: Time, _fact: &Fact, _cluster: &Cluster) {}

    /// Fills the plan. What the plan refuses has not happened, and the policy may continue.
    fn decide(&mut self, round: Round, plan: &mut Plan<'_>);

    /// Whether a slot of this phase should by this policy's own ranking go from `b` to `a`, as the plan shows them
    /// now. Never both ways at once: a wrapper that preempts slots stops when this no longer holds.
    fn outranks(&self, a: JobId, b: JobId, phase: Phase, plan: &Plan<'_>) -> bool;

    /// Whether it lets a job have another slot of this phase at all, however free the cluster is: a maximum, not a ranking.
    /// Asked by a wrapper that gives out slots itself.
    fn may_have_slot(&self, _job: JobId, _phase: Phase, _plan: &Plan<'_>) -> bool {
        true
    }

    /// How often it wants a round when time passes; never, if nothing. Never more often than ten times a second.
    fn tick_every(&self) -> Option<Span> {
        None
    }

    /// Whether something has come up that a round should be held for at once, as if time had passed.
    fn needs_round(&self) -> bool {
        false
    }

    /// What a active job waits for, in this policy's rules and numbers: the most telling first.
    fn explain(&self, _job: &Job, _now: Time, _cluster: &Cluster) -> Vec<Why> {
        Vec::new()
    }

    /// Long work to be done beside the core, if there is any to begin. Asked after every event, but not while one of
    /// this policy's problems is being solved, and not during replay.
    fn next_problem(&mut self) -> Option<Problem> {
        None
    }

    /// The last problem has been solved; empty if that went wrong. The cluster may have changed since it was taken.
    fn solved(&mut self, _now: Time, _answer: &Numbers, _cluster: &Cluster) {}

    /// Trackers near which replicas of an input would best lie, by the first job that used it: the best first. Nothing
    /// if the policy has no opinion.
    fn placement(&self, _source: &str) -> Vec<TrackerId> {
        Vec::new()
    }
}
