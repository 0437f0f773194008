//! Reads and creates segment files: a header, then batches.
//!
//! The reader returns a record only after its complete batch was verified. It does not decide
//! whether a bad batch is a torn tail or damage; `survey` does, with the help of
//! [`SegmentReader::later`].

use crate::{
    LogError, Seq,
    disk::{Disk, WriteFile},
    format::{
        BATCH_HEADER_BYTES, BatchHeader, FILE_HEADER_BYTES, FileHeader, FileKind, GRAIN_BYTES, TEMPORARY,
        mask, u32_at,
    },
    source::Source,
};

/// A disk reads a sector completely or not at all.
const SECTOR_BYTES: u64 = 4096;

/// Reader of one segment.
pub(crate) struct SegmentReader {
    source: Source,
    salt: u32,
    /// Offset of the next batch.
    offset: u64,
    /// Number of the record after the last verified batch.
    next: Seq,
    /// Offset and number of the next record in the current batch.
    record_offset: u64,
    record_seq: Seq,
    /// Offset and length of the current record.
    record: (u64, usize),
}

/// Result of reading a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A valid batch; its records can be read.
    Batch,
    /// The file ends here, between batches.
    End,
    /// The bytes are not a valid batch.
    Bad(&'static str),
}

/// Valid batches found after a bad one.
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

    /// Returns the end of the verified part.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of the record after the last verified one.
    pub(crate) fn next_seq(&self) -> Seq {
        self.next
    }

    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Verifies the next batch. An unreadable batch is bad.
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
            return Ok(Step::Bad("batch header is incomplete"));
        }
        let Some(header) = BatchHeader::parse(head, self.salt) else {
            return Ok(Step::Bad("batch header checksum mismatch"));
        };
        if header.first != self.next {
            return Ok(Step::Bad("batch is out of order"));
        }
        let whole = header.whole();
        if rest < whole as u64 {
            return Ok(Step::Bad("batch is incomplete"));
        }
        let bytes = self.source.bytes(self.offset, whole)?;
        let Some(masked) = bytes.get(BATCH_HEADER_BYTES..whole) else {
            return Ok(Step::Bad("batch is incomplete"));
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

    /// Advances to the next record, up to `last`; returns false at the end.
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
        // `next_batch` has verified the whole batch, and its window stays in memory until the next
        // one.
        let len = u32_at(self.source.window(self.record_offset, 4), 0) as usize;
        self.record = (self.record_offset + 4, len);
        self.record_offset += 4 + len as u64;
        self.record_seq += 1;
        Ok(true)
    }

    /// Returns the current record, set by [`Self::advance`].
    pub(crate) fn record(&self) -> (Seq, &[u8]) {
        (self.record_seq - 1, self.source.window(self.record.0, self.record.1))
    }

    /// Searches from a bad batch to the end of the file for batches with higher numbers. One valid
    /// header is sufficient proof of damage: a batch is written only after the previous one was
    /// synced, so the bad batch was once complete.
    pub(crate) fn later(&mut self) -> Result<Later, LogError> {
        let mut later = Later::default();
        let mut expected = self.next;
        let mut at = self.offset + GRAIN_BYTES as u64;
        while at < self.source.length() {
            let bytes = match self.source.bytes(at, BATCH_HEADER_BYTES) {
                Err(error) if error.is_damage() => {
                    // Skip to the next sector, because each read of a bad one can take the disk
                    // seconds.
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

    /// Whether the file from the bad batch on can be the result of an interrupted write: it ends
    /// within the batch, or 64 bytes of it were never written. Bytes that were written but read
    /// back wrong are damage.
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

/// Creates a segment. The header is durable before the file gets its name, and the name before this
/// returns. So a segment with a bad header is never a torn one.
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
