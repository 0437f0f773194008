//! The network between the members of a group, as openraft uses it: messages with answers over any
//! [`Transport`].
//!
//! A link becomes quiet for a while when no answer arrives. Otherwise a leader whose messages
//! arrive, and which receives no answers, keeps its followers from electing another (ADR 0036).

use crate::{
    machine::GroupSnapshot,
    types::{Entry, Group, SnapshotMeta, Vote},
};
use journal::SnapshotFile;
use openraft::{
    BasicNode, EntryPayload, OptionalSend,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{task::spawn_blocking, time::Instant};

/// Length of the parts of a snapshot.
const PART_BYTES: usize = 1 << 20;
/// How long an append may take, and again for each [`APPEND_BYTES`].
const APPEND_TIMEOUT: Duration = Duration::from_secs(1);
const APPEND_BYTES: f64 = (2 << 20) as f64;
/// How long a part of a snapshot, or a question whether it is installed, waits for its answer.
const PART_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts to reach a member.
const RETRY: Duration = Duration::from_millis(50);

/// A message to another member.
#[derive(Debug, Clone)]
pub enum Message {
    /// Entries for the log; without entries, a heartbeat.
    Append(AppendEntriesRequest<Group>),
    /// A request for a vote.
    Vote(VoteRequest<Group>),
    /// A question whether a vote would be granted.
    PreVote(VoteRequest<Group>),
    /// A request to become the leader.
    Transfer(TransferLeaderRequest<Group>),
    /// A part of a snapshot.
    Part(SnapshotPart),
    /// Installs the snapshot whose parts were all sent. It is repeated until that is done.
    Install(Vote, SnapshotMeta),
}

/// A part of a snapshot. Parts are sent in order, each after the answer to the one before it.
#[derive(Debug, Clone)]
pub struct SnapshotPart {
    /// The vote of the leader that sends it.
    pub vote: Vote,
    /// The place of the snapshot in the log.
    pub meta: SnapshotMeta,
    /// Offset of the part in the file.
    pub offset: u64,
    /// The bytes of the part.
    pub bytes: Vec<u8>,
}

/// The answer to a message.
#[derive(Debug, Clone)]
pub enum Answer {
    /// To [`Message::Append`].
    Append(AppendEntriesResponse<Group>),
    /// To [`Message::Vote`] and [`Message::PreVote`].
    Vote(VoteResponse<Group>),
    /// To [`Message::Transfer`].
    Transfer(TransferLeaderResponse<Group>),
    /// To [`Message::Part`] and [`Message::Install`]: the newest vote that the member knows, if the
    /// snapshot is installed or refused.
    Snapshot(Option<Vote>),
}

/// The future of an answer, or of the reason why there is none.
pub type AnswerFuture<'a> = Pin<Box<dyn Future<Output = Result<Answer, String>> + Send + 'a>>;

/// Carries messages to other members.
pub trait Transport: Send + Sync + 'static {
    /// Sends a message to member `to` at `address`, and waits for the answer for at most `limit`.
    fn call<'a>(&'a self, to: u64, address: &'a str, message: Message, limit: Duration) -> AnswerFuture<'a>;
}

/// Makes the links to all other members.
pub(crate) struct Links {
    transport: Arc<dyn Transport>,
    /// How long a link without answers is used.
    patience: Duration,
    silences: HashMap<u64, Arc<Silence>>,
}

/// A link to another member.
pub(crate) struct Link {
    transport: Arc<dyn Transport>,
    to: u64,
    address: String,
    silence: Arc<Silence>,
}

/// Since when a member has not answered, although messages were sent. Heartbeats and other
/// messages to a member share it.
struct Silence {
    since: Mutex<Option<Instant>>,
    /// How long the link is used without an answer. Then it is quiet for twice as long, then used
    /// for twice as long, and so on.
    patience: Duration,
}

impl Silence {
    fn new(patience: Duration) -> Self {
        Self { since: Mutex::default(), patience }
    }

    /// Returns whether a message may be sent now.
    fn may_send(&self) -> bool {
        let now = Instant::now();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        match (now - *since.get_or_insert(now)).checked_sub(self.patience) {
            None => true,
            Some(over) => over.as_millis() / (2 * self.patience).as_millis() % 2 == 1,
        }
    }

