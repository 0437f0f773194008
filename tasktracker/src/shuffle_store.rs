//! Map outputs and checkpoints on this tracker, the positions of their partitions, and the tokens
//! for access.
//!
//! Indexes, and the lists of parts of checkpoints, are read once and cached up to a limit, because
//! those of a large job may need too much memory.

use crate::disks::{Disks, Found};
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

/// Maximum number of cached partitions, of about 50 bytes each, and of cached parts of checkpoints,
/// of about 80.
const ENTRIES_MAX: usize = 128 << 10;

/// Contents that the shuffle server serves.
#[derive(Debug, Default)]
pub(crate) struct ShuffleStore {
    inner: RwLock<Inner>,
    indexes: Mutex<Read<Extent>>,
    parts: Mutex<Read<CheckpointPart>>,
    /// Locked while a checkpoint is read. Separate from the cache, so that cached ones can be used
    /// without waiting for a disk.
    reading: Mutex<()>,
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
    /// Whether it is on disk. Locked while it is being written, so that there is only one writer.
    is_stored: Arc<Mutex<bool>>,
}

impl Token {
    fn new(bytes: Vec<u8>, is_stored: bool) -> Self {
        Self { secret: Secret::new(bytes), is_stored: Arc::new(Mutex::new(is_stored)) }
    }
}

/// A cache of entries read from disk.
#[derive(Debug)]
struct Read<T> {
    known: HashMap<AttemptId, Arc<[T]>>,
    oldest: VecDeque<AttemptId>,
    entries: usize,
}

impl<T> Default for Read<T> {
    fn default() -> Self {
        Self { known: HashMap::new(), oldest: VecDeque::new(), entries: 0 }
    }
}

impl<T> Read<T> {
    fn add(&mut self, attempt: AttemptId, entries: Arc<[T]>) {
        self.entries += entries.len();
        if let Some(before) = self.known.insert(attempt, entries) {
            self.entries -= before.len();
        } else {
            self.oldest.push_back(attempt);
        }
        // The newest is kept, because it is about to be used again.
        while self.entries > ENTRIES_MAX
            && self.oldest.len() > 1
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.entries -= self.known.remove(&oldest).map_or(0, |entries| entries.len());
        }
    }

    fn forget(&mut self, which: impl Fn(AttemptId) -> bool) {
        self.oldest.retain(|attempt| !which(*attempt));
        self.known.retain(|attempt, _| !which(*attempt));
        self.entries = self.known.values().map(|entries| entries.len()).sum();
    }
}

