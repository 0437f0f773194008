//! The network between the members of a group, as openraft uses it: messages with answers over any
//! [`Transport`].
//!
//! A link becomes quiet for a while when no answer arrives. Otherwise a leader whose messages
//! arrive, and which receives no answers, keeps its followers from electing another (ADR 0036). A
//! member whose disk is slow answers, before the entries are durable, that they have arrived.

use crate::{
    machine::{GroupSnapshot, SnapshotData},
    store::Store,
    types::{Entry, Group, SnapshotMeta, Vote},
};
use journal::SnapshotFile;
use openraft::{
    BasicNode, EntryPayload, OptionalSend,
    entry::RaftEntry,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

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
    /// To [`Message::Append`]; `None` if the entries have arrived and are not durable yet.
    Append(Option<AppendEntriesResponse<Group>>),
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
    store: Store,
    /// How long a link without answers is used.
    patience: Duration,
    silences: HashMap<u64, Arc<Silence>>,
}

/// A link to another member.
pub(crate) struct Link {
    transport: Arc<dyn Transport>,
    /// The log of this member.
    store: Store,
    to: u64,
    address: String,
    silence: Arc<Silence>,
}

/// Since when a member has not answered, although messages were sent. Heartbeats and other
/// messages to a member share it.
struct Silence {
    since: watch::Sender<Option<Instant>>,
    /// How long the link is used without an answer. Then it is quiet for twice as long, then used
    /// for twice as long, and so on.
    patience: Duration,
}

impl Silence {
    fn new(patience: Duration) -> Self {
        Self { since: watch::Sender::new(None), patience }
    }

    /// Returns how long the member has not answered after the time for which the link is used.
    fn over(&self) -> Option<Duration> {
        let now = Instant::now();
        self.since.send_if_modified(|since| {
            let is_new = since.is_none();
            since.get_or_insert(now);
            is_new
        });
        let since = self.since.borrow().unwrap_or(now);
        (now - since).checked_sub(self.patience)
    }

    /// Waits until a message may be sent.
    async fn wait_until_used(&self) {
        let Some(over) = self.over() else { return };
        let (over, interval) = (over.as_millis() as u64, (2 * self.patience).as_millis() as u64);
        if over / interval % 2 == 0 {
            sleep(Duration::from_millis(interval - over % interval)).await;
        }
    }

    /// Waits until the member answers another message, such as a heartbeat, with a limit.
    async fn wait_for_answer(&self) {
        if self.over().is_some() {
            let mut since = self.since.subscribe();
            // After this time an append is sent in any case.
            let _is_answered = timeout(2 * self.patience, since.wait_for(Option::is_none)).await.is_ok();
        }
    }

    fn end(&self) {
        self.since.send_if_modified(|since| since.take().is_some());
    }
}

impl Links {
    pub(crate) fn new(transport: Arc<dyn Transport>, store: Store, patience: Duration) -> Self {
        Self { transport, store, patience, silences: HashMap::new() }
    }
}

impl RaftNetworkFactory<Group> for Links {
    type Network = Link;

