//! What the leader of a group proposes, and what of it is committed.
//!
//! A leader applies records to its state when it proposes them, not when they are committed. One
//! proposal is in flight at a time; what is appended meanwhile becomes the next one (ADR 0036).

use crate::{types::Proposal, watch};
use journal::{
    LogFailed, Seq,
    bugs::{self, Bug},
    log::BATCH_BYTES_MAX,
};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Maximum number of bytes of the records in one proposal; at least one event is proposed.
const PROPOSAL_BYTES_MAX: usize = 4 << 20;
/// What an entry needs besides the records of its proposal, at most.
const ENTRY_BYTES: usize = 64;

/// Identifies what was appended by one call. Tickets of one leadership are in the order of the
/// calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Counts the leaderships of this member since it was opened. 0 without a group.
    pub(crate) leadership: u64,
    pub(crate) number: u64,
}

impl Ticket {
    /// Returns the ticket of a record of one master without a group.
    pub(crate) fn of(seq: Seq) -> Self {
        Self { leadership: 0, number: seq }
    }
}

/// Why it is not known that something is committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotCommitted {
    /// Another member leads, or none. What was appended may still be committed.
    #[error("this master no longer leads its group")]
    NotLeader,
    /// The leader was not confirmed by a quorum in time.
    #[error("no quorum: fewer than half of the other masters have answered")]
    NoQuorum,
    /// The journal has failed.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}

/// Why records were not appended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The records of one event are too large.
    #[error("records of {bytes} bytes exceed the limit of the journal, {max} bytes")]
    TooLarge {
        /// Length of the records.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Another member leads, or none.
    #[error("this master does not lead its group")]
    NotLeader,
    /// The journal has failed, or is closed.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}

impl From<journal::AppendError> for AppendError {
    fn from(error: journal::AppendError) -> Self {
        match error {
            journal::AppendError::TooLarge { bytes, max } => Self::TooLarge { bytes, max },
            journal::AppendError::Failed(failed) => Self::Failed(failed),
        }
    }
}

/// What openraft has made of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is committed, and applied here.
    Committed,
    /// It was not appended, because the leader had not heard from a quorum for a while.
    NotNow,
    /// It was not appended, because this member does not lead any more.
    Refused,
    /// It may be committed later.
    Unknown,
}

/// The proposals of a member.
#[derive(Default)]
pub(crate) struct Proposals {
    queue: Mutex<Queue>,
    progress: watch::Sender<Progress>,
    /// Notified when there is something to propose.
    appended: Notify,
    /// Notified when a leadership has ended.
    pub(crate) ended: Notify,
}

#[derive(Default)]
struct Queue {
    /// The term in which this member leads.
    leading: Option<u64>,
    /// The newest term in which a proposal was in flight when the leadership ended.
    unknown_term: u64,
    /// The records of events, each with its number.
    pending: VecDeque<(u64, Vec<u8>)>,
    pending_bytes: usize,
    /// Number of the newest event in the proposal in flight.
    in_flight: Option<u64>,
    /// Whether the proposal in flight was refused before it was appended to the log.
    is_refused: bool,
    /// Number of the newest event.
    newest: u64,
    /// Whether the master must append nothing new, because another one is to lead.
    is_paused: bool,
    /// Whether the state must be replaced, because it contains what an ended leadership has made.
    is_stale: bool,
}

#[derive(Debug, Clone, Default)]
struct Progress {
    leadership: u64,
    /// The term of the leadership.
    term: u64,
    is_leading: bool,
    /// Number of the newest event that is committed, in this leadership.
    committed: u64,
    failed: Option<LogFailed>,
}

impl Proposals {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the term in which this member leads.
    pub(crate) fn leading(&self) -> Option<u64> {
        self.queue().leading
    }

    /// Begins a leadership. Returns false if it is not known what has become of an earlier proposal
    /// of this term.
    pub(crate) fn begin(&self, term: u64) -> bool {
        let mut queue = self.queue();
        if term <= queue.unknown_term {
            return false;
        }
        queue.leading = Some(term);
        (queue.newest, queue.is_paused) = (0, false);
        self.progress.send_modify(|progress| {
            *progress = Progress {
                leadership: progress.leadership + 1,
                term,
                is_leading: true,
                committed: 0,
                failed: progress.failed.take(),
            };
        });
        true
    }

    /// Ends the leadership. Returns whether the state must be replaced: something that was appended is
    /// not committed, or `is_always_replaced`.
    pub(crate) fn end(&self, is_always_replaced: bool) -> bool {
        let mut queue = self.queue();
        let Some(term) = queue.leading.take() else { return false };
        let in_flight = queue.in_flight.take().is_some();
        if in_flight && !std::mem::take(&mut queue.is_refused) {
            queue.unknown_term = term;
        }
        let is_stale = is_always_replaced || in_flight || !queue.pending.is_empty();
        queue.is_stale |= is_stale;
        queue.pending.clear();
        queue.pending_bytes = 0;
        self.progress.send_modify(|progress| progress.is_leading = false);
        self.ended.notify_one();
        is_stale
    }

