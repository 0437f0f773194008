//! The state machine of the TaskTracker: running attempts and slots, processed orders, and reports
//! that are not yet acknowledged.
//!
//! The agent uses no clock, socket, process or file: it is given events with the time, and returns
//! actions. The daemon and the simulator run the same agent; each chooses the types of the data
//! that the agent only passes on ([`DriverTypes`]).
//!
//! Invariants:
//! - orders are executed in the order of their numbers, and each only once;
//! - that an attempt has ended is reported until the heartbeat (or registration) with the report
//!   has been answered;
//! - at most one heartbeat is unanswered, and it is repeated, unchanged except for
//!   `acked`, until it is answered;
//! - a registration is not repeated, because a second one would restart the numbering of orders;
//! - no more attempts run than there are slots;
//! - the files of a job are deleted only after its last process here has ended and no copy for it
//!   is in progress; until then the job is part of registrations;
//! - no message is longer than the JobTracker accepts, with up to 500,000 map outputs.
//!
//! While the JobTracker does not answer, tasks keep running for a limited time: the tracker kills
//! them before the JobTracker declares the tracker lost and runs them elsewhere, so that no task
//! runs twice. After a registration the JobTracker orders the tracker to kill the attempts that
//! must not run any more, and the tracker reports when each has ended.
//!
//! The driver owns the connection to the JobTracker and the processes.

mod copies;
mod driver_types;
mod messages;
mod reports;
#[cfg(test)]
mod tests;

pub use driver_types::{Data, DriverTypes};
pub use messages::*;
pub use reports::ENDED_BYTES_MAX;
pub use types::FetchFailure;

use reports::{PendingReports, limit_status_texts};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use types::{AttemptId, JobId, PerPhase, Phase, PreemptKind, Span, Time, ids::Incarnation};

/// Delay before a heartbeat that reports an event, so that events close together share one
/// heartbeat.
pub const HEARTBEAT_GAP: Span = Span::millis(2);
/// How long to wait before the agent tries again to delete files that could not be deleted.
const CLEAN_RETRY_DELAY: Span = Span::secs(60);
/// Heartbeat interval until the JobTracker has set one.
const DEFAULT_INTERVAL: Span = Span::secs(1);

/// An attempt whose process is running.
#[derive(Debug)]
struct RunningAttempt<T: DriverTypes> {
    progress: T::Progress,
    /// The reason, if the attempt is being killed.
    kill_reason: Option<String>,
    /// How many map events were sent to the attempt.
    events_sent: usize,
    /// The number of maps of the job that was last sent to the attempt.
    maps_sent: u32,
}

/// The map events of a job.
#[derive(Debug)]
struct MapEventList<T: DriverTypes> {
    /// All events so far. They are kept until the job is cleaned up, because another reduce of the
    /// job may start here and the JobTracker sends each event once.
    events: Vec<T::MapEvent>,
    /// Number of maps of the job after these events; 0 if unknown.
    maps: u32,
}

impl<T: DriverTypes> Default for MapEventList<T> {
    fn default() -> Self {
        Self { events: Vec::new(), maps: 0 }
    }
}

/// State of the clean-up of a job.
#[derive(Debug, PartialEq)]
enum Cleaning {
    /// Waits until the processes of the job have ended and no copy for it is in progress.
    Waiting,
    /// The files of the job are being deleted.
    Deleting,
    /// Some files could not be deleted. The deletion is repeated at this time.
    RetryAt(Time),
}

impl Cleaning {
    fn retry_at(&self) -> Option<Time> {
        match self {
            Self::RetryAt(due) => Some(*due),
            _ => None,
        }
    }
}

#[derive(Debug, PartialEq)]
enum Connection {
    Down,
    /// A registration was sent and is not answered yet.
    Registering,
    Up,
}

