//! Start-up: opens the data folders, identifies the node, and scans the replicas.
//!
//! Invariant: `VERSION` is the first file that is written to a folder. It identifies the node and
//! its cluster. A folder with blocks but without `VERSION` is refused.
//!
//! If the process lacks a resource (memory, descriptors), the start fails. A folder with an error
//! is retired, that is, not used any more, unless no other folder identifies the node. It is also
//! an error if a folder cannot be locked or written, or if it was in use and is now empty, because
//! its disk is probably not mounted. If a block cannot be read, only its replica is lost.

use super::{
    disk::{Disk, DiskFault, classify},
    error::{DataNodeError, Refusal, RefusalKind},
    layout::{LAYOUT, NameNodeStart, Version},
    pending_reports::PendingReports,
    store::{BlockLocks, FatalErrorSender, State, Store, VolumeState},
    volume::Volume,
};
use daemon::{config::DataNodeConfig, data_dirs, lock::LockError};
use dfs_client::ids::NodeUuid;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// The part of the configuration that the store uses.
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
    /// Opens and scans the folders. Damaged replicas are quarantined and reported.
    pub(super) fn open(
        dirs: &[PathBuf],
        settings: &Settings,
        disk: Arc<dyn Disk>,
        fatal_error: FatalErrorSender,
    ) -> Result<Self, DataNodeError> {
        let reserve = settings.reserve;
        let mut volumes: Vec<Volume> = Vec::new();
        let mut known: Option<(PathBuf, Version)> = None;
        let (mut new, mut broken) = (Vec::new(), Vec::new());
        let vanished = data_dirs::vanished_dirs(dirs);
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
                Err(error) if is_folder_error(&error) => {
                    broken.push((volumes.len(), error));
                    (Volume::unusable(dir, reserve, disk.clone()), None)
                }
                other => other?,
            };
            new.push(version.is_none());
            if let Some(version) = version {
                check_same_node(&mut known, volume.paths.root.clone(), version)?;
            }
            volumes.push(volume);
        }
        // The broken folder may be the only one that identifies the node. If the start continued,
        // the node would get a new ID.
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
            // One replaced disk does not mean that all other folders may be empty.
            declared_new: dirs.iter().all(|dir| data_dirs::is_declared_new(dir)),
            pending_reports: PendingReports::default(),
            volumes,
            state: Mutex::new(state),
            locks: BlockLocks::default(),
            fatal_error,
            bad_blocks_max: settings.bad_blocks_max,
        };
        for (index, error) in &broken {
            store.retire(*index, &error.to_string());
        }
        for (index, new) in new.into_iter().enumerate().filter(|(index, _)| !store.is_failed(*index)) {
            if new {
                let folder = store.volumes[index].paths.root.display();
                tracing::warn!(
                    %folder,
                    "the data folder is new and starts empty; if it had blocks, stop this DataNode and mount its disk"
                );
            }
            let taken =
                store.write_version_at_start(index, &version, new).and_then(|()| store.load_volume(index));
            taken.or_else(|error| store.retire_if_broken(index, error))?;
            store.measure_space(index);
        }
        data_dirs::write_list(dirs, store.roots_in_use());
        // Before the node has joined a cluster, `NEW` must survive a restart: the NameNode has not
        // accepted the declaration yet.
        if !version.cluster_id.is_empty() {
            data_dirs::forget_declared_new(store.roots_in_use());
        }
        Ok(store)
    }

    /// Returns the data folders that have not failed.
    fn roots_in_use(&self) -> impl Iterator<Item = &Path> {
        let usable = (0..self.volumes.len()).filter(|index| !self.is_failed(*index));
        usable.map(|index| self.volumes[index].paths.root())
    }

    /// Writes `VERSION`. If the disk is full, the start continues, because the replicas can be
    /// served. The folder then keeps the incarnation of an earlier start.
    fn write_version_at_start(
        &self,
        index: usize,
        version: &Version,
        new: bool,
    ) -> Result<(), DataNodeError> {
        let volume = &self.volumes[index];
        match volume.write_version(version) {
            Err(error) if !new && classify(&error) == DiskFault::Full => {
                tracing::warn!(folder = %volume.paths.root.display(), %error, "cannot update VERSION");
                Ok(())
            }
            other => other.map_err(|source| {
                let path = volume.paths.version();
                DataNodeError::Folder { what: "write", path, source }
            }),
        }
    }

    /// Retires the folder if the folder itself has failed and other folders work. Otherwise returns
    /// the error.
    fn retire_if_broken(&self, index: usize, error: DataNodeError) -> Result<(), DataNodeError> {
        let others = (0..self.volumes.len()).any(|other| other != index && !self.is_failed(other));
        if !is_folder_error(&error) || !others {
            return Err(error);
        }
        self.retire(index, &error.to_string());
        Ok(())
    }

    fn load_volume(&self, index: usize) -> Result<(), DataNodeError> {
        let volume = &self.volumes[index];
        let scan = volume.scan()?;
        let mut duplicates = Vec::new();
        let mut state = self.state.lock();
        for (block, nonce, length) in scan.replicas {
            if state.replicas.contains_key(&block) {
                duplicates.push(block);
            } else {
                state.insert(block, nonce, index, length);
            }
        }
        let count = state.replicas.len();
        drop(state);
        for block in duplicates {
            tracing::warn!(%block, folder = %volume.paths.root.display(), "another folder has a replica of this block: this one is quarantined");
            self.or_retire(index, volume.move_to_bad(block)).ok();
        }
        for (block, why) in scan.damaged {
            self.quarantine(block, index, &why);
        }
        tracing::info!(folder = %volume.paths.root.display(), replicas = count, "folder scanned");
        Ok(())
    }

    /// Stores the cluster and the start of the NameNode in `VERSION` of every folder, and removes
    /// `NEW`, because the NameNode has accepted the node. One successful write is enough, because
    /// the next start uses the newest `VERSION`. If all writes fail, nothing changes.
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
        let mut stored = Err(Refusal::new(RefusalKind::Failed, "no data folder is in use"));
        for (index, volume) in self.volumes.iter().enumerate() {
            if self.is_failed(index) {
                continue;
            }
            match self.or_retire(index, volume.write_version(&version)) {
                Ok(()) => stored = Ok(()),
                Err(why) => {
                    tracing::warn!(folder = %volume.paths.root.display(), %why, "cannot update VERSION");
                    if stored.is_err() {
                        stored = Err(why);
                    }
                }
            }
        }
        stored?;
        data_dirs::forget_declared_new(self.roots_in_use());
        let mut state = self.state.lock();
        state.cluster_id = version.cluster_id;
        state.namenode_start = version.namenode_start;
        Ok(())
    }
}

