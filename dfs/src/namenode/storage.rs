//! The NameNode's folder: who it belongs to, its namespace read back from snapshot and edits, and new snapshots.
//!
//! A snapshot is made from files, not from memory (ADR 0007): the live state is never held up, and each one
//! proves that what is on disk can be replayed.

use super::{
    driver::now_since,
    namespace::{ApplyError, Edit, Namespace, Record, SnapshotLoader},
};
use journal::{
    AppendError, Item, Log, LogError, LogFailed, Opened, Recovery, Replay, codec, disk::Disk, disk::RealDisk,
};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

const LAYOUT: u32 = 1;
const VERSION_FILE: &str = "VERSION";
const EDITS_FOLDER: &str = "edits";

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
    #[error("folder {0} is not empty and not a NameNode's (it has no VERSION file): name an empty one")]
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
    /// The edit log is damaged.
    #[error(
        "edit log in {folder}: {source}; to go on without what cannot be read, start once with --recover \
         (it says what it drops, and keeps the damaged file)"
    )]
    Damaged {
        /// Where.
        folder: PathBuf,
        /// What, with file and offset.
        source: LogError,
    },
    /// The edit log cannot be opened for another reason.
    #[error("edit log: {0}")]
    Log(#[from] LogError),
    /// The log failed while it was in use.
    #[error(transparent)]
    Failed(#[from] LogFailed),
    /// A record reads well but makes no sense: another build's or another cluster's.
    #[error(
        "edit log: record {seq} does not fit: {why}; the files are whole, so another build or another cluster \
         wrote them: start the build that wrote them, or restore the folder from a copy"
    )]
    Record {
        /// Its number; 0 for the snapshot.
        seq: u64,
        /// What is wrong.
        why: String,
    },
}

/// Written before `--recover` drops anything and removed when that is dealt with, so that a crash between the
/// two is noticed by the next start.
const RECOVERING_FILE: &str = "RECOVERING";
/// How far ids jump when records were lost: further than the lost ones can have got.
const IDS_SKIPPED: u64 = 1 << 32;
/// Free room that a snapshot needs, as a multiple of what it is made from: it may be larger than both.
const SNAPSHOT_ROOM: f64 = 1.5;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    layout: u32,
    cluster_id: String,
}

/// A NameNode's folder, opened and read.
pub(crate) struct Storage {
    pub(crate) log: Log,
    pub(crate) namespace: Namespace,
}

impl Storage {
    /// Opens the folder, making it ready if it is empty. The caller holds its lock.
    pub(crate) fn open(folder: &Path, recovery: Recovery, answers: usize) -> Result<Self, StorageError> {
        let cluster_id = identity(folder)?;
        let marker = folder.join(RECOVERING_FILE);
        let io_error = |source| StorageError::Io { path: marker.clone(), source };
        let interrupted = marker.try_exists().map_err(io_error)?;
        if recovery == Recovery::DropDamaged {
            write_durably(folder, RECOVERING_FILE, "").map_err(io_error)?;
        }
        let edits = folder.join(EDITS_FOLDER);
        let disk =
            RealDisk::open(&edits).map_err(|source| StorageError::Io { path: edits.clone(), source })?;
        let opened = Self::open_log(Arc::new(disk), &cluster_id, recovery, answers);
        let (mut storage, dropped) = opened.map_err(|error| match error {
            StorageError::Log(source) if source.is_damage() => {
                StorageError::Damaged { folder: edits, source }
            }
            error => error,
        })?;
        if dropped || interrupted {
            storage.skip_ids()?;
        }
        if marker.try_exists().map_err(io_error)? {
            fs::remove_file(&marker).map_err(io_error)?;
        }
        Ok(storage)
    }

    /// Records were lost, and with them which ids they gave out. A DataNode that comes late may have a replica
    /// of any of those, so new blocks stay far away from them.
    pub(crate) fn skip_ids(&mut self) -> Result<(), StorageError> {
        let next_file = self.namespace.next_file() + IDS_SKIPPED;
        let next_block = self.namespace.next_block() + IDS_SKIPPED;
        let at_ms = now_since(Instant::now()).wall_ms;
        let record = Record { at_ms, request: None, edits: vec![Edit::IdsSkipped { next_file, next_block }] };
        self.namespace
            .apply(&record)
            .map_err(|error| StorageError::Record { seq: 0, why: error.to_string() })?;
        let appended = self.log.append(&codec::encode(&record)).map_err(|error| match error {
            AppendError::Failed(failed) => failed,
            AppendError::TooLarge { .. } => unreachable!("two numbers"),
        })?;
        self.log.sync(appended)?;
        tracing::error!(next_file, next_block, "records are lost: new ids begin far above theirs");
        if self.namespace.is_empty() {
            tracing::error!(
                "NOTHING IS LEFT: after recovery the namespace is EMPTY; the DataNodes' blocks are kept, \
                 so stop here and restore the edit log from a copy if there is one"
            );
        }
        Ok(())
    }

