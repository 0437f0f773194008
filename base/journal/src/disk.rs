//! The folder operations that a log needs, and their implementation for a real folder.
//!
//! The operations are a trait so that crash tests can run the log on [`crate::crash::CrashDisk`].
//! The log relies only on what POSIX guarantees: bytes are durable after `sync` of their file; a
//! created, renamed or removed name is durable after `sync_folder`; a rename is atomic.

use crate::executor::Executor;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// A folder of files. Names are plain file names.
pub trait Disk: Send + Sync + 'static {
    /// Returns the names of all files in the folder, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates `name` and opens it for writing; an existing file is truncated.
    fn create(&self, name: &str) -> io::Result<Box<dyn WriteFile>>;
    /// Opens an existing file for writing at its end.
    fn append(&self, name: &str) -> io::Result<Box<dyn WriteFile>>;
    /// Opens an existing file for [`WriteFile::write_at`].
    fn overwrite(&self, name: &str) -> io::Result<Box<dyn WriteFile>>;
    /// Opens a file for reading. The open file stays readable after it is renamed or removed.
    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>>;
    /// Renames a file, replacing the target if there is one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Gives the file `from` a second name, `to`, which must not be in use.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes all name changes durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// Returns the number of bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Returns where the work runs that waits for this disk.
    fn executor(&self) -> Executor {
        Executor::Threads
    }
}

/// A file open for writing, at its end or in place.
pub trait WriteFile: Send {
    /// Appends all of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`, within the file. Only for files opened by
    /// [`Disk::overwrite`].
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Truncates the file to `len` bytes.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Makes the contents and the length of the file durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file open for reading.
pub trait ReadFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset` and returns how many; 0 at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Returns the current length of the file.
    fn length(&self) -> io::Result<u64>;
}

/// A [`Disk`] for a folder of the operating system.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    /// Opens `folder`. Creates the folder and its parents durably if they do not exist.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = std::path::absolute(folder.into())?;
        let missing: Vec<_> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        fs::create_dir_all(&folder)?;
        // A new folder is durable only after its parent is synced. Without this sync, a power loss
        // could remove the log with all its records.
        for parent in missing.iter().filter_map(|folder| folder.parent()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(Self { folder })
    }

    /// Opens a file of any folder for reading.
    pub(crate) fn open_file(path: &Path) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(RealFile(File::open(path)?)))
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            // All file names of the log are UTF-8. Files with other names are ignored.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        // The file is opened for appending, so that writes after `truncate` go to its new end.
        let file = OpenOptions::new().append(true).create(true).open(self.folder.join(name))?;
        file.set_len(0)?;
        Ok(Box::new(RealFile(file)))
    }

    fn append(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        let file = OpenOptions::new().append(true).open(self.folder.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn overwrite(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        // The file is not opened for appending, because Linux would then ignore the offset.
        let file = OpenOptions::new().write(true).open(self.folder.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>> {
        Self::open_file(&self.folder.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        fs::hard_link(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.folder)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

struct RealFile(File);

impl WriteFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

impl ReadFile for RealFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(&self.0, buffer, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
