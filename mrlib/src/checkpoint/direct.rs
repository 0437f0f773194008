//! Writes a file past the system's cache.
//!
//! What is checkpointed is not read for a while, and somebody waits until it is on the disk. To copy it into fresh pages of
//! the cache first, and to have it written from there, takes longer: figures in docs/guide/preemption.md.
//! What holds: the file has the bytes that were written, in order, wherever it lies; a file system that cannot do
//! without its cache is written to as ever. Deliberately absent: syncing, which is its owner's.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    fs::File,
    io::{self, Write},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::Path,
};

/// Written at a time. What is less at the end goes by way of the cache.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// Addresses, places and lengths are multiples of it. Disks that ask for more get everything by way of the cache.
const ALIGNMENT: usize = 4096;

/// A new file. [`DirectFile::finish`] writes the last of it.
pub(super) struct DirectFile {
    file: File,
    /// Has a whole aligned chunk in it, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes of the chunk that are still to be written.
    filled: usize,
    /// Bytes that are written.
    length: u64,
}

impl DirectFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        // Where that cannot be, it is a file like others.
        let _ = go_past_cache(&file, true);
        let buffer = vec![0; CHUNK_BYTES + ALIGNMENT];
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        debug_assert!(start < ALIGNMENT, "bytes can be aligned to anything");
        Ok(Self { file, buffer, start: start.min(ALIGNMENT), filled: 0, length: 0 })
    }

    /// Bytes `range` of `from`.
    pub(super) fn copy(&mut self, from: &File, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let room = self.room();
            let length = room.len().min((range.end - at) as usize);
            from.read_exact_at(&mut room[..length], at)?;
            at += length as u64;
            self.fill(length)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        go_past_cache(&self.file, false)?;
        self.put()
    }

    /// Of the chunk. Never empty.
    fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start + self.filled..][..CHUNK_BYTES - self.filled]
    }

    /// So many bytes more of the chunk are to be written.
    fn fill(&mut self, more: usize) -> io::Result<()> {
        self.filled += more;
        if self.filled < CHUNK_BYTES {
            return Ok(());
        }
        match self.put() {
            // A disk that asks for more than it got; or part of it was written, and what is left is not a whole number of blocks.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                go_past_cache(&self.file, false)?;
                self.put()
            }
            put => put,
        }
    }

    fn put(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer[self.start..][..self.filled], self.length)?;
        self.length += self.filled as u64;
        self.filled = 0;
        Ok(())
    }
}

impl Write for DirectFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room();
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        self.fill(length)?;
        Ok(length)
    }

    /// Nothing: see [`DirectFile::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn go_past_cache(file: &File, past: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, past);
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

    /// Writes this many bytes in portions of `portion`, with a copy of a part of a file in their midst.
    fn written(dir: &Path, length: usize, portion: usize) {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 / 5 % 251) as u8).collect();
        let other = dir.join("other");
        fs::write(&other, &bytes).expect("a disk");
        let middle = length / 3..length / 3 * 2;
        let path = dir.join("direct");
        let mut file = DirectFile::create(&path).expect("a disk");
        let put = |bytes: &[u8], file: &mut DirectFile| {
            bytes.chunks(portion).try_for_each(|portion| file.write_all(portion)).expect("room");
        };
        put(&bytes[..middle.start], &mut file);
        let from = File::open(&other).expect("a file");
        file.copy(&from, middle.start as u64..middle.end as u64).expect("room");
        put(&bytes[middle.end..], &mut file);
        file.finish().expect("room");
        assert!(fs::read(&path).expect("a file") == bytes, "{length} bytes in portions of {portion}");
    }

    #[test]
    fn a_file_has_the_bytes_that_were_written_wherever_it_lies() {
        let folder = tempfile::tempdir().expect("a folder");
        let shm = tempfile::tempdir_in("/dev/shm");
        let places = std::iter::once(folder.path()).chain(shm.as_ref().ok().map(tempfile::TempDir::path));
        for dir in places {
            for length in [0, 1, 4095, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 4097]
            {
                for portion in [511, CHUNK_BYTES / 2 + 13, 3 * CHUNK_BYTES] {
                    written(dir, length, portion);
                }
            }
        }
    }

    #[test]
    fn unreadable_file_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let other = folder.path().join("other");
        fs::write(&other, b"short").expect("a disk");
        let mut file = DirectFile::create(&folder.path().join("direct")).expect("a disk");
        let from = File::open(&other).expect("a file");
        assert!(file.copy(&from, 0..6).is_err());
    }
}
