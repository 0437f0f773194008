//! Delivery and execution of orders to trackers.

use super::World;
use mrcore::{
    Phase,
    event::{Numbered, Order},
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::MapEvent,
    task::PreemptKind,
    tracker::TrackerState,
};

/// A tracker sends a heartbeat after this many unacknowledged orders, because the JobTracker
/// repeats them with every new order until they are acknowledged.
const UNACKED_ORDERS_MAX: u64 = 12;

impl World {
    /// Delivers orders to a tracker, unless it is unreachable.
    pub(super) fn deliver_orders(&mut self, tracker: TrackerId, answer: Option<u64>, orders: Vec<Numbered>) {
        let Some(at) = self.by_tracker.get(&tracker).map(|at| *at as usize) else { return };
        let now = self.now;
        let known = self.core.as_ref().and_then(|core| core.cluster().tracker(tracker));
        // A JobTracker that has restarted has no connection to a tracker before the tracker
        // registers.
        if known.is_some_and(|tracker| tracker.state == TrackerState::Awaited) {
            return;
        }
        let node = &mut self.nodes[at];
        if !node.can_communicate() || node.faults.no_orders > 0 || node.number != Some(tracker) {
            return;
        }
        let expected = node.unanswered.as_ref().map(|(heartbeat, _)| heartbeat.seq);
        if answer.is_some() && answer == expected {
            let reported = node.unanswered.take().map_or(0, |(_, ends)| ends);
            node.ended.drain(..reported.min(node.ended.len()));
            node.answered = now;
        }
        for (number, order) in orders {
            if number > self.nodes[at].acked {
                self.nodes[at].acked = number;
                self.execute(at, order);
            }
        }
        let node = &self.nodes[at];
        if node.acked >= node.acked_reported + UNACKED_ORDERS_MAX {
            self.heartbeat_soon(at);
        }
    }

    fn execute(&mut self, at: usize, order: Order) {
        match order {
            Order::Launch(attempt) => {
                self.nodes[at].jobs.insert(attempt.job());
                self.launch(at, attempt);
            }
            Order::Preempt { attempt, kind, .. } => self.preempt(at, attempt, kind),
            Order::DropCheckpoint(attempt) => {
                self.nodes[at].checkpoints.remove(&attempt);
            }
            Order::MapEvents { job, first, maps, events } => {
                self.add_map_events(at, job, first, maps, &events);
            }
            Order::Clean(job) => self.clean(at, job),
            // Drains are not simulated.
            Order::CopyFiles { .. } => {}
        }
    }

    fn clean(&mut self, at: usize, job: JobId) {
        let its: Vec<AttemptId> =
            self.nodes[at].runs.iter().map(|run| run.id).filter(|id| id.job() == job).collect();
        for attempt in its {
            self.preempt(at, attempt, PreemptKind::Kill);
        }
        let first = |job| TaskId { job, phase: Phase::Map, index: 0 }.attempt(0);
        let (from, to) = (first(job), first(JobId(job.0 + 1)));
        let node = &mut self.nodes[at];
        let mut after = node.outputs.split_off(&from);
        let mut others = after.split_off(&to);
        node.outputs.append(&mut others);
        node.checkpoints.retain(|attempt, _| attempt.job() != job);
        node.jobs.remove(&job);
        node.map_events.remove(&job);
    }

    /// Adds map events of a job; the reduces on this tracker process them.
    fn add_map_events(&mut self, at: usize, job: JobId, first: usize, maps: u32, events: &[MapEvent]) {
        let (Some(core), Some(known_job)) = (&self.core, self.jobs_known.get_mut(&job)) else { return };
        let out = self.workload.jobs[known_job.plan].map_out;
        let new = known_job.log.len().saturating_sub(first).min(events.len());
        for event in &events[new..] {
            match event {
                MapEvent::Available(attempt, on) => {
                    let bytes = core.cluster().task(attempt.task).map_or(0, mrcore::task::Task::bytes);
                    let node = self.by_tracker.get(on).copied().unwrap_or(0);
                    known_job.log.available(*attempt, bytes as f64 * out, node);
                }
                MapEvent::Withdrawn(attempt) => known_job.log.withdrawn(*attempt),
            }
        }
        let map_events = self.nodes[at].map_events.entry(job).or_default();
        map_events.seen = map_events.seen.max(first + events.len());
        map_events.maps = map_events.maps.max(maps);
        let its =
            self.nodes[at].runs.iter().filter(|run| run.id.job() == job && run.id.phase() == Phase::Reduce);
        let keys: Vec<u64> = its.map(|run| run.key).collect();
        for key in keys {
            self.follow(at, key);
        }
    }
}
