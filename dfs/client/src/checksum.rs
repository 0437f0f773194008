//! CRC32C checksums per chunk, and the checksum file next to each block file.
//!
//! Layout of a checksum file, little endian: magic `FMTC`, version u16, log2(chunk size) u16, block
//! ID u64, nonce u64, data length u64, CRC32C of the table of chunk checksums u32, CRC32C of the 36
//! bytes before it u32, then the table: one u32 per chunk. The header contains the block ID to
//! detect two swapped files, the nonce to detect another block with the same ID (see [`BlockId`]),
//! and the length to detect a truncated block.

use crate::ids::{BlockId, Nonce};

/// Number of bytes that one checksum covers. The last chunk of a block may be shorter.
pub const CHUNK_BYTES: usize = 1 << CHUNK_LOG2;
const CHUNK_LOG2: u16 = 16;
const MAGIC: [u8; 4] = *b"FMTC";
const VERSION: u16 = 2;
/// Length of the header of a checksum file.
pub const HEADER_BYTES: usize = 40;

/// What is wrong with a block or with its checksum file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    /// The file does not start with the magic number of checksum files.
    #[error("bad magic at offset 0 of the checksum file")]
    Magic,
    /// The file has a format version that this build does not support.
    #[error("checksum file version {0} at offset 4: this build supports {VERSION}")]
    Version(u16),
    /// The header or the table of the checksum file does not match its own checksum.
    #[error("checksum file damaged at offset {0}")]
    Damaged(usize),
    /// The checksum file belongs to another block.
    #[error("checksum file belongs to {found}, not to {wanted}")]
    WrongBlock {
        /// The block that was opened.
        wanted: BlockId,
        /// The block ID in the checksum file.
        found: BlockId,
    },
    /// The checksum file belongs to another block with the same ID (see [`BlockId`]).
    #[error("checksum file has nonce {found}, not {wanted}")]
    WrongNonce {
        /// The nonce of the block that was opened.
        wanted: Nonce,
        /// The nonce in the checksum file.
        found: Nonce,
    },
    /// The block file does not have the length that its checksum file records.
    #[error("block has {found} bytes, but its checksum file records {wanted}")]
    Length {
        /// The length in the checksum file.
        wanted: u64,
        /// The length of the block file.
        found: u64,
    },
    /// A chunk does not match its checksum.
    #[error("checksum mismatch at offset {0}")]
    Mismatch(u64),
}

/// The checksums of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksums {
    /// The block that the checksums belong to.
    pub block: BlockId,
    /// The nonce of the block.
    pub nonce: Nonce,
    /// Length of the block in bytes.
    pub length: u64,
    /// One checksum per chunk.
    pub sums: Vec<u32>,
}

/// Returns the CRC32C of a chunk. Every byte of a block passes through this function several times.
/// `crc-fast` is ten times faster than `crc32c` on data in the CPU cache, and chunks are checked
/// while they are in the cache.
pub fn chunk_sum(chunk: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(chunk)
}

/// Returns one checksum per chunk of `data`. `data` starts at a chunk boundary.
pub fn sums_of(data: &[u8]) -> Vec<u32> {
    data.chunks(CHUNK_BYTES).map(chunk_sum).collect()
}

/// Checks that each chunk of `data` has its checksum in `sums`. `data` starts at `offset` of its
/// block, which is a chunk boundary.
pub fn verify(data: &[u8], offset: u64, sums: &[u32]) -> Result<(), ChecksumError> {
    let chunks = data.len().div_ceil(CHUNK_BYTES);
    if sums.len() != chunks {
        return Err(ChecksumError::Mismatch(offset + (chunks.min(sums.len()) * CHUNK_BYTES) as u64));
    }
    for (index, (chunk, sum)) in data.chunks(CHUNK_BYTES).zip(sums).enumerate() {
        if chunk_sum(chunk) != *sum {
            return Err(ChecksumError::Mismatch(offset + (index * CHUNK_BYTES) as u64));
        }
    }
    Ok(())
}

/// Encodes checksums for a message: little endian, four bytes each.
pub fn to_bytes(sums: &[u32]) -> Vec<u8> {
    sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()
}

/// Decodes the checksums that [`to_bytes`] has encoded. Ignores an incomplete value at the end;
/// `verify` then fails because the number of checksums is wrong.
pub fn from_bytes(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect()
}

impl Checksums {
    /// Encodes the complete checksum file.
    pub fn encode(&self) -> Vec<u8> {
        let table = to_bytes(&self.sums);
        let mut out = Vec::with_capacity(HEADER_BYTES + table.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&CHUNK_LOG2.to_le_bytes());
        out.extend_from_slice(&self.block.0.to_le_bytes());
        out.extend_from_slice(&self.nonce.0.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&table).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out.extend_from_slice(&table);
        out
    }

