//! The folder of the NameNode: loads the namespace from the snapshot and the edit log, and writes
//! new snapshots.
//!
//! A snapshot is made from the files on disk and not from memory (ADR 0007). Making it does not
//! block the live state, and proves that the files can be replayed.

use super::{
    driver::Environment,
    namespace::{ApplyError, Namespace, Record, SnapshotLoader},
    op::{Now, Quota},
    settings::default_quota,
};
use daemon::config::NameNodeConfig;
use journal::{
    AppendError, DataFolder, DataFolderError, Log, LogFailed, Owner, Recovery, SnapshotWriter, backup::Parts,
    codec, disk::Disk,
};
use replication::{
    error::{StateError, StoreError},
    master::Journal,
    replay::{Item, Replay},
    store::Store,
};
use std::{path::Path, sync::Arc};

pub(super) const OWNER: Owner = Owner { name: "NameNode", log: "edit log", folder: "edits" };

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The folder, or the edit log in it, cannot be opened.
    #[error(transparent)]
    DataFolder(#[from] DataFolderError),
    /// The edit log cannot be read.
    #[error("edit log: {0}")]
    Log(#[from] StoreError),
    /// The log failed while it was in use.
    #[error(transparent)]
    Failed(#[from] LogFailed),
    /// A record can be read but not applied to the namespace: another build or another cluster has
    /// written it.
    #[error(
        "edit log: record {seq} cannot be applied: {why}; the files are not damaged, so another build or another cluster \
         has written them: use that build, or restore the folder from a copy"
    )]
    Record {
        /// The sequence number of the record; 0 for the snapshot.
        seq: u64,
        /// Why the record cannot be applied.
        why: String,
    },
}

/// The open folder of a NameNode and its namespace.
pub(crate) struct Storage {
    pub(crate) log: Log,
    pub(crate) namespace: Namespace,
    /// Description of the records that were dropped from the edit log at this start, for the
    /// operator.
    pub(crate) lost: Option<String>,
}

impl Storage {
    /// Opens the folder, initialises it if it is empty, and records the start. The caller has
    /// locked it.
    pub(crate) fn open(
        folder: &Path,
        recovery: Recovery,
        config: &NameNodeConfig,
    ) -> Result<Self, StorageError> {
        let home = DataFolder::open(OWNER, folder, recovery)?;
        let namespace = load(home.replay.into(), &home.cluster_id, config.retry_cache)?;
        let mut storage = Self { log: home.log, namespace, lost: home.lost };
        // The dropped records may include the latest starts, with which DataNodes have registered.
        // Such DataNodes may register only if an operator has requested the recovery. An incomplete
        // record at the end of the log does not matter, because no DataNode has registered with a
        // start that was not durable.
        storage.start(home.recovery_requested, home.drop_newer, default_quota(config))?;
        if let Some(lost) = &storage.lost {
            tracing::error!("{lost}: the last changes may be lost");
            storage.report_loss();
        }
        home.recovering.done()?;
        Ok(storage)
    }

    /// Records a new start durably: with a higher epoch, and with new IDs that no lost record can
    /// have used. With `drop_newer`, blocks that lost records have added are deleted.
    pub(crate) fn start(
        &mut self,
        accept: bool,
        drop_newer: bool,
        tmp_quota: Quota,
    ) -> Result<(), StorageError> {
        self.start_in(&Environment::of_machine(), accept, drop_newer, tmp_quota)
    }

    fn start_in(
        &mut self,
        environment: &Environment,
        accept: bool,
        drop_newer: bool,
        tmp_quota: Quota,
    ) -> Result<(), StorageError> {
        let Now { wall_ms, .. } = environment.now();
        let start = (environment.start_id)();
        let mut record = self.namespace.start_record(wall_ms, start, accept, tmp_quota);
        if drop_newer {
            Namespace::drop_newer_blocks(&mut record);
        }
        self.namespace
            .apply(&record)
            .map_err(|error| StorageError::Record { seq: 0, why: error.to_string() })?;
        let appended = self.log.append(&codec::encode(&record)).map_err(|error| match error {
            AppendError::Failed(failed) => failed,
            AppendError::TooLarge { .. } => unreachable!("the record of a start is small"),
        })?;
        self.log.sync(appended)?;
        Ok(())
    }

    fn report_loss(&self) {
        let next_block = self.namespace.next_block();
        tracing::error!(
            next_block,
            "records are lost: new IDs start above all IDs that the lost records can have used"
        );
        if self.namespace.blocks_len() == 0 {
            tracing::error!(
                "the namespace is EMPTY after the recovery; the blocks on the DataNodes are kept, \
                 so stop the NameNode and restore the edit log from a copy if there is one"
            );
        }
    }

