//! The log store of openraft: a [`journal::Log`] of entries, and the files of [`crate::raft_file`].
//!
//! Entry `index` is record `index + 1` of the journal. An entry that a single master wrote as a
//! record before it became a group counts as a proposal of term 0.
//!
//! The newest entries are in memory. Older entries, for a member that is far behind, are read from
//! the segments.

use crate::{
    codec::{decode_entry, encode_entry},
    error::StoreError,
    raft_file::{CommittedFile, RaftFile, RaftState},
    types::{Entry, Group, LogId, Proposal, Vote, log_id},
};
use journal::{
    Content, Item, Log, LogError, LogFailed, Opened, Recovery, Replay, Seq, SnapshotReceiver,
    bugs::{self, Bug},
    disk::Disk,
    home::has_journal,
};
use openraft::{
    EntryPayload, LogState, OptionalSend, RaftLogReader,
    entry::RaftEntry,
    storage::{IOFlushed, RaftLogStorage},
};
use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::sync::mpsc;
use tokio_stream::Stream;

/// Maximum number of bytes of the entries in memory. Entries that are not durable stay in memory in
/// any case.
const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes of the entries in one message to a member, or of those that are applied
/// in one step; at least one entry.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// What an entry needs in memory besides its records.
const ENTRY_BYTES: usize = 64;

/// A function that is called when entries are durable, or when the log has failed before.
type WhenDurable = Box<dyn FnOnce(Result<(), LogFailed>) + Send>;

/// The log of a member. Clones share it.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

struct Shared {
    log: Log,
    /// Held while the file is written and synced.
    raft_file: Mutex<RaftFile>,
    /// What the file contains.
    raft_state: Mutex<RaftState>,
    committed_file: Mutex<CommittedFile>,
    newest: Mutex<Newest>,
    memory_bytes_max: usize,
    /// Number of times that entries were removed from the start or the end of the log. Held while
    /// that is done.
    removals: Mutex<u64>,
}

/// The entries in memory: the newest of the log, without a gap.
struct Newest {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Index of the next entry.
    next: u64,
}

/// Reads entries. Those that are read from segments in order need one pass.
pub struct Reader {
    store: Store,
    position: Option<Position>,
}

/// Entries that are read in steps, so that not all of them are in memory.
struct EntryStream {
    ready: VecDeque<Entry>,
    /// Receives the next steps; `None` if there are none.
    next: Option<mpsc::Receiver<io::Result<Vec<Entry>>>>,
}

/// A place in the segments.
struct Position {
    replay: Replay,
    /// Index of the entry that `replay` returns next.
    next: u64,
    /// [`Shared::removals`] when `replay` was opened.
    removals: u64,
}

impl Newest {
    /// Returns the index of the first entry in memory, or of the next entry if there is none.
    fn first(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    fn push(&mut self, entry: Entry) {
        assert!(
            self.entries.is_empty() || entry.index() == self.next,
            "entry {} follows entry {}",
            entry.index(),
            self.next - 1
        );
        self.bytes += entry_bytes(&entry);
        self.next = entry.index() + 1;
        self.entries.push_back(entry);
    }

    /// Removes the oldest entries until the others have at most `bytes_max` bytes. Entries from
    /// index `durable` on stay, and so does the last.
    fn limit(&mut self, bytes_max: usize, durable: u64) {
        while self.bytes > bytes_max && self.entries.len() > 1 && self.first() < durable {
            self.bytes -= self.entries.pop_front().map_or(0, |entry| entry_bytes(&entry));
        }
    }

    fn remove_before(&mut self, index: u64) {
        while !self.entries.is_empty() && self.first() < index {
            self.bytes -= self.entries.pop_front().map_or(0, |entry| entry_bytes(&entry));
        }
        self.next = self.next.max(index);
    }

    fn remove_from(&mut self, index: u64) {
        while self.next > index
            && let Some(entry) = self.entries.pop_back()
        {
            self.bytes -= entry_bytes(&entry);
            self.next -= 1;
        }
        self.next = self.next.min(index);
    }

    /// Returns the entries in memory from `start` to before `end`: at least one, and others while
    /// they have at most `bytes_max` bytes together.
    fn read(&self, start: u64, end: u64, bytes_max: usize) -> Vec<Entry> {
        let mut bytes = 0;
        let (skipped, count) = (start - self.first(), end.saturating_sub(start));
        let entries = self.entries.iter().skip(skipped as usize).take(count as usize);
        let fits = |entry: &&Entry| {
            bytes += entry_bytes(entry);
            bytes <= bytes_max || bytes == entry_bytes(entry)
        };
        entries.take_while(fits).cloned().collect()
    }
}

impl Store {
    /// Makes the folder of one master that of the first member of a group: until others join, the
    /// only one. The master is stopped, and has made a snapshot. Blocks.
    pub fn found(disk: &Arc<dyn Disk>, node_id: u64) -> Result<(), StoreError> {
        let log = Log::open(Arc::clone(disk), Content::Records, Recovery::Refuse)?.log;
        let newest = log.newest_snapshot()?.ok_or(StoreError::NoSnapshot)?;
        let purged = Some(log_id(0, newest.seq - 1));
        RaftFile::create(&**disk, RaftState { node_id, vote: Some(Vote::new(0, node_id)), purged })?;
        Ok(())
    }

