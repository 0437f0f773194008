//! Checks of a run in addition to the invariants of the core: over the sequence of events, and
//! whether the core and the machines agree.

use super::{World, cases::Before, map_events::MapEvents};
use crate::Cases;
use mrcore::{
    Cluster, Effect, Event, Fact, JobTracker,
    ids::{AttemptId, TrackerId},
    trace_checker::TraceChecker,
    tracker::TrackerState,
};
use std::collections::BTreeSet;

/// State of the checks.
#[derive(Debug, Default)]
pub(super) struct Checks {
    trace_checker: TraceChecker,
    pub(super) map_events: MapEvents,
    pub(super) cases: Cases,
    /// Checkpoints that were lost with a disk.
    pub(super) destroyed_checkpoints: BTreeSet<AttemptId>,
}

impl Checks {
    /// Checks the effects of an event, and counts rare cases. The error describes a violation.
    pub(super) fn check(
        &mut self,
        event: &Event,
        before: &Before,
        effects: &[Effect],
        cluster: &Cluster,
    ) -> Result<(), String> {
        self.trace_checker.check(event, effects, cluster)?;
        self.cases.add("attempt given up is still reported", before.reports_given_up_attempt);
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    match &entry.fact {
                        Fact::AttemptSucceeded { attempt, .. } | Fact::MapSplit { attempt, .. } => {
                            self.map_events.note_success(*attempt, cluster);
                        }
                        Fact::MapOutputLost { attempt, unfetched: true, .. }
                            if before.only_outdated_fetch_failures =>
                        {
                            return Err(format!("{attempt} runs again because of an outdated address"));
                        }
                        _ => {}
                    }
                    self.cases.note_fact(before, &entry.fact, cluster);
                }
                Effect::Reply { reply, .. } => self.cases.note_reply(before, reply),
                _ => {}
            }
        }
        Ok(())
    }
}

impl World {
    /// Counts a case of a checked run.
    pub(super) fn count(&mut self, name: &'static str, occurred: bool) {
        if let Some(checks) = &mut self.checks {
            checks.cases.add(name, occurred);
        }
    }

    /// Deletes a checkpoint. Checks that no reduce is reading it and that no task will resume from
    /// it.
    pub(super) fn drop_checkpoint(&mut self, at: usize, dropped: AttemptId) {
        let existed = self.nodes[at].checkpoints.remove(&dropped).is_some();
        self.count("checkpoint dropped", existed);
        let Some(core) = self.core.as_ref().filter(|_| self.setup.checked) else { return };
        let (cluster, tracker) = (core.cluster(), self.nodes[at].tracker_id);
        let Some(job) = cluster.job(dropped.job()).filter(|job| job.is_running()) else { return };
        let checkpoint = job.task(dropped.task).and_then(|task| task.checkpoint);
        let needed = checkpoint
            .is_some_and(|checkpoint| checkpoint.attempt == dropped && Some(checkpoint.tracker) == tracker);
        if needed {
            self.violation = Some(format!("{dropped} is dropped although its task will resume from it"));
            return;
        }
        let reads = |attempt: &AttemptId| {
            cluster.attempt(*attempt).is_some_and(|attempt| {
                attempt.state.holds_slot()
                    && attempt.resumed_from == Some(dropped)
                    && attempt.checkpoint_on == tracker
            })
        };
        let mut running = self.nodes.iter().flat_map(|node| &node.runs).map(|run| run.id);
        if let Some(reader) = running.find(reads) {
            self.violation = Some(format!("{dropped} is dropped while {reader} reads it"));
        }
    }

    /// Reports a violation if a reduce that is still wanted does not find its checkpoint.
    pub(super) fn checkpoint_missing(&mut self, paused: AttemptId, reduce: AttemptId) {
        let known = self.core.as_ref().and_then(|core| core.cluster().attempt(reduce));
        // An order may arrive after the attempt was given up.
        let wanted = known.is_some_and(|known| known.state.is_viable());
        if let Some(checks) = &self.checks
            && wanted
            && !checks.destroyed_checkpoints.contains(&paused)
        {
            let what = format!("the checkpoint of {paused}, for {reduce}, is not where the order says");
            self.violation = Some(what);
        }
    }

    /// Checks that trackers which the JobTracker calls drained run no attempts.
    pub(super) fn check_drains(&mut self) {
        let Some(core) = self.core.as_ref().filter(|_| self.checks.is_some()) else { return };
        let active = core.cluster().active_jobs().next().is_some();
        let is_drained = |tracker: &TrackerId| {
            let live = core.cluster().tracker(*tracker).is_some_and(|at| at.state == TrackerState::Live);
            live && core.drain_status(*tracker).is_empty()
        };
        let drained: Vec<TrackerId> = draining(core).filter(is_drained).collect();
        for tracker in drained {
            self.count("tracker drained while jobs run", active);
            let node = self.by_tracker.get(&tracker).map(|at| &self.nodes[*at as usize]);
            if let Some(node) = node.filter(|node| !node.runs.is_empty() && node.tracker_id == Some(tracker))
            {
                let runs: Vec<AttemptId> = node.runs.iter().map(|run| run.id).collect();
                self.violation = Some(format!("{} is called drained, but runs {runs:?}", node.name));
            }
        }
    }

    /// Checks that all draining trackers are empty at the end of the run, and cancels their drains.
    pub(super) fn end_drains(&mut self) {
        let Some(core) = &self.core else { return };
        let all: Vec<_> = draining(core).map(|tracker| (tracker, core.drain_status(tracker))).collect();
        for (tracker, status) in all {
            if !status.is_empty() {
                self.violation = Some(format!("{tracker} is not empty after its drain: {status:?}"));
            }
            let (request, by) = (self.manual_request(), "operator".to_owned());
            self.send_event(Event::Drain { request, tracker, within: None, by });
        }
    }

    /// Checks that, after the end of a run, registered trackers have no files of jobs.
    pub(super) fn check_files(&mut self) {
        let reachable: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].is_up()).collect();
        for at in reachable {
            self.send_to_agent(at, super::AgentEvent::RegisterAgain);
            let node = &self.nodes[at];
            if !node.jobs.is_empty() || !node.outputs.is_empty() || !node.checkpoints.is_empty() {
                self.violation = Some(format!("{} still has files of {:?}", node.name, node.jobs));
            }
        }
    }

    /// Checks that the policy is not called all the time when it has no work.
    pub(super) fn check_rounds(&mut self) {
        let Some(before) = self.core.as_ref().map(JobTracker::rounds) else { return };
        for _ in 0..20 {
            self.now = self.now + mrcore::Span::millis(200);
            self.send_event(Event::Tick);
        }
        let rounds = self.core.as_ref().map_or(0, |core| core.rounds() - before);
        if rounds > 5 {
            self.violation = Some(format!("{rounds} rounds in 4 s without events"));
        }
    }
}

fn draining(core: &JobTracker) -> impl Iterator<Item = TrackerId> {
    core.cluster().trackers().filter(|tracker| tracker.drain.is_some()).map(|tracker| tracker.id)
}
