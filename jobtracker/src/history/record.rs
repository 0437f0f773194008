//! Renders a fact as a line of JSON (see `mrcore::history`), for users and for the simulator.

use mrcore::{
    Fact, PerPhase, Time,
    fact::Entry,
    history::{Environment, FORMAT, Head, HistoryFact, Record, Spec, TrackerRow},
    ids::TrackerId,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// The trackers that the facts so far name, by ID.
pub(super) type KnownTrackers = BTreeMap<TrackerId, KnownTracker>;

/// A tracker as the history shows it.
pub(super) struct KnownTracker {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) rack: String,
    pub(super) slots: PerPhase<u32>,
    /// Whether the tracker is lost and has not registered again.
    pub(super) is_lost: bool,
}

/// The scheduling policy and its parameters as configured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) params: BTreeMap<String, String>,
}

/// Returns the second line of a history: the policy and the trackers at the time of the submission.
pub(super) fn submitted_to_line(at: Time, policy: &Policy, known: &KnownTrackers) -> String {
    let not_lost = known.values().filter(|tracker| !tracker.is_lost);
    let trackers = not_lost.map(|KnownTracker { name, host, rack, slots, .. }| TrackerRow {
        name: name.clone(),
        host: host.clone(),
        rack: rack.clone(),
        map_slots: slots.map,
        reduce_slots: slots.reduce,
    });
    let Policy { name, params } = policy.clone();
    let environment = Environment { policy: name, params, trackers: trackers.collect() };
    json_line(&Record { at_us: at.0, fact: HistoryFact::SubmittedTo(environment) })
}

/// Returns the line of a fact, with its newline. None if the fact does not belong in the history of
/// a job.
pub(super) fn fact_line(cluster: &str, known: &KnownTrackers, entry: &Entry) -> Option<String> {
    let Time(at_us) = entry.at;
    if let Fact::JobSubmitted { job, spec, .. } = &entry.fact {
        let (cluster, spec) = (cluster.to_owned(), Spec::from(&**spec));
        return Some(json_line(&Head { format: FORMAT, cluster, job: *job, at_us, spec }));
    }
    let named = |id: TrackerId| {
        let unknown = || ("?".to_owned(), "?".to_owned());
        known.get(&id).map_or_else(unknown, |tracker| (tracker.name.clone(), tracker.host.clone()))
    };
    HistoryFact::from_fact(&entry.fact, &named).map(|fact| json_line(&Record { at_us, fact }))
}

fn json_line(line: &impl Serialize) -> String {
    let mut text = serde_json::to_string(line).expect("plain data");
    text.push('\n');
    text
}
