//! The folder of the JobTracker: ownership, replay of the journal, and snapshots.
//!
//! A snapshot is made from the journal files, not from memory (ADR 0007). It contains facts, like
//! the journal: see `compact`.

use crate::compact::compact;
use journal::{
    AppendError, Home, HomeError, Item, Log, LogError, LogFailed, Owner, Recovering, Recovery, Replay, codec,
};
use mrcore::{Cluster, Fact, Time, fact::Entry};
use std::{
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

const OWNER: Owner = Owner { name: "JobTracker", log: "journal", folder: "journal" };

/// Folder of the job histories.
pub(crate) const HISTORY_FOLDER: &str = "history";

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// An error of the operating system.
    #[error("cannot use {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The folder, or the journal in it, cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The journal cannot be read.
    #[error("journal: {0}")]
    Log(#[from] LogError),
    /// The journal failed while it was in use.
    #[error(transparent)]
    Failed(#[from] LogFailed),
    /// A record can be decoded but is inconsistent: another version or another cluster wrote it.
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
    /// A message if records may be lost. Then [`skip_numbers`] must be called after the replay.
    pub(crate) lost: Option<String>,
    /// The operator has asked to drop damaged records, so any number of records may be lost.
    pub(crate) recovery_requested: bool,
    /// To be finished after the replay.
    pub(crate) recovering: Option<Recovering>,
}

impl Storage {
    /// Opens the folder and initialises an empty one. The caller holds the lock of the folder.
    pub(crate) fn open(folder: &Path, recovery: Recovery) -> Result<Self, StorageError> {
        let Home { log, replay, cluster_id, lost, recovery_requested, recovering } =
            Home::open(OWNER, folder, recovery)?;
        Ok(Self { log, replay, cluster_id, lost, recovery_requested, recovering: Some(recovering) })
    }

    /// For crash tests: opens the journal on any disk.
    #[cfg(test)]
    pub(crate) fn open_log(
        disk: std::sync::Arc<dyn journal::disk::Disk>,
        cluster_id: String,
        recovery: Recovery,
    ) -> Result<Self, StorageError> {
        let opened = journal::home::open_log(OWNER, disk, recovery)?;
        let lost = opened.loss(OWNER.log);
        let recovery_requested = recovery == Recovery::DropDamaged;
        let (log, replay) = (opened.log, opened.replay);
        Ok(Self { log, replay, cluster_id, lost, recovery_requested, recovering: None })
    }
}

/// Job numbers that are skipped after an incomplete batch was cut from the journal. One batch
/// contains fewer submissions.
const JOBS_SKIPPED: u32 = 10_000;

/// Skips epochs and job numbers that lost records may have assigned. The NameNode keeps the highest
/// epoch that it has seen, and trackers and output folders use the names of jobs, so new numbers
/// must be higher.
///
/// An incomplete batch that was cut contained a limited number of submissions. If the operator
/// dropped damaged records, any number may be missing. The wall clock is higher than every number
/// assigned before. The epoch always follows the clock, because users never see it. The skip is
/// durable when this returns.
pub(crate) fn skip_numbers(
    log: &Log,
    cluster: &Cluster,
    newest: Time,
    recovery_requested: bool,
) -> Result<Entry, StorageError> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = cluster.epoch().max(wall.as_millis() as u64);
    let skipped = cluster.newest_job().0.saturating_add(JOBS_SKIPPED);
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
        "records of the journal may be lost: new epochs and job numbers are above these"
    );
    Ok(entry)
}

/// Reads all entries of a journal.
pub(crate) fn read(
    mut replay: Replay,
    mut take: impl FnMut(Entry) -> Result<(), String>,
) -> Result<(), StorageError> {
    while let Some(item) = replay.next()? {
        let (seq, bytes) = match item {
            Item::Snapshot(bytes) => (0, bytes),
            Item::Record { seq, bytes } => (seq, bytes),
        };
        let entry = codec::decode(bytes).map_err(|error| error.to_string());
        entry.and_then(&mut take).map_err(|why| StorageError::Record { seq, why })?;
    }
    Ok(())
}

/// Makes a snapshot of all records so far. Blocks, so it needs its own thread.
pub(crate) fn snapshot(log: &Log) -> Result<(), StorageError> {
    let upto = log.rotate()?;
    if upto == 0 || log.bytes_since_snapshot() == 0 {
        return Ok(());
    }
    let mut entries = Vec::new();
    read(log.replay_closed(upto)?, |entry| {
        entries.push(entry);
        Ok(())
    })?;
    let before = entries.len();
    let entries = compact(entries);
    let mut writer = log.snapshot_writer(upto)?;
    let mut buffer = Vec::new();
    for entry in &entries {
        buffer.clear();
        codec::encode_into(entry, &mut buffer);
        writer.push(&buffer)?;
    }
    let bytes = writer.finish()?;
    log.snapshot_done(upto)?;
    tracing::info!(upto, before, kept = entries.len(), bytes, "snapshot of the journal written");
    Ok(())
}
