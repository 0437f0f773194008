//! Reads and creates segment files: a header, then batches.
//!
//! The reader returns a record only after its complete batch was verified. It does not decide
//! whether a bad batch is a torn tail or damage; `survey` does, with the help of
//! [`SegmentReader::find_later_batches`].

use crate::{
    LogError, Seq,
    bugs::{self, Bug},
    disk::{Disk, WriteFile},
    format::{
        BATCH_HEADER_BYTES, BatchHeader, Content, FILE_HEADER_BYTES, FileHeader, FileKind, GRAIN_BYTES,
        TEMPORARY, mask, u32_at,
    },
    source::Source,
};

/// Size of a disk sector. A disk reads a sector completely or not at all.
const SECTOR_BYTES: u64 = 4096;

/// Reads the batches and records of one segment.
pub(crate) struct SegmentReader {
    source: Source,
    header: FileHeader,
    /// Offset of the next batch.
    offset: u64,
    /// Sequence number of the record after the last verified batch.
    next_seq: Seq,
    /// Offset of the next record in the current batch.
    record_offset: u64,
    /// Sequence number of the next record in the current batch.
    record_seq: Seq,
    /// Offset and length of the current record.
    record: (u64, usize),
}

/// Result of reading a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BatchResult {
    /// A valid batch; its records can be read.
    Batch,
    /// The file ends here, between batches.
    End,
    /// The bytes are not a valid batch.
    Bad(&'static str),
}

/// Counts of the valid batches after a bad batch, and of their records.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaterBatches {
    pub(crate) batches: u64,
    pub(crate) records: u64,
}

impl SegmentReader {
    pub(crate) fn open(disk: &dyn Disk, first: Seq) -> Result<Self, LogError> {
        let mut source = Source::open(disk, FileKind::Segment.name(first))?;
        let name = source.name().to_owned();
        let head = source.read(0, FILE_HEADER_BYTES)?;
        let header = FileHeader::parse(&name, FileKind::Segment, first, head)?;
        let offset = FILE_HEADER_BYTES as u64;
        Ok(Self {
            source,
            header,
            offset,
            next_seq: first,
            record_offset: offset,
            record_seq: first,
            record: (offset, 0),
        })
    }

    /// Returns the offset at which the verified part ends.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the sequence number of the record after the last verified record.
    pub(crate) fn next_seq(&self) -> Seq {
        self.next_seq
    }

