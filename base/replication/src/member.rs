//! A member of a group of masters: a running Raft with its log, its state and its network.

use crate::{
    error::{StateError, StoreError},
    machine::{Machine, ReplicatedState, SnapshotData},
    network::{Answer, Links, Message, SnapshotPart, Transport},
    proposals::{AppendError, NotCommitted, Outcome, Proposals, Ticket},
    replay::Replay,
    store::Store,
    types::{Group, SnapshotMeta, Vote},
};
use journal::{
    Log, LogError, LogFailed, SnapshotReceiver, SnapshotWriter,
    bugs::{self, Bug},
    executor::Executor,
};
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
    runtime::Handle,
    sync::Mutex,
    task::JoinHandle,
    time::{sleep, timeout},
};
pub use types::group::{GroupMember as Peer, MemberRole as Role, MemberStatus as Status};

/// How long a leader that is not confirmed waits before it asks again.
const CONFIRM_RETRY: Duration = Duration::from_millis(50);
/// A member may be asked to lead if it has answered within this time.
const TRANSFER_CONTACT: Duration = Duration::from_secs(1);
/// How long a leader waits until its proposals are committed, and again until another member leads.
const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(1500);
/// A member that is being added may be silent for so many of the longest elections.
const ADD_SILENCE: u32 = 50;
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
    /// The group reaches this member at another address.
    #[error(
        "member {member} of the group is at {stored}, and this one would be at {address}: set advertise, or listen, to \
         {stored}"
    )]
    OtherAddress {
        /// ID of this member.
        member: u64,
        /// The address that all members have stored.
        stored: String,
        /// The address according to the settings.
        address: String,
    },
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

/// A member. Clones share it.
#[derive(Clone)]
pub struct Member(Arc<Shared>);

struct Shared {
    id: u64,
    store: Store,
    proposals: Arc<Proposals>,
    /// Set by [`Member::start`].
    running: OnceLock<Running>,
    /// The snapshot that is being received.
    incoming: Mutex<Option<Incoming>>,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

struct Running {
    raft: Raft<Group, Machine>,
    machine: Machine,
    runtime: Handle,
    /// The longest time before an election.
    election: Duration,
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
            running: OnceLock::new(),
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
        state: Arc<dyn ReplicatedState>,
        address: &str,
        transport: Arc<dyn Transport>,
    ) -> Pin<Box<dyn Future<Output = Result<(), StartError>> + Send>> {
        let (member, config, address) = (self.clone(), config(timing), address.to_owned());
        let election = *timing.election.end();
        let executor = self.executor();
        let links = Links::new(transport, self.0.store.clone(), election);
        Box::pin(async move {
            let config = Arc::new(config?);
            let Shared { id, store, proposals, running, tasks, .. } = &*member.0;
            let (opened, shared) = (store.clone(), Arc::clone(proposals));
            let own = address.clone();
            let machine =
                executor.spawn_blocking(move || Machine::open_with_proposals(opened, state, &own, shared));
            let machine = machine.await.map_err(|panic| StartError::Raft(panic.to_string()))??;
            let raft = Raft::new(*id, config, links, store.clone(), machine.clone());
            let raft = raft.await.map_err(|error| StartError::Raft(error.to_string()))?;
            if let Some(stored) = stored_address(&raft, *id).await.filter(|stored| *stored != address) {
                // It ends with an error if it has failed already.
                let _failed = raft.shutdown().await;
                return Err(StartError::OtherAddress { member: *id, stored, address });
            }
            let started = Running {
                raft: raft.clone(),
                machine: machine.clone(),
                runtime: Handle::current(),
                election,
            };
            running.set(started).map_err(|_| StartError::Raft("it is started already".into()))?;
            let spawned = [
                tokio::spawn(member.clone().follow_leadership(raft.clone(), machine.clone())),
                tokio::spawn(member.clone().propose(raft, machine)),
            ];
            tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(spawned);
            Ok(())
        })
    }

    /// Returns the ID of the member.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the log. Only openraft may change it.
    pub(crate) fn log(&self) -> &Log {
        self.0.store.log()
    }

    fn executor(&self) -> Executor {
        self.0.store.log().executor()
    }

