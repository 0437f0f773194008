//! What a scheduling policy is.

use crate::{cluster::Cluster, fact::Fact, ids::TrackerId, plan::Plan, time::Time};
use std::fmt;

/// Why the policy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// This tracker can take work.
    Offer(TrackerId),
    /// Time has passed.
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

    /// Fills the plan. What the plan refuses has not happened, and the policy may go on.
    fn decide(&mut self, round: Round, plan: &mut Plan<'_>);
}
