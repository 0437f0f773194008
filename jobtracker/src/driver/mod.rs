//! The driver around the core: clock, lock, journal, and the order between them.
//!
//! An event is handled and its facts are queued for the journal under one lock, so that journal order is memory
//! order. What the core wants done goes into one queue in the order of its effects; the other end of the queue
//! waits for each item until the facts before it are durable, so nothing leaves early and nothing overtakes.
//! Answers to clients, refusals and reads included, wait in the same way for all that they could have seen.

mod backlog;
mod requests;

use crate::{
    clock::Clock,
    error::Refusal,
    events,
    history::HistoryWriter,
    leftovers::{self, Leftovers},
    output::{self, Files},
    wire::{self, ToTracker},
};
use backlog::Backlog;
use daemon::{Bytes, config::JobTrackerConfig};
use journal::{AppendError, Log, LogFailed, Seq, codec};
use mrcore::{
    Cluster, Effect, Event, Fact, JobTracker, Time,
    compute::Problem,
    event::{AttemptStatus, Heartbeat, Registration, Reply},
    fact::Entry,
    ids::{Incarnation, JobId, RequestId, TrackerId},
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Notify, futures::Notified, mpsc, oneshot, watch};

/// The answer to requests whose facts come after the journal was sealed.
const STOPPING: &str = "the JobTracker is stopping: try again when it is back";
/// Launches stop below this part of `disk_reserve`.
const LAUNCH_RESERVE_DIVISOR: u64 = 4;

/// One attachment of a tracker. A number of its own tells it from later ones of the same process.
struct Link {
    generation: u64,
    sender: mpsc::Sender<ToTracker>,
    /// The newest order that went into this stream. Streams lose nothing, so none goes twice.
    sent: u64,
}

struct Inner {
    core: JobTracker,
    links: BTreeMap<TrackerId, Link>,
    generations: u64,
    /// Rung when a job changes, durably or not.
    watchers: BTreeMap<JobId, watch::Sender<bool>>,
    /// Events handled, for the test that an idle JobTracker rests.
    #[cfg(test)]
    handled: u64,
}

/// Something that leaves once the facts up to `after` are durable.
pub(crate) struct QueuedOutput {
    after: Seq,
    output: Output,
}

enum Output {
    Fact(Entry),
    Message {
        to: Option<(TrackerId, u64)>,
        sender: mpsc::Sender<ToTracker>,
        message: ToTracker,
    },
    Commit(JobId),
    Compute(u64, Problem),
    Clear(Leftovers),
    /// All facts before it are in the history files when this is answered.
    Flush(oneshot::Sender<()>),
}

/// Why the process cannot continue.
pub(crate) type Fatal = watch::Sender<Option<String>>;

/// The JobTracker without its sockets.
pub(crate) struct Driver {
    inner: Mutex<Inner>,
    log: Arc<Log>,
    clock: Clock,
    config: JobTrackerConfig,
    files: Files,
    history_writer: HistoryWriter,
    /// Bounded by `backlog`: under the lock nobody can wait for room.
    queue: mpsc::UnboundedSender<QueuedOutput>,
    backlog: Backlog,
    notice: Option<String>,
    /// Rung when a job has ended durably.
    ended: Notify,
    fatal: Fatal,
}

/// Everything a driver is made of.
pub(crate) struct Parts {
    pub(crate) core: JobTracker,
    pub(crate) log: Log,
    pub(crate) clock: Clock,
    pub(crate) config: JobTrackerConfig,
    pub(crate) files: Files,
    pub(crate) history_writer: HistoryWriter,
    /// What the operator should know of this start: records of the journal may be lost.
    pub(crate) notice: Option<String>,
}

