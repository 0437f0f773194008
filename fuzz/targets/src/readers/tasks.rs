//! Targets for readers of files that tasks write or read: map outputs and their index, checkpoints,
//! split keys, input files.

use super::{SMALL_LIMIT, Scratch, with_valid_crc};
use crate::{
    Damage, Limit, Target,
    folder::{pack, unpack},
};
use bytes::{Buf, BufMut, Bytes};
use engine::{
    checkpoint::{self, CheckpointSource, ReduceState, SourceRun, Stage},
    fetch::RemoteCheckpoint,
    input::{ByteSource, Flow, SplitSpec, open_split},
    partition::{RangePartitioner, encode_splits},
    scratch,
    segment::{Extent, Index, Run, SegmentWriter, Stored},
};
use mrlib_api::{InputFormat, KeyOrder, Liveness, TaskControl, TaskError, codec::Codec};
use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::Arc,
};

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "segment",
        reads: "engine::segment::SegmentReader, from memory and from a file",
        seeds: segment_seeds,
        body: check_segment,
        damage: Damage::Refused,
        // lz4 expands a block at most 256 times. Two copies of the records are in memory at a time,
        // to compare them.
        memory: Limit { fixed: 8 << 20, per_byte: 2048 },
    },
    Target {
        name: "segment_index",
        reads: "engine::segment::Index::decode",
        seeds: index_seeds,
        body: check_index,
        damage: Damage::Refused,
        memory: SMALL_LIMIT,
    },
    Target {
        name: "checkpoint",
        reads: "engine::checkpoint: decode, parts, restore, and the restored runs",
        seeds: checkpoint_seeds,
        body: check_checkpoint,
        damage: Damage::Refused,
        memory: Limit { fixed: 8 << 20, per_byte: 2048 },
    },
    Target {
        name: "split_keys",
        reads: "engine::partition::RangePartitioner::decode",
        seeds: || {
            let sample: Vec<Vec<u8>> = (0..50u32).map(|key| key.to_be_bytes().to_vec()).collect();
            vec![encode_splits(sample, 7, KeyOrder::Bytes), encode_splits(Vec::new(), 3, KeyOrder::Bytes)]
        },
        body: check_split_keys,
        damage: Damage::Unnoticed,
        memory: SMALL_LIMIT,
    },
    Target {
        name: "input_records",
        reads: "engine::input::open_split: lines, fixed records, gzip",
        seeds: input_seeds,
        body: check_input_records,
        damage: Damage::Unnoticed,
        // Memory for two records of the maximum length, and for the windows of gzip.
        memory: Limit { fixed: 4 << 20, per_byte: 64 },
    },
];

/// Writes an extent at the start of an input.
fn put_extent(extent: &Extent, out: &mut Vec<u8>) {
    for number in [extent.offset, extent.stored, extent.raw, extent.records, extent.block_max] {
        out.put_u64_le(number);
    }
    out.put_u32_le(extent.crc);
}

/// Reads the extent at the start of an input.
fn take_extent(input: &mut &[u8]) -> Option<Extent> {
    let mut number = || input.try_get_u64_le().ok();
    let (offset, stored, raw, records, block_max) = (number()?, number()?, number()?, number()?, number()?);
    Some(Extent { offset, stored, raw, records, block_max, crc: input.try_get_u32_le().ok()? })
}

/// Returns a segment with one partition: its bytes and its extent.
pub(super) fn sample_segment(records: u32, value: &[u8], compress: bool) -> (Vec<u8>, Extent) {
    Scratch::with(|scratch| {
        let path = scratch.path().join("made");
        let mut writer = SegmentWriter::create(&path, 1, compress).expect("a file");
        for number in 0..records {
            writer.append(0, format!("key{number:06}").as_bytes(), value).expect("the disk has space");
        }
        let extent = writer.finish().expect("the disk has space").extents[0];
        (fs::read(&path).expect("a file that was just written can be read"), extent)
    })
}

