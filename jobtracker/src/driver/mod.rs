//! The driver around the core: clock, lock, journal, and the order of effects.
//!
//! An event is handled and its facts are queued for the journal under one lock, so the journal has
//! the same order as the events in memory. The effects are added to one queue in their order. The
//! receiver of that queue waits before each item until all facts before it are durable, so no
//! effect is carried out early or out of order. Replies to clients, including refusals and replies
//! to reads, also wait until every fact that they can depend on is durable.
//!
//! A JobTracker without a group leads from its start to its end. A member of a group handles events
//! only while it leads (`group`). The state is replaced when a leadership ends, and every state has a
//! number: what was queued or begun with an earlier state is dropped.

mod backlog;
mod group;
mod namenode;
mod requests;

use crate::{
    blueprint::Blueprint,
    clock::Clock,
    error::Refusal,
    events,
    files::Files,
    history::HistoryWriter,
    leftovers::{LeftoverFolders, LeftoverQueue},
    wire::{self, ToTracker},
    writable::NotWritable,
};
use backlog::Backlog;
use daemon::{Bytes, config::JobTrackerConfig};
use dfs_client::{
    error::Leader,
    ids::{Start, StartId},
};
use journal::{LogFailed, codec};
use mrcore::{
    Cluster, Effect, Event, Fact, JobTracker, Time,
    compute::Problem,
    event::{Heartbeat, Registration, Reply},
    fact::Entry,
    ids::{Incarnation, JobId, RequestId, TrackerId},
    job::Job,
    output::Leftovers,
};
use parking_lot::{Mutex, MutexGuard, RwLock};
use replication::{
    master::Journal,
    member::Member,
    proposals::{AppendError, NotCommitted, Ticket},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Notify, futures::Notified, mpsc, oneshot, watch};

/// Number of the first state.
pub(crate) const FIRST_STATE: u64 = 1;
/// Why a start is not accepted before the NameNode has answered.
const NO_ANSWER: &str = "it has not answered yet";
/// Time between two checks whether facts may be appended again, after another member was to lead.
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The reply to requests that were handled after the journal was sealed.
const STOPPING: &str = "the JobTracker is stopping: try again when it is back";

/// The current stream of a tracker. `generation` distinguishes it from later streams of the same
/// tracker.
struct Link {
    generation: u64,
    sender: mpsc::Sender<ToTracker>,
    /// Number of the newest order sent on this stream. A stream loses nothing, so no order is sent
    /// twice.
    newest_order_sent: u64,
}

/// A leadership of this JobTracker. Without a group there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// Number of the state that it began with. No state is led twice.
    pub(crate) state: u64,
    /// How the NameNode distinguishes it from others.
    pub(crate) start: Start,
}

/// The state that is protected by the lock.
struct Inner {
    core: JobTracker,
    /// Number of this state. It increases when a leadership ends, and when the state is replaced.
    state: u64,
    /// Time of the newest fact that was replayed or applied.
    newest: Time,
    links: BTreeMap<TrackerId, Link>,
    /// Generation of the newest stream of any tracker.
    newest_generation: u64,
    /// Channels that are notified when a job changes, before the change is durable. The value says
    /// whether the job has ended.
    watchers: BTreeMap<JobId, watch::Sender<bool>>,
    /// Number of events handled, for the test that an idle JobTracker handles few.
    #[cfg(test)]
    events_handled: u64,
}

/// What must be durable before something leaves the process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum After {
    /// The facts of the event, and all before them.
    Facts(Ticket),
    /// All facts before the event, which had none.
    Earlier(Ticket),
    /// Nothing may be sent: facts could not be appended, so the process is about to end.
    Never,
}

/// An output, and what must be durable before it is delivered.
pub(crate) struct QueuedOutput {
    /// Number of the state that it is about. It is dropped when there is a newer one.
    state: u64,
    after: After,
    output: Output,
}

enum Output {
    /// Log the fact and write it to the history of its job.
    Fact(Entry),
    Message {
        /// The tracker and the generation of its stream; None if the tracker is not registered.
        to: Option<(TrackerId, u64)>,
        sender: mpsc::Sender<ToTracker>,
        message: ToTracker,
    },
    Commit(JobId),
    Compute(u64, Problem),
    DeleteLeftovers(Leftovers),
    /// The sender is notified when all facts queued before this output are in the history files.
    Flush(oneshot::Sender<()>),
}