    /// Opens the log on any disk and replays it. Also tells whether records may have been dropped: then
    /// [`Self::skip_ids`] is due.
    pub(crate) fn open_log(
        disk: Arc<dyn Disk>,
        cluster_id: &str,
        recovery: Recovery,
        answers: usize,
    ) -> Result<(Self, bool), StorageError> {
        let Opened { log, replay, torn, dropped } = Log::open(disk, recovery)?;
        if let Some(torn) = torn {
            tracing::warn!(
                file = torn.file,
                offset = torn.offset,
                bytes = torn.bytes,
                "cut an unfinished write from the edit log; none of it had been acknowledged"
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
                "dropped a damaged part of the edit log, as --recover asked"
            );
        }
        let namespace = load(replay, cluster_id, answers)?;
        Ok((Self { log, namespace }, !dropped.is_empty()))
    }
}

/// Snapshot and records, one by one, into a namespace.
fn load(mut replay: Replay, cluster_id: &str, answers: usize) -> Result<Namespace, StorageError> {
    let no_fit = |seq: u64| move |error: ApplyError| StorageError::Record { seq, why: error.to_string() };
    let no_parse =
        |seq: u64| move |error: codec::CodecError| StorageError::Record { seq, why: error.to_string() };
    let mut loader = (replay.snapshot_seq() > 0).then(|| SnapshotLoader::keeping_answers(answers));
    let mut namespace = None;
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(bytes) => {
                let item = codec::decode(bytes).map_err(no_parse(0))?;
                loader
                    .get_or_insert_with(|| SnapshotLoader::keeping_answers(answers))
                    .take(item)
                    .map_err(no_fit(0))?;
            }
            Item::Record { seq, bytes } => {
                let record: Record = codec::decode(bytes).map_err(no_parse(seq))?;
                if namespace.is_none() {
                    namespace = Some(finish(loader.take(), cluster_id, answers)?);
                }
                namespace.as_mut().expect("set just above").apply(&record).map_err(no_fit(seq))?;
            }
        }
    }
    let namespace = match namespace {
        Some(namespace) => namespace,
        None => finish(loader.take(), cluster_id, answers)?,
    };
    if namespace.cluster_id() != cluster_id {
        let why = format!("snapshot is of cluster {}, VERSION says {cluster_id}", namespace.cluster_id());
        return Err(StorageError::Record { seq: 0, why });
    }
    Ok(namespace)
}

fn finish(
    loader: Option<SnapshotLoader>,
    cluster_id: &str,
    answers: usize,
) -> Result<Namespace, StorageError> {
    if let Some(loader) = loader {
        return loader.finish().map_err(|error| StorageError::Record { seq: 0, why: error.to_string() });
    }
    let mut namespace = Namespace::new(cluster_id);
    namespace.keep_answers(answers);
    Ok(namespace)
}

/// Whether a snapshot would leave the log's disk with at least `reserve` bytes; if not, what it needs and what
/// there is.
pub(crate) fn room_for_snapshot(log: &Log, reserve: u64) -> io::Result<Result<(), (u64, u64)>> {
    let from = log.snapshot_bytes()? + log.bytes_since_snapshot();
    let needed = (from as f64 * SNAPSHOT_ROOM) as u64 + reserve;
    let free = log.free_bytes()?;
    Ok(if free >= needed { Ok(()) } else { Err((needed, free)) })
}

/// Makes a snapshot of everything logged so far. Blocking, and meant for a thread of its own.
pub(crate) fn snapshot(log: &Log, cluster_id: &str, answers: usize) -> Result<(), StorageError> {
    let upto = log.rotate()?;
    let namespace = load(log.replay_closed(upto)?, cluster_id, answers)?;
    let mut writer = log.snapshot_writer(upto)?;
    let mut buffer = Vec::new();
    for item in namespace.items() {
        buffer.clear();
        codec::encode_into(&item, &mut buffer);
        writer.push(&buffer)?;
    }
    let bytes = writer.finish()?;
    log.snapshot_done(upto)?;
    tracing::info!(upto, bytes, "snapshot written");
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
