//! The log store: one file per member with group commit in a writer thread, and the file `RAFT`
//! (two slots) with vote, committed and purged position.
//!
//! `append` encodes the entries, puts them into memory, and hands the bytes and the callback to the
//! writer. The writer takes everything that waits, writes it with one `write`, syncs once, and then
//! completes the callbacks. Votes, truncations and purges go through the same thread, so that their
//! order with the appends is the order of the calls.
//!
//! Absent (the journal has them): segments, torn-tail detection, byte-bounded cache.

use crate::types::{Entry, Group, LogId, Vote, code};
use crossbeam::channel::{Receiver, Sender, unbounded};
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    entry::RaftEntry,
    storage::{IOFlushed, RaftLogStorage},
};
use std::{
    collections::VecDeque,
    fmt::Debug,
    fs::{File, OpenOptions},
    io::{self, Write},
    ops::{Bound, RangeBounds},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
use tokio::sync::oneshot;

/// Bytes that one `limited_get_log_entries` returns at most (but at least one entry).
const READ_BYTES_MAX: usize = 4 << 20;
const SLOT_STRIDE: u64 = 4096;

#[derive(Clone)]
pub struct Store(Arc<Shared>);

pub struct Shared {
    state: Mutex<State>,
    work: Sender<Work>,
    pub stats: Stats,
    pub folder: PathBuf,
}

#[derive(Default)]
pub struct Stats {
    pub batches: AtomicU64,
    pub entries: AtomicU64,
    /// Number of calls of `append`.
    pub appends: AtomicU64,
    pub truncations: AtomicU64,
}

/// What is in memory. Everything in it is visible to readers at once, durable or not.
#[derive(Default)]
struct State {
    raft: RaftFile,
    entries: VecDeque<(Entry, u64)>,
    /// Length of the file after everything that was handed to the writer.
    file_bytes: u64,
}

/// Contents of `RAFT`.
#[derive(Debug, Default, Clone)]
pub struct RaftFile {
    pub node_id: u64,
    pub vote: Option<Vote>,
    pub purged: Option<LogId>,
    pub committed: Option<LogId>,
}

enum Work {
    Append {
        bytes: Vec<u8>,
        count: u64,
        done: IOFlushed<Group>,
    },
    /// For measurements without Raft.
    Plain {
        bytes: Vec<u8>,
        done: oneshot::Sender<()>,
    },
    Raft {
        file: RaftFile,
        sync: bool,
        done: Option<oneshot::Sender<io::Result<()>>>,
    },
    Truncate {
        to: u64,
        done: oneshot::Sender<io::Result<()>>,
    },
}

impl RaftFile {
    fn encode(&self, counter: u64) -> Vec<u8> {
        let mut out = Vec::new();
        code::put_u64(&mut out, counter);
        code::put_u64(&mut out, self.node_id);
        code::put_vote(&mut out, self.vote.as_ref());
        code::put_log_id(&mut out, self.purged.as_ref());
        code::put_log_id(&mut out, self.committed.as_ref());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns the newest valid slot and its counter.
    pub fn read(folder: &Path) -> io::Result<Option<(Self, u64)>> {
        let Ok(file) = File::open(folder.join("RAFT")) else { return Ok(None) };
        let length = RaftFile::default().encode(0).len();
        let mut newest = None;
        for slot in 0..2 {
            let mut bytes = vec![0; length];
            if file.read_exact_at(&mut bytes, slot * SLOT_STRIDE).is_err() {
                continue;
            }
            let (body, crc) = bytes.split_at(length - 4);
            if crc32c::crc32c(body).to_le_bytes() != crc {
                continue;
            }
            let mut reader = code::Reader(body);
            let counter = reader.u64();
            let found = Self {
                node_id: reader.u64(),
                vote: reader.vote(),
                purged: reader.log_id(),
                committed: reader.log_id(),
            };
            if newest.as_ref().is_none_or(|(_, other)| counter > *other) {
                newest = Some((found, counter));
            }
        }
        Ok(newest)
    }

    /// Writes a new file durably. Used to make the one-member state by hand.
    pub fn create(&self, folder: &Path) -> io::Result<()> {
        let file = File::create(folder.join("RAFT"))?;
        file.write_all_at(&self.encode(1), SLOT_STRIDE)?;
        file.sync_all()?;
        File::open(folder)?.sync_all()
    }
}

impl Store {
    pub fn open(folder: impl Into<PathBuf>, node_id: u64) -> io::Result<Self> {
        let folder = folder.into();
        std::fs::create_dir_all(&folder)?;
        let (raft, counter) = match RaftFile::read(&folder)? {
            Some(found) => found,
            None => {
                let new = RaftFile { node_id, ..RaftFile::default() };
                new.create(&folder)?;
                (new, 1)
            }
        };
        assert_eq!(raft.node_id, node_id, "the folder is of another node");
        let path = folder.join("log");
        let log = OpenOptions::new().append(true).read(true).create(true).open(&path)?;
        let bytes = std::fs::read(&path)?;
        let (mut at, mut entries) = (0, VecDeque::new());
        while let Some(head) = bytes.get(at..at + 8) {
            let len = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
            let Some(body) = bytes.get(at + 8..at + 8 + len) else { break };
            if crc32c::crc32c(body).to_le_bytes() != head[4..8] {
                break;
            }
            let entry = code::Reader(body).entry();
            if raft.purged.is_none_or(|purged| entry.index() > purged.index) {
                entries.push_back((entry, at as u64));
            }
            at += 8 + len;
        }
        log.set_len(at as u64)?; // a torn tail
        let (work, queue) = unbounded();
        let raft_file = OpenOptions::new().write(true).open(folder.join("RAFT"))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { raft, entries, file_bytes: at as u64 }),
            work,
            stats: Stats::default(),
            folder,
        });
        let weak = Arc::downgrade(&shared);
        let writer = Writer { log, raft_file, counter, queue };
        thread::Builder::new().name(format!("log-{node_id}")).spawn(move || writer.run(&weak))?;
        Ok(Self(shared))
    }

    pub fn shared(&self) -> &Shared {
        &self.0
    }

    /// Appends without Raft and waits until durable: the baseline.
    pub async fn append_plain(&self, record: &[u8]) {
        let (done, wait) = oneshot::channel();
        let mut bytes = Vec::with_capacity(record.len() + 8);
        bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(record).to_le_bytes());
        bytes.extend_from_slice(record);
        self.0.work.send(Work::Plain { bytes, done }).expect("the writer runs");
        wait.await.expect("the writer answers");
    }

    async fn change_raft_file(&self, sync: bool, change: impl FnOnce(&mut RaftFile)) -> io::Result<()> {
        let (done, wait) = oneshot::channel();
        {
            let mut state = self.0.state.lock().unwrap();
            change(&mut state.raft);
            let file = state.raft.clone();
            // Sent under the lock, so that slots are written in the order of the changes.
            let done = sync.then_some(done);
            self.0.work.send(Work::Raft { file, sync, done }).map_err(io::Error::other)?;
        }
        if sync { wait.await.map_err(io::Error::other)? } else { Ok(()) }
    }

    fn range(&self, range: impl RangeBounds<u64>, bytes_max: usize) -> Vec<Entry> {
        let state = self.0.state.lock().unwrap();
        let Some(first) = state.entries.front().map(|(entry, _)| entry.index()) else { return Vec::new() };
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => *start + 1,
            Bound::Unbounded => 0,
        };
        let mut bytes = 0;
        let mut found = Vec::new();
        for (entry, _) in state.entries.iter().skip(start.saturating_sub(first) as usize) {
            if !range.contains(&entry.index()) {
                break;
            }
            bytes += entry_bytes(entry);
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        found
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    match &entry.payload {
        openraft::EntryPayload::Normal(proposal) => proposal.records.len() + 32,
        _ => 64,
    }
}

