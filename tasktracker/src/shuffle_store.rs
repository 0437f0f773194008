//! The map outputs and checkpoints on this tracker, where their partitions and parts are, and the
//! tokens that give access to them.
//!
//! Indexes of map outputs and lists of the parts of checkpoints are read once and cached. The cache
//! has a limit, because a large job could need too much memory.

use crate::disks::{Disks, FoundFiles};
use engine::{
    checkpoint::{self, CheckpointPart},
    segment::{Extent, Index},
};
use mrlib_api::TaskError;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use types::{AttemptId, JobId, Secret};

/// Maximum number of entries in each cache. An entry takes about 50 bytes for a partition of a map
/// output, and about 80 bytes for a part of a checkpoint.
const CACHED_ENTRIES_MAX: usize = 128 << 10;

/// The files that the shuffle server serves.
#[derive(Debug, Default)]
pub(crate) struct ShuffleStore {
    inner: RwLock<Inner>,
    indexes: Mutex<EntryCache<Extent>>,
    parts: Mutex<EntryCache<CheckpointPart>>,
    /// Locked while the list of parts of a checkpoint is read. It is separate from the lock of the
    /// cache, so that cached lists can be used without waiting for a disk.
    reading_parts: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    outputs: HashMap<AttemptId, PathBuf>,
    /// Checkpoints and their folders.
    checkpoints: HashMap<AttemptId, Vec<PathBuf>>,
    tokens: HashMap<JobId, Token>,
}

/// The token of a job.
#[derive(Debug, Clone)]
struct Token {
    secret: Secret,
    /// Whether the token is on disk. Locked while the token is being written, so that there is only
    /// one writer.
    is_stored: Arc<Mutex<bool>>,
}

impl Token {
    fn new(bytes: Vec<u8>, is_stored: bool) -> Self {
        Self { secret: Secret::new(bytes), is_stored: Arc::new(Mutex::new(is_stored)) }
    }
}

/// A cache of the entries of attempts that were read from disk.
#[derive(Debug)]
struct EntryCache<T> {
    by_attempt: HashMap<AttemptId, Arc<[T]>>,
    /// The attempts in the cache, in the order in which they were added.
    attempts: VecDeque<AttemptId>,
    /// Total number of entries of all attempts.
    entry_count: usize,
}

impl<T> Default for EntryCache<T> {
    fn default() -> Self {
        Self { by_attempt: HashMap::new(), attempts: VecDeque::new(), entry_count: 0 }
    }
}

impl<T> EntryCache<T> {
    /// Adds the entries of an attempt, and removes the oldest ones if there are too many.
    fn add(&mut self, attempt: AttemptId, entries: Arc<[T]>) {
        self.entry_count += entries.len();
        if let Some(replaced) = self.by_attempt.insert(attempt, entries) {
            self.entry_count -= replaced.len();
        } else {
            self.attempts.push_back(attempt);
        }
        // The attempt that was added last is always kept, because it is about to be used again.
        while self.entry_count > CACHED_ENTRIES_MAX
            && self.attempts.len() > 1
            && let Some(oldest) = self.attempts.pop_front()
        {
            self.entry_count -= self.by_attempt.remove(&oldest).map_or(0, |entries| entries.len());
        }
    }

    fn forget(&mut self, which: impl Fn(AttemptId) -> bool) {
        self.attempts.retain(|attempt| !which(*attempt));
        self.by_attempt.retain(|attempt, _| !which(*attempt));
        self.entry_count = self.by_attempt.values().map(|entries| entries.len()).sum();
    }
}

impl ShuffleStore {
    /// Creates a store with the files of an earlier start.
    pub(crate) fn new(found: FoundFiles) -> Self {
        let inner = Inner {
            outputs: found.outputs.into_iter().collect(),
            checkpoints: found.checkpoints.into_iter().collect(),
            tokens: found.tokens.into_iter().map(|(job, token)| (job, Token::new(token, true))).collect(),
        };
        Self { inner: RwLock::new(inner), ..Self::default() }
    }

    /// Returns the folders of the checkpoint of an attempt.
    pub(crate) fn checkpoint(&self, attempt: AttemptId) -> Option<Vec<PathBuf>> {
        self.inner.read().checkpoints.get(&attempt).cloned()
    }

