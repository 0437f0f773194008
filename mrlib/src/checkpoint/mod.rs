//! The state of a paused reduce: checkpointed, and resumed here or on another node.
//!
//! A checkpoint is a folder of its attempt's own, on several disks if need be:
//!
//! ```text
//! state      what it was doing and how far it was; written last, so that without it there is no checkpoint
//! memory     what was still to be read of runs in memory, one behind the other
//! run-N      a run that was on disk already: another name of the same file, or a copy of what was still to be read
//! ```
//!
//! `state` is `FMTC`, version u32, a [`proto::mr::Checkpoint`], and the CRC-32C of all that; little endian. It knows the
//! checksum of every run. What holds: a damaged or cut `state` is refused, never half understood; damage in a run is seen
//! before its reduce is done; a checkpoint is never changed, only taken up and, once nobody wants it, deleted.
//! Deliberately absent: anything that decides when to pause, or where to continue.

mod direct;
mod restore;
mod save;

#[cfg(test)]
mod tests;

pub use restore::{CheckpointSource, restore};
pub use save::{SavedRuns, begin, save, sync};

use crate::{
    engine::{RECORDS_COUNTER, SHUFFLE_COUNTER},
    error::TaskError,
    merge::OpenPass,
    segment::{Extent, Place, Run, Stored},
};
use bytes::{Buf as _, Bytes};
use prost::Message as _;
use proto::mr;
use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 4] = b"FMTC";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 8;
const CRC_BYTES: usize = 4;
/// Longer than that of any job that the JobTracker takes.
const BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 128 << 20 };

const STATE_FILE: &str = "state";
const MEMORY_FILE: &str = "memory";

/// Parts of a checkpoint as they are asked for by number: first the state itself,
pub(crate) const STATE_PART: u32 = 0;
/// then what was in memory,
pub(crate) const MEMORY_DIVISOR: u32 = 1;
/// then each run.
pub(crate) const RUN_PARTS: u32 = 2;

/// What a reduce is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// Fetching map output.
    #[default]
    Shuffle,
    /// Making runs fewer.
    Merge,
    /// Reducing.
    Reduce,
}

impl Stage {
    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shuffle => "shuffle",
            Self::Merge => "merge",
            Self::Reduce => "reduce",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Shuffle, Self::Merge, Self::Reduce].into_iter().find(|stage| stage.name() == name)
    }
}

/// A run, and in shuffle the map whose output it is.
#[derive(Debug, Clone)]
pub struct SourceRun {
    /// The run.
    pub run: Run,
    /// The attempt, its root, and where in that it begins.
    pub map: Option<(String, u32, u64)>,
}

/// Where a reduce stands between two steps.
#[derive(Debug, Clone, Default)]
pub struct ReduceState {
    /// What it is doing.
    pub stage: Stage,
    /// What it is doing it with, in the order in which equal keys are to come.
    pub runs: Vec<SourceRun>,
    /// So far.
    pub counters: BTreeMap<String, u64>,
    /// Output so far.
    pub pieces: Vec<String>,
    /// What its reducer keeps from key to key.
    pub reducer: Vec<u8>,
    /// The pass of a merge that was left off.
    pub open: Option<OpenPass>,
    /// Bytes of records that the last stage has read and that are not among the runs any more.
    pub consumed_bytes: u64,
    /// It was taken up in the last stage, and that has not gone on yet.
    pub is_resuming: bool,
}

/// Reads and verifies the state of the checkpoint that lies in these folders.
pub fn read(dirs: &[PathBuf]) -> Result<mr::Checkpoint, TaskError> {
    let (path, bytes) = read_state(dirs)?;
    decode(&bytes, &path)
}

fn read_state(dirs: &[PathBuf]) -> Result<(PathBuf, Vec<u8>), TaskError> {
    let path = find(dirs, STATE_FILE)?;
    let mut bytes = Vec::new();
    daemon::safe_open::open(&path)
        .and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(TaskError::io(format!("read {}", path.display())))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(damaged(&path, BYTES_MAX, "it is longer than any checkpoint"));
    }
    Ok((path, bytes))
}