/// The state machine of the tracker.
#[derive(Debug)]
pub struct Agent<T: DriverTypes> {
    slots: PerPhase<u32>,
    running: BTreeMap<AttemptId, RunningAttempt<T>>,
    /// Attempts with a map output on this tracker.
    outputs: BTreeSet<AttemptId>,
    /// Attempts with a checkpoint on this tracker.
    checkpoints: BTreeMap<AttemptId, T::Checkpoint>,
    /// Attempts whose files are being copied from other trackers.
    copying: BTreeSet<AttemptId>,
    /// Every job with files or state on this tracker.
    jobs: BTreeSet<JobId>,
    map_event_lists: BTreeMap<JobId, MapEventList<T>>,
    cleaning: BTreeMap<JobId, Cleaning>,
    /// Reports that are sent with the next message.
    pending_reports: PendingReports<T>,
    /// Reports in the message that was sent but is not answered yet.
    in_flight: PendingReports<T>,
    connection: Connection,
    interval: Span,
    /// Sequence number of the newest heartbeat.
    seq: u64,
    /// Number of the newest order that was executed.
    acked: u64,
    /// The heartbeat that was sent but is not answered yet.
    unanswered: Option<Arc<Heartbeat<T>>>,
    next_heartbeat: Option<Time>,
    /// Whether something has happened that should be reported before the interval has passed.
    urgent: bool,
    /// Incarnation that the JobTracker has assigned.
    incarnation: Incarnation,
    /// When the unanswered message was first sent.
    request_sent_at: Option<Time>,
    /// When the newest answered message was sent. The JobTracker has received it then or later.
    last_answered_sent_at: Option<Time>,
    /// Tasks run at most this long without an answer from the JobTracker. If `None`, only the limit
    /// that follows from `lost_after` applies.
    isolation_timeout: Option<Span>,
    /// Time without a heartbeat after which the JobTracker declares the tracker lost.
    lost_after: Option<Span>,
}

impl<T: DriverTypes> Agent<T> {
    /// Creates an agent with the map outputs, checkpoints and jobs that an earlier start left on
    /// disk. The agent stops tasks when the JobTracker has not answered for `isolation_timeout`, or
    /// shortly before the JobTracker declares the tracker lost.
    pub fn new(
        slots: PerPhase<u32>,
        outputs: BTreeSet<AttemptId>,
        checkpoints: BTreeMap<AttemptId, T::Checkpoint>,
        jobs: BTreeSet<JobId>,
        isolation_timeout: Option<Span>,
    ) -> Self {
        Self {
            slots,
            running: BTreeMap::new(),
            jobs: outputs.iter().map(|attempt| attempt.job()).chain(jobs).collect(),
            outputs,
            checkpoints,
            copying: BTreeSet::new(),
            map_event_lists: BTreeMap::new(),
            cleaning: BTreeMap::new(),
            pending_reports: PendingReports::default(),
            in_flight: PendingReports::default(),
            connection: Connection::Down,
            interval: DEFAULT_INTERVAL,
            seq: 0,
            acked: 0,
            unanswered: None,
            next_heartbeat: None,
            urgent: false,
            incarnation: Incarnation(0),
            request_sent_at: None,
            last_answered_sent_at: None,
            isolation_timeout,
            lost_after: None,
        }
    }

    /// Returns when the agent needs a `Tick`, if it gets no other event before.
    pub fn next_deadline(&self) -> Option<Time> {
        let isolated_at =
            self.last_answered_sent_at.zip(self.isolation_limit()).map(|(sent_at, limit)| sent_at + limit);
        let isolated_at =
            isolated_at.filter(|_| self.running.values().any(|running| running.kill_reason.is_none()));
        let retries = self.cleaning.values().filter_map(Cleaning::retry_at);
        [self.next_heartbeat, isolated_at].into_iter().flatten().chain(retries).min()
    }

    /// Returns how long tasks may run without an answer from the JobTracker.
    fn isolation_limit(&self) -> Option<Span> {
        // The last tenth of the time is needed to end the processes.
        let lost = self.lost_after.map(|lost| Span(lost.0 - lost.0 / 10));
        self.isolation_timeout.into_iter().chain(lost).min()
    }

