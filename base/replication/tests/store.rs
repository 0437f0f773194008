//! Tests of the log store: openraft's own suite, a comparison with a simple model, and crashes
//! after each operation of the disk.

use fermata_replication::{
    error::{StateError, StoreError},
    machine::{GroupSnapshot, Machine, ReplicatedState, SnapshotData},
    replay::{Item, Replay},
    store::Store,
    types::{Entry, Group, LogId, Membership, Proposal, SnapshotMeta, StoredMembership, Vote, log_id},
};
use journal::{
    LogError,
    crash::{Call, CrashDisk, Survive},
    disk::{Disk, RealDisk},
};
use openraft::{
    BasicNode, EntryPayload, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder, StorageError,
    StorageHelper,
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
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio_stream::{Stream, StreamExt};

/// A master whose state is the list of all its records.
#[derive(Clone, Default)]
struct ListOfRecords(Arc<Mutex<Vec<Vec<u8>>>>);

fn push_records(list: &mut Vec<Vec<u8>>, proposal: &Proposal) -> Result<(), StateError> {
    for record in proposal.records() {
        list.push(record.ok_or("a record is cut")?.to_vec());
    }
    Ok(())
}

fn read_list(mut replay: Replay) -> Result<Vec<Vec<u8>>, StateError> {
    let mut list = Vec::new();
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(bytes) | Item::Record { bytes, .. } => list.push(bytes.to_vec()),
        }
    }
    Ok(list)
}

impl ReplicatedState for ListOfRecords {
    fn apply(&self, _: LogId, proposal: &Proposal) -> Result<(), StateError> {
        push_records(&mut self.0.lock().unwrap(), proposal)
    }

    fn restore(&self, snapshot: Replay) -> Result<(), StateError> {
        *self.0.lock().unwrap() = read_list(snapshot)?;
        Ok(())
    }

    fn lead(&self, _: u64) {}

    fn follow(&self) {}
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
        if self.store.get_log_state().await?.last_log_id.is_none() && first > 0 {
            self.first.store(first, Ordering::Relaxed);
            let entry = |index| Entry { log_id: log_id(0, index), payload: EntryPayload::Blank };
            append(&mut self.store, (0..first).map(entry).collect()).await?;
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
    machine: Machine,
    reader: <Store as RaftLogStorage<Group>>::LogReader,
    disk: CrashDisk,
    model: Model,
    /// The model before the step that is being done.
    before: Model,
}

const MEMORY_BYTES: usize = 300;

/// Appends entries, and waits until they are durable.
async fn append(store: &mut Store, entries: Vec<Entry>) -> io::Result<()> {
    let (sender, durable) = Group::oneshot();
    store.append(entries, IOFlushed::signal(sender)).await?;
    durable.await.expect("it is called in any case")
}

async fn open(disk: &CrashDisk) -> Result<Store, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    tokio::task::spawn_blocking(move || Store::open_with_memory(&disk, 3, MEMORY_BYTES)).await.unwrap()
}

fn open_machine(store: &Store) -> Result<Machine, StoreError> {
    Machine::open(store.clone(), Arc::new(ListOfRecords::default()), "m3:9400")
}

impl Pair {
    async fn new(disk: CrashDisk) -> Result<Self, StoreError> {
        let mut store = open(&disk).await?;
        let machine = open_machine(&store)?;
        let reader = store.get_log_reader().await;
        Ok(Self { store, machine, reader, disk, model: Model::default(), before: Model::default() })
    }

