//! Merges the facts of all jobs in chronological order. Each job has its own history file, but jobs
//! run concurrently, so the slots of a user and the concurrent attempts of a tracker are visible
//! only in the merged list.

use mrcore::{
    Fact, PerPhase, Phase, Time,
    ids::{AttemptId, TrackerId},
    metrics::{Metrics, shares::MinShare},
};
use std::collections::BTreeMap;

/// The facts of all jobs, in the order in which they were read.
#[derive(Default)]
pub(super) struct FactLog(Vec<(Time, Fact)>);

/// A lost tracker: its ID, when it was lost, and when it registered again.
pub(super) type Loss = (TrackerId, Time, Option<Time>);

/// Figures computed from all facts.
pub(super) struct FactFigures {
    pub(super) metrics: Metrics,
    /// The largest number of concurrent attempts on one tracker.
    pub(super) slots: PerPhase<u32>,
    pub(super) lost: Vec<Loss>,
}

impl FactLog {
    pub(super) fn add(&mut self, at: Time, fact: Fact) {
        self.0.push((at, fact));
    }

    /// Sorts the facts by time, and computes the figures.
    pub(super) fn into_figures(mut self, users: Vec<(String, MinShare)>) -> FactFigures {
        self.0.sort_by_key(|(at, _)| *at);
        let (mut metrics, mut busy) = (Metrics::with_users(users), ConcurrentAttempts::default());
        for (at, fact) in &self.0 {
            metrics.observe(*at, fact);
            busy.observe(fact);
        }
        FactFigures { metrics, slots: busy.slots(), lost: self.losses() }
    }
}

impl FactLog {
    /// Returns the losses of trackers. Every job that had an attempt or output on a lost tracker
    /// records the loss, but it is returned once.
    fn losses(&self) -> Vec<Loss> {
        let mut lost: Vec<Loss> = Vec::new();
        for (at, fact) in &self.0 {
            let (tracker, is_back) = match fact {
                Fact::TrackerLost { tracker, .. } => (tracker, false),
                Fact::TrackerJoined { tracker, .. } => (tracker, true),
                _ => continue,
            };
            let open = lost.iter_mut().find(|(known, _, back)| known == tracker && back.is_none());
            match open {
                Some((.., back)) if is_back => *back = Some(*at),
                None if !is_back => lost.push((*tracker, *at, None)),
                _ => {}
            }
        }
        lost
    }
}

/// Counts the concurrent attempts of each tracker.
#[derive(Default)]
struct ConcurrentAttempts {
    tracker_of: BTreeMap<AttemptId, TrackerId>,
    running: BTreeMap<TrackerId, PerPhase<u32>>,
    max: BTreeMap<TrackerId, PerPhase<u32>>,
}

impl ConcurrentAttempts {
    fn observe(&mut self, fact: &Fact) {
        match fact {
            Fact::AttemptLaunched { attempt, tracker, .. } => {
                self.tracker_of.insert(*attempt, *tracker);
                let now = &mut self.running.entry(*tracker).or_default()[attempt.phase()];
                *now += 1;
                let max = &mut self.max.entry(*tracker).or_default()[attempt.phase()];
                *max = (*max).max(*now);
            }
            Fact::AttemptSucceeded { attempt, .. }
            | Fact::MapSplit { attempt, .. }
            | Fact::AttemptPaused { attempt, .. }
            | Fact::AttemptFailed { attempt, .. }
            | Fact::AttemptKilled { attempt, .. } => {
                let on = self.tracker_of.remove(attempt).and_then(|tracker| self.running.get_mut(&tracker));
                if let Some(now) = on {
                    now[attempt.phase()] = now[attempt.phase()].saturating_sub(1);
                }
            }
            _ => {}
        }
    }

    /// Returns the largest number of concurrent attempts on one tracker.
    fn slots(&self) -> PerPhase<u32> {
        let max = |phase| self.max.values().map(|max| max[phase]).max().unwrap_or(1).max(1);
        PerPhase { map: max(Phase::Map), reduce: max(Phase::Reduce) }
    }
}
