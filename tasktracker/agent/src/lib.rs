//! The state machine of the tracker: running attempts and slots, processed orders, and reports that
//! are not yet acknowledged.
//!
//! It has no clock, socket, process or file: events come in with the time, actions go out. The
//! daemon and the simulator run the same agent; each chooses the types of the data that the agent
//! only passes on ([`Payload`]).
//!
//! Invariants:
//! - an order is executed once, by number, and in order; repeats are skipped;
//! - the end of an attempt is reported until the heartbeat (or registration) with it has been
//!   answered;
//! - one heartbeat is in flight at a time, and is repeated unchanged until it is answered;
//! - no more attempts run than there are slots;
//! - the files of a job are deleted only after its last process here has ended and no copy for it
//!   is in progress; until then the job is part of registrations;
//! - no message is longer than the JobTracker accepts.
//!
//! While the JobTracker does not answer, tasks keep running up to a limit: the tracker stops them
//! before the JobTracker declares the tracker lost and runs them elsewhere, so that no task runs
//! twice. After a registration the JobTracker lists the attempts to stop; the end of each is
//! reported.
//!
//! Deliberately absent: how to reach the JobTracker, and how to run anything. That is the work of
//! the driver.

mod copies;
mod messages;
mod payload;
mod reports;
#[cfg(test)]
mod tests;

pub use messages::*;
pub use payload::{Data, Payload};
pub use reports::ENDED_BYTES;
pub use types::FetchFailure;

use reports::{PendingReports, shorten};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use types::{AttemptId, JobId, PerPhase, Phase, PreemptKind, Span, Time, ids::Incarnation};

/// Events within this time share a heartbeat.
pub const HEARTBEAT_GAP: Span = Span::millis(2);
/// Delay before files that could not be deleted are tried again.
const CLEAN_RETRY_DELAY: Span = Span::secs(60);
/// Heartbeat interval before the JobTracker has set one.
const INTERVAL: Span = Span::secs(1);

#[derive(Debug)]
struct Running<P: Payload> {
    progress: P::Progress,
    /// Reason, once the attempt is being stopped.
    stopped: Option<String>,
    /// Number of map events that were sent to it.
    events_sent: usize,
    /// Number of maps that was sent with them.
    maps: u32,
}

/// The map events of a job.
#[derive(Debug)]
struct MapEventList<P: Payload> {
    /// The complete list, kept as long as another reduce of the job may start here, because the
    /// JobTracker sends each event once.
    events: Vec<P::MapEvent>,
    maps: u32,
}

impl<P: Payload> Default for MapEventList<P> {
    fn default() -> Self {
        Self { events: Vec::new(), maps: 0 }
    }
}

/// State of the clean-up of a job.
#[derive(Debug, PartialEq)]
enum Cleaning {
    /// Waits until its processes have ended.
    Waiting,
    /// Its files are being deleted.
    Deleting,
    /// Some files could not be deleted; to be repeated at this time.
    RetryAt(Time),
}

