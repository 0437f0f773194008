//! Reading and starting a segment file: a header, then batches.
//!
//! The reader goes batch by batch and gives a record only after its whole batch has been verified. It does not
//! judge what a bad batch means (torn tail or damage); `survey` does, with the help of [`SegmentReader::later`].

use crate::{
    LogError, Seq,
    disk::{Disk, WriteFile},
    format::{
        BATCH_HEADER_BYTES, BatchHeader, FILE_HEADER_BYTES, FileHeader, FileKind, GRAIN_BYTES, TEMPORARY,
        mask, u32_at,
    },
    source::Source,
};

/// What a disk reads as a whole or not at all.
const SECTOR_BYTES: u64 = 4096;

/// Reads one segment.
pub(crate) struct SegmentReader {
    source: Source,
    salt: u32,
    /// Where the next batch begins.
    offset: u64,
    /// The record after the last verified batch.
    next: Seq,
    /// Where in the current batch the next record begins, and its number.
    record_offset: u64,
    record_seq: Seq,
    /// The current record: offset and length.
    record: (u64, usize),
}

/// The next thing in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A sound batch; its records can be read.
    Batch,
    /// The file ends here, between batches.
    End,
    /// Neither.
    Bad(&'static str),
}

/// What was found beyond a bad batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Later {
    pub(crate) batches: u64,
    pub(crate) records: u64,
}

impl SegmentReader {
    pub(crate) fn open(disk: &dyn Disk, first: Seq) -> Result<Self, LogError> {
        let mut source = Source::open(disk, FileKind::Segment.name(first))?;
        let name = source.name().to_owned();
        let head = source.bytes(0, FILE_HEADER_BYTES)?;
        let header = FileHeader::parse(&name, FileKind::Segment, first, head)?;
        let offset = FILE_HEADER_BYTES as u64;
        Ok(Self {
            source,
            salt: header.salt,
            offset,
            next: first,
            record_offset: offset,
            record_seq: first,
            record: (offset, 0),
        })
    }

    /// Where the verified part ends.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The record after the last verified one.
    pub(crate) fn next_seq(&self) -> Seq {
        self.next
    }

    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Verifies the next batch. One that the disk cannot read is bad.
    pub(crate) fn next_batch(&mut self) -> Result<Step, LogError> {
        match self.verify_batch() {
            Err(LogError::Damaged { what, .. }) => Ok(Step::Bad(what)),
            other => other,
        }
    }

    fn verify_batch(&mut self) -> Result<Step, LogError> {
        let rest = self.source.length().saturating_sub(self.offset);
        if rest == 0 {
            return Ok(Step::End);
        }
        let head = self.source.bytes(self.offset, BATCH_HEADER_BYTES)?;
        if head.len() < BATCH_HEADER_BYTES {
            return Ok(Step::Bad("batch header is cut short"));
        }
        let Some(header) = BatchHeader::parse(head, self.salt) else {
            return Ok(Step::Bad("batch header checksum mismatch"));
        };
        if header.first != self.next {
            return Ok(Step::Bad("batch is out of order"));
        }
        let whole = header.whole();
        if rest < whole as u64 {
            return Ok(Step::Bad("batch is cut short"));
        }
        let bytes = self.source.bytes(self.offset, whole)?;
        let Some(masked) = bytes.get(BATCH_HEADER_BYTES..whole) else {
            return Ok(Step::Bad("batch is cut short"));
        };
        if crc32c::crc32c(masked) != header.payload_crc {
            return Ok(Step::Bad("batch checksum mismatch"));
        }
        let payload =
            self.source.window_mut(self.offset + BATCH_HEADER_BYTES as u64, whole - BATCH_HEADER_BYTES);
        mask(self.salt, payload);
        if !lengths_add_up(&payload[..header.payload_bytes as usize], header.count) {
            return Ok(Step::Bad("record lengths do not add up"));
        }
        self.record_offset = self.offset + BATCH_HEADER_BYTES as u64;
        self.record_seq = header.first;
        self.offset += whole as u64;
        self.next = header.end();
        Ok(Step::Batch)
    }