fn segment_seeds() -> Vec<Vec<u8>> {
    let with = |records, value: &[u8], compress| {
        let (bytes, extent) = sample_segment(records, value, compress);
        let mut input = Vec::new();
        put_extent(&extent, &mut input);
        input.extend_from_slice(&bytes);
        input
    };
    vec![with(0, b"", true), with(3, b"value", false), with(40, b"value", true), with(9, &[7; 300], true)]
}

/// Keys and values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;
/// Offsets, keys and values.
type Records = Vec<(u64, Vec<u8>, Vec<u8>)>;

/// Reads the records of a run. Also checks that reading from the position of a record gives the
/// same records from there on.
pub(super) fn records_of(run: &Run) -> Result<Pairs, TaskError> {
    let (mut records, mut positions) = (Vec::new(), Vec::new());
    let mut reader = run.open()?;
    while reader.next()? {
        records.push((reader.key().to_vec(), reader.value().to_vec()));
        positions.push(reader.position());
    }
    if run.start.is_none() && !positions.is_empty() {
        let from = run.extent.crc as usize % positions.len();
        let mut reader = run.open_at(positions[from]).expect("the position of a record is valid");
        for (key, value) in &records[from..] {
            assert!(
                reader.next().expect("a record that was read before is valid"),
                "reading from a position gives fewer records"
            );
            assert_eq!(
                (reader.key(), reader.value()),
                (&key[..], &value[..]),
                "reading from a position gives different records"
            );
        }
        assert!(
            !reader.next().expect("the end is read as before"),
            "reading from a position gives more records"
        );
    }
    Ok(records)
}

/// Checks that an error is of kind `Damaged`.
fn assert_damaged(error: &TaskError) {
    assert!(matches!(error, TaskError::Damaged { .. }), "not an error of kind Damaged: {error}");
}

/// Packs records into one byte string, for comparison.
fn pack_records(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    pack(records.iter().flat_map(|(key, value)| [("key", key), ("value", value)]))
}

fn check_segment(input: &[u8]) -> Option<Vec<u8>> {
    let mut rest = input;
    let extent = take_extent(&mut rest)?;
    let read = |extent: Extent| {
        let memory = records_of(&Run::in_memory("memory", Bytes::copy_from_slice(rest), extent));
        let file = Scratch::with(|scratch| scratch.file("segment", rest));
        let open = Stored::Open(Arc::new(File::open(file).expect("a temporary file can be opened")));
        let file = records_of(&Run::new(open, Extent { offset: 0, ..extent }, "file".into()));
        for error in [memory.as_ref().err(), file.as_ref().err()].into_iter().flatten() {
            assert_damaged(error);
        }
        // A file may be longer than its partition.
        if rest.len() as u64 == extent.stored {
            assert_eq!(
                memory.as_ref().ok(),
                file.as_ref().ok(),
                "reading from memory and from a file gives different records"
            );
        }
        let _ = extent.reader_bytes();
        memory.ok()
    };
    // Also reads the segment with a correct checksum and length, as another program could write it.
    read(Extent { stored: rest.len() as u64, crc: crc32c::crc32c(rest), ..extent });
    read(extent).map(|records| pack_records(&records))
}

fn index_seeds() -> Vec<Vec<u8>> {
    let extents = |count: u64| {
        let extent =
            |at: u64| Extent { offset: at * 50, stored: 50, raw: 90, records: at, block_max: 80, crc: 7 };
        Index { extents: (0..count).map(extent).collect() }
    };
    [0, 1, 5].map(|count| extents(count).encode()).to_vec()
}

fn check_index(input: &[u8]) -> Option<Vec<u8>> {
    let read = |bytes: &[u8]| match Index::decode(bytes, Path::new("index")) {
        Ok(index) => {
            assert_eq!(index.encode(), bytes, "encoding an accepted input again gives different bytes");
            let _ = (index.records(), index.stored());
            for extent in &index.extents {
                let _ = extent.reader_bytes();
            }
            Some(bytes.to_vec())
        }
        Err(error) => {
            assert_damaged(&error);
            None
        }
    };
    read(&with_valid_crc(input));
    read(input)
}

