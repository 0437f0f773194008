//! Checks that segments are read as they were written, and that damage is detected.

use super::*;
use bytes::Bytes;
use mrlib_api::TaskError;
use proptest::prelude::*;
use std::path::Path;

type Pair = (Vec<u8>, Vec<u8>);
type Record = (u32, Vec<u8>, Vec<u8>);

fn write(path: &Path, partitions: u32, compress: bool, records: &[Record]) -> Index {
    let mut writer = SegmentWriter::create(path, partitions, compress).unwrap();
    for (partition, key, value) in records {
        writer.append(*partition, key, value).unwrap();
    }
    let index = writer.finish().unwrap();
    index.write(path).unwrap();
    index
}

fn read(run: &Run) -> Result<Vec<Pair>, TaskError> {
    let mut reader = run.open()?;
    let mut found = Vec::new();
    while reader.next()? {
        found.push((reader.key().to_vec(), reader.value().to_vec()));
    }
    Ok(found)
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        (any::<u8>(), 0usize..300).prop_map(|(byte, length)| vec![byte; length]),
        (any::<u8>(), 20_000usize..90_000).prop_map(|(byte, length)| vec![byte; length]),
    ];
    let record = (0u32..5, prop::collection::vec(any::<u8>(), 0..200), bytes);
    prop::collection::vec(record, 0..60).prop_map(|mut records| {
        records.sort_by_key(|record| record.0);
        records
    })
}

fn of_partition(records: &[Record], partition: u32) -> Vec<Pair> {
    let own = records.iter().filter(|record| record.0 == partition);
    own.map(|(_, key, value)| (key.clone(), value.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn written_records_are_read_from_file_and_memory(records in records(), compress: bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let index = write(&path, 5, compress, &records);
        prop_assert_eq!(&Index::read(&path).unwrap(), &index);
        prop_assert_eq!(index.records(), records.len() as u64);
        for (partition, extent) in index.extents.iter().enumerate() {
            let own = records.iter().filter(|record| record.0 as usize == partition);
            let longest = own.map(|record| record.1.len() + record.2.len()).max().unwrap_or(0) as u64;
            prop_assert!(extent.block_max >= longest && extent.block_max <= extent.raw);
            prop_assert!(extent.block_max <= (BLOCK_BYTES as u64).max(longest + 10));
        }
        prop_assert_eq!(index.stored(), std::fs::metadata(&path).unwrap().len());
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        for partition in 0..5 {
            let wanted = of_partition(&records, partition);
            let run = Run::of_file(path.clone(), partition).unwrap();
            prop_assert_eq!(&read(&run).unwrap(), &wanted);
            let extent = run.extent;
            let own = bytes.slice(extent.offset as usize..(extent.offset + extent.stored) as usize);
            prop_assert_eq!(&read(&Run::in_memory("memory", own, extent)).unwrap(), &wanted);
        }
        prop_assert!(Run::of_file(path, 5).is_err());
    }

    #[test]
    fn reader_resumes_at_any_record(
        records in records(),
        compress: bool,
        at in any::<prop::sample::Index>(),
        wrong in 1u64..5,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let records: Vec<Record> = records.into_iter().map(|(_, key, value)| (0, key, value)).collect();
        prop_assume!(!records.is_empty());
        write(&path, 1, compress, &records);
        let run = Run::of_file(path, 0).unwrap();
        let at = at.index(records.len());
        let mut reader = run.open().unwrap();
        for _ in 0..=at {
            prop_assert!(reader.next().unwrap());
        }
        let place = reader.position();
        let mut again = run.open_at(place).unwrap();
        for (_, key, value) in &records[at..] {
            prop_assert!(again.next().unwrap());
            prop_assert_eq!((again.key(), again.value()), (key.as_slice(), value.as_slice()));
        }
        prop_assert!(!again.next().unwrap(), "more records than expected");
        // A wrong position gives an error at once or at the end.
        let place = RunPosition { block: place.block + wrong, ..place };
        if let Ok(mut reader) = run.open_at(place) {
            while reader.next().is_ok_and(|more| more) {}
        }
    }

    #[test]
    fn damaged_segment_is_an_error(
        records in records(),
        compress: bool,
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        cut: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let records: Vec<Record> = records.into_iter().map(|(_, key, value)| (0, key, value)).collect();
        let index = write(&path, 1, compress, &records);
        let mut bytes = std::fs::read(&path).unwrap();
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        std::fs::write(&path, &bytes).unwrap();
        let memory = Run::in_memory("memory", bytes.into(), index.extents[0]);
        prop_assert_eq!(Run::of_file(path.clone(), 0).is_err(), cut, "a file that is cut");
        let file = Run::new(Stored::File(path), index.extents[0], "file".into());
        for run in [file, memory] {
            prop_assert!(matches!(read(&run), Err(TaskError::Damaged { .. })), "byte {at}");
        }
    }

    /// A matching checksum must not lead to a panic: a malicious tracker could send malformed data.
    #[test]
    fn malformed_data_with_a_matching_checksum_does_not_panic(bytes in prop::collection::vec(0u8..20, 0..60), raw in 0u64..100) {
        let (stored, crc) = (bytes.len() as u64, crc32c::crc32c(&bytes));
        let extent = Extent { offset: 0, stored, raw, records: 1, block_max: raw, crc };
        let _ = read(&Run::in_memory("memory", bytes.into(), extent));
    }

    #[test]
    fn damaged_index_is_rejected(count in 0usize..4, at in any::<prop::sample::Index>(), flip in 1u8.., cut: bool) {
        let index = Index { extents: vec![Extent::default(); count] };
        let mut bytes = index.encode();
        prop_assert_eq!(&Index::decode(&bytes, Path::new("index")).unwrap(), &index);
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        let decoded = Index::decode(&bytes, Path::new("index"));
        prop_assert!(matches!(decoded, Err(TaskError::Damaged { .. })), "byte {at}");
    }
}

#[test]
fn verified_run_skips_the_checksum_but_checks_the_record_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let index = write(&path, 1, false, &[(0, b"key".to_vec(), b"value".to_vec())]);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    let run = Run::in_memory("memory", bytes.into(), index.extents[0]);
    assert!(read(&run).is_err());
    let run = Run { verified: true, ..run };
    assert_eq!(read(&run).unwrap(), [(b"key".to_vec(), b"valud".to_vec())]);
    let extent = Extent { records: 2, ..run.extent };
    assert!(read(&Run { extent, ..run }).is_err());
}

#[test]
fn reader_releases_the_memory_of_a_long_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let long = vec![7; 3 << 20];
    write(&path, 1, true, &[(0, b"a".to_vec(), long), (0, b"b".to_vec(), b"1".to_vec())]);
    let run = Run::of_file(path, 0).unwrap();
    assert_eq!(run.extent.reader_bytes(), run.extent.block_max + (1 << 20));
    let mut reader = run.open().unwrap();
    assert!(reader.next().unwrap() && reader.memory() > 3 << 20);
    assert!(reader.next().unwrap() && reader.memory() < 1 << 20);
    assert!(!reader.next().unwrap() && !reader.next().unwrap());
    assert_eq!((reader.memory(), reader.key(), reader.value()), (0, &b""[..], &b""[..]));
}

