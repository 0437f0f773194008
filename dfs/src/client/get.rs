//! Copies a file out to a local one. It is written under a hidden name beside it and moved into place at the
//! end, so that it appears whole or not at all.

use super::{Client, ClientError, GetOptions, GetReport, Progress, Result};
use crate::path::DfsPath;
use bytes::Bytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
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
        check_target(to, &options).map_err(|error| local(to, &error))?;
        let mut reader = self.open(from).await?;
        let (hidden, file) = Hidden::create(to).map_err(|error| local(to, &error))?;
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
        written.and_then(|()| hidden.rename(to, &options)).map_err(|error| local(to, &error))?;
        let (status, faults) = reader.into_parts();
        Ok(GetReport { status, to: to.to_owned(), faults })
    }
}

fn local(path: &Path, error: &io::Error) -> ClientError {
    ClientError::Local { path: path.to_owned(), reason: error.to_string() }
}

fn check_target(to: &Path, options: &GetOptions) -> io::Result<()> {
    match std::fs::metadata(to) {
        Ok(about) if about.is_dir() => Err(io::Error::other("is a folder: name the file in it")),
        Ok(_) if !options.overwrite => Err(exists()),
        _ => Ok(()),
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
    fn create(to: &Path) -> io::Result<(Self, File)> {
        let name = format!(".fermata-get-{}", uuid::Uuid::new_v4().simple());
        let path = to.with_file_name(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok((Self(path), file))
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
