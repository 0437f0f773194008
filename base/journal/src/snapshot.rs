//! Snapshots: the state after a given record of the log, stored as a sequence of snapshot records.
//! Only the owner of the log interprets these.
//!
//! ```text
//! file header (see `format`)
//! frame   length u32 | CRC u32 of length and bytes, seeded with the salt | bytes
//! footer  0xFFFF_FFFF u32 | CRC u32 of the 12 bytes after it, seeded | count u64
//!         CRC u32 of everything before the footer
//! ```
//! A snapshot gets its name only when it is complete and durable. A snapshot without its footer,
//! with a bad frame, or with bytes after the footer is damaged.

use crate::{
    LogError, Seq,
    disk::{Disk, ReadFile, WriteFile},
    format::{
        Content, FILE_HEADER_BYTES, FileHeader, FileKind, RECEIVED, RECORD_BYTES_MAX, TEMPORARY, u32_at,
        u64_at,
    },
    source::Source,
};
use std::sync::Arc;

const FRAME_HEADER_BYTES: usize = 8;
const FOOTER_BYTES: usize = 20;
const FOOTER_MARK: u32 = u32::MAX;
const WRITE_BYTES: usize = 256 << 10;

/// Writes one snapshot. The snapshot is not visible before [`Self::finish`]. Dropping the writer
/// without `finish` removes its temporary file; after a crash the next open removes it.
pub struct SnapshotWriter {
    disk: Arc<dyn Disk>,
    file: Box<dyn WriteFile>,
    header: FileHeader,
    temporary: String,
    buffer: Vec<u8>,
    written: u64,
    count: u64,
    crc: u32,
    has_final_name: bool,
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if !self.has_final_name {
            // The temporary file may occupy space that the log needs. If it cannot be removed now,
            // the next open removes it.
            let _left = self.disk.remove(&self.temporary);
        }
    }
}

impl SnapshotWriter {
    pub(crate) fn start(disk: Arc<dyn Disk>, content: Content, seq: Seq) -> Result<Self, LogError> {
        let header = FileHeader::new(FileKind::Snapshot, content, seq);
        let temporary = format!("{}{TEMPORARY}", FileKind::Snapshot.name(seq));
        let file = disk.create(&temporary).map_err(LogError::io("create", &temporary))?;
        let buffer = header.encode().to_vec();
        Ok(Self {
            disk,
            file,
            header,
            temporary,
            buffer,
            written: 0,
            count: 0,
            crc: 0,
            has_final_name: false,
        })
    }

    /// Appends a record of at most [`crate::log::RECORD_BYTES_MAX`] bytes.
    pub fn push(&mut self, record: &[u8]) -> Result<(), LogError> {
        assert!(record.len() <= RECORD_BYTES_MAX, "a snapshot record is too long");
        let len = (record.len() as u32).to_le_bytes();
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(self.header.salt, &len), record);
        self.buffer.extend_from_slice(&len);
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        self.buffer.extend_from_slice(record);
        self.count += 1;
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Makes the snapshot durable under its final name, and returns its length. Then call
    /// [`crate::Log::snapshot_done`].
    pub fn finish(mut self) -> Result<u64, LogError> {
        self.flush()?;
        let mut tail = self.count.to_le_bytes().to_vec();
        tail.extend_from_slice(&self.crc.to_le_bytes());
        self.buffer.extend_from_slice(&FOOTER_MARK.to_le_bytes());
        self.buffer.extend_from_slice(&crc32c::crc32c_append(self.header.salt, &tail).to_le_bytes());
        self.buffer.extend_from_slice(&tail);
        self.flush()?;
        let name = FileKind::Snapshot.name(self.header.seq);
        self.file.sync().map_err(LogError::io("sync", &self.temporary))?;
        self.disk.rename(&self.temporary, &name).map_err(LogError::io("rename to", &name))?;
        self.has_final_name = true;
        self.disk.sync_folder().map_err(LogError::io("sync the folder of", &name))?;
        Ok(self.written)
    }

    /// Returns the sequence number of the last record that the snapshot includes.
    pub fn seq(&self) -> Seq {
        self.header.seq
    }

