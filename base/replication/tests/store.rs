//! Tests of the log store: openraft's own suite, a comparison with a simple model, and crashes
//! after each operation of the disk.

use fermata_replication::{
    codec::encode_entry,
    machine::{Machine, Replica, ReplicaError},
    replay::{Item, Replay},
    store::{Store, StoreError},
    types::{Entry, Group, LogId, Membership, Proposal, SnapshotMeta, StoredMembership, Vote, log_id},
};
use journal::{
    SnapshotWriter,
    crash::{CrashDisk, Survive},
    disk::{Disk, RealDisk},
};
use openraft::{
    BasicNode, EntryPayload, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder, StorageError,
    alias::SnapshotOf,
    entry::RaftEntry,
    storage::{EntryResponder, IOFlushed, RaftLogStorage, RaftStateMachine, Snapshot},
    testing::log::{StoreBuilder, Suite},
    type_config::TypeConfigExt,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    io,
    ops::RangeBounds,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};
use tempfile::TempDir;
use tokio_stream::{Stream, StreamExt};

/// A master whose state is the list of all its records.
#[derive(Clone, Default)]
struct ListOfRecords(Arc<Mutex<Vec<Vec<u8>>>>);

fn push_records(list: &mut Vec<Vec<u8>>, proposal: &Proposal) -> Result<(), ReplicaError> {
    for record in proposal.records() {
        list.push(record.ok_or("a record is cut")?.to_vec());
    }
    Ok(())
}

fn read_list(mut replay: Replay) -> Result<Vec<Vec<u8>>, ReplicaError> {
    let mut list = Vec::new();
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(record) => list.push(record),
            Item::Records(_, proposal) => push_records(&mut list, &proposal)?,
        }
    }
    Ok(list)
}

impl Replica for ListOfRecords {
    fn apply(&self, _: LogId, proposal: &Proposal) -> Result<(), ReplicaError> {
        push_records(&mut self.0.lock().unwrap(), proposal)
    }

    fn restore(&self, snapshot: Replay) -> Result<(), ReplicaError> {
        *self.0.lock().unwrap() = read_list(snapshot)?;
        Ok(())
    }

    fn lead(&self, _: u64) {}

    fn follow(&self) {}

    fn write_snapshot(&self, replay: Replay, snapshot: &mut SnapshotWriter) -> Result<(), ReplicaError> {
        for record in read_list(replay)? {
            snapshot.push(&record)?;
        }
        Ok(())
    }
}

/// A state machine for the suite, which also makes snapshots of entries that are not in the log.
#[derive(Debug, Clone, Default)]
struct SuiteMachine(Arc<Mutex<Applied>>);

#[derive(Debug, Clone, Default)]
struct Applied {
    last: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<SnapshotMeta>,
}

impl RaftStateMachine<Group> for SuiteMachine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let applied = self.0.lock().unwrap();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Group>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let mut applied = self.0.lock().unwrap();
            applied.last = Some(entry.log_id());
            if let EntryPayload::Membership(membership) = entry.payload {
                applied.membership = StoredMembership::new(applied.last, membership);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, (): ()) -> io::Result<()> {
        let (last, membership) = (meta.last_log_id, meta.last_membership.clone());
        *self.0.lock().unwrap() = Applied { last, membership, snapshot: Some(meta.clone()) };
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Group, ()>>> {
        let meta = self.0.lock().unwrap().snapshot.clone();
        Ok(meta.map(|meta| Snapshot { meta, snapshot: () }))
    }
}

impl RaftSnapshotBuilder<Group> for SuiteMachine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Group, ()>> {
        let mut applied = self.0.lock().unwrap();
        let meta = SnapshotMeta { last_log_id: applied.last, last_membership: applied.membership.clone() };
        applied.snapshot = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}

/// Stores on real files, or on the disk of crash tests.
struct OnFiles;
struct OnCrashDisk;

/// A store for the suite, in which the first entry can have any index. In a group it follows the
/// snapshot that the group began with; here it follows entries that are hidden.
#[derive(Clone)]
struct SuiteStore {
    store: Store,
    /// Index of the first entry.
    first: Arc<AtomicU64>,
}

