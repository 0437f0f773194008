//! Compares splits with the whole file, and every format with a simple implementation.

use super::*;
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use std::io::Write;

/// Bytes in memory, returned in chunks of a given length.
struct Memory {
    bytes: Vec<u8>,
    at: usize,
    chunk_bytes: usize,
}

impl ByteSource for Memory {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn seek(&mut self, at: u64) -> Result<(), TaskError> {
        self.at = self.bytes.len().min(at as usize);
        Ok(())
    }

    fn next(&mut self) -> Result<&[u8], TaskError> {
        let start = self.at;
        self.at = self.bytes.len().min(start + self.chunk_bytes);
        Ok(&self.bytes[start..self.at])
    }

    fn consumed(&self) -> u64 {
        self.at as u64
    }
}

type Found = (u64, Vec<u8>, Vec<u8>);

fn spec(range: Range<u64>, format: InputFormat) -> SplitSpec {
    SplitSpec {
        path: "/file".into(),
        range,
        format,
        codec: Codec::Auto,
        record_bytes_max: 1 << 20,
        skip_bad: false,
    }
}

fn open(bytes: &[u8], chunk_bytes: usize, spec: SplitSpec) -> Box<dyn RecordSource> {
    open_split(spec, Box::new(Memory { bytes: bytes.to_vec(), at: 0, chunk_bytes })).unwrap()
}

fn drain(records: &mut dyn RecordSource) -> Result<Vec<Found>, TaskError> {
    let mut found = Vec::new();
    while records.pump(&mut |record| {
        found.push((record.offset, record.key.to_vec(), record.value.to_vec()));
        Ok(Flow::Go)
    })? {}
    Ok(found)
}

fn read_all(bytes: &[u8], chunk_bytes: usize, spec: SplitSpec) -> Vec<Found> {
    drain(&mut *open(bytes, chunk_bytes, spec)).unwrap()
}

/// Reads all records of a file with a simple implementation of the formats.
fn model(bytes: &[u8], format: InputFormat) -> Vec<Found> {
    if let InputFormat::Fixed { record, key } = format {
        let chunks = bytes.chunks(record).enumerate();
        return chunks
            .map(|(at, bytes)| ((at * record) as u64, bytes[..key].to_vec(), bytes[key..].to_vec()))
            .collect();
    }
    let mut found = Vec::new();
    let mut at = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = line.strip_suffix(b"\n").map_or(line, |text| text.strip_suffix(b"\r").unwrap_or(text));
        let (key, value) = if format == InputFormat::Lines {
            ((at as u64).to_be_bytes().to_vec(), text.to_vec())
        } else {
            let mut parts = text.splitn(2, |byte| *byte == b'\t');
            let mut part = || parts.next().unwrap_or(&[]).to_vec();
            (part(), part())
        };
        found.push((at as u64, key, value));
        at += line.len();
    }
    found
}

fn format() -> impl Strategy<Value = InputFormat> {
    prop_oneof![
        3 => Just(InputFormat::Lines),
        1 => Just(InputFormat::KeyValueLines),
        2 => (1usize..6, 0usize..6).prop_map(|(record, key)| InputFormat::Fixed { record, key: key.min(record) })
    ]
}

fn file(format: InputFormat) -> impl Strategy<Value = (InputFormat, Vec<u8>)> {
    let byte = prop::sample::select(&b"ab\n\n\r\t\0\xff\xef"[..]);
    prop::collection::vec(byte, 0..40).prop_map(move |mut bytes| {
        if let InputFormat::Fixed { record, .. } = format {
            bytes.truncate(bytes.len() / record * record);
        }
        (format, bytes)
    })
}