    fn end(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Links {
    pub(crate) fn new(transport: Arc<dyn Transport>, patience: Duration) -> Self {
        Self { transport, patience, silences: HashMap::new() }
    }
}

impl RaftNetworkFactory<Group> for Links {
    type Network = Link;

    async fn new_client(&mut self, to: u64, node: &BasicNode) -> Link {
        Link {
            transport: Arc::clone(&self.transport),
            to,
            address: node.addr.clone(),
            silence: Arc::clone(
                self.silences.entry(to).or_insert_with(|| Arc::new(Silence::new(self.patience))),
            ),
        }
    }
}

impl Link {
    async fn call(&self, message: Message, limit: Duration) -> Result<Answer, RPCError<Group>> {
        let answer = self.transport.call(self.to, &self.address, message, limit).await;
        if answer.is_ok() {
            self.silence.end();
        }
        answer.map_err(unreachable)
    }

    /// Sends all parts of the snapshot, and waits until it is installed. Each part, and not the
    /// whole, must be answered in time. Returns the newest vote that the member knows.
    async fn send_snapshot(
        &self,
        vote: Vote,
        meta: SnapshotMeta,
        file: Arc<SnapshotFile>,
    ) -> Result<Vote, RPCError<Group>> {
        let mut offset = 0;
        loop {
            let message = if offset < file.bytes {
                let source = Arc::clone(&file);
                let read = spawn_blocking(move || read_part(&source, offset)).await.map_err(unreachable)?;
                let bytes = read.map_err(unreachable)?;
                let part = SnapshotPart { vote, meta: meta.clone(), offset, bytes };
                offset += part.bytes.len() as u64;
                Message::Part(part)
            } else {
                Message::Install(vote, meta.clone())
            };
            match self.call(message, PART_TIMEOUT).await? {
                Answer::Snapshot(Some(newest)) => return Ok(newest),
                Answer::Snapshot(None) => {}
                _ => return Err(unreachable("an answer of the wrong kind")),
            }
        }
    }
}

/// Returns how long an append may take; `None` for a heartbeat. openraft allows less than one
/// interval of heartbeats, in which a large entry never arrives.
fn append_timeout(request: &AppendEntriesRequest<Group>) -> Option<Duration> {
    let bytes = |entry: &Entry| match &entry.payload {
        EntryPayload::Normal(proposal) => proposal.records.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    };
    let bytes: usize = request.entries.iter().map(bytes).sum();
    (!request.entries.is_empty()).then(|| APPEND_TIMEOUT.mul_f64(1.0 + bytes as f64 / APPEND_BYTES))
}

fn read_part(file: &SnapshotFile, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; PART_BYTES.min((file.bytes - offset) as usize)];
    let mut read = 0;
    while read < bytes.len() {
        match file.file.read_at(offset + read as u64, &mut bytes[read..])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => read += count,
        }
    }
    Ok(bytes)
}

fn unreachable(why: impl ToString) -> RPCError<Group> {
    RPCError::Unreachable(Unreachable::from_string(why))
}

impl RaftNetworkV2<Group> for Link {
    type SnapshotData = Arc<SnapshotFile>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Group>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Group>, RPCError<Group>> {
        if !self.silence.may_send() {
            return Err(unreachable("no answer for a while"));
        }
        let limit = append_timeout(&request).unwrap_or_else(|| option.soft_ttl());
        match self.call(Message::Append(request), limit).await? {
            Answer::Append(answer) => Ok(answer),
            _ => Err(unreachable("an answer of the wrong kind")),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Group>,
        option: RPCOption,
    ) -> Result<VoteResponse<Group>, RPCError<Group>> {
        match self.call(Message::Vote(request), option.soft_ttl()).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => Err(unreachable("an answer of the wrong kind")),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Group>,
        option: RPCOption,
    ) -> Result<VoteResponse<Group>, RPCError<Group>> {
        match self.call(Message::PreVote(request), option.soft_ttl()).await? {
            Answer::Vote(answer) => Ok(answer),
            _ => Err(unreachable("an answer of the wrong kind")),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: GroupSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Group>, StreamingError<Group>> {
        let send = self.send_snapshot(vote, snapshot.meta, snapshot.snapshot);
        tokio::select! {
            sent = send => Ok(SnapshotResponse::new(sent?)),
            closed = cancel => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Group>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Group>, RPCError<Group>> {
        match self.call(Message::Transfer(request), option.soft_ttl()).await? {
            Answer::Transfer(answer) => Ok(answer),
            _ => Err(unreachable("an answer of the wrong kind")),
        }
    }

    /// The backoff of openraft grows to one second, which is longer than an election.
    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(RETRY)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_link_without_answers_is_quiet_for_a_while_and_then_tried_again() {
        let silence = Silence::new(Duration::from_millis(800));
        let mut used = Vec::new();
        for tenth in 0..60 {
            if silence.may_send() {
                used.push(tenth);
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        // Used for 0.8 s, quiet for 1.6 s, used for 1.6 s, and so on.
        let expected: Vec<u32> = (0..8).chain(24..40).chain(56..60).collect();
        assert_eq!(used, expected);
        silence.end();
        assert!(silence.may_send());
    }
}