/// Returns whether the folder itself has failed or is full. Other errors mean that the process
/// lacks a resource, or that the operator must decide.
fn is_folder_error(error: &DataNodeError) -> bool {
    match error {
        DataNodeError::Folder { source, .. } | DataNodeError::Lock(LockError::Io { source, .. }) => {
            classify(source) != DiskFault::Transient
        }
        _ => false,
    }
}

/// Creates the `VERSION` of a new node, which has not joined a cluster.
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

/// Returns the current time in microseconds since the Unix epoch or, if the clock was set back, one
/// more than the last incarnation.
fn next_incarnation(last: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_micros() as u64).max(last + 1)
}

/// Checks that a folder belongs to the same node and cluster as the folders before it. A folder
/// that was added since the last start may have no cluster yet.
fn check_same_node(
    known: &mut Option<(PathBuf, Version)>,
    path: PathBuf,
    version: Version,
) -> Result<(), DataNodeError> {
    let Some((first, has)) = known else {
        *known = Some((path, version));
        return Ok(());
    };
    let mismatch = |what, first_value: String, second_value: String| {
        let (first, second) = (first.clone(), path.clone());
        Err(DataNodeError::Mismatch { first, second, what, first_value, second_value })
    };
    if has.node_uuid != version.node_uuid {
        // A start with none of the disks mounted writes a new ID into the empty folders. Such a
        // folder has joined no cluster and has no blocks, so it gets the ID of the other folders.
        if version.cluster_id.is_empty() && !has.cluster_id.is_empty() {
            return Ok(());
        }
        if has.cluster_id.is_empty() && !version.cluster_id.is_empty() {
            *known = Some((path, version));
            return Ok(());
        }
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

#[cfg(test)]
mod tests {
    use super::{super::disk::RealDisk, *};

    fn open(dirs: &[PathBuf]) -> Store {
        let (fatal_error, _) = tokio::sync::mpsc::unbounded_channel();
        Store::open(dirs, &Settings::default(), Arc::new(RealDisk), fatal_error).unwrap()
    }

    #[test]
    fn node_is_declared_new_only_if_every_folder_has_the_file() {
        let home = tempfile::tempdir().unwrap();
        let dirs = ["a", "b"].map(|name| home.path().join(name));
        data_dirs::declare_new(&dirs[0]).unwrap();
        assert!(!open(&dirs).declared_new);
        assert!(data_dirs::is_declared_new(&dirs[0]));
        data_dirs::declare_new(&dirs[1]).unwrap();
        assert!(open(&dirs).declared_new);
    }

    #[test]
    fn declaration_survives_restarts_until_the_node_has_joined_a_cluster() {
        let home = tempfile::tempdir().unwrap();
        let dirs = [home.path().join("a")];
        data_dirs::declare_new(&dirs[0]).unwrap();
        assert!(open(&dirs).declared_new);
        let store = open(&dirs);
        assert!(store.declared_new);
        store.join_cluster("c1", NameNodeStart::default()).unwrap();
        assert!(!data_dirs::is_declared_new(&dirs[0]));
        drop(store);
        // The node has joined a cluster: a start removes the file `NEW` of a replaced disk.
        data_dirs::declare_new(&dirs[0]).unwrap();
        drop(open(&dirs));
        assert!(!data_dirs::is_declared_new(&dirs[0]));
    }

    #[test]
    fn folder_that_joined_no_cluster_gets_the_id_of_the_others() {
        let home = tempfile::tempdir().unwrap();
        let [absent, kept, other] = ["absent", "kept", "other"].map(|name| home.path().join(name));
        let join = |dir: &PathBuf| {
            let store = open(std::slice::from_ref(dir));
            store.join_cluster("c1", NameNodeStart::default()).unwrap();
            store.uuid
        };
        let id = join(&kept);
        for order in [[absent.clone(), kept.clone()], [kept.clone(), absent.clone()]] {
            std::fs::remove_dir_all(&absent).ok();
            assert_ne!(open(std::slice::from_ref(&absent)).uuid, id);
            assert_eq!(open(&order).uuid, id);
            assert_eq!(open(std::slice::from_ref(&absent)).uuid, id, "the ID was not written to the folder");
        }
        join(&other);
        let (fatal_error, _) = tokio::sync::mpsc::unbounded_channel();
        let opened = Store::open(&[kept, other], &Settings::default(), Arc::new(RealDisk), fatal_error);
        assert!(matches!(opened, Err(DataNodeError::Mismatch { .. })), "folders of two nodes were accepted");
    }
}