proptest! {
    #[test]
    fn all_splits_together_have_the_records_of_the_file((format, bytes) in format().prop_flat_map(file), chunk_bytes in 1usize..50, cuts in prop::collection::vec(0u64..41, 0..8)) {
        let length = bytes.len() as u64;
        let whole = read_all(&bytes, chunk_bytes, spec(0..length, format));
        prop_assert_eq!(&whole, &model(&bytes, format));
        for point in 0..=length {
            let mut parts = read_all(&bytes, chunk_bytes, spec(0..point, format));
            parts.extend(read_all(&bytes, chunk_bytes, spec(point..length, format)));
            prop_assert_eq!(&parts, &whole, "split at {}", point);
        }
        let mut cuts: Vec<u64> = cuts.into_iter().map(|cut| cut.min(length)).chain([0, length]).collect();
        cuts.sort_unstable();
        let parts: Vec<Found> =
            cuts.windows(2).flat_map(|cut| read_all(&bytes, chunk_bytes, spec(cut[0]..cut[1], format))).collect();
        prop_assert_eq!(&parts, &whole, "cut at {:?}", cuts);
    }

    #[test]
    fn stopped_split_and_its_remainder_have_all_records(
        (format, bytes) in format().prop_flat_map(file),
        chunk_bytes in 1usize..50,
        range in (0u64..41, 0u64..41),
        stop in 0usize..20,
    ) {
        let range = range.0.min(range.1)..range.0.max(range.1).min(bytes.len() as u64);
        let wanted = read_all(&bytes, chunk_bytes, spec(range.clone(), format));
        let mut records = open(&bytes, chunk_bytes, spec(range.clone(), format));
        let mut found = Vec::new();
        let mut stopped = false;
        while !stopped && records.pump(&mut |record| {
            found.push((record.offset, record.key.to_vec(), record.value.to_vec()));
            stopped = found.len() > stop;
            Ok(if stopped { Flow::Stop } else { Flow::Go })
        }).unwrap() {}
        let position = records.position();
        prop_assert_eq!(&read_all(&bytes, chunk_bytes, spec(range.start..position.max(range.start), format)), &found);
        let rest = read_all(&bytes, chunk_bytes, spec(position..range.end, format));
        prop_assert_eq!(&drain(&mut *records).unwrap(), &rest, "the stopped reader did not continue");
        found.extend(rest);
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn long_lines_are_reported_or_skipped(
        (_, bytes) in file(InputFormat::Lines), chunk_bytes in 1usize..50, limit in 1u64..6, start in 0u64..20,
    ) {
        let range = start..(bytes.len() as u64).max(start);
        let mut limited = spec(range.clone(), InputFormat::Lines);
        limited.record_bytes_max = limit;
        let all = read_all(&bytes, chunk_bytes, spec(range, InputFormat::Lines));
        let long = all.iter().filter(|record| record.2.len() as u64 > limit);
        match drain(&mut *open(&bytes, chunk_bytes, limited.clone())) {
            Ok(found) => prop_assert_eq!(&found, &all),
            Err(TaskError::Record { source_path, offset, .. }) => {
                prop_assert_eq!(source_path, "/file");
                prop_assert_eq!(Some(offset), long.clone().next().map(|record| record.0));
            }
            Err(other) => panic!("{other}"),
        }
        limited.skip_bad = true;
        let mut records = open(&bytes, chunk_bytes, limited);
        let found = drain(&mut *records).unwrap();
        prop_assert_eq!(records.unreadable().records, long.clone().count() as u64);
        prop_assert_eq!(found.len() as u64 + records.unreadable().records, all.len() as u64);
        prop_assert!(found.iter().all(|record| record.2.len() as u64 <= limit));
    }

    #[test]
    fn gzip_members_are_concatenated_and_truncation_is_an_error(
        (_, bytes) in file(InputFormat::Lines),
        cut in any::<prop::sample::Index>(),
        chunk_bytes in 1usize..50,
        damage in any::<prop::sample::Index>(),
    ) {
        let mut stored = Vec::new();
        let mut ends = Vec::new();
        let cut = cut.index(bytes.len() + 1);
        for member in [&bytes[..cut], &bytes[cut..]] {
            let mut encoder = GzEncoder::new(&mut stored, Compression::default());
            encoder.write_all(member).unwrap();
            encoder.finish().unwrap();
            ends.push(stored.len());
        }
        let named = |range| SplitSpec { path: "/file.gz".into(), ..spec(range, InputFormat::Lines) };
        let length = stored.len() as u64;
        prop_assert_eq!(read_all(&stored, chunk_bytes, named(0..length)), model(&bytes, InputFormat::Lines));
        let padded = [stored.as_slice(), &[0; 700]].concat();
        prop_assert_eq!(read_all(&padded, chunk_bytes, named(0..length + 700)), model(&bytes, InputFormat::Lines));
        let garbage = [stored.as_slice(), &[0, 7, 7]].concat();
        let error = drain(&mut *open(&garbage, chunk_bytes, named(0..length + 3))).unwrap_err().to_string();
        prop_assert!(error.contains("bytes that are not gzip follow the last member"), "{}", error);
        let source = Memory { bytes: Vec::new(), at: 0, chunk_bytes };
        let tail = open_split(named(1..2), Box::new(source));
        prop_assert!(tail.is_err());
        stored.truncate(1 + damage.index(stored.len() - 1));
        match drain(&mut *open(&stored, chunk_bytes, named(0..length))) {
            Ok(found) => {
                prop_assert!(ends.contains(&stored.len()), "cut at {}", stored.len());
                prop_assert_eq!(found, model(&bytes[..cut], InputFormat::Lines));
            }
            Err(error) => prop_assert!(matches!(error, TaskError::Fatal(_)), "{}", error),
        }
    }
}

#[test]
fn error_distinguishes_damaged_gzip_from_other_formats() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let lines: Vec<String> = (0..20_000u64).map(|at| format!("{}\n", at * at)).collect();
    encoder.write_all(lines.concat().as_bytes()).unwrap();
    let mut stored = encoder.finish().unwrap();
    let middle = stored.len() / 2;
    stored[middle..middle + 100].fill(0xff);
    let named = SplitSpec { path: "/file.gz".into(), ..spec(0..stored.len() as u64, InputFormat::Lines) };
    let why = |bytes: &[u8]| drain(&mut *open(bytes, 50, named.clone())).unwrap_err().to_string();
    let damaged = why(&stored);
    assert!(damaged.contains("the gzip stream is damaged"), "{damaged}");
    let other = why(b"plain text, not gzip");
    assert!(other.contains("it is not a gzip file"), "{other}");
}