    /// Adds a checkpoint.
    pub(crate) fn add_checkpoint(&self, attempt: AttemptId, dirs: Vec<PathBuf>) {
        self.inner.write().checkpoints.insert(attempt, dirs);
    }

    /// Removes a checkpoint.
    pub(crate) fn drop_checkpoint(&self, attempt: AttemptId) {
        self.inner.write().checkpoints.remove(&attempt);
        self.parts.lock().forget(|other| other == attempt);
    }

    /// Returns the parts of the checkpoint of an attempt in the folders `dirs`. Only one list of
    /// parts is read at a time, because the list of a checkpoint that a program has made may be
    /// very large.
    pub(crate) fn checkpoint_parts(
        &self,
        attempt: AttemptId,
        dirs: &[PathBuf],
    ) -> Result<Arc<[CheckpointPart]>, TaskError> {
        let cached = || self.parts.lock().by_attempt.get(&attempt).cloned();
        if let Some(parts) = cached() {
            return Ok(parts);
        }
        let _reading = self.reading_parts.lock();
        if let Some(parts) = cached() {
            return Ok(parts);
        }
        let parts: Arc<[CheckpointPart]> = checkpoint::parts(dirs)?.into();
        // Do not cache the parts of a checkpoint that was dropped in the meantime.
        let mut cache = self.parts.lock();
        if self.checkpoint(attempt).is_some() {
            cache.add(attempt, parts.clone());
        }
        Ok(parts)
    }

    /// Returns the attempts with map outputs.
    pub(crate) fn attempts_with_output(&self) -> BTreeSet<AttemptId> {
        self.inner.read().outputs.keys().copied().collect()
    }

    /// Returns the path of the map output of an attempt.
    pub(crate) fn output(&self, attempt: AttemptId) -> Option<PathBuf> {
        self.inner.read().outputs.get(&attempt).cloned()
    }

    /// Adds a map output.
    pub(crate) fn add_output(&self, attempt: AttemptId, path: PathBuf, index: Index) {
        self.indexes.lock().add(attempt, index.extents.into());
        self.inner.write().outputs.insert(attempt, path);
    }

    /// Returns where each partition is in the map output of an attempt, whose path is `path`.
    pub(crate) fn extents(&self, attempt: AttemptId, path: &Path) -> Result<Arc<[Extent]>, TaskError> {
        if let Some(extents) = self.indexes.lock().by_attempt.get(&attempt) {
            return Ok(extents.clone());
        }
        let extents: Arc<[Extent]> = Index::read(path)?.extents.into();
        // Do not cache the index of an output that was removed in the meantime.
        if self.output(attempt).is_some() {
            self.indexes.lock().add(attempt, extents.clone());
        }
        Ok(extents)
    }

    /// Adds the token of a job, and stores it on disk for the next start.
    pub(crate) fn add_token(&self, job: JobId, token: &[u8], disks: &Disks) {
        let mut inner = self.inner.write();
        if inner.tokens.get(&job).is_none_or(|known| known.secret.bytes() != token) {
            inner.tokens.insert(job, Token::new(token.to_vec(), false));
        }
        drop(inner);
        if let Err(error) = self.ensure_token_stored(job, disks) {
            tracing::warn!(%job, %error, "cannot store the token of the job: a restart of this tracker loses its map outputs");
        }
    }

    /// Stores the token of a job on disk, unless it is already there. Returns the path of the file.
    pub(crate) fn ensure_token_stored(&self, job: JobId, disks: &Disks) -> io::Result<PathBuf> {
        let known = self.inner.read().tokens.get(&job).cloned();
        let Some(Token { secret, is_stored }) = known else {
            return Err(io::Error::other("the job has ended"));
        };
        let mut is_stored = is_stored.lock();
        if let Some(path) = disks.token(job).filter(|_| *is_stored) {
            return Ok(path);
        }
        let path = disks.store_token(job, secret.bytes())?;
        *is_stored = true;
        Ok(path)
    }

    /// Returns whether this token gives access to a partition of the map outputs or checkpoints of
    /// the job. Compares in constant time.
    pub(crate) fn is_valid_token(&self, job: JobId, partition: u32, token: &[u8]) -> bool {
        let inner = self.inner.read();
        let Some(known) = inner.tokens.get(&job).filter(|known| !known.secret.bytes().is_empty()) else {
            return false;
        };
        security::is_partition_token_valid(token, known.secret.bytes(), &job.to_string(), partition)
    }

