//! Copies a file out to a local one. It is written under a hidden name beside it and moved into place at the
//! end, so that it appears whole or not at all. Only a regular file is ever replaced, and keeps its mode; of a
//! link, what it leads to is replaced.

use super::{Client, ClientError, FileReader, GetOptions, GetReport, Progress, Result};
use crate::path::DfsPath;
use bytes::Bytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Packets on their way to the disk.
const AHEAD: usize = 4;

impl Client {
    /// Copies a file out to the local file `to`; it appears whole or not at all.
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

    /// The same, with zeros where no good replica of a block is left; the report says where.
    pub async fn get_skipping_lost(
        &self,
        from: &DfsPath,
        to: &Path,
        options: GetOptions,
        progress: &dyn Progress,
    ) -> Result<GetReport> {
        let mut reader = self.open(from).await?;
        reader.skip_lost();
        get_from(reader, to, options, progress).await
    }
}

async fn get_from(
    mut reader: FileReader,
    to: &Path,
    options: GetOptions,
    progress: &dyn Progress,
) -> Result<GetReport> {
    let target = Target::find(to, options.overwrite).map_err(|error| local(to, &error))?;
    let (hidden, file) = Hidden::create(&target).map_err(|error| local(to, &error))?;
    let (packets, receiver) = mpsc::channel(AHEAD);
    let writing = tokio::task::spawn_blocking(move || write_all(file, receiver));
    while let Some(bytes) = reader.next().await? {
        let length = bytes.len() as u64;
        if packets.send(bytes).await.is_err() {
            break;
        }
        progress.advance(length);
    }
    drop(packets);
    let written = writing.await.map_err(|_| local(to, &io::Error::other("the writing thread failed")))?;
    written.and_then(|()| hidden.rename(&target.path, &options)).map_err(|error| local(to, &error))?;
    let (status, faults, lost) = reader.into_parts();
    Ok(GetReport { status, to: to.to_owned(), faults, lost })
}

fn local(path: &Path, error: &io::Error) -> ClientError {
    ClientError::Local { path: path.to_owned(), reason: error.to_string() }
}

/// Where the file is to stand.
#[derive(Debug)]
struct Target {
    /// Behind any links.
    path: PathBuf,
    /// The permission bits of the file that is replaced, if one is.
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
                io::ErrorKind::NotFound => io::Error::other("is a link to nothing: choose another name"),
                _ => error,
            })?;
            let about = std::fs::metadata(&path)?;
            (path, about)
        } else {
            (to.to_owned(), about)
        };
        if about.is_dir() {
            return Err(io::Error::other("is a folder: name the file in it"));
        }
        if !about.is_file() {
            return Err(io::Error::other("is not a regular file: only such a one can be replaced"));
        }
        if !overwrite {
            return Err(exists());
        }
        Ok(Self { path, mode: Some(about.permissions().mode() & 0o777) })
    }
}

fn exists() -> io::Error {
    io::Error::other("exists already: overwrite it or choose another name")
}

fn write_all(mut file: File, mut packets: mpsc::Receiver<Bytes>) -> io::Result<()> {
    while let Some(bytes) = packets.blocking_recv() {
        file.write_all(&bytes)?;
    }
    // Before the rename: after a crash the name must not stand for an empty or half-written file.
    file.sync_all()
}

/// The file under its hidden name; goes when dropped.
struct Hidden(PathBuf);

impl Hidden {
    fn create(target: &Target) -> io::Result<(Self, File)> {
        let name = format!(".fermata-get-{}", uuid::Uuid::new_v4().simple());
        let path = target.path.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // From the first byte on: what was private must not be public while it is written.
        if let Some(mode) = target.mode {
            options.mode(mode);
        }
        let file = options.open(&path)?;
        let hidden = Self(path);
        if let Some(mode) = target.mode {
            // Also the bits that the umask takes away.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok((hidden, file))
    }

    fn rename(self, to: &Path, options: &GetOptions) -> io::Result<()> {
        if options.overwrite {
            return std::fs::rename(&self.0, to);
        }
        match renameat_with(CWD, &self.0, CWD, to, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => Err(exists()),
            // Some file systems do not know the flag; the target was looked at before.
            Err(rustix::io::Errno::INVAL) => std::fs::rename(&self.0, to),
            other => Ok(other?),
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Not there any more when it was renamed.
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
        assert!(refusal(&at("to-nothing")).starts_with("is a link to nothing"));
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
        assert!(Target::find(&link, false).unwrap_err().to_string().starts_with("exists already"));

        let target = Target::find(&link, true).unwrap();
        assert_eq!(target.path, real);
        let (hidden, mut file) = Hidden::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        hidden.rename(&target.path, &GetOptions { overwrite: true }).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&link).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o626);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing hidden is left");
    }
}