#[test]
fn line_longer_than_a_chunk_is_read_from_a_local_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut bytes = b"first\n".to_vec();
    bytes.resize(8 << 20, b'x');
    bytes.extend_from_slice(b"\r\nlast");
    std::fs::write(&path, &bytes).unwrap();
    let length = bytes.len() as u64;
    let open = |range, limit| {
        let spec = SplitSpec { record_bytes_max: limit, ..spec(range, InputFormat::Lines) };
        open_split(spec, Box::new(LocalFile::open(&path).unwrap())).unwrap()
    };
    assert_eq!(drain(&mut *open(0..length, 16 << 20)).unwrap(), model(&bytes, InputFormat::Lines));
    let error = drain(&mut *open(0..length, 1 << 20)).unwrap_err();
    assert_eq!(error.to_string(), "record at /file @ byte 6: longer than record.bytes.max = 1048576");
    let lines = |range| drain(&mut *open(range, 16 << 20)).unwrap().len();
    assert_eq!([lines(0..7), lines(7..length - 4), lines(length - 4..length)], [2, 0, 1]);
    std::fs::write(&path, b"").unwrap();
    assert!(drain(&mut *open(0..0, 1)).unwrap().is_empty());
    assert!(LocalFile::open(&dir.path().join("none")).is_err());
}

#[test]
fn whole_file_is_one_record_of_its_first_split() {
    let whole = |bytes: &[u8], range, limit| {
        let spec = SplitSpec { record_bytes_max: limit, ..spec(range, InputFormat::WholeFile) };
        drain(&mut *open(bytes, 3, spec))
    };
    assert_eq!(whole(b"a\nb\0c", 0..5, 5).unwrap(), [(0, b"/file".to_vec(), b"a\nb\0c".to_vec())]);
    assert_eq!(whole(b"", 0..0, 5).unwrap(), [(0, b"/file".to_vec(), Vec::new())]);
    assert!(whole(b"abcde", 2..5, 5).unwrap().is_empty(), "the whole file belongs to the first split");
    assert!(matches!(whole(b"abcdef", 0..6, 5), Err(TaskError::Record { offset: 0, .. })));
}

#[test]
fn incomplete_last_record_is_an_error_or_is_skipped() {
    let fixed = |record, key| SplitSpec { ..spec(0..8, InputFormat::Fixed { record, key }) };
    let error = drain(&mut *open(b"abcdefgh", 5, fixed(3, 1))).unwrap_err();
    assert_eq!(error.to_string(), "record at /file @ byte 6: the file ends 2 bytes into a record of 3");
    let mut records = open(b"abcdefgh", 5, SplitSpec { skip_bad: true, ..fixed(3, 1) });
    assert_eq!((drain(&mut *records).unwrap().len(), records.unreadable().records), (2, 1));
    for (record, key) in [(0, 0), (3, 4)] {
        let source = Box::new(Memory { bytes: Vec::new(), at: 0, chunk_bytes: 1 });
        assert!(open_split(fixed(record, key), source).is_err());
    }
}
