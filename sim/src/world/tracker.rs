//! The driver of the agents of trackers: carries messages between the agents and the core, and
//! carries out the actions of the agents on the simulated machines.
//!
//! Agents and core are the real code. A message arrives at once or not at all, and in order. Agents
//! repeat heartbeats that were not answered. The core repeats orders until they are acknowledged;
//! this driver drops those that have already reached the tracker. A connection breaks when one of
//! its two processes dies, or when a registration cannot be sent. The agent then connects again as
//! soon as it can.
//!
//! Agents get the progress of attempts when a heartbeat is due, not when it changes. Their clocks
//! stand still while the simulation skips idle time.

use super::{SimEvent, World, run::Work};
use crate::rng::mix;
use agent::{Action, DriverTypes, FetchFailure, MapEventBatch};
use mrcore::{
    Event, Phase, Span, Time,
    event::{self, AttemptReport, AttemptStatus, Heartbeat, NumberedOrder, Registration},
    ids::{AttemptId, Incarnation, JobId, TrackerId},
    job::MapEvent,
    task::{AttemptResult, CheckpointInfo, PreemptKind, Progress, Stage},
    tracker::TrackerState,
};

/// Maximum number of fetch failures that a reduce reports in one heartbeat.
const FETCH_FAILURES_MAX: usize = 4;
/// Time from the start of a tracker to its registration.
pub(super) const START: Span = Span::millis(50);
/// Shortest time between two attempts to connect to the JobTracker.
const RECONNECT: Span = Span::secs(1);

/// The data that agents pass on without looking at it. Map events are stored in one list per job,
/// which all machines share, so agents only count them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model;

impl DriverTypes for Model {
    type Launch = ();
    type Source = TrackerId;
    type Progress = Progress;
    /// The result, and the position at which a map was split.
    type Result = (AttemptResult, Option<u64>);
    type Checkpoint = CheckpointInfo;
    type MapEvent = ();

    fn no_progress(attempt: AttemptId) -> Progress {
        let stage = if attempt.phase() == Phase::Map { Stage::Map } else { Stage::Shuffle };
        Progress { stage, ..Progress::default() }
    }
}

pub(super) type Agent = agent::Agent<Model>;
pub(super) type AgentEvent = agent::Event<Model>;
pub(super) type AttemptEnd = agent::AttemptEnd<Model>;

/// A message of the core to a tracker.
#[derive(Debug)]
pub(super) enum Message {
    Registered { at: usize, tracker: TrackerId, incarnation: Incarnation },
    RegisterAgain { tracker: TrackerId, incarnation: Incarnation },
    Orders { tracker: TrackerId, answers: Option<u64>, orders: Vec<NumberedOrder> },
}

impl World {
    /// Delivers the messages of the core. Agents may answer at once, which leads to further
    /// messages. Those are queued, so that each tracker gets its messages in order.
    pub(super) fn deliver_messages(&mut self) {
        if std::mem::replace(&mut self.delivering, true) {
            return;
        }
        while let Some(message) = self.messages.pop_front() {
            match message {
                Message::Registered { at, tracker, incarnation } => {
                    self.handle_registered(at, tracker, incarnation);
                }
                Message::RegisterAgain { tracker, incarnation } => {
                    self.register_again(tracker, incarnation);
                }
                Message::Orders { tracker, answers, orders } => {
                    self.deliver_orders(tracker, answers, orders);
                }
            }
        }
        self.delivering = false;
    }

    /// Returns the time of the agents, which excludes skipped idle time.
    fn agent_clock(&self) -> Time {
        Time(self.now.0 - self.idle_time_skipped.0)
    }

    /// Passes an event to the agent of a machine, and carries out the actions of the agent. A
    /// frozen tracker gets the event later, a dead tracker never.
    pub(super) fn send_to_agent(&mut self, at: usize, event: AgentEvent) {
        if self.nodes[at].faults.frozen > 0 && self.nodes[at].is_up() {
            return self.nodes[at].inbox.push(event);
        }
        self.send_to_agent_at(at, self.agent_clock(), event);
    }

