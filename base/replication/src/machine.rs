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
    codec::encode_place,
    error::{StateError, StoreError},
    proposals::{Outcome, Proposals},
    replay::Replay,
    store::Store,
    types::{Group, LogId, Membership, Proposal, SnapshotMeta, StoredMembership, log_id},
};
use journal::{
    Content, LogError, Seq, SnapshotFile, SnapshotReceiver, SnapshotWriter,
    bugs::{self, Bug},
};
use openraft::{
    BasicNode, EntryPayload, OptionalSend, RaftSnapshotBuilder,
    alias::SnapshotOf,
    entry::RaftEntry,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::sleep;
use tokio_stream::{Stream, StreamExt};

/// How many entries are applied at most before others can take the lock of the master.
const BATCH_MAX: usize = 64;

/// How long a leader waits before it repeats a proposal that was refused because it had not heard
/// from a quorum for a while.
const RETRY: Duration = Duration::from_millis(10);

/// The state of a master in a group, which all members have. Each function may block, because it
/// waits for the lock of the master: it runs on a thread for blocking work.
pub trait ReplicatedState: Send + Sync + 'static {
    /// Applies the records of a committed entry of another leader.
    fn apply(&self, id: LogId, proposal: &Proposal) -> Result<(), StateError>;

    /// Replaces the state by the one that `replay` leads to.
    fn restore(&self, replay: Replay) -> Result<(), StateError>;

    /// This member leads in `term` from now on. All entries of earlier terms are applied.
    fn lead(&self, term: u64);

    /// This member does not lead any more. When this function has returned, nothing is appended
    /// until [`Self::lead`] is called again. [`Self::restore`] may follow.
    fn follow(&self);

    /// Returns whether the state is replaced after each leadership, also if all that was appended is
    /// committed: a state that has led contains what a follower must not have.
    fn is_replaced_after_leading(&self) -> bool {
        false
    }
}

/// The state machine. Clones share it.
#[derive(Clone)]
pub struct Machine(Arc<Shared>);

struct Shared {
    store: Store,
    state: Arc<dyn ReplicatedState>,
    proposals: Arc<Proposals>,
    /// The last entry that is applied, and the members at that entry.
    applied: Mutex<SnapshotMeta>,
    /// Held while entries are applied, and while a leadership begins or ends.
    applying: Mutex<()>,
}

impl Machine {
    /// Opens the state machine of the member at `address`, and restores the newest snapshot of
    /// `store`. Blocks.
    pub fn open(store: Store, state: Arc<dyn ReplicatedState>, address: &str) -> Result<Self, StoreError> {
        Self::open_with_proposals(store, state, address, Arc::default())
    }

    /// Like [`Self::open`], with the proposals that the master makes while it leads.
    pub(crate) fn open_with_proposals(
        store: Store,
        state: Arc<dyn ReplicatedState>,
        address: &str,
        proposals: Arc<Proposals>,
    ) -> Result<Self, StoreError> {
        let machine = Self(Arc::new(Shared {
            store,
            state,
            proposals,
            applied: Mutex::default(),
            applying: Mutex::default(),
        }));
        machine.convert_newest(address)?;
        if let Some(newest) = machine.0.store.log().newest_snapshot()? {
            machine.restore_snapshot(newest.seq)?;
        }
        Ok(machine)
    }

    /// If one master has written the newest snapshot, replaces it by one of a group whose only
    /// member is this one.
    fn convert_newest(&self, address: &str) -> Result<(), StoreError> {
        let log = self.0.store.log();
        let Some(newest) = log.newest_snapshot()? else { return Ok(()) };
        let mut replay = log.replay_snapshot(newest.seq)?;
        if replay.snapshot_content() != Some(Content::Records) {
            return Ok(());
        }
        let last_log_id = Some(log_id(0, newest.seq - 1));
        let id = self.0.store.raft_state().node_id;
        let only = Membership::new(vec![[id].into()], BTreeMap::from([(id, BasicNode::new(address))]));
        let only = only.map_err(|error| StoreError::State(error.into()))?;
        let last_membership = StoredMembership::new(last_log_id, only);
        self.write_snapshot(newest.seq, &SnapshotMeta { last_log_id, last_membership }, |writer| {
            while let Some(journal::Item::Snapshot(record)) = replay.next()? {
                writer.push(record)?;
            }
            Ok(())
        })
    }