    /// Handles an event, and appends the resulting actions to `out`.
    pub fn handle(&mut self, now: Time, event: Event<T>, out: &mut Vec<Action<T>>) {
        match event {
            // The JobTracker repeats this request until it has read the registration. A second
            // registration would restart the numbering of orders.
            Event::RegisterAgain if self.connection != Connection::Up => {}
            Event::Connected | Event::RegisterAgain => self.register(now, out),
            Event::Registered { heartbeat, lost_after, incarnation } => {
                self.on_registered(now, heartbeat, lost_after, incarnation);
            }
            Event::Disconnected => self.on_disconnected(),
            Event::Refused(text) => self.on_refused(text, out),
            Event::Orders { answers, orders } => self.handle_orders(now, answers, orders, out),
            Event::Started(attempt) => {
                if self.running.contains_key(&attempt) {
                    self.heartbeat_soon(now);
                }
            }
            Event::Progressed(attempt, progress) => self.set_progress(attempt, progress),
            Event::FetchFailed(failure) => {
                self.pending_reports.add_fetch_failure(failure);
                self.heartbeat_soon(now);
            }
            Event::Ended(attempt, end) => self.on_ended(now, attempt, end, out),
            Event::Copied(attempt, result) => self.finish_copy(now, attempt, result, out),
            Event::Cleaned(job, complete) => self.on_cleaned(now, job, complete),
            Event::Tick => {}
        }
        self.retry_cleaning(now, out);
        self.kill_if_isolated(now, out);
        self.heartbeat_if_due(now, out);
    }

    /// Sets the progress of a running attempt, for its next report. Nothing else changes.
    pub fn set_progress(&mut self, attempt: AttemptId, progress: T::Progress) {
        if let Some(running) = self.running.get_mut(&attempt) {
            running.progress = progress;
        }
    }

    /// Returns whether the tracker is registered, runs nothing, and the JobTracker has acknowledged
    /// all reports.
    pub fn is_idle(&self) -> bool {
        self.connection == Connection::Up
            && self.running.is_empty()
            && self.copying.is_empty()
            && self.cleaning.is_empty()
            && self.pending_reports.is_empty()
            && self.in_flight.is_empty()
    }

    fn register(&mut self, now: Time, out: &mut Vec<Action<T>>) {
        self.on_disconnected();
        self.connection = Connection::Registering;
        self.request_sent_at = Some(now);
        self.in_flight.ended = self.pending_reports.take_ended();
        out.push(Action::Register {
            incarnation: self.incarnation,
            attempts: self.attempt_reports(),
            outputs: self.outputs.iter().copied().collect(),
            checkpoints: self.checkpoints.clone().into_iter().collect(),
            jobs: self.jobs.iter().copied().collect(),
        });
    }

    /// Handles an accepted registration. The numbers of orders and heartbeats start again at 1.
    fn on_registered(&mut self, now: Time, heartbeat: Span, lost_after: Span, incarnation: Incarnation) {
        if self.connection != Connection::Registering {
            return;
        }
        self.connection = Connection::Up;
        self.last_answered_sent_at = self.request_sent_at.take();
        (self.lost_after, self.incarnation) = (Some(lost_after), incarnation);
        self.in_flight = PendingReports::default();
        (self.seq, self.acked) = (0, 0);
        self.interval = heartbeat.max(HEARTBEAT_GAP);
        self.next_heartbeat = Some(now);
    }

    /// Handles a closed connection. Reports that are not answered may not have arrived, and are
    /// sent again.
    fn on_disconnected(&mut self) {
        self.connection = Connection::Down;
        self.next_heartbeat = None;
        self.unanswered = None;
        let unanswered = std::mem::take(&mut self.in_flight);
        self.pending_reports.requeue(unanswered);
    }

