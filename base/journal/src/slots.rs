//! A small value in a file that is written in place.
//!
//! The file has two slots in different sectors, each with a checksum and a counter. A write
//! replaces the older slot, so a torn write leaves the newer one. The valid slot with the higher
//! counter is used. If one slot is damaged or unreadable, the owner should replace the file
//! ([`SlotFile::create`]), because a partial write to an unreadable sector fails too.
//!
//! ```text
//! slot  0 magic u32 | 4 counter u63, mark u1 | 12 value | CRC of all before
//! ```

use crate::{
    LogError,
    disk::{Disk, WriteFile},
    format::{TEMPORARY, u32_at, u64_at},
    source::Source,
};

/// Distance between the two slots, so that one bad sector affects only one slot.
const STRIDE: usize = 4096;
const FILE_BYTES: usize = 2 * STRIDE;
/// Length of the magic number and the counter.
const HEAD_BYTES: usize = 12;
const CRC_BYTES: usize = 4;

/// Which file it is, and how its slots look.
#[derive(Debug, Clone, Copy)]
pub struct SlotKind {
    /// Name of the file.
    pub name: &'static str,
    /// First bytes of each slot.
    pub magic: [u8; 4],
    /// Length of a value.
    pub value_bytes: usize,
}

/// A value as it is stored: its bytes, and a bit that the owner can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The value.
    pub value: Vec<u8>,
    /// A bit of the owner.
    pub mark: bool,
}

/// Result of reading a file with slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotFileState {
    /// The file does not exist.
    Missing,
    /// The newest valid slot, its counter, and whether the other slot is damaged.
    Valid(Slot, u64, bool),
    /// Both slots are damaged.
    Damaged,
}

impl SlotKind {
    /// Reads the file.
    pub fn read(&self, disk: &dyn Disk) -> Result<SlotFileState, LogError> {
        let names = disk.list().map_err(LogError::io("list the folder of", self.name))?;
        if !names.iter().any(|name| name == self.name) {
            return Ok(SlotFileState::Missing);
        }
        let mut source = Source::open(disk, self.name.into())?;
        Ok(match [self.read_slot(&mut source, 0)?, self.read_slot(&mut source, STRIDE as u64)?] {
            [Some(a), Some(b)] => {
                let (slot, counter) = if a.1 > b.1 { a } else { b };
                SlotFileState::Valid(slot, counter, false)
            }
            [Some((slot, counter)), None] | [None, Some((slot, counter))] => {
                SlotFileState::Valid(slot, counter, true)
            }
            [None, None] => SlotFileState::Damaged,
        })
    }

    /// Reads one slot; `None` if it is damaged or unreadable.
    fn read_slot(&self, source: &mut Source, at: u64) -> Result<Option<(Slot, u64)>, LogError> {
        match source.read(at, self.slot_bytes()) {
            Ok(bytes) => Ok(self.parse(bytes)),
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn slot_bytes(&self) -> usize {
        HEAD_BYTES + self.value_bytes + CRC_BYTES
    }

    fn encode(&self, slot: &Slot, counter: u64) -> Vec<u8> {
        assert_eq!(slot.value.len(), self.value_bytes, "a value of {} has another length", self.name);
        let mut out = self.magic.to_vec();
        out.extend_from_slice(&(counter | u64::from(slot.mark) << 63).to_le_bytes());
        out.extend_from_slice(&slot.value);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    fn parse(&self, bytes: &[u8]) -> Option<(Slot, u64)> {
        let crc_at = self.slot_bytes() - CRC_BYTES;
        if bytes.len() != self.slot_bytes()
            || bytes[..4] != self.magic
            || u32_at(bytes, crc_at) != crc32c::crc32c(&bytes[..crc_at])
        {
            return None;
        }
        let marked = u64_at(bytes, 4);
        let slot = Slot { value: bytes[HEAD_BYTES..crc_at].to_vec(), mark: marked >> 63 == 1 };
        Some((slot, marked & (u64::MAX >> 1)))
    }
}

/// A file with slots, open for writing.
pub struct SlotFile {
    kind: SlotKind,
    file: Box<dyn WriteFile>,
    /// Counter of the slot that was written last.
    counter: u64,
    unsynced: bool,
}

impl SlotFile {
    /// Creates the file durably, or replaces it, and opens it. Both slots contain `slot`, with the
    /// two counters after `counter`.
    pub fn create(disk: &dyn Disk, kind: SlotKind, slot: &Slot, counter: u64) -> Result<Self, LogError> {
        let temporary = format!("{}{TEMPORARY}", kind.name);
        let mut content = vec![0; FILE_BYTES];
        for counter in [counter + 1, counter + 2] {
            content[offset(counter)..][..kind.slot_bytes()].copy_from_slice(&kind.encode(slot, counter));
        }
        let mut file = disk.create(&temporary).map_err(LogError::io("create", &temporary))?;
        file.write(&content).map_err(LogError::io("write", &temporary))?;
        file.sync().map_err(LogError::io("sync", &temporary))?;
        disk.rename(&temporary, kind.name).map_err(LogError::io("rename to", kind.name))?;
        disk.sync_folder().map_err(LogError::io("sync the folder of", kind.name))?;
        Self::open(disk, kind, counter + 2)
    }

    /// Opens the file; the next slot gets the counter after `counter`.
    pub fn open(disk: &dyn Disk, kind: SlotKind, counter: u64) -> Result<Self, LogError> {
        let file = disk.overwrite(kind.name).map_err(LogError::io("open", kind.name))?;
        Ok(Self { kind, file, counter, unsynced: false })
    }

    /// Writes `slot` to the older slot. It is durable only after [`Self::sync`].
    pub fn write(&mut self, slot: &Slot) -> Result<(), LogError> {
        self.counter += 1;
        let bytes = self.kind.encode(slot, self.counter);
        let at = offset(self.counter) as u64;
        self.file.write_at(at, &bytes).map_err(LogError::io("write", self.kind.name))?;
        self.unsynced = true;
        Ok(())
    }

    /// Makes the written slots durable.
    pub fn sync(&mut self) -> Result<(), LogError> {
        if !self.unsynced {
            return Ok(());
        }
        self.file.sync().map_err(LogError::io("sync", self.kind.name))?;
        self.unsynced = false;
        Ok(())
    }
}

/// Returns the offset of the slot with this counter.
fn offset(counter: u64) -> usize {
    (counter % 2) as usize * STRIDE
}
