//! The commit point: the last acknowledged record, in a file separate from the log.
//!
//! The file `COMMIT` has two slots in different sectors, each with a checksum. The valid slot with
//! the higher counter is used. A slot is written after its batch is durable, so it never claims a
//! record that is not durable. Slots are not synced with every batch: after a crash of the process
//! the commit point is exact; after a power loss it may lack the batches since the last sync
//! ([`crate::Log::request_commit_sync`], rotation, close). The log must contain everything that a
//! valid slot claims; otherwise the log is damaged. A clean close seals both slots: then no write
//! was in progress, and no batch can be torn.
//!
//! If one slot is damaged or unreadable, the other slot is used and the file is replaced, because a
//! partial write to an unreadable sector fails too.

use crate::{
    LogError, Seq,
    disk::{Disk, WriteFile},
    format::{u32_at, u64_at},
    source::Source,
};

/// Name of the file with the commit point.
pub(crate) const COMMIT_FILE: &str = "COMMIT";
const TEMPORARY_FILE: &str = "COMMIT.tmp";
const MAGIC: [u8; 4] = *b"FMTC";
const SLOT_BYTES: usize = 32;
/// Distance between the two slots, so that one bad sector affects only one slot.
const SLOT_STRIDE: usize = 4096;
const FILE_BYTES: usize = 2 * SLOT_STRIDE;

/// The commit point, as stored in a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CommitPoint {
    /// First record of the newest segment; 0 if there is no segment yet.
    pub(crate) newest: Seq,
    /// Last acknowledged record.
    pub(crate) committed: Seq,
    /// Whether the log was closed cleanly and has not been opened since.
    pub(crate) sealed: bool,
}

/// Result of reading the file of the commit point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CommitFileState {
    /// The file does not exist.
    Missing,
    /// A valid slot, its counter, and whether the other slot is damaged.
    Valid(CommitPoint, u64, bool),
    /// Both slots are damaged.
    Damaged,
}

