//! One data folder: opening and scanning it, and the few file operations on it.
//!
//! Nothing here decides: errors go up, and `store` says what becomes of the folder. Files whose names are not
//! ours are left alone everywhere.

use super::{
    disk::{Disk, DiskFault, DiskSpace, classify, is_transient},
    error::DataNodeError,
    layout::{LAYOUT, Part, Paths, SHARDS, Version, VersionError, parse_name, shard},
};
use crate::{
    checksum::{CHUNK_BYTES, Checksums, HEADER_BYTES},
    ids::{BlockId, Nonce},
};
use daemon::lock::FolderLock;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A data folder, locked unless it failed before it could be.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) paths: Paths,
    disk: Arc<dyn Disk>,
    reserve: u64,
    _lock: Option<FolderLock>,
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Sound by name, size and checksum file.
    pub(super) replicas: Vec<(BlockId, Nonce, u64)>,
    /// Not sound, and why.
    pub(super) damaged: Vec<(BlockId, String)>,
}

impl Volume {
    /// Makes the folder if need be, locks it, and reads its `VERSION`, if it has one.
    pub(super) fn open(
        dir: &Path,
        reserve: u64,
        disk: Arc<dyn Disk>,
    ) -> Result<(Self, Option<Version>), DataNodeError> {
        let lock = FolderLock::acquire(dir, "datanode")?;
        // Others are told paths below it, and their working folder is not ours.
        let root = fs::canonicalize(dir).map_err(at("use folder", dir))?;
        let volume = Self { paths: Paths { root }, disk, reserve, _lock: Some(lock) };
        let version = volume.read_version()?;
        if version.is_none()
            && let Some(block) = volume.any_block()?
        {
            return Err(DataNodeError::NoVersion { path: volume.paths.root, block });
        }
        volume.clear_tmp()?;
        match volume.make_folders() {
            // It has them, and serves what it has.
            Err(DataNodeError::Folder { source, .. })
                if version.is_some() && classify(&source) == DiskFault::Full =>
            {
                let folder = volume.paths.root.display();
                tracing::warn!(%folder, error = %source, "a full disk: its folders are not made durable again");
            }
            other => other?,
        }
        Ok((volume, version))
    }

    /// One that cannot be opened: to be retired at once.
    pub(super) fn unopened(dir: &Path, reserve: u64, disk: Arc<dyn Disk>) -> Self {
        let root = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        Self { paths: Paths { root }, disk, reserve, _lock: None }
    }