    async fn new_client(&mut self, to: u64, node: &BasicNode) -> Link {
        Link {
            transport: Arc::clone(&self.transport),
            store: self.store.clone(),
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
        // The other member would refuse it, again and again.
        let (executor, store, seq) = (self.store.log().executor(), self.store.clone(), file.seq);
        let checked = executor.spawn_blocking(move || store.log().check_snapshot(seq)).await;
        if checked.map_err(unreachable)?.map_err(unreachable)?.is_some() {
            return Err(unreachable("the snapshot is damaged"));
        }
        let mut offset = 0;
        loop {
            let message = if offset < file.bytes {
                let source = Arc::clone(&file);
                let read = executor.spawn_blocking(move || read_part(&source, offset)).await;
                let bytes = read.map_err(unreachable)?.map_err(unreachable)?;
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
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Group>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Group>, RPCError<Group>> {
        // openraft reads the entries before each attempt, so they are not tried again and again while
        // the member is silent.
        if !request.entries.is_empty() {
            self.silence.wait_for_answer().await;
        }
        self.silence.wait_until_used().await;
        let limit = append_timeout(&request).unwrap_or_else(|| option.soft_ttl());
        let (vote, committed) = (request.vote, request.leader_commit);
        let last = request.entries.last().map(RaftEntry::log_id).or(request.prev_log_id);
        let has_entries = !request.entries.is_empty();
        let mut answer = self.call(Message::Append(request), limit).await?;
        let mut is_first = true;
        loop {
            match answer {
                // It is about the entries, and not about the one before them.
                Answer::Append(Some(AppendEntriesResponse::Conflict)) if has_entries && !is_first => {
                    return Err(unreachable("the member does not have the entries any more"));
                }
                Answer::Append(Some(answer)) => return Ok(answer),
                Answer::Append(None) => {}
                _ => return Err(unreachable("an answer of the wrong kind")),
            }
            // The member has the entries, and its disk is slow. It is asked without them.
            let ask =
                AppendEntriesRequest { vote, prev_log_id: last, entries: vec![], leader_commit: committed };
            answer = self.call(Message::Append(ask), APPEND_TIMEOUT).await?;
            is_first = false;
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
        let file = match snapshot.snapshot {
            SnapshotData::Stored(file) => file,
            SnapshotData::Damaged => {
                return Err(unreachable("the snapshot was damaged, and a new one is being made").into());
            }
            SnapshotData::Received(_) => {
                return Err(unreachable("a received snapshot is sent after it is installed").into());
            }
        };
        let send = self.send_snapshot(vote, snapshot.meta, Arc::new(file));
        tokio::select! {
            biased;
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
    use crate::types::log_id;
    use journal::{crash::CrashDisk, disk::Disk};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// A member that does not answer. Counts the appends with entries, and those without.
    #[derive(Default)]
    struct Down {
        with_entries: AtomicUsize,
        heartbeats: AtomicUsize,
        is_up: AtomicBool,
    }

    impl Transport for Down {
        fn call<'a>(&'a self, _: u64, _: &'a str, message: Message, _: Duration) -> AnswerFuture<'a> {
            let Message::Append(request) = message else { panic!("only appends are sent") };
            let count = if request.entries.is_empty() { &self.heartbeats } else { &self.with_entries };
            count.fetch_add(1, Ordering::Relaxed);
            let answer = if self.is_up.load(Ordering::Relaxed) {
                Ok(Answer::Append(Some(AppendEntriesResponse::Success)))
            } else {
                Err("connection refused".to_owned())
            };
            Box::pin(std::future::ready(answer))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_is_down_gets_few_entries_and_those_at_once_when_it_is_up() {
        let down = Arc::new(Down::default());
        let disk: Arc<dyn Disk> = Arc::new(CrashDisk::new());
        let store = Store::open(&disk, 1).unwrap();
        let mut links = Links::new(down.clone(), store, Duration::from_millis(800));
        let node = BasicNode::new("m2:9400");
        let (mut heartbeats, mut appends) =
            (links.new_client(2, &node).await, links.new_client(2, &node).await);
        let request = |count: u64| AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: None,
            entries: (0..count).map(|index| Entry::new_blank(log_id(1, index))).collect(),
            leader_commit: None,
        };
        let option = || RPCOption::new(Duration::from_millis(150));
        tokio::spawn(async move {
            loop {
                let limit = Duration::from_millis(150);
                let _ = timeout(limit, heartbeats.append_entries(request(0), option())).await;
                sleep(limit).await;
            }
        });
        let replication = tokio::spawn(async move {
            while appends.append_entries(request(1), option()).await.is_err() {
                sleep(RETRY).await;
            }
        });
        sleep(Duration::from_mins(1)).await;
        let sent = down.with_entries.load(Ordering::Relaxed);
        // 20 times a second for 0.8 s, then at most once in 1.6 s.
        assert!((20..=60).contains(&sent), "{sent}");
        // Used for 0.8 s, quiet for 1.6 s, used for 1.6 s, and so on.
        let sent = down.heartbeats.load(Ordering::Relaxed);
        assert!((60..=240).contains(&sent), "{sent}");
        down.is_up.store(true, Ordering::Relaxed);
        timeout(Duration::from_secs(2), replication).await.expect("a heartbeat finds it").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_without_answers_is_quiet_for_a_while_and_then_tried_again() {
        let silence = Silence::new(Duration::from_millis(800));
        let mut used = Vec::new();
        for tenth in 0..60 {
            if timeout(Duration::ZERO, silence.wait_until_used()).await.is_ok() {
                used.push(tenth);
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        // Used for 0.8 s, quiet for 1.6 s, used for 1.6 s, and so on.
        let expected: Vec<u32> = (0..8).chain(24..40).chain(56..60).collect();
        assert_eq!(used, expected);
        silence.end();
        assert!(timeout(Duration::ZERO, silence.wait_until_used()).await.is_ok());
    }
}