/// Set to the reason when the process cannot continue.
pub(crate) type Fatal = watch::Sender<Option<String>>;

/// The JobTracker without its sockets.
pub(crate) struct Driver {
    inner: Mutex<Inner>,
    journal: Arc<Journal>,
    /// Starts again with each leadership.
    clock: RwLock<Clock>,
    blueprint: Blueprint,
    /// The present leadership. It changes under the lock of `inner` only.
    leadership: watch::Sender<Option<Leadership>>,
    files: Files,
    history_writer: HistoryWriter,
    /// Unbounded, because the lock is held when items are added; `backlog` limits its length.
    queue: mpsc::UnboundedSender<QueuedOutput>,
    backlog: Backlog,
    leftovers: LeftoverQueue,
    /// A message for the operator if journal records may have been lost at this start.
    notice: Option<String>,
    /// Notified when it is durable that a job has ended.
    job_end: Notify,
    fatal: Fatal,
    /// Whether the NameNode has accepted the start of the present leadership. If not, the value says
    /// why not yet.
    accepted: watch::Sender<Result<(), String>>,
    /// Set while jobs are active and the NameNode accepts no changes.
    not_writable: Mutex<Option<NotWritable>>,
}

/// What a driver is made from.
pub(crate) struct DriverParts {
    pub(crate) core: JobTracker,
    pub(crate) journal: Journal,
    /// Time of the newest fact in the core.
    pub(crate) newest: Time,
    pub(crate) blueprint: Blueprint,
    pub(crate) files: Files,
    pub(crate) history_writer: HistoryWriter,
    /// A message for the operator if journal records may have been lost at this start.
    pub(crate) notice: Option<String>,
}