    /// Kills all attempts if the JobTracker has not answered for too long, because it may soon
    /// start them on other trackers.
    fn kill_if_isolated(&mut self, now: Time, out: &mut Vec<Action<T>>) {
        let Some(silence) = self.last_answered_sent_at.map(|sent_at| now.since(sent_at)) else { return };
        if self.isolation_limit().is_none_or(|limit| silence < limit) {
            return;
        }
        for (attempt, running) in &mut self.running {
            if running.kill_reason.is_none() {
                let why = format!("isolated from the JobTracker for {:.1} s", silence.as_secs_f64());
                running.kill_reason = Some(why.clone());
                out.push(Action::Kill(*attempt, why));
            }
        }
    }

    /// Kills all attempts and exits, because the JobTracker has refused this tracker.
    fn on_refused(&mut self, text: String, out: &mut Vec<Action<T>>) {
        self.on_disconnected();
        for (attempt, running) in &mut self.running {
            running.kill_reason.get_or_insert_with(|| text.clone());
            out.push(Action::Kill(*attempt, text.clone()));
        }
        out.push(Action::Exit(text));
    }

    fn handle_orders(
        &mut self,
        now: Time,
        answers: u64,
        orders: Vec<(u64, Order<T>)>,
        out: &mut Vec<Action<T>>,
    ) {
        if self.connection != Connection::Up {
            return;
        }
        if self.unanswered.as_ref().is_some_and(|sent| sent.seq == answers) {
            self.unanswered = None;
            self.last_answered_sent_at = self.request_sent_at.take().or(self.last_answered_sent_at);
            self.in_flight = PendingReports::default();
            self.next_heartbeat = Some(now + if self.urgent { HEARTBEAT_GAP } else { self.interval });
        }
        for (number, order) in orders {
            if number <= self.acked {
                continue;
            }
            self.acked = number;
            match order {
                Order::Launch(attempt, launch) => self.launch(now, attempt, launch, out),
                Order::Preempt(attempt, kind, why) => self.preempt(now, attempt, kind, why, out),
                Order::MapEvents(job, map_events) => self.add_map_events(job, map_events, out),
                Order::DropCheckpoint(attempt) => {
                    self.checkpoints.remove(&attempt);
                    out.push(Action::DropCheckpoint(attempt));
                }
                Order::CopyFiles(attempt, source) => self.start_copy(now, attempt, source, out),
                Order::Clean(job) => self.start_cleaning(job, out),
                Order::Unknown => {}
            }
        }
    }

    fn launch(&mut self, now: Time, attempt: AttemptId, launch: T::Launch, out: &mut Vec<Action<T>>) {
        if self.running.contains_key(&attempt) || self.has_unacknowledged_end(attempt) {
            return;
        }
        let used_slots = self.running.keys().filter(|running| running.phase() == attempt.phase()).count();
        let slots = self.slots[attempt.phase()];
        let refusal = if self.cleaning.contains_key(&attempt.job()) {
            Some("its job is being cleaned up".into())
        } else if used_slots >= slots as usize {
            Some(format!("none of the {slots} {} slots is free", attempt.phase()))
        } else {
            None
        };
        if let Some(why) = refusal {
            return self.report_end(now, attempt, AttemptEnd::Killed(why));
        }
        let running = RunningAttempt {
            progress: T::no_progress(attempt),
            kill_reason: None,
            events_sent: 0,
            maps_sent: 0,
        };
        self.running.insert(attempt, running);
        self.jobs.insert(attempt.job());
        out.push(Action::Start(attempt, launch));
        self.send_map_events(attempt.job(), out);
    }

    fn preempt(
        &mut self,
        now: Time,
        attempt: AttemptId,
        kind: PreemptKind,
        why: String,
        out: &mut Vec<Action<T>>,
    ) {
        let has_ended = self.has_unacknowledged_end(attempt);
        match self.running.get_mut(&attempt) {
            Some(running) if running.kill_reason.is_none() && kind == PreemptKind::Kill => {
                running.kill_reason = Some(why.clone());
                out.push(Action::Kill(attempt, why));
            }
            // The last message of the attempt reports the result of the preemption. The task
            // ignores a repeated preemption.
            Some(running) if running.kill_reason.is_none() => out.push(Action::Preempt(attempt, kind, why)),
            Some(_) => {}
            None if has_ended => {}
            None => self.report_end(
                now,
                attempt,
                AttemptEnd::Killed("the attempt does not run on this tracker".into()),
            ),
        }
    }

