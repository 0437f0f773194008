//! Copies a file to a local file. The data is written to a temporary file in the target folder and
//! renamed at the end, so that the local file appears completely or not at all. Only a regular file
//! can be replaced; the new file gets the mode of the replaced file. If the target is a symbolic
//! link, the file that it points to is replaced.

use super::{Client, ClientError, FileReader, GetOptions, GetReport, Progress, Result};
use crate::path::DfsPath;
use bytes::Bytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Maximum number of packets in the queue to the thread that writes them to disk.
const QUEUED_PACKETS_MAX: usize = 4;

impl Client {
    /// Copies a file to the local file `to`, which appears completely or not at all.
    pub async fn get(
        &self,
        from: &DfsPath,
        to: &Path,
        options: GetOptions,
        progress: &dyn Progress,
    ) -> Result<GetReport> {
        let reader = self.open(from).await?;
        get_from(reader, to, options, progress).await
    }

    /// Like [`Client::get`], but writes zeros for blocks without a good replica. The report
    /// contains their ranges.
    pub async fn get_skipping_lost(
        &self,
        from: &DfsPath,
        to: &Path,
        options: GetOptions,
        progress: &dyn Progress,
    ) -> Result<GetReport> {
        let mut reader = self.open(from).await?;
        reader.zero_fill_lost_blocks();
        get_from(reader, to, options, progress).await
    }
}

async fn get_from(
    mut reader: FileReader,
    to: &Path,
    options: GetOptions,
    progress: &dyn Progress,
) -> Result<GetReport> {
    let target = Target::find(to, options.overwrite).map_err(|error| local_error(to, &error))?;
    let (temporary, file) = TemporaryFile::create(&target).map_err(|error| local_error(to, &error))?;
    let (packets, receiver) = mpsc::channel(QUEUED_PACKETS_MAX);
    let writing = tokio::task::spawn_blocking(move || write_all(file, receiver));
    while let Some(bytes) = reader.next().await? {
        let length = bytes.len() as u64;
        if packets.send(bytes).await.is_err() {
            break;
        }
        progress.advance(length);
    }
    drop(packets);
    let written =
        writing.await.map_err(|_| local_error(to, &io::Error::other("the writing thread failed")))?;
    written
        .and_then(|()| temporary.rename(&target.path, &options))
        .map_err(|error| local_error(to, &error))?;
    let (status, faults, lost) = reader.into_parts();
    Ok(GetReport { status, to: to.to_owned(), faults, lost })
}

fn local_error(path: &Path, error: &io::Error) -> ClientError {
    ClientError::Local { path: path.to_owned(), reason: error.to_string() }
}

/// The local path to write to.
#[derive(Debug)]
struct Target {
    /// The path after symbolic links are resolved.
    path: PathBuf,
    /// The permission bits of the existing file, if there is one.
    mode: Option<u32>,
}

impl Target {
    fn find(to: &Path, overwrite: bool) -> io::Result<Self> {
        let about = match std::fs::symlink_metadata(to) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path: to.to_owned(), mode: None });
            }
            Err(error) => return Err(error),
        };
        let (path, about) = if about.is_symlink() {
            let path = std::fs::canonicalize(to).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    io::Error::other("is a symbolic link to a file that does not exist: choose another name")
                }
                _ => error,
            })?;
            let about = std::fs::metadata(&path)?;
            (path, about)
        } else {
            (to.to_owned(), about)
        };
        if about.is_dir() {
            return Err(io::Error::other("is a folder: give the name of a file"));
        }
        if !about.is_file() {
            return Err(io::Error::other("is not a regular file: only a regular file can be replaced"));
        }
        if !overwrite {
            return Err(exists_error());
        }
        Ok(Self { path, mode: Some(about.permissions().mode() & 0o777) })
    }
}

fn exists_error() -> io::Error {
    io::Error::other("already exists: overwrite it or choose another name")
}

fn write_all(mut file: File, mut packets: mpsc::Receiver<Bytes>) -> io::Result<()> {
    while let Some(bytes) = packets.blocking_recv() {
        file.write_all(&bytes)?;
    }
    // Sync before the rename. Otherwise the final name could point to an incomplete file after a
    // crash.
    file.sync_all()
}

/// The temporary file. It is deleted on drop.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn create(target: &Target) -> io::Result<(Self, File)> {
        let name = format!(".fermata-get-{}", uuid::Uuid::new_v4().simple());
        let path = target.path.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Set the mode at creation, so that the contents of a private file are never readable by
        // others.
        if let Some(mode) = target.mode {
            options.mode(mode);
        }
        let file = options.open(&path)?;
        let temporary = Self(path);
        if let Some(mode) = target.mode {
            // Set the bits that the umask has cleared.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok((temporary, file))
    }

    fn rename(self, to: &Path, options: &GetOptions) -> io::Result<()> {
        if options.overwrite {
            return std::fs::rename(&self.0, to);
        }
        match renameat_with(CWD, &self.0, CWD, to, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => Err(exists_error()),
            // Some file systems do not support the flag. `Target::find` has already checked that
            // the target does not exist.
            Err(rustix::io::Errno::INVAL) => std::fs::rename(&self.0, to),
            other => Ok(other?),
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Ignore an error: after a successful rename the temporary file does not exist.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::symlink, net::UnixListener};

    fn refusal(to: &Path) -> String {
        Target::find(to, true).unwrap_err().to_string()
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let _socket = UnixListener::bind(at("socket")).unwrap();
        symlink(at("socket"), at("to-socket")).unwrap();
        symlink(at("absent"), at("to-nothing")).unwrap();
        assert!(refusal(&at("socket")).starts_with("is not a regular file"));
        assert!(refusal(&at("to-socket")).starts_with("is not a regular file"));
        assert!(refusal(&at("to-nothing")).starts_with("is a symbolic link to a file that does not exist"));
        assert!(refusal(folder.path()).starts_with("is a folder"));
        assert_eq!(Target::find(&at("absent"), false).unwrap().mode, None);
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_its_links() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        let link = folder.path().join("link");
        std::fs::write(&real, "old").unwrap();
        std::fs::set_permissions(&real, Permissions::from_mode(0o626)).unwrap();
        symlink(&real, &link).unwrap();
        assert!(Target::find(&link, false).unwrap_err().to_string().starts_with("already exists"));

        let target = Target::find(&link, true).unwrap();
        assert_eq!(target.path, real);
        let (temporary, mut file) = TemporaryFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        temporary.rename(&target.path, &GetOptions { overwrite: true }).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&link).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o626);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "a temporary file is left");
    }
}
