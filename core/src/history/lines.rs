//! Renders facts as the lines of job histories.

use super::{Environment, FORMAT, Head, HistoryFact, Record, Spec, TrackerRow};
use crate::{fact::Fact, ids::TrackerId, time::Time};
use serde::Serialize;
use std::collections::BTreeMap;

/// The scheduling policy and its parameters as configured.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    pub name: String,
    pub params: BTreeMap<String, String>,
}

/// Renders the facts of a cluster. It needs all of them, because the lines name trackers.
#[derive(Debug, Default)]
pub struct HistoryLines {
    cluster: String,
    made_by: Option<String>,
    policy: Policy,
    trackers: BTreeMap<TrackerId, KnownTracker>,
}

/// A tracker as the history shows it.
#[derive(Debug)]
struct KnownTracker {
    row: TrackerRow,
    /// Whether the tracker is lost and has not registered again.
    is_lost: bool,
}

impl HistoryLines {
    /// Creates a renderer for a cluster with this ID and policy.
    pub fn new(cluster: &str, policy: Policy) -> Self {
        Self { cluster: cluster.to_owned(), policy, ..Self::default() }
    }

    /// Sets the text that says how a simulated history was made.
    #[must_use]
    pub fn with_made_by(mut self, made_by: &str) -> Self {
        self.made_by = Some(made_by.to_owned());
        self
    }

    /// Returns the lines of a fact, each with its newline: two for a submission, none for a fact
    /// that does not belong in the history of a job.
    pub fn of_fact(&mut self, at: Time, fact: &Fact) -> Vec<String> {
        let Time(at_us) = at;
        match fact {
            Fact::TrackerJoined { tracker, name, host, rack, slots, .. } => {
                let (name, host, rack) = (name.clone(), host.clone(), rack.clone());
                let row = TrackerRow { name, host, rack, map_slots: slots.map, reduce_slots: slots.reduce };
                self.trackers.insert(*tracker, KnownTracker { row, is_lost: false });
            }
            Fact::TrackerLost { tracker, .. } => {
                if let Some(known) = self.trackers.get_mut(tracker) {
                    known.is_lost = true;
                }
            }
            Fact::TrackerForgotten { tracker, .. } => {
                self.trackers.remove(tracker);
            }
            Fact::JobSubmitted { job, spec, .. } => {
                let (cluster, made_by) = (self.cluster.clone(), self.made_by.clone());
                let spec = Spec::from(&**spec);
                let head = Head { format: FORMAT, cluster, made_by, job: *job, at_us, spec };
                let environment = HistoryFact::SubmittedTo(self.environment());
                return vec![json_line(&head), json_line(&Record { at_us, fact: environment })];
            }
            _ => {}
        }
        let named = |id: TrackerId| {
            let unknown = || ("?".to_owned(), "?".to_owned());
            self.trackers
                .get(&id)
                .map_or_else(unknown, |known| (known.row.name.clone(), known.row.host.clone()))
        };
        let fact = HistoryFact::from_fact(fact, &named);
        fact.map(|fact| json_line(&Record { at_us, fact })).into_iter().collect()
    }

    fn environment(&self) -> Environment {
        let not_lost = self.trackers.values().filter(|tracker| !tracker.is_lost);
        let trackers = not_lost.map(|tracker| tracker.row.clone()).collect();
        let Policy { name, params } = self.policy.clone();
        Environment { policy: name, params, trackers }
    }
}

fn json_line(line: &impl Serialize) -> String {
    let mut text = serde_json::to_string(line).expect("plain data");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{Incarnation, JobId},
        phase::PerPhase,
    };

    #[test]
    fn forgotten_tracker_is_removed_from_the_known_trackers() {
        let mut lines = HistoryLines::default();
        let joined = Fact::TrackerJoined {
            tracker: TrackerId(1),
            name: "node1".into(),
            incarnation: Incarnation(1),
            host: "h".into(),
            rack: "r".into(),
            shuffle_addr: String::new(),
            logs_addr: String::new(),
            slots: PerPhase { map: 1, reduce: 1 },
        };
        assert!(lines.of_fact(Time(0), &joined).is_empty());
        assert_eq!(lines.trackers.len(), 1);
        let blacklisted = Fact::TrackerBlacklisted { job: JobId(1), tracker: TrackerId(1) };
        assert!(lines.of_fact(Time(7), &blacklisted)[0].contains(r#"{"tracker":"node1"}"#));
        let (name, why) = ("node1".into(), String::new());
        lines.of_fact(Time(0), &Fact::TrackerForgotten { tracker: TrackerId(1), name, why });
        assert!(lines.trackers.is_empty());
    }
}