impl Cleaning {
    fn again(&self) -> Option<Time> {
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
pub struct Agent<P: Payload> {
    slots: PerPhase<u32>,
    running: BTreeMap<AttemptId, Running<P>>,
    outputs: BTreeSet<AttemptId>,
    /// Attempts with a checkpoint here.
    checkpoints: BTreeMap<AttemptId, P::Checkpoint>,
    /// Copies from other trackers in progress.
    copying: BTreeSet<AttemptId>,
    /// Every job with files or state here.
    jobs: BTreeSet<JobId>,
    map_event_lists: BTreeMap<JobId, MapEventList<P>>,
    cleaning: BTreeMap<JobId, Cleaning>,
    /// To be reported next.
    pending_reports: PendingReports<P>,
    /// Sent but not answered yet.
    in_flight: PendingReports<P>,
    connection: Connection,
    interval: Span,
    seq: u64,
    acked: u64,
    sent: Option<Arc<Heartbeat<P>>>,
    next_heartbeat: Option<Time>,
    /// Something has happened that should be reported before the interval ends.
    urgent: bool,
    /// Incarnation that the JobTracker has assigned.
    incarnation: Incarnation,
    /// When the unanswered message was first sent.
    request_sent_at: Option<Time>,
    /// When the newest answered message was sent. The JobTracker has received it then or later.
    last_answered: Option<Time>,
    /// Tasks run at most this long without an answer; `None`: up to the limit that follows from
    /// `lost_after`.
    isolation_timeout: Option<Span>,
    /// Time without a heartbeat after which the JobTracker declares the tracker lost.
    lost_after: Option<Span>,
}

impl<P: Payload> Agent<P> {
    /// An agent with the map outputs, checkpoints and jobs that an earlier start left on disk.
    /// Tasks are stopped when the JobTracker has not answered for `isolation_timeout`, and before
    /// it declares the tracker lost.
    pub fn new(
        slots: PerPhase<u32>,
        outputs: BTreeSet<AttemptId>,
        checkpoints: BTreeMap<AttemptId, P::Checkpoint>,
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
            interval: INTERVAL,
            seq: 0,
            acked: 0,
            sent: None,
            next_heartbeat: None,
            urgent: false,
            incarnation: Incarnation(0),
            request_sent_at: None,
            last_answered: None,
            isolation_timeout,
            lost_after: None,
        }
    }

    /// Returns when a `Tick` is needed, if no other event comes before.
    pub fn next_deadline(&self) -> Option<Time> {
        let isolated_at = self
            .last_answered
            .zip(self.isolation_limit())
            .map(|(last_answered, limit)| last_answered + limit);
        let isolated_at =
            isolated_at.filter(|_| self.running.values().any(|running| running.stopped.is_none()));
        let again = self.cleaning.values().filter_map(Cleaning::again);
        [self.next_heartbeat, isolated_at].into_iter().flatten().chain(again).min()
    }

    /// Returns how long tasks may run without an answer.
    fn isolation_limit(&self) -> Option<Span> {
        // The last tenth is for ending the processes.
        let lost = self.lost_after.map(|lost| Span(lost.0 - lost.0 / 10));
        self.isolation_timeout.into_iter().chain(lost).min()
    }

    /// Handles an event; resulting actions are appended to `out`.
    pub fn handle(&mut self, now: Time, event: Event<P>, out: &mut Vec<Action<P>>) {
        match event {
            // Repeated before the JobTracker has read the registration. A second registration would
            // restart the numbering of orders.
            Event::RegisterAgain if self.connection == Connection::Registering => {}
            Event::Connected | Event::RegisterAgain => self.register(now, out),
            Event::Registered { heartbeat, lost_after, incarnation } => {
                self.registered(now, heartbeat, lost_after, incarnation);
            }
            Event::Disconnected => self.disconnected(),
            Event::Refused(text) => self.refused(text, out),
            Event::Orders { answers, orders } => self.handle_orders(now, answers, orders, out),
            Event::Started(attempt) => {
                if self.running.contains_key(&attempt) {
                    self.heartbeat_soon(now);
                }
            }
            Event::Progressed(attempt, progress) => self.set_progress(attempt, progress),
            Event::FetchFailed(failure) => {
                self.pending_reports.add_failure(failure);
                self.heartbeat_soon(now);
            }
            Event::Ended(attempt, end) => self.ended(now, attempt, end, out),
            Event::Copied(attempt, result) => self.copied(now, attempt, result, out),
            Event::Cleaned(job, whole) => self.cleaned(now, job, whole),
            Event::Tick => {}
        }
        self.retry_cleaning(now, out);
        self.stop_if_isolated(now, out);
        self.heartbeat_if_due(now, out);
    }

    /// Sets the progress of a running attempt, for its next report. Nothing else changes.
    pub fn set_progress(&mut self, attempt: AttemptId, progress: P::Progress) {
        if let Some(running) = self.running.get_mut(&attempt) {
            running.progress = progress;
        }
    }

    /// Whether it is registered, nothing runs, and the JobTracker knows all that has happened.
    pub fn is_idle(&self) -> bool {
        self.connection == Connection::Up
            && self.running.is_empty()
            && self.copying.is_empty()
            && self.cleaning.is_empty()
            && self.pending_reports.is_empty()
            && self.in_flight.is_empty()
    }

    fn register(&mut self, now: Time, out: &mut Vec<Action<P>>) {
        self.disconnected();
        self.connection = Connection::Registering;
        self.request_sent_at = Some(now);
        self.in_flight.ended = self.pending_reports.take_ended();
        out.push(Action::Register {
            incarnation: self.incarnation,
            attempts: self.reports(),
            outputs: self.outputs.iter().copied().collect(),
            checkpoints: self.checkpoints.clone().into_iter().collect(),
            jobs: self.jobs.iter().copied().collect(),
        });
    }

    /// Orders and heartbeats are numbered from 1 in each registration.
    fn registered(&mut self, now: Time, heartbeat: Span, lost_after: Span, incarnation: Incarnation) {
        if self.connection != Connection::Registering {
            return;
        }
        self.connection = Connection::Up;
        self.last_answered = self.request_sent_at.take();
        (self.lost_after, self.incarnation) = (Some(lost_after), incarnation);
        self.in_flight = PendingReports::default();
        (self.seq, self.acked) = (0, 0);
        self.interval = heartbeat.max(HEARTBEAT_GAP);
        self.next_heartbeat = Some(now);
    }

    /// Reports in flight may not have arrived and are sent again.
    fn disconnected(&mut self) {
        self.connection = Connection::Down;
        self.next_heartbeat = None;
        self.sent = None;
        let again = std::mem::take(&mut self.in_flight);
        self.pending_reports.requeue(again);
    }

    /// Stops attempts that may run elsewhere by now.
    fn stop_if_isolated(&mut self, now: Time, out: &mut Vec<Action<P>>) {
        let Some(silence) = self.last_answered.map(|last_answered| now.since(last_answered)) else { return };
        if self.isolation_limit().is_none_or(|limit| silence < limit) {
            return;
        }
        for (attempt, running) in &mut self.running {
            if running.stopped.is_none() {
                let why = format!("isolated from the jobtracker for {:.1} s", silence.as_secs_f64());
                running.stopped = Some(why.clone());
                out.push(Action::Kill(*attempt, why));
            }
        }
    }

    fn refused(&mut self, text: String, out: &mut Vec<Action<P>>) {
        self.disconnected();
        for (attempt, running) in &mut self.running {
            running.stopped.get_or_insert_with(|| text.clone());
            out.push(Action::Kill(*attempt, text.clone()));
        }
        out.push(Action::Exit(text));
    }

    fn handle_orders(
        &mut self,
        now: Time,
        answers: u64,
        orders: Vec<(u64, Order<P>)>,
        out: &mut Vec<Action<P>>,
    ) {
        if self.connection != Connection::Up {
            return;
        }
        if self.sent.as_ref().is_some_and(|sent| sent.seq == answers) {
            self.sent = None;
            self.last_answered = self.request_sent_at.take().or(self.last_answered);
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
                Order::Preempt(attempt, kind, why) => self.stop(now, attempt, kind, why, out),
                Order::MapEvents(job, map_events) => self.add_map_events(job, map_events, out),
                Order::DropCheckpoint(attempt) => {
                    self.checkpoints.remove(&attempt);
                    out.push(Action::DropCheckpoint(attempt));
                }
                Order::CopyFiles(attempt, source) => self.copy(now, attempt, source, out),
                Order::Clean(job) => self.clean(job, out),
                Order::Unknown => {}
            }
        }
    }

