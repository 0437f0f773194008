//! Start-up: takes the folders into service, whose they are and what is in them.
//!
//! Invariant: before anything else lies in a folder, its `VERSION` says whose it is; a folder with blocks and
//! without `VERSION` is refused. An error of the process (no memory, no descriptors) refuses the start; one of a
//! folder, also of one that cannot be locked or written to any more, retires that folder, unless no other says whose
//! the node is, and so does a folder that was in use and is empty now: its disk is not mounted. A block that cannot be
//! read costs that replica alone.

use super::{
    disk::{Disk, DiskFault, classify},
    error::{DataNodeError, Refusal, RefusalKind},
    layout::{LAYOUT, NameNodeStart, Version},
    pending_reports::PendingReports,
    store::{Alarm, BlockLocks, State, Store, VolumeState},
    volume::Volume,
};
use crate::ids::NodeUuid;
use daemon::{config::DataNodeConfig, data_dirs, lock::LockError};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// What the store must know of the configuration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Settings {
    pub(super) reserve: u64,
    pub(super) bad_blocks_max: u32,
}

impl From<&DataNodeConfig> for Settings {
    fn from(config: &DataNodeConfig) -> Self {
        Self { reserve: config.reserve.0, bad_blocks_max: config.bad_blocks_max }
    }
}

impl Store {
    /// Opens and scans the folders. Damaged replicas are quarantined and posted.
    pub(super) fn open(
        dirs: &[PathBuf],
        settings: &Settings,
        disk: Arc<dyn Disk>,
        alarm: Alarm,
    ) -> Result<Self, DataNodeError> {
        let reserve = settings.reserve;
        let mut volumes: Vec<Volume> = Vec::new();
        let mut known: Option<(PathBuf, Version)> = None;
        let (mut new, mut broken) = (Vec::new(), Vec::new());
        let vanished = data_dirs::vanished(dirs);
        for dir in dirs {
            if volumes.iter().any(|volume| dir.canonicalize().is_ok_and(|dir| dir == volume.paths.root)) {
                return Err(DataNodeError::Twice(dir.clone()));
            }
            let opened = if vanished.contains(dir) {
                let source = data_dirs::vanished_error(dir);
                Err(DataNodeError::Folder { what: "use folder", path: dir.clone(), source })
            } else {
                Volume::open(dir, reserve, disk.clone())
            };
            let (volume, version) = match opened {
                Err(error) if is_of_the_folder(&error) => {
                    broken.push((volumes.len(), error));
                    (Volume::unopened(dir, reserve, disk.clone()), None)
                }
                other => other?,
            };
            new.push(version.is_none());
            if let Some(version) = version {
                agree(&mut known, volume.paths.root.clone(), version)?;
            }
            volumes.push(volume);
        }
        // Whose the node is may be written there alone: without that it would come back as another.
        if known.is_none() && !broken.is_empty() {
            return Err(broken.swap_remove(0).1);
        }
        let mut version = known.map_or_else(first_version, |(_, version)| version);
        version.incarnation = next_incarnation(version.incarnation);
        let state = State {
            replicas: BTreeMap::new(),
            partials: HashMap::new(),
            volumes: vec![VolumeState::default(); volumes.len()],
            cluster_id: version.cluster_id.clone(),
            namenode_start: version.namenode_start.clone(),
            next_volume: 0,
            serial: 0,
        };
        let store = Self {
            uuid: version.node_uuid,
            incarnation: version.incarnation,
            pending_reports: PendingReports::default(),
            volumes,
            state: Mutex::new(state),
            locks: BlockLocks::default(),
            alarm,
            bad_blocks_max: settings.bad_blocks_max,
        };
        for (index, error) in &broken {
            store.retire(*index, &error.to_string());
        }
        for (index, new) in new.into_iter().enumerate().filter(|(index, _)| !store.is_failed(*index)) {
            let taken = store.stamp_folder(index, &version, new).and_then(|()| store.load_volume(index));
            taken.or_else(|error| store.retire_if_broken(index, error))?;
            store.measure(index);
        }
        let usable = (0..dirs.len()).filter(|index| !store.is_failed(*index));
        data_dirs::remember(dirs, usable.map(|index| store.volumes[index].paths.root()));
        Ok(store)
    }

    /// Writes `VERSION`. A full disk still serves what it has; only the count of starts is then a little behind.
    fn stamp_folder(&self, index: usize, version: &Version, new: bool) -> Result<(), DataNodeError> {
        let volume = &self.volumes[index];
        match volume.write_version(version) {
            Err(error) if !new && classify(&error) == DiskFault::Full => {
                tracing::warn!(folder = %volume.paths.root.display(), %error, "VERSION not brought up to date");
                Ok(())
            }
            other => other.map_err(|source| {
                let path = volume.paths.version();
                DataNodeError::Folder { what: "write", path, source }
            }),
        }
    }

