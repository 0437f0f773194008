//! A data folder: opens it, scans it, and does the file operations.
//!
//! This module makes no decisions: errors are returned, and `store` decides whether the folder
//! stays in use. Files with unknown names are never touched.

use super::{
    disk::{Disk, DiskFault, DiskSpace, classify, is_transient},
    error::DataNodeError,
    layout::{FilePart, LAYOUT, Paths, SHARDS, Version, VersionError, parse_file_name, shard_name},
};
use daemon::lock::FolderLock;
use dfs_client::{
    checksum::{CHUNK_BYTES, Checksums, HEADER_BYTES},
    ids::{BlockId, Nonce},
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A data folder. It is locked, unless it could not be opened.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) paths: Paths,
    disk: Arc<dyn Disk>,
    reserve: u64,
    _lock: Option<FolderLock>,
}

/// The result of the scan of a data folder.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// Replicas with a valid name, size and checksum file.
    pub(super) replicas: Vec<(BlockId, Nonce, u64)>,
    /// Damaged replicas, with the reason.
    pub(super) damaged: Vec<(BlockId, String)>,
}

impl Volume {
    /// Creates the folder if necessary, locks it, and reads its `VERSION` if there is one.
    pub(super) fn open(
        dir: &Path,
        reserve: u64,
        disk: Arc<dyn Disk>,
    ) -> Result<(Self, Option<Version>), DataNodeError> {
        let lock = FolderLock::acquire(dir, "datanode")?;
        // Clients get paths in this folder. They have other working folders, so the path must be
        // absolute.
        let root = fs::canonicalize(dir).map_err(folder_error("use folder", dir))?;
        let volume = Self { paths: Paths { root }, disk, reserve, _lock: Some(lock) };
        let version = volume.read_version()?;
        if version.is_none()
            && let Some(block) = volume.any_block()?
        {
            return Err(DataNodeError::NoVersion { path: volume.paths.root, block });
        }
        volume.clear_tmp()?;
        match volume.make_folders() {
            // Continue if the disk is full: the folders exist, and their blocks can be served.
            Err(DataNodeError::Folder { source, .. })
                if version.is_some() && classify(&source) == DiskFault::Full =>
            {
                let folder = volume.paths.root.display();
                tracing::warn!(%folder, error = %source, "disk is full: its folders cannot be synced at start");
            }
            other => other?,
        }
        Ok((volume, version))
    }

    /// Creates a `Volume` for a folder that cannot be opened. The caller retires it.
    pub(super) fn unusable(dir: &Path, reserve: u64, disk: Arc<dyn Disk>) -> Self {
        let root = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        Self { paths: Paths { root }, disk, reserve, _lock: None }
    }