    /// Writes a snapshot: its place, then what `write` writes.
    fn write_snapshot(
        &self,
        seq: Seq,
        place: &SnapshotMeta,
        write: impl FnOnce(&mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<(), StoreError> {
        let mut writer = self.0.store.log().snapshot_writer(seq)?;
        writer.push(&encode_place(place))?;
        write(&mut writer).map_err(StoreError::State)?;
        let bytes = writer.finish()?;
        tracing::info!(upto = seq, bytes, "snapshot written");
        Ok(())
    }

    /// Makes a snapshot of all entries that are applied, unless there is one. `write` writes the
    /// records of the state to which the replay leads. Blocks.
    pub fn make_snapshot(
        &self,
        write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<(), StoreError> {
        let log = self.0.store.log();
        let _exclusive = log.lock_snapshots();
        log.check_newest_snapshot()?;
        let place = self.applied().clone();
        let Some(last) = place.last_log_id else { return Ok(()) };
        let seq = last.index + 1;
        if log.newest_snapshot()?.is_some_and(|newest| newest.seq >= seq) {
            return Ok(());
        }
        // After this, everything that is applied is durable here, too.
        log.rotate().map_err(LogError::from)?;
        let lacking = u64::from(bugs::has(Bug::SnapshotTooOld));
        let replay = log.replay_closed(seq - lacking)?;
        let written = self.write_snapshot(seq, &place, |writer| write(replay.into(), writer));
        written.map_err(|error| log.find_damage(seq).map_or(error, StoreError::from))?;
        self.0.store.keep_snapshot(seq)
    }

    /// Restores the snapshot whose last record is `seq`.
    fn restore_snapshot(&self, seq: Seq) -> Result<(), StoreError> {
        let mut replay = Replay::from(self.0.store.log().replay_snapshot(seq)?);
        let place = replay.place()?;
        self.restore(replay)?;
        *self.applied() = place;
        Ok(())
    }

    fn restore(&self, replay: Replay) -> Result<(), StoreError> {
        self.0.state.restore(replay).map_err(StoreError::State)?;
        self.0.proposals.restored();
        Ok(())
    }

    fn applied(&self) -> MutexGuard<'_, SnapshotMeta> {
        self.0.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn applying(&self) -> MutexGuard<'_, ()> {
        self.0.applying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to lead, unless an entry of a later term is applied. Returns whether this member
    /// leads.
    pub(crate) async fn begin_leading(&self, term: u64) -> io::Result<bool> {
        self.run_blocking(move |machine| {
            let _exclusive = machine.applying();
            // The leader has applied the first entry of its term.
            let newest = machine.applied().last_log_id.map(|last| last.leader_id.term);
            let is_applied = newest == Some(term) || bugs::has(Bug::LeadsEarly);
            let leads = is_applied && machine.0.proposals.begin(term);
            if leads {
                machine.0.state.lead(term);
            }
            Ok(leads)
        })
        .await
    }

    /// Ends the leadership of this term, if it has not ended.
    pub(crate) async fn end_leading(&self, term: u64) -> io::Result<()> {
        self.run_blocking(move |machine| {
            let _exclusive = machine.applying();
            if machine.0.proposals.leading() == Some(term) { machine.follow() } else { Ok(()) }
        })
        .await
    }

    /// Sends the proposals of this member, one after the other. Returns when `send` fails.
    pub(crate) async fn propose<F>(&self, send: impl Fn(u64, Proposal) -> F) -> Result<Infallible, String>
    where
        F: Future<Output = Result<Outcome, String>>,
    {
        let proposals = &self.0.proposals;
        loop {
            let (term, proposal) = proposals.next().await;
            loop {
                match send(term, proposal.clone()).await? {
                    Outcome::Committed => break,
                    Outcome::NotNow if proposals.leading() == Some(term) => {
                        sleep(RETRY).await;
                        continue;
                    }
                    Outcome::NotNow | Outcome::Refused => proposals.refused(term),
                    Outcome::Unknown => {}
                }
                self.end_leading(term).await.map_err(|error| error.to_string())?;
                break;
            }
        }
    }

    /// Ends the leadership. The caller holds `applying`.
    fn follow(&self) -> Result<(), StoreError> {
        self.0.state.follow();
        if !self.0.proposals.end(self.0.state.is_replaced_after_leading()) {
            return Ok(());
        }
        if bugs::has(Bug::UncommittedKept) {
            self.0.proposals.restored();
            return Ok(());
        }
        let seq = self.applied().last_log_id.map_or(0, |last| last.index + 1);
        let log = self.0.store.log();
        log.sync(seq).map_err(LogError::from)?;
        self.restore(log.replay_closed(seq)?.into())
    }

    /// Applies an entry. The caller holds `applying`.
    fn apply_entry(&self, id: LogId, payload: &Payload) -> Result<(), StoreError> {
        let (leading, term) = (self.0.proposals.leading(), id.leader_id.term);
        if leading.is_some_and(|leading| leading < term) {
            self.follow()?;
        }
        // openraft continues for a moment after a restore has failed.
        if self.0.proposals.is_stale() {
            let why = "it contains what an ended leadership has made, and could not be replaced";
            return Err(StoreError::State(why.into()));
        }
        match payload {
            EntryPayload::Normal(_) if leading == Some(term) => {
                if !self.0.proposals.committed() {
                    let why = format!("entry {id} was not proposed by this leader");
                    return Err(StoreError::State(why.into()));
                }
            }
            EntryPayload::Normal(proposal) => {
                self.0.state.apply(id, proposal).map_err(StoreError::State)?;
            }
            EntryPayload::Blank | EntryPayload::Membership(_) => {}
        }
        let mut applied = self.applied();
        applied.last_log_id = Some(id);
        if let EntryPayload::Membership(membership) = payload {
            applied.last_membership = StoredMembership::new(Some(id), membership.clone());
        }
        Ok(())
    }

    fn newest(&self) -> Result<Option<(SnapshotMeta, SnapshotFile)>, StoreError> {
        let log = self.0.store.log();
        let Some(file) = log.newest_snapshot()? else { return Ok(None) };
        let place = Replay::from(log.replay_snapshot(file.seq)?).place()?;
        Ok(Some((place, file)))
    }

    /// Returns the newest snapshot, to be sent to another member. Only a snapshot that includes all
    /// entries that were purged helps it.
    fn newest_to_send(&self) -> Result<GroupSnapshot, StoreError> {
        let purged = self.0.store.raft_state().purged;
        match self.newest() {
            Ok(Some((meta, file))) if meta.last_log_id >= purged => {
                return Ok(Snapshot { meta, snapshot: SnapshotData::Stored(file) });
            }
            Err(StoreError::Log(error)) if error.is_damage() => {
                self.0.store.log().check_newest_snapshot()?;
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        Ok(Snapshot { meta: SnapshotMeta::default(), snapshot: SnapshotData::Damaged })
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> io::Result<T> {
        let machine = self.clone();
        let done = self.0.store.log().executor().spawn_blocking(move || work(&machine)).await;
        done.map_err(io::Error::other)?.map_err(io::Error::other)
    }
}

/// A snapshot, as openraft passes it on.
pub enum SnapshotData {
    /// The file of a snapshot of this member, to be sent to another.
    Stored(SnapshotFile),
    /// A verified file that another member has sent, to be installed.
    Received(SnapshotReceiver),
    /// The newest snapshot was damaged, and the new one is not made yet.
    Damaged,
}

/// A snapshot with its place in the log.
pub type GroupSnapshot = SnapshotOf<Group, SnapshotData>;
type Payload = EntryPayload<Proposal, u64, BasicNode>;

impl RaftStateMachine<Group> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = NewestSnapshot;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let applied = self.applied().clone();
        Ok((applied.last_log_id, applied.last_membership))
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Group>>> + Unpin + OptionalSend,
    {
        let mut entries = entries.fuse();
        while let Some(entry) = entries.next().await {
            // Those that are there already use the same thread.
            let mut batch = vec![entry?];
            while batch.len() < BATCH_MAX
                && let Some(entry) = next_if_ready(&mut entries)
            {
                batch.push(entry?);
            }
            let apply = move |machine: &Self| {
                let _exclusive = machine.applying();
                for (entry, responder) in batch {
                    machine.apply_entry(entry.log_id(), &entry.payload)?;
                    if let Some(responder) = responder {
                        responder.send(());
                    }
                }
                Ok(())
            };
            self.run_blocking(apply).await?;
        }
        Ok(())
    }

    /// [`Machine::make_snapshot`] has made the snapshot before. An error here would end the member.
    async fn try_create_snapshot_builder(&mut self, _: bool) -> Option<NewestSnapshot> {
        let newest = self.run_blocking(Self::newest).await;
        newest
            .unwrap_or_else(|error| {
                tracing::error!(%error, "the newest snapshot cannot be read: the log keeps growing");
                None
            })
            .map(|newest| NewestSnapshot(Some(newest)))
    }

    async fn get_snapshot_builder(&mut self) -> NewestSnapshot {
        NewestSnapshot(None)
    }

    /// The network has received the file into the folder of the log. openraft has removed the entries
    /// that contradict it.
    async fn install_snapshot(&mut self, _: &SnapshotMeta, data: SnapshotData) -> io::Result<()> {
        self.run_blocking(move |machine| {
            let _exclusive = machine.applying();
            if machine.0.proposals.leading().is_some() {
                machine.0.state.follow();
                machine.0.proposals.end(false);
            }
            let seq = match data {
                SnapshotData::Received(receiver) => {
                    let seq = receiver.finish()?;
                    machine.0.store.keep_snapshot(seq)?;
                    seq
                }
                SnapshotData::Stored(file) => file.seq,
                SnapshotData::Damaged => return Err(StoreError::NoSnapshot),
            };
            machine.restore_snapshot(seq)
        })
        .await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<GroupSnapshot>> {
        if self.0.store.log().newest_snapshot().is_ok_and(|newest| newest.is_none())
            && self.0.store.raft_state().purged.is_none()
        {
            return Ok(None);
        }
        self.run_blocking(Self::newest_to_send).await.map(Some)
    }
}

/// Passes the newest snapshot to openraft.
pub struct NewestSnapshot(Option<(SnapshotMeta, SnapshotFile)>);

impl RaftSnapshotBuilder<Group> for NewestSnapshot {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<GroupSnapshot> {
        let (meta, file) = self.0.take().ok_or_else(|| io::Error::other("there is no snapshot"))?;
        Ok(Snapshot { meta, snapshot: SnapshotData::Stored(file) })
    }
}

/// Returns the next item of a stream; `None` if it must be waited for, or at the end.
fn next_if_ready<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    match Pin::new(stream).poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(item) => item,
        Poll::Pending => None,
    }
}
