//! What trackers are told, and what they make of it.

use super::World;
use mrcore::{
    Phase,
    event::{Numbered, Order},
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::MapEvent,
    task::Recall,
    tracker::TrackerState,
};

/// A tracker that has taken so many orders since its last heartbeat says so: until it does, it is sent them again
/// with every new one.
const IN_HAND: u64 = 12;

impl World {
    /// A tracker gets its orders, unless nothing reaches it.
    pub(super) fn told(&mut self, tracker: TrackerId, answer: Option<u64>, orders: Vec<Numbered>) {
        let Some(at) = self.by_tracker.get(&tracker).map(|at| *at as usize) else { return };
        let now = self.now;
        let known = self.mind.as_ref().and_then(|mind| mind.cluster().tracker(tracker));
        // A JobTracker that has begun again has no line to a tracker before that has registered with it.
        if known.is_some_and(|known| known.state == TrackerState::Awaited) {
            return;
        }
        let node = &mut self.nodes[at];
        if !node.is_heard() || node.ills.deaf > 0 || node.number != Some(tracker) {
            return;
        }
        let expected = node.unanswered.as_ref().map(|(heartbeat, _)| heartbeat.seq);
        if answer.is_some() && answer == expected {
            let told = node.unanswered.take().map_or(0, |(_, told)| told);
            node.ended.drain(..told.min(node.ended.len()));
            node.answered = now;
        }
        for (number, order) in orders {
            if number > self.nodes[at].acked {
                self.nodes[at].acked = number;
                self.obey(at, order);
            }
        }
        let node = &self.nodes[at];
        if node.acked >= node.acked_told + IN_HAND {
            self.urge(at);
        }
    }

    fn obey(&mut self, at: usize, order: Order) {
        match order {
            Order::Launch(attempt) => {
                self.nodes[at].jobs.insert(attempt.job());
                self.launch(at, attempt);
            }
            Order::Recall { attempt, how, .. } => self.recall(at, attempt, how),
            Order::Drop(attempt) => {
                self.nodes[at].checkpoints.remove(&attempt);
            }
            Order::MapEvents { job, first, maps, events } => self.learn(at, job, first, maps, &events),
            Order::Clean(job) => self.clean(at, job),
            // Nobody is emptied here.
            Order::Take { .. } => {}
        }
    }

    fn clean(&mut self, at: usize, job: JobId) {
        let its: Vec<AttemptId> =
            self.nodes[at].runs.iter().map(|run| run.id).filter(|id| id.job() == job).collect();
        for attempt in its {
            self.recall(at, attempt, Recall::Kill);
        }
        let first = |job| TaskId { job, phase: Phase::Map, index: 0 }.attempt(0);
        let (from, to) = (first(job), first(JobId(job.0 + 1)));
        let node = &mut self.nodes[at];
        let mut after = node.outputs.split_off(&from);
        let mut others = after.split_off(&to);
        node.outputs.append(&mut others);
        node.checkpoints.retain(|attempt, _| attempt.job() != job);
        node.jobs.remove(&job);
        node.news.remove(&job);
    }

    /// News of a job's maps: the list grows, and this tracker's reduces follow it.
    fn learn(&mut self, at: usize, job: JobId, first: usize, maps: u32, events: &[MapEvent]) {
        let (Some(mind), Some(known)) = (&self.mind, self.known.get_mut(&job)) else { return };
        let out = self.workload.jobs[known.plan].map_out;
        let new = known.log.len().saturating_sub(first).min(events.len());
        for event in &events[new..] {
            match event {
                MapEvent::Available(attempt, on) => {
                    let bytes = mind.cluster().task(attempt.task).map_or(0, mrcore::task::Task::bytes);
                    let node = self.by_tracker.get(on).copied().unwrap_or(0);
                    known.log.available(*attempt, bytes as f64 * out, node);
                }
                MapEvent::Withdrawn(attempt) => known.log.withdrawn(*attempt),
            }
        }
        let news = self.nodes[at].news.entry(job).or_default();
        news.seen = news.seen.max(first + events.len());
        news.maps = news.maps.max(maps);
        let its =
            self.nodes[at].runs.iter().filter(|run| run.id.job() == job && run.id.phase() == Phase::Reduce);
        let keys: Vec<u64> = its.map(|run| run.key).collect();
        for key in keys {
            self.follow(at, key);
        }
    }
}
