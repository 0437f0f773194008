//! The state machine of openraft: passes committed records to the master, and moves snapshots.
//!
//! A leader has applied its own records when it proposed them, so they are not applied again. When
//! a leadership ends with records that are not committed, the state contains what may never be
//! committed; then it is replaced by that of the applied entries.
//!
//! The state of a master is in memory. A snapshot is not made of it, but of the previous snapshot
//! and the entries after it (ADR 0007), so it never contains what is not committed. Its first
//! record is its position in the log and the members at that position.

use crate::{
    codec::LogPosition,
    proposals::Proposals,
    replay::Replay,
    store::{Store, StoreError},
    types::{Group, LogId, Membership, Proposal, SnapshotMeta, StoredMembership, log_id},
};
use journal::{Content, Seq, SnapshotFile, SnapshotWriter};
use openraft::{
    BasicNode, EntryPayload, OptionalSend, RaftSnapshotBuilder,
    alias::SnapshotOf,
    entry::RaftEntry,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::task::spawn_blocking;
use tokio_stream::{Stream, StreamExt};

/// Why a master could not use a record.
pub type ReplicaError = Box<dyn std::error::Error + Send + Sync>;

/// The state of a master, as a state machine of committed records.
pub trait Replica: Send + Sync + 'static {
    /// Applies the records of a committed entry of another leader.
    fn apply(&self, id: LogId, proposal: &Proposal) -> Result<(), ReplicaError>;

    /// Replaces the state by the one that `replay` leads to. Blocks.
    fn restore(&self, replay: Replay) -> Result<(), ReplicaError>;

    /// This member leads in `term` from now on. All entries of earlier terms are applied.
    fn lead(&self, term: u64);

    /// This member does not lead any more. When this function has returned, nothing is appended
    /// until [`Self::lead`] is called again. [`Self::restore`] may follow.
    fn follow(&self);

    /// Writes the records of a snapshot of the state that `replay` leads to. Blocks.
    fn write_snapshot(&self, replay: Replay, snapshot: &mut SnapshotWriter) -> Result<(), ReplicaError>;
}

/// The state machine. Clones share it.
#[derive(Clone)]
pub struct Machine(Arc<Shared>);

struct Shared {
    store: Store,
    replica: Arc<dyn Replica>,
    proposals: Arc<Proposals>,
    applied: Mutex<LogPosition>,
    /// Held while an entry is applied, and while a leadership begins or ends.
    turn: tokio::sync::Mutex<()>,
}

impl Machine {
    /// Opens the state machine of the member at `address`, and restores the newest snapshot of
    /// `store`. Blocks.
    pub fn open(store: Store, replica: Arc<dyn Replica>, address: &str) -> Result<Self, StoreError> {
        Self::open_with_proposals(store, replica, address, Arc::default())
    }

    /// Like [`Self::open`], with the proposals that the master makes while it leads.
    pub(crate) fn open_with_proposals(
        store: Store,
        replica: Arc<dyn Replica>,
        address: &str,
        proposals: Arc<Proposals>,
    ) -> Result<Self, StoreError> {
        let machine = Self(Arc::new(Shared {
            store,
            replica,
            proposals,
            applied: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }));
        machine.convert_newest(address)?;
        machine.restore_newest()?;
        Ok(machine)
    }

    /// If one master has written the newest snapshot, replaces it by one of a group whose only
    /// member is this one.
    fn convert_newest(&self, address: &str) -> Result<(), StoreError> {
        let log = self.0.store.log();
        let Some(newest) = log.newest_snapshot()? else { return Ok(()) };
        let replay = log.replay_snapshot(newest.seq)?;
        if replay.snapshot_content() != Some(Content::Records) {
            return Ok(());
        }
        let last = Some(log_id(0, newest.seq - 1));
        let id = self.0.store.raft_state().node_id;
        let only = Membership::new(vec![[id].into()], BTreeMap::from([(id, BasicNode::new(address))]));
        let only = only.map_err(|error| StoreError::Replica(error.into()))?;
        let position = LogPosition { last, membership: StoredMembership::new(last, only) };
        self.write_snapshot(newest.seq, &position, Replay::new(replay))
    }

    fn write_snapshot(&self, seq: Seq, position: &LogPosition, replay: Replay) -> Result<(), StoreError> {
        let mut writer = self.0.store.log().snapshot_writer(seq)?;
        writer.push(&position.encode())?;
        self.0.replica.write_snapshot(replay, &mut writer).map_err(StoreError::Replica)?;
        writer.finish()?;
        Ok(())
    }

    /// Restores the newest snapshot, if there is one.
    fn restore_newest(&self) -> Result<(), StoreError> {
        let Some(newest) = self.0.store.log().newest_snapshot()? else { return Ok(()) };
        let mut replay = Replay::new(self.0.store.log().replay_snapshot(newest.seq)?);
        let position = replay.position()?;
        self.0.replica.restore(replay).map_err(StoreError::Replica)?;
        *self.applied() = position;
        Ok(())
    }

