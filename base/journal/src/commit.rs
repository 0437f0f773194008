//! The commit point: the last acknowledged record, in a file separate from the log.
//!
//! The file `COMMIT` has two slots ([`crate::slots`]). A slot is written after its batch is
//! durable, so it never claims a record that is not durable. Slots are not synced with every batch:
//! after a crash of the process the commit point is exact; after a power loss it may lack the
//! batches since the last sync ([`crate::Log::request_commit_sync`], rotation, close). The log must
//! contain everything that a valid slot claims; otherwise the log is damaged. A clean close seals
//! both slots: then no write was in progress, and no batch can be torn.

use crate::{
    LogError, Seq,
    disk::Disk,
    format::u64_at,
    slots::{Slot, SlotFile, SlotFileState, SlotKind},
};

/// Name of the file with the commit point.
pub(crate) const COMMIT_FILE: &str = "COMMIT";
const KIND: SlotKind = SlotKind { name: COMMIT_FILE, magic: *b"FMTC", value_bytes: 16 };

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
    fn encode(self) -> Slot {
        let mut value = self.newest.to_le_bytes().to_vec();
        value.extend_from_slice(&self.committed.to_le_bytes());
        Slot { value, mark: self.sealed }
    }

    fn decode(slot: &Slot) -> Self {
        Self { newest: u64_at(&slot.value, 0), committed: u64_at(&slot.value, 8), sealed: slot.mark }
    }
}

/// Reads the commit point.
pub(crate) fn read(disk: &dyn Disk) -> Result<CommitFileState, LogError> {
    Ok(match KIND.read(disk)? {
        SlotFileState::Missing => CommitFileState::Missing,
        SlotFileState::Valid(slot, counter, is_other_damaged) => {
            CommitFileState::Valid(CommitPoint::decode(&slot), counter, is_other_damaged)
        }
        SlotFileState::Damaged => CommitFileState::Damaged,
    })
}

/// The file of the commit point, open for writing.
pub(crate) struct CommitFile(SlotFile);

impl CommitFile {
    /// Creates the file durably and opens it. Both slots contain `point`, with the two counters
    /// after `counter`. The file is created before the first segment: if segments exist and this
    /// file does not, it was lost.
    pub(crate) fn create(disk: &dyn Disk, point: CommitPoint, counter: u64) -> Result<Self, LogError> {
        SlotFile::create(disk, KIND, &point.encode(), counter).map(Self)
    }

    /// Opens the file; the next slot gets the counter after `counter`.
    pub(crate) fn open(disk: &dyn Disk, counter: u64) -> Result<Self, LogError> {
        SlotFile::open(disk, KIND, counter).map(Self)
    }

    /// Writes `point` to the older slot. The slot is durable only after [`Self::sync`].
    pub(crate) fn write_slot(&mut self, point: CommitPoint) -> Result<(), LogError> {
        self.0.write(&point.encode())
    }

    /// Writes `point` to both slots durably, so that no older commit point remains.
    pub(crate) fn write_both(&mut self, point: CommitPoint) -> Result<(), LogError> {
        self.write_slot(point)?;
        self.write_slot(point)?;
        self.sync()
    }

    /// Makes the written slots durable.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        self.0.sync()
    }
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
        bytes[4096 + 20] ^= 1;
        disk.set_file(COMMIT_FILE, bytes);
        assert!(matches!(read(&disk).unwrap(), CommitFileState::Damaged));
    }
}