    /// Opens the log of member `node_id`, or creates it. Damage is an error: a member that has lost
    /// acknowledged entries must not vote, and needs a new ID. Blocks.
    pub fn open(disk: &Arc<dyn Disk>, node_id: u64) -> Result<Self, StoreError> {
        Self::open_with_memory(disk, node_id, MEMORY_BYTES_MAX)
    }

    /// Like [`Self::open`], with another limit for the entries in memory.
    pub fn open_with_memory(
        disk: &Arc<dyn Disk>,
        node_id: u64,
        memory_bytes_max: usize,
    ) -> Result<Self, StoreError> {
        let found = RaftFile::open(&**disk)?;
        let is_new = found.is_none();
        // The file is created before the log. So a folder with entries and without the file has
        // lost its vote.
        let new = || RaftFile::create(&**disk, RaftState::new(node_id));
        let mut raft_file = found.map_or_else(new, Ok)?;
        let found = raft_file.state().node_id;
        if found != node_id {
            return Err(StoreError::OtherMember { found, expected: node_id });
        }
        let RaftState { vote, purged, .. } = raft_file.state();
        // A member votes only after its log was created durably.
        if vote.is_some() || purged.is_some() {
            let has_journal = has_journal(&**disk)?;
            if !has_journal {
                return Err(StoreError::JournalLost);
            }
        }
        let opened = Log::open(Arc::clone(disk), Content::Entries, Recovery::Refuse)?;
        opened.report("journal");
        let Opened { log, mut replay, .. } = opened;
        if is_new && log.last_seq() > 0 {
            return Err(StoreError::VoteLost);
        }
        let mut newest = Newest { entries: VecDeque::new(), bytes: 0, next: log.last_seq() };
        while let Some(entry) = next_entry(&mut replay)? {
            newest.push(entry);
            newest.limit(memory_bytes_max, u64::MAX);
        }
        // If the newest snapshot is damaged, the older one has replaced it, and the entries after that
        // are needed again. They are still there.
        let base = last_of_snapshot(&log)?;
        if raft_file.state().purged > base {
            raft_file.update(|state| state.purged = base)?;
        }
        let committed_file = CommittedFile::open(&**disk)?;
        let purged = raft_file.state().purged;
        if let Some(claimed) = purged.max(committed_file.committed())
            && log.last_seq() <= claimed.index
        {
            return Err(StoreError::Lost { claimed: claimed.index });
        }
        if let Some(purged) = purged {
            newest.remove_before(purged.index + 1);
        }
        Ok(Self(Arc::new(Shared {
            log,
            raft_state: Mutex::new(raft_file.state()),
            raft_file: Mutex::new(raft_file),
            committed_file: Mutex::new(committed_file),
            newest: Mutex::new(newest),
            memory_bytes_max,
            removals: Mutex::default(),
        })))
    }

    /// Returns the journal, for snapshots.
    pub(crate) fn log(&self) -> &Log {
        &self.0.log
    }