impl RaftLogReader<Group> for Store {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        Ok(self.range(range, usize::MAX))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        Ok(self.range(start..end, READ_BYTES_MAX))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.state.lock().unwrap().raft.vote)
    }
}

impl RaftLogStorage<Group> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Group>> {
        let state = self.0.state.lock().unwrap();
        let last_purged_log_id = state.raft.purged;
        let last_log_id = state.entries.back().map(|(entry, _)| entry.log_id).or(last_purged_log_id);
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.change_raft_file(true, |raft| raft.vote = Some(*vote)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.change_raft_file(false, |raft| raft.committed = committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.0.state.lock().unwrap().raft.committed)
    }

    async fn append<I>(&mut self, entries: I, done: IOFlushed<Group>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (mut bytes, mut count) = (Vec::new(), 0);
        let mut state = self.0.state.lock().unwrap();
        for entry in entries {
            let at = bytes.len();
            bytes.extend_from_slice(&[0; 8]);
            code::put_entry(&mut bytes, &entry);
            let len = (bytes.len() - at - 8) as u32;
            let crc = crc32c::crc32c(&bytes[at + 8..]);
            bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
            let offset = state.file_bytes + at as u64;
            if let Some((last, _)) = state.entries.back() {
                assert_eq!(last.index() + 1, entry.index(), "the log must have no gap");
            }
            state.entries.push_back((entry, offset));
            count += 1;
        }
        state.file_bytes += bytes.len() as u64;
        self.0.stats.appends.fetch_add(1, Ordering::Relaxed);
        self.0.work.send(Work::Append { bytes, count, done }).map_err(io::Error::other)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let (done, wait) = oneshot::channel();
        {
            let mut state = self.0.state.lock().unwrap();
            let keep = last.map_or(0, |last| last.index + 1);
            let mut to = state.file_bytes;
            while state.entries.back().is_some_and(|(entry, _)| entry.index() >= keep) {
                to = state.entries.pop_back().unwrap().1;
            }
            state.file_bytes = to;
            self.0.stats.truncations.fetch_add(1, Ordering::Relaxed);
            self.0.work.send(Work::Truncate { to, done }).map_err(io::Error::other)?;
        }
        wait.await.map_err(io::Error::other)?
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.change_raft_file(true, |raft| raft.purged = raft.purged.max(Some(upto))).await?;
        let emptied = {
            let mut state = self.0.state.lock().unwrap();
            while state.entries.front().is_some_and(|(entry, _)| entry.index() <= upto.index) {
                state.entries.pop_front();
            }
            state.entries.is_empty()
        };
        // A snapshot beyond the end of the log was installed: nothing of the file is needed.
        if emptied {
            let (done, wait) = oneshot::channel();
            {
                let mut state = self.0.state.lock().unwrap();
                state.file_bytes = 0;
                self.0.work.send(Work::Truncate { to: 0, done }).map_err(io::Error::other)?;
            }
            wait.await.map_err(io::Error::other)??;
        }
        Ok(())
    }
}