    async fn step(&mut self, step: &Step) -> io::Result<()> {
        self.before = self.model.clone();
        match step {
            Step::Append(lengths) => {
                let entries = self.model.new_entries(lengths);
                self.model.entries.extend(entries.iter().map(|entry| (entry.index(), entry.clone())));
                append(&mut self.store, entries).await
            }
            Step::Truncate(back) => {
                // openraft does not truncate what is committed.
                let committed = self.model.committed.map_or(0, |committed| committed.index + 1);
                let from = self.model.next().saturating_sub(*back).max(self.model.first).max(committed);
                self.model.entries.split_off(&from);
                self.model.term += 1;
                let last = self.model.entries.values().next_back().map(Entry::log_id);
                self.store.truncate_after(last.or(self.model.purged)).await
            }
            Step::Purge(count) => {
                let upto = self.model.first + count;
                let Some(entry) = self.model.entries.get(&upto) else { return Ok(()) };
                let id = entry.log_id();
                let entries: Vec<_> = self.model.entries.range(..=upto).collect();
                let entries = entries.into_iter().map(|(_, entry)| Ok((entry.clone(), None)));
                self.machine.apply(tokio_stream::iter(entries.collect::<Vec<_>>())).await?;
                make_snapshot(&self.machine).map_err(io::Error::other)?;
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
                // openraft commits only entries that exist.
                let Some(last) = self.model.next().checked_sub(1) else { return Ok(()) };
                self.model.committed = Some(log_id(1, last.min(*index)));
                self.store.save_committed(self.model.committed).await
            }
            Step::Reopen => {
                append(&mut self.store, vec![]).await?;
                self.store.close().map_err(io::Error::other)?;
                self.store = open(&self.disk).await.map_err(io::Error::other)?;
                self.machine = open_machine(&self.store).map_err(io::Error::other)?;
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
        pair.store.close().unwrap();
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

/// Makes a snapshot of all that is applied.
fn make_snapshot(machine: &Machine) -> Result<(), StoreError> {
    machine.make_snapshot(|replay, writer| {
        for record in read_list(replay)? {
            writer.push(&record)?;
        }
        Ok(())
    })
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
        // Nearly all entries are read from the segments.
        let store = Store::open_with_memory(&disk, 1, 1).unwrap();
        let list = ListOfRecords::default();
        let machine = Machine::open(store.clone(), Arc::new(list.clone()), "m1:9400").unwrap();
        Self { store, machine, list }
    }

    fn list(&self) -> Vec<Vec<u8>> {
        self.list.0.lock().unwrap().clone()
    }

    /// Returns the entry up to which openraft would begin with the state of this member, and its log.
    async fn start(&mut self) -> Result<(Option<LogId>, Vec<Entry>), String> {
        let mut helper = StorageHelper::new(&mut self.store, &mut self.machine).with_id(1);
        helper.get_initial_state().await.map_err(|error| error.to_string())?;
        let (applied, _) = self.machine.applied_state().await.unwrap();
        let entries = self.store.get_log_reader().await.try_get_log_entries(..).await.unwrap();
        Ok((applied, entries))
    }

    /// Appends entries and applies all of them.
    async fn append(&mut self, entries: &[Entry]) {
        append(&mut self.store, entries.to_vec()).await.unwrap();
        let entries = entries.iter().map(|entry| Ok((entry.clone(), None)));
        self.machine.apply(tokio_stream::iter(entries)).await.unwrap();
    }

    /// Makes a snapshot of all that is applied, and returns it.
    async fn make_snapshot(&mut self) -> GroupSnapshot {
        make_snapshot(&self.machine).unwrap();
        self.machine.get_current_snapshot().await.unwrap().expect("it was made")
    }
}

fn entries_with_records(indexes: std::ops::Range<u64>) -> Vec<Entry> {
    entries_of_term(2, indexes)
}

fn entries_of_term(term: u64, indexes: std::ops::Range<u64>) -> Vec<Entry> {
    let node = BasicNode::new("m1:9400");
    let members = Membership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, node)])).unwrap();
    let entry = |index: u64| {
        let payload = match index % 4 {
            0 => EntryPayload::Blank,
            1 => EntryPayload::Membership(members.clone()),
            _ => EntryPayload::Normal(Proposal::of(&[index.to_le_bytes(), (index * 100).to_le_bytes()])),
        };
        Entry { log_id: log_id(term, index), payload }
    };
    indexes.map(entry).collect()
}