    /// Decodes a checksum file and checks that it is intact and belongs to `block`.
    pub fn decode(bytes: &[u8], block: BlockId) -> Result<Self, ChecksumError> {
        let Some((header, table)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(ChecksumError::Damaged(bytes.len()));
        };
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        if header[..4] != MAGIC {
            return Err(ChecksumError::Magic);
        }
        if u16_at(4) != VERSION {
            return Err(ChecksumError::Version(u16_at(4)));
        }
        if u32_at(36) != crc32c::crc32c(&header[..36]) || u16_at(6) != CHUNK_LOG2 {
            return Err(ChecksumError::Damaged(36));
        }
        let (found, nonce, length) = (BlockId(u64_at(8)), Nonce(u64_at(16)), u64_at(24));
        if found != block {
            return Err(ChecksumError::WrongBlock { wanted: block, found });
        }
        let chunks = length.div_ceil(CHUNK_BYTES as u64);
        if table.len() as u64 != chunks.saturating_mul(4) || u32_at(32) != crc32c::crc32c(table) {
            return Err(ChecksumError::Damaged(HEADER_BYTES));
        }
        Ok(Self { block, nonce, length, sums: from_bytes(table) })
    }

    /// Returns the checksums, or an error if their nonce is not `wanted`.
    pub fn check_nonce(self, wanted: Nonce) -> Result<Self, ChecksumError> {
        let found = self.nonce;
        if found == wanted { Ok(self) } else { Err(ChecksumError::WrongNonce { wanted, found }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<u8>, Checksums) {
        let data: Vec<u8> = (0..CHUNK_BYTES * 2 + 5).map(|i| (i % 251) as u8).collect();
        let (block, nonce) = (BlockId(7), Nonce(9));
        let sums = Checksums { block, nonce, length: data.len() as u64, sums: sums_of(&data) };
        (data, sums)
    }

    #[test]
    fn both_crc_implementations_agree() {
        let (data, _) = sample();
        for length in [0, 1, 7, 8, 63, 64, 255, 4096, CHUNK_BYTES, data.len()] {
            assert_eq!(chunk_sum(&data[..length]), crc32c::crc32c(&data[..length]), "{length} bytes");
        }
    }

    #[test]
    fn decoded_checksums_accept_the_data_and_reject_changes() {
        let (mut data, sums) = sample();
        let decoded = Checksums::decode(&sums.encode(), BlockId(7)).unwrap();
        assert_eq!(decoded, sums);
        verify(&data, 0, &decoded.sums).unwrap();
        data[CHUNK_BYTES + 1] ^= 1;
        assert_eq!(verify(&data, 0, &decoded.sums), Err(ChecksumError::Mismatch(CHUNK_BYTES as u64)));
        assert_eq!(
            verify(&data[..CHUNK_BYTES], 0, &decoded.sums),
            Err(ChecksumError::Mismatch(CHUNK_BYTES as u64))
        );
    }

    #[test]
    fn checksum_file_of_another_block_or_nonce_is_refused() {
        let (_, sums) = sample();
        assert_eq!(
            Checksums::decode(&sums.encode(), BlockId(8)),
            Err(ChecksumError::WrongBlock { wanted: BlockId(8), found: BlockId(7) })
        );
        let read = Checksums::decode(&sums.encode(), BlockId(7)).unwrap();
        assert!(read.clone().check_nonce(Nonce(9)).is_ok());
        assert_eq!(
            read.check_nonce(Nonce(8)),
            Err(ChecksumError::WrongNonce { wanted: Nonce(8), found: Nonce(9) })
        );
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_detected() {
        let (_, sums) = sample();
        let good = sums.encode();
        for at in 0..good.len() {
            assert!(Checksums::decode(&good[..at], BlockId(7)).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(Checksums::decode(&bad, BlockId(7)).is_err(), "flip at {at}.{bit}");
            }
        }
    }

    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 12))]

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            length in any::<u64>(),
        ) {
            Checksums::decode(&bytes, BlockId(7)).ok();
            // Decode a file with a valid header, which contains an arbitrary length.
            let (block, nonce) = (BlockId(7), Nonce(length));
            let header = Checksums { block, nonce, length, sums: from_bytes(&bytes) }.encode();
            if let Ok(read) = Checksums::decode(&header, BlockId(7)) {
                prop_assert_eq!(read.sums.len() as u64, length.div_ceil(CHUNK_BYTES as u64));
            }
        }

        #[test]
        fn changed_or_truncated_checksum_file_is_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..4),
            cut in any::<prop::sample::Index>(),
            more in prop::collection::vec(any::<u8>(), 1..9),
        ) {
            let good = sample().1.encode();
            let mut bad = good.clone();
            for (at, flip) in changes {
                let at = at.index(bad.len());
                bad[at] ^= flip;
            }
            prop_assert_eq!(Checksums::decode(&bad, BlockId(7)).is_ok(), bad == good);
            prop_assert!(Checksums::decode(&good[..cut.index(good.len())], BlockId(7)).is_err());
            prop_assert!(Checksums::decode(&[good, more].concat(), BlockId(7)).is_err());
        }
    }
}