impl SuiteStore {
    fn new(disk: Arc<dyn Disk>, memory_bytes_max: usize) -> Self {
        let store = Store::open_with_memory(&disk, 0, memory_bytes_max).unwrap();
        Self { store, first: Arc::default() }
    }
}

impl RaftLogReader<Group> for SuiteStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let start = range.start_bound().map(|start| (*start).max(self.first.load(Ordering::Relaxed)));
        let range = (start, range.end_bound().cloned());
        self.store.get_log_reader().await.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.store.get_log_reader().await.limited_get_log_entries(start, end).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.store.get_log_reader().await.read_vote().await
    }
}

impl RaftLogStorage<Group> for SuiteStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Group>> {
        self.store.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.store.save_vote(vote).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.store.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.store.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, done: IOFlushed<Group>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let first = entries.first().map_or(0, RaftEntry::index);
        if self.store.log().last_seq() == 0 && first > 0 {
            self.first.store(first, Ordering::Relaxed);
            let entry = |index| Entry { log_id: log_id(0, index), payload: EntryPayload::Blank };
            let before: Vec<_> = (0..first).map(|index| encode_entry(&entry(index))).collect();
            self.store.log().append_many(&before).unwrap();
        }
        self.store.append(entries, done).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.store.truncate_after(last).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.store.purge(upto).await
    }
}

impl StoreBuilder<Group, SuiteStore, SuiteMachine, TempDir> for OnFiles {
    async fn build(&self) -> Result<(TempDir, SuiteStore, SuiteMachine), StorageError<Group>> {
        let folder = TempDir::new().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(folder.path()).unwrap());
        Ok((folder, SuiteStore::new(disk, 64 << 20), SuiteMachine::default()))
    }
}

impl StoreBuilder<Group, SuiteStore, SuiteMachine> for OnCrashDisk {
    async fn build(&self) -> Result<((), SuiteStore, SuiteMachine), StorageError<Group>> {
        let disk: Arc<dyn Disk> = Arc::new(CrashDisk::new());
        // Nearly all entries are read from the segments.
        Ok(((), SuiteStore::new(disk, 1), SuiteMachine::default()))
    }
}

#[test]
fn the_store_passes_the_suite_of_openraft() {
    Group::run(async {
        Suite::test_all(OnFiles).await.unwrap();
        Suite::test_all(OnCrashDisk).await.unwrap();
    });
}

/// What a test does to a store.
#[derive(Debug, Clone)]
enum Step {
    Append(Vec<usize>),
    Truncate(u64),
    Purge(u64),
    Vote(u64),
    Commit(u64),
    Reopen,
    /// Reads a part of the log, with a reader that is kept between such steps.
    Read(u64, u64),
}

/// What a store must contain.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    term: u64,
    first: u64,
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
}

impl Model {
    fn next(&self) -> u64 {
        self.entries.keys().next_back().map_or(self.first, |last| last + 1)
    }

    /// Returns new entries of these lengths.
    fn new_entries(&mut self, lengths: &[usize]) -> Vec<Entry> {
        let next = self.next();
        let entry = |(index, length): (u64, &usize)| {
            let payload = match length % 7 {
                0 => EntryPayload::Blank,
                1 => {
                    let node = BasicNode::new("m1:9400");
                    let nodes = BTreeMap::from([(1, node)]);
                    EntryPayload::Membership(Membership::new(vec![BTreeSet::from([1])], nodes).unwrap())
                }
                _ => EntryPayload::Normal(Proposal::of(&[vec![self.term as u8; *length]])),
            };
            Entry { log_id: log_id(self.term, index), payload }
        };
        (next..).zip(lengths).map(entry).collect()
    }
}

/// A store under test, and the model.
struct Pair {
    store: Store,
    reader: <Store as RaftLogStorage<Group>>::LogReader,
    disk: CrashDisk,
    model: Model,
    /// The model before the step that is being done.
    before: Model,
}

const MEMORY_BYTES: usize = 300;

