//! The state machine of openraft: passes committed records to the master, and moves snapshots.
//!
//! The state of a master is in memory. A snapshot is not made of it, but of the previous snapshot
//! and the entries after it (ADR 0007), so it never contains what is not committed. Its first
//! record is its position in the log and the members at that position.

use crate::{
    codec::LogPosition,
    replay::Replay,
    store::{Store, StoreError},
    types::{Group, LogId, Proposal, SnapshotMeta, StoredMembership},
};
use journal::{SnapshotFile, SnapshotWriter};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    alias::SnapshotOf,
    entry::RaftEntry,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::task::spawn_blocking;
use tokio_stream::{Stream, StreamExt};

/// Why a master could not use a record.
pub type ReplicaError = Box<dyn std::error::Error + Send + Sync>;

/// The state of a master, as a state machine of committed records.
pub trait Replica: Send + Sync + 'static {
    /// Applies the records of a committed entry.
    fn apply(&self, id: LogId, proposal: &Proposal) -> Result<(), ReplicaError>;

    /// Replaces the state by that of a snapshot.
    fn restore(&self, snapshot: Replay) -> Result<(), ReplicaError>;

    /// Writes the records of a snapshot of the state that `replay` leads to. Blocks.
    fn write_snapshot(&self, replay: Replay, snapshot: &mut SnapshotWriter) -> Result<(), ReplicaError>;
}

/// The state machine. Clones share it.
#[derive(Clone)]
pub struct Machine(Arc<Shared>);

struct Shared {
    store: Store,
    replica: Box<dyn Replica>,
    applied: Mutex<LogPosition>,
}

impl Machine {
    /// Opens the state machine, and restores the newest snapshot of `store`. Blocks.
    pub fn open(store: Store, replica: Box<dyn Replica>) -> Result<Self, StoreError> {
        let machine = Self(Arc::new(Shared { store, replica, applied: Mutex::default() }));
        machine.restore_newest()?;
        Ok(machine)
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

    fn apply_entry(&self, id: LogId, payload: &Payload) -> Result<(), ReplicaError> {
        if let EntryPayload::Normal(proposal) = payload {
            self.0.replica.apply(id, proposal)?;
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
            let mut writer = log.snapshot_writer(seq)?;
            writer.push(&position.encode())?;
            self.0.replica.write_snapshot(replay, &mut writer).map_err(StoreError::Replica)?;
            writer.finish()?;
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
type Payload = EntryPayload<Proposal, u64, openraft::BasicNode>;

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
            self.apply_entry(entry.log_id(), &entry.payload).map_err(io::Error::other)?;
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
