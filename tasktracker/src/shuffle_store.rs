//! Which map outputs and checkpoints are here, where each partition lies in them, and the tokens that open them.
//!
//! Indexes, and the lists of parts of checkpoints, are read once and kept, up to a bound: of a large job there may be more
//! than memory should hold.

use crate::{
    disks::{Disks, Found},
    ids::{Attempt, Job},
};
use mrlib::{
    TaskError,
    checkpoint::{self, CheckpointPart},
    segment::{Extent, Index},
};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Partitions in all indexes kept in memory, of about 50 bytes each; and parts of checkpoints, of about 80.
const ENTRIES_MAX: usize = 128 << 10;

/// What the shuffle server serves.
#[derive(Debug, Default)]
pub(crate) struct ShuffleStore {
    inner: RwLock<Inner>,
    indexes: Mutex<Read<Extent>>,
    parts: Mutex<Read<CheckpointPart>>,
    /// Held while a state is read: apart from what was, which others need who wait for no disk.
    reading: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    outputs: HashMap<Attempt, PathBuf>,
    /// States checkpointed, and the folders of each.
    checkpoints: HashMap<Attempt, Vec<PathBuf>>,
    tokens: HashMap<Job, Token>,
}

/// A job's token.
#[derive(Debug, Clone)]
struct Token {
    bytes: Vec<u8>,
    /// Whether it is on disk. Locked while it is being written: two writers would be in each other's way.
    is_stored: Arc<Mutex<bool>>,
}

impl Token {
    fn new(bytes: Vec<u8>, is_stored: bool) -> Self {
        Self { bytes, is_stored: Arc::new(Mutex::new(is_stored)) }
    }
}

/// What was read last.
#[derive(Debug)]
struct Read<T> {
    known: HashMap<Attempt, Arc<[T]>>,
    oldest: VecDeque<Attempt>,
    entries: usize,
}

impl<T> Default for Read<T> {
    fn default() -> Self {
        Self { known: HashMap::new(), oldest: VecDeque::new(), entries: 0 }
    }
}

impl<T> Read<T> {
    fn add(&mut self, attempt: Attempt, entries: Arc<[T]>) {
        self.entries += entries.len();
        if let Some(before) = self.known.insert(attempt, entries) {
            self.entries -= before.len();
        } else {
            self.oldest.push_back(attempt);
        }
        // The newest stays: it is about to be asked for again.
        while self.entries > ENTRIES_MAX
            && self.oldest.len() > 1
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.entries -= self.known.remove(&oldest).map_or(0, |entries| entries.len());
        }
    }

    fn forget(&mut self, which: impl Fn(Attempt) -> bool) {
        self.oldest.retain(|attempt| !which(*attempt));
        self.known.retain(|attempt, _| !which(*attempt));
        self.entries = self.known.values().map(|entries| entries.len()).sum();
    }
}

impl ShuffleStore {
    /// With what an earlier start left.
    pub(crate) fn new(found: Found) -> Self {
        let inner = Inner {
            outputs: found.outputs.into_iter().collect(),
            checkpoints: found.checkpoints.into_iter().collect(),
            tokens: found.tokens.into_iter().map(|(job, token)| (job, Token::new(token, true))).collect(),
        };
        Self { inner: RwLock::new(inner), ..Self::default() }
    }

    /// The folders of an attempt's state.
    pub(crate) fn checkpoint(&self, attempt: Attempt) -> Option<Vec<PathBuf>> {
        self.inner.read().checkpoints.get(&attempt).cloned()
    }

    /// One more.
    pub(crate) fn add_checkpoint(&self, attempt: Attempt, dirs: Vec<PathBuf>) {
        self.inner.write().checkpoints.insert(attempt, dirs);
    }

    /// It is not to be used any more.
    pub(crate) fn drop_checkpoint(&self, attempt: Attempt) {
        self.inner.write().checkpoints.remove(&attempt);
        self.parts.lock().forget(|other| other == attempt);
    }

    /// The parts of an attempt's state, which lies in `dirs`. One state is read at a time: programs may have made them as
    /// large as they could.
    pub(crate) fn parts(
        &self,
        attempt: Attempt,
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
        // It may have been dropped meanwhile.
        let mut read = self.parts.lock();
        if self.checkpoint(attempt).is_some() {
            read.add(attempt, parts.clone());
        }
        Ok(parts)
    }

    /// All map outputs.
    pub(crate) fn attempts(&self) -> BTreeSet<Attempt> {
        self.inner.read().outputs.keys().copied().collect()
    }

    /// Where an attempt's output is.
    pub(crate) fn output(&self, attempt: Attempt) -> Option<PathBuf> {
        self.inner.read().outputs.get(&attempt).cloned()
    }

    /// One more.
    pub(crate) fn add(&self, attempt: Attempt, path: PathBuf, index: Index) {
        self.indexes.lock().add(attempt, index.extents.into());
        self.inner.write().outputs.insert(attempt, path);
    }

    /// Where the partitions lie in an attempt's output, which is at `path`.
    pub(crate) fn extents(&self, attempt: Attempt, path: &Path) -> Result<Arc<[Extent]>, TaskError> {
        if let Some(known) = self.indexes.lock().known.get(&attempt) {
            return Ok(known.clone());
        }
        let extents: Arc<[Extent]> = Index::read(path)?.extents.into();
        // The job may have been forgotten meanwhile.
        if self.output(attempt).is_some() {
            self.indexes.lock().add(attempt, extents.clone());
        }
        Ok(extents)
    }

