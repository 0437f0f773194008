//! Converts the lines of a history back to facts, so that code that processes facts can process
//! histories.
//!
//! The history of a job contains names of trackers, but not when they register or are lost.
//! Trackers get IDs in the order of their first appearance. A tracker is assumed to register when
//! its first attempt starts, to be lost when the first of its attempts is killed because the
//! tracker was lost, and to register again when its next attempt starts. The line with the
//! environment of a submission contains the policy, and the racks and slots of the trackers that
//! had registered by then. A tracker has those of the last submission that names it.

use mrcore::{
    Fact, PerPhase, Time,
    fact::{Entry, TRACKER_LOST},
    history::{Environment, HistoryFact, TrackerRow, known_fact},
    ids::{AttemptId, Incarnation, JobId, RequestId, TrackerId},
    job::JobSpec,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The trackers of a cluster, and their state at the current line.
#[derive(Debug, Default)]
pub(super) struct Trackers {
    ids: BTreeMap<String, TrackerId>,
    registered: BTreeSet<TrackerId>,
    /// Tracker of each running attempt.
    tracker_of: BTreeMap<AttemptId, TrackerId>,
    /// Environment of the last submission without its trackers, if the history contains it.
    pub(super) environment: Option<Environment>,
    /// The trackers of the environments of all submissions, by name.
    rows: BTreeMap<String, TrackerRow>,
}

/// Name of the counter of CPU time.
pub(super) const CPU_COUNTER: &str = "CPU_MILLISECONDS";

impl Trackers {
    /// Returns the names of the trackers, ordered by ID.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<(&TrackerId, &String)> =
            self.ids.iter().map(|(name, number)| (number, name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Returns the environment of the last submission with all trackers that the history describes.
    pub(super) fn into_environment(self) -> Option<Environment> {
        let trackers = self.rows.into_values().collect();
        self.environment.map(|environment| Environment { trackers, ..environment })
    }

    /// Resets the state before the history of another job is read, whose times may be earlier.
    pub(super) fn reset(&mut self) {
        self.registered.clear();
        self.tracker_of.clear();
    }

    /// Returns the facts of a line; empty if the line is not needed here.
    pub(super) fn facts(&mut self, job: JobId, at: Time, line: Value) -> Result<Vec<Entry>, String> {
        let Some(line) = known_fact(line)? else { return Ok(Vec::new()) };
        if let HistoryFact::SubmittedTo(environment) = line {
            let Environment { policy, params, trackers } = environment;
            for row in trackers {
                // Trackers that never ran an attempt get an ID too.
                self.id_of(&row.name);
                self.rows.insert(row.name.clone(), row);
            }
            self.environment = Some(Environment { policy, params, trackers: Vec::new() });
            return Ok(Vec::new());
        }
        let Some(mut fact) = line.into_fact(job, |name| self.id_of(name))? else { return Ok(Vec::new()) };
        if let Fact::AttemptSucceeded { result, .. } | Fact::MapSplit { result, .. } = &mut fact {
            // CPU time is the only counter that is used here.
            result.counters.retain(|(name, _)| name == CPU_COUNTER);
            result.pieces.clear();
        }
        let implied = self.implied_tracker_fact(&fact);
        Ok(implied.into_iter().chain([fact]).map(|fact| Entry { at, fact }).collect())
    }

    /// Returns the registration or loss of a tracker that a fact implies, if any.
    fn implied_tracker_fact(&mut self, fact: &Fact) -> Option<Fact> {
        match fact {
            Fact::AttemptLaunched { attempt, tracker, .. } => {
                self.tracker_of.insert(*attempt, *tracker);
                let name = self.ids.iter().find(|(_, number)| *number == tracker)?.0.clone();
                let known = self.rows.get(&name);
                let (host, rack) =
                    known.map_or((name.clone(), String::new()), |at| (at.host.clone(), at.rack.clone()));
                self.registered.insert(*tracker).then(|| Fact::TrackerJoined {
                    tracker: *tracker,
                    host,
                    name,
                    incarnation: Incarnation(1),
                    rack,
                    shuffle_addr: String::new(),
                    logs_addr: String::new(),
                    slots: PerPhase::default(),
                })
            }
            Fact::AttemptKilled { attempt, why, .. } if why == TRACKER_LOST => {
                let tracker = *self.tracker_of.get(attempt)?;
                let why = why.clone();
                self.registered.remove(&tracker).then_some(Fact::TrackerLost { tracker, why })
            }
            _ => None,
        }
    }

    /// Returns the ID of a tracker. An unknown name gets the next ID.
    fn id_of(&mut self, name: &str) -> TrackerId {
        let next = TrackerId(self.ids.len() as u32);
        *self.ids.entry(name.to_owned()).or_insert(next)
    }
}

/// Returns the fact of a submission.
pub(super) fn submission_fact(job: JobId, spec: &Arc<JobSpec>) -> Fact {
    Fact::JobSubmitted { job, request: RequestId(u128::from(job.0)), spec: spec.clone() }
}