    fn read_version(&self) -> Result<Option<Version>, DataNodeError> {
        let path = self.paths.version();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at("read", &path)(error)),
        };
        match Version::parse(&text) {
            Ok(version) => Ok(Some(version)),
            Err(VersionError::Newer(found)) => {
                Err(DataNodeError::Layout { path: self.paths.root.clone(), found, known: LAYOUT })
            }
            Err(VersionError::Malformed(why)) => Err(DataNodeError::Version { path, why }),
        }
    }

    /// A block in `current/`, if there is one.
    fn any_block(&self) -> Result<Option<PathBuf>, DataNodeError> {
        for low in 0..SHARDS {
            let folder = self.paths.current().join(shard(BlockId(low)));
            let found = match entries(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(at("list", &folder))?,
            };
            if let Some((path, _)) = found.into_iter().find(|(_, known)| known.is_some()) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Writes `VERSION` whole or not at all.
    pub(super) fn write_version(&self, version: &Version) -> io::Result<()> {
        let quarantined = self.paths.root().join("VERSION.tmp");
        let mut file = File::create(&quarantined)?;
        file.write_all(version.print().as_bytes())?;
        self.disk.sync_file(&file, &quarantined)?;
        fs::rename(&quarantined, self.paths.version())?;
        self.disk.sync_folder(self.paths.root())
    }

    /// All folders exist from the start, so that finalising a block never has to make one durable first.
    fn make_folders(&self) -> Result<(), DataNodeError> {
        let current = self.paths.current();
        let shards = (0..SHARDS).map(|low| current.join(shard(BlockId(low))));
        for path in [self.paths.tmp_dir(), self.paths.bad_dir(), current.clone()].into_iter().chain(shards) {
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(at("make folder", &path)(error));
                }
                _ => {}
            }
        }
        self.disk.sync_folder(&current).map_err(at("sync", &current))?;
        self.disk.sync_folder(self.paths.root()).map_err(at("sync", self.paths.root()))
    }

    /// Partial replicas of an earlier start are of no use: their writers are gone.
    fn clear_tmp(&self) -> Result<(), DataNodeError> {
        let tmp = self.paths.tmp_dir();
        let found = match entries(&tmp) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(at("list", &tmp))?,
        };
        for (path, known) in found {
            if known.is_some() {
                fs::remove_file(&path).map_err(at("delete", &path))?;
            } else {
                leave_alone(&path);
            }
        }
        Ok(())
    }

    /// Reads names, sizes and checksum files; no block's bytes. What the disk cannot read is held against that replica.
    /// An error of this process refuses the start. A subfolder that cannot be listed costs the replicas in it; if none
    /// can be listed, the folder is broken.
    pub(super) fn scan(&self) -> Result<Scan, DataNodeError> {
        let mut scan = Scan::default();
        let mut unlisted = 0;
        let current = self.paths.current();
        for low in 0..SHARDS {
            let folder = current.join(shard(BlockId(low)));
            let mut orphan_sums = Vec::new();
            let found = match entries(&folder) {
                Err(error) if !is_transient(&error) && unlisted + 1 < SHARDS => {
                    unlisted += 1;
                    let folder = folder.display();
                    tracing::error!(%folder, %error, "cannot list: its replicas are not served");
                    continue;
                }
                other => other.map_err(at("list", &folder))?,
            };
            for (path, known) in found {
                match known {
                    Some((block, _)) if block.0 % SHARDS != low => leave_alone(&path),
                    Some((block, Part::Data)) => match self.open_block(block) {
                        Ok((_, sums)) => scan.replicas.push((block, sums.nonce, sums.length)),
                        Err(Damage::Transient(error)) => return Err(at("read the block", &path)(error)),
                        Err(proven) => scan.damaged.push((block, proven.to_string())),
                    },
                    Some((block, Part::Sums)) => orphan_sums.push(block),
                    None => leave_alone(&path),
                }
            }
            for block in orphan_sums {
                let data = self.paths.finalised(block, Part::Data);
                if data.try_exists().is_ok_and(|exists| !exists) {
                    self.clear_orphan_sums(block);
                }
            }
        }
        for path in [current, self.paths.root().into()] {
            self.unknown_files(&path).iter().for_each(|wrong_peer| leave_alone(wrong_peer));
        }
        Ok(scan)
    }

    /// Checksums without data are what a crash between two renames or two deletes leaves.
    fn clear_orphan_sums(&self, block: BlockId) {
        let path = self.paths.finalised(block, Part::Sums);
        let ours = fs::read(&path).is_ok_and(|bytes| Checksums::decode(&bytes, block).is_ok());
        if !ours || fs::remove_file(&path).is_err() {
            leave_alone(&path);
        }
    }

    /// What is in the folder itself or in `current/` and is not ours.
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
                (0..SHARDS).any(|low| shard(BlockId(low)) == name)
            } else {
                KNOWN_NAMES.contains(&name)
            }
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let unknown_files = entries.filter(|entry| !entry.file_name().to_str().is_some_and(known));
        unknown_files.map(|entry| entry.path()).collect()
    }

    /// The blocks quarantined.
    pub(super) fn quarantined_blocks(&self) -> io::Result<Vec<BlockId>> {
        let known = entries(&self.paths.bad_dir())?.into_iter().filter_map(|(_, known)| known);
        Ok(known.map(|(block, _)| block).collect())
    }

    /// Opens a finalised block and its checksums, and checks all but the bytes themselves.
    pub(super) fn open_block(&self, block: BlockId) -> Result<(File, Checksums), Damage> {
        let data = self.disk.open(&self.paths.finalised(block, Part::Data))?;
        let found = data.metadata()?.len();
        let sums = self.read_sums(block, found)?;
        if sums.length != found {
            return Err(Damage::Sums(crate::checksum::ChecksumError::Length { wanted: sums.length, found }));
        }
        Ok((data, sums))
    }

    /// Opens a finalised block's checksum file.
    pub(super) fn open_sums(&self, block: BlockId) -> io::Result<File> {
        self.disk.open(&self.paths.finalised(block, Part::Sums))
    }

    fn read_sums(&self, block: BlockId, data_len: u64) -> Result<Checksums, Damage> {
        let file = self.open_sums(block)?;
        // Whatever lies there, no more is read than a block of this length could need, and the header, which
        // says what length was meant.
        let max = HEADER_BYTES as u64 + data_len.div_ceil(CHUNK_BYTES as u64) * 4;
        let size = file.metadata()?.len();
        let mut bytes = Vec::new();
        file.take(size.min(max.max(1 << 20))).read_to_end(&mut bytes)?;
        Checksums::decode(&bytes, block).map_err(Damage::Sums)
    }

    /// A new, empty partial replica.
    pub(super) fn create_partial(&self, block: BlockId) -> io::Result<File> {
        let path = self.paths.tmp(block, Part::Data);
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
    }

    /// Drops a partial replica. Best effort: the next start clears what is left.
    pub(super) fn remove_partial(&self, block: BlockId) {
        for part in [Part::Data, Part::Sums] {
            remove_if_exists(&self.paths.tmp(block, part)).ok();
        }
    }

    /// Makes a partial replica durable and puts it in its place: after this it is there whatever happens.
    ///
    /// First data and checksums reach the disk; then the checksums are renamed, then the data, so that data in
    /// `current/` always has its checksums; then the folder's entries reach the disk.
    pub(super) fn finalise(&self, data: &File, sums: &Checksums) -> io::Result<()> {
        let block = sums.block;
        let sums_path = self.paths.tmp(block, Part::Sums);
        let mut file = File::create(&sums_path)?;
        file.write_all(&sums.encode())?;
        self.disk.sync_file(data, &self.paths.tmp(block, Part::Data))?;
        self.disk.sync_file(&file, &sums_path)?;
        for part in [Part::Sums, Part::Data] {
            fs::rename(self.paths.tmp(block, part), self.paths.finalised(block, part))?;
        }
        self.disk.sync_folder(&self.paths.shard(block))
    }

    /// Moves a damaged replica to `bad/`.
    pub(super) fn move_to_bad(&self, block: BlockId) -> io::Result<()> {
        for part in [Part::Data, Part::Sums] {
            match fs::rename(self.paths.finalised(block, part), self.paths.bad(block, part)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // Before anybody is told: after a crash it must not be found in its old place and taken for sound.
        self.disk.sync_folder(&self.paths.shard(block))
    }

    /// Deletes a block, wherever it lies in this folder. Data first: checksums alone are no replica.
    pub(super) fn delete(&self, block: BlockId) -> io::Result<()> {
        for part in [Part::Data, Part::Sums] {
            remove_if_exists(&self.paths.finalised(block, part))?;
        }
        self.delete_quarantined(block)
    }

    /// Deletes what was quarantined of a block.
    pub(super) fn delete_quarantined(&self, block: BlockId) -> io::Result<()> {
        for part in [Part::Data, Part::Sums] {
            remove_if_exists(&self.paths.bad(block, part))?;
        }
        Ok(())
    }

    /// Room for blocks: what the file system has, less the reserve.
    pub(super) fn space(&self) -> io::Result<DiskSpace> {
        let space = self.disk.space(self.paths.root())?;
        Ok(DiskSpace { free: space.free.saturating_sub(self.reserve), ..space })
    }
}

/// What is wrong with a finalised replica, or with looking at it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    /// A file is missing, ends too early, or the disk cannot read it.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The checksum file, the length or the bytes.
    #[error("{0}")]
    Sums(#[from] crate::checksum::ChecksumError),
    /// This process cannot read it now (no descriptors, no memory): that says nothing about the replica.
    #[error("cannot be read now: {0}")]
    Transient(io::Error),
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        if is_transient(&error) { Self::Transient(error) } else { Self::Unreadable(error) }
    }
}

type Entry = (PathBuf, Option<(BlockId, Part)>);

/// The files of a folder, with what their names say.
fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            let known = entry.file_name().to_str().and_then(parse_name);
            let is_file = entry.file_type()?.is_file();
            Ok((entry.path(), known.filter(|_| is_file)))
        })
        .collect()
}

fn leave_alone(path: &Path) {
    tracing::warn!(path = %path.display(), "unknown file in a data folder: left alone");
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn at<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> DataNodeError + 'a {
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
        daemon::data_dirs::remember(std::slice::from_ref(&dir), [dir.as_path()]);
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