    fn send_to_agent_at(&mut self, at: usize, clock: Time, event: AgentEvent) {
        if !self.nodes[at].is_up() {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.nodes[at].agent.handle(clock, event, &mut actions);
        for action in actions.drain(..) {
            self.execute_action(at, action);
        }
        self.actions = actions;
        self.schedule_agent_deadline(at);
    }

    /// Schedules the next deadline of an agent, unless an earlier deadline is scheduled.
    pub(super) fn schedule_agent_deadline(&mut self, at: usize) {
        let Some(deadline) = self.nodes[at].agent.next_deadline() else { return };
        let due = (deadline + self.idle_time_skipped).max(self.now);
        if self.nodes[at].next_agent_deadline.is_none_or(|next| due < next) {
            self.nodes[at].next_agent_deadline = Some(due);
            self.queue.push(due, SimEvent::AgentDeadline { node: at as u32 });
        }
    }

    /// Handles a deadline of an agent.
    pub(super) fn handle_agent_deadline(&mut self, at: usize) {
        // Otherwise this deadline was replaced by an earlier one.
        if self.nodes[at].next_agent_deadline == Some(self.now) {
            self.nodes[at].next_agent_deadline = None;
            if self.idle_since.is_none() && self.nodes[at].is_up() && self.nodes[at].faults.frozen == 0 {
                self.update_agent(at);
                self.send_to_agent(at, AgentEvent::Tick);
            }
        }
    }

    /// Passes the current progress and the ended attempts to an agent.
    fn update_agent(&mut self, at: usize) {
        let (now, before) = (self.now, Time(self.agent_clock().0 - 1));
        let node = &mut self.nodes[at];
        for run in &mut node.runs {
            run.advance(now);
            node.agent.set_progress(run.id, run.progress());
        }
        // All ended attempts are reported in one heartbeat, the one that is due now.
        let ended = std::mem::take(&mut node.unreported);
        let (random, failures) = (self.random_fetch_failures(at), self.fetch_failures(at));
        let failures = failures.into_iter().chain(random).map(AgentEvent::FetchFailed);
        for event in ended.into_iter().chain(failures) {
            self.send_to_agent_at(at, before, event);
        }
    }

    /// Reports the end of an attempt to the agent. Without out-of-band heartbeats the agent gets
    /// the report when its next heartbeat is due.
    pub(super) fn report_end(&mut self, at: usize, attempt: AttemptId, end: AttemptEnd) {
        let event = AgentEvent::Ended(attempt, end);
        if self.setup.out_of_band {
            self.send_to_agent(at, event);
        } else {
            self.nodes[at].unreported.push(event);
        }
    }

    fn fetch_failures(&mut self, at: usize) -> Vec<FetchFailure> {
        let (now, retry) = (self.now, self.setup.costs.fetch_retry);
        let Some(cluster) = self.core.as_ref().map(mrcore::JobTracker::cluster) else { return Vec::new() };
        // Reduces of the simulator do not follow an output that moves, so a fetch failure is always
        // at the current address.
        let addr_of = |map| {
            let output_on = cluster.attempt(map).and_then(|map| cluster.tracker(map.output_on));
            output_on.map_or_else(String::new, |output_on| output_on.shuffle_addr.clone())
        };
        let mut failures = Vec::new();
        for run in &mut self.nodes[at].runs {
            let Work::Reduce(reduce) = &mut run.work else { continue };
            let due = now.since(reduce.last_fetch_failure) >= retry;
            if reduce.final_stages.is_none() && !reduce.fetch.blocked.is_empty() && due {
                reduce.last_fetch_failure = now;
                let some =
                    reduce.fetch.blocked.iter().take(FETCH_FAILURES_MAX).map(|blocked| blocked.attempt);
                failures.extend(some.map(|map| FetchFailure { reduce: run.id, map, addr: addr_of(map) }));
            }
        }
        failures
    }

    fn execute_action(&mut self, at: usize, action: Action<Model>) {
        match action {
            Action::Start(attempt, ()) => self.launch(at, attempt),
            Action::Kill(attempt, _) => {
                if !self.stop_copy(at, attempt) {
                    self.preempt(at, attempt, PreemptKind::Kill);
                }
            }
            Action::Preempt(attempt, kind, _) => self.preempt(at, attempt, kind),
            Action::MapEvents(attempt, batch) => self.receive_map_events(at, attempt, &batch),
            Action::DropCheckpoint(attempt) => self.drop_checkpoint(at, attempt),
            Action::CopyFiles(attempt, from) => self.copy_files(at, attempt, from),
            Action::Clean(job) => self.delete_job_files(at, job),
            // As in the daemon: the driver cannot send the registration, and closes the connection.
            Action::Register { .. } if self.one_in(20) => {
                self.count("registration not sent", true);
                self.disconnect(at);
            }
            Action::Register { incarnation, attempts, outputs, checkpoints, jobs } => {
                let node = &self.nodes[at];
                let tracker = Registration {
                    name: node.name.clone(),
                    incarnation,
                    host: node.name.clone(),
                    rack: self.setup.machines[at].rack_name(),
                    shuffle_addr: node.shuffle_addr(node.starts),
                    logs_addr: format!("{}:logs", node.name),
                    slots: node.slots,
                    attempts: attempts.into_iter().map(report).collect(),
                    outputs,
                    checkpoints,
                    jobs,
                };
                let request = self.request();
                self.registrations.insert(request, at);
                self.send_event(Event::Registration { request, tracker });
            }
            Action::Heartbeat(heartbeat) => self.send_heartbeat(at, &heartbeat),
            Action::Exit(why) => self.violation = Some(format!("{} exits: {why}", self.nodes[at].name)),
        }
    }

    fn send_heartbeat(&mut self, at: usize, heartbeat: &agent::Heartbeat<Model>) {
        let node = &self.nodes[at];
        let Some(tracker) = node.tracker_id.filter(|_| node.can_communicate() && self.core.is_some()) else {
            return;
        };
        let incarnation = Incarnation(node.incarnation);
        let agent::Heartbeat { seq, acked, attempts, fetch_failures } = heartbeat;
        let heartbeat = Heartbeat {
            tracker,
            incarnation,
            seq: *seq,
            acked: *acked,
            attempts: attempts.iter().cloned().map(report).collect(),
            fetch_failures: fetch_failures.clone(),
        };
        if self.checks.is_none() {
            return self.send_event(Event::Heartbeat(heartbeat));
        }
        let requests = self.requests;
        self.send_event(Event::Heartbeat(heartbeat.clone()));
        for (phase, name) in [(Phase::Map, "free map slot"), (Phase::Reduce, "free reduce slot")] {
            let core = self.core.as_ref();
            let idle = core.is_some_and(|core| core.runnable_task(self.now, tracker, phase).is_some());
            // A slot may be free until the next heartbeat: a reduce that waited for the node of its
            // checkpoint can run here only after another job got the slot there.
            let was_idle = std::mem::replace(&mut self.nodes[at].idle[phase], idle);
            self.count(name, idle && was_idle);
        }
        // After a new registration, messages of the earlier one do not reach the core.
        if self.requests == requests {
            self.repeat_heartbeat(heartbeat);
        }
    }

    /// Handles the acceptance of a registration by the JobTracker.
    fn handle_registered(&mut self, at: usize, tracker: TrackerId, incarnation: Incarnation) {
        self.by_tracker.insert(tracker, at as u32);
        let node = &mut self.nodes[at];
        (node.tracker_id, node.incarnation, node.newest_order) = (Some(tracker), incarnation.0, 0);
        let (heartbeat, lost_after) = (self.setup.heartbeat, self.setup.config.lost_after);
        self.send_to_agent(at, AgentEvent::Registered { heartbeat, lost_after, incarnation });
    }

    /// Returns the machine of a tracker if messages of the JobTracker reach it.
    fn reachable_machine(&self, tracker: TrackerId) -> Option<usize> {
        let at = *self.by_tracker.get(&tracker)? as usize;
        let node = &self.nodes[at];
        let reached =
            node.can_communicate() && node.faults.no_orders == 0 && node.tracker_id == Some(tracker);
        reached.then_some(at)
    }

    fn register_again(&mut self, tracker: TrackerId, incarnation: Incarnation) {
        if let Some(at) =
            self.reachable_machine(tracker).filter(|at| self.nodes[*at].incarnation == incarnation.0)
        {
            self.update_agent(at);
            self.send_to_agent(at, AgentEvent::RegisterAgain);
        }
    }

    /// Delivers orders to a tracker, unless it is unreachable.
    fn deliver_orders(&mut self, tracker: TrackerId, answers: Option<u64>, orders: Vec<NumberedOrder>) {
        let known = self.core.as_ref().and_then(|core| core.cluster().tracker(tracker));
        // A JobTracker that has restarted has no connection to a tracker before the tracker
        // registers.
        if known.is_some_and(|tracker| tracker.state == TrackerState::Awaited) {
            return;
        }
        let Some(at) = self.reachable_machine(tracker) else { return };
        let reached = self.nodes[at].newest_order;
        self.nodes[at].newest_order = orders.last().map_or(reached, |(number, _)| reached.max(*number));
        let new = orders.into_iter().filter(|(number, _)| *number > reached);
        let orders = new.map(|(number, order)| (number, self.convert_order(order))).collect();
        self.send_to_agent(at, AgentEvent::Orders { answers: answers.unwrap_or(0), orders });
    }

    fn convert_order(&mut self, order: event::Order) -> agent::Order<Model> {
        match order {
            // A launch order that the tracker does not understand is acknowledged, but the attempt
            // is never reported.
            event::Order::Launch(_) if self.one_in(40) => agent::Order::Unknown,
            event::Order::Launch(attempt) => agent::Order::Launch(attempt, ()),
            event::Order::Preempt { attempt, kind, why } => agent::Order::Preempt(attempt, kind, why),
            event::Order::DropCheckpoint(attempt) => agent::Order::DropCheckpoint(attempt),
            event::Order::MapEvents { job, first, maps, events } => {
                self.check_map_events(job, first, maps, &events);
                self.add_map_events(job, first, &events);
                let (first, events) = (first as u64, vec![(); events.len()]);
                agent::Order::MapEvents(job, MapEventBatch { first, events, maps })
            }
            event::Order::CopyFiles { attempt, from } => agent::Order::CopyFiles(attempt, from),
            event::Order::Clean(job) => agent::Order::Clean(job),
        }
    }

    fn check_map_events(&mut self, job: JobId, first: usize, maps: u32, events: &[MapEvent]) {
        let (Some(checks), Some(core)) = (&mut self.checks, &self.core) else { return };
        if let Err(what) = checks.map_events.receive(job, first, maps, events, core.cluster()) {
            self.violation = Some(what);
        }
    }

    /// Adds map events to the list of their job.
    fn add_map_events(&mut self, job: JobId, first: usize, events: &[MapEvent]) {
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
    }

    /// Passes map events to a reduce.
    fn receive_map_events(&mut self, at: usize, attempt: AttemptId, batch: &MapEventBatch<Model>) {
        let Some(run) = self.nodes[at].runs.iter_mut().find(|run| run.id == attempt) else { return };
        let key = run.key;
        if let Work::Reduce(reduce) = &mut run.work {
            reduce.events_seen = batch.first as usize + batch.events.len();
            reduce.maps = reduce.maps.max(batch.maps);
            self.follow_map_events(at, key);
        }
    }

    /// Deletes the files of a job.
    fn delete_job_files(&mut self, at: usize, job: JobId) {
        let node = &mut self.nodes[at];
        node.delete_outputs(job);
        node.checkpoints.retain(|attempt, _| attempt.job() != job);
        let existed = node.jobs.remove(&job);
        self.count("job cleaned", existed);
        self.send_to_agent(at, AgentEvent::Cleaned(job, true));
    }

    /// Schedules the time at which a tracker tries to connect. Replaces an earlier schedule.
    pub(super) fn connect_at(&mut self, at: usize, when: Time) {
        let node = &mut self.nodes[at];
        node.connections += 1;
        let (node, version) = (at as u32, node.connections);
        self.queue.push(when, SimEvent::Connect { node, version });
    }

    pub(super) fn connect(&mut self, at: usize) {
        let node = &self.nodes[at];
        if !node.is_up() {
            return;
        }
        if node.can_communicate() && node.faults.no_orders == 0 && self.core.is_some() {
            self.update_agent(at);
            self.send_to_agent(at, AgentEvent::Connected);
        } else {
            self.connect_again(at);
        }
    }

    pub(super) fn connect_again(&mut self, at: usize) {
        let jitter = Span(mix(at as u64) % RECONNECT.0);
        self.connect_at(at, self.now + RECONNECT + jitter);
    }

    /// Closes the connections to a JobTracker that has died.
    pub(super) fn disconnect_all(&mut self) {
        for at in 0..self.nodes.len() {
            let faults = self.nodes[at].faults;
            if faults.dead == 0 && faults.unreachable == 0 && faults.partitioned == 0 {
                self.send_to_agent(at, AgentEvent::Disconnected);
                self.connect_again(at);
            }
        }
    }
}

/// Converts a report of an agent for the core.
fn report(report: agent::AttemptReport<Model>) -> AttemptReport {
    use agent::AttemptStatus as Status;
    let status = match report.status {
        Status::Running(progress) => AttemptStatus::Running(progress),
        Status::Ended(AttemptEnd::Succeeded { result: (result, None), .. }) => {
            AttemptStatus::Succeeded(result)
        }
        Status::Ended(AttemptEnd::Succeeded { result: (result, Some(position)), .. }) => {
            AttemptStatus::Split(position, result)
        }
        Status::Ended(AttemptEnd::Paused(checkpoint)) => AttemptStatus::Paused(checkpoint),
        Status::Ended(AttemptEnd::CheckpointCorrupt(why)) => AttemptStatus::CheckpointCorrupt(why),
        Status::Ended(AttemptEnd::CheckpointUnreachable(why)) => AttemptStatus::CheckpointUnreachable(why),
        Status::Ended(AttemptEnd::Failed(why)) => AttemptStatus::Failed(why),
        Status::Ended(AttemptEnd::Fatal(why)) => AttemptStatus::Fatal(why),
        Status::Ended(AttemptEnd::Killed(why)) => AttemptStatus::Killed(why),
        Status::Copied(Ok(bytes)) => AttemptStatus::Copied(bytes),
        Status::Copied(Err(why)) => AttemptStatus::CopyFailed(why),
    };
    AttemptReport { attempt: report.attempt, status }
}