    fn raft(&self) -> Option<&Raft<Group, Machine>> {
        self.0.running.get().map(|running| &running.raft)
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

    /// Returns whether the state of the master contains nothing that may never be committed. Only
    /// for a master that does not lead: after its leadership, what was not committed stays in its
    /// state until that is replaced.
    pub fn is_committed(&self) -> bool {
        self.0.proposals.is_committed()
    }

    /// Waits until what `ticket` stands for, and all before it, is committed.
    pub async fn wait(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        self.0.proposals.wait(ticket).await
    }

    /// Waits until a value may be sent that was read when `ticket` was the newest: until a quorum has
    /// confirmed that this member was still the leader, and all before the ticket is committed.
    pub async fn confirm(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        if bugs::has(Bug::ReadNotConfirmed) {
            return Ok(());
        }
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

    /// Returns the address of another member that leads, if this one knows it.
    pub fn other_leader(&self) -> Option<String> {
        let status = self.status();
        // This one may have been elected and not lead yet.
        let other = status.leader.filter(|id| *id != self.id());
        status.peers.into_iter().find(|peer| Some(peer.id) == other).map(|peer| peer.address)
    }

    /// Makes a snapshot of all entries that are applied, unless there is one, and removes the entries
    /// that it includes. `write` writes the records of the state to which the replay leads. Does
    /// nothing before the member is started. Blocks.
    pub fn make_snapshot(
        &self,
        write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<(), StoreError> {
        let Some(Running { raft, machine, runtime, .. }) = self.0.running.get() else { return Ok(()) };
        let made = machine.make_snapshot(write);
        if let Err(StoreError::Log(error)) = &made
            && error.is_damage()
            && self.status().peers.iter().any(|peer| peer.is_voter && peer.id != self.id())
        {
            // Others have all entries, and this one could not help a member that is behind.
            self.0.proposals.fail(&format!("the log on the disk of this master is damaged: {error}"));
        }
        made?;
        let raft = raft.clone();
        runtime.spawn(async move {
            // An error means that the member has failed, which is known.
            let _failed = raft.trigger().snapshot().await;
        });
        Ok(())
    }

    /// Adds a member, which is started with an empty log. Returns when it has caught up and votes.
    /// If it is silent for long before that, it is removed again. Only the leader can do this.
    pub async fn add(&self, id: u64, address: &str) -> Result<(), ChangeError> {
        self.add_in_place_of(&[], id, address).await
    }

    /// Like [`Self::add`], and removes `others` in the same step: members that have lost their log, and
    /// never vote again.
    pub async fn add_in_place_of(&self, others: &[u64], id: u64, address: &str) -> Result<(), ChangeError> {
        let is_left = || self.status().peers.iter().any(|peer| others.contains(&peer.id));
        if self.peer(id).is_some_and(|peer| peer.is_voter) && !is_left() {
            return Ok(());
        }
        let raft = self.running()?;
        let add = async {
            if self.peer(id).is_none_or(|peer| !peer.is_voter) {
                raft.add_learner(id, BasicNode::new(address), true).await?;
            }
            // If the log is short, openraft does not wait for a member that has never answered.
            while self.peer(id).and_then(|peer| peer.entries).is_none_or(|entries| entries == 0) {
                sleep(CONFIRM_RETRY).await;
            }
            // Those that an unfinished change leads to.
            let voters = raft
                .metrics()
                .borrow_watched()
                .membership_config
                .membership()
                .get_joint_config()
                .last()
                .cloned();
            let voters = voters.into_iter().flatten().filter(|voter| !others.contains(voter));
            let voters = voters.chain([id]).collect();
            raft.change_membership(ChangeMembers::ReplaceAllVoters(voters), false).await?;
            // Those that did not vote.
            let left: BTreeSet<u64> = self.status().peers.iter().map(|peer| peer.id).collect();
            let left: BTreeSet<u64> = left.into_iter().filter(|peer| others.contains(peer)).collect();
            if !left.is_empty() {
                raft.change_membership(ChangeMembers::RemoveNodes(left), false).await?;
            }
            Ok::<_, ChangeError>(())
        };
        tokio::select! {
            biased;
            added = add => added,
            limit = self.is_silent(id) => {
                let no_quorum = || ChangeError::Refused(format!("member {id} does not answer, and there is no quorum"));
                timeout(limit, self.remove(id)).await.unwrap_or_else(|_| Err(no_quorum()))?;
                let why = format!(
                    "member {id} at {address} has not answered for {limit:?}, so it was not added: check that it runs \
                     and can be reached"
                );
                Err(ChangeError::Refused(why))
            }
        }
    }

    /// Waits until a member has not answered for long. Returns how long.
    async fn is_silent(&self, id: u64) -> Duration {
        let limit = ADD_SILENCE * self.0.running.get().map_or(Duration::ZERO, |running| running.election);
        let begin = tokio::time::Instant::now();
        loop {
            sleep(limit / 10).await;
            let last_contact = self.peer(id).and_then(|peer| peer.last_contact);
            if last_contact.unwrap_or(begin.elapsed()) > limit {
                return limit;
            }
        }
    }

    fn peer(&self, id: u64) -> Option<Peer> {
        self.status().peers.into_iter().find(|peer| peer.id == id)
    }

    /// Removes a member, which may be down, and may not vote yet. Only the leader can do this.
    pub async fn remove(&self, id: u64) -> Result<(), ChangeError> {
        let is_voter = self.peer(id).is_some_and(|peer| peer.is_voter);
        let change = if is_voter { ChangeMembers::RemoveVoters } else { ChangeMembers::RemoveNodes };
        self.running()?.change_membership(change([id].into()), false).await?;
        Ok(())
    }

    /// Lets [`Self::has_room_for`] return false until this member leads again, or until
    /// [`Self::hand_over`] has failed. The caller has the lock of the master: after this, nothing is
    /// appended.
    pub fn pause(&self) {
        self.0.proposals.pause(true);
    }

    /// Returns whether the master must append nothing, because another one is to lead.
    pub fn is_paused(&self) -> bool {
        self.0.proposals.is_paused()
    }

    /// Waits until everything is committed, and then lets another member lead: `to`, or the one that
    /// lacks least of those that answer. Returns the new leader. Only the leader can do this, after
    /// [`Self::pause`]: otherwise what is appended meanwhile may be lost with its leadership.
    pub async fn hand_over(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        let ready = async {
            let to = self.successor(to)?;
            match timeout(HAND_OVER_TIMEOUT, self.wait(self.newest())).await {
                Ok(Ok(())) => self.transfer(to).await.map(|()| to),
                Ok(Err(NotCommitted::Failed(failed))) => Err(ChangeError::Failed(failed.to_string())),
                Ok(Err(_)) => Err(ChangeError::NotLeader),
                Err(_) => {
                    Err(ChangeError::Refused("the last changes are not committed: there is no quorum".into()))
                }
            }
        };
        let to = ready.await.inspect_err(|_| self.0.proposals.pause(false))?;
        let mut metrics = self.running()?.metrics();
        let other = async {
            loop {
                let leader = metrics.borrow_watched().current_leader;
                if let Some(leader) = leader.filter(|leader| *leader != self.id()) {
                    return Some(leader);
                }
                metrics.changed().await.ok()?;
            }
        };
        let why = || ChangeError::Refused(format!("member {to} was asked to lead, and has not begun yet"));
        timeout(HAND_OVER_TIMEOUT, other).await.ok().flatten().ok_or_else(why)
    }

    /// Returns whether this member leads. If it was elected just now, waits until it does.
    pub async fn is_or_becomes_leader(&self) -> bool {
        let begun = async {
            while self.leading().is_none() && self.status().role == Role::Leader {
                sleep(CONFIRM_RETRY).await;
            }
        };
        timeout(HAND_OVER_TIMEOUT, begun).await.is_ok() && self.leading().is_some()
    }

    /// Returns the member that is to lead next.
    fn successor(&self, to: Option<u64>) -> Result<u64, ChangeError> {
        if self.leading().is_none() {
            return Err(ChangeError::NotLeader);
        }
        let answers = |peer: &Peer| {
            let is_recent = peer.last_contact.is_some_and(|contact| contact < TRANSFER_CONTACT);
            peer.is_voter && peer.id != self.id() && is_recent
        };
        let others = self.status().peers.into_iter().filter(answers);
        let best = others.max_by_key(|peer| (peer.entries, std::cmp::Reverse(peer.last_contact)));
        let none = || ChangeError::Refused("no other member that votes has answered just now".into());
        to.map_or_else(|| best.map(|peer| peer.id).ok_or_else(none), Ok)
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

    /// Refuses everything that is appended from now on.
    pub(crate) fn refuse_appends(&self) {
        self.0.proposals.fail("this master has left its group, because it stops");
    }

    /// Stops the member, and closes its log. It does not answer any more.
    pub async fn stop(&self) -> Result<(), LogFailed> {
        self.refuse_appends();
        if let Some(raft) = self.raft() {
            // It ends with an error if it has failed before, which is known.
            let _failed = raft.shutdown().await;
        }
        for task in self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
        let store = self.0.store.clone();
        let closed = self.executor().spawn_blocking(move || store.close()).await;
        closed.unwrap_or_else(|panic| Err(LogFailed { reason: panic.to_string().into() }))
    }

    /// Handles a message of another member.
    pub async fn handle(&self, message: Message) -> Result<Answer, String> {
        let raft = self.raft().ok_or("this master is starting")?;
        Ok(match message {
            Message::Append(request) => {
                self.drop_incoming_before(request.vote);
                // Without an answer for long, the leader would take the link for broken.
                let limit = self.0.running.get().map_or(Duration::ZERO, |running| running.election / 2);
                let answer = timeout(limit, raft.append_entries(request)).await;
                Answer::Append(answer.ok().transpose().map_err(text)?)
            }
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

    /// Drops the snapshot that an earlier leader has not sent completely: its file needs space.
    fn drop_incoming_before(&self, vote: Vote) {
        let Ok(mut incoming) = self.0.incoming.try_lock() else { return };
        let is_dropped =
            |current: &mut Incoming| current.vote < vote && matches!(current.stage, Stage::Parts(..));
        if let Some(dropped) = incoming.take_if(is_dropped) {
            self.executor().spawn_blocking(move || drop(dropped));
        }
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
            self.0.store.receive_snapshot(last).map_err(text)?
        } else {
            match current.filter(|current| (current.vote, &current.meta) == (vote, &meta)) {
                Some(Incoming { stage: Stage::Parts(receiver, next), .. }) if next == offset => receiver,
                _ => return Err("a part of a snapshot without the one before it".into()),
            }
        };
        let next = offset + bytes.len() as u64;
        let receiver =
            run_blocking(self.executor(), receiver, move |receiver| receiver.write(&bytes)).await?;
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
                let (raft, meta, executor) = (raft.clone(), meta.clone(), self.executor());
                tokio::spawn(async move {
                    let receiver = run_blocking(executor, receiver, SnapshotReceiver::verify).await?;
                    let snapshot = Snapshot { meta, snapshot: SnapshotData::Received(receiver) };
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
                    let confirmed = bugs::has(Bug::LeadsEarly)
                        || raft.ensure_linearizable(ReadPolicy::ReadIndex).await.is_ok();
                    match if confirmed { machine.begin_leading(term).await } else { Ok(false) } {
                        Ok(true) => {}
                        Ok(false) => sleep(CONFIRM_RETRY).await,
                        Err(error) => return proposals.fail(&error.to_string()),
                    }
                    // It may have changed meanwhile.
                    continue;
                }
                _ => {}
            }
            tokio::select! {
                biased;
                changed = metrics.changed() => if changed.is_err() {
                    return proposals.fail("this master has left its group");
                },
                () = proposals.ended.notified() => {}
            }
        }
    }

    /// Sends the proposals of this member to openraft. Returns when openraft has ended.
    async fn propose(self, raft: Raft<Group, Machine>, machine: Machine) {
        let send = |term: u64, proposal| {
            let raft = raft.clone();
            async move {
                type Answer = Result<ClientWriteResponse<Group>, ClientWriteError<Group>>;
                let (responder, answer) = ProgressResponder::<Group, Answer>::complete_only();
                let leader = openraft::alias::CommittedLeaderIdOf::<Group>::from(term);
                raft.write(proposal).with_leader(leader).responder(responder).await.map_err(text)?;
                Ok(match answer.await.map_err(|_| "openraft has ended")? {
                    Ok(_) => Outcome::Committed,
                    Err(ClientWriteError::ForwardToLeader(forward)) => match forward.reason {
                        ForwardReason::LeaseExpired => Outcome::NotNow,
                        _ => Outcome::Refused,
                    },
                    Err(_) => Outcome::Unknown,
                })
            }
        };
        let Err(why) = machine.propose(send).await;
        self.0.proposals.fail(&format!("this master has left its group: {why}"));
    }
}

/// Returns the address at which the group reaches a member; `None` if it has not been added yet.
async fn stored_address(raft: &Raft<Group, Machine>, id: u64) -> Option<String> {
    let address = raft.with_raft_state(move |state| {
        state.membership_state.effective().get_node(&id).map(|node| node.addr.clone())
    });
    // A member that has failed says so elsewhere.
    address.await.ok().flatten()
}

/// Runs `work`, which waits for the disk, with a value, and returns the value.
async fn run_blocking<T: Send + 'static>(
    executor: Executor,
    mut value: T,
    work: impl FnOnce(&mut T) -> Result<(), LogError> + Send + 'static,
) -> Result<T, String> {
    let done = executor.spawn_blocking(move || work(&mut value).map(|()| value));
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