/// Returns the file of a snapshot.
fn bytes_of(snapshot: &GroupSnapshot) -> Vec<u8> {
    let SnapshotData::Stored(file) = &snapshot.snapshot else { panic!("it was made here") };
    let mut bytes = vec![0; file.bytes as usize];
    assert_eq!(file.file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Receives the file of a snapshot in parts.
fn receive(store: &Store, meta: &SnapshotMeta, bytes: &[u8]) -> Result<SnapshotData, LogError> {
    let mut receiver = store.receive_snapshot(meta.last_log_id.unwrap())?;
    bytes.chunks(50).try_for_each(|chunk| receiver.write(chunk))?;
    receiver.verify()?;
    Ok(SnapshotData::Received(receiver))
}

#[test]
fn a_snapshot_restores_the_state_here_and_at_another_member() {
    Group::run(async {
        let (disk, other_disk) = (CrashDisk::new(), CrashDisk::new());
        let mut member = Member::open(&disk);
        member.append(&entries_with_records(0..10)).await;
        let first = member.make_snapshot().await;
        assert_eq!(first.meta.last_log_id, Some(log_id(2, 9)));
        member.append(&entries_with_records(10..15)).await;
        let snapshot = member.make_snapshot().await;
        assert_eq!(snapshot.meta.last_log_id, Some(log_id(2, 14)));
        assert_eq!(*snapshot.meta.last_membership.log_id(), Some(log_id(2, 13)));
        member.append(&entries_with_records(15..16)).await;
        let at_snapshot = member.list()[..member.list().len() - 2].to_vec();

        // After a restart, the state is that of the snapshot; openraft applies the entries after it.
        member.store.close().unwrap();
        let mut again = Member::open(&disk);
        assert_eq!(again.list(), at_snapshot);
        let (applied, membership) = again.machine.applied_state().await.unwrap();
        assert_eq!((applied, membership), (snapshot.meta.last_log_id, snapshot.meta.last_membership.clone()));

        // Another member has a few entries, receives the file, and continues after it.
        let mut other = Member::open(&other_disk);
        other.append(&entries_with_records(0..3)).await;
        let bytes = bytes_of(&snapshot);
        let cut = receive(&other.store, &snapshot.meta, &bytes[..bytes.len() - 1]);
        assert!(cut.is_err_and(|error| error.is_damage()));
        assert!(other_disk.files().keys().all(|name| !name.starts_with("snapshot")), "it was removed");
        let received = receive(&other.store, &snapshot.meta, &bytes).unwrap();
        other.machine.install_snapshot(&snapshot.meta, received).await.unwrap();
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

#[test]
fn a_damaged_newest_snapshot_is_replaced_by_the_older_one_and_the_entries_after_it() {
    Group::run(async {
        let disk = CrashDisk::new();
        let mut member = Member::open(&disk);
        for (first, next) in [(0, 10), (10, 15)] {
            member.append(&entries_with_records(first..next)).await;
            let snapshot = member.make_snapshot().await;
            member.store.purge(snapshot.meta.last_log_id.unwrap()).await.unwrap();
        }
        member.append(&entries_with_records(15..18)).await;
        let list = member.list();
        member.store.close().unwrap();
        let name = "snapshot-00000000000000000015.snap";
        let mut bytes = disk.files()[name].clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        disk.set_file(name, bytes);

        // The second time, the damaged file has another name.
        for _ in 0..2 {
            let mut member = Member::open(&disk);
            let (applied, entries) = member.start().await.unwrap();
            assert_eq!(applied, Some(log_id(2, 9)));
            assert_eq!(entries, entries_with_records(10..18));
            let entries = entries.into_iter().map(|entry| Ok((entry, None)));
            member.machine.apply(tokio_stream::iter(entries)).await.unwrap();
            assert_eq!(member.list(), list);
            member.store.close().unwrap();
        }
    });
}

#[test]
fn a_member_that_is_behind_can_read_what_snapshots_include_until_it_is_purged() {
    Group::run(async {
        let disk = CrashDisk::new();
        let mut member = Member::open(&disk);
        let mut reader = member.store.get_log_reader().await;
        for first in [0, 10, 20] {
            member.append(&entries_with_records(first..first + 10)).await;
            let _snapshot = member.make_snapshot().await;
            let found = reader.limited_get_log_entries(first / 2, first / 2 + 3).await.unwrap();
            assert_eq!(found, entries_with_records(first / 2..first / 2 + 3));
        }
        let segments = || disk.files().keys().filter(|name| name.starts_with("edits-")).count();
        assert_eq!(segments(), 4);
        member.store.purge(log_id(2, 29)).await.unwrap();
        assert_eq!(segments(), 2, "those before the older snapshot are removed");
        member.append(&entries_with_records(30..31)).await;
        assert_eq!(reader.try_get_log_entries(0..40).await.unwrap(), entries_with_records(30..31));
    });
}

/// Calls `meanwhile` when the next segment is opened for reading.
fn on_next_read(disk: &CrashDisk, meanwhile: impl Fn() + Send + Sync + 'static) {
    let is_called = AtomicBool::new(false);
    disk.call_before(move |call| {
        if matches!(call, Call::Open(name) if name.starts_with("edits-"))
            && !is_called.swap(true, Ordering::Relaxed)
        {
            meanwhile();
        }
    });
}

#[test]
fn a_reader_that_meets_the_removal_of_entries_returns_what_is_there_after_it() {
    Group::run(async {
        let disk = CrashDisk::new();
        let mut member = Member::open(&disk);
        for first in [0, 10] {
            member.append(&entries_with_records(first..first + 10)).await;
            let _snapshot = member.make_snapshot().await;
        }
        // All but the last are in segments only.
        for indexes in [20..29, 29..30] {
            append(&mut member.store, entries_with_records(indexes)).await.unwrap();
        }
        let mut reader = member.store.get_log_reader().await;
        let runtime = tokio::runtime::Handle::current();

        // Entries are removed from the end, and others take their place.
        let (store, handle) = (member.store.clone(), runtime.clone());
        on_next_read(&disk, move || {
            let mut store = store.clone();
            handle.block_on(async {
                store.truncate_after(Some(log_id(2, 22))).await.unwrap();
                append(&mut store, entries_of_term(3, 23..26)).await.unwrap();
            });
        });
        let found = reader.try_get_log_entries(20..30).await.unwrap();
        let expected = [entries_with_records(20..23), entries_of_term(3, 23..26)].concat();
        assert_eq!(found, expected);

        // Entries are removed from the start.
        let store = member.store.clone();
        on_next_read(&disk, move || {
            let mut store = store.clone();
            runtime.block_on(async { store.purge(log_id(2, 19)).await.unwrap() });
        });
        assert_eq!(reader.try_get_log_entries(5..30).await.unwrap(), expected);
    });
}

/// Installs the snapshot in `bytes` at a member whose log contradicts it, as openraft does. Stops
/// when the disk fails. Returns how many steps were done.
async fn install(disk: &CrashDisk, meta: &SnapshotMeta, bytes: &[u8]) -> usize {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let Ok(mut store) = Store::open_with_memory(&shared, 1, 1) else { return 0 };
    let state = Arc::new(ListOfRecords::default());
    let Ok(mut machine) = Machine::open(store.clone(), state, "m1:9400") else { return 0 };
    let mut entries = entries_with_records(0..3);
    // The last of these are of a leader that was deposed.
    entries.extend(entries_with_records(3..20));
    if append(&mut store, entries).await.is_err() {
        return 0;
    }
    let Ok(received) = receive(&store, meta, bytes) else { return 1 };
    if store.truncate_after(Some(log_id(2, 2))).await.is_err() {
        return 1;
    }
    if machine.install_snapshot(meta, received).await.is_err() {
        return 2;
    }
    if store.purge(meta.last_log_id.unwrap()).await.is_err() {
        return 3;
    }
    if append(&mut store, entries_of_term(3, 15..18)).await.is_err() {
        return 4;
    }
    5
}

#[test]
fn a_member_starts_after_a_crash_at_any_moment_of_an_installation() {
    Group::run(async {
        let mut leader = Member::open(&CrashDisk::new());
        leader.append(&entries_with_records(0..3)).await;
        leader.append(&entries_of_term(3, 3..15)).await;
        let list = leader.list();
        let snapshot = leader.make_snapshot().await;
        let (meta, bytes) = (&snapshot.meta, bytes_of(&snapshot));
        let disk = CrashDisk::new();
        assert_eq!(install(&disk, meta, &bytes).await, 5);
        let mut outcomes = BTreeSet::new();
        for point in 0..disk.operations() {
            let disk = CrashDisk::new();
            disk.crash_after(point);
            let done = install(&disk, meta, &bytes).await;
            let cases = [Survive::Everything, Survive::SyncedOnly].into_iter();
            for survive in cases.chain((0..10).map(Survive::Seeded)) {
                let context = format!("crash at {point} after {done} steps, {survive:?}");
                let mut member = Member::open(&disk.after_crash(survive));
                let (applied, entries) =
                    member.start().await.unwrap_or_else(|error| panic!("{context}: {error}"));
                if applied == meta.last_log_id {
                    assert!(done >= 2, "{context}");
                    assert_eq!(member.list(), list, "{context}");
                    let expected = entries_of_term(3, 15..18);
                    assert!(expected.starts_with(&entries), "{context}: {entries:?}");
                    assert!(done < 5 || entries.len() == 3, "{context}");
                } else {
                    assert!(done < 3 && applied.is_none(), "{context}: {applied:?}");
                    let expected = entries_with_records(0..20);
                    assert!(expected.starts_with(&entries), "{context}: {entries:?}");
                    assert!(done == 0 || entries.len() >= 3, "{context}: acknowledged entries are lost");
                }
                outcomes.insert((done, applied));
                // It can receive the snapshot again.
                if applied.is_none() && done > 0 {
                    let received = receive(&member.store, meta, &bytes).unwrap();
                    member.store.truncate_after(Some(log_id(2, 2))).await.unwrap();
                    member.machine.install_snapshot(meta, received).await.unwrap();
                    member.store.purge(meta.last_log_id.unwrap()).await.unwrap();
                    assert_eq!(member.list(), list, "{context}");
                }
            }
        }
        assert!(outcomes.contains(&(1, None)) && outcomes.contains(&(3, meta.last_log_id)), "{outcomes:?}");
    });
}

#[test]
fn entries_that_are_applied_are_read_in_steps() {
    Group::run(async {
        let disk = CrashDisk::new();
        let mut store = open(&disk).await.unwrap();
        let entry = |index| {
            let payload = EntryPayload::Normal(Proposal::of(&[vec![index as u8; 1 << 20]]));
            Entry { log_id: log_id(1, index), payload }
        };
        for index in 0..20 {
            append(&mut store, vec![entry(index)]).await.unwrap();
        }
        let mut reader = store.get_log_reader().await;
        for range in [0..20, 3..4, 19..20, 5..18] {
            let stream = reader.entries_stream(range.clone()).await;
            let found: Vec<Entry> = stream.map(Result::unwrap).collect().await;
            assert_eq!(found, range.map(entry).collect::<Vec<_>>());
        }
        // The end of the file is not needed for the first entries.
        disk.fail_reads("edits-00000000000000000001.log", (15 << 20)..(16 << 20));
        let stream = reader.entries_stream(0..20).await;
        let read: Vec<bool> = stream.map(|entry| entry.is_ok()).collect().await;
        assert!(read.iter().filter(|is_read| **is_read).count() >= 8, "{read:?}");
        assert_eq!(read.last(), Some(&false));
    });
}

#[tokio::test]
async fn nothing_waits_for_the_disk_in_the_runtime() {
    let disk = CrashDisk::new();
    let mut store = open(&disk).await.unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    // It ends in any case, so that a failure is reported.
    disk.call_before(move |call| {
        if call == Call::Sync {
            let _ended = released.lock().unwrap().recv_timeout(Duration::from_secs(10));
        }
    });
    let begin = Instant::now();
    let (mut voting, state) = (store.clone(), store.clone());
    let vote = tokio::spawn(async move { voting.save_vote(&Vote::new(7, 3)).await });
    let large = |index| {
        let payload = EntryPayload::Normal(Proposal::of(&[vec![7; 40 << 20]]));
        Entry { log_id: log_id(1, index), payload }
    };
    let appends = tokio::spawn(async move {
        let mut durable = Vec::new();
        for index in 0..3 {
            let (sender, receiver) = Group::oneshot();
            store.append([large(index)], IOFlushed::signal(sender)).await.unwrap();
            durable.push(receiver);
        }
        (store, durable)
    });
    // The disk is in a sync of the vote and in one of the entries.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(state.raft_state().vote, None);
    assert!(!appends.is_finished() && !vote.is_finished());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    drop(release);
    vote.await.unwrap().unwrap();
    let (store, durable) = appends.await.unwrap();
    for durable in durable {
        durable.await.unwrap().unwrap();
    }
    assert_eq!(store.raft_state().vote, Some(Vote::new(7, 3)));
}