    fn flush(&mut self) -> Result<(), LogError> {
        self.crc = crc32c::crc32c_append(self.crc, &self.buffer);
        self.file.write(&self.buffer).map_err(LogError::io("write", &self.temporary))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// A finished snapshot as a file, to send it to another member of a group.
pub struct SnapshotFile {
    /// The last record that the snapshot includes.
    pub seq: Seq,
    /// Length of the file.
    pub bytes: u64,
    /// The file. It stays readable after the snapshot is removed.
    pub file: Box<dyn ReadFile>,
}

impl SnapshotFile {
    pub(crate) fn open(disk: &dyn Disk, seq: Seq) -> Result<Self, LogError> {
        let name = FileKind::Snapshot.name(seq);
        let file = disk.open(&name).map_err(LogError::io("open", &name))?;
        let bytes = file.length().map_err(LogError::io("read", &name))?;
        Ok(Self { seq, bytes, file })
    }
}

/// Receives the file of a snapshot that another member of a group has written. Dropping the
/// receiver without [`Self::finish`] removes its temporary file; after a crash the next open removes
/// it.
pub struct SnapshotReceiver {
    disk: Arc<dyn Disk>,
    file: Box<dyn WriteFile>,
    seq: Seq,
    temporary: String,
    has_final_name: bool,
}

impl SnapshotReceiver {
    pub(crate) fn start(disk: Arc<dyn Disk>, seq: Seq) -> Result<Self, LogError> {
        let temporary = format!("{}{RECEIVED}", FileKind::Snapshot.name(seq));
        let file = disk.create(&temporary).map_err(LogError::io("create", &temporary))?;
        Ok(Self { disk, file, seq, temporary, has_final_name: false })
    }

    /// Appends bytes of the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        self.file.write(bytes).map_err(LogError::io("write", &self.temporary))
    }

    /// Makes the file durable and verifies it. It is an error if the snapshot is damaged or not
    /// complete.
    pub fn verify(&mut self) -> Result<(), LogError> {
        self.file.sync().map_err(LogError::io("sync", &self.temporary))?;
        let source = Source::open(&*self.disk, self.temporary.clone())?;
        SnapshotReader::read_all(SnapshotReader::of(source, self.seq)?)?;
        Ok(())
    }

    /// Gives the verified file its final name, and returns the last record that it includes. From
    /// then on, also after a crash, the log begins with this snapshot: records that contradict it
    /// must be removed before. Then call [`crate::Log::keep_snapshot`] and [`crate::Log::skip_to`].
    pub fn finish(mut self) -> Result<Seq, LogError> {
        let name = FileKind::Snapshot.name(self.seq);
        self.disk.rename(&self.temporary, &name).map_err(LogError::io("rename to", &name))?;
        self.has_final_name = true;
        self.disk.sync_folder().map_err(LogError::io("sync the folder of", &name))?;
        Ok(self.seq)
    }
}

impl Drop for SnapshotReceiver {
    fn drop(&mut self) {
        if !self.has_final_name {
            let _left = self.disk.remove(&self.temporary);
        }
    }
}

/// Reads one snapshot, and verifies it while reading.
pub(crate) struct SnapshotReader {
    source: Source,
    header: FileHeader,
    offset: u64,
    count: u64,
    crc: u32,
    record: (u64, usize),
}

impl SnapshotReader {
    pub(crate) fn open(disk: &dyn Disk, seq: Seq) -> Result<Self, LogError> {
        Self::of(Source::open(disk, FileKind::Snapshot.name(seq))?, seq)
    }

    fn of(mut source: Source, seq: Seq) -> Result<Self, LogError> {
        let name = source.name().to_owned();
        let head = source.read(0, FILE_HEADER_BYTES)?;
        let header = FileHeader::parse(&name, FileKind::Snapshot, seq, head)?;
        let crc = crc32c::crc32c(head);
        let offset = FILE_HEADER_BYTES as u64;
        Ok(Self { source, header, offset, count: 0, crc, record: (offset, 0) })
    }

    /// Verifies a snapshot by reading it to its end. Returns what it was made of.
    pub(crate) fn verify(disk: &dyn Disk, seq: Seq) -> Result<Content, LogError> {
        Self::read_all(Self::open(disk, seq)?)
    }

    fn read_all(mut reader: Self) -> Result<Content, LogError> {
        while reader.advance()? {}
        Ok(reader.header.content)
    }

    pub(crate) fn content(&self) -> Content {
        self.header.content
    }

    /// Advances to the next record; returns false after the footer.
    pub(crate) fn advance(&mut self) -> Result<bool, LogError> {
        let at = self.offset;
        let rest = self.source.length().saturating_sub(at);
        let head = self.source.read(at, FRAME_HEADER_BYTES)?;
        if head.len() < FRAME_HEADER_BYTES {
            return Err(self.source.damage_at(at, "snapshot ends without its footer"));
        }
        let (len, crc) = (u32_at(head, 0), u32_at(head, 4));
        if len == FOOTER_MARK {
            self.verify_footer(crc)?;
            return Ok(false);
        }
        let whole = FRAME_HEADER_BYTES + len as usize;
        if len as usize > RECORD_BYTES_MAX || rest < whole as u64 {
            return Err(self.source.damage_at(at, "record is longer than the file or the limit"));
        }
        let bytes = self.source.read(at, whole)?;
        let sound = bytes.len() == whole
            && crc == {
                let seeded = crc32c::crc32c_append(self.header.salt, &bytes[..4]);
                crc32c::crc32c_append(seeded, &bytes[FRAME_HEADER_BYTES..])
            };
        if !sound {
            return Err(self.source.damage_at(at, "record checksum mismatch"));
        }
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.count += 1;
        self.record = (at + FRAME_HEADER_BYTES as u64, len as usize);
        self.offset += whole as u64;
        Ok(true)
    }

    /// Returns the current record, set by [`Self::advance`].
    pub(crate) fn record(&self) -> &[u8] {
        self.source.window(self.record.0, self.record.1)
    }

    fn verify_footer(&mut self, crc: u32) -> Result<(), LogError> {
        let at = self.offset;
        let rest = self.source.length().saturating_sub(at);
        let bytes = self.source.read(at, FOOTER_BYTES)?;
        let sound = rest == FOOTER_BYTES as u64
            && bytes.len() == FOOTER_BYTES
            && crc == crc32c::crc32c_append(self.header.salt, &bytes[8..])
            && u64_at(bytes, 8) == self.count
            && u32_at(bytes, 16) == self.crc;
        if sound { Ok(()) } else { Err(self.source.damage_at(at, "footer does not match the snapshot")) }
    }
}