impl Driver {
    /// Creates a driver. Returns it and the queue to pass to [`Self::deliver`].
    pub(crate) fn new(parts: DriverParts) -> (Self, mpsc::UnboundedReceiver<QueuedOutput>) {
        let DriverParts { core, journal, newest, blueprint, files, history_writer, notice } = parts;
        let (queue, outgoing) = mpsc::unbounded_channel();
        let inner = Inner {
            core,
            state: FIRST_STATE,
            newest,
            links: BTreeMap::new(),
            newest_generation: 0,
            watchers: BTreeMap::new(),
            #[cfg(test)]
            events_handled: 0,
        };
        let driver = Self {
            inner: Mutex::new(inner),
            journal: Arc::new(journal),
            clock: RwLock::new(Clock::start(newest)),
            blueprint,
            leadership: watch::Sender::new(None),
            files,
            history_writer,
            queue,
            backlog: Backlog::default(),
            leftovers: LeftoverQueue::default(),
            notice,
            job_end: Notify::new(),
            fatal: watch::Sender::new(None),
            accepted: watch::Sender::new(Err(NO_ANSWER.into())),
            not_writable: Mutex::default(),
        };
        (driver, outgoing)
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    pub(crate) fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    pub(crate) fn config(&self) -> &JobTrackerConfig {
        &self.blueprint.settings
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn history_writer(&self) -> &HistoryWriter {
        &self.history_writer
    }

    /// Returns messages for the operator: journal records may be lost, or the disk is nearly full.
    pub(crate) fn notices(&self) -> Vec<String> {
        self.notice.iter().cloned().chain(self.disk_low_message()).collect()
    }

    /// Returns a message if less than `disk_reserve` is free on the disk of the journal.
    pub(crate) fn disk_low_message(&self) -> Option<String> {
        let reserve = self.config().disk_reserve;
        // If the free space is unknown, assume that there is enough; a write to the journal will
        // fail if not.
        let free = self.journal.free_bytes().ok().filter(|free| *free < reserve.0)?;
        let stopped = if self.inner.lock().core.suspends_launches(free) {
            "no job is accepted, no attempt is started and no history is written"
        } else {
            "no job is accepted and no history is written"
        };
        Some(format!(
            "only {} of free space is left on the JobTracker's disk ({}), less than jobtracker.disk_reserve = {reserve}: {stopped} \
             until more space is free",
            Bytes(free),
            self.config().dir.display()
        ))
    }

    /// Reports the free space on the disk to the core, if it changes whether launches are
    /// suspended.
    fn check_disk_space(&self, leadership: Leadership) {
        let Ok(free) = self.journal.free_bytes() else { return };
        let mut inner = self.inner.lock();
        if self.leadership() != Some(leadership) || self.is_paused() {
            return;
        }
        let suspends = inner.core.suspends_launches(free);
        if suspends == inner.core.launches_suspended() {
            return;
        }
        if suspends {
            tracing::error!(free = %Bytes(free), "the JobTracker's disk is nearly full: no attempt is started; free some space");
        } else {
            tracing::info!(free = %Bytes(free), "the JobTracker's disk has enough free space again: attempts are started");
        }
        self.handle_locked(&mut inner, Event::FreeSpace { bytes: free }, None);
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.read().now()
    }

    /// Returns the present leadership; `None` if this member of a group follows.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        *self.leadership.borrow()
    }

    /// Returns a channel with the present leadership.
    pub(crate) fn leaderships(&self) -> watch::Receiver<Option<Leadership>> {
        self.leadership.subscribe()
    }

    /// Begins the only leadership of a JobTracker without a group.
    pub(crate) fn start(&self) {
        let mut inner = self.inner.lock();
        self.begin(&mut inner, Event::Start, StartId::random());
    }

    /// Begins a leadership with `event`.
    fn begin(&self, inner: &mut Inner, event: Event, id: StartId) -> Leadership {
        let start = Start { epoch: inner.core.cluster().epoch() + 1, id };
        let leadership = Leadership { state: inner.state, start };
        *self.clock.write() = Clock::start(inner.newest);
        self.accepted.send_modify(|accepted| *accepted = Err(NO_ANSWER.into()));
        self.leadership.send_replace(Some(leadership));
        self.handle_locked(inner, event, None);
        leadership
    }

    /// Ends the process with this error message.
    pub(crate) fn fail(&self, why: String) {
        self.fatal.send_replace(Some(why));
    }

    /// Waits until the process cannot continue. Returns the reason.
    pub(crate) async fn failed(&self) -> String {
        let mut fatal = self.fatal.subscribe();
        let why = fatal.wait_for(Option::is_some).await.expect("the sender is in `self`").clone();
        why.expect("waited for it")
    }

    /// Handles an event. Returns the reply, and what must be durable before the reply is sent.
    pub(crate) fn handle(&self, event: Event) -> Result<(Option<Reply>, After), Refusal> {
        let mut inner = self.lock_as_leader()?;
        self.check_paused()?;
        Ok(self.handle_locked(&mut inner, event, None))
    }

    /// Handles an event that is the result of this leadership. Drops it if the leadership has ended,
    /// and waits if it is about to end.
    async fn handle_in(&self, leadership: Leadership, event: Event) {
        loop {
            {
                let mut inner = self.inner.lock();
                if self.leadership() != Some(leadership) {
                    return;
                }
                if !self.is_paused() {
                    self.handle_locked(&mut inner, event, None);
                    return;
                }
            }
            tokio::time::sleep(PAUSE_CHECK_INTERVAL).await;
        }
    }

    /// Locks the state. Refuses if another member of the group leads.
    fn lock_as_leader(&self) -> Result<MutexGuard<'_, Inner>, Refusal> {
        let inner = self.inner.lock();
        match self.leadership() {
            Some(_) => Ok(inner),
            None => Err(self.not_leader(&inner)),
        }
    }

    /// Returns the refusal of a member that does not lead. It names the leader if it knows that.
    fn not_leader(&self, inner: &Inner) -> Refusal {
        let leader = self.journal.member().and_then(Member::other_leader);
        let epoch = inner.core.cluster().epoch();
        Refusal::not_leader(leader.map(|addr| Leader { addr, epoch }))
    }

    /// Returns whether nothing may be appended, because another member is to lead.
    fn is_paused(&self) -> bool {
        self.journal.member().is_some_and(Member::is_paused)
    }

