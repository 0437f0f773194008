//! The JobTracker's folder: who it belongs to, its journal read back, and new snapshots of it.
//!
//! A snapshot is made from files, not from memory (ADR 0007), and holds facts like the journal itself: see
//! `compact`.

use crate::compact::compact;
use journal::{Item, Log, LogError, LogFailed, Opened, Recovery, Replay, codec, disk::Disk, disk::RealDisk};
use mrcore::fact::Entry;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

const LAYOUT: u32 = 1;
const VERSION_FILE: &str = "VERSION";
const JOURNAL_FOLDER: &str = "journal";

/// Where job histories are.
pub(crate) const HISTORY_FOLDER: &str = "history";

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The system would not.
    #[error("cannot use {path}: {source}")]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It holds something else.
    #[error("folder {0} is not empty and not a JobTracker's (it has no VERSION file): name an empty one")]
    Foreign(PathBuf),
    /// `VERSION` cannot be understood.
    #[error("{path} is not readable: {why}")]
    Version {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Written by a newer Fermata.
    #[error("{path} has layout {found}, this build knows {LAYOUT}: use the build that wrote it")]
    Layout {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: u32,
    },
    /// The journal is damaged.
    #[error(
        "journal in {folder}: {source}; to go on without what cannot be read, start once with --recover \
         (it says what it drops, and keeps the damaged file)"
    )]
    Damaged {
        /// Where.
        folder: PathBuf,
        /// What, with file and offset.
        source: LogError,
    },
    /// The journal cannot be opened for another reason.
    #[error("journal: {0}")]
    Log(#[from] LogError),
    /// The journal failed while it was in use.
    #[error(transparent)]
    Failed(#[from] LogFailed),
    /// A record reads well but makes no sense: another build's or another cluster's.
    #[error("journal: record {seq} does not fit: {why}")]
    Record {
        /// Its number; 0 for the snapshot.
        seq: u64,
        /// What is wrong.
        why: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    layout: u32,
    cluster_id: String,
}

/// A JobTracker's folder, opened; `replay` is still to be read.
pub(crate) struct Storage {
    pub(crate) log: Log,
    pub(crate) replay: Replay,
    pub(crate) cluster_id: String,
}

impl Storage {
    /// Opens the folder, making it ready if it is empty. The caller holds its lock.
    pub(crate) fn open(folder: &Path, recovery: Recovery) -> Result<Self, StorageError> {
        let cluster_id = identity(folder)?;
        let path = folder.join(JOURNAL_FOLDER);
        let disk = RealDisk::open(&path).map_err(|source| StorageError::Io { path: path.clone(), source })?;
        Self::open_log(Arc::new(disk), cluster_id, recovery).map_err(|error| match error {
            StorageError::Log(source) if source.is_damage() => StorageError::Damaged { folder: path, source },
            error => error,
        })
    }

    /// Opens the journal on any disk.
    pub(crate) fn open_log(
        disk: Arc<dyn Disk>,
        cluster_id: String,
        recovery: Recovery,
    ) -> Result<Self, StorageError> {
        let Opened { log, replay, torn, dropped } = Log::open(disk, recovery)?;
        if let Some(torn) = torn {
            tracing::warn!(
                file = torn.file,
                offset = torn.offset,
                bytes = torn.bytes,
                "cut an unfinished write from the journal; none of it had been acted on"
            );
        }
        for part in &dropped {
            tracing::error!(
                file = part.file,
                offset = part.offset,
                bytes = part.bytes,
                records_known = part.records_known,
                kept_as = part.kept_as.as_deref().unwrap_or("-"),
                why = part.why,
                "dropped a damaged part of the journal, as --recover asked"
            );
        }
        Ok(Self { log, replay, cluster_id })
    }
}

/// Reads a journal entry by entry.
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

/// Makes a snapshot of everything in the journal so far. Blocking, and meant for a thread of its own.
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

/// The cluster that the folder belongs to; a new one for an empty folder.
fn identity(folder: &Path) -> Result<String, StorageError> {
    let path = folder.join(VERSION_FILE);
    let io_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| StorageError::Io { path, source }
    };
    match fs::read_to_string(&path) {
        Ok(text) => {
            let version: Version = toml::from_str(&text)
                .map_err(|error| StorageError::Version { path: path.clone(), why: error.message().into() })?;
            if version.layout > LAYOUT {
                return Err(StorageError::Layout { path, found: version.layout });
            }
            Ok(version.cluster_id)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let entries = fs::read_dir(folder).map_err(io_error(folder))?.flatten();
            let ours = ["LOCK", "VERSION.tmp"];
            if entries.map(|entry| entry.file_name()).any(|name| !ours.iter().any(|own| name == *own)) {
                return Err(StorageError::Foreign(folder.into()));
            }
            let version = Version { layout: LAYOUT, cluster_id: uuid::Uuid::new_v4().to_string() };
            let text = toml::to_string(&version).expect("a plain table");
            write_durably(folder, VERSION_FILE, &text).map_err(io_error(&path))?;
            Ok(version.cluster_id)
        }
        Err(source) => Err(StorageError::Io { path, source }),
    }
}

fn write_durably(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let aside = folder.join(format!("{name}.tmp"));
    let mut file = fs::File::create(&aside)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, folder.join(name))?;
    fs::File::open(folder)?.sync_all()
}