#[test]
fn long_records_and_empty_partitions_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let long = vec![7; 3 << 20];
    let records =
        [(1, b"a".to_vec(), b"1".to_vec()), (1, b"b".to_vec(), long.clone()), (3, long, b"".to_vec())];
    let index = write(&path, 6, true, &records);
    assert_eq!(index.extents.iter().map(|extent| extent.records).collect::<Vec<_>>(), [0, 2, 0, 1, 0, 0]);
    for partition in 0..6 {
        let run = Run::of_file(path.clone(), partition).unwrap();
        assert_eq!(read(&run).unwrap(), of_partition(&records, partition));
    }
}

#[test]
fn only_compressible_blocks_are_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let even: Vec<Record> = (0..9000u32).map(|at| (0, at.to_be_bytes().to_vec(), vec![b'x'; 60])).collect();
    assert!(write(&path, 1, true, &even).stored() * 3 < write(&path, 1, false, &even).stored());
    let mut number = 1u64;
    let mut random = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number ^ number >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()
    };
    let odd: Vec<Record> = (0..50_000).map(|_| (0, random(), random())).collect();
    let index = write(&path, 1, true, &odd);
    assert!(index.extents[0].stored <= index.extents[0].raw + index.extents[0].raw / 4096);
    assert_eq!(read(&Run::of_file(path, 0).unwrap()).unwrap().len(), odd.len());
}

/// The fuzz target `segment` found 69 bytes for which the reader allocated 825 MB.
#[test]
fn run_longer_than_its_file_is_refused_before_memory_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let index = write(&path, 1, false, &[(0, b"key".to_vec(), b"value".to_vec())]);
    let extent = Extent { stored: 1 << 40, raw: 1 << 40, block_max: 1 << 40, ..index.extents[0] };
    let run = Run::new(Stored::File(path), extent, "run".into());
    assert!(matches!(run.open(), Err(TaskError::Damaged { why: "the file ends early", .. })));
}

/// A reader allocates memory for the longest block in the index, whatever length a block claims.
#[test]
fn block_longer_than_the_index_allows_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let index = write(&path, 1, true, &[(0, b"key".to_vec(), vec![7; 300])]);
    let bytes = Bytes::from(std::fs::read(&path).unwrap());
    assert!(read(&Run::in_memory("run", bytes.clone(), index.extents[0])).is_ok());
    let extent = Extent { block_max: 200, ..index.extents[0] };
    assert!(matches!(read(&Run::in_memory("run", bytes, extent)), Err(TaskError::Damaged { .. })));
}

/// Sizes are limited, so that sums over all partitions cannot overflow.
#[test]
fn index_with_impossible_sizes_is_refused() {
    let extent = Extent { offset: 0, stored: 5, raw: 9, records: 2, block_max: 7, crc: 1 };
    let decoded =
        |extent: Extent| Index::decode(&Index { extents: vec![extent] }.encode(), Path::new("index"));
    assert!(decoded(extent).is_ok());
    for hostile in [
        Extent { stored: 1 << 50, ..extent },
        Extent { raw: u64::MAX, ..extent },
        Extent { records: u64::MAX, ..extent },
        Extent { block_max: u64::MAX, ..extent },
    ] {
        assert!(matches!(decoded(hostile), Err(TaskError::Damaged { .. })), "{hostile:?}");
    }
}