    fn applied(&self) -> MutexGuard<'_, LogPosition> {
        self.0.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to lead, unless an entry of a later term is applied. Returns whether this member
    /// leads.
    pub(crate) async fn begin_leading(&self, term: u64) -> bool {
        let _turn = self.0.turn.lock().await;
        // The leader has applied the first entry of its term.
        let newest = self.applied().last.map(|last| last.leader_id.term);
        let leads = newest == Some(term) && self.0.proposals.begin(term);
        if leads {
            self.0.replica.lead(term);
        }
        leads
    }

    /// Ends the leadership of this term, if it has not ended.
    pub(crate) async fn end_leading(&self, term: u64) -> io::Result<()> {
        let _turn = self.0.turn.lock().await;
        if self.0.proposals.leading() == Some(term) { self.follow().await } else { Ok(()) }
    }

    /// Ends the leadership. The caller holds `turn`.
    async fn follow(&self) -> io::Result<()> {
        self.0.replica.follow();
        if !self.0.proposals.end() {
            return Ok(());
        }
        self.run_blocking(|machine| {
            let seq = machine.applied().last.map_or(0, |last| last.index + 1);
            let log = machine.0.store.log();
            log.sync(seq).map_err(journal::LogError::from)?;
            let replay = Replay::new(log.replay_closed(seq)?);
            machine.0.replica.restore(replay).map_err(StoreError::Replica)
        })
        .await
    }

    async fn apply_entry(&self, id: LogId, payload: &Payload) -> io::Result<()> {
        let _turn = self.0.turn.lock().await;
        let (leading, term) = (self.0.proposals.leading(), id.leader_id.term);
        if leading.is_some_and(|leading| leading < term) {
            self.follow().await?;
        }
        match payload {
            EntryPayload::Normal(_) if leading == Some(term) => {
                if !self.0.proposals.committed() {
                    return Err(io::Error::other(format!("entry {id} was not proposed by this leader")));
                }
            }
            EntryPayload::Normal(proposal) => {
                self.0.replica.apply(id, proposal).map_err(io::Error::other)?;
            }
            EntryPayload::Blank | EntryPayload::Membership(_) => {}
        }
        let mut applied = self.applied();
        applied.last = Some(id);
        if let EntryPayload::Membership(membership) = payload {
            applied.membership = StoredMembership::new(Some(id), membership.clone());
        }
        Ok(())
    }

    /// Makes a snapshot of all entries that are applied, unless there is one.
    fn build(&self) -> Result<Option<GroupSnapshot>, StoreError> {
        let position = self.applied().clone();
        let Some(last) = position.last else { return Ok(None) };
        let log = self.0.store.log();
        let seq = last.index + 1;
        if log.newest_snapshot()?.is_none_or(|newest| newest.seq < seq) {
            log.rotate().map_err(journal::LogError::from)?;
            let replay = Replay::new(log.replay_closed(seq)?);
            self.write_snapshot(seq, &position, replay)?;
            log.snapshot_done(seq)?;
        }
        self.newest()
    }

    fn newest(&self) -> Result<Option<GroupSnapshot>, StoreError> {
        let log = self.0.store.log();
        let Some(file) = log.newest_snapshot()? else { return Ok(None) };
        let LogPosition { last, membership } = Replay::new(log.replay_snapshot(file.seq)?).position()?;
        let meta = SnapshotMeta { last_log_id: last, last_membership: membership };
        Ok(Some(Snapshot { meta, snapshot: Arc::new(file) }))
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> io::Result<T> {
        let machine = self.clone();
        let done = spawn_blocking(move || work(&machine)).await;
        done.map_err(io::Error::other)?.map_err(io::Error::other)
    }
}

/// A snapshot with its place in the log.
pub type GroupSnapshot = SnapshotOf<Group, Arc<SnapshotFile>>;
type Payload = EntryPayload<Proposal, u64, BasicNode>;

impl RaftStateMachine<Group> for Machine {
    type SnapshotData = Arc<SnapshotFile>;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let applied = self.applied().clone();
        Ok((applied.last, applied.membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Group>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            self.apply_entry(entry.log_id(), &entry.payload).await?;
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    /// The network has received the file into the folder of the log.
    async fn install_snapshot(&mut self, _: &SnapshotMeta, file: Arc<SnapshotFile>) -> io::Result<()> {
        let _turn = self.0.turn.lock().await;
        if self.0.proposals.leading().is_some() {
            self.0.replica.follow();
            self.0.proposals.end();
        }
        self.run_blocking(move |machine| {
            machine.0.store.log().snapshot_done(file.seq)?;
            machine.restore_newest()
        })
        .await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<GroupSnapshot>> {
        self.run_blocking(Self::newest).await
    }
}

impl RaftSnapshotBuilder<Group> for Machine {
    type SnapshotData = Arc<SnapshotFile>;

    async fn build_snapshot(&mut self) -> io::Result<GroupSnapshot> {
        let built = self.run_blocking(Self::build).await?;
        built.ok_or_else(|| io::Error::other("there is nothing to make a snapshot of: no entry is applied"))
    }
}