    /// The state was replaced by that of the applied entries.
    pub(crate) fn restored(&self) {
        self.queue().is_stale = false;
    }

    /// Returns whether the state must be replaced before anything is applied to it.
    pub(crate) fn is_stale(&self) -> bool {
        self.queue().is_stale
    }

    /// Returns whether the state of a master that does not lead is that of the applied entries.
    pub(crate) fn is_committed(&self) -> bool {
        let queue = self.queue();
        queue.leading.is_none() && !queue.is_stale
    }

    /// Appends the records of an event. They are committed together or not at all.
    pub(crate) fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Ticket, AppendError> {
        let bytes = Proposal::encode(records);
        if bytes.len() + ENTRY_BYTES > BATCH_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes: bytes.len(), max: BATCH_BYTES_MAX - ENTRY_BYTES });
        }
        let mut queue = self.queue();
        self.check()?;
        if queue.leading.is_none() {
            return Err(AppendError::NotLeader);
        }
        queue.newest += 1;
        queue.pending_bytes += bytes.len();
        let number = queue.newest;
        queue.pending.push_back((number, bytes));
        self.appended.notify_one();
        Ok(Ticket { leadership: self.progress.borrow().leadership, number })
    }

    /// Returns whether the records of an event with up to `bytes` bytes can be appended without
    /// exceeding the limit for what waits. False while changes are paused.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        let queue = self.queue();
        !queue.is_paused && queue.pending_bytes + bytes <= BATCH_BYTES_MAX
    }

    /// Pauses changes until the next leadership, or continues.
    pub(crate) fn pause(&self, is_paused: bool) {
        self.queue().is_paused = is_paused;
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.queue().is_paused
    }

    /// Returns the ticket of the newest event; of the last leadership if this member does not lead.
    pub(crate) fn newest(&self) -> Ticket {
        let queue = self.queue();
        Ticket { leadership: self.progress.borrow().leadership, number: queue.newest }
    }

    /// Waits until there is something to propose. It is in flight then. Returns it and its term.
    pub(crate) async fn next(&self) -> (u64, Proposal) {
        loop {
            if let Some(next) = self.queue().take() {
                return next;
            }
            self.appended.notified().await;
        }
    }

    /// The proposal in flight of this term was refused before it was appended to the log. It is not
    /// proposed again.
    pub(crate) fn refused(&self, term: u64) {
        let mut queue = self.queue();
        queue.is_refused = queue.leading == Some(term) && queue.in_flight.is_some();
    }

    /// The proposal in flight is committed. Returns false if there is none.
    pub(crate) fn committed(&self) -> bool {
        let number = self.queue().in_flight.take();
        if let Some(number) = number {
            self.progress.send_modify(|progress| progress.committed = number);
            // The next proposal may be sent.
            self.appended.notify_one();
        }
        number.is_some()
    }

    /// The member has failed. The first reason is kept.
    pub(crate) fn fail(&self, why: &str) {
        self.progress.send_modify(|progress| {
            progress.failed.get_or_insert_with(|| LogFailed { reason: why.into() });
        });
    }

    /// Waits until the member has failed, and returns the reason.
    pub(crate) async fn failed(&self) -> LogFailed {
        let progress = self.progress.wait_for(|progress| progress.failed.is_some()).await;
        progress.failed.expect("waited for it")
    }

    /// Returns an error if the member has failed.
    pub(crate) fn check(&self) -> Result<(), LogFailed> {
        self.progress.borrow().failed.clone().map_or(Ok(()), Err)
    }

    /// Returns whether `ticket` is of the leadership of this term, and that has not ended.
    pub(crate) fn leads_in(&self, term: u64, ticket: Ticket) -> bool {
        let progress = self.progress.borrow();
        progress.leads(ticket) && progress.term == term
    }

    /// Waits until what `ticket` stands for, and all before it, is committed.
    pub(crate) async fn wait(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        if bugs::has(Bug::AcknowledgedAtOnce) {
            return Ok(());
        }
        let is_decided = |progress: &Progress| {
            !progress.leads(ticket) || progress.committed >= ticket.number || progress.failed.is_some()
        };
        self.progress.wait_for(is_decided).await.check(ticket)
    }
}

impl Progress {
    fn leads(&self, ticket: Ticket) -> bool {
        self.is_leading && self.leadership == ticket.leadership
    }

    fn check(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        match &self.failed {
            Some(failed) => Err(NotCommitted::Failed(failed.clone())),
            None if !self.leads(ticket) => Err(NotCommitted::NotLeader),
            None => Ok(()),
        }
    }
}

impl Queue {
    fn take(&mut self) -> Option<(u64, Proposal)> {
        let term = self.leading.filter(|_| self.in_flight.is_none())?;
        let mut records = Vec::new();
        while let Some((number, bytes)) = self.pending.pop_front() {
            self.in_flight = Some(number);
            self.pending_bytes -= bytes.len();
            records.extend_from_slice(&bytes);
            let next = self.pending.front().map_or(0, |(_, bytes)| bytes.len());
            if records.len() + next > PROPOSAL_BYTES_MAX {
                break;
            }
        }
        self.in_flight.map(|_| (term, Proposal { records: records.into() }))
    }
}