    /// Goes to the next record, up to `last`; false at the end.
    pub(crate) fn advance(&mut self, last: Seq) -> Result<bool, LogError> {
        if self.record_seq > last {
            return Ok(false);
        }
        if self.record_seq == self.next {
            match self.next_batch()? {
                Step::Batch => {}
                Step::End => return Ok(false),
                Step::Bad(what) => return Err(self.source.damaged(self.offset, what)),
            }
        }
        // `next_batch` has verified the whole batch, and its window is in memory until the next one.
        let len = u32_at(self.source.window(self.record_offset, 4), 0) as usize;
        self.record = (self.record_offset + 4, len);
        self.record_offset += 4 + len as u64;
        self.record_seq += 1;
        Ok(true)
    }

    /// The record that [`Self::advance`] went to.
    pub(crate) fn record(&self) -> (Seq, &[u8]) {
        (self.record_seq - 1, self.source.window(self.record.0, self.record.1))
    }

    /// Looks beyond a bad batch, to the end of the file, for batches with higher numbers. One sound header is proof
    /// enough: a batch is written only after the one before it has been synced, so whatever came before it was once
    /// whole.
    pub(crate) fn later(&mut self) -> Result<Later, LogError> {
        let mut later = Later::default();
        let mut expected = self.next;
        let mut at = self.offset + GRAIN_BYTES as u64;
        while at < self.source.length() {
            let bytes = match self.source.bytes(at, BATCH_HEADER_BYTES) {
                Err(error) if error.is_damage() => {
                    // To the next sector: each try at a bad one can take the disk seconds.
                    at = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
                    continue;
                }
                other => other?,
            };
            match BatchHeader::parse(bytes, self.salt) {
                Some(header) if header.first > expected => {
                    later.batches += 1;
                    later.records += u64::from(header.count);
                    expected = header.end() - 1;
                }
                _ => {}
            }
            at += GRAIN_BYTES as u64;
        }
        Ok(later)
    }

    /// Whether the file from the bad batch on can be what is left of a write that a crash cut short: it ends within
    /// the batch, or 64 bytes of it were never written. Bytes that were written and read back wrong are damage.
    pub(crate) fn may_be_torn(&mut self) -> Result<bool, LogError> {
        let rest = self.source.length().saturating_sub(self.offset);
        if !rest.is_multiple_of(GRAIN_BYTES as u64) {
            return Ok(true);
        }
        let header = BatchHeader::parse(self.source.bytes(self.offset, BATCH_HEADER_BYTES)?, self.salt);
        if header.is_some_and(|header| header.first == self.next && rest < header.whole() as u64) {
            return Ok(true);
        }
        let mut at = self.offset;
        while at < self.source.length() {
            if self.source.bytes(at, GRAIN_BYTES)?.iter().all(|byte| *byte == 0) {
                return Ok(true);
            }
            at += GRAIN_BYTES as u64;
        }
        Ok(false)
    }
}

fn lengths_add_up(mut payload: &[u8], count: u32) -> bool {
    for _ in 0..count {
        let Some((len, rest)) = payload.split_first_chunk::<4>() else { return false };
        let Some(rest) = rest.get(u32::from_le_bytes(*len) as usize..) else { return false };
        payload = rest;
    }
    payload.is_empty()
}

/// Starts a segment. The header is durable before the file has its name, and the name before this returns:
/// so a segment with a bad header is never a torn one.
pub(crate) fn start_segment(disk: &dyn Disk, first: Seq) -> Result<(Box<dyn WriteFile>, u32), LogError> {
    let name = FileKind::Segment.name(first);
    let temporary = format!("{name}{TEMPORARY}");
    let header = FileHeader::new(FileKind::Segment, first);
    let mut file = disk.create(&temporary).map_err(LogError::io("create", &temporary))?;
    file.write(&header.encode()).map_err(LogError::io("write", &temporary))?;
    file.sync().map_err(LogError::io("sync", &temporary))?;
    disk.rename(&temporary, &name).map_err(LogError::io("rename to", &name))?;
    disk.sync_folder().map_err(LogError::io("sync the folder of", &name))?;
    Ok((file, header.salt))
}