impl CommitPoint {
    fn encode(self, counter: u64) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        // The top bit of the counter is the seal.
        let marked = counter | u64::from(self.sealed) << 63;
        out[4..12].copy_from_slice(&marked.to_le_bytes());
        out[12..20].copy_from_slice(&self.newest.to_le_bytes());
        out[20..28].copy_from_slice(&self.committed.to_le_bytes());
        let crc = crc32c::crc32c(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn parse(bytes: &[u8]) -> Option<(Self, u64)> {
        let bytes = bytes.first_chunk::<SLOT_BYTES>()?;
        if bytes[..4] != MAGIC || u32_at(bytes, 28) != crc32c::crc32c(&bytes[..28]) {
            return None;
        }
        let marked = u64_at(bytes, 4);
        let point =
            Self { newest: u64_at(bytes, 12), committed: u64_at(bytes, 20), sealed: marked >> 63 == 1 };
        Some((point, marked & (u64::MAX >> 1)))
    }
}

/// Reads the commit point.
pub(crate) fn read(disk: &dyn Disk) -> Result<CommitFileState, LogError> {
    let names = disk.list().map_err(LogError::io("list", "the journal folder"))?;
    if !names.iter().any(|name| name == COMMIT_FILE) {
        return Ok(CommitFileState::Missing);
    }
    let mut source = Source::open(disk, COMMIT_FILE.into())?;
    Ok(match [read_slot(&mut source, 0)?, read_slot(&mut source, SLOT_STRIDE as u64)?] {
        [Some(a), Some(b)] => {
            let (point, counter) = if a.1 > b.1 { a } else { b };
            CommitFileState::Valid(point, counter, false)
        }
        [Some((point, counter)), None] | [None, Some((point, counter))] => {
            CommitFileState::Valid(point, counter, true)
        }
        [None, None] => CommitFileState::Damaged,
    })
}

/// Reads one slot; `None` if it is damaged or unreadable.
fn read_slot(source: &mut Source, at: u64) -> Result<Option<(CommitPoint, u64)>, LogError> {
    match source.read(at, SLOT_BYTES) {
        Ok(bytes) => Ok(CommitPoint::parse(bytes)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file of the commit point, open for writing.
pub(crate) struct CommitFile {
    file: Box<dyn WriteFile>,
    /// Counter of the slot that was written last.
    counter: u64,
    unsynced: bool,
}

impl CommitFile {
    /// Creates the file durably and opens it. Both slots contain `point`, with the two counters
    /// after `counter`. The file is created before the first segment: if segments exist and this
    /// file does not, it was lost.
    pub(crate) fn create(disk: &dyn Disk, point: CommitPoint, counter: u64) -> Result<Self, LogError> {
        let mut content = vec![0; FILE_BYTES];
        for counter in [counter + 1, counter + 2] {
            content[slot_offset(counter)..][..SLOT_BYTES].copy_from_slice(&point.encode(counter));
        }
        let mut file = disk.create(TEMPORARY_FILE).map_err(LogError::io("create", TEMPORARY_FILE))?;
        file.write(&content).map_err(LogError::io("write", TEMPORARY_FILE))?;
        file.sync().map_err(LogError::io("sync", TEMPORARY_FILE))?;
        disk.rename(TEMPORARY_FILE, COMMIT_FILE).map_err(LogError::io("rename to", COMMIT_FILE))?;
        disk.sync_folder().map_err(LogError::io("sync the folder of", COMMIT_FILE))?;
        Self::open(disk, counter + 2)
    }

    /// Opens the file; the next slot gets the counter after `counter`.
    pub(crate) fn open(disk: &dyn Disk, counter: u64) -> Result<Self, LogError> {
        let file = disk.overwrite(COMMIT_FILE).map_err(LogError::io("open", COMMIT_FILE))?;
        Ok(Self { file, counter, unsynced: false })
    }

    /// Writes `point` to the older slot. The slot is durable only after [`Self::sync`].
    pub(crate) fn write_slot(&mut self, point: CommitPoint) -> Result<(), LogError> {
        self.counter += 1;
        let slot = point.encode(self.counter);
        let at = slot_offset(self.counter) as u64;
        self.file.write_at(at, &slot).map_err(LogError::io("write", COMMIT_FILE))?;
        self.unsynced = true;
        Ok(())
    }

    /// Writes `point` to both slots durably, so that no older commit point remains.
    pub(crate) fn write_both(&mut self, point: CommitPoint) -> Result<(), LogError> {
        self.write_slot(point)?;
        self.write_slot(point)?;
        self.sync()
    }

    /// Makes the written slots durable.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        if !self.unsynced {
            return Ok(());
        }
        self.file.sync().map_err(LogError::io("sync", COMMIT_FILE))?;
        self.unsynced = false;
        Ok(())
    }
}

/// Returns the offset of the slot with this counter.
fn slot_offset(counter: u64) -> usize {
    (counter % 2) as usize * SLOT_STRIDE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::CrashDisk;

    #[test]
    fn one_damaged_slot_leaves_the_other_and_two_are_reported_as_damage() {
        let disk = CrashDisk::new();
        assert!(matches!(read(&disk).unwrap(), CommitFileState::Missing));
        let mut file = CommitFile::create(&disk, CommitPoint::default(), 0).unwrap();
        file.write_slot(CommitPoint { newest: 1, committed: 5, sealed: false }).unwrap();
        file.write_slot(CommitPoint { newest: 1, committed: 6, sealed: true }).unwrap();
        let CommitFileState::Valid(point, 4, false) = read(&disk).unwrap() else { panic!("two valid slots") };
        assert_eq!(point, CommitPoint { newest: 1, committed: 6, sealed: true });
        let mut bytes = disk.files()[COMMIT_FILE].clone();
        bytes[20] ^= 1;
        disk.set_file(COMMIT_FILE, bytes.clone());
        let CommitFileState::Valid(point, 3, true) = read(&disk).unwrap() else { panic!("one valid slot") };
        assert_eq!(point.committed, 5);
        bytes[SLOT_STRIDE + 20] ^= 1;
        disk.set_file(COMMIT_FILE, bytes);
        assert!(matches!(read(&disk).unwrap(), CommitFileState::Damaged));
    }
}