async fn open(disk: &CrashDisk) -> Result<Store, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    tokio::task::spawn_blocking(move || Store::open_with_memory(&disk, 3, MEMORY_BYTES)).await.unwrap()
}

impl Pair {
    async fn new(disk: CrashDisk) -> Result<Self, StoreError> {
        let mut store = open(&disk).await?;
        let reader = store.get_log_reader().await;
        Ok(Self { store, reader, disk, model: Model::default(), before: Model::default() })
    }

    async fn append(&mut self, entries: Vec<Entry>) -> io::Result<()> {
        let (sender, durable) = Group::oneshot();
        self.store.append(entries, IOFlushed::signal(sender)).await?;
        durable.await.expect("it is called in any case")
    }

    async fn step(&mut self, step: &Step) -> io::Result<()> {
        self.before = self.model.clone();
        match step {
            Step::Append(lengths) => {
                let entries = self.model.new_entries(lengths);
                self.model.entries.extend(entries.iter().map(|entry| (entry.index(), entry.clone())));
                self.append(entries).await
            }
            Step::Truncate(back) => {
                let from = self.model.next().saturating_sub(*back).max(self.model.first);
                self.model.entries.split_off(&from);
                self.model.term += 1;
                let last = self.model.entries.values().next_back().map(Entry::log_id);
                self.store.truncate_after(last.or(self.model.purged)).await
            }
            Step::Purge(count) => {
                let upto = self.model.first + count;
                let Some(entry) = self.model.entries.get(&upto) else { return Ok(()) };
                let id = entry.log_id();
                (self.model.purged, self.model.first) = (Some(id), upto + 1);
                self.model.entries = self.model.entries.split_off(&(upto + 1));
                self.store.purge(id).await
            }
            Step::Vote(term) => {
                let vote = Vote::new(*term, 3);
                self.model.vote = Some(vote);
                self.store.save_vote(&vote).await
            }
            Step::Commit(index) => {
                self.model.committed = Some(log_id(1, *index));
                self.store.save_committed(self.model.committed).await
            }
            Step::Reopen => {
                let (sender, durable) = Group::oneshot();
                self.store.append([], IOFlushed::signal(sender)).await?;
                durable.await.expect("it is called in any case")?;
                self.store.log().close().map_err(io::Error::other)?;
                self.store = open(&self.disk).await.map_err(io::Error::other)?;
                self.reader = self.store.get_log_reader().await;
                Ok(())
            }
            Step::Read(from, count) => {
                let entries = self.reader.try_get_log_entries(*from..from + count).await?;
                let expected: Vec<Entry> =
                    self.model.entries.range(*from..from + count).map(|(_, entry)| entry.clone()).collect();
                assert_eq!(entries, expected, "entries from {from}");
                Ok(())
            }
        }
    }
}

