//! A member of a group of masters: a running Raft with its log, its state and its network.

use crate::{
    machine::{Machine, Replica},
    network::{Answer, Links, Message, SnapshotPart, Transport},
    proposals::{AppendError, NotCommitted, Proposals, Ticket},
    store::{Store, StoreError},
    types::{Group, SnapshotMeta, Vote},
};
use journal::{Log, LogError, LogFailed, SnapshotReceiver};
use openraft::{
    BasicNode, ChangeMembers, Config, Instant, LinearizerOption, Raft, ServerState, SnapshotPolicy,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, ForwardReason, LinearizableReadError, RaftError},
    impls::ProgressResponder,
    raft::{ClientWriteResponse, ReadPolicy},
    storage::Snapshot,
};
use std::{
    collections::BTreeSet,
    future::Future,
    ops::RangeInclusive,
    pin::Pin,
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Mutex,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

/// How long a leader waits before it repeats a proposal that was refused because it had not heard
/// from a quorum for a while.
const RETRY: Duration = Duration::from_millis(10);
/// How long a leader that is not confirmed waits before it asks again.
const CONFIRM_RETRY: Duration = Duration::from_millis(50);
/// A member may be asked to lead if it has answered within this time.
const TRANSFER_CONTACT: Duration = Duration::from_secs(1);
/// How long a leader waits for the installation of its snapshot, before it must ask again.
const INSTALL_WAIT: Duration = Duration::from_secs(1);
/// How long a read waits until a quorum confirms the leader.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(400);

/// Times of a group.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Interval between two heartbeats of the leader.
    pub heartbeat: Duration,
    /// A member begins an election when it has not heard from the leader for the upper limit and a
    /// random time in this range.
    pub election: RangeInclusive<Duration>,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(150),
            election: Duration::from_millis(400)..=Duration::from_millis(800),
        }
    }
}

/// Why a member cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The times do not fit together.
    #[error("times of the group: {0}")]
    Timing(String),
    /// The state cannot be restored from the newest snapshot.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// openraft refuses the log or the vote.
    #[error("the log of the group cannot be used: {0}")]
    Raft(String),
}

/// Why the members of a group were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Another member leads, or none.
    #[error("this master does not lead its group")]
    NotLeader,
    /// The change is not possible.
    #[error("{0}")]
    Refused(String),
    /// The member has failed, or is not started.
    #[error("{0}")]
    Failed(String),
}

impl From<RaftError<Group, ClientWriteError<Group>>> for ChangeError {
    fn from(error: RaftError<Group, ClientWriteError<Group>>) -> Self {
        match error {
            RaftError::APIError(
                ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
            ) => Self::NotLeader,
            RaftError::APIError(error) => Self::Refused(error.to_string()),
            RaftError::Fatal(fatal) => Self::Failed(fatal.to_string()),
        }
    }
}

/// What a member does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It leads the group.
    Leader,
    /// It follows a leader, or would if there were one.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It receives entries and does not vote.
    Learner,
    /// It is starting or stopping, or has failed.
    Down,
}

/// The view that a member has of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What this member does.
    pub role: Role,
    /// The newest term that it knows.
    pub term: u64,
    /// The leader that it knows.
    pub leader: Option<u64>,
    /// Number of entries in its log, including those that were purged.
    pub entries: u64,
    /// Number of entries that are applied.
    pub applied: u64,
    /// The members that it knows, in the order of their IDs.
    pub peers: Vec<Peer>,
}

/// A member, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// ID of the member.
    pub id: u64,
    /// Where other members reach it.
    pub address: String,
    /// Whether it votes.
    pub is_voter: bool,
    /// Number of entries that it is known to have. Only the leader knows.
    pub entries: Option<u64>,
    /// Time since it has answered a message. Only the leader knows, and not of itself.
    pub last_contact: Option<Duration>,
}

/// A member. Clones share it.
#[derive(Clone)]
pub struct Member(Arc<Shared>);