impl ShuffleStore {
    /// Starts with the files of an earlier start.
    pub(crate) fn new(found: Found) -> Self {
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

    /// Returns the parts of the checkpoint of an attempt in `dirs`. Only one checkpoint is read at
    /// a time, because programs may have made them very large.
    pub(crate) fn parts(
        &self,
        attempt: AttemptId,
        dirs: &[PathBuf],
    ) -> Result<Arc<[CheckpointPart]>, TaskError> {
        let known = || self.parts.lock().known.get(&attempt).cloned();
        if let Some(known) = known() {
            return Ok(known);
        }
        let _turn = self.reading.lock();
        if let Some(known) = known() {
            return Ok(known);
        }
        let parts: Arc<[CheckpointPart]> = checkpoint::parts(dirs)?.into();
        // It may have been dropped in the meantime.
        let mut read = self.parts.lock();
        if self.checkpoint(attempt).is_some() {
            read.add(attempt, parts.clone());
        }
        Ok(parts)
    }

    /// Returns the attempts with map outputs.
    pub(crate) fn attempts(&self) -> BTreeSet<AttemptId> {
        self.inner.read().outputs.keys().copied().collect()
    }

    /// Returns the path of the map output of an attempt.
    pub(crate) fn output(&self, attempt: AttemptId) -> Option<PathBuf> {
        self.inner.read().outputs.get(&attempt).cloned()
    }

    /// Adds a map output.
    pub(crate) fn add(&self, attempt: AttemptId, path: PathBuf, index: Index) {
        self.indexes.lock().add(attempt, index.extents.into());
        self.inner.write().outputs.insert(attempt, path);
    }

    /// Returns the extents of the partitions in the map output of an attempt at `path`.
    pub(crate) fn extents(&self, attempt: AttemptId, path: &Path) -> Result<Arc<[Extent]>, TaskError> {
        if let Some(known) = self.indexes.lock().known.get(&attempt) {
            return Ok(known.clone());
        }
        let extents: Arc<[Extent]> = Index::read(path)?.extents.into();
        // The job may have been removed in the meantime.
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
        if let Err(error) = self.keep_token(job, disks) {
            tracing::warn!(%job, %error, "cannot store the token of the job: a restart of this tracker loses its map outputs");
        }
    }

    /// Ensures that the token of a job is on disk, also if storing it failed before. Returns its
    /// path.
    pub(crate) fn keep_token(&self, job: JobId, disks: &Disks) -> io::Result<PathBuf> {
        let known = self.inner.read().tokens.get(&job).cloned();
        let Some(Token { secret, is_stored }) = known else {
            return Err(io::Error::other("the job has ended"));
        };
        let mut is_stored = is_stored.lock();
        if let Some(path) = disks.token(job).filter(|_| *is_stored) {
            return Ok(path);
        }
        let path = disks.keep_token(job, secret.bytes())?;
        *is_stored = true;
        Ok(path)
    }

    /// Whether this token gives access to a partition of the map outputs or checkpoints of the job.
    /// Runs in constant time.
    pub(crate) fn opens(&self, job: JobId, partition: u32, token: &[u8]) -> bool {
        let inner = self.inner.read();
        let Some(known) = inner.tokens.get(&job).filter(|known| !known.secret.bytes().is_empty()) else {
            return false;
        };
        security::opens_partition(token, known.secret.bytes(), &job.to_string(), partition)
    }

    /// Removes everything of a job that has ended.
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
    fn only_the_complete_job_token_is_accepted() {
        let found = Found {
            tokens: [(JobId(1), b"secret".to_vec()), (JobId(2), Vec::new())].into(),
            ..Found::default()
        };
        let shuffle_store = ShuffleStore::new(found);
        let token = security::partition_token(b"secret", "job_1", 7);
        assert!(shuffle_store.opens(JobId(1), 7, &token));
        assert!(!shuffle_store.opens(JobId(1), 6, &token));
        for wrong in [&b"secret"[..], &token[1..], &token[..31], b""] {
            assert!(!shuffle_store.opens(JobId(1), 7, wrong), "{wrong:?}");
        }
        assert!(!shuffle_store.opens(JobId(2), 7, b""));
        assert!(!shuffle_store.opens(JobId(2), 7, &security::partition_token(b"", "job_2", 7)));
        assert!(!shuffle_store.opens(JobId(3), 7, &token));
    }

    #[test]
    fn a_token_is_written_once_and_again_if_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::open(&[dir.path().to_owned()], 0).unwrap().0;
        let path = dir.path().join("jobs/job_1/token");
        let shuffle_store = ShuffleStore::default();
        assert!(shuffle_store.keep_token(JobId(1), &disks).is_err(), "the token is unknown");
        // No folder can be created there now, as on a full disk.
        std::fs::write(path.parent().unwrap(), "").unwrap();
        shuffle_store.add_token(JobId(1), b"secret", &disks);
        let state = vec![dir.path().join("jobs")];
        let id = "job_1.r0.0".parse().unwrap();
        let error = crate::checkpoints::settle(id, &state, &disks, &shuffle_store).unwrap_err().to_string();
        assert!(error.contains("the token of job_1"), "{error}");
        std::fs::remove_file(path.parent().unwrap()).unwrap();
        crate::checkpoints::settle(id, &state, &disks, &shuffle_store).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        // Concurrent writers do not conflict.
        for job in 2..50 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| shuffle_store.add_token(JobId(job), b"secret", &disks));
                }
            });
            assert_eq!(
                std::fs::read(shuffle_store.keep_token(JobId(job), &disks).unwrap()).unwrap(),
                b"secret"
            );
        }
    }

    #[test]
    fn indexes_are_kept_up_to_a_bound_and_go_with_their_job() {
        let shuffle_store = ShuffleStore::default();
        let partitions = 10_000;
        let id = |job, index| TaskId { job: JobId(job), phase: Phase::Map, index }.attempt(0);
        for number in 0..30 {
            let index = Index { extents: vec![Extent::default(); partitions] };
            shuffle_store.add(id(1 + number % 2, number), "/nowhere".into(), index);
        }
        let known = shuffle_store.indexes.lock().known.len();
        assert_eq!(known, ENTRIES_MAX / partitions);
        assert!(shuffle_store.extents(id(2, 29), Path::new("/nowhere")).is_ok());
        assert!(shuffle_store.extents(id(1, 0), Path::new("/nowhere")).is_err());
        for job in [1, 2] {
            shuffle_store.forget(JobId(job));
        }
        let indexes = shuffle_store.indexes.lock();
        assert_eq!((indexes.known.len(), indexes.oldest.len(), indexes.entries), (0, 0, 0));
    }
}