    fn check_paused(&self) -> Result<(), Refusal> {
        if self.is_paused() {
            return Err(Refusal::unavailable(
                "this JobTracker lets another one of its group lead: try again",
            ));
        }
        Ok(())
    }

    /// Waits until the backlog is below its limit. Returns whether it had to wait.
    pub(crate) async fn wait_for_backlog(&self) -> bool {
        self.backlog.wait_below_max().await
    }

    /// Refuses a request of a client while the backlog is full.
    fn check_backlog(&self) -> Result<(), Refusal> {
        if self.backlog.is_full() {
            let message = format!(
                "{} outputs are waiting for the JobTracker's disk: try again later",
                backlog::BACKLOG_MAX
            );
            return Err(Refusal::overloaded(message));
        }
        Ok(())
    }

    /// Returns a future that completes when, after this call, a job ends and this is durable.
    pub(crate) fn job_ended(&self) -> Notified<'_> {
        self.job_end.notified()
    }

    /// Handles an event and waits until the reply may be sent.
    async fn request_reply(&self, event: Event) -> Result<Reply, Refusal> {
        self.check_backlog()?;
        let (reply, after) = self.handle(event)?;
        self.wait(after).await?;
        reply.ok_or_else(|| Refusal::unavailable("internal error: the request was not answered"))
    }

    /// Waits until a reply may be sent.
    async fn wait(&self, after: After) -> Result<(), Refusal> {
        let durable = match after {
            After::Facts(ticket) => self.journal.wait(ticket).await,
            After::Earlier(ticket) => self.journal.confirm(ticket).await,
            After::Never => return self.check_fatal(),
        };
        durable.map_err(|why| match why {
            NotCommitted::NotLeader => self.not_leader(&self.inner.lock()),
            NotCommitted::NoQuorum => Refusal::unavailable(why.to_string()),
            NotCommitted::Failed(_) => {
                Refusal::unavailable(format!("the JobTracker cannot write its journal: {why}"))
            }
        })
    }

    fn check_fatal(&self) -> Result<(), Refusal> {
        self.fatal.borrow().clone().map_or(Ok(()), |why| Err(Refusal::unavailable(why)))
    }

    /// Reads from the cluster. Returns the value once every fact that it can depend on is durable.
    pub(crate) async fn read<T>(&self, read: impl FnOnce(&Cluster) -> T) -> Result<T, Refusal> {
        self.read_core(|core| read(core.cluster())).await
    }

    /// Same as [`Self::read`], but `read` gets the whole core.
    pub(crate) async fn read_core<T>(&self, read: impl FnOnce(&JobTracker) -> T) -> Result<T, Refusal> {
        let (value, after) = {
            let inner = self.lock_as_leader()?;
            (read(&inner.core), After::Earlier(self.journal.newest()))
        };
        self.wait(after).await?;
        // The value may depend on facts that could not be appended.
        self.check_fatal()?;
        Ok(value)
    }

    /// Reads from the cluster without waiting for the journal. The value must not be sent to other
    /// processes, because a crash may undo it, or another member of the group may lead.
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&Cluster) -> T) -> T {
        read(self.inner.lock().core.cluster())
    }

    /// Handles one event and queues its effects in order. `new_stream` is the stream of a tracker
    /// that registers. Returns as [`Self::handle`].
    fn handle_locked(
        &self,
        inner: &mut Inner,
        event: Event,
        new_stream: Option<&mpsc::Sender<ToTracker>>,
    ) -> (Option<Reply>, After) {
        #[cfg(test)]
        {
            inner.events_handled += 1;
        }
        let mut changed: BTreeSet<JobId> = match &event {
            Event::Heartbeat(heartbeat) => {
                heartbeat.attempts.iter().map(|report| report.attempt.job()).collect()
            }
            _ => BTreeSet::new(),
        };
        let mut effects = Vec::new();
        inner.core.handle(self.now(), event, &mut effects);
        let (after, mut answer) = (self.append(&effects), None);
        for effect in effects {
            match effect {
                Effect::Append(entry) => {
                    changed.extend(entry.fact.job());
                    self.queue_output(inner, after, Output::Fact(entry));
                }
                Effect::Reply { reply, .. } => {
                    if let Some(sender) = new_stream {
                        self.attach_stream(inner, after, sender, &reply);
                    }
                    answer = Some(reply);
                }
                Effect::SendOrders { tracker, answers, orders } => {
                    self.queue_orders(inner, after, tracker, answers, &orders);
                }
                Effect::RegisterAgain { tracker, .. } => {
                    self.queue_message(inner, after, tracker, wire::register_again());
                }
                Effect::CommitJob { job } => self.queue_output(inner, after, Output::Commit(job)),
                Effect::Compute { number, problem } => {
                    self.queue_output(inner, after, Output::Compute(number, problem));
                }
                Effect::DeleteLeftovers { leftovers, .. } => {
                    self.queue_output(inner, after, Output::DeleteLeftovers(leftovers));
                }
            }
        }
        notify_watchers(inner, &changed);
        (answer, after)
    }

    /// Appends the facts of an event to the journal. After a crash either all of them are in the
    /// journal or none is: otherwise, for example, a tracker could be lost while its attempts still
    /// run. Returns what must be durable before the other effects are delivered.
    fn append(&self, effects: &[Effect]) -> After {
        let facts = effects.iter().filter_map(|effect| match effect {
            Effect::Append(entry) => Some(codec::encode(entry)),
            _ => None,
        });
        let facts: Vec<Vec<u8>> = facts.collect();
        if facts.is_empty() {
            return After::Earlier(self.journal.newest());
        }
        match self.journal.append(&facts) {
            Ok(ticket) => After::Facts(ticket),
            Err(AppendError::Failed(error)) => {
                // No further output is delivered, because the process is about to end.
                let stopping = self.journal.check().is_ok();
                self.fail(if stopping {
                    STOPPING.into()
                } else {
                    format!("cannot write the journal: {error}")
                });
                After::Never
            }
            // The facts are applied in memory but cannot be written, so memory and journal differ,
            // and nothing can repair this. A JobTracker that does not lead applies none.
            Err(error @ (AppendError::TooLarge { .. } | AppendError::NotLeader)) => {
                panic!("applied facts cannot be appended to the journal: {error}")
            }
        }
    }

    fn queue_output(&self, inner: &Inner, after: After, output: Output) {
        self.backlog.increment();
        // The receiver is gone only when the process ends.
        let _ = self.queue.send(QueuedOutput { state: inner.state, after, output });
    }

    /// Makes the stream the current one of its tracker if the registration was accepted. Queues the
    /// answer to the registration.
    fn attach_stream(
        &self,
        inner: &mut Inner,
        after: After,
        sender: &mpsc::Sender<ToTracker>,
        reply: &Reply,
    ) {
        match reply {
            Reply::Registered { tracker, epoch, incarnation } => {
                inner.newest_generation += 1;
                let link = Link {
                    generation: inner.newest_generation,
                    sender: sender.clone(),
                    newest_order_sent: 0,
                };
                inner.links.insert(*tracker, link);
                let message = wire::registered(*tracker, *incarnation, *epoch, self.config());
                self.queue_message(inner, after, *tracker, message);
            }
            Reply::Refused(why) => {
                let output =
                    Output::Message { to: None, sender: sender.clone(), message: wire::refused(why.clone()) };
                self.queue_output(inner, after, output);
            }
            Reply::Submitted(_) | Reply::Accepted | Reply::JobRefused(_) => {}
        }
    }

    /// Queues the orders that were not sent yet on the current stream of the tracker. `answers` is
    /// the number of the heartbeat that they answer.
    fn queue_orders(
        &self,
        inner: &mut Inner,
        after: After,
        tracker: TrackerId,
        answers: Option<u64>,
        orders: &[mrcore::event::NumberedOrder],
    ) {
        let Some(link) = inner.links.get_mut(&tracker) else { return };
        let first_unsent =
            orders.iter().position(|(number, _)| *number > link.newest_order_sent).unwrap_or(orders.len());
        let orders = &orders[first_unsent..];
        if orders.is_empty() && answers.is_none() {
            return;
        }
        link.newest_order_sent = orders.last().map_or(link.newest_order_sent, |(number, _)| *number);
        let messages = wire::orders(inner.core.cluster(), &self.files, answers, orders);
        for message in messages {
            self.queue_message(inner, after, tracker, message);
        }
    }

    fn queue_message(&self, inner: &Inner, after: After, tracker: TrackerId, message: ToTracker) {
        let Some(link) = inner.links.get(&tracker) else { return };
        let to = Some((tracker, link.generation));
        self.queue_output(inner, after, Output::Message { to, sender: link.sender.clone(), message });
    }

    /// Seals the journal: no fact is accepted after this, although trackers may still report.
    /// Blocks until the journal is durable.
    ///
    /// The returned receiver completes when every fact is in its history file, and fails if the
    /// journal has failed.
    pub(crate) fn seal(&self) -> (Result<(), LogFailed>, oneshot::Receiver<()>) {
        let (done, is_done) = oneshot::channel();
        // Lock, so that all appended facts are queued before the flush. Outputs of facts that the
        // sealed journal refuses are queued behind the flush, and are never delivered.
        let inner = self.inner.lock();
        let sealed = self.journal.close();
        self.queue_output(&inner, After::Earlier(self.journal.newest()), Output::Flush(done));
        (sealed, is_done)
    }

    /// Delivers queued outputs in order, each when the facts that it depends on are durable. Drops
    /// those of leaderships that have ended. Returns when the journal fails.
    pub(crate) async fn deliver(self: Arc<Self>, mut queue: mpsc::UnboundedReceiver<QueuedOutput>) {
        while let Some(QueuedOutput { state, after, output }) = queue.recv().await {
            let (After::Facts(ticket) | After::Earlier(ticket)) = after else { return };
            match self.journal.wait(ticket).await {
                Ok(()) => self.deliver_one(state, output).await,
                Err(NotCommitted::NotLeader | NotCommitted::NoQuorum) => {}
                Err(NotCommitted::Failed(_)) => return,
            }
            self.backlog.decrement();
        }
    }

    /// Delivers an output about the state with this number, which may have been replaced since.
    async fn deliver_one(self: &Arc<Self>, state: u64, output: Output) {
        let leadership = self.leadership().filter(|leadership| leadership.state == state);
        match (output, leadership) {
            (Output::Fact(entry), _) => {
                if events::is_logged(&entry.fact) {
                    self.peek(|cluster| events::log(cluster, &entry));
                }
                let ended = matches!(entry.fact, Fact::JobEnded { .. });
                self.history_writer.append(state, entry).await;
                if ended {
                    self.job_end.notify_one();
                }
            }
            (Output::Message { to, sender, message }, Some(_)) => {
                // The tracker is gone or does not read its messages, so close its stream.
                if let Err(error) = sender.try_send(message)
                    && let Some((tracker, generation)) = to
                {
                    tracing::debug!(%tracker, %error, "cannot send to the tracker: its stream is closed");
                    self.detach(tracker, generation);
                }
            }
            (Output::Commit(job), Some(leadership)) => {
                tokio::spawn(self.clone().commit(leadership, job));
            }
            (Output::Compute(number, problem), Some(leadership)) => {
                tokio::spawn(self.clone().compute(leadership, number, problem));
            }
            (Output::DeleteLeftovers(leftovers), Some(_)) => {
                if self.leftovers.add(LeftoverFolders::of_job(&leftovers)) {
                    tokio::spawn(self.clone().delete_leftovers());
                }
            }
            (Output::Flush(done), _) => {
                self.history_writer.flush().await;
                let _ = done.send(());
            }
            (
                Output::Message { .. } | Output::Commit(_) | Output::Compute(..) | Output::DeleteLeftovers(_),
                None,
            ) => {}
        }
    }

    /// Solves a problem of a policy without the lock, and passes the answer to the core. The core
    /// gets no answer only if the daemon is ending.
    async fn compute(self: Arc<Self>, leadership: Leadership, number: u64, problem: Problem) {
        if let Ok(answer) = tokio::task::spawn_blocking(move || problem.solve()).await {
            self.handle_in(leadership, Event::Computed { number, answer }).await;
        }
    }

    /// Sends a tick to the core at each of its deadlines, or after a second if it has none. Never
    /// returns.
    pub(crate) async fn tick_loop(self: Arc<Self>, leadership: Leadership) {
        loop {
            self.check_disk_space(leadership);
            let next = self.inner.lock().core.next_deadline();
            let wait = next.map_or(Duration::from_secs(1), |next| self.clock.read().time_until(next));
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
            if self.wait_for_backlog().await {
                // No heartbeat was read during the wait. Give the trackers time to report before
                // the core decides which of them are suspect.
                tokio::time::sleep(2 * self.config().heartbeat.0).await;
            }
            self.handle_in(leadership, Event::Tick).await;
        }
    }

    /// Registers a tracker on a stream. Returns the tracker, its incarnation and the generation of
    /// the stream, or None if the registration was refused. A tracker that gets no answer registers
    /// again on another stream.
    pub(crate) fn attach(
        &self,
        registration: Registration,
        sender: &mpsc::Sender<ToTracker>,
    ) -> Option<(TrackerId, Incarnation, u64)> {
        let request = RequestId(uuid::Uuid::new_v4().as_u128());
        let mut inner = self.lock_as_leader().ok()?;
        self.check_paused().ok()?;
        let event = Event::Registration { request, tracker: registration };
        let (reply, _) = self.handle_locked(&mut inner, event, Some(sender));
        let Some(Reply::Registered { tracker, incarnation, .. }) = reply else { return None };
        inner.links.get(&tracker).map(|link| (tracker, incarnation, link.generation))
    }

    /// Handles a heartbeat. Returns false if its stream is no longer the current stream of the
    /// tracker. While another member is to lead, heartbeats are ignored: the tracker repeats them.
    pub(crate) fn heartbeat(&self, generation: u64, heartbeat: Heartbeat) -> bool {
        let mut inner = self.inner.lock();
        let current = inner.links.get(&heartbeat.tracker).is_some_and(|link| link.generation == generation);
        if current && !self.is_paused() {
            self.handle_locked(&mut inner, Event::Heartbeat(heartbeat), None);
        }
        current
    }

    /// Removes the stream of a tracker, and reports to the core that the tracker is disconnected,
    /// unless the tracker has attached a newer stream since.
    pub(crate) fn detach(&self, tracker: TrackerId, generation: u64) {
        let mut inner = self.inner.lock();
        if inner.links.get(&tracker).is_none_or(|link| link.generation != generation) {
            return;
        }
        inner.links.remove(&tracker);
        if self.is_paused() {
            // The tracker is suspect when its heartbeats are missed.
            return;
        }
        let incarnation =
            inner.core.cluster().tracker(tracker).map_or(Incarnation(0), |tracker| tracker.incarnation);
        self.handle_locked(&mut inner, Event::Disconnection { tracker, incarnation }, None);
    }

    #[cfg(test)]
    pub(crate) fn events_handled(&self) -> u64 {
        self.inner.lock().events_handled
    }

    /// Returns a channel that is notified when a job changes. Its value says whether the job has
    /// ended.
    pub(crate) fn watch_job(&self, job: JobId) -> watch::Receiver<bool> {
        let mut inner = self.inner.lock();
        // The channel of an ended job is never notified again, and so never removed there. Remove
        // all channels that have no receiver here.
        inner.watchers.retain(|_, sender| sender.receiver_count() > 0);
        let over = has_ended(&inner, job);
        inner.watchers.entry(job).or_insert_with(|| watch::Sender::new(over)).subscribe()
    }
}

fn has_ended(inner: &Inner, job: JobId) -> bool {
    inner.core.cluster().job(job).is_none_or(Job::has_ended)
}

fn notify_watchers(inner: &mut Inner, jobs: &BTreeSet<JobId>) {
    if inner.watchers.is_empty() {
        return;
    }
    for job in jobs {
        if let Some(sender) = inner.watchers.get(job) {
            if sender.receiver_count() == 0 {
                inner.watchers.remove(job);
            } else {
                sender.send_replace(has_ended(inner, *job));
            }
        }
    }
}