struct Shared {
    id: u64,
    store: Store,
    proposals: Arc<Proposals>,
    /// Set by [`Member::start`].
    raft: OnceLock<Raft<Group, Machine>>,
    /// The snapshot that is being received.
    incoming: Mutex<Option<Incoming>>,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

struct Incoming {
    vote: Vote,
    meta: SnapshotMeta,
    stage: Stage,
}

enum Stage {
    /// Parts are being received. The number is the offset of the next one.
    Parts(SnapshotReceiver, u64),
    Installing(JoinHandle<Result<Vote, String>>),
}

impl Member {
    /// Creates a member that does nothing until it is started: the state of a master needs it
    /// before.
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Shared {
            id: store.raft_state().node_id,
            store,
            proposals: Arc::default(),
            raft: OnceLock::new(),
            incoming: Mutex::default(),
            tasks: std::sync::Mutex::default(),
        }))
    }

    /// Starts the member with the state of its master. Other members reach it at `address`.
    ///
    /// This is not an `async fn`, so that openraft is compiled here and not again in each crate
    /// that calls it.
    pub fn start(
        &self,
        timing: &Timing,
        replica: Arc<dyn Replica>,
        address: &str,
        transport: Arc<dyn Transport>,
    ) -> Pin<Box<dyn Future<Output = Result<(), StartError>> + Send>> {
        let (member, config, address) = (self.clone(), config(timing), address.to_owned());
        let links = Links::new(transport, *timing.election.end());
        Box::pin(async move {
            let config = Arc::new(config?);
            let Shared { id, store, proposals, raft, tasks, .. } = &*member.0;
            let (opened, shared) = (store.clone(), Arc::clone(proposals));
            let machine =
                spawn_blocking(move || Machine::open_with_proposals(opened, replica, &address, shared));
            let machine = machine.await.map_err(|panic| StartError::Raft(panic.to_string()))??;
            let started = Raft::new(*id, config, links, store.clone(), machine.clone());
            let started = started.await.map_err(|error| StartError::Raft(error.to_string()))?;
            raft.set(started.clone()).map_err(|_| StartError::Raft("it is started already".into()))?;
            let spawned = [
                tokio::spawn(member.clone().follow_leadership(started.clone(), machine.clone())),
                tokio::spawn(member.clone().propose(started, machine)),
            ];
            tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(spawned);
            Ok(())
        })
    }

    /// Returns the ID of the member.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the journal.
    pub fn log(&self) -> &Log {
        self.0.store.log()
    }

    /// Returns openraft; `None` if the member is not started.
    pub fn raft(&self) -> Option<&Raft<Group, Machine>> {
        self.0.raft.get()
    }

    /// Returns the term in which this member leads; `None` if it does not.
    pub fn leading(&self) -> Option<u64> {
        self.0.proposals.leading()
    }

    /// Appends the records of an event, which the caller has applied to its state. They are
    /// committed together or not at all.
    pub fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Ticket, AppendError> {
        self.0.proposals.append(records)
    }

    /// Returns whether the records of an event with up to `bytes` bytes can be appended without
    /// exceeding the limit for what waits.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.0.proposals.has_room_for(bytes)
    }

    /// Returns the ticket of the newest event that this member has appended.
    pub fn newest(&self) -> Ticket {
        self.0.proposals.newest()
    }

    /// Waits until what `ticket` stands for, and all before it, is committed.
    pub async fn wait(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        self.0.proposals.wait(ticket).await
    }

    /// Waits until a value may be sent that was read when `ticket` was the newest: until a quorum has
    /// confirmed that this member was still the leader, and all before the ticket is committed.
    pub async fn confirm(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        let read_index = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(CONFIRM_TIMEOUT);
        let Some(raft) = self.raft() else { return Err(NotCommitted::NotLeader) };
        match raft.get_read_linearizer(read_index).await {
            // The master may not know yet that it has lost its leadership, and leads again since.
            Ok(confirmed)
                if self.0.proposals.leads_in(confirmed.read_log_id().log_id().leader_id.term, ticket) =>
            {
                self.wait(ticket).await
            }
            Ok(_) => Err(NotCommitted::NotLeader),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(NotCommitted::NoQuorum)
            }
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => {
                Err(NotCommitted::NotLeader)
            }
            Err(RaftError::Fatal(fatal)) => {
                Err(NotCommitted::Failed(LogFailed { reason: fatal.to_string().into() }))
            }
        }
    }

    /// Returns the view that this member has of its group.
    pub fn status(&self) -> Status {
        let down = Status { role: Role::Down, term: 0, leader: None, entries: 0, applied: 0, peers: vec![] };
        let Some(raft) = self.raft() else { return down };
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let role = match metrics.state {
            ServerState::Leader => Role::Leader,
            ServerState::Follower => Role::Follower,
            ServerState::Candidate => Role::Candidate,
            ServerState::Learner => Role::Learner,
            ServerState::Shutdown => Role::Down,
        };
        let count = |index: Option<u64>| index.map_or(0, |index| index + 1);
        let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        let peer = |(id, node): (&u64, &BasicNode)| Peer {
            id: *id,
            address: node.addr.clone(),
            is_voter: voters.contains(id),
            entries: metrics
                .replication
                .as_ref()
                .map(|all| count(all.get(id).copied().flatten().map(|last| last.index))),
            last_contact: metrics
                .heartbeat
                .as_ref()
                .and_then(|all| all.get(id).copied().flatten())
                .map(|at| at.elapsed()),
        };
        Status {
            role,
            term: metrics.current_term,
            leader: metrics.current_leader,
            entries: count(metrics.last_log_index),
            applied: count(metrics.last_applied.map(|last| last.index)),
            peers: metrics.membership_config.nodes().map(peer).collect(),
        }
    }

    /// Makes a snapshot of all applied entries, and removes entries that it includes. Does not wait.
    pub async fn make_snapshot(&self) -> Result<(), ChangeError> {
        if self.status().applied == 0 {
            return Err(ChangeError::Refused("nothing is applied yet".into()));
        }
        self.running()?.trigger().snapshot().await.map_err(|fatal| ChangeError::Failed(fatal.to_string()))
    }

    /// Adds a member, which is started with an empty log. Returns when it has caught up and votes.
    /// Only the leader can do this.
    pub async fn add(&self, id: u64, address: &str) -> Result<(), ChangeError> {
        let raft = self.running()?;
        raft.add_learner(id, BasicNode::new(address), true).await?;
        raft.change_membership(ChangeMembers::AddVoterIds([id].into()), false).await?;
        Ok(())
    }

    /// Removes a member, which may be down. Only the leader can do this.
    pub async fn remove(&self, id: u64) -> Result<(), ChangeError> {
        let raft = self.running()?;
        raft.change_membership(ChangeMembers::RemoveVoters([id].into()), false).await?;
        Ok(())
    }

    /// Asks member `to` to lead. Only the leader can do this. Does not wait for the election.
    ///
    /// From then on the leader accepts nothing, and does not take that back. So the member must be
    /// another voter that answers.
    pub async fn transfer(&self, to: u64) -> Result<(), ChangeError> {
        let Status { role, peers, .. } = self.status();
        if role != Role::Leader {
            return Err(ChangeError::NotLeader);
        }
        let peer = peers.iter().find(|peer| peer.id == to && peer.is_voter && to != self.id());
        let last_contact = peer.and_then(|peer| peer.last_contact);
        if last_contact.is_none_or(|last_contact| last_contact > TRANSFER_CONTACT) {
            let why = format!("member {to} is not another voting member that has answered just now");
            return Err(ChangeError::Refused(why));
        }
        let transfer = self.running()?.trigger().transfer_leader(to).await;
        transfer.map_err(|fatal| ChangeError::Failed(fatal.to_string()))
    }

    fn running(&self) -> Result<&Raft<Group, Machine>, ChangeError> {
        self.raft().ok_or_else(|| ChangeError::Failed("it is starting".into()))
    }

    /// Waits until the member has failed, and returns the reason.
    pub async fn failed(&self) -> LogFailed {
        self.0.proposals.failed().await
    }

    /// Returns an error if the member has failed.
    pub fn check(&self) -> Result<(), LogFailed> {
        self.0.proposals.check()
    }

    /// Stops the member. It does not answer any more.
    pub async fn stop(&self) {
        if let Some(raft) = self.raft() {
            // It ends with an error if it has failed before, which is known.
            let _failed = raft.shutdown().await;
        }
        for task in self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
        self.0.proposals.fail("this master has left its group, because it stops");
    }

    /// Handles a message of another member.
    pub async fn handle(&self, message: Message) -> Result<Answer, String> {
        let raft = self.raft().ok_or("this master is starting")?;
        Ok(match message {
            Message::Append(request) => Answer::Append(raft.append_entries(request).await.map_err(text)?),
            Message::Vote(request) => Answer::Vote(raft.vote(request).await.map_err(text)?),
            Message::PreVote(request) => Answer::Vote(raft.pre_vote(request).await.map_err(text)?),
            Message::Transfer(request) => {
                Answer::Transfer(raft.handle_transfer_leader(request).await.map_err(text)?)
            }
            Message::Part(part) => {
                // The sender may give up: the part is written nevertheless, before the next one.
                let member = self.clone();
                let received = tokio::spawn(async move { member.receive(part).await });
                Answer::Snapshot(received.await.map_err(text)??)
            }
            Message::Install(vote, meta) => Answer::Snapshot(self.install(raft, vote, meta).await?),
        })
    }

    /// Receives a part of a snapshot. Returns the newest vote that is known if it is newer.
    async fn receive(&self, part: SnapshotPart) -> Result<Option<Vote>, String> {
        let newest = self.0.store.raft_state().vote;
        if newest.is_some_and(|newest| newest > part.vote) {
            return Ok(newest);
        }
        let SnapshotPart { vote, meta, offset, bytes } = part;
        let mut incoming = self.0.incoming.lock().await;
        let is_installing =
            |current: &Incoming| matches!(&current.stage, Stage::Installing(task) if !task.is_finished());
        if incoming.as_ref().is_some_and(is_installing) {
            return Err("a snapshot is being installed".into());
        }
        let current = incoming.take();
        let receiver = if offset == 0 {
            // The leader has begun again, or has changed. The file is removed before it is created.
            drop(current);
            let last = meta.last_log_id.ok_or("a snapshot of nothing")?;
            self.log().receive_snapshot(last.index + 1).map_err(text)?
        } else {
            match current.filter(|current| (current.vote, &current.meta) == (vote, &meta)) {
                Some(Incoming { stage: Stage::Parts(receiver, next), .. }) if next == offset => receiver,
                _ => return Err("a part of a snapshot without the one before it".into()),
            }
        };
        let next = offset + bytes.len() as u64;
        let receiver = run_blocking(receiver, move |receiver| receiver.write(&bytes)).await?;
        *incoming = Some(Incoming { vote, meta, stage: Stage::Parts(receiver, next) });
        Ok(None)
    }

    /// Installs the snapshot that was received. Returns the newest vote that is known when that is
    /// done; `None` if it takes longer, and must be asked for again.
    async fn install(
        &self,
        raft: &Raft<Group, Machine>,
        vote: Vote,
        meta: SnapshotMeta,
    ) -> Result<Option<Vote>, String> {
        let mut incoming = self.0.incoming.lock().await;
        let is_other = |current: &Incoming| (current.vote, &current.meta) != (vote, &meta);
        if incoming.as_ref().is_none_or(is_other) {
            return Err("the snapshot was not received".into());
        }
        let stage = incoming.take().map(|current| current.stage);
        let task = match stage {
            Some(Stage::Parts(receiver, _)) => {
                let (raft, meta) = (raft.clone(), meta.clone());
                tokio::spawn(async move {
                    let file = spawn_blocking(move || receiver.finish()).await.map_err(text)?;
                    let snapshot = Snapshot { meta, snapshot: Arc::new(file.map_err(text)?) };
                    let installed = raft.install_full_snapshot(vote, snapshot).await;
                    Ok(installed.map_err(text)?.vote)
                })
            }
            Some(Stage::Installing(task)) => task,
            None => return Err("the snapshot was not received".into()),
        };
        // It stays here while this waits, which may be cancelled.
        let current = incoming.insert(Incoming { vote, meta, stage: Stage::Installing(task) });
        let Stage::Installing(task) = &mut current.stage else { return Ok(None) };
        let Ok(installed) = timeout(INSTALL_WAIT, task).await else { return Ok(None) };
        *incoming = None;
        installed.map_err(text)?.map(Some)
    }

    /// Lets the master lead when openraft has elected this member, and follow when it leads no
    /// more. Returns when openraft has ended.
    async fn follow_leadership(self, raft: Raft<Group, Machine>, machine: Machine) {
        let mut metrics = raft.metrics();
        let proposals = &self.0.proposals;
        loop {
            let (running, elected) = {
                let metrics = metrics.borrow_watched();
                let elected = (metrics.state == ServerState::Leader).then_some(metrics.current_term);
                (metrics.running_state.clone(), elected)
            };
            if let Err(fatal) = running {
                return proposals.fail(&format!("this master has left its group: {fatal}"));
            }
            match (proposals.leading(), elected) {
                (Some(term), elected) if elected != Some(term) => {
                    if let Err(error) = machine.end_leading(term).await {
                        return proposals.fail(&error.to_string());
                    }
                    continue;
                }
                (None, Some(term)) => {
                    if raft.ensure_linearizable(ReadPolicy::ReadIndex).await.is_err()
                        || !machine.begin_leading(term).await
                    {
                        sleep(CONFIRM_RETRY).await;
                    }
                    // It may have changed meanwhile.
                    continue;
                }
                _ => {}
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() {
                    return proposals.fail("this master has left its group");
                },
                () = proposals.ended.notified() => {}
            }
        }
    }

    /// Sends the proposals of this member, one after the other. Returns when openraft has ended.
    async fn propose(self, raft: Raft<Group, Machine>, machine: Machine) {
        let proposals = &self.0.proposals;
        loop {
            let (term, proposal) = proposals.next().await;
            loop {
                type Outcome = Result<ClientWriteResponse<Group>, ClientWriteError<Group>>;
                let (responder, answer) = ProgressResponder::<Group, Outcome>::complete_only();
                let leader = openraft::alias::CommittedLeaderIdOf::<Group>::from(term);
                let sent = raft.write(proposal.clone()).with_leader(leader).responder(responder).await;
                if let Err(fatal) = sent {
                    return proposals.fail(&format!("this master has left its group: {fatal}"));
                }
                match answer.await {
                    Ok(Ok(_)) => break,
                    // It was not appended.
                    Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
                        if forward.reason == ForwardReason::LeaseExpired && proposals.leading() == Some(term)
                        {
                            sleep(RETRY).await;
                            continue;
                        }
                        proposals.refused(term);
                    }
                    // It may be committed later.
                    Ok(Err(_)) => {}
                    Err(_) => return proposals.fail("this master has left its group"),
                }
                if let Err(error) = machine.end_leading(term).await {
                    return proposals.fail(&error.to_string());
                }
                break;
            }
        }
    }
}

/// Runs `work`, which waits for the disk, with a value, and returns the value.
async fn run_blocking<T: Send + 'static>(
    mut value: T,
    work: impl FnOnce(&mut T) -> Result<(), LogError> + Send + 'static,
) -> Result<T, String> {
    let done = spawn_blocking(move || work(&mut value).map(|()| value));
    done.await.map_err(text)?.map_err(text)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn config(timing: &Timing) -> Result<Config, StartError> {
    let ms = |time: &Duration| time.as_millis() as u64;
    let config = Config {
        cluster_name: "fermata".into(),
        heartbeat_interval: ms(&timing.heartbeat),
        election_timeout_min: ms(timing.election.start()),
        election_timeout_max: ms(timing.election.end()),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        // A new member becomes a voter when it lacks at most so many entries.
        replication_lag_threshold: 100,
        enable_pre_vote: Some(true),
        // A restarted leader would lead again in its old term, with entries that are not applied.
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(2 * ms(timing.election.end())),
        ..Config::default()
    };
    config.validate().map_err(|error| StartError::Timing(error.to_string()))
}