struct Writer {
    log: File,
    raft_file: File,
    counter: u64,
    queue: Receiver<Work>,
}

/// An append that waits for the sync.
enum Done {
    Raft(IOFlushed<Group>),
    Plain(oneshot::Sender<()>),
}

impl Writer {
    /// Runs until the store is dropped.
    fn run(mut self, shared: &std::sync::Weak<Shared>) {
        let (mut buffer, mut waiting, mut count) = (Vec::new(), Vec::new(), 0);
        while let Ok(first) = self.queue.recv() {
            let mut next = Some(first);
            while let Some(work) = next {
                match work {
                    Work::Append { bytes, count: more, done } => {
                        buffer.extend_from_slice(&bytes);
                        count += more;
                        waiting.push(Done::Raft(done));
                    }
                    Work::Plain { bytes, done } => {
                        buffer.extend_from_slice(&bytes);
                        count += 1;
                        waiting.push(Done::Plain(done));
                    }
                    Work::Raft { file, sync, done } => {
                        if sync {
                            self.flush(&mut buffer, &mut waiting, &mut count, shared);
                        }
                        self.counter += 1;
                        let slot = file.encode(self.counter);
                        let at = self.counter % 2 * SLOT_STRIDE;
                        let mut result = self.raft_file.write_all_at(&slot, at);
                        if sync && result.is_ok() {
                            result = self.raft_file.sync_data();
                        }
                        if let Some(done) = done {
                            let _gone = done.send(result);
                        }
                    }
                    Work::Truncate { to, done } => {
                        self.flush(&mut buffer, &mut waiting, &mut count, shared);
                        let result = self.log.set_len(to).and_then(|()| self.log.sync_data());
                        let _gone = done.send(result);
                    }
                }
                next = self.queue.try_recv().ok();
            }
            self.flush(&mut buffer, &mut waiting, &mut count, shared);
        }
    }

    fn flush(
        &mut self,
        buffer: &mut Vec<u8>,
        waiting: &mut Vec<Done>,
        count: &mut u64,
        shared: &std::sync::Weak<Shared>,
    ) {
        if waiting.is_empty() {
            return;
        }
        // An append of no entries needs no sync.
        if !buffer.is_empty() {
            self.log.write_all(buffer).expect("write the log");
            self.log.sync_data().expect("sync the log");
        }
        if let Some(shared) = shared.upgrade() {
            shared.stats.batches.fetch_add(1, Ordering::Relaxed);
            shared.stats.entries.fetch_add(*count, Ordering::Relaxed);
        }
        buffer.clear();
        *count = 0;
        for done in waiting.drain(..) {
            match done {
                Done::Raft(done) => done.io_completed(Ok(())),
                Done::Plain(done) => _ = done.send(()),
            }
        }
    }
}
