//! File names and the fixed parts of the files, little endian.
//!
//! ```text
//! every file   0 magic u32 | 4 version u16 | 6 zero u16 | 8 seq u64 | 16 salt u32
//!              20 CRC of the 20 bytes before | 24 zeros up to 64
//! batch        0 magic u32 | 4 count u32 | 8 first seq u64 | 16 payload bytes u32
//!              20 CRC of all after the header | 24 CRC of the 24 before, seeded with the salt
//!              28 payload: (length u32, bytes) * count, then zeros up to a multiple of 64;
//!              payload and zeros are masked
//! ```
//! `seq` is the first record of a segment, or the last record in a snapshot. The file header has
//! this layout in every version, so that a newer version can be distinguished from damage. The
//! version shows what the records are ([`Content`]).
//!
//! Reason for the salt: after a bad batch the reader searches for later batches, to distinguish a
//! torn tail from damage. Without a salt, a record whose bytes look like a batch, at random or by
//! intent, could change the result.
//!
//! Reason for the mask and the alignment: no aligned 64 bytes of a written batch are all zero,
//! whatever the records contain. A sector that a crash kept from the disk reads as zeros or is
//! beyond the end of the file. So a torn batch has 64 such zero bytes or is short, and a complete
//! batch with a wrong bit has neither property (ADR 0024).

use crate::{LogError, Seq};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Length of the header of every file.
pub(crate) const FILE_HEADER_BYTES: usize = 64;
/// Length of the part of the file header that is the same in every version.
const FIXED_HEADER_BYTES: usize = 24;
/// Batches begin and end at multiples of this length. No disk has smaller sectors.
pub(crate) const GRAIN_BYTES: usize = 64;
/// Length of the header of every batch.
pub(crate) const BATCH_HEADER_BYTES: usize = 28;
/// Maximum length of a record.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a batch. This also limits the memory of a reader and the data that waits for
/// the disk.
pub const BATCH_BYTES_MAX: usize = 64 << 20;
/// The newest file version that this build writes and reads.
const VERSION_MAX: u16 = 3;
const BATCH_MAGIC: [u8; 4] = *b"\xF7FMB";
/// Maximum sequence number in a file name. A file with a larger one does not belong to the log.
const SEQ_MAX: Seq = 1 << 63;
/// Suffix of the names of unfinished files.
pub(crate) const TEMPORARY: &str = ".tmp";
/// Suffix of the names of unfinished snapshots that are being received. One with the same sequence
/// number may be written at the same time.
pub(crate) const RECEIVED: &str = ".received.tmp";

/// What the records of a log are to their owner. Each file says which, in its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Changes of the state of one master. File version 2.
    Records,
    /// Entries of the log of a group of masters. File version 3.
    Entries,
}

impl Content {
    fn version(self) -> u16 {
        match self {
            Self::Records => 2,
            Self::Entries => VERSION_MAX,
        }
    }

    fn of_version(version: u16) -> Option<Self> {
        [Self::Records, Self::Entries].into_iter().find(|content| content.version() == version)
    }
}

/// The kinds of files with numbered names.
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

    /// Returns the name of the file of this kind for `seq`.
    pub(crate) fn name(self, seq: Seq) -> String {
        match self {
            Self::Segment => format!("edits-{seq:020}.log"),
            Self::Snapshot => format!("snapshot-{seq:020}.snap"),
        }
    }
}

/// Meaning of a file name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Name {
    File(FileKind, Seq),
    /// An unfinished file of the log.
    Temporary,
    /// Not a file of the log. Such files are never changed.
    Other,
}

impl Name {
    pub(crate) fn parse(name: &str) -> Self {
        let stem = name.strip_suffix(RECEIVED).or_else(|| name.strip_suffix(TEMPORARY));
        let (stem, temporary) = stem.map_or((name, false), |stem| (stem, true));
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

/// The header of every file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) kind: FileKind,
    pub(crate) content: Content,
    pub(crate) seq: Seq,
    pub(crate) salt: u32,
}

impl FileHeader {
    pub(crate) fn new(kind: FileKind, content: Content, seq: Seq) -> Self {
        Self { kind, content, seq, salt: RandomState::new().build_hasher().finish() as u32 }
    }

