//! Log lines for the events that operators look for: trackers that join or leave, jobs that start
//! or end.
//!
//! A line is written when its fact is durable. Facts that are replayed from the journal are not
//! logged again.

use mrcore::{Cluster, Fact, fact::Entry, ids::TrackerId, job::JobOutcome};
use mrlib_api::error::one_line;

/// Returns whether [`log`] writes a line for this fact. Facts about attempts, which are most facts,
/// are not logged.
pub(crate) fn is_logged(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::TrackerJoined { .. }
            | Fact::TrackerSuspected { .. }
            | Fact::TrackerRecovered { .. }
            | Fact::TrackerLost { .. }
            | Fact::TrackerForgotten { .. }
            | Fact::TrackerDraining { .. }
            | Fact::DrainCancelled { .. }
            | Fact::JobSubmitted { .. }
            | Fact::JobEnded { .. }
    )
}

/// Logs a fact if [`is_logged`] returns true for it.
pub(crate) fn log(cluster: &Cluster, entry: &Entry) {
    let name = |id: &TrackerId| cluster.tracker(*id).map_or_else(|| id.to_string(), |at| at.name.clone());
    match &entry.fact {
        Fact::TrackerJoined { name, incarnation, host, rack, slots, .. } => {
            let (incarnation, maps, reduces) = (incarnation.0, slots.map, slots.reduce);
            tracing::info!(tracker = name, incarnation, host, rack, maps, reduces, "tracker registered");
        }
        Fact::TrackerSuspected { tracker, why } => {
            tracing::warn!(tracker = name(tracker), why, "tracker is suspect");
        }
        Fact::TrackerRecovered { tracker } => tracing::info!(tracker = name(tracker), "tracker is back"),
        Fact::TrackerLost { tracker, why } => tracing::warn!(tracker = name(tracker), why, "tracker is lost"),
        Fact::TrackerForgotten { name, why, .. } => {
            tracing::info!(tracker = name, why, "tracker is forgotten");
        }
        Fact::TrackerDraining { tracker, by, .. } => {
            tracing::info!(tracker = name(tracker), by, "tracker is being drained");
        }
        Fact::DrainCancelled { tracker, by } => {
            tracing::info!(tracker = name(tracker), by, "tracker is used again after a drain");
        }
        Fact::JobSubmitted { job, spec, .. } => {
            let (maps, reduces) = (spec.splits.len(), spec.reduces);
            let (user, queue) = (&spec.user, &spec.queue);
            tracing::info!(%job, name = spec.name, user, queue, maps, reduces, "job submitted");
        }
        Fact::JobEnded { job, outcome } => match outcome {
            JobOutcome::Succeeded => tracing::info!(%job, "job succeeded"),
            JobOutcome::Failed(why) => tracing::warn!(%job, why = one_line(why), "job failed"),
            JobOutcome::Killed(why) => tracing::info!(%job, why = one_line(why), "job killed"),
        },
        _ => {}
    }
}
