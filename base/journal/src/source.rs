//! A file that is being read, with a part of it (the window) in memory. The window is never larger
//! than the file, or than the larger of a request and the read-ahead.

use crate::{
    LogError,
    disk::{Disk, ReadFile},
};
use rustix::io::Errno;

/// Minimum number of bytes per read, so that small records need no separate system calls.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// A file and its window, the part that is in memory.
pub(crate) struct Source {
    file: Box<dyn ReadFile>,
    name: String,
    length: u64,
    window: Vec<u8>,
    /// Offset of the window in the file.
    window_at: u64,
    /// Whether a read has failed because of a bad sector.
    has_bad_sector: bool,
}

impl Source {
    pub(crate) fn open(disk: &dyn Disk, name: String) -> Result<Self, LogError> {
        let file = disk.open(&name).map_err(LogError::io("open", &name))?;
        let length = file.length().map_err(LogError::io("read", &name))?;
        Ok(Self { file, name, length, window: Vec::new(), window_at: 0, has_bad_sector: false })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length of the file when it was opened.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns whether a read has failed because of a bad sector (EIO).
    pub(crate) fn has_bad_sector(&self) -> bool {
        self.has_bad_sector
    }

    /// Returns up to `len` bytes at `offset`; fewer only at the end of the file. A bad sector gives
    /// [`LogError::Damaged`].
    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Result<&[u8], LogError> {
        let in_window =
            offset >= self.window_at && offset + len as u64 <= self.window_at + self.window.len() as u64;
        if !in_window {
            self.fill(offset, len)?;
        }
        Ok(self.window(offset, len))
    }

    /// Returns bytes that the last call of [`Self::read`] has read.
    pub(crate) fn window(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset - self.window_at) as usize;
        let end = start.saturating_add(len).min(self.window.len());
        &self.window[start.min(end)..end]
    }

    /// Like [`Self::window`], but mutable. The file is not changed.
    pub(crate) fn window_mut(&mut self, offset: u64, len: usize) -> &mut [u8] {
        let start = (offset - self.window_at) as usize;
        let end = start.saturating_add(len).min(self.window.len());
        &mut self.window[start.min(end)..end]
    }

    pub(crate) fn damage_at(&self, offset: u64, what: &'static str) -> LogError {
        LogError::Damaged { file: self.name.clone(), offset, what }
    }

    fn fill(&mut self, offset: u64, len: usize) -> Result<(), LogError> {
        let have = self.window_at + self.window.len() as u64;
        if (self.window_at..have).contains(&offset) {
            self.window.drain(..(offset - self.window_at) as usize);
        } else {
            self.window.clear();
        }
        self.window_at = offset;
        let rest = self.length.saturating_sub(offset);
        let wanted = (len.max(READ_AHEAD_BYTES) as u64).min(rest) as usize;
        let mut filled = self.window.len();
        self.window.resize(wanted.max(filled), 0);
        while filled < self.window.len() {
            let at = offset + filled as u64;
            match self.file.read_at(at, &mut self.window[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // The requested bytes were read; the bad sector is only in the read-ahead.
                Err(error) if is_bad_sector(&error) && filled >= len => break,
                Err(error) => {
                    self.window.clear();
                    if is_bad_sector(&error) {
                        self.has_bad_sector = true;
                        return Err(self.damage_at(at, "the disk cannot read it (input/output error)"));
                    }
                    return Err(LogError::io("read", &self.name)(error));
                }
            }
        }
        self.window.truncate(filled);
        Ok(())
    }
}

fn is_bad_sector(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::CrashDisk;

    #[test]
    fn the_window_moves_and_never_outgrows_the_file() {
        let content: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let disk = CrashDisk::with_files([("f", content.clone())]);
        let mut source = Source::open(&disk, "f".into()).unwrap();
        for (offset, len) in [(0, 10), (5, 300_000), (299_990, 20), (3, 4), (999_990, 100), (2_000_000, 5)] {
            let end = content.len().min(offset + len);
            let expected = content.get(offset..end).unwrap_or_default();
            assert_eq!(source.read(offset as u64, len).unwrap(), expected, "{len} at {offset}");
        }
        assert_eq!(source.read(10, usize::MAX >> 1).unwrap().len(), content.len() - 10);
        assert!(source.window.capacity() <= 2 * content.len());
    }

    #[test]
    fn a_bad_sector_in_the_read_ahead_does_not_fail_a_read_before_it() {
        let disk = CrashDisk::with_files([("f", vec![7; 10_000])]);
        disk.fail_reads("f", 4096..4608);
        let mut source = Source::open(&disk, "f".into()).unwrap();
        assert_eq!(source.read(0, 4096).unwrap(), [7; 4096]);
        assert!(!source.has_bad_sector());
        let error = source.read(4000, 200).unwrap_err();
        assert!(matches!(&error, LogError::Damaged { offset: 4096, .. }), "{error}");
        assert!(source.has_bad_sector() && error.is_damage());
        assert_eq!(source.read(4608, 10).unwrap(), [7; 10]);
    }
}
