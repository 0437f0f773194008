//! Converts the lines of a history back to facts, so that code for facts can process histories.
//!
//! The history of a job contains names of trackers, but not when they register or are lost.
//! Trackers are numbered as they first appear. A tracker registers with its first attempt, is lost
//! with the first attempt that ended because of a loss, and registers again with its next attempt.
//! The racks and slots of trackers, and the policy, are in the line with the environment of the
//! submission.

use mrcore::{
    Fact, PerPhase, Time,
    fact::{Entry, TRACKER_LOST},
    history::{Environment, HistoryFact, KINDS},
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
    numbers: BTreeMap<String, TrackerId>,
    joined: BTreeSet<TrackerId>,
    /// Tracker of each running attempt.
    on: BTreeMap<AttemptId, TrackerId>,
    /// Environment of the last submission, if the history contains it.
    pub(super) environment: Option<Environment>,
}

/// Decodes the fact of a line. `None` if its kind is of a newer build.
pub fn known_fact(fact: Value) -> Result<Option<HistoryFact>, String> {
    let kind = fact.as_object().and_then(|fact| fact.keys().next()).cloned().unwrap_or_default();
    if !KINDS.contains(&kind.as_str()) {
        return Ok(None);
    }
    serde_json::from_value(fact).map(Some).map_err(|error| format!("{kind}: {error}"))
}

/// Name of the counter of CPU time.
pub(super) const CPU: &str = "CPU_MILLISECONDS";

impl Trackers {
    /// Returns the names by number.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<(&TrackerId, &String)> =
            self.numbers.iter().map(|(name, number)| (number, name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Resets the state: the history of another job starts at an earlier time.
    pub(super) fn begin(&mut self) {
        self.joined.clear();
        self.on.clear();
    }

    /// Returns the facts of a line; empty if the line is not needed here.
    pub(super) fn facts(&mut self, job: JobId, at: Time, line: Value) -> Result<Vec<Entry>, String> {
        let Some(line) = known_fact(line)? else { return Ok(Vec::new()) };
        if let HistoryFact::SubmittedTo(environment) = line {
            // Trackers that never ran an attempt get a number too.
            for place in &environment.trackers {
                self.number(&place.name);
            }
            self.environment = Some(environment);
            return Ok(Vec::new());
        }
        let Some(mut fact) = line.into_fact(job, |name| self.number(name))? else { return Ok(Vec::new()) };
        if let Fact::AttemptSucceeded { result, .. } | Fact::MapSplit { result, .. } = &mut fact {
            // CPU time is the only counter that is used here.
            result.counters.retain(|(name, _)| name == CPU);
            result.pieces.clear();
        }
        let around = self.around(&fact);
        Ok(around.into_iter().chain([fact]).map(|fact| Entry { at, fact }).collect())
    }

    /// Returns the registration or loss of a tracker that this fact implies.
    fn around(&mut self, fact: &Fact) -> Option<Fact> {
        match fact {
            Fact::AttemptLaunched { attempt, tracker, .. } => {
                self.on.insert(*attempt, *tracker);
                let name = self.numbers.iter().find(|(_, number)| *number == tracker)?.0.clone();
                let mut trackers = self.environment.iter().flat_map(|environment| &environment.trackers);
                let known = trackers.find(|at| at.name == name);
                let (host, rack) =
                    known.map_or((name.clone(), String::new()), |at| (at.host.clone(), at.rack.clone()));
                self.joined.insert(*tracker).then(|| Fact::TrackerJoined {
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
                let tracker = *self.on.get(attempt)?;
                let why = why.clone();
                self.joined.remove(&tracker).then_some(Fact::TrackerLost { tracker, why })
            }
            _ => None,
        }
    }

    fn number(&mut self, name: &str) -> TrackerId {
        let next = TrackerId(self.numbers.len() as u32);
        *self.numbers.entry(name.to_owned()).or_insert(next)
    }
}

/// Returns the fact of a submission.
pub(super) fn submitted(job: JobId, spec: &Arc<JobSpec>) -> Fact {
    Fact::JobSubmitted { job, request: RequestId(u128::from(job.0)), spec: spec.clone() }
}