    pub(crate) fn header(&self) -> FileHeader {
        self.header
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Reads and verifies the next batch. A batch that the disk cannot read counts as bad.
    pub(crate) fn next_batch(&mut self) -> Result<BatchResult, LogError> {
        match self.verify_batch() {
            Err(LogError::Damaged { what, .. }) => Ok(BatchResult::Bad(what)),
            other => other,
        }
    }

    fn verify_batch(&mut self) -> Result<BatchResult, LogError> {
        let rest = self.source.length().saturating_sub(self.offset);
        if rest == 0 {
            return Ok(BatchResult::End);
        }
        let head = self.source.read(self.offset, BATCH_HEADER_BYTES)?;
        if head.len() < BATCH_HEADER_BYTES {
            return Ok(BatchResult::Bad("batch header is incomplete"));
        }
        let Some(header) = BatchHeader::parse(head, self.header.salt) else {
            return Ok(BatchResult::Bad("batch header checksum mismatch"));
        };
        if header.first != self.next_seq {
            return Ok(BatchResult::Bad("batch is out of order"));
        }
        let whole = header.padded_bytes();
        if rest < whole as u64 {
            return Ok(BatchResult::Bad("batch is incomplete"));
        }
        let bytes = self.source.read(self.offset, whole)?;
        let Some(masked) = bytes.get(BATCH_HEADER_BYTES..whole) else {
            return Ok(BatchResult::Bad("batch is incomplete"));
        };
        if crc32c::crc32c(masked) != header.payload_crc {
            return Ok(BatchResult::Bad("batch checksum mismatch"));
        }
        let payload =
            self.source.window_mut(self.offset + BATCH_HEADER_BYTES as u64, whole - BATCH_HEADER_BYTES);
        mask(self.header.salt, payload);
        if !lengths_add_up(&payload[..header.payload_bytes as usize], header.count) {
            return Ok(BatchResult::Bad("record lengths do not add up"));
        }
        self.record_offset = self.offset + BATCH_HEADER_BYTES as u64;
        self.record_seq = header.first;
        self.offset += whole as u64;
        self.next_seq = header.end_seq();
        Ok(BatchResult::Batch)
    }

    /// Advances to the next record. Returns false after record `last` and at the end of the file.
    pub(crate) fn advance(&mut self, last: Seq) -> Result<bool, LogError> {
        if self.record_seq > last {
            return Ok(false);
        }
        if self.record_seq == self.next_seq {
            match self.next_batch()? {
                BatchResult::Batch => {}
                BatchResult::End => return Ok(false),
                BatchResult::Bad(what) => return Err(self.source.damage_at(self.offset, what)),
            }
        }
        // `next_batch` has verified the whole batch, which stays in memory until the next batch is
        // read.
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

    /// Searches the file after a bad batch for batches with higher sequence numbers. One valid
    /// header proves damage: a batch is written only after the previous batch was synced, so the
    /// bad batch was once complete.
    pub(crate) fn find_later_batches(&mut self) -> Result<LaterBatches, LogError> {
        let mut later = LaterBatches::default();
        let mut expected = self.next_seq;
        let mut at = self.offset + GRAIN_BYTES as u64;
        while at < self.source.length() {
            let bytes = match self.source.read(at, BATCH_HEADER_BYTES) {
                Err(error) if error.is_damage() => {
                    // Skip to the next sector, because each read of a bad sector can take seconds.
                    at = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
                    continue;
                }
                other => other?,
            };
            match BatchHeader::parse(bytes, self.header.salt) {
                Some(header) if header.first > expected => {
                    later.batches += 1;
                    later.records += u64::from(header.count);
                    expected = header.end_seq() - 1;
                }
                _ => {}
            }
            at += GRAIN_BYTES as u64;
        }
        Ok(later)
    }

    /// Returns whether an interrupted write can explain the bad batch: the file ends within the
    /// batch, or at least 64 bytes of the batch were never written (they are zero). A batch that
    /// was written completely and has wrong bytes is damage.
    pub(crate) fn may_be_torn(&mut self) -> Result<bool, LogError> {
        let rest = self.source.length().saturating_sub(self.offset);
        if !rest.is_multiple_of(GRAIN_BYTES as u64) {
            return Ok(true);
        }
        let header = BatchHeader::parse(self.source.read(self.offset, BATCH_HEADER_BYTES)?, self.header.salt);
        if header.is_some_and(|header| header.first == self.next_seq && rest < header.padded_bytes() as u64) {
            return Ok(true);
        }
        let mut at = self.offset;
        while at < self.source.length() {
            if self.source.read(at, GRAIN_BYTES)?.iter().all(|byte| *byte == 0) {
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

/// Completes a batch: `buffer` has space for the header, and then the payload. Returns the header.
pub(crate) fn seal_batch(buffer: &mut Vec<u8>, first: Seq, count: u32, salt: u32) -> BatchHeader {
    let payload_bytes = (buffer.len() - BATCH_HEADER_BYTES) as u32;
    let mut header = BatchHeader { first, count, payload_bytes, payload_crc: 0 };
    buffer.resize(header.padded_bytes(), 0);
    mask(salt, &mut buffer[BATCH_HEADER_BYTES..]);
    header.payload_crc = crc32c::crc32c(&buffer[BATCH_HEADER_BYTES..]);
    buffer[..BATCH_HEADER_BYTES].copy_from_slice(&header.encode(salt));
    header
}

/// Appends a record to the payload of a batch.
pub(crate) fn push_record(buffer: &mut Vec<u8>, record: &[u8]) {
    buffer.extend_from_slice(&(record.len() as u32).to_le_bytes());
    buffer.extend_from_slice(record);
}

/// A segment that is open for appending.
pub(crate) struct ActiveSegment {
    pub(crate) file: Box<dyn WriteFile>,
    pub(crate) name: String,
    pub(crate) salt: u32,
}

impl ActiveSegment {
    /// Creates a segment file. Its header is durable before the file gets its name, and the name is
    /// durable before this function returns. So a bad header is always damage, not a torn write.
    pub(crate) fn start(disk: &dyn Disk, content: Content, first: Seq) -> Result<Self, LogError> {
        let name = FileKind::Segment.name(first);
        let temporary = format!("{name}{TEMPORARY}");
        let header = FileHeader::new(FileKind::Segment, content, first);
        let mut file = disk.create(&temporary).map_err(LogError::io("create", &temporary))?;
        file.write(&header.encode()).map_err(LogError::io("write", &temporary))?;
        file.sync().map_err(LogError::io("sync", &temporary))?;
        disk.rename(&temporary, &name).map_err(LogError::io("rename to", &name))?;
        if !bugs::has(Bug::FolderSyncSkipped) {
            disk.sync_folder().map_err(LogError::io("sync the folder of", &name))?;
        }
        Ok(Self { file, name, salt: header.salt })
    }
}