/// Returns what a store contains.
async fn contents(store: &mut Store, term: u64) -> Model {
    let mut reader = store.get_log_reader().await;
    let state = store.get_log_state().await.unwrap();
    let entries = reader.try_get_log_entries(..).await.unwrap();
    let last = entries.last().map(RaftEntry::log_id).or(state.last_purged_log_id);
    assert_eq!(state.last_log_id, last);
    Model {
        term,
        first: state.last_purged_log_id.map_or(0, |id| id.index + 1),
        entries: entries.into_iter().map(|entry| (entry.index(), entry)).collect(),
        vote: reader.read_vote().await.unwrap(),
        committed: store.read_committed().await.unwrap(),
        purged: state.last_purged_log_id,
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec(0..120_usize, 0..5).prop_map(Step::Append),
        1 => (0..6_u64).prop_map(Step::Truncate),
        1 => (0..4_u64).prop_map(Step::Purge),
        1 => (1..9_u64).prop_map(Step::Vote),
        1 => (0..9_u64).prop_map(Step::Commit),
        1 => Just(Step::Reopen),
        2 => (0..20_u64, 0..9_u64).prop_map(|(from, count)| Step::Read(from, count)),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn the_store_contains_what_the_model_contains(steps in steps()) {
        Group::run(async {
            let mut pair = Pair::new(CrashDisk::new()).await.unwrap();
            for step in &steps {
                pair.step(step).await.unwrap();
                assert_eq!(contents(&mut pair.store, pair.model.term).await, pair.model, "after {step:?}");
            }
        });
    }
}

/// Returns steps that use everything.
fn script() -> Vec<Step> {
    vec![
        Step::Append(vec![0, 1, 50]),
        Step::Vote(2),
        Step::Truncate(2),
        Step::Append(vec![60, 61]),
        Step::Append(vec![70]),
        Step::Commit(2),
        Step::Truncate(1),
        Step::Vote(3),
        Step::Append(vec![80, 81, 82]),
        Step::Purge(1),
        Step::Reopen,
        Step::Append(vec![90]),
        Step::Truncate(3),
        Step::Vote(4),
    ]
}

#[test]
fn a_crash_loses_nothing_that_was_acknowledged() {
    Group::run(async {
        let run = |disk: CrashDisk| async {
            let mut pair = Pair::new(disk).await.ok()?;
            let mut done = true;
            for step in script() {
                done = done && pair.step(&step).await.is_ok();
                if !done {
                    break;
                }
            }
            Some((pair, done))
        };
        let disk = CrashDisk::new();
        let (pair, done) = run(disk.clone()).await.expect("the disk works");
        assert!(done);
        drop(pair);
        for point in 0..disk.operations() {
            let disk = CrashDisk::new();
            disk.crash_after(point);
            let Some((pair, false)) = run(disk.clone()).await else { continue };
            let (before, after) = (pair.before.clone(), pair.model.clone());
            let cases = [Survive::Everything, Survive::SyncedOnly].into_iter();
            for survive in cases.chain((0..10).map(Survive::Seeded)) {
                let context = format!("crash at {point}, {survive:?}");
                let crashed = disk.after_crash(survive);
                let mut store = open(&crashed).await.unwrap_or_else(|error| panic!("{context}: {error}"));
                let found = contents(&mut store, 0).await;
                assert!([before.vote, after.vote].contains(&found.vote), "{context}: {found:?}");
                assert!([before.purged, after.purged].contains(&found.purged), "{context}: {found:?}");
                // Each entry is the one before the step or after it, and none is missing that is
                // there before and after.
                for (index, entry) in &found.entries {
                    let expected = [before.entries.get(index), after.entries.get(index)];
                    assert!(expected.contains(&Some(entry)), "{context}: {entry:?}");
                }
                for (index, entry) in &before.entries {
                    if after.entries.get(index) == Some(entry) {
                        assert_eq!(found.entries.get(index), Some(entry), "{context}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_member_without_its_vote_or_with_another_id_is_refused() {
    Group::run(async {
        let disk = CrashDisk::new();
        let mut pair = Pair::new(disk.clone()).await.unwrap();
        pair.step(&Step::Append(vec![30])).await.unwrap();
        pair.store.log().close().unwrap();
        drop(pair);
        let files = |keep: &dyn Fn(&str) -> bool| {
            CrashDisk::with_files(disk.files().into_iter().filter(|(name, _)| keep(name)))
        };
        let refused = open(&files(&|name| name != "RAFT")).await.err().unwrap();
        assert!(matches!(refused, StoreError::VoteLost), "{refused}");
        let disk: Arc<dyn Disk> = Arc::new(files(&|_| true));
        let refused = Store::open(&disk, 4).err().unwrap();
        assert!(matches!(refused, StoreError::OtherMember { found: 3, expected: 4 }), "{refused}");
    });
}

/// A member of a group, without Raft: its state machine, and the state of its master.
struct Member {
    store: Store,
    machine: Machine,
    list: ListOfRecords,
}

impl Member {
    fn open(disk: &CrashDisk) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let store = Store::open(&disk, 1).unwrap();
        let list = ListOfRecords::default();
        let machine = Machine::open(store.clone(), Arc::new(list.clone()), "m1:9400").unwrap();
        Self { store, machine, list }
    }

    fn list(&self) -> Vec<Vec<u8>> {
        self.list.0.lock().unwrap().clone()
    }

    /// Appends entries and applies all of them.
    async fn append(&mut self, entries: &[Entry]) {
        let (sender, durable) = Group::oneshot();
        self.store.append(entries.to_vec(), IOFlushed::signal(sender)).await.unwrap();
        durable.await.unwrap().unwrap();
        let entries = entries.iter().map(|entry| Ok((entry.clone(), None)));
        self.machine.apply(tokio_stream::iter(entries)).await.unwrap();
    }
}

fn entries_with_records(indexes: std::ops::Range<u64>) -> Vec<Entry> {
    let node = BasicNode::new("m1:9400");
    let members = Membership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, node)])).unwrap();
    let entry = |index: u64| {
        let payload = match index % 4 {
            0 => EntryPayload::Blank,
            1 => EntryPayload::Membership(members.clone()),
            _ => EntryPayload::Normal(Proposal::of(&[index.to_le_bytes(), (index * 100).to_le_bytes()])),
        };
        Entry { log_id: log_id(2, index), payload }
    };
    indexes.map(entry).collect()
}

#[test]
fn a_snapshot_restores_the_state_here_and_at_another_member() {
    Group::run(async {
        let (disk, other_disk) = (CrashDisk::new(), CrashDisk::new());
        let mut member = Member::open(&disk);
        member.append(&entries_with_records(0..10)).await;
        let first = member.machine.build_snapshot().await.unwrap();
        assert_eq!(first.meta.last_log_id, Some(log_id(2, 9)));
        member.append(&entries_with_records(10..15)).await;
        let snapshot = member.machine.build_snapshot().await.unwrap();
        assert_eq!(snapshot.meta.last_log_id, Some(log_id(2, 14)));
        assert_eq!(*snapshot.meta.last_membership.log_id(), Some(log_id(2, 13)));
        member.append(&entries_with_records(15..16)).await;
        let at_snapshot = member.list()[..member.list().len() - 2].to_vec();

        // After a restart, the state is that of the snapshot; openraft applies the entries after it.
        member.store.log().close().unwrap();
        let mut again = Member::open(&disk);
        assert_eq!(again.list(), at_snapshot);
        let (applied, membership) = again.machine.applied_state().await.unwrap();
        assert_eq!((applied, membership), (snapshot.meta.last_log_id, snapshot.meta.last_membership.clone()));

        // Another member has a few entries, receives the file, and continues after it.
        let mut other = Member::open(&other_disk);
        other.append(&entries_with_records(0..3)).await;
        let mut bytes = vec![0; snapshot.snapshot.bytes as usize];
        assert_eq!(snapshot.snapshot.file.read_at(0, &mut bytes).unwrap(), bytes.len());
        let receive = |bytes: &[u8]| {
            let mut receiver = other.store.log().receive_snapshot(snapshot.snapshot.seq)?;
            bytes.chunks(50).try_for_each(|chunk| receiver.write(chunk))?;
            receiver.finish()
        };
        assert!(receive(&bytes[..bytes.len() - 1]).is_err_and(|error| error.is_damage()));
        assert!(other_disk.files().keys().all(|name| !name.starts_with("snapshot")), "it was removed");
        receive(&bytes).unwrap();
        other.machine.install_snapshot(&snapshot.meta, Arc::clone(&snapshot.snapshot)).await.unwrap();
        assert_eq!(other.list(), at_snapshot);
        // A crash before the log continues after the snapshot changes nothing.
        let crashed = Member::open(&other_disk.after_crash(Survive::SyncedOnly));
        assert_eq!(crashed.list(), at_snapshot);
        other.store.purge(snapshot.meta.last_log_id.unwrap()).await.unwrap();
        other.append(&entries_with_records(15..16)).await;
        assert_eq!(other.list(), member.list());
        let (mut store, mut other_store) = (member.store, other.store);
        assert_eq!(
            other_store.get_log_state().await.unwrap().last_log_id,
            store.get_log_state().await.unwrap().last_log_id
        );
    });
}
