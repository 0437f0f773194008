//! Generates and sorts records of 100 bytes with a key of 10 bytes.
//!
//! Records are printable lines, like those of `gensort -a`, so that GNU sort can read the same
//! file.

use crate::{input::map, random::Random};
use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    io::{BufWriter, Write},
    os::unix::fs::FileExt,
    path::Path,
    thread,
};

/// Bytes of a record, including its line end.
pub const RECORD_BYTES: usize = 100;
/// Bytes of the key at the start of a record.
pub const KEY_BYTES: usize = 10;
const BUFFER: usize = 10_000 * RECORD_BYTES;
/// Low bits of a sort key that contain the index of the record. The bits above contain the key.
const INDEX_BITS: u32 = 128 - 8 * KEY_BYTES as u32;

/// Writes as many complete records as fit into `bytes`.
pub fn make(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let failed = || format!("cannot write {}", path.display());
    let mut random = Random(seed);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).with_context(failed)?);
    let mut record = [b' '; RECORD_BYTES];
    record[98..].copy_from_slice(b"\r\n");
    for number in 0..bytes / RECORD_BYTES as u64 {
        for byte in &mut record[..KEY_BYTES] {
            *byte = b' ' + random.below(95) as u8;
        }
        for (at, byte) in record[12..44].iter_mut().enumerate() {
            *byte = DIGITS[(u128::from(number) >> (4 * (31 - at))) as usize & 15];
        }
        let mut filler = random.next();
        for four in record[46..98].chunks_exact_mut(4) {
            four.fill(DIGITS[filler as usize & 15]);
            filler >>= 4;
        }
        file.write_all(&record).with_context(failed)?;
    }
    file.flush().with_context(failed)
}

/// Writes the records of `file` sorted by key. The sort is stable.
pub fn sort(file: &Path, out: &Path) -> Result<()> {
    let input = map(file)?;
    let (records, rest) = input.as_chunks::<RECORD_BYTES>();
    ensure!(rest.is_empty(), "{}: the last record is truncated", file.display());
    let (first, second) = records.split_at(records.len() / 2);
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| sorted_keys(second, records.len() / 2));
        (sorted_keys(first, 0), second.join().expect("sorting does not panic"))
    });
    let out_file = File::create(out).with_context(|| format!("cannot write {}", out.display()))?;
    // Each thread merges and writes one half of the output.
    let half = records.len() / 2;
    let cut = count_from_first(&first, &second, half);
    let (low, high) =
        (merge(&first[..cut], &second[..half - cut]), merge(&first[cut..], &second[half - cut..]));
    let written = thread::scope(|scope| {
        let high = scope.spawn(|| write(&out_file, half, records, high));
        write(&out_file, 0, records, low).and(high.join().expect("writing does not panic"))
    });
    written.with_context(|| format!("cannot write {}", out.display()))
}

/// Returns the sorted keys, each with the index of its record in the low bits.
fn sorted_keys(records: &[[u8; RECORD_BYTES]], first: usize) -> Vec<u128> {
    let mut keys: Vec<u128> = Vec::with_capacity(records.len());
    keys.extend(records.iter().enumerate().map(|(at, record)| {
        let head = u128::from_be_bytes(*record.first_chunk().expect("a record is longer"));
        head >> INDEX_BITS << INDEX_BITS | (first + at) as u128
    }));
    keys.sort_unstable();
    keys
}

/// Returns how many of the `wanted` smallest keys of both lists come from `first`.
fn count_from_first(first: &[u128], second: &[u128], wanted: usize) -> usize {
    let (mut low, mut high) = (wanted.saturating_sub(second.len()), wanted.min(first.len()));
    while low < high {
        let middle = usize::midpoint(low, high);
        // `middle` keys of `first` suffice if the next key of `first` is greater than the last key
        // taken from `second`.
        if first[middle] > second[wanted - middle - 1] {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

fn merge<'a>(first: &'a [u128], second: &'a [u128]) -> impl Iterator<Item = u128> + use<'a> {
    let (mut one, mut other) = (0, 0);
    std::iter::from_fn(move || match (first.get(one), second.get(other)) {
        (Some(a), Some(b)) if b < a => {
            other += 1;
            Some(*b)
        }
        (Some(a), _) => {
            one += 1;
            Some(*a)
        }
        (None, b) => {
            other += 1;
            b.copied()
        }
    })
}

/// Writes the records that `keys` refer to, starting at record `at` of the output.
fn write(
    out: &File,
    at: usize,
    records: &[[u8; RECORD_BYTES]],
    keys: impl Iterator<Item = u128>,
) -> std::io::Result<()> {
    let mut offset = (at * RECORD_BYTES) as u64;
    let mut buffer = Vec::with_capacity(BUFFER);
    for key in keys {
        let index = key & !(u128::MAX << INDEX_BITS);
        buffer.extend_from_slice(&records[index as usize]);
        if buffer.len() == BUFFER {
            out.write_all_at(&buffer, offset)?;
            offset += BUFFER as u64;
            buffer.clear();
        }
    }
    out.write_all_at(&buffer, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<[u8; RECORD_BYTES]> {
        std::fs::read(path).unwrap().as_chunks().0.to_vec()
    }

    #[test]
    fn records_are_lines_with_different_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in");
        make(&path, 100_050, 1).unwrap();
        let records = lines(&path);
        assert_eq!(records.len(), 1000);
        for (number, record) in records.iter().enumerate() {
            assert!(
                record.ends_with(b"\r\n") && record[..98].iter().all(|byte| (b' '..=b'~').contains(byte))
            );
            assert_eq!(record[12..44], *format!("{number:032X}").as_bytes());
        }
        let mut keys: Vec<&[u8]> = records.iter().map(|record| &record[..KEY_BYTES]).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn sorting_equals_a_stable_sort_by_key() {
        let folder = tempfile::tempdir().unwrap();
        let (file, out) = (folder.path().join("in"), folder.path().join("out"));
        for count in [0, 1, 2, 3, 9_999, 30_001] {
            make(&file, count * 100, count).unwrap();
            let mut records = lines(&file);
            // Some keys are equal; some are equal only in their first eight bytes.
            for (at, record) in records.iter_mut().enumerate() {
                let same = [10, 8, 0][at % 3];
                record[..same].fill(b'x');
            }
            std::fs::write(&file, records.concat()).unwrap();
            sort(&file, &out).unwrap();
            records.sort_by(|one, other| one[..KEY_BYTES].cmp(&other[..KEY_BYTES]));
            assert!(lines(&out) == records, "{count} records");
        }
        std::fs::write(&file, "cut").unwrap();
        assert!(sort(&file, &out).is_err());
    }
}