    /// Returns whether the attempt has ended and the JobTracker has not acknowledged the report.
    fn has_unacknowledged_end(&self, attempt: AttemptId) -> bool {
        self.pending_reports.has_ended(attempt) || self.in_flight.has_ended(attempt)
    }

    fn add_map_events(&mut self, job: JobId, map_events: MapEventBatch<T>, out: &mut Vec<Action<T>>) {
        if self.cleaning.contains_key(&job) {
            return;
        }
        self.jobs.insert(job);
        let known = self.map_event_lists.entry(job).or_default();
        // Events that are already known are skipped: an event never changes. A batch that leaves a
        // gap is ignored, because the missing events cannot be added later.
        let Some(skip) = known.events.len().checked_sub(map_events.first as usize) else { return };
        known.events.extend(map_events.events.into_iter().skip(skip));
        if map_events.maps > 0 {
            known.maps = map_events.maps;
        }
        self.send_map_events(job, out);
    }

    /// Sends the map events of a job to its reduces that do not have all of them.
    fn send_map_events(&mut self, job: JobId, out: &mut Vec<Action<T>>) {
        let Some(MapEventList { events, maps }) = self.map_event_lists.get(&job) else { return };
        for (attempt, running) in &mut self.running {
            let behind = running.events_sent < events.len() || running.maps_sent != *maps;
            if attempt.job() == job && attempt.phase() == Phase::Reduce && behind {
                let (first, new) = (running.events_sent as u64, events[running.events_sent..].to_vec());
                (running.events_sent, running.maps_sent) = (events.len(), *maps);
                out.push(Action::MapEvents(*attempt, MapEventBatch { first, events: new, maps: *maps }));
            }
        }
    }

    /// Forgets a job that has ended, and deletes its files as soon as none of its processes runs.
    fn start_cleaning(&mut self, job: JobId, out: &mut Vec<Action<T>>) {
        self.map_event_lists.remove(&job);
        self.outputs.retain(|attempt| attempt.job() != job);
        self.checkpoints.retain(|attempt, _| attempt.job() != job);
        self.pending_reports.fetch_failures.retain(|failure| failure.reduce.job() != job);
        for (attempt, running) in &mut self.running {
            if attempt.job() == job && running.kill_reason.is_none() {
                let why = "its job has ended".to_string();
                running.kill_reason = Some(why.clone());
                out.push(Action::Kill(*attempt, why));
            }
        }
        self.stop_copies(job, out);
        if self.cleaning.get(&job) != Some(&Cleaning::Deleting) {
            self.cleaning.insert(job, Cleaning::Waiting);
        }
        self.delete_files_if_idle(job, out);
    }

    /// Deletes the files of a job that is being cleaned up, if no process or copy of the job is
    /// left.
    fn delete_files_if_idle(&mut self, job: JobId, out: &mut Vec<Action<T>>) {
        let idle = !self.running.keys().chain(&self.copying).any(|attempt| attempt.job() == job);
        if let Some(step @ Cleaning::Waiting) = self.cleaning.get_mut(&job)
            && idle
        {
            *step = Cleaning::Deleting;
            out.push(Action::Clean(job));
        }
    }

    /// Forgets a job if all its files are deleted. Otherwise the job is still part of
    /// registrations, and the deletion is repeated later.
    fn on_cleaned(&mut self, now: Time, job: JobId, complete: bool) {
        if complete {
            self.cleaning.remove(&job);
            self.jobs.remove(&job);
        } else {
            self.cleaning.insert(job, Cleaning::RetryAt(now + CLEAN_RETRY_DELAY));
        }
    }