impl Driver {
    /// The driver, and what [`Self::deliver`] is to be given.
    pub(crate) fn new(parts: Parts) -> (Self, mpsc::UnboundedReceiver<QueuedOutput>) {
        let Parts { core, log, clock, config, files, history_writer, notice } = parts;
        let (queue, outgoing) = mpsc::unbounded_channel();
        let inner = Inner {
            core,
            links: BTreeMap::new(),
            generations: 0,
            watchers: BTreeMap::new(),
            #[cfg(test)]
            handled: 0,
        };
        let driver = Self {
            inner: Mutex::new(inner),
            log: Arc::new(log),
            clock,
            config,
            files,
            history_writer,
            queue,
            backlog: Backlog::default(),
            notice,
            ended: Notify::new(),
            fatal: watch::Sender::new(None),
        };
        (driver, outgoing)
    }

    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.log
    }

    pub(crate) fn config(&self) -> &JobTrackerConfig {
        &self.config
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn history_writer(&self) -> &HistoryWriter {
        &self.history_writer
    }

    /// What the operator should know: a loss at this start, and a disk that is nearly full.
    pub(crate) fn notices(&self) -> Vec<String> {
        self.notice.iter().cloned().chain(self.disk_low()).collect()
    }

    /// Less is free where the journal is than the reserve.
    pub(crate) fn disk_low(&self) -> Option<String> {
        let reserve = self.config.disk_reserve;
        // A disk that does not say is not known to be full; the journal will show it.
        let free = self.log.free_bytes().ok().filter(|free| *free < reserve.0)?;
        let stopped = if free < self.launch_reserve() {
            "no job is accepted, no attempt is started and no history is written"
        } else {
            "no job is accepted and no history is written"
        };
        Some(format!(
            "only {} of free space is left on the JobTracker's disk ({}), less than jobtracker.disk_reserve = {reserve}: {stopped} \
             until there is room",
            Bytes(free),
            self.config.dir.display()
        ))
    }

    /// Below this many free bytes no attempt is launched. The ends of those that run must still fit in the journal.
    fn launch_reserve(&self) -> u64 {
        self.config.disk_reserve.0 / LAUNCH_RESERVE_DIVISOR
    }

    /// Suspends launches while the disk is nearly full, so that launches and failures cannot fill it: a JobTracker that
    /// cannot write its journal ends.
    fn watch_disk(&self) {
        let Ok(free) = self.log.free_bytes() else { return };
        let allowed = free >= self.launch_reserve();
        let mut inner = self.inner.lock();
        if allowed != inner.core.launches_suspended() {
            return;
        }
        if allowed {
            tracing::info!(free = %Bytes(free), "there is room on the JobTracker's disk again: attempts are started");
        } else {
            tracing::error!(free = %Bytes(free), "the JobTracker's disk is nearly full: no attempt is started");
        }
        self.act(&mut inner, Event::Launches { allowed }, None);
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Ends the process, with these words.
    pub(crate) fn fail(&self, why: String) {
        self.fatal.send_replace(Some(why));
    }

    /// Returns when the process cannot continue.
    pub(crate) async fn failed(&self) -> String {
        let mut fatal = self.fatal.subscribe();
        let why = fatal.wait_for(Option::is_some).await.expect("the sender is in `self`").clone();
        why.expect("waited for it")
    }

    /// Tells the core something. The reply, if one is due, may leave once the journal is durable up to the number.
    pub(crate) fn handle(&self, event: Event) -> (Option<Reply>, Seq) {
        self.act(&mut self.inner.lock(), event, None)
    }

    /// Waits until what waits to leave is little enough for more to be taken in; whether it had to.
    pub(crate) async fn room(&self) -> bool {
        self.backlog.room().await
    }

    /// Refuses where nobody can be kept waiting.
    fn check_backlog(&self) -> Result<(), Refusal> {
        if self.backlog.is_full() {
            let message =
                format!("{} things wait for the JobTracker's disk: try later", backlog::BACKLOG_MAX);
            return Err(Refusal::overloaded(message));
        }
        Ok(())
    }

    /// Completes when a job has ended, durably, after this was called.
    pub(crate) fn job_ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// The same as [`Self::tell`], and waits until the reply may leave.
    async fn request_reply(&self, event: Event) -> Result<Reply, Refusal> {
        self.check_backlog()?;
        let (reply, seq) = self.handle(event);
        self.durable(seq).await?;
        reply.ok_or_else(|| Refusal::unavailable("internal error: the request was not answered"))
    }

    async fn durable(&self, seq: Seq) -> Result<(), Refusal> {
        // What could not be written has no number to wait for.
        if seq == Seq::MAX {
            return self.check_fatal();
        }
        let failed =
            |error| Refusal::unavailable(format!("the JobTracker cannot write its journal: {error}"));
        self.log.wait_durable(seq).await.map_err(failed)
    }

    fn check_fatal(&self) -> Result<(), Refusal> {
        self.fatal.borrow().clone().map_or(Ok(()), |why| Err(Refusal::unavailable(why)))
    }

    /// Looks at the cluster; what was seen is handed out once it is durable.
    pub(crate) async fn read<T>(&self, read: impl FnOnce(&Cluster) -> T) -> Result<T, Refusal> {
        self.read_core(|core| read(core.cluster())).await
    }

    /// The same, with what the core has to say of it.
    pub(crate) async fn read_core<T>(&self, read: impl FnOnce(&JobTracker) -> T) -> Result<T, Refusal> {
        let (value, seq) = {
            let inner = self.inner.lock();
            (read(&inner.core), self.log.last_seq())
        };
        self.durable(seq).await?;
        // Facts that could not be written may have been seen.
        self.check_fatal()?;
        Ok(value)
    }

    /// Looks at the cluster from inside, where nothing leaves.
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&Cluster) -> T) -> T {
        read(self.inner.lock().core.cluster())
    }

    /// Handles one event and carries its effects out in order.
    fn act(
        &self,
        inner: &mut Inner,
        event: Event,
        newcomer: Option<&mpsc::Sender<ToTracker>>,
    ) -> (Option<Reply>, Seq) {
        #[cfg(test)]
        {
            inner.handled += 1;
        }
        let mut changed: BTreeSet<JobId> = match &event {
            Event::Heartbeat(heartbeat) => {
                heartbeat.attempts.iter().map(|report| report.attempt.job()).collect()
            }
            _ => BTreeSet::new(),
        };
        let told = ended(&event);
        let mut effects = Vec::new();
        inner.core.handle(self.clock.now(), event, &mut effects);
        let (seq, mut answer) = (self.append(&effects), None);
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    changed.extend(entry.fact.job());
                    let left = Leftovers::after(inner.core.cluster(), &entry.fact);
                    self.send(seq, Output::Fact(entry));
                    if let Some(left) = left {
                        self.send(seq, Output::Clear(left));
                    }
                }
                Effect::Reply { reply, .. } => {
                    if let Some(sender) = newcomer {
                        self.attach_stream(inner, seq, sender, &reply);
                    }
                    answer = Some(reply);
                }
                Effect::SendOrders { tracker, answer, orders } => {
                    self.send_to_tracker(inner, seq, tracker, answer, &orders);
                }
                Effect::RequestRegistration { tracker, .. } => {
                    self.message(inner, seq, tracker, wire::register_again());
                }
                Effect::CommitJob { job } => self.send(seq, Output::Commit(job)),
                Effect::Compute { number, problem } => self.send(seq, Output::Compute(number, problem)),
                Effect::DiscardOutput { job } => {
                    if let Some(job) = inner.core.cluster().job(job) {
                        self.send(seq, Output::Clear(Leftovers::of(job, true)));
                    }
                }
            }
        }
        for job in told.iter().filter_map(|job| inner.core.cluster().job(*job)).filter(|job| job.is_over()) {
            self.send(seq, Output::Clear(Leftovers::of(job, true)));
        }
        notify_watchers(inner, &changed);
        (answer, seq)
    }

    /// Adds an event's facts to the journal, all or none: a crash must not leave a tracker lost and its attempts
    /// running. Returns the number after which the event's other effects may leave.
    fn append(&self, effects: &[Effect]) -> Seq {
        let facts = effects.iter().filter_map(|effect| match effect {
            Effect::Append(entry) => Some(codec::encode(entry)),
            _ => None,
        });
        let facts: Vec<Vec<u8>> = facts.collect();
        if facts.is_empty() {
            return self.log.last_seq();
        }
        match self.log.append_many(&facts) {
            Ok(seq) => seq,
            Err(AppendError::Failed(error)) => {
                // Nothing leaves any more, and the process is about to end.
                let stopping = self.log.check().is_ok();
                self.fail(if stopping {
                    STOPPING.into()
                } else {
                    format!("cannot write the journal: {error}")
                });
                Seq::MAX
            }
            // The facts are applied but cannot be kept: memory and disk have parted. There is no way on.
            Err(AppendError::TooLarge { bytes, max }) => {
                panic!("facts of {bytes} bytes exceed the journal's {max}")
            }
        }
    }

    fn send(&self, after: Seq, output: Output) {
        self.backlog.grew();
        // The other end is gone only when the process ends.
        let _ = self.queue.send(QueuedOutput { after, output });
    }

    /// A registration was answered: from here on its stream is the tracker's.
    fn attach_stream(&self, inner: &mut Inner, seq: Seq, sender: &mpsc::Sender<ToTracker>, reply: &Reply) {
        match reply {
            Reply::Registered { tracker, epoch, incarnation } => {
                inner.generations += 1;
                let link = Link { generation: inner.generations, sender: sender.clone(), sent: 0 };
                inner.links.insert(*tracker, link);
                let message = wire::registered(*tracker, *incarnation, *epoch, &self.config);
                self.message(inner, seq, *tracker, message);
            }
            Reply::Refused(why) => {
                let output =
                    Output::Message { to: None, sender: sender.clone(), message: wire::refused(why.clone()) };
                self.send(seq, output);
            }
            Reply::Submitted(_) | Reply::Stopped | Reply::Accepted => {}
        }
    }

    fn send_to_tracker(
        &self,
        inner: &mut Inner,
        seq: Seq,
        tracker: TrackerId,
        answer: Option<u64>,
        orders: &[mrcore::event::Numbered],
    ) {
        let Some(link) = inner.links.get_mut(&tracker) else { return };
        let fresh = orders.iter().position(|(number, _)| *number > link.sent).unwrap_or(orders.len());
        let orders = &orders[fresh..];
        if orders.is_empty() && answer.is_none() {
            return;
        }
        link.sent = orders.last().map_or(link.sent, |(number, _)| *number);
        let messages = wire::orders(inner.core.cluster(), &self.files, answer, orders);
        for message in messages {
            self.message(inner, seq, tracker, message);
        }
    }

    fn message(&self, inner: &Inner, seq: Seq, tracker: TrackerId, message: ToTracker) {
        let Some(link) = inner.links.get(&tracker) else { return };
        let to = Some((tracker, link.generation));
        self.send(seq, Output::Message { to, sender: link.sender.clone(), message });
    }

    /// Seals the journal: no fact is accepted after this, although trackers may still report. Blocks until the journal
    /// is durable.
    ///
    /// The receiver resolves when every fact is in its history file, or with an error if the journal has failed.
    pub(crate) fn seal(&self) -> (Result<(), LogFailed>, oneshot::Receiver<()>) {
        let (done, is_done) = oneshot::channel();
        // Under the lock: facts that were appended are in the queue before the flush, and what comes of facts that were
        // refused, which waits for a number that is never durable, is behind it.
        let _inner = self.inner.lock();
        let sealed = self.log.close();
        self.send(self.log.last_seq(), Output::Flush(done));
        (sealed, is_done)
    }

    /// Lets out what waits, in order, each when it may. Ends when the journal fails.
    pub(crate) async fn deliver(self: Arc<Self>, mut queue: mpsc::UnboundedReceiver<QueuedOutput>) {
        while let Some(QueuedOutput { after, output }) = queue.recv().await {
            if self.log.wait_durable(after).await.is_err() {
                return;
            }
            match output {
                Output::Fact(entry) => {
                    if events::is_logged(&entry.fact) {
                        self.peek(|cluster| events::log(cluster, &entry));
                    }
                    let ended = matches!(entry.fact, Fact::JobEnded { .. });
                    self.history_writer.append(entry).await;
                    if ended {
                        self.ended.notify_one();
                    }
                }
                Output::Message { to, sender, message } => {
                    // A tracker that does not read, or is gone, is as good as cut off.
                    if let Err(error) = sender.try_send(message)
                        && let Some((tracker, generation)) = to
                    {
                        tracing::debug!(%tracker, %error, "stream");
                        self.detach(tracker, generation);
                    }
                }
                Output::Commit(job) => drop(tokio::spawn(crate::output::commit(self.clone(), job))),
                Output::Compute(number, problem) => drop(tokio::spawn(self.clone().compute(number, problem))),
                Output::Clear(left) => drop(tokio::spawn(leftovers::clear(self.clone(), left))),
                Output::Flush(done) => {
                    self.history_writer.flush().await;
                    let _ = done.send(());
                }
            }
            self.backlog.shrank();
        }
    }

    /// Solves a policy's problem beside the core. There is no answer only if the daemon is ending.
    async fn compute(self: Arc<Self>, number: u64, problem: Problem) {
        if let Ok(answer) = tokio::task::spawn_blocking(move || problem.solve()).await {
            self.handle(Event::Computed { number, answer });
        }
    }

    /// Ticks when the core wants it.
    pub(crate) async fn tick(self: Arc<Self>) {
        loop {
            self.watch_disk();
            let next = self.inner.lock().core.next_deadline();
            let wait = next.map_or(Duration::from_secs(1), |next| self.clock.until(next));
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
            if self.room().await {
                // Nobody was listened to meanwhile: what trackers have said comes before a word on who is silent.
                tokio::time::sleep(2 * self.config.heartbeat.0).await;
            }
            self.handle(Event::Tick);
        }
    }

    /// A tracker introduces itself on a stream. Its number, its incarnation and this attachment's number, or None if it
    /// was refused.
    pub(crate) fn attach(
        &self,
        mut registration: Registration,
        sender: &mpsc::Sender<ToTracker>,
    ) -> Option<(TrackerId, Incarnation, u64)> {
        let request = RequestId(uuid::Uuid::new_v4().as_u128());
        let mut inner = self.inner.lock();
        output::check_output_paths(inner.core.cluster(), &mut registration.attempts);
        let event = Event::Registration { request, tracker: registration };
        let (reply, _) = self.act(&mut inner, event, Some(sender));
        let Some(Reply::Registered { tracker, incarnation, .. }) = reply else { return None };
        inner.links.get(&tracker).map(|link| (tracker, incarnation, link.generation))
    }

    /// A tracker's word, if this attachment is still its own; else false.
    pub(crate) fn heartbeat(&self, generation: u64, mut heartbeat: Heartbeat) -> bool {
        let mut inner = self.inner.lock();
        let current = inner.links.get(&heartbeat.tracker).is_some_and(|link| link.generation == generation);
        if current {
            output::check_output_paths(inner.core.cluster(), &mut heartbeat.attempts);
            self.act(&mut inner, Event::Heartbeat(heartbeat), None);
        }
        current
    }

    /// A tracker's stream has ended. Does nothing if it has attached again since.
    pub(crate) fn detach(&self, tracker: TrackerId, generation: u64) {
        let mut inner = self.inner.lock();
        if inner.links.get(&tracker).is_none_or(|link| link.generation != generation) {
            return;
        }
        inner.links.remove(&tracker);
        let incarnation =
            inner.core.cluster().tracker(tracker).map_or(Incarnation(0), |tracker| tracker.incarnation);
        self.act(&mut inner, Event::Disconnection { tracker, incarnation }, None);
    }

    #[cfg(test)]
    pub(crate) fn handled(&self) -> u64 {
        self.inner.lock().handled
    }

    /// Rings when a job changes, and says whether it is over.
    pub(crate) fn watch_job(&self, job: JobId) -> watch::Receiver<bool> {
        let mut inner = self.inner.lock();
        // Finished jobs ring no more: whoever comes clears away what nobody listens to.
        inner.watchers.retain(|_, watch_job| watch_job.receiver_count() > 0);
        let over = is_over(&inner, job);
        inner.watchers.entry(job).or_insert_with(|| watch::Sender::new(over)).subscribe()
    }
}

fn is_over(inner: &Inner, job: JobId) -> bool {
    inner.core.cluster().job(job).is_none_or(mrcore::job::Job::is_over)
}

fn notify_watchers(inner: &mut Inner, jobs: &BTreeSet<JobId>) {
    if inner.watchers.is_empty() {
        return;
    }
    for job in jobs {
        if let Some(watch_job) = inner.watchers.get(job) {
            if watch_job.receiver_count() == 0 {
                inner.watchers.remove(job);
            } else {
                watch_job.send_replace(is_over(inner, *job));
            }
        }
    }
}

/// Jobs of which a tracker says that an attempt is gone. If it has outlived its job, it may have written after the
/// clean-up; nothing else need follow from its end, so that no fact tells.
fn ended(event: &Event) -> BTreeSet<JobId> {
    let reports = match event {
        Event::Heartbeat(heartbeat) => &heartbeat.attempts,
        Event::Registration { tracker, .. } => &tracker.attempts,
        _ => return BTreeSet::new(),
    };
    let gone = reports.iter().filter(|report| !matches!(report.status, AttemptStatus::Running(_)));
    gone.map(|report| report.attempt.job()).collect()
}