/// What a checkpoint in these folders takes of the disks, as far as it is its own.
pub fn bytes(checkpoint: &mr::Checkpoint) -> u64 {
    let runs = checkpoint.runs.iter().filter(|run| !run.file.is_empty());
    let left = runs.map(|run| run.stored - run.start.map_or(0, |start| start.block));
    checkpoint.memory_bytes + left.sum::<u64>() + checkpoint.encoded_len() as u64
}

/// What others are told of a checkpoint: how far it is, and how large.
pub fn info(checkpoint: &mr::Checkpoint) -> mr::CheckpointInfo {
    let count = |name: &str| checkpoint.counters.get(name).copied().unwrap_or(0);
    mr::CheckpointInfo {
        stage: checkpoint.stage.clone(),
        bytes: bytes(checkpoint),
        bytes_in: count(SHUFFLE_COUNTER),
        records: count(RECORDS_COUNTER),
    }
}

/// A part of a checkpoint: the name of its file, none for a run that is in memory's, and where in that it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointPart {
    file: Option<Box<str>>,
    extent: Extent,
}

impl CheckpointPart {
    fn new(file: &str, stored: u64, crc: u32) -> Self {
        Self { file: Some(file.into()), extent: Extent { stored, crc, ..Extent::default() } }
    }

    /// Where it is, if the checkpoint lies in these folders.
    pub fn find(&self, dirs: &[PathBuf]) -> Result<(PathBuf, Extent), TaskError> {
        let file = self.file.as_ref().ok_or_else(|| missing_part("a run that is in memory"))?;
        Ok((find(dirs, file)?, self.extent))
    }
}

/// What is told of a part that there is not.
pub fn missing_part(what: impl std::fmt::Display) -> TaskError {
    TaskError::Program(format!("the checkpoint has no part {what}"))
}

/// All parts of the checkpoint in these folders, by number: for whoever ships it.
pub fn parts(dirs: &[PathBuf]) -> Result<Vec<CheckpointPart>, TaskError> {
    let (path, bytes) = read_state(dirs)?;
    let checkpoint = decode(&bytes, &path)?;
    let mut parts = vec![
        CheckpointPart::new(STATE_FILE, bytes.len() as u64, crc32c::crc32c(&bytes)),
        CheckpointPart::new(MEMORY_FILE, checkpoint.memory_bytes, checkpoint.memory_crc),
    ];
    parts.extend(checkpoint.runs.iter().map(|run| {
        let file = Some(run.file.as_str()).filter(|file| !file.is_empty());
        CheckpointPart { file: file.map(Box::from), extent: remaining_extent(run) }
    }));
    Ok(parts)
}

/// The part of a run that is still to be read.
fn remaining_extent(run: &mr::CheckpointRun) -> Extent {
    remainder_of(&run_of(run, Stored::Memory(Bytes::new()))).extent
}

fn find(dirs: &[PathBuf], name: &str) -> Result<PathBuf, TaskError> {
    let found = dirs.iter().map(|dir| dir.join(name)).find(|path| path.symlink_metadata().is_ok());
    found.ok_or_else(|| {
        let first = dirs.first().map(|dir| dir.display().to_string()).unwrap_or_default();
        TaskError::CheckpointCorrupt(format!("there is no {name} in {first}"))
    })
}

fn damaged(path: &Path, offset: u64, why: &'static str) -> TaskError {
    TaskError::Damaged { file: path.display().to_string(), offset, why }
}