    fn launch(&mut self, now: Time, attempt: AttemptId, launch: P::Launch, out: &mut Vec<Action<P>>) {
        if self.running.contains_key(&attempt) || self.has_pending_end(attempt) {
            return;
        }
        let held = self.running.keys().filter(|running| running.phase() == attempt.phase()).count();
        let slots = self.slots[attempt.phase()];
        let refusal = if self.cleaning.contains_key(&attempt.job()) {
            Some("its job is being cleaned up".into())
        } else if held >= slots as usize {
            Some(format!("none of the {slots} {} slots is free", attempt.phase()))
        } else {
            None
        };
        if let Some(why) = refusal {
            return self.report_end(now, attempt, AttemptEnd::Killed(why));
        }
        let running = Running { progress: P::no_progress(attempt), stopped: None, events_sent: 0, maps: 0 };
        self.running.insert(attempt, running);
        self.jobs.insert(attempt.job());
        out.push(Action::Start(attempt, launch));
        self.send_map_events(attempt.job(), out);
    }

    fn stop(
        &mut self,
        now: Time,
        attempt: AttemptId,
        kind: PreemptKind,
        why: String,
        out: &mut Vec<Action<P>>,
    ) {
        let has_ended = self.has_pending_end(attempt);
        match self.running.get_mut(&attempt) {
            Some(running) if running.stopped.is_none() && kind == PreemptKind::Kill => {
                running.stopped = Some(why.clone());
                out.push(Action::Kill(attempt, why));
            }
            // The result of the preemption is in the last message of the attempt. A repeated
            // preemption is ignored.
            Some(running) if running.stopped.is_none() => out.push(Action::Preempt(attempt, kind, why)),
            Some(_) => {}
            None if has_ended => {}
            None => self.report_end(
                now,
                attempt,
                AttemptEnd::Killed("the attempt does not run on this tracker".into()),
            ),
        }
    }

