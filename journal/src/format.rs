//! File names and the fixed parts of the files, little endian.
//!
//! ```text
//! every file   0 magic u32 | 4 version u16 | 6 zero u16 | 8 seq u64 | 16 salt u32 | 20 CRC of the 20 before
//! batch        0 magic u32 | 4 count u32 | 8 first seq u64 | 16 payload bytes u32 | 20 CRC of the payload
//!              24 CRC of the 24 before, seeded with the salt | 28 payload: (length u32, bytes) * count
//! ```
//! `seq` is the first record of a segment, or the last one that a snapshot contains. The file header keeps this
//! layout in every version, so that a newer version is told from damage.
//!
//! Why the salt: after a bad batch the reader looks for later batches, to tell a torn tail from damage. Without a
//! salt, a record whose bytes happen (or are made) to look like a batch could turn the one into the other.

use crate::{LogError, Seq};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Bytes of the header of every file.
pub(crate) const FILE_HEADER_BYTES: usize = 24;
/// Bytes of the header of every batch.
pub(crate) const BATCH_HEADER_BYTES: usize = 28;
/// A record is no longer than this.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// A batch, and with it the memory of a reader and what may wait for the disk, is no longer than this.
pub const BATCH_BYTES_MAX: usize = 64 << 20;
/// The newest version this build reads, and the one it writes.
pub(crate) const VERSION: u16 = 1;
const BATCH_MAGIC: [u8; 4] = *b"\xF7FMB";
/// Numbers end long before they overflow; a file name beyond is not ours.
const SEQ_MAX: Seq = 1 << 63;
/// Ending of files that are not finished.
pub(crate) const TEMPORARY: &str = ".tmp";

/// The two kinds of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment,
    Snapshot,
}

impl FileKind {
    fn magic(self) -> [u8; 4] {
        match self {
            Self::Segment => *b"FMTJ",
            Self::Snapshot => *b"FMTS",
        }
    }

    /// The name of the file of this kind for `seq`.
    pub(crate) fn name(self, seq: Seq) -> String {
        match self {
            Self::Segment => format!("edits-{seq:020}.log"),
            Self::Snapshot => format!("snapshot-{seq:020}.snap"),
        }
    }
}

/// What a file name says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Name {
    File(FileKind, Seq),
    /// One of ours that was never finished.
    Temporary,
    /// Not ours; left alone.
    Other,
}

impl Name {
    pub(crate) fn parse(name: &str) -> Self {
        let (stem, temporary) = name.strip_suffix(TEMPORARY).map_or((name, false), |stem| (stem, true));
        let file = [FileKind::Segment, FileKind::Snapshot].into_iter().find_map(|kind| {
            let digits = stem.split_once('-')?.1.split_once('.')?.0;
            let seq = digits.parse().ok().filter(|seq| (1..=SEQ_MAX).contains(seq))?;
            (kind.name(seq) == stem).then_some(Self::File(kind, seq))
        });
        match file {
            Some(_) if temporary => Self::Temporary,
            Some(file) => file,
            None => Self::Other,
        }
    }
}

/// The start of every file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) kind: FileKind,
    pub(crate) seq: Seq,
    pub(crate) salt: u32,
}

impl FileHeader {
    pub(crate) fn new(kind: FileKind, seq: Seq) -> Self {
        Self { kind, seq, salt: RandomState::new().build_hasher().finish() as u32 }
    }

