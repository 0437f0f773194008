//! Registration and heartbeats of trackers: periodic, and at once when there is something to
//! report.

use super::{World, run::Work};
use mrcore::{
    Event, Span, Time,
    event::{AttemptReport, AttemptStatus, FetchFailure, Heartbeat, Registration},
    ids::{Incarnation, TrackerId},
};

/// Events within this time share a heartbeat, as in the real tracker.
const GAP: Span = Span::millis(2);
/// Maximum number of fetch failures that a reduce reports at a time.
const FETCH_FAILURES_MAX: usize = 4;

impl World {
    /// Schedules the next heartbeat, and replaces the one planned before.
    pub(super) fn beat_at(&mut self, at: usize, when: Time) {
        let node = &mut self.nodes[at];
        node.beat_version += 1;
        node.next_beat = when;
        let (node, version) = (at as u32, node.beat_version);
        self.queue.push(when, super::SimEvent::Beat { node, version });
    }

    /// Sends a heartbeat soon, because the tracker has something to report.
    pub(super) fn heartbeat_soon(&mut self, at: usize) {
        let soon = self.now + GAP;
        if self.setup.out_of_band && self.nodes[at].next_beat > soon && self.nodes[at].is_up() {
            self.beat_at(at, soon);
        }
    }

    pub(super) fn beat(&mut self, at: usize) {
        if self.asleep || !self.nodes[at].is_up() {
            return;
        }
        self.beat_at(at, self.now + self.setup.heartbeat);
        let delivered = self.nodes[at].can_communicate() && self.core.is_some();
        if !delivered || self.nodes[at].faults.no_orders > 0 {
            self.fence(at);
        }
        if !delivered {
            return;
        }
        if self.nodes[at].number.is_none() {
            return self.register(at);
        }
        if self.nodes[at].unanswered.is_none() {
            let heartbeat = self.heartbeat(at);
            let ended = self.nodes[at].ended.len();
            self.nodes[at].unanswered = heartbeat.map(|heartbeat| (heartbeat, ended));
        } else {
            // More has happened since the repeated heartbeat was made.
            self.heartbeat_soon(at);
        }
        if self.nodes[at].faults.no_orders == 0 {
            if let Some((heartbeat, ended)) = self.nodes[at].unanswered.take() {
                let seq = heartbeat.seq;
                self.nodes[at].unanswered = Some((bare(seq), ended));
                self.send_event(Event::Heartbeat(heartbeat));
            }
        } else if let Some((heartbeat, _)) = self.nodes[at].unanswered.clone() {
            self.send_event(Event::Heartbeat(heartbeat));
        }
    }

    /// A tracker without an answer for a long time stops its attempts, because the JobTracker has
    /// started them elsewhere.
    fn fence(&mut self, at: usize) {
        if self.now.since(self.nodes[at].answered) < self.setup.costs.fence {
            return;
        }
        let keys: Vec<u64> = self.nodes[at].runs.iter().map(|run| run.key).collect();
        for key in keys {
            if let Some(run) = self.remove_run(at, key) {
                let status = AttemptStatus::Killed("its tracker was isolated for too long".into());
                self.nodes[at].ended.push(AttemptReport { attempt: run.id, status });
            }
        }
    }

    /// Reports every running attempt.
    fn reports(&mut self, at: usize) -> Vec<AttemptReport> {
        let now = self.now;
        let node = &mut self.nodes[at];
        let mut reports = Vec::with_capacity(node.ended.len() + node.runs.len());
        reports.extend(node.ended.iter().cloned());
        for run in &mut node.runs {
            run.advance(now);
            let status = AttemptStatus::Running(run.progress());
            reports.push(AttemptReport { attempt: run.id, status });
        }
        reports
    }

    fn heartbeat(&mut self, at: usize) -> Option<Heartbeat> {
        let attempts = self.reports(at);
        let (now, retry) = (self.now, self.setup.costs.fetch_retry);
        let cluster = self.core.as_ref()?.cluster();
        // Reduces of the simulator do not follow an output that moves, so a fetch failure is always
        // at the current address.
        let addr_of = |map| {
            let output_on = cluster.attempt(map).and_then(|map| cluster.tracker(map.output_on));
            output_on.map_or_else(String::new, |output_on| output_on.shuffle_addr.clone())
        };
        let node = &mut self.nodes[at];
        node.seq += 1;
        node.acked_reported = node.acked;
        let mut fetch_failures = Vec::new();
        for run in &mut node.runs {
            let Work::Reduce(reduce) = &mut run.work else { continue };
            let due = now.since(reduce.last_fetch_failure) >= retry;
            if reduce.final_stages.is_none() && !reduce.fetch.blocked.is_empty() && due {
                reduce.last_fetch_failure = now;
                let some =
                    reduce.fetch.blocked.iter().take(FETCH_FAILURES_MAX).map(|blocked| blocked.attempt);
                fetch_failures.extend(some.map(|map| FetchFailure {
                    reduce: run.id,
                    map,
                    addr: addr_of(map),
                }));
            }
        }
        Some(Heartbeat {
            tracker: node.number?,
            incarnation: Incarnation(node.incarnation),
            seq: node.seq,
            acked: node.acked,
            attempts,
            fetch_failures,
        })
    }

    fn register(&mut self, at: usize) {
        // A tracker that gets no messages cannot register.
        let Some(core) = self.core.as_ref().filter(|_| self.nodes[at].faults.no_orders == 0) else {
            return;
        };
        let cluster = core.cluster();
        let known = cluster.tracker_named(&self.nodes[at].name).map(|tracker| tracker.id);
        let next = cluster.trackers().last().map_or(0, |last| last.id.0 + 1);
        let number = known.unwrap_or(TrackerId(next));
        let attempts = self.reports(at);
        let rack = self.setup.machines[at].rack;
        let now = self.now;
        let node = &mut self.nodes[at];
        node.ended.clear();
        node.unanswered = None;
        (node.seq, node.acked, node.acked_reported, node.answered) = (0, 0, 0, now);
        node.number = Some(number);
        let tracker = Registration {
            name: node.name.clone(),
            incarnation: Incarnation(node.incarnation),
            host: node.name.clone(),
            rack: format!("r{rack}"),
            shuffle_addr: format!("{}:1", node.name),
            logs_addr: format!("{}:2", node.name),
            slots: node.slots,
            attempts,
            outputs: node.outputs.iter().copied().collect(),
            checkpoints: node
                .checkpoints
                .iter()
                .map(|(attempt, saved)| (*attempt, saved.checkpoint))
                .collect(),
            jobs: node.jobs.iter().copied().collect(),
        };
        self.by_tracker.insert(number, at as u32);
        let request = self.request();
        self.send_event(Event::Registration { request, tracker });
        let given = self.core.as_ref().and_then(|core| core.cluster().tracker(number));
        if let Some(incarnation) = given.map(|tracker| tracker.incarnation.0) {
            self.nodes[at].incarnation = incarnation;
        }
    }
}

/// A heartbeat that is answered at once is stored only as its number.
fn bare(seq: u64) -> Heartbeat {
    let (tracker, incarnation) = (TrackerId(0), Incarnation(0));
    Heartbeat { tracker, incarnation, seq, acked: 0, attempts: Vec::new(), fetch_failures: Vec::new() }
}