    /// Learns a job's token, and keeps it on disk for the next start.
    pub(crate) fn add_token(&self, job: Job, token: &[u8], disks: &Disks) {
        let mut inner = self.inner.write();
        if inner.tokens.get(&job).is_none_or(|known| known.bytes != token) {
            inner.tokens.insert(job, Token::new(token.to_vec(), false));
        }
        drop(inner);
        if let Err(error) = self.keep_token(job, disks) {
            tracing::warn!(%job, %error, "cannot keep its token: a restart of this tracker loses its output");
        }
    }

    /// Sees to it that a job's token is on disk, also if it could not be kept before; where it is.
    pub(crate) fn keep_token(&self, job: Job, disks: &Disks) -> io::Result<PathBuf> {
        let known = self.inner.read().tokens.get(&job).cloned();
        let Some(Token { bytes, is_stored }) = known else { return Err(io::Error::other("it is over")) };
        let mut is_stored = is_stored.lock();
        if let Some(path) = disks.token(job).filter(|_| *is_stored) {
            return Ok(path);
        }
        let path = disks.keep_token(job, &bytes)?;
        *is_stored = true;
        Ok(path)
    }

    /// Whether this token opens a partition of the job's outputs, or what a reduce of it has checkpointed. Takes as long for
    /// a wrong one as for the right one.
    pub(crate) fn opens(&self, job: Job, partition: u32, token: &[u8]) -> bool {
        let inner = self.inner.read();
        let Some(known) = inner.tokens.get(&job).filter(|known| !known.bytes.is_empty()) else {
            return false;
        };
        security::opens_partition(token, &known.bytes, &job.to_string(), partition)
    }

    /// The job has ended.
    pub(crate) fn forget(&self, job: Job) {
        let mut inner = self.inner.write();
        inner.outputs.retain(|attempt, _| attempt.job != job);
        inner.checkpoints.retain(|attempt, _| attempt.job != job);
        inner.tokens.remove(&job);
        drop(inner);
        self.indexes.lock().forget(|attempt| attempt.job == job);
        self.parts.lock().forget(|attempt| attempt.job == job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_complete_job_token_is_accepted() {
        let found =
            Found { tokens: [(Job(1), b"secret".to_vec()), (Job(2), Vec::new())].into(), ..Found::default() };
        let shuffle_store = ShuffleStore::new(found);
        let token = security::partition_token(b"secret", "job_1", 7);
        assert!(shuffle_store.opens(Job(1), 7, &token));
        assert!(!shuffle_store.opens(Job(1), 6, &token));
        for wrong in [&b"secret"[..], &token[1..], &token[..31], b""] {
            assert!(!shuffle_store.opens(Job(1), 7, wrong), "{wrong:?}");
        }
        assert!(!shuffle_store.opens(Job(2), 7, b""));
        assert!(!shuffle_store.opens(Job(2), 7, &security::partition_token(b"", "job_2", 7)));
        assert!(!shuffle_store.opens(Job(3), 7, &token));
    }

    #[test]
    fn a_token_is_written_once_and_again_if_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::open(&[dir.path().to_owned()], 0).unwrap().0;
        let path = dir.path().join("jobs/job_1/token");
        let shuffle_store = ShuffleStore::default();
        assert!(shuffle_store.keep_token(Job(1), &disks).is_err(), "nobody knows it");
        // No folder can be made there now, as on a full disk.
        std::fs::write(path.parent().unwrap(), "").unwrap();
        shuffle_store.add_token(Job(1), b"secret", &disks);
        let state = vec![dir.path().join("jobs")];
        let id = "job_1.r0.0".parse().unwrap();
        let error = crate::checkpoints::settle(id, &state, &disks, &shuffle_store).unwrap_err().to_string();
        assert!(error.contains("the token of job_1"), "{error}");
        std::fs::remove_file(path.parent().unwrap()).unwrap();
        crate::checkpoints::settle(id, &state, &disks, &shuffle_store).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        // Many at once are not in each other's way.
        for job in 2..50 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| shuffle_store.add_token(Job(job), b"secret", &disks));
                }
            });
            assert_eq!(
                std::fs::read(shuffle_store.keep_token(Job(job), &disks).unwrap()).unwrap(),
                b"secret"
            );
        }
    }

    #[test]
    fn indexes_are_kept_up_to_a_bound_and_go_with_their_job() {
        let shuffle_store = ShuffleStore::default();
        let partitions = 10_000;
        let id = |job, index| Attempt { job: Job(job), phase: crate::ids::Phase::Map, index, number: 0 };
        for number in 0..30 {
            let index = Index { extents: vec![Extent::default(); partitions] };
            shuffle_store.add(id(1 + number % 2, number), "/nowhere".into(), index);
        }
        let is_stored = shuffle_store.indexes.lock().known.len();
        assert_eq!(is_stored, ENTRIES_MAX / partitions);
        assert!(shuffle_store.extents(id(2, 29), Path::new("/nowhere")).is_ok());
        assert!(shuffle_store.extents(id(1, 0), Path::new("/nowhere")).is_err());
        for job in [1, 2] {
            shuffle_store.forget(Job(job));
        }
        let indexes = shuffle_store.indexes.lock();
        assert_eq!((indexes.known.len(), indexes.oldest.len(), indexes.entries), (0, 0, 0));
    }
}
