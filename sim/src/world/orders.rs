//! What trackers are told, and what they make of it.

use super::World;
use mrcore::{
    Phase,
    event::{Numbered, Order},
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::MapEvent,
    task::PreemptKind,
    tracker::TrackerState,
};

/// A tracker that has taken so many orders since its last heartbeat says so: until it does, it is sent them again
/// with every new one.
const UNACKED_ORDERS_MAX: u64 = 12;

impl World {
    /// A tracker gets its orders, unless nothing reaches it.
    pub(super) fn deliver_orders(&mut self, tracker: TrackerId, answer: Option<u64>, orders: Vec<Numbered>) {
        let Some(at) = self.by_tracker.get(&tracker).map(|at| *at as usize) else { return };
        let now = self.now;
        let jobs_known = self.core.as_ref().and_then(|core| core.cluster().tracker(tracker));
        // A JobTracker that has begun again has no line to a tracker before that has registered with it.
        if jobs_known.is_some_and(|jobs_known| jobs_known.state == TrackerState::Awaited) {
            return;
        }
        let node = &mut self.nodes[at];
        if !node.can_communicate() || node.faults_of.no_orders > 0 || node.number != Some(tracker) {
            return;
        }
        let expected = node.unanswered.as_ref().map(|(heartbeat, _)| heartbeat.seq);
        if answer.is_some() && answer == expected {
            let deliver_orders = node.unanswered.take().map_or(0, |(_, deliver_orders)| deliver_orders);
            node.ended.drain(..deliver_orders.min(node.ended.len()));
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
                self.add_map_events(at, job, first, maps, &events)
            }
            Order::Clean(job) => self.clean(at, job),
            // Nobody is drained here.
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

    /// News of a job's maps: the list grows, and this tracker's reduces follow it.
    fn add_map_events(&mut self, at: usize, job: JobId, first: usize, maps: u32, events: &[MapEvent]) {
        let (Some(core), Some(jobs_known)) = (&self.core, self.jobs_known.get_mut(&job)) else { return };
        let out = self.workload.jobs[jobs_known.plan].map_out;
        let new = jobs_known.log.len().saturating_sub(first).min(events.len());
        for event in &events[new..] {
            match event {
                MapEvent::Available(attempt, on) => {
                    let bytes = core.cluster().task(attempt.task).map_or(0, mrcore::task::Task::bytes);
                    let node = self.by_tracker.get(on).copied().unwrap_or(0);
                    jobs_known.log.available(*attempt, bytes as f64 * out, node);
                }
                MapEvent::Withdrawn(attempt) => jobs_known.log.withdrawn(*attempt),
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