    fn has_pending_end(&self, attempt: AttemptId) -> bool {
        self.pending_reports.has(attempt) || self.in_flight.has(attempt)
    }

    fn add_map_events(&mut self, job: JobId, map_events: MapEventBatch<P>, out: &mut Vec<Action<P>>) {
        if self.cleaning.contains_key(&job) {
            return;
        }
        self.jobs.insert(job);
        let known = self.map_event_lists.entry(job).or_default();
        // Event n is always the same, so an overlap is skipped; a gap cannot be filled.
        let Some(skip) = known.events.len().checked_sub(map_events.first as usize) else { return };
        known.events.extend(map_events.events.into_iter().skip(skip));
        if map_events.maps > 0 {
            known.maps = map_events.maps;
        }
        self.send_map_events(job, out);
    }

    fn send_map_events(&mut self, job: JobId, out: &mut Vec<Action<P>>) {
        let Some(MapEventList { events, maps }) = self.map_event_lists.get(&job) else { return };
        for (attempt, running) in &mut self.running {
            let behind = running.events_sent < events.len() || running.maps != *maps;
            if attempt.job() == job && attempt.phase() == Phase::Reduce && behind {
                let (first, new) = (running.events_sent as u64, events[running.events_sent..].to_vec());
                (running.events_sent, running.maps) = (events.len(), *maps);
                out.push(Action::MapEvents(*attempt, MapEventBatch { first, events: new, maps: *maps }));
            }
        }
    }

    fn clean(&mut self, job: JobId, out: &mut Vec<Action<P>>) {
        self.map_event_lists.remove(&job);
        self.outputs.retain(|attempt| attempt.job() != job);
        self.checkpoints.retain(|attempt, _| attempt.job() != job);
        self.pending_reports.failures.retain(|failure| failure.reduce.job() != job);
        for (attempt, running) in &mut self.running {
            if attempt.job() == job && running.stopped.is_none() {
                let why = "its job has ended".to_string();
                running.stopped = Some(why.clone());
                out.push(Action::Kill(*attempt, why));
            }
        }
        self.stop_copies(job, out);
        if self.cleaning.get(&job) != Some(&Cleaning::Deleting) {
            self.cleaning.insert(job, Cleaning::Waiting);
        }
        self.finish_cleaning(job, out);
    }

    fn finish_cleaning(&mut self, job: JobId, out: &mut Vec<Action<P>>) {
        let idle = !self.running.keys().chain(&self.copying).any(|attempt| attempt.job() == job);
        if let Some(step @ Cleaning::Waiting) = self.cleaning.get_mut(&job)
            && idle
        {
            *step = Cleaning::Deleting;
            out.push(Action::Clean(job));
        }
    }