const ATTEMPT: &str = "job_1.r2.0";

fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let (bytes, extent) = sample_segment(30, b"value", true);
    let memory = Run::in_memory("memory", Bytes::from(bytes), extent);
    let empty = Run::in_memory("nothing", Bytes::new(), Extent::default());
    let half = {
        let mut reader = memory.open().expect("the segment is valid");
        for _ in 0..15 {
            assert!(reader.next().expect("the segment is valid"));
        }
        Run { start: Some(reader.position()), ..memory.clone() }
    };
    let map = |number: u32| Some((format!("job_1.m{number}.0"), number, 7));
    let run_of_map = |runs: Vec<Run>| {
        runs.into_iter().zip(0..).map(|(run, number)| SourceRun { run, map: map(number) }).collect::<Vec<_>>()
    };
    let shuffle = ReduceState { runs: run_of_map(vec![memory.clone(), empty]), ..ReduceState::default() };
    let reduce = ReduceState {
        stage: Stage::Reduce,
        runs: run_of_map(vec![half, memory.clone()]),
        counters: [("RECORDS".to_owned(), 12)].into(),
        pieces: vec!["/out/part-r-00000.0".into()],
        reducer: b"state".to_vec(),
        consumed_bytes: 11,
        is_resuming: true,
        ..ReduceState::default()
    };
    [ReduceState::default(), shuffle, reduce]
        .iter()
        .map(|state| {
            let folder = tempfile::tempdir().expect("a folder");
            let dirs = [folder.path().join("checkpoint")];
            checkpoint::save(&dirs, ATTEMPT, 2, state).expect("the disk has space");
            let content = |name: &str| fs::read(dirs[0].join(name)).unwrap_or_default();
            pack([("state", content("state")), ("memory", content("memory"))])
        })
        .collect()
}

fn check_checkpoint(input: &[u8]) -> Option<Vec<u8>> {
    let files = unpack(input);
    let content =
        |name: &str| files.iter().find(|(known, _)| known == name).map_or(&[][..], |(_, bytes)| bytes);
    let (state, memory) = (content("state"), content("memory"));
    restore(&with_valid_crc(state), memory);
    restore(state, memory)
}

/// Reads a checkpoint as the tracker and the next attempt do, and returns its content.
fn restore(state: &[u8], memory: &[u8]) -> Option<Vec<u8>> {
    let entry = match checkpoint::decode(state, Path::new("state")) {
        Ok(entry) => entry,
        Err(error) => {
            assert_damaged(&error);
            return None;
        }
    };
    let (again, _) = (checkpoint::encode(&entry), checkpoint::info(&entry));
    assert_eq!(
        checkpoint::decode(&again, Path::new("state")).expect("a checkpoint that was just encoded is valid"),
        entry
    );
    Scratch::with(|scratch| {
        scratch.file("state", state);
        scratch.file("memory", memory);
        let dirs = vec![scratch.path().to_owned()];
        let parts = checkpoint::parts(&dirs).expect("a decoded checkpoint has parts");
        assert_eq!(parts.len(), entry.runs.len() + 2);
        let source = CheckpointSource { attempt: entry.attempt.clone(), dirs, addr: String::new() };
        let nowhere = scratch::Scratch::new(vec!["/nowhere".into()]);
        let mut start_transfer =
            RemoteCheckpoint::new("", b"", ATTEMPT, TaskControl::default(), Liveness::default());
        let state = checkpoint::restore(&source, entry.partition, &nowhere, &mut start_transfer);
        let state = match state {
            Ok(state) => state,
            Err(TaskError::CheckpointCorrupt(_)) => return None,
            Err(error) => panic!("not an error of kind CheckpointCorrupt: {error}"),
        };
        let mut content = Vec::new();
        for run in state.runs.iter().flat_map(|run_of_map| run_of_map.run.parts()) {
            match records_of(run) {
                Ok(records) => content.extend(pack_records(&records)),
                Err(error) => {
                    // A run may name a file that contains no run. A file that is too short is
                    // reported as damaged.
                    assert_damaged(&error);
                    return None;
                }
            }
        }
        content.extend_from_slice(&again);
        Some(content)
    })
}

