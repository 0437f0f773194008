//! A memory-mapped local file.

use super::ByteSource;
use memmap2::Mmap;
use mrlib_api::TaskError;
use std::{fs::File, path::Path};

/// Size of the returned chunks, small enough for the cache of a core.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// A memory-mapped local file. Its length is the length when it was opened; the file must not be
/// truncated while it is read.
#[derive(Debug)]
pub struct LocalFile {
    /// None for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    at: usize,
}

impl LocalFile {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, TaskError> {
        let open = || {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            if length == 0 { Ok(None) } else { map(&file).map(Some) }
        };
        let map = open().map_err(TaskError::io(format!("read {}", path.display())))?;
        Ok(Self { map, at: 0 })
    }

    fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

#[allow(unsafe_code, reason = "a memory mapping needs unsafe code")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the user must not write to input files while a job reads them. If bytes change
    // nevertheless, either the old or the new bytes are read. If the file is truncated, the task
    // process ends with SIGBUS.
    unsafe { Mmap::map(file) }
}

impl ByteSource for LocalFile {
    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn seek(&mut self, at: u64) -> Result<(), TaskError> {
        self.at = at.min(self.len()) as usize;
        Ok(())
    }

    fn next(&mut self) -> Result<&[u8], TaskError> {
        let start = self.at;
        self.at = self.bytes().len().min(start + CHUNK_BYTES);
        Ok(&self.bytes()[start..self.at])
    }

    fn consumed(&self) -> u64 {
        self.at as u64
    }
}
