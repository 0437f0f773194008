//! The fuzz targets, grouped by what they read.

mod blocks;
mod links;
mod logs;
mod tasks;
mod texts;

use crate::{Limit, Target};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// All targets.
pub(crate) fn all() -> Vec<Target> {
    [tasks::TARGETS, links::TARGETS, blocks::TARGETS, logs::TARGETS, texts::TARGETS].concat()
}

/// Memory limit of a reader that stores what it reads and little else.
const SMALL_LIMIT: Limit = Limit { fixed: 1 << 20, per_byte: 64 };

/// Replaces the last four bytes by the CRC-32C of the others, so that damage reaches the code after
/// the checksum test.
fn with_valid_crc(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if let Some(body) = bytes.len().checked_sub(4) {
        let crc = crc32c::crc32c(&bytes[..body]);
        bytes[body..].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

/// A temporary folder of this thread, which all executions reuse.
struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        // The folder is in memory if possible, so that tests do not depend on a disk.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { folder: folder.expect("a folder for temporary files") }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file with this name and content, and returns its path.
    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.expect("a temporary file");
        file.write_all_at(content, 0).expect("space for a temporary file");
        file.set_len(content.len() as u64).expect("the size of a temporary file can be set");
        path
    }

    /// Runs `work` with the scratch folder of this thread.
    fn with<T>(work: impl FnOnce(&Self) -> T) -> T {
        thread_local!(static MINE: Scratch = Scratch::new());
        MINE.with(work)
    }
}
