//! Compacts the journal for a snapshot: makes a shorter list of facts whose replay gives the same
//! cluster.
//!
//! The result contains:
//! - all facts of jobs that are not forgotten;
//! - the newest start of the JobTracker, and the newest skip of job IDs;
//! - the newest registration of each tracker, and the newest change of its state after that;
//! - drains that were not cancelled;
//! - the answers to requests that the core has not dropped;
//! - the starts of the `JobTrackers` of a group that the core has not dropped.
//!
//! A forgotten tracker is dropped, unless a fact of a job in the result names it or it has the
//! highest tracker ID, which must not be assigned again.
//!
//! The result starts with copies of the registrations, because facts about attempts refer to
//! trackers. The other facts keep their order and no fact is invented, so a policy that watches
//! facts sees only events that happened.

use mrcore::{
    Fact,
    cluster::{Answers, Starts},
    fact::Entry,
    ids::{JobId, TrackerId},
};
use std::collections::{BTreeMap, BTreeSet};

/// The indices of the newest facts of each kind, and the forgotten jobs and trackers.
#[derive(Default)]
struct NewestFacts {
    forgotten_jobs: BTreeSet<JobId>,
    jobtracker_started: Option<usize>,
    ids_skipped: Option<usize>,
    tracker_joined: BTreeMap<TrackerId, usize>,
    /// Newest change of the tracker's state after its newest registration.
    tracker_state: BTreeMap<TrackerId, usize>,
    drain_cancelled: BTreeMap<TrackerId, usize>,
    /// Forgotten trackers that no fact in the result names.
    forgotten_trackers: BTreeSet<TrackerId>,
    answers: Answers,
    starts: Starts,
}

impl NewestFacts {
    fn of(entries: &[Entry]) -> Self {
        let mut newest = Self::default();
        let mut forgotten = BTreeSet::new();
        for (index, entry) in entries.iter().enumerate() {
            match &entry.fact {
                Fact::JobForgotten { job } => {
                    newest.forgotten_jobs.insert(*job);
                }
                Fact::JobTrackerStarted { .. } => newest.jobtracker_started = Some(index),
                Fact::IdsSkipped { .. } => newest.ids_skipped = Some(index),
                Fact::TrackerJoined { tracker, .. } => {
                    newest.tracker_joined.insert(*tracker, index);
                    newest.tracker_state.remove(tracker);
                }
                Fact::TrackerSuspected { tracker, .. }
                | Fact::TrackerRecovered { tracker }
                | Fact::TrackerLost { tracker, .. } => {
                    newest.tracker_state.insert(*tracker, index);
                }
                Fact::DrainCancelled { tracker, .. } => {
                    newest.drain_cancelled.insert(*tracker, index);
                }
                Fact::TrackerForgotten { tracker, .. } => {
                    forgotten.insert(*tracker);
                }
                Fact::RequestAnswered { request, refusal } => {
                    newest.answers.add(entry.at, *request, refusal.clone());
                }
                Fact::StartRecorded { start, accepted } => newest.starts.add(*start, *accepted),
                _ => {}
            }
        }
        if !forgotten.is_empty() {
            forgotten.remove(newest.tracker_joined.keys().next_back().unwrap_or(&TrackerId(0)));
            for entry in entries.iter().filter(|entry| newest.is_of_kept_job(&entry.fact)) {
                if let Some(tracker) = tracker_named_by(&entry.fact) {
                    forgotten.remove(&tracker);
                }
            }
            newest.tracker_joined.retain(|tracker, _| !forgotten.contains(tracker));
            newest.forgotten_trackers = forgotten;
        }
        newest
    }

    /// Returns whether the fact belongs to a job that is not forgotten.
    fn is_of_kept_job(&self, fact: &Fact) -> bool {
        fact.job().is_some_and(|job| !self.forgotten_jobs.contains(&job))
    }

    /// Returns whether the result must contain the fact at this index of the journal.
    fn is_needed(&self, index: usize, entry: &Entry) -> bool {
        match &entry.fact {
            Fact::RequestAnswered { request, .. } => self.answers.contains(entry.at, *request),
            Fact::StartRecorded { start, .. } => self.starts.contains(*start),
            Fact::JobTrackerStarted { .. } => self.jobtracker_started == Some(index),
            Fact::IdsSkipped { .. } => self.ids_skipped == Some(index),
            Fact::TrackerForgotten { tracker, .. } => !self.forgotten_trackers.contains(tracker),
            Fact::TrackerDraining { tracker, .. } | Fact::TrackerLost { tracker, .. }
                if self.forgotten_trackers.contains(tracker) =>
            {
                false
            }
            // The copy at the front is enough if the JobTracker started after this registration. If
            // it started before, the replay of the start after the copy would make the tracker
            // awaited (expected to register again), so the registration is also kept at its place.
            Fact::TrackerJoined { tracker, .. } => {
                self.tracker_joined.get(tracker) == Some(&index)
                    && self.jobtracker_started.is_none_or(|start| start < index)
            }
            Fact::TrackerSuspected { tracker, .. }
            | Fact::TrackerRecovered { tracker }
            | Fact::TrackerLost { tracker, .. } => self.tracker_state.get(tracker) == Some(&index),
            // A cancelled drain has no effect.
            Fact::DrainCancelled { .. } => false,
            Fact::TrackerDraining { tracker, .. } => {
                self.drain_cancelled.get(tracker).is_none_or(|cancelled| *cancelled < index)
            }
            fact => fact.job().is_none_or(|job| !self.forgotten_jobs.contains(&job)),
        }
    }
}

/// Returns the tracker that a fact of a job refers to.
fn tracker_named_by(fact: &Fact) -> Option<TrackerId> {
    match fact {
        Fact::AttemptLaunched { tracker, .. }
        | Fact::TrackerBlacklisted { tracker, .. }
        | Fact::MapOutputCopied { tracker, .. }
        | Fact::CheckpointCopied { tracker, .. } => Some(*tracker),
        _ => None,
    }
}

/// Returns the facts that a snapshot needs, in order.
pub(crate) fn compact(entries: Vec<Entry>) -> Vec<Entry> {
    let newest = NewestFacts::of(&entries);
    let mut kept: Vec<Entry> = newest.tracker_joined.values().map(|index| entries[*index].clone()).collect();
    let rest = entries.into_iter().enumerate().filter(|(index, entry)| newest.is_needed(*index, entry));
    kept.extend(rest.map(|(_, entry)| entry));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::{PerPhase, Time, ids::Incarnation, plan::Why};

    #[test]
    fn forgotten_tracker_is_kept_only_if_a_kept_job_names_it_or_it_has_the_highest_id() {
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