    pub(crate) fn encode(self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = [0; FILE_HEADER_BYTES];
        out[..4].copy_from_slice(&self.kind.magic());
        out[4..6].copy_from_slice(&self.content.version().to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..20].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&out[..20]);
        out[20..FIXED_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Parses the header of `file` from its first `bytes`. Checks that the header has the `kind`
    /// and `seq` of the file name.
    pub(crate) fn parse(file: &str, kind: FileKind, seq: Seq, bytes: &[u8]) -> Result<Self, LogError> {
        let file = file.to_owned();
        if bytes.len() < FIXED_HEADER_BYTES {
            return Err(LogError::ShortHeader { file, offset: bytes.len() as u64 });
        }
        if bytes[..4] != kind.magic() {
            return Err(LogError::BadMagic { file });
        }
        if u32_at(bytes, 20) != crc32c::crc32c(&bytes[..20]) {
            return Err(LogError::Damaged { file, offset: 4, what: "header checksum mismatch" });
        }
        let found = u16::from_le_bytes([bytes[4], bytes[5]]);
        let Some(content) = Content::of_version(found) else {
            return Err(LogError::Version { file, found, known: VERSION_MAX });
        };
        if u64_at(bytes, 8) != seq {
            return Err(LogError::Damaged { file, offset: 8, what: "header and file name disagree" });
        }
        let Some(rest) = bytes.get(FIXED_HEADER_BYTES..FILE_HEADER_BYTES) else {
            return Err(LogError::ShortHeader { file, offset: bytes.len() as u64 });
        };
        if rest.iter().any(|byte| *byte != 0) {
            let offset = FIXED_HEADER_BYTES as u64;
            return Err(LogError::Damaged { file, offset, what: "bytes after the header are not zero" });
        }
        Ok(Self { kind, content, seq, salt: u32_at(bytes, 16) })
    }
}

/// The header of every batch.
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

    /// Returns the header in `bytes` if it is valid. Does not verify the payload.
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

    /// Returns the length of the batch in its file: header, payload and padding.
    pub(crate) fn padded_bytes(&self) -> usize {
        (BATCH_HEADER_BYTES + self.payload_bytes as usize).next_multiple_of(GRAIN_BYTES)
    }

    /// Returns the sequence number after the last record of this batch.
    pub(crate) fn end_seq(&self) -> Seq {
        self.first + u64::from(self.count)
    }
}

/// Masks or unmasks `bytes`, the part of a batch after its header.
pub(crate) fn mask(salt: u32, bytes: &mut [u8]) {
    let mut pattern = [0; GRAIN_BYTES];
    for (index, word) in pattern.chunks_exact_mut(8).enumerate() {
        let z = (u64::from(salt) + 1).wrapping_mul(index as u64 + 1).wrapping_mul(SPLIT_MIX_STEP);
        word.copy_from_slice(&split_mix(z).to_le_bytes());
    }
    let (head, rest) = bytes.split_at_mut((GRAIN_BYTES - BATCH_HEADER_BYTES).min(bytes.len()));
    let xor = |(byte, mask): (&mut u8, &u8)| *byte ^= mask;
    head.iter_mut().zip(&pattern[BATCH_HEADER_BYTES..]).for_each(xor);
    for grain in rest.chunks_mut(GRAIN_BYTES) {
        grain.iter_mut().zip(&pattern).for_each(xor);
    }
}

/// The constant that `SplitMix64` adds to its state at each step.
pub(crate) const SPLIT_MIX_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the output of `SplitMix64` (Steele, Lea and Flood) for the state `z`. The function is
/// part of the file format, and is therefore defined here.
pub(crate) fn split_mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the `u32` in the four bytes at `at`. Panics if `bytes` is too short.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Returns the `u64` in the eight bytes at `at`. Panics if `bytes` is too short.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_log_file_names_are_parsed() {
        for kind in [FileKind::Segment, FileKind::Snapshot] {
            let name = kind.name(42);
            assert_eq!(Name::parse(&name), Name::File(kind, 42));
            assert_eq!(Name::parse(&format!("{name}.tmp")), Name::Temporary);
            assert_eq!(Name::parse(&format!("{name}.received.tmp")), Name::Temporary);
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
    fn newer_version_is_not_reported_as_damage() {
        let mut bytes = FileHeader::new(FileKind::Segment, Content::Records, 7).encode();
        bytes[4] = 4;
        let parse = |bytes: &[u8]| FileHeader::parse("f", FileKind::Segment, 7, bytes);
        assert!(matches!(parse(&bytes), Err(LogError::Damaged { offset: 4, .. })));
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(parse(&bytes), Err(LogError::Version { found: 4, .. })));
        assert!(matches!(parse(&bytes[..9]), Err(LogError::ShortHeader { offset: 9, .. })));
        // A newer version may have a shorter header. It is reported as a version too, not as
        // damage.
        assert!(matches!(parse(&bytes[..24]), Err(LogError::Version { found: 4, .. })));
    }

    #[test]
    fn masking_removes_zeros_and_masking_twice_restores_the_bytes() {
        for salt in [0, 1, u32::MAX] {
            let mut bytes = vec![0; 5 * GRAIN_BYTES - BATCH_HEADER_BYTES];
            mask(salt, &mut bytes);
            let after_first = &bytes[GRAIN_BYTES - BATCH_HEADER_BYTES..];
            assert!(
                after_first.chunks(GRAIN_BYTES).all(|grain| grain.iter().filter(|b| **b != 0).count() > 32)
            );
            mask(salt, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