    /// Removes the outputs, checkpoints and token of a job that has ended.
    pub(crate) fn forget(&self, job: JobId) {
        let mut inner = self.inner.write();
        inner.outputs.retain(|attempt, _| attempt.job() != job);
        inner.checkpoints.retain(|attempt, _| attempt.job() != job);
        inner.tokens.remove(&job);
        drop(inner);
        self.indexes.lock().forget(|attempt| attempt.job() == job);
        self.parts.lock().forget(|attempt| attempt.job() == job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Phase, TaskId};

    #[test]
    fn only_the_token_of_the_job_and_partition_is_valid() {
        let found = FoundFiles {
            tokens: [(JobId(1), b"secret".to_vec()), (JobId(2), Vec::new())].into(),
            ..FoundFiles::default()
        };
        let shuffle_store = ShuffleStore::new(found);
        let token = security::partition_token(b"secret", "job_1", 7);
        assert!(shuffle_store.is_valid_token(JobId(1), 7, &token));
        assert!(!shuffle_store.is_valid_token(JobId(1), 6, &token));
        for wrong in [&b"secret"[..], &token[1..], &token[..31], b""] {
            assert!(!shuffle_store.is_valid_token(JobId(1), 7, wrong), "{wrong:?}");
        }
        assert!(!shuffle_store.is_valid_token(JobId(2), 7, b""));
        assert!(!shuffle_store.is_valid_token(JobId(2), 7, &security::partition_token(b"", "job_2", 7)));
        assert!(!shuffle_store.is_valid_token(JobId(3), 7, &token));
    }

    #[test]
    fn token_that_could_not_be_stored_is_stored_by_the_next_call() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::open(&[dir.path().to_owned()], 0).unwrap().0;
        let path = dir.path().join("jobs/job_1/token");
        let shuffle_store = ShuffleStore::default();
        assert!(shuffle_store.ensure_token_stored(JobId(1), &disks).is_err(), "the token is unknown");
        // A file in place of the folder of the job prevents that the token is stored, as a full
        // disk does.
        std::fs::write(path.parent().unwrap(), "").unwrap();
        shuffle_store.add_token(JobId(1), b"secret", &disks);
        let dirs = vec![dir.path().join("jobs")];
        let id = "job_1.r0.0".parse().unwrap();
        let error =
            crate::checkpoints::make_durable(id, &dirs, &disks, &shuffle_store).unwrap_err().to_string();
        assert!(error.contains("the token of job_1"), "{error}");
        std::fs::remove_file(path.parent().unwrap()).unwrap();
        crate::checkpoints::make_durable(id, &dirs, &disks, &shuffle_store).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        // Concurrent writers do not conflict.
        for job in 2..50 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| shuffle_store.add_token(JobId(job), b"secret", &disks));
                }
            });
            assert_eq!(
                std::fs::read(shuffle_store.ensure_token_stored(JobId(job), &disks).unwrap()).unwrap(),
                b"secret"
            );
        }
    }

    #[test]
    fn indexes_are_cached_up_to_a_limit_and_removed_with_their_job() {
        let shuffle_store = ShuffleStore::default();
        let partitions = 10_000;
        let id = |job, index| TaskId { job: JobId(job), phase: Phase::Map, index }.attempt(0);
        for number in 0..30 {
            let index = Index { extents: vec![Extent::default(); partitions] };
            shuffle_store.add_output(id(1 + number % 2, number), "/nowhere".into(), index);
        }
        let cached = shuffle_store.indexes.lock().by_attempt.len();
        assert_eq!(cached, CACHED_ENTRIES_MAX / partitions);
        assert!(shuffle_store.extents(id(2, 29), Path::new("/nowhere")).is_ok());
        assert!(shuffle_store.extents(id(1, 0), Path::new("/nowhere")).is_err());
        for job in [1, 2] {
            shuffle_store.forget(JobId(job));
        }
        let indexes = shuffle_store.indexes.lock();
        assert_eq!((indexes.by_attempt.len(), indexes.attempts.len(), indexes.entry_count), (0, 0, 0));
    }
}