fn check_split_keys(input: &[u8]) -> Option<Vec<u8>> {
    let ranges = match RangePartitioner::decode(input, KeyOrder::Bytes) {
        Ok(ranges) => ranges,
        Err(error) => {
            assert_damaged(&error);
            return None;
        }
    };
    let partitions = ranges.partitions();
    for key in [&b""[..], b"a", &[0xff; 9], input] {
        let chosen = mrlib_api::Partitioner::partition(&ranges, key, b"", partitions);
        assert!(chosen < partitions, "{chosen} of {partitions} partitions");
    }
    Some(input.to_vec())
}

/// A file in memory that is read in pieces of `piece_bytes` bytes.
struct MemorySource {
    bytes: Vec<u8>,
    at: usize,
    piece_bytes: usize,
}

impl ByteSource for MemorySource {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn seek(&mut self, at: u64) -> Result<(), TaskError> {
        self.at = (at as usize).min(self.bytes.len());
        Ok(())
    }

    fn next(&mut self) -> Result<&[u8], TaskError> {
        let from = self.at;
        self.at = (from + self.piece_bytes).min(self.bytes.len());
        Ok(&self.bytes[from..self.at])
    }

    fn consumed(&self) -> u64 {
        self.at as u64
    }
}

fn input_seeds() -> Vec<Vec<u8>> {
    let text = b"first line\r\nsecond\tline\n\nlast without an end".to_vec();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(&text.repeat(40)).expect("writing to memory does not fail");
    let packed = packer.finish().expect("writing to memory does not fail");
    let two_members = packed.repeat(2);
    vec![text, packed, two_members, vec![0; 3000]]
}

const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Returns the records in a range of a file: offset, key, value.
fn records_in(
    bytes: &[u8],
    path: &str,
    format: InputFormat,
    range: std::ops::Range<u64>,
) -> Result<Records, TaskError> {
    let piece_bytes = 1 + bytes.len() % 700;
    let source = Box::new(MemorySource { bytes: bytes.to_vec(), at: 0, piece_bytes });
    let spec = SplitSpec {
        path: path.into(),
        range,
        format,
        codec: Codec::Auto,
        record_bytes_max: RECORD_BYTES_MAX,
        skip_bad: false,
    };
    let mut records = open_split(spec, source)?;
    let (mut found, mut total) = (Vec::new(), 0);
    while records.pump(&mut |record| {
        assert!(record.value.len() as u64 <= RECORD_BYTES_MAX, "a record longer than the limit");
        total += record.value.len();
        // Only the first records are kept, because the test measures the memory of the reader.
        if total < 1 << 20 && found.len() < 1 << 12 {
            found.push((record.offset, record.key.to_vec(), record.value.to_vec()));
        }
        Ok(Flow::Go)
    })? {}
    Ok(found)
}

fn check_input_records(input: &[u8]) -> Option<Vec<u8>> {
    let length = input.len() as u64;
    for format in [InputFormat::Lines, InputFormat::KeyValueLines, InputFormat::Fixed { record: 7, key: 2 }] {
        let Ok(whole) = records_in(input, "/in", format, 0..length) else { continue };
        if whole.len() == 1 << 12 {
            continue;
        }
        // Checks that each record is read once, for a split at any position.
        let middle = u64::from(crc32c::crc32c(input)) % (length + 1);
        let mut parts = records_in(input, "/in", format, 0..middle).expect("the unsplit input is readable");
        parts
            .extend(records_in(input, "/in", format, middle..length).expect("the unsplit input is readable"));
        assert_eq!(parts, whole, "{format:?}: a split at {middle} gives different records");
    }
    let whole = records_in(input, "/in", InputFormat::WholeFile, 0..length);
    let unpacked = records_in(input, "/in.gz", InputFormat::Lines, 0..length).or(whole);
    unpacked.ok().map(|_| Vec::new())
}
