//! The folder of the JobTracker: opens it, replays the journal, and makes snapshots.
//!
//! A snapshot is made from the journal files, not from memory (ADR 0007). It contains facts, as the
//! journal does: see `compact`.

use crate::{compact::compact, history};
use journal::{
    AppendError, DataFolder, DataFolderError, Log, LogFailed, Owner, Recovering, Recovery, SnapshotWriter,
    backup::Parts,
    codec::{self, CodecError},
};
use mrcore::{Cluster, Fact, Time, fact::Entry, ids::JobId};
use replication::{
    error::{StateError, StoreError},
    master::Journal,
    replay::{Item, Replay},
};
use std::{
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) const OWNER: Owner = Owner { name: "JobTracker", log: "journal", folder: "journal" };

/// Name of the folder with the job histories.
pub(crate) const HISTORY_FOLDER: &str = "history";

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// An error of the operating system.
    #[error("cannot use {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        source: io::Error,
    },
    /// The folder, or the journal in it, cannot be used.
    #[error(transparent)]
    DataFolder(#[from] DataFolderError),
    /// The journal cannot be read.
    #[error("journal: {0}")]
    Log(#[from] StoreError),
    /// The journal failed while it was in use.
    #[error(transparent)]
    Failed(#[from] LogFailed),
    /// A record cannot be decoded. Its checksum is correct, so it is not damaged.
    #[error(
        "journal: record {seq} cannot be decoded: {source}; the record is not damaged, so another build wrote it: use \
         that build"
    )]
    Undecodable {
        /// Number of the record; 0 for the snapshot.
        seq: u64,
        /// Why it cannot be decoded.
        source: CodecError,
    },
    /// A record can be decoded but is inconsistent: it was written by a different version or for a
    /// different cluster.
    #[error("journal: record {seq} is inconsistent with the records before it: {why}")]
    Record {
        /// Number of the record; 0 for the snapshot.
        seq: u64,
        /// What is inconsistent.
        why: String,
    },
}

/// The opened folder of a JobTracker. The journal in `replay` is not read yet.
pub(crate) struct Storage {
    pub(crate) log: Log,
    pub(crate) replay: Replay,
    pub(crate) cluster_id: String,
    /// A message if records may be lost. Then, and if a recovery was requested, [`skip_ids`] must
    /// be called after the replay.
    pub(crate) lost: Option<String>,
    /// The operator has asked to drop damaged records or to accept an older copy, so any number of
    /// records may be lost.
    pub(crate) recovery_requested: bool,
    /// The recovery in progress. `Recovering::done` must be called after the replay.
    pub(crate) recovering: Option<Recovering>,
}

impl Storage {
    /// Opens the folder and initialises an empty one. The caller holds the lock of the folder.
    pub(crate) fn open(folder: &Path, recovery: Recovery) -> Result<Self, StorageError> {
        let DataFolder { log, replay, cluster_id, lost, recovery_requested, recovering, .. } =
            DataFolder::open(OWNER, folder, recovery)?;
        let replay = replay.into();
        Ok(Self { log, replay, cluster_id, lost, recovery_requested, recovering: Some(recovering) })
    }

    /// Opens the journal on any disk, for crash tests.
    #[cfg(test)]
    pub(crate) fn open_log(
        disk: std::sync::Arc<dyn journal::disk::Disk>,
        cluster_id: String,
        recovery: Recovery,
    ) -> Result<Self, StorageError> {
        let opened = journal::home::open_log(OWNER, disk, recovery).map_err(StoreError::from)?;
        let lost = opened.loss(OWNER.log);
        let recovery_requested = recovery == Recovery::DropDamaged;
        let (log, replay) = (opened.log, opened.replay.into());
        Ok(Self { log, replay, cluster_id, lost, recovery_requested, recovering: None })
    }
}

/// How many job IDs are skipped after an incomplete batch was cut from the journal. One batch
/// contains fewer submissions.
const JOB_IDS_SKIPPED: u32 = 10_000;

