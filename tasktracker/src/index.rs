//! Where each partition lies in a map output file: the index beside it.
//!
//! Layout, all little-endian: `FMTX`, version u32, partitions u32; per partition offset, stored length, raw
//! length, records (u64 each) and the crc32c of the stored bytes (u32); last the crc32c of all before it.
//! Deliberately absent: writing one. Only tasks make map output.

use std::{fs, io, path::Path, path::PathBuf};

const MAGIC: &[u8; 4] = b"FMTX";
const VERSION: u32 = 1;
const HEAD: usize = 12;
const ENTRY: usize = 36;
/// Longer than any index of a job that the JobTracker takes.
const BYTES_MAX: u64 = 64 << 20;

/// One partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where its stored bytes begin.
    pub(crate) offset: u64,
    /// How many they are.
    pub(crate) stored: u64,
    /// How many they are when unpacked.
    pub(crate) raw: u64,
    /// Records in it.
    pub(crate) records: u64,
    /// crc32c of the stored bytes.
    pub(crate) crc: u32,
}

/// Why map output cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndexError {
    /// There is none.
    #[error("no index at {0}")]
    Missing(PathBuf),
    /// The disk would not.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what was written.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What shows it.
        why: &'static str,
    },
}

/// The index's path, beside its output file.
pub(crate) fn path_of(output: &Path) -> PathBuf {
    let mut path = output.as_os_str().to_owned();
    path.push(".index");
    path.into()
}

/// Reads the index of an output file and checks it, also against the file's length.
pub(crate) fn read(output: &Path) -> Result<Vec<Extent>, IndexError> {
    let path = path_of(output);
    let failed = |path: &Path, source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => IndexError::Missing(path.into()),
        _ => IndexError::Io { path: path.into(), source },
    };
    let length = fs::metadata(&path).map_err(|error| failed(&path, error))?.len();
    if length > BYTES_MAX {
        return Err(IndexError::Damaged { path, why: "it is longer than any index" });
    }
    let bytes = fs::read(&path).map_err(|error| failed(&path, error))?;
    let extents = parse(&bytes).map_err(|why| IndexError::Damaged { path, why })?;
    let have = fs::metadata(output).map_err(|error| failed(output, error))?.len();
    let end = |extent: &Extent| extent.offset.checked_add(extent.stored);
    if extents.iter().any(|extent| end(extent).is_none_or(|end| end > have)) {
        return Err(IndexError::Damaged { path: output.into(), why: "it is shorter than its index says" });
    }
    Ok(extents)
}

fn parse(bytes: &[u8]) -> Result<Vec<Extent>, &'static str> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
    if body.len() < HEAD || &body[..4] != MAGIC {
        return Err("it does not begin as an index does");
    }
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err("its checksum does not match");
    }
    let u32_at = |at: usize| body[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let u64_at = |at: usize| body[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if u32_at(4) != VERSION {
        return Err("its version is not known here");
    }
    if (body.len() - HEAD) as u64 != u64::from(u32_at(8)) * ENTRY as u64 {
        return Err("its length does not match its number of partitions");
    }
    let extent = |at: usize| Extent {
        offset: u64_at(at),
        stored: u64_at(at + 8),
        raw: u64_at(at + 16),
        records: u64_at(at + 24),
        crc: u32_at(at + 32),
    };
    Ok((HEAD..body.len()).step_by(ENTRY).map(extent).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes an output file of these partitions, and its index.
    pub(crate) fn write(output: &Path, partitions: &[&[u8]]) {
        let mut index = Vec::from(MAGIC);
        index.extend(VERSION.to_le_bytes());
        index.extend((partitions.len() as u32).to_le_bytes());
        let mut at = 0u64;
        for part in partitions {
            for number in [at, part.len() as u64, part.len() as u64 * 2, 3] {
                index.extend(number.to_le_bytes());
            }
            index.extend(crc32c::crc32c(part).to_le_bytes());
            at += part.len() as u64;
        }
        index.extend(crc32c::crc32c(&index).to_le_bytes());
        fs::write(output, partitions.concat()).unwrap();
        fs::write(path_of(output), index).unwrap();
    }

    #[test]
    fn reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("a.out");
        write(&output, &[b"one", b"", b"three"]);
        let extents = read(&output).unwrap();
        let spans: Vec<(u64, u64)> = extents.iter().map(|extent| (extent.offset, extent.stored)).collect();
        assert_eq!(spans, [(0, 3), (3, 0), (3, 5)]);
        assert_eq!(extents[2].crc, crc32c::crc32c(b"three"));
        assert_eq!((extents[2].raw, extents[2].records), (10, 3));
    }

    #[test]
    fn every_flipped_byte_and_every_short_length_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("a.out");
        write(&output, &[b"one", b"three"]);
        let good = fs::read(path_of(&output)).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(path_of(&output), &bad).unwrap();
            assert!(matches!(read(&output), Err(IndexError::Damaged { .. })), "byte {at}");
            fs::write(path_of(&output), &good[..at]).unwrap();
            assert!(matches!(read(&output), Err(IndexError::Damaged { .. })), "length {at}");
        }
        fs::write(path_of(&output), &good).unwrap();
        fs::write(&output, b"onethre").unwrap();
        assert!(matches!(read(&output), Err(IndexError::Damaged { .. })));
        fs::remove_file(path_of(&output)).unwrap();
        assert!(matches!(read(&output), Err(IndexError::Missing(_))));
    }
}
