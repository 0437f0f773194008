//! A file of this machine, mapped.

use super::ByteSource;
use crate::error::TaskError;
use memmap2::Mmap;
use std::{fs::File, path::Path};

/// Handed out at a time: small enough to stay in a core's cache.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// A file of this machine, mapped. Its length is that at opening; it must not be cut while it is read.
#[derive(Debug)]
pub struct LocalFile {
    /// None for an empty file: there is nothing to map.
    map: Option<Mmap>,
    at: usize,
}

impl LocalFile {
    /// Opens it.
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

#[allow(unsafe_code, reason = "a mapping cannot be made without")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: input files are not written to while a job reads them, which is for its user to see to; bytes that
    // change all the same would be read as one or the other, and a cut file ends the task process with SIGBUS.
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