/// Skips epochs (numbers of starts) and job IDs that lost records may have assigned. New ones must
/// be higher, because the NameNode keeps the highest epoch that it has seen, and trackers and
/// output folders use job IDs as names.
///
/// An incomplete batch that was cut contained a limited number of submissions, so a fixed number of
/// job IDs is skipped. If the operator dropped damaged records or accepted an older copy of the
/// folder, any number of submissions may be missing, and the next job ID is taken from the wall
/// clock, which is higher than every ID assigned before. The epoch is always taken from the clock,
/// because users never see it.
///
/// Returns the entry with the new numbers, which is durable.
pub(crate) fn skip_ids(
    log: &Log,
    cluster: &Cluster,
    newest: Time,
    recovery_requested: bool,
) -> Result<Entry, StorageError> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = cluster.epoch().max(wall.as_millis() as u64);
    let skipped = cluster.newest_job().0.saturating_add(JOB_IDS_SKIPPED);
    let clock = u32::try_from(wall.as_secs()).unwrap_or(0);
    let job = if recovery_requested { skipped.max(clock) } else { skipped };
    let at = newest.max(Time(wall.as_micros() as u64));
    let entry = Entry { at, fact: Fact::IdsSkipped { epoch, job } };
    let appended = log.append(&codec::encode(&entry)).map_err(|error| match error {
        AppendError::Failed(failed) => failed,
        AppendError::TooLarge { .. } => unreachable!("two numbers"),
    })?;
    log.sync(appended)?;
    tracing::error!(
        epoch,
        job,
        "records of the journal may be lost: skipped to this epoch and job ID, so that none is used twice"
    );
    Ok(entry)
}

/// Reads all entries of a journal and passes them to `take`.
pub(crate) fn read_entries(
    mut replay: Replay,
    mut take: impl FnMut(Entry) -> Result<(), String>,
) -> Result<(), StorageError> {
    while let Some(item) = replay.next()? {
        let (seq, bytes) = match item {
            Item::Snapshot(bytes) => (0, bytes),
            Item::Record { seq, bytes } => (seq, bytes),
        };
        let entry = codec::decode(bytes).map_err(|source| StorageError::Undecodable { seq, source })?;
        take(entry).map_err(|why| StorageError::Record { seq, why })?;
    }
    Ok(())
}

/// Makes a snapshot of all records so far. Blocks, so it must run on a thread for blocking work.
pub(crate) fn snapshot(journal: &Journal) -> Result<(), StorageError> {
    Ok(journal.make_snapshot(|replay, writer| write_compacted(read_all(replay)?, writer))?)
}

/// Returns all entries of a journal.
pub(crate) fn read_all(replay: Replay) -> Result<Vec<Entry>, StorageError> {
    let mut entries = Vec::new();
    read_entries(replay, |entry| {
        entries.push(entry);
        Ok(())
    })?;
    Ok(entries)
}

/// Writes the entries that are still needed to a snapshot.
pub(crate) fn write_compacted(entries: Vec<Entry>, writer: &mut SnapshotWriter) -> Result<(), StateError> {
    let before = entries.len();
    let entries = compact(entries);
    let mut buffer = Vec::new();
    for entry in &entries {
        buffer.clear();
        codec::encode_into(entry, &mut buffer);
        writer.push(&buffer)?;
    }
    tracing::info!(before, kept = entries.len(), "journal compacted for a snapshot");
    Ok(())
}

/// Returns the newest snapshot, and the histories of the jobs up to `newest_job`, as a backup. The
/// snapshot may not have the newer jobs.
pub(crate) fn backup(journal: &Journal, histories: &Path, newest_job: JobId) -> Result<Parts, StorageError> {
    let files = history::files(histories)
        .map_err(|source| StorageError::Io { path: histories.into(), source })?
        .into_iter()
        .filter(|(job, _)| *job <= newest_job)
        .map(|(_, path)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (format!("{HISTORY_FOLDER}/{name}"), path.clone())
        });
    Ok(journal.backup(OWNER.folder, files.collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::backup::Part;
    use std::fs;

    #[test]
    fn backup_has_the_histories_of_the_jobs_in_its_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::open(folder.path(), Recovery::Refuse).unwrap();
        let histories = folder.path().join(HISTORY_FOLDER);
        fs::create_dir(&histories).unwrap();
        for name in ["job_1.jsonl", "job_2.jsonl", "job_3.jsonl", "job_1.txt"] {
            fs::write(histories.join(name), name).unwrap();
        }
        let fact = Fact::JobTrackerStarted { epoch: 1, scheduler: "fifo".into() };
        let entry = codec::encode(&Entry { at: Time(1), fact });
        storage.log.sync(storage.log.append(&entry).unwrap()).unwrap();
        let journal = Journal::Single(storage.log);
        snapshot(&journal).unwrap();
        let parts = backup(&journal, &histories, JobId(2)).unwrap();
        assert_eq!(parts.last_record, 1);
        let mut files: Vec<String> = parts
            .filter_map(|part| match part.unwrap() {
                Part::File(path) => Some(path),
                _ => None,
            })
            .collect();
        files.sort();
        let snapshot = "journal/snapshot-00000000000000000001.snap";
        assert_eq!(files, ["history/job_1.jsonl", "history/job_2.jsonl", snapshot]);
    }
}