    /// An error of the folder itself costs the folder, if there are others; any other is passed on.
    fn retire_if_broken(&self, index: usize, error: DataNodeError) -> Result<(), DataNodeError> {
        let others = (0..self.volumes.len()).any(|other| other != index && !self.is_failed(other));
        if !is_of_the_folder(&error) || !others {
            return Err(error);
        }
        self.retire(index, &error.to_string());
        Ok(())
    }

    fn load_volume(&self, index: usize) -> Result<(), DataNodeError> {
        let volume = &self.volumes[index];
        let scan = volume.scan()?;
        let mut doubles = Vec::new();
        let mut state = self.state.lock();
        for (block, nonce, length) in scan.replicas {
            if state.replicas.contains_key(&block) {
                doubles.push(block);
            } else {
                state.insert(block, nonce, index, length);
            }
        }
        let count = state.replicas.len();
        drop(state);
        for block in doubles {
            tracing::warn!(%block, folder = %volume.paths.root.display(), "second replica in another folder: quarantined");
            self.or_retire(index, volume.move_to_bad(block)).ok();
        }
        for (block, why) in scan.damaged {
            self.quarantine(block, index, &why);
        }
        tracing::info!(folder = %volume.paths.root.display(), replicas = count, "folder scanned");
        Ok(())
    }

    /// Writes whose the node is, and the NameNode's start that it registers with, into every folder. One folder that
    /// has stored it is enough: the next start goes by the newest. If none has, nothing has changed.
    pub(super) fn join_cluster(
        &self,
        cluster_id: &str,
        namenode_start: NameNodeStart,
    ) -> Result<(), Refusal> {
        let version = Version {
            layout: LAYOUT,
            cluster_id: cluster_id.into(),
            node_uuid: self.uuid,
            incarnation: self.incarnation,
            namenode_start,
        };
        let mut stored = Err(Refusal::new(RefusalKind::Failed, "no data folder is in service"));
        for (index, volume) in self.volumes.iter().enumerate() {
            if self.is_failed(index) {
                continue;
            }
            match self.or_retire(index, volume.write_version(&version)) {
                Ok(()) => stored = Ok(()),
                Err(why) => {
                    tracing::warn!(folder = %volume.paths.root.display(), %why, "VERSION not brought up to date");
                    if stored.is_err() {
                        stored = Err(why);
                    }
                }
            }
        }
        stored?;
        let mut state = self.state.lock();
        state.cluster_id = version.cluster_id;
        state.namenode_start = version.namenode_start;
        Ok(())
    }
}

/// Whether an error is that of a folder which fails or has no room for what a folder must have: neither of the
/// process, nor one by which somebody has to say what is meant.
fn is_of_the_folder(error: &DataNodeError) -> bool {
    match error {
        DataNodeError::Folder { source, .. } | DataNodeError::Lock(LockError::Io { source, .. }) => {
            classify(source) != DiskFault::Transient
        }
        _ => false,
    }
}

/// Of a node that has joined no cluster yet.
fn first_version() -> Version {
    let node_uuid = NodeUuid(uuid::Uuid::new_v4());
    Version {
        layout: LAYOUT,
        cluster_id: String::new(),
        node_uuid,
        incarnation: 0,
        namenode_start: NameNodeStart::default(),
    }
}

/// By the clock, unless it was set back since the last start.
fn next_incarnation(last: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_micros() as u64).max(last + 1)
}

/// Checks that a folder belongs with those before it. One that was added last may not have joined yet.
fn agree(
    known: &mut Option<(PathBuf, Version)>,
    path: PathBuf,
    version: Version,
) -> Result<(), DataNodeError> {
    let Some((first, has)) = known else {
        *known = Some((path, version));
        return Ok(());
    };
    let mismatch = |what, first_has: String, second_has: String| {
        let (first, second) = (first.clone(), path.clone());
        Err(DataNodeError::Mismatch { first, second, what, first_has, second_has })
    };
    if has.node_uuid != version.node_uuid {
        return mismatch("node uuids", has.node_uuid.to_string(), version.node_uuid.to_string());
    }
    has.incarnation = has.incarnation.max(version.incarnation);
    if version.namenode_start.epoch > has.namenode_start.epoch {
        has.namenode_start = version.namenode_start;
    }
    if has.cluster_id.is_empty() {
        has.cluster_id = version.cluster_id;
    } else if !version.cluster_id.is_empty() && has.cluster_id != version.cluster_id {
        return mismatch("clusters", has.cluster_id.clone(), version.cluster_id);
    }
    Ok(())
}