    /// Starts to receive a snapshot that another member has written, and whose last entry is `last`.
    pub fn receive_snapshot(&self, last: LogId) -> Result<SnapshotReceiver, LogError> {
        self.0.log.receive_snapshot(last.index + 1)
    }

    /// Closes the log, after openraft has ended. Blocks until everything that was appended is durable.
    pub fn close(&self) -> Result<(), LogFailed> {
        self.0.log.close()
    }

    /// Returns what is in the file `RAFT`.
    pub fn raft_state(&self) -> RaftState {
        *self.0.raft_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.0.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn removals(&self) -> MutexGuard<'_, u64> {
        self.0.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn committed_file(&self) -> MutexGuard<'_, CommittedFile> {
        self.0.committed_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`, which waits for the disk.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> io::Result<T> {
        let store = self.clone();
        let done = self.0.log.executor().spawn_blocking(move || work(&store)).await;
        done.map_err(io::Error::other)?.map_err(io::Error::other)
    }

    /// Changes the file `RAFT` durably. Everything that was appended before is durable first.
    fn update(&self, change: impl FnOnce(&mut RaftState)) -> Result<(), StoreError> {
        let log = &self.0.log;
        log.sync(log.last_seq()).map_err(LogError::from)?;
        let mut file = self.0.raft_file.lock().unwrap_or_else(PoisonError::into_inner);
        file.update(change)?;
        *self.0.raft_state.lock().unwrap_or_else(PoisonError::into_inner) = file.state();
        Ok(())
    }

    fn append_records(&self, entries: Vec<Entry>, records: &[Vec<u8>], done: WhenDurable) -> io::Result<()> {
        let last = self.0.log.append_then(records, done).map_err(io::Error::other)?;
        let mut newest = self.newest();
        for entry in entries {
            newest.push(entry);
        }
        assert_eq!(last, newest.next, "record {last} is not the last entry");
        newest.limit(self.0.memory_bytes_max, self.0.log.durable());
        Ok(())
    }

    fn truncate_from(&self, index: u64) -> Result<(), StoreError> {
        if index >= self.newest().next {
            return Ok(());
        }
        let mut removals = self.removals();
        *removals += 1;
        let log = &self.0.log;
        if !bugs::has(Bug::TruncationSkipped) {
            log.truncate_after(index).map_err(LogError::from)?;
        }
        let first = self.raft_state().purged.map_or(0, |purged| purged.index + 1);
        // The last entry is always in memory.
        let last = if first < index { next_entry(&mut log.read(index, index))? } else { None };
        let mut newest = self.newest();
        newest.remove_from(index);
        if let Some(last) = last.filter(|_| newest.entries.is_empty()) {
            newest.push(last);
        }
        Ok(())
    }

    fn purge_before(&self, index: u64, purged: LogId) -> Result<(), StoreError> {
        let mut removals = self.removals();
        *removals += 1;
        self.update(|state| state.purged = state.purged.max(Some(purged)))?;
        // A snapshot that is newer than the log was installed.
        if index > self.0.log.last_seq() {
            self.0.log.skip_to(index).map_err(LogError::from)?;
        }
        self.newest().remove_before(index);
        Ok(self.0.log.remove_segments(index)?)
    }

    /// Registers a finished snapshot. Entries that are not purged stay, because a member that is
    /// behind may need them.
    pub(crate) fn keep_snapshot(&self, seq: Seq) -> Result<(), StoreError> {
        self.0.log.keep_snapshot(seq)?;
        let purged = self.raft_state().purged.map_or(0, |purged| purged.index + 1);
        let mut removals = self.removals();
        *removals += 1;
        Ok(self.0.log.remove_segments(purged)?)
    }

    /// Returns entries like [`Reader::read`], if they are all in memory.
    fn read_memory(&self, start: u64, end: u64, bytes_max: usize) -> Option<Vec<Entry>> {
        let start = self.first_visible().max(start);
        let newest = self.newest();
        (start >= newest.first()).then(|| newest.read(start, end, bytes_max))
    }

    /// Returns the index of the first entry that is not purged.
    fn first_visible(&self) -> u64 {
        self.raft_state().purged.map_or(0, |purged| purged.index + 1)
    }
}

impl Reader {
    /// Returns entries from `start` to before `end`: at least one if there is one, and others while
    /// they have at most `bytes_max` bytes together. Blocks.
    fn read(&mut self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<Entry>, StoreError> {
        loop {
            let removals = *self.store.removals();
            let read = self.read_once(start, end, bytes_max, removals);
            if *self.store.removals() == removals {
                return read;
            }
            // Entries were removed meanwhile: a file may be missing, or others may have replaced some
            // of those that were read.
            self.position = None;
        }
    }

    fn read_once(
        &mut self,
        start: u64,
        end: u64,
        bytes_max: usize,
        removals: u64,
    ) -> Result<Vec<Entry>, StoreError> {
        let start = self.store.first_visible().max(start);
        let mut found = Vec::new();
        let mut bytes: usize = 0;
        loop {
            let at = start + found.len() as u64;
            let newest = self.store.newest();
            let (first, end) = (newest.first(), end.min(newest.next));
            if at >= end {
                return Ok(found);
            }
            if at >= first {
                let fits = |entry: &Entry| bytes.saturating_add(entry_bytes(entry)) <= bytes_max;
                if found.is_empty() || newest.entries.get((at - first) as usize).is_some_and(fits) {
                    found.extend(newest.read(at, end, bytes_max.saturating_sub(bytes)));
                }
                return Ok(found);
            }
            drop(newest);
            while let Some(entry) = self.read_segments(start + found.len() as u64, first, removals)? {
                bytes = bytes.saturating_add(entry_bytes(&entry));
                if bytes > bytes_max && !found.is_empty() {
                    // The reader continues with this entry.
                    self.position = None;
                    return Ok(found);
                }
                found.push(entry);
                if bytes >= bytes_max || start + found.len() as u64 == end {
                    return Ok(found);
                }
            }
        }
    }

    /// Returns the entry at `index`, from the segments; `None` if it is not before `end`. All
    /// entries before `end` are durable.
    fn read_segments(&mut self, index: u64, end: u64, removals: u64) -> Result<Option<Entry>, StoreError> {
        if index >= end {
            return Ok(None);
        }
        let kept = self.position.take();
        let kept = kept.filter(|position| (position.next, position.removals) == (index, removals));
        let mut position = kept.unwrap_or_else(|| Position {
            replay: self.store.log().read(index + 1, end),
            next: index,
            removals,
        });
        let entry = next_entry(&mut position.replay)?;
        position.next += 1;
        if entry.is_some() {
            self.position = Some(position);
            return Ok(entry);
        }
        // The replay ended where memory began when it was opened.
        let mut replay = self.store.log().read(index + 1, end);
        let entry = next_entry(&mut replay)?;
        self.position = Some(Position { replay, next: index + 1, removals });
        Ok(entry)
    }

    async fn read_blocking(&mut self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        if let Some(entries) = self.store.read_memory(start, end, bytes_max) {
            return Ok(entries);
        }
        let mut reader = Self { store: self.store.clone(), position: self.position.take() };
        let executor = self.store.log().executor();
        let read = executor.spawn_blocking(move || (reader.read(start, end, bytes_max), reader)).await;
        let (entries, reader) = read.map_err(io::Error::other)?;
        self.position = reader.position;
        entries.map_err(io::Error::other)
    }
}

impl Stream for EntryStream {
    type Item = io::Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(entry)));
            }
            let Some(next) = &mut self.next else { return Poll::Ready(None) };
            match ready!(next.poll_recv(context)) {
                Some(Ok(entries)) => self.ready = entries.into(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Returns the first index of a range, and the one after the last.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => *start + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => *end + 1,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<Group> for Reader {
    async fn entries_stream<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<Entry>> + OptionalSend {
        let (start, end) = bounds(&range);
        let in_memory = self.store.read_memory(start, end, MESSAGE_BYTES_MAX);
        if let Some(entries) = &in_memory
            && entries.last().is_none_or(|last| last.index() + 1 == end)
        {
            return EntryStream { ready: in_memory.unwrap_or_default().into(), next: None };
        }
        let mut reader = Self { store: self.store.clone(), position: self.position.take() };
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut next = start;
            while next < end {
                let entries = reader.read_blocking(next, end, MESSAGE_BYTES_MAX).await;
                let last = entries.as_ref().ok().and_then(|entries| entries.last()).map(RaftEntry::index);
                if sender.send(entries).await.is_err() {
                    return;
                }
                let Some(last) = last else { return };
                next = last + 1;
            }
        });
        EntryStream { ready: VecDeque::new(), next: Some(receiver) }
    }

    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let (start, end) = bounds(&range);
        self.read_blocking(start, end, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read_blocking(start, end, MESSAGE_BYTES_MAX).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.store.raft_state().vote)
    }
}

impl RaftLogStorage<Group> for Store {
    type LogReader = Reader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Group>> {
        let last_purged_log_id = self.raft_state().purged;
        let last_log_id = self.newest().entries.back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id, last_log_id: last_log_id.or(last_purged_log_id) })
    }

    async fn get_log_reader(&mut self) -> Reader {
        Reader { store: self.clone(), position: None }
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = *vote;
        if bugs::has(Bug::VoteNotStored) {
            self.0.raft_state.lock().unwrap_or_else(PoisonError::into_inner).vote = Some(vote);
            return Ok(());
        }
        self.run_blocking(move |store| store.update(|state| state.vote = Some(vote))).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        // A quorum may have committed what is not durable here, and openraft refuses to start if an
        // entry that is known to be committed is missing.
        let log = self.log();
        if committed.is_some_and(|last| (log.durable()..log.last_seq()).contains(&last.index)) {
            return Ok(());
        }
        self.committed_file().set(committed).map_err(io::Error::other)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.committed_file().committed())
    }

    async fn append<I>(&mut self, entries: I, done: IOFlushed<Group>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let records: Vec<Vec<u8>> = entries.iter().map(encode_entry).collect();
        let done: WhenDurable =
            Box::new(|result: Result<(), _>| done.io_completed(result.map_err(io::Error::other)));
        let bytes = records.iter().map(|record| 4 + record.len()).sum();
        if self.0.log.has_room_for(bytes) {
            return self.append_records(entries, &records, done);
        }
        // The disk does not keep up: this waits until there is room again.
        let store = self.clone();
        let executor = self.0.log.executor();
        let appended = executor.spawn_blocking(move || store.append_records(entries, &records, done)).await;
        appended.map_err(io::Error::other)?
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let index = last.map_or(0, |last| last.index + 1);
        self.run_blocking(move |store| store.truncate_from(index)).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.run_blocking(move |store| store.purge_before(upto.index + 1, upto)).await
    }
}

/// Returns the last entry that the newest snapshot includes.
fn last_of_snapshot(log: &Log) -> Result<Option<LogId>, StoreError> {
    let Some(newest) = log.newest_snapshot()? else { return Ok(None) };
    let replay = log.replay_snapshot(newest.seq)?;
    if replay.snapshot_content() == Some(Content::Records) {
        return Ok(Some(log_id(0, newest.seq - 1)));
    }
    Ok(crate::replay::Replay::from(replay).place()?.last_log_id)
}

/// Returns the next entry of a replay. Records of the snapshot are skipped.
fn next_entry(replay: &mut Replay) -> Result<Option<Entry>, StoreError> {
    loop {
        return match replay.next()? {
            None => Ok(None),
            Some(Item::Snapshot(_)) => continue,
            Some(Item::Record { seq, bytes }) => {
                let payload = EntryPayload::Normal(Proposal::of(&[bytes]));
                Ok(Some(Entry { log_id: log_id(0, seq - 1), payload }))
            }
            Some(Item::Entry { seq, bytes }) => {
                decode_entry(seq - 1, bytes).map(Some).ok_or(StoreError::Undecodable { seq })
            }
        };
    }
}

/// Returns about how many bytes of memory an entry needs.
fn entry_bytes(entry: &Entry) -> usize {
    let records = match &entry.payload {
        EntryPayload::Normal(proposal) => proposal.records.len(),
        _ => 0,
    };
    ENTRY_BYTES + records
}