/// The bytes of a `state` file.
pub fn encode(checkpoint: &mr::Checkpoint) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + checkpoint.encoded_len() + CRC_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&checkpoint.encode_to_vec());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Reads and verifies the bytes of a `state` file; `path` is named if they are damaged.
pub fn decode(bytes: &[u8], path: &Path) -> Result<mr::Checkpoint, TaskError> {
    let length = bytes.len() as u64;
    let Some((body, crc)) =
        bytes.split_last_chunk::<CRC_BYTES>().filter(|(body, _)| body.len() >= HEADER_BYTES)
    else {
        return Err(damaged(path, length, "it ends early"));
    };
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(damaged(path, length - CRC_BYTES as u64, "its checksum does not match"));
    }
    let (magic, mut rest) = body.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(damaged(path, 0, "it is no checkpoint"));
    }
    if rest.get_u32_le() != VERSION {
        return Err(damaged(path, MAGIC.len() as u64, "it is of another version"));
    }
    let checkpoint = mr::Checkpoint::decode(rest);
    let checkpoint = checkpoint.map_err(|_| damaged(path, HEADER_BYTES as u64, "it makes no sense"))?;
    let plain = |name: &str| !name.contains('/') && name != "." && name != "..";
    let named = Stage::of(&checkpoint.stage).is_some() && checkpoint.runs.iter().all(|run| plain(&run.file));
    if !named || !adds_up(&checkpoint) {
        return Err(damaged(path, HEADER_BYTES as u64, "it makes no sense"));
    }
    Ok(checkpoint)
}

/// Whether its numbers fit each other: whoever reckons with them need not ask again. A program may have written it.
fn adds_up(checkpoint: &mr::Checkpoint) -> bool {
    let runs = &checkpoint.runs;
    let lies = |run: &mr::CheckpointRun| {
        let start = run.start.unwrap_or_default();
        run.offset.checked_add(run.stored).is_some()
            && start.block <= run.stored
            && start.raw <= run.raw
            && start.raw.checked_add(start.at).is_some()
            && start.records <= run.records
    };
    let sum = |first: u64, of: fn(&mr::CheckpointRun) -> u64| {
        runs.iter().try_fold(first, |sum, run| sum.checked_add(of(run))).is_some_and(|sum| sum < 1 << 63)
    };
    runs.iter().all(lies)
        && sum(checkpoint.memory_bytes, |run| run.stored)
        && sum(checkpoint.consumed_bytes, |run| run.raw)
        && sum(0, |run| run.records)
}

/// What is left of a part of a run, as a run of its own that begins with the block at hand.
fn remainder_of(part: &Run) -> Run {
    let mut rest = Run { more: Vec::new(), ..part.clone() };
    if let Some(start) = part.start {
        let extent = &mut rest.extent;
        let block = start.block.min(extent.stored);
        extent.offset += block;
        extent.stored -= block;
        extent.raw -= start.raw.min(extent.raw);
        extent.records -= start.records.min(extent.records);
        // The checksum of a whole is that of its first part, moved on, and that of its second.
        extent.crc ^= crc32c::crc32c_combine(start.crc, 0, extent.stored as usize);
        rest.start = Some(Place { at: start.at, ..Place::default() });
    }
    rest
}

fn entry(file: String, run: &Run, run_of_map: &SourceRun, more: bool) -> mr::CheckpointRun {
    let Extent { offset, stored, raw, records, block_max, crc } = run.extent;
    let (map, root, map_start) = run_of_map.map.clone().unwrap_or_default();
    let place = |place: Place| {
        let Place { block, raw, at, records, crc } = place;
        mr::CheckpointPosition { block, raw, at, records, crc }
    };
    let start = run.start.map(place);
    mr::CheckpointRun {
        file,
        offset,
        stored,
        raw,
        records,
        block_max,
        crc,
        start,
        map,
        root,
        map_start,
        more,
    }
}

fn run_of(entry: &mr::CheckpointRun, stored: Stored) -> Run {
    let mr::CheckpointRun { offset, stored: bytes, raw, records, block_max, crc, .. } = *entry;
    let extent = Extent { offset, stored: bytes, raw, records, block_max, crc };
    let name = [&entry.map, &entry.file].into_iter().find(|name| !name.is_empty());
    let name = name.map_or(MEMORY_FILE, String::as_str);
    Run { start: start_of(entry), ..Run::new(stored, extent, name.into()) }
}

fn start_of(run: &mr::CheckpointRun) -> Option<Place> {
    let place = |place: mr::CheckpointPosition| {
        let mr::CheckpointPosition { block, raw, at, records, crc } = place;
        Place { block, raw, at, records, crc }
    };
    run.start.map(place)
}