    fn retry_cleaning(&mut self, now: Time, out: &mut Vec<Action<T>>) {
        for (job, step) in &mut self.cleaning {
            if step.retry_at().is_some_and(|due| due <= now) {
                *step = Cleaning::Deleting;
                out.push(Action::Clean(*job));
            }
        }
    }

    fn on_ended(&mut self, now: Time, attempt: AttemptId, end: AttemptEnd<T>, out: &mut Vec<Action<T>>) {
        let Some(running) = self.running.remove(&attempt) else { return };
        let end = match (end, running.kill_reason) {
            // A failure of a process that is being killed is reported as killed, whatever the
            // process reports.
            (AttemptEnd::Failed(_) | AttemptEnd::Fatal(_) | AttemptEnd::Killed(_), Some(why)) => {
                AttemptEnd::Killed(why)
            }
            (end, _) => end,
        };
        if !self.cleaning.contains_key(&attempt.job()) {
            match &end {
                AttemptEnd::Succeeded { output: true, .. } => drop(self.outputs.insert(attempt)),
                AttemptEnd::Paused(info) => drop(self.checkpoints.insert(attempt, info.clone())),
                _ => {}
            }
        }
        self.report_end(now, attempt, end);
        self.delete_files_if_idle(attempt.job(), out);
    }

    fn report_end(&mut self, now: Time, attempt: AttemptId, end: AttemptEnd<T>) {
        self.pending_reports.ended.push(AttemptReport { attempt, status: AttemptStatus::Ended(end) });
        self.heartbeat_soon(now);
    }

    /// Schedules a heartbeat soon. If a heartbeat is unanswered, the next one is sent soon after
    /// the answer.
    fn heartbeat_soon(&mut self, now: Time) {
        self.urgent = true;
        if self.connection == Connection::Up && self.unanswered.is_none() {
            let soon = now + HEARTBEAT_GAP;
            self.next_heartbeat = Some(self.next_heartbeat.map_or(soon, |due| due.min(soon)));
        }
    }

    fn heartbeat_if_due(&mut self, now: Time, out: &mut Vec<Action<T>>) {
        if self.connection != Connection::Up || self.next_heartbeat.is_none_or(|due| now < due) {
            return;
        }
        self.next_heartbeat = Some(now + self.interval);
        let heartbeat = if let Some(unanswered) = self.unanswered.take() {
            Heartbeat { acked: self.acked, ..Arc::unwrap_or_clone(unanswered) }
        } else {
            self.request_sent_at = Some(now);
            self.new_heartbeat()
        };
        let heartbeat = Arc::new(heartbeat);
        self.unanswered = Some(heartbeat.clone());
        out.push(Action::Heartbeat(heartbeat));
    }

    fn new_heartbeat(&mut self) -> Heartbeat<T> {
        self.seq += 1;
        self.in_flight = self.pending_reports.take_message();
        // Reports that do not fit into this message are sent in the next one, without waiting for
        // the interval.
        self.urgent = !self.pending_reports.is_empty();
        Heartbeat {
            seq: self.seq,
            acked: self.acked,
            attempts: self.attempt_reports(),
            fetch_failures: self.in_flight.fetch_failures.iter().cloned().collect(),
        }
    }

    /// Returns the reports of all running attempts, and of the ended attempts that are in this
    /// message. Ended attempts that do not fit into this message are reported as running until a
    /// later message reports that they have ended.
    fn attempt_reports(&self) -> Vec<AttemptReport<T>> {
        let report = |attempt, progress| AttemptReport { attempt, status: AttemptStatus::Running(progress) };
        let running =
            self.running.iter().map(|(attempt, running)| report(*attempt, running.progress.clone()));
        let later = self
            .pending_reports
            .ended
            .iter()
            .map(|later| report(later.attempt, T::no_progress(later.attempt)));
        let mut reports: Vec<AttemptReport<T>> = running.chain(later).collect();
        limit_status_texts(&mut reports);
        reports.extend(self.in_flight.ended.iter().cloned());
        reports
    }
}