    pub(crate) fn encode(self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = [0; FILE_HEADER_BYTES];
        out[..4].copy_from_slice(&self.kind.magic());
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..20].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&out[..20]);
        out[20..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header in `bytes`, the start of `file`, which by its name is of `kind` and `seq`.
    pub(crate) fn parse(file: &str, kind: FileKind, seq: Seq, bytes: &[u8]) -> Result<Self, LogError> {
        let file = file.to_owned();
        let Some(bytes) = bytes.first_chunk::<FILE_HEADER_BYTES>() else {
            return Err(LogError::ShortHeader { file, offset: bytes.len() as u64 });
        };
        if bytes[..4] != kind.magic() {
            return Err(LogError::BadMagic { file });
        }
        if u32_at(bytes, 20) != crc32c::crc32c(&bytes[..20]) {
            return Err(LogError::Damaged { file, offset: 4, what: "header checksum mismatch" });
        }
        let found = u16::from_le_bytes([bytes[4], bytes[5]]);
        if found != VERSION {
            return Err(LogError::Version { file, found, known: VERSION });
        }
        if u64_at(bytes, 8) != seq {
            return Err(LogError::Damaged { file, offset: 8, what: "header and file name disagree" });
        }
        Ok(Self { kind, seq, salt: u32_at(bytes, 16) })
    }
}

/// The start of every batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) first: Seq,
    pub(crate) count: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) payload_crc: u32,
}

impl BatchHeader {
    pub(crate) fn encode(self, salt: u32) -> [u8; BATCH_HEADER_BYTES] {
        let mut out = [0; BATCH_HEADER_BYTES];
        out[..4].copy_from_slice(&BATCH_MAGIC);
        out[4..8].copy_from_slice(&self.count.to_le_bytes());
        out[8..16].copy_from_slice(&self.first.to_le_bytes());
        out[16..20].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(salt, &out[..24]);
        out[24..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header in `bytes`, if it is sound. Nothing is said about its payload.
    pub(crate) fn parse(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = bytes.first_chunk::<BATCH_HEADER_BYTES>()?;
        let header = Self {
            count: u32_at(bytes, 4),
            first: u64_at(bytes, 8),
            payload_bytes: u32_at(bytes, 16),
            payload_crc: u32_at(bytes, 20),
        };
        let sound = bytes[..4] == BATCH_MAGIC
            && u32_at(bytes, 24) == crc32c::crc32c_append(salt, &bytes[..24])
            && header.count > 0
            && header.payload_bytes as usize <= BATCH_BYTES_MAX
            && header.first.checked_add(u64::from(header.count)).is_some();
        sound.then_some(header)
    }

    /// Where in `bytes` the next batch could begin.
    pub(crate) fn find_magic(bytes: &[u8]) -> Option<usize> {
        bytes.windows(BATCH_MAGIC.len()).position(|window| window == BATCH_MAGIC)
    }

    /// The record after the last of this batch.
    pub(crate) fn end(&self) -> Seq {
        self.first + u64::from(self.count)
    }
}

/// Four bytes of `bytes` as a number. The caller knows that they are there.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Eight bytes of `bytes` as a number. The caller knows that they are there.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ours_or_left_alone() {
        for kind in [FileKind::Segment, FileKind::Snapshot] {
            let name = kind.name(42);
            assert_eq!(Name::parse(&name), Name::File(kind, 42));
            assert_eq!(Name::parse(&format!("{name}.tmp")), Name::Temporary);
            assert_eq!(Name::parse(&format!("{name}.damaged-1")), Name::Other);
        }
        for other in [
            "edits-42.log",
            "notes.txt.tmp",
            "edits-.log",
            "edits-00000000000000000000.log",
            "edits-+0000000000000000042.log",
            "lock",
        ] {
            assert_eq!(Name::parse(other), Name::Other, "{other}");
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut bytes = FileHeader::new(FileKind::Segment, 7).encode();
        bytes[4] = 2;
        let parse = |bytes: &[u8]| FileHeader::parse("f", FileKind::Segment, 7, bytes);
        assert!(matches!(parse(&bytes), Err(LogError::Damaged { offset: 4, .. })));
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(parse(&bytes), Err(LogError::Version { found: 2, .. })));
        assert!(matches!(parse(&bytes[..9]), Err(LogError::ShortHeader { offset: 9, .. })));
    }
}