    /// Opens the log on any disk and replays it, for crash tests and simulations. Also returns whether records may
    /// have been dropped; if so, [`Self::start`] must accept the namespace.
    pub(crate) fn open_log(
        disk: Arc<dyn Disk>,
        cluster_id: &str,
        recovery: Recovery,
        retry_cache: usize,
    ) -> Result<(Self, bool), StorageError> {
        let opened = journal::home::open_log(OWNER, disk, recovery).map_err(StoreError::from)?;
        let lost = opened.torn.is_some() || !opened.dropped.is_empty();
        let namespace = load(opened.replay.into(), cluster_id, retry_cache)?;
        Ok((Self { log: opened.log, namespace, lost: None }, lost))
    }
}

/// Makes an empty disk that of the first member of a group, for simulations: with a namespace, a start
/// and a snapshot.
pub fn format_first_member(
    disk: &Arc<dyn Disk>,
    member: u64,
    cluster_id: &str,
    environment: &Environment,
    config: &NameNodeConfig,
) -> Result<(), StorageError> {
    let (mut one, _) = Storage::open_log(Arc::clone(disk), cluster_id, Recovery::Refuse, config.retry_cache)?;
    one.start_in(environment, false, false, default_quota(config))?;
    let journal = Journal::Single(one.log);
    snapshot(&journal, cluster_id, config.retry_cache)?;
    journal.close()?;
    drop(journal);
    Ok(Store::found(disk, member)?)
}

/// Loads the snapshot and the records into a namespace.
pub(super) fn load(
    mut replay: Replay,
    cluster_id: &str,
    retry_cache: usize,
) -> Result<Namespace, StorageError> {
    let no_fit = |seq: u64| move |error: ApplyError| StorageError::Record { seq, why: error.to_string() };
    let no_parse =
        |seq: u64| move |error: codec::CodecError| StorageError::Record { seq, why: error.to_string() };
    let mut loader = (replay.snapshot_seq() > 0).then(|| SnapshotLoader::with_retry_cache(retry_cache));
    let mut namespace = None;
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(bytes) => {
                let item = codec::decode(bytes).map_err(no_parse(0))?;
                loader
                    .get_or_insert_with(|| SnapshotLoader::with_retry_cache(retry_cache))
                    .take(item)
                    .map_err(no_fit(0))?;
            }
            Item::Record { seq, bytes } => {
                let record: Record = codec::decode(bytes).map_err(no_parse(seq))?;
                if namespace.is_none() {
                    namespace = Some(finish(loader.take(), cluster_id, retry_cache)?);
                }
                namespace.as_mut().expect("it was set above").apply(&record).map_err(no_fit(seq))?;
            }
        }
    }
    let namespace = match namespace {
        Some(namespace) => namespace,
        None => finish(loader.take(), cluster_id, retry_cache)?,
    };
    if namespace.cluster_id() != cluster_id {
        let why = format!(
            "the snapshot belongs to cluster {}, but VERSION has {cluster_id}",
            namespace.cluster_id()
        );
        return Err(StorageError::Record { seq: 0, why });
    }
    Ok(namespace)
}

fn finish(
    loader: Option<SnapshotLoader>,
    cluster_id: &str,
    retry_cache: usize,
) -> Result<Namespace, StorageError> {
    if let Some(loader) = loader {
        return loader.finish().map_err(|error| StorageError::Record { seq: 0, why: error.to_string() });
    }
    let mut namespace = Namespace::new(cluster_id);
    namespace.set_retry_cache_limit(retry_cache);
    Ok(namespace)
}

/// Writes a snapshot of all records so far. Blocks, so it should run on its own thread.
pub fn snapshot(journal: &Journal, cluster_id: &str, retry_cache: usize) -> Result<(), StorageError> {
    journal.make_snapshot(|replay, writer| write_items(&load(replay, cluster_id, retry_cache)?, writer))?;
    Ok(())
}

/// Writes the snapshot of the namespace of a folder to which `replay` leads. Blocks.
pub(super) fn write_snapshot(
    replay: Replay,
    writer: &mut SnapshotWriter,
    folder: &Path,
    retry_cache: usize,
) -> Result<(), StateError> {
    let cluster_id = journal::home::cluster_id(folder)?.ok_or("the file VERSION is missing")?;
    write_items(&load(replay, &cluster_id, retry_cache)?, writer)
}

fn write_items(namespace: &Namespace, writer: &mut SnapshotWriter) -> Result<(), StateError> {
    let mut buffer = Vec::new();
    for item in namespace.items() {
        buffer.clear();
        codec::encode_into(&item, &mut buffer);
        writer.push(&buffer)?;
    }
    Ok(())
}

/// Makes a snapshot and returns it as a backup. Blocks, so it should run on its own thread.
pub(crate) fn backup(journal: &Journal, cluster_id: &str, retry_cache: usize) -> Result<Parts, StorageError> {
    snapshot(journal, cluster_id, retry_cache)?;
    Ok(journal.backup(OWNER.folder, Vec::new())?)
}
