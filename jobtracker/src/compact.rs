//! Compacts the journal for a snapshot: a shorter list of facts that gives the same cluster.
//!
//! The result contains:
//! - all facts of jobs that are not forgotten;
//! - the newest start of the JobTracker, and the newest skip of job numbers;
//! - of each tracker its newest registration and its newest state after that;
//! - drains that were not cancelled.
//!
//! A forgotten tracker is dropped, unless a fact of a job in the result names it or it has the
//! highest tracker number, which must not be assigned again.
//!
//! The registrations are also put first, because attempts refer to trackers. No other fact changes
//! its place and none is made up, so a policy that watches facts sees events that happened.

use mrcore::{
    Fact,
    fact::Entry,
    ids::{JobId, TrackerId},
};
use std::collections::{BTreeMap, BTreeSet};

/// Indices of the newest facts of each kind, and the IDs that are forgotten.
#[derive(Default)]
struct Newest {
    forgotten: BTreeSet<JobId>,
    started: Option<usize>,
    skipped: Option<usize>,
    joined: BTreeMap<TrackerId, usize>,
    state: BTreeMap<TrackerId, usize>,
    returned: BTreeMap<TrackerId, usize>,
    /// Forgotten trackers that no fact in the result names.
    forgotten_trackers: BTreeSet<TrackerId>,
}

impl Newest {
    fn of(entries: &[Entry]) -> Self {
        let mut newest = Self::default();
        let mut forgotten = BTreeSet::new();
        for (index, entry) in entries.iter().enumerate() {
            match &entry.fact {
                Fact::JobForgotten { job } => {
                    newest.forgotten.insert(*job);
                }
                Fact::JobTrackerStarted { .. } => newest.started = Some(index),
                Fact::IdsSkipped { .. } => newest.skipped = Some(index),
                Fact::TrackerJoined { tracker, .. } => {
                    newest.joined.insert(*tracker, index);
                    newest.state.remove(tracker);
                }
                Fact::TrackerSuspected { tracker, .. }
                | Fact::TrackerRecovered { tracker }
                | Fact::TrackerLost { tracker, .. } => {
                    newest.state.insert(*tracker, index);
                }
                Fact::DrainCancelled { tracker, .. } => {
                    newest.returned.insert(*tracker, index);
                }
                Fact::TrackerForgotten { tracker, .. } => {
                    forgotten.insert(*tracker);
                }
                _ => {}
            }
        }
        if !forgotten.is_empty() {
            forgotten.remove(newest.joined.keys().next_back().unwrap_or(&TrackerId(0)));
            for entry in entries.iter().filter(|entry| newest.remembers(&entry.fact)) {
                if let Some(tracker) = named(&entry.fact) {
                    forgotten.remove(&tracker);
                }
            }
            newest.joined.retain(|tracker, _| !forgotten.contains(tracker));
            newest.forgotten_trackers = forgotten;
        }
        newest
    }

    /// Whether the fact belongs to a job that is not forgotten.
    fn remembers(&self, fact: &Fact) -> bool {
        fact.job().is_some_and(|job| !self.forgotten.contains(&job))
    }

    fn is_needed(&self, index: usize, fact: &Fact) -> bool {
        match fact {
            Fact::JobTrackerStarted { .. } => self.started == Some(index),
            Fact::IdsSkipped { .. } => self.skipped == Some(index),
            Fact::TrackerForgotten { tracker, .. } => !self.forgotten_trackers.contains(tracker),
            Fact::TrackerDraining { tracker, .. } | Fact::TrackerLost { tracker, .. }
                if self.forgotten_trackers.contains(tracker) =>
            {
                false
            }
            // The copy at the front is enough, unless a later start would make the tracker awaited.
            Fact::TrackerJoined { tracker, .. } => {
                self.joined.get(tracker) == Some(&index) && self.started.is_none_or(|start| start < index)
            }
            Fact::TrackerSuspected { tracker, .. }
            | Fact::TrackerRecovered { tracker }
            | Fact::TrackerLost { tracker, .. } => self.state.get(tracker) == Some(&index),
            // A cancelled drain has no effect.
            Fact::DrainCancelled { .. } => false,
            Fact::TrackerDraining { tracker, .. } => {
                self.returned.get(tracker).is_none_or(|returned| *returned < index)
            }
            fact => fact.job().is_none_or(|job| !self.forgotten.contains(&job)),
        }
    }
}

/// The tracker that a fact of a job refers to.
fn named(fact: &Fact) -> Option<TrackerId> {
    match fact {
        Fact::AttemptLaunched { tracker, .. }
        | Fact::TrackerBlacklisted { tracker, .. }
        | Fact::MapOutputCopied { tracker, .. }
        | Fact::CheckpointCopied { tracker, .. } => Some(*tracker),
        _ => None,
    }
}

/// The facts that a snapshot needs, in order.
pub(crate) fn compact(entries: Vec<Entry>) -> Vec<Entry> {
    let newest = Newest::of(&entries);
    let mut kept: Vec<Entry> = newest.joined.values().map(|index| entries[*index].clone()).collect();
    let rest = entries.into_iter().enumerate().filter(|(index, entry)| newest.is_needed(*index, &entry.fact));
    kept.extend(rest.map(|(_, entry)| entry));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::{PerPhase, Time, ids::Incarnation, plan::Why};

    #[test]
    fn a_forgotten_tracker_is_kept_only_if_a_remembered_job_names_it_or_it_is_the_newest() {
        let joined = |number| Fact::TrackerJoined {
            tracker: TrackerId(number),
            name: format!("node{number}"),
            incarnation: Incarnation(1),
            host: "h".into(),
            rack: "r".into(),
            shuffle_addr: String::new(),
            logs_addr: String::new(),
            slots: PerPhase { map: 1, reduce: 1 },
        };
        let launched = |attempt: &str, number| Fact::AttemptLaunched {
            attempt: attempt.parse().unwrap(),
            tracker: TrackerId(number),
            speculative: false,
            resumed_from: None,
            why: Why::default(),
        };
        let forgotten = |number| Fact::TrackerForgotten {
            tracker: TrackerId(number),
            name: format!("node{number}"),
            why: String::new(),
        };
        let mut facts: Vec<Fact> = (1..=4).map(joined).collect();
        facts.extend([launched("job_1.m0.0", 1), launched("job_2.m0.0", 2)]);
        facts.extend((1..=4).map(forgotten));
        facts.push(Fact::JobForgotten { job: JobId(1) });
        let kept = compact(facts.into_iter().map(|fact| Entry { at: Time(0), fact }).collect());
        let trackers = kept.iter().filter_map(|entry| match &entry.fact {
            Fact::TrackerJoined { tracker, .. } => Some(tracker.0),
            _ => None,
        });
        assert_eq!(trackers.collect::<BTreeSet<_>>(), BTreeSet::from([2, 4]));
    }
}