    /// A job with remaining files stays registered, and is tried again.
    fn cleaned(&mut self, now: Time, job: JobId, whole: bool) {
        if whole {
            self.cleaning.remove(&job);
            self.jobs.remove(&job);
        } else {
            self.cleaning.insert(job, Cleaning::RetryAt(now + CLEAN_RETRY_DELAY));
        }
    }

    fn retry_cleaning(&mut self, now: Time, out: &mut Vec<Action<P>>) {
        for (job, step) in &mut self.cleaning {
            if step.again().is_some_and(|due| due <= now) {
                *step = Cleaning::Deleting;
                out.push(Action::Clean(*job));
            }
        }
    }

    fn ended(&mut self, now: Time, attempt: AttemptId, end: AttemptEnd<P>, out: &mut Vec<Action<P>>) {
        let Some(running) = self.running.remove(&attempt) else { return };
        let end = match (end, running.stopped) {
            // Whatever a process reports while it is being killed, it was killed.
            (AttemptEnd::Failed(_) | AttemptEnd::Fatal(_) | AttemptEnd::Killed(_), Some(why)) => {
                AttemptEnd::Killed(why)
            }
            (end, _) => end,
        };
        if !self.cleaning.contains_key(&attempt.job()) {
            match &end {
                AttemptEnd::Succeeded { output: true, .. } => drop(self.outputs.insert(attempt)),
                AttemptEnd::Paused(state) => drop(self.checkpoints.insert(attempt, state.clone())),
                _ => {}
            }
        }
        self.report_end(now, attempt, end);
        self.finish_cleaning(attempt.job(), out);
    }

    fn report_end(&mut self, now: Time, attempt: AttemptId, end: AttemptEnd<P>) {
        self.pending_reports.ended.push(Report { attempt, status: Status::Ended(end) });
        self.heartbeat_soon(now);
    }

    /// Requests a heartbeat soon; if one is in flight, the next one waits for the answer.
    fn heartbeat_soon(&mut self, now: Time) {
        self.urgent = true;
        if self.connection == Connection::Up && self.sent.is_none() {
            let soon = now + HEARTBEAT_GAP;
            self.next_heartbeat = Some(self.next_heartbeat.map_or(soon, |due| due.min(soon)));
        }
    }

    fn heartbeat_if_due(&mut self, now: Time, out: &mut Vec<Action<P>>) {
        if self.connection != Connection::Up || self.next_heartbeat.is_none_or(|due| now < due) {
            return;
        }
        self.next_heartbeat = Some(now + self.interval);
        let heartbeat = if let Some(again) = self.sent.take() {
            Heartbeat { acked: self.acked, ..Arc::unwrap_or_clone(again) }
        } else {
            self.request_sent_at = Some(now);
            self.new_heartbeat()
        };
        let heartbeat = Arc::new(heartbeat);
        self.sent = Some(heartbeat.clone());
        out.push(Action::Heartbeat(heartbeat));
    }

    fn new_heartbeat(&mut self) -> Heartbeat<P> {
        self.seq += 1;
        self.in_flight = self.pending_reports.take();
        // Reports that do not fit into one message follow in the next one at once.
        self.urgent = !self.pending_reports.is_empty();
        Heartbeat {
            seq: self.seq,
            acked: self.acked,
            attempts: self.reports(),
            fetch_failures: self.in_flight.failures.iter().cloned().collect(),
        }
    }

    /// Reports everything that runs, and the ends in flight. Ends that do not fit into one message
    /// are reported later; until then their attempts are reported as running.
    fn reports(&self) -> Vec<Report<P>> {
        let report = |attempt, progress| Report { attempt, status: Status::Running(progress) };
        let running =
            self.running.iter().map(|(attempt, running)| report(*attempt, running.progress.clone()));
        let later = self
            .pending_reports
            .ended
            .iter()
            .map(|later| report(later.attempt, P::no_progress(later.attempt)));
        let mut reports: Vec<Report<P>> = running.chain(later).collect();
        shorten(&mut reports);
        reports.extend(self.in_flight.ended.iter().cloned());
        reports
    }
}
