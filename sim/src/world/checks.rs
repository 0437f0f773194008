//! Checks of a run beyond the invariants of the core: over the sequence of events, and between the
//! core and the machines.

use super::{
    World,
    cases::{Before, Cases},
    map_events::MapEvents,
    random_events::OUTDATED,
};
use mrcore::{Cluster, Effect, Event, Fact, ids::AttemptId, trace_checker::TraceChecker};
use std::collections::BTreeSet;

/// State of the checks.
#[derive(Debug, Default)]
pub(super) struct Checks {
    trace_checker: TraceChecker,
    pub(super) map_events: MapEvents,
    pub(super) cases: Cases,
    /// Checkpoints that were lost with a disk.
    pub(super) destroyed: BTreeSet<AttemptId>,
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
        let outdated = matches!(event, Event::Heartbeat(heartbeat)
            if heartbeat.fetch_failures.iter().all(|failure| failure.addr == OUTDATED));
        self.cases.add("attempt given up is still reported", before.given_up);
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    match &entry.fact {
                        Fact::AttemptSucceeded { attempt, .. } | Fact::MapSplit { attempt, .. } => {
                            self.map_events.note_success(*attempt, cluster);
                        }
                        Fact::MapOutputLost { attempt, unfetched: true, .. } if outdated => {
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

    /// A checkpoint is deleted, which must not be read or needed any more.
    pub(super) fn drop_checkpoint(&mut self, at: usize, dropped: AttemptId) {
        let existed = self.nodes[at].checkpoints.remove(&dropped).is_some();
        self.count("checkpoint dropped", existed);
        let Some(core) = self.core.as_ref().filter(|_| self.setup.checked) else { return };
        let (cluster, tracker) = (core.cluster(), self.nodes[at].number);
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

    /// A reduce does not find the checkpoint that it should resume from.
    pub(super) fn checkpoint_missing(&mut self, paused: AttemptId, reduce: AttemptId) {
        let known = self.core.as_ref().and_then(|core| core.cluster().attempt(reduce));
        // An order may arrive after the attempt was given up.
        let wanted = known.is_some_and(|known| known.state.is_viable());
        if let Some(checks) = &self.checks
            && wanted
            && !checks.destroyed.contains(&paused)
        {
            let what = format!("the checkpoint of {paused}, for {reduce}, is not where the order says");
            self.violation = Some(what);
        }
    }

    /// After the end of a run, trackers that have registered have no files of jobs.
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

    /// A policy without work is not asked all the time.
    pub(super) fn check_rounds(&mut self) {
        let Some(before) = self.core.as_ref().map(mrcore::JobTracker::rounds) else { return };
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