    fn read_version(&self) -> Result<Option<Version>, DataNodeError> {
        let path = self.paths.version();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(folder_error("read", &path)(error)),
        };
        match Version::parse(&text) {
            Ok(version) => Ok(Some(version)),
            Err(VersionError::OtherLayout(found)) => {
                Err(DataNodeError::Layout { path: self.paths.root.clone(), found, known: LAYOUT })
            }
            Err(VersionError::Malformed(why)) => Err(DataNodeError::Version { path, why }),
        }
    }

    /// Returns the path of any block in `current/`, if there is one.
    fn any_block(&self) -> Result<Option<PathBuf>, DataNodeError> {
        for low in 0..SHARDS {
            let folder = self.paths.current().join(shard_name(BlockId(low)));
            let found = match list_files(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(folder_error("list", &folder))?,
            };
            if let Some((path, _)) = found.into_iter().find(|(_, known)| known.is_some()) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Writes `VERSION` atomically.
    pub(super) fn write_version(&self, version: &Version) -> io::Result<()> {
        let temporary = self.paths.root().join("VERSION.tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(version.print().as_bytes())?;
        self.disk.sync_file(&file, &temporary)?;
        fs::rename(&temporary, self.paths.version())?;
        self.disk.sync_folder(self.paths.root())
    }

    /// Creates all folders at start, so that finalising a block never has to create and sync one.
    fn make_folders(&self) -> Result<(), DataNodeError> {
        let current = self.paths.current();
        let shards = (0..SHARDS).map(|low| current.join(shard_name(BlockId(low))));
        for path in [self.paths.tmp_dir(), self.paths.bad_dir(), current.clone()].into_iter().chain(shards) {
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(folder_error("create folder", &path)(error));
                }
                _ => {}
            }
        }
        self.disk.sync_folder(&current).map_err(folder_error("sync", &current))?;
        self.disk.sync_folder(self.paths.root()).map_err(folder_error("sync", self.paths.root()))
    }

    /// Deletes partial replicas of an earlier start, because their writers no longer exist.
    fn clear_tmp(&self) -> Result<(), DataNodeError> {
        let tmp = self.paths.tmp_dir();
        let found = match list_files(&tmp) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(folder_error("list", &tmp))?,
        };
        for (path, known) in found {
            if known.is_some() {
                fs::remove_file(&path).map_err(folder_error("delete", &path))?;
            } else {
                log_unknown_file(&path);
            }
        }
        Ok(())
    }

    /// Scans the finalised replicas: reads names, sizes and checksum files, but no block data. A
    /// replica with an unreadable file is damaged. Returns an error after a transient error of this
    /// process. The replicas in a subfolder that cannot be listed are not served; if no subfolder
    /// can be listed, returns an error.
    pub(super) fn scan(&self) -> Result<ScanResult, DataNodeError> {
        let mut scan = ScanResult::default();
        let mut unlisted = 0;
        let current = self.paths.current();
        for low in 0..SHARDS {
            let folder = current.join(shard_name(BlockId(low)));
            let mut orphan_sums = Vec::new();
            let found = match list_files(&folder) {
                Err(error) if !is_transient(&error) && unlisted + 1 < SHARDS => {
                    unlisted += 1;
                    let folder = folder.display();
                    tracing::error!(%folder, %error, "cannot list the folder: its replicas are not served");
                    continue;
                }
                other => other.map_err(folder_error("list", &folder))?,
            };
            for (path, known) in found {
                match known {
                    Some((block, _)) if block.0 % SHARDS != low => log_unknown_file(&path),
                    Some((block, FilePart::Data)) => match self.open_block(block) {
                        Ok((_, sums)) => scan.replicas.push((block, sums.nonce, sums.length)),
                        Err(Damage::Transient(error)) => {
                            return Err(folder_error("read the block", &path)(error));
                        }
                        Err(proven) => scan.damaged.push((block, proven.to_string())),
                    },
                    Some((block, FilePart::Sums)) => orphan_sums.push(block),
                    None => log_unknown_file(&path),
                }
            }
            for block in orphan_sums {
                let data = self.paths.finalised(block, FilePart::Data);
                if data.try_exists().is_ok_and(|exists| !exists) {
                    self.clear_orphan_sums(block);
                }
            }
        }
        for path in [current, self.paths.root().into()] {
            self.unknown_files(&path).iter().for_each(|path| log_unknown_file(path));
        }
        Ok(scan)
    }

    /// Deletes a checksum file without a data file, which remains after a crash between two renames
    /// or two deletions.
    fn clear_orphan_sums(&self, block: BlockId) {
        let path = self.paths.finalised(block, FilePart::Sums);
        let ours = fs::read(&path).is_ok_and(|bytes| Checksums::decode(&bytes, block).is_ok());
        if !ours || fs::remove_file(&path).is_err() {
            log_unknown_file(&path);
        }
    }

    /// Returns the files in `folder`, which is the data folder itself or `current/`, that the
    /// DataNode has not written.
    fn unknown_files(&self, folder: &Path) -> Vec<PathBuf> {
        const KNOWN_NAMES: [&str; 11] = [
            "LOCK",
            "CLUSTER",
            "VERSION",
            "VERSION.tmp",
            "VOLUMES",
            "VOLUMES.new",
            "NEW",
            "local.sock",
            "current",
            "tmp",
            "bad",
        ];
        let in_current = folder == self.paths.current();
        let known = |name: &str| {
            if in_current {
                (0..SHARDS).any(|low| shard_name(BlockId(low)) == name)
            } else {
                KNOWN_NAMES.contains(&name)
            }
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let unknown_files = entries.filter(|entry| !entry.file_name().to_str().is_some_and(known));
        unknown_files.map(|entry| entry.path()).collect()
    }

    /// Returns the quarantined blocks.
    pub(super) fn quarantined_blocks(&self) -> io::Result<Vec<BlockId>> {
        let known = list_files(&self.paths.bad_dir())?.into_iter().filter_map(|(_, known)| known);
        Ok(known.map(|(block, _)| block).collect())
    }

    /// Opens a finalised block and reads its checksum file. Checks everything except the data.
    pub(super) fn open_block(&self, block: BlockId) -> Result<(File, Checksums), Damage> {
        let data = self.disk.open(&self.paths.finalised(block, FilePart::Data))?;
        let found = data.metadata()?.len();
        let sums = self.read_sums(block, found)?;
        if sums.length != found {
            return Err(Damage::Sums(dfs_client::checksum::ChecksumError::Length {
                wanted: sums.length,
                found,
            }));
        }
        Ok((data, sums))
    }

    /// Opens the checksum file of a finalised block.
    pub(super) fn open_sums(&self, block: BlockId) -> io::Result<File> {
        self.disk.open(&self.paths.finalised(block, FilePart::Sums))
    }

    fn read_sums(&self, block: BlockId, data_len: u64) -> Result<Checksums, Damage> {
        let file = self.open_sums(block)?;
        // Limit the size of the read to the header and the checksums of a block of this length.
        let max = HEADER_BYTES as u64 + data_len.div_ceil(CHUNK_BYTES as u64) * 4;
        let size = file.metadata()?.len();
        let mut bytes = Vec::new();
        file.take(size.min(max.max(1 << 20))).read_to_end(&mut bytes)?;
        Checksums::decode(&bytes, block).map_err(Damage::Sums)
    }

    /// Creates an empty partial replica.
    pub(super) fn create_partial(&self, block: BlockId) -> io::Result<File> {
        let path = self.paths.tmp(block, FilePart::Data);
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
    }

    /// Deletes a partial replica. Ignores errors, because the next start deletes the remaining
    /// files.
    pub(super) fn remove_partial(&self, block: BlockId) {
        for part in [FilePart::Data, FilePart::Sums] {
            remove_if_exists(&self.paths.tmp(block, part)).ok();
        }
    }

    /// Makes a partial replica durable and moves it to `current/`. When this returns, the replica
    /// survives a crash.
    ///
    /// First the data and the checksums are synced. Then the checksum file is renamed and then the
    /// data file, so that a data file in `current/` always has its checksums. Then the folder is
    /// synced.
    pub(super) fn finalise(&self, data: &File, sums: &Checksums) -> io::Result<()> {
        let block = sums.block;
        let sums_path = self.paths.tmp(block, FilePart::Sums);
        let mut file = File::create(&sums_path)?;
        file.write_all(&sums.encode())?;
        self.disk.sync_file(data, &self.paths.tmp(block, FilePart::Data))?;
        self.disk.sync_file(&file, &sums_path)?;
        for part in [FilePart::Sums, FilePart::Data] {
            fs::rename(self.paths.tmp(block, part), self.paths.finalised(block, part))?;
        }
        self.disk.sync_folder(&self.paths.shard(block))
    }

    /// Moves a damaged replica to `bad/`.
    pub(super) fn move_to_bad(&self, block: BlockId) -> io::Result<()> {
        for part in [FilePart::Data, FilePart::Sums] {
            match fs::rename(self.paths.finalised(block, part), self.paths.bad(block, part)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // Sync before the damage is reported: after a crash the replica must not be in `current/`,
        // where it would be considered good.
        self.disk.sync_folder(&self.paths.shard(block))
    }

    /// Deletes all files of a block in this folder. The data is deleted first, because a checksum
    /// file alone is not a replica.
    pub(super) fn delete(&self, block: BlockId) -> io::Result<()> {
        for part in [FilePart::Data, FilePart::Sums] {
            remove_if_exists(&self.paths.finalised(block, part))?;
        }
        self.delete_quarantined(block)
    }

    /// Deletes the quarantined files of a block.
    pub(super) fn delete_quarantined(&self, block: BlockId) -> io::Result<()> {
        for part in [FilePart::Data, FilePart::Sums] {
            remove_if_exists(&self.paths.bad(block, part))?;
        }
        Ok(())
    }

    /// Returns the free space for blocks: that of the file system minus the reserve.
    pub(super) fn space(&self) -> io::Result<DiskSpace> {
        let space = self.disk.space(self.paths.root())?;
        Ok(DiskSpace { free: space.free.saturating_sub(self.reserve), ..space })
    }
}

/// What is wrong with a finalised replica, or why it cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    /// A file is missing, is truncated, or cannot be read from the disk.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The checksum file, the length or the data is wrong.
    #[error("{0}")]
    Sums(#[from] dfs_client::checksum::ChecksumError),
    /// This process cannot read the replica now (no descriptors, no memory). The replica may be
    /// good.
    #[error("cannot be read now: {0}")]
    Transient(io::Error),
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        if is_transient(&error) { Self::Transient(error) } else { Self::Unreadable(error) }
    }
}

type FolderEntry = (PathBuf, Option<(BlockId, FilePart)>);

/// Returns the files of a folder, each with the block and part that its name stands for, if any.
fn list_files(folder: &Path) -> io::Result<Vec<FolderEntry>> {
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            let known = entry.file_name().to_str().and_then(parse_file_name);
            let is_file = entry.file_type()?.is_file();
            Ok((entry.path(), known.filter(|_| is_file)))
        })
        .collect()
}

fn log_unknown_file(path: &Path) {
    tracing::warn!(path = %path.display(), "unknown file in a data folder: not touched");
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn folder_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> DataNodeError + 'a {
    move |source| DataNodeError::Folder { what, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::{super::disk::RealDisk, *};

    #[test]
    fn no_file_that_the_daemon_writes_into_a_data_folder_is_unknown() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("data");
        let (volume, _) = Volume::open(&dir, 0, Arc::new(RealDisk)).unwrap();
        fs::write(volume.paths.version(), "").unwrap();
        daemon::data_dirs::write_list(std::slice::from_ref(&dir), [dir.as_path()]);
        for name in ["VERSION.tmp", "NEW", "CLUSTER", "local.sock"] {
            fs::write(dir.join(name), "").unwrap();
        }
        assert!(dir.join("VOLUMES").is_file());
        assert_eq!(volume.unknown_files(volume.paths.root()), Vec::<PathBuf>::new());
        let notes = volume.paths.root().join("notes.txt");
        fs::write(&notes, "").unwrap();
        assert_eq!(volume.unknown_files(volume.paths.root()), [notes]);
    }
}
