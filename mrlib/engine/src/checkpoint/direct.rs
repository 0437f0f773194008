//! Writes a file with direct I/O, without the page cache.
//!
//! A checkpoint is not read soon, and the JobTracker waits until it is on the disk. Copying it
//! through the page cache takes longer; docs/guide/preemption.md has measurements.
//!
//! Invariant: the file contains the bytes that were written, in order. On a file system or disk
//! that does not support direct I/O, the page cache is used. The caller syncs the file.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    fs::File,
    io::{self, Write},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::Path,
};

/// Size of a write. A shorter remainder at the end goes through the page cache.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// Alignment of addresses, offsets and lengths. Disks that need a larger alignment are written
/// through the page cache.
const ALIGNMENT: usize = 4096;

/// A new file. [`DirectFile::finish`] writes the last, incomplete chunk.
pub(super) struct DirectFile {
    file: File,
    /// Contains one chunk, which begins at the aligned index `start`.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes of the chunk that are not written yet.
    filled: usize,
    /// Bytes written to the file.
    length: u64,
}

impl DirectFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        // If direct I/O is not supported, the page cache is used.
        let _ = set_direct(&file, true);
        let buffer = vec![0; CHUNK_BYTES + ALIGNMENT];
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        debug_assert!(start < ALIGNMENT, "bytes can be aligned to anything");
        Ok(Self { file, buffer, start: start.min(ALIGNMENT), filled: 0, length: 0 })
    }

    /// Appends the bytes `range` of `from`.
    pub(super) fn copy(&mut self, from: &File, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let free = self.free();
            let length = free.len().min((range.end - at) as usize);
            from.read_exact_at(&mut free[..length], at)?;
            at += length as u64;
            self.mark_filled(length)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        set_direct(&self.file, false)?;
        self.write_chunk()
    }

    /// Returns the free part of the chunk, which is never empty.
    fn free(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start + self.filled..][..CHUNK_BYTES - self.filled]
    }

    /// Marks `more` bytes of the chunk as filled, and writes the chunk if it is full.
    fn mark_filled(&mut self, more: usize) -> io::Result<()> {
        self.filled += more;
        if self.filled < CHUNK_BYTES {
            return Ok(());
        }
        match self.write_chunk() {
            // The disk needs a larger alignment, or a partial write has left an unaligned
            // remainder.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                set_direct(&self.file, false)?;
                self.write_chunk()
            }
            result => result,
        }
    }

    fn write_chunk(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer[self.start..][..self.filled], self.length)?;
        self.length += self.filled as u64;
        self.filled = 0;
        Ok(())
    }
}

impl Write for DirectFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let free = self.free();
        let length = free.len().min(bytes.len());
        free[..length].copy_from_slice(&bytes[..length]);
        self.mark_filled(length)?;
        Ok(length)
    }

    /// Does nothing: [`DirectFile::finish`] writes the last chunk.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(file, flags)?)
}

#[cfg(test)]
mod tests {
    use super::{CHUNK_BYTES, DirectFile};
    use std::{
        fs::{self, File},
        io::Write as _,
        path::Path,
    };

    /// Writes `length` bytes in portions of `portion`, the middle third as a copy from another
    /// file, and checks what the file contains.
    fn check_written_file(dir: &Path, length: usize, portion: usize) {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 / 5 % 251) as u8).collect();
        let other = dir.join("other");
        fs::write(&other, &bytes).expect("the file is written");
        let middle = length / 3..length / 3 * 2;
        let path = dir.join("direct");
        let mut file = DirectFile::create(&path).expect("the file is created");
        let write_chunk = |bytes: &[u8], file: &mut DirectFile| {
            bytes.chunks(portion).try_for_each(|portion| file.write_all(portion)).expect("enough space");
        };
        write_chunk(&bytes[..middle.start], &mut file);
        let from = File::open(&other).expect("the file is opened");
        file.copy(&from, middle.start as u64..middle.end as u64).expect("enough space");
        write_chunk(&bytes[middle.end..], &mut file);
        file.finish().expect("enough space");
        assert!(
            fs::read(&path).expect("the file is read") == bytes,
            "{length} bytes in portions of {portion}"
        );
    }

    #[test]
    fn file_has_the_written_bytes_on_disk_and_in_memory_file_systems() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let shm = tempfile::tempdir_in("/dev/shm");
        let places = std::iter::once(folder.path()).chain(shm.as_ref().ok().map(tempfile::TempDir::path));
        for dir in places {
            for length in [0, 1, 4095, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 4097]
            {
                for portion in [511, CHUNK_BYTES / 2 + 13, 3 * CHUNK_BYTES] {
                    check_written_file(dir, length, portion);
                }
            }
        }
    }

    #[test]
    fn copy_beyond_the_end_of_a_file_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let other = folder.path().join("other");
        fs::write(&other, b"short").expect("the file is written");
        let mut file = DirectFile::create(&folder.path().join("direct")).expect("the file is created");
        let from = File::open(&other).expect("the file is opened");
        assert!(file.copy(&from, 0..6).is_err());
    }
}
