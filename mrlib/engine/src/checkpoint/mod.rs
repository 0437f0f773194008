//! The checkpoint of a paused reduce: saved on disk, and restored on the same or another node.
//!
//! A checkpoint has its own folder on one or more disks of the node:
//!
//! ```text
//! state      the stage and position of the reduce; written last: without it there is no checkpoint
//! memory     the unread part of all runs that were in memory, one after the other
//! run-N      a run that was on disk: a hard link, or a copy of its unread part
//! ```
//!
//! `state` is `FMTC`, version u32, a [`proto::mr::Checkpoint`] and the CRC-32C of all bytes before
//! it. Numbers are little endian. It contains the checksum of every run.
//!
//! Invariants: a damaged or truncated `state` is refused as a whole. Damage in a run is detected
//! before the reduce has ended. A checkpoint is never changed; it is restored any number of times,
//! and deleted when it is no longer needed. The JobTracker decides when to pause and where to
//! resume.

mod direct;
mod restore;
mod save;

#[cfg(test)]
mod tests;

pub use restore::{CheckpointSource, restore};
pub use save::{SavedRuns, begin_save, save, sync};
pub use types::Stage;

use crate::{
    merge::OpenPass,
    segment::{Extent, Run, RunPosition, Stored},
};
use bytes::{Buf as _, Bytes};
use mrlib_api::TaskError;
use prost::Message as _;
use proto::mr;
use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
};

/// The counter of bytes that a reduce has fetched.
pub(crate) const SHUFFLE_COUNTER: &str = "SHUFFLE_BYTES";
/// The counter of records that a reduce has read.
pub(crate) const RECORDS_COUNTER: &str = "REDUCE_INPUT_RECORDS";

const MAGIC: &[u8; 4] = b"FMTC";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 8;
const CRC_BYTES: usize = 4;
/// Maximum size of `state`: more than any job needs.
const STATE_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 128 << 20 };

const STATE_FILE: &str = "state";
const MEMORY_FILE: &str = "memory";

/// The number of the part `state` in fetch requests.
pub(crate) const STATE_PART: u32 = 0;
/// The number of the part `memory` in fetch requests.
pub(crate) const MEMORY_PART: u32 = 1;
/// The number of the first run in fetch requests. The other runs follow.
pub(crate) const FIRST_RUN_PART: u32 = 2;

/// Parses the stage of a checkpoint. Returns None for `map`, because only a reduce has checkpoints.
fn stage_of(name: &str) -> Option<Stage> {
    name.parse().ok().filter(|stage| *stage != Stage::Map)
}

/// A run, and during the shuffle the map that it comes from.
#[derive(Debug, Clone)]
pub struct SourceRun {
    pub run: Run,
    /// The attempt of the map, its root (the index of the submitted split that its range is a part
    /// of), and the offset at which its range starts.
    pub map: Option<(String, u32, u64)>,
}

/// The complete state of a reduce between two steps, which a checkpoint saves.
#[derive(Debug, Clone)]
pub struct ReduceState {
    /// The current stage.
    pub stage: Stage,
    /// The runs that the reduce works on. Records with equal keys keep the order of their runs.
    pub runs: Vec<SourceRun>,
    /// The counters so far.
    pub counters: BTreeMap<String, u64>,
    /// The paths of the output files (pieces) so far.
    pub pieces: Vec<String>,
    /// The saved state of the reducer.
    pub reducer: Vec<u8>,
    /// An unfinished merge pass.
    pub open_pass: Option<OpenPass>,
    /// Bytes of records that the last stage has read and that are no longer part of the runs.
    pub consumed_bytes: u64,
    /// Whether the reduce was restored in its last stage and has not processed a record since.
    pub is_resuming: bool,
}

impl Default for ReduceState {
    /// Returns the state of a reduce that has not fetched anything yet.
    fn default() -> Self {
        Self {
            stage: Stage::Shuffle,
            runs: Vec::new(),
            counters: BTreeMap::new(),
            pieces: Vec::new(),
            reducer: Vec::new(),
            open_pass: None,
            consumed_bytes: 0,
            is_resuming: false,
        }
    }
}

/// Reads and verifies the `state` of the checkpoint in these folders.
pub fn read(dirs: &[PathBuf]) -> Result<mr::Checkpoint, TaskError> {
    let (path, bytes) = read_state(dirs)?;
    decode(&bytes, &path)
}

fn read_state(dirs: &[PathBuf]) -> Result<(PathBuf, Vec<u8>), TaskError> {
    let path = find(dirs, STATE_FILE)?;
    let mut bytes = Vec::new();
    daemon::safe_open::open(&path)
        .and_then(|file| file.take(STATE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(TaskError::io(format!("read {}", path.display())))?;
    if bytes.len() as u64 > STATE_BYTES_MAX {
        return Err(damaged_error(&path, STATE_BYTES_MAX, "it is too long for a checkpoint"));
    }
    Ok((path, bytes))
}

/// Returns the size of a checkpoint: the unread bytes of its runs, in memory and in files, plus its
/// encoded state. The part of a hard-linked file that was already read is not counted.
pub fn stored_bytes(checkpoint: &mr::Checkpoint) -> u64 {
    let runs = checkpoint.runs.iter().filter(|run| !run.file.is_empty());
    let left = runs.map(|run| run.stored - run.start.map_or(0, |start| start.block));
    checkpoint.memory_bytes + left.sum::<u64>() + checkpoint.encoded_len() as u64
}

/// Summarises a checkpoint for the tracker: stage, counters and size.
pub fn info(checkpoint: &mr::Checkpoint) -> mr::CheckpointInfo {
    let count = |name: &str| checkpoint.counters.get(name).copied().unwrap_or(0);
    mr::CheckpointInfo {
        stage: checkpoint.stage.clone(),
        bytes: stored_bytes(checkpoint),
        bytes_in: count(SHUFFLE_COUNTER),
        records: count(RECORDS_COUNTER),
    }
}

/// A part of a checkpoint: its file (None for a run within `memory`) and its extent in that file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointPart {
    file: Option<Box<str>>,
    extent: Extent,
}

impl CheckpointPart {
    fn new(file: &str, stored: u64, crc: u32) -> Self {
        Self { file: Some(file.into()), extent: Extent { stored, crc, ..Extent::default() } }
    }

    /// Returns the path and the extent of the part, if the checkpoint is in these folders.
    pub fn find(&self, dirs: &[PathBuf]) -> Result<(PathBuf, Extent), TaskError> {
        let file =
            self.file.as_ref().ok_or_else(|| missing_part("for this run: the memory part contains it"))?;
        Ok((find(dirs, file)?, self.extent))
    }
}

/// Returns the error for a part that does not exist.
pub fn missing_part(what: impl std::fmt::Display) -> TaskError {
    TaskError::Program(format!("the checkpoint has no part {what}"))
}

/// Returns all parts of the checkpoint in these folders, by number, for the shuffle server.
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

/// Returns the extent of the unread part of a run.
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

fn damaged_error(path: &Path, offset: u64, why: &'static str) -> TaskError {
    TaskError::Damaged { file: path.display().to_string(), offset, why }
}

/// Encodes a `state` file.
pub fn encode(checkpoint: &mr::Checkpoint) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + checkpoint.encoded_len() + CRC_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&checkpoint.encode_to_vec());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Decodes and verifies a `state` file. `path` is used in error messages.
pub fn decode(bytes: &[u8], path: &Path) -> Result<mr::Checkpoint, TaskError> {
    let length = bytes.len() as u64;
    let Some((body, crc)) =
        bytes.split_last_chunk::<CRC_BYTES>().filter(|(body, _)| body.len() >= HEADER_BYTES)
    else {
        return Err(damaged_error(path, length, "it ends early"));
    };
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(damaged_error(path, length - CRC_BYTES as u64, "its checksum does not match"));
    }
    let (magic, mut rest) = body.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(damaged_error(path, 0, "it is not a checkpoint"));
    }
    if rest.get_u32_le() != VERSION {
        return Err(damaged_error(path, MAGIC.len() as u64, "its version is not supported"));
    }
    let checkpoint = mr::Checkpoint::decode(rest);
    let checkpoint =
        checkpoint.map_err(|_| damaged_error(path, HEADER_BYTES as u64, "its contents are invalid"))?;
    let plain = |name: &str| !name.contains('/') && name != "." && name != "..";
    let named = stage_of(&checkpoint.stage).is_some() && checkpoint.runs.iter().all(|run| plain(&run.file));
    if !named || !is_consistent(&checkpoint) {
        return Err(damaged_error(path, HEADER_BYTES as u64, "its contents are invalid"));
    }
    Ok(checkpoint)
}

/// Returns whether all offsets and lengths are consistent, so that later arithmetic cannot
/// overflow. A valid checksum does not prove that, because a task may have written the file.
fn is_consistent(checkpoint: &mr::Checkpoint) -> bool {
    let runs = &checkpoint.runs;
    let fits = |run: &mr::CheckpointRun| {
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
    runs.iter().all(fits)
        && sum(checkpoint.memory_bytes, |run| run.stored)
        && sum(checkpoint.consumed_bytes, |run| run.raw)
        && sum(0, |run| run.records)
}

/// Returns the unread remainder of a run, as a run that begins with the current block.
fn remainder_of(part: &Run) -> Run {
    let mut rest = Run { more: Vec::new(), ..part.clone() };
    if let Some(start) = part.start {
        let extent = &mut rest.extent;
        let block = start.block.min(extent.stored);
        extent.offset += block;
        extent.stored -= block;
        extent.raw -= start.raw.min(extent.raw);
        extent.records -= start.records.min(extent.records);
        // CRC-32C is linear: removing the shifted checksum of the read part leaves that of the
        // remainder.
        extent.crc ^= crc32c::crc32c_combine(start.crc, 0, extent.stored as usize);
        rest.start = Some(RunPosition { at: start.at, ..RunPosition::default() });
    }
    rest
}

/// Describes a run of the checkpoint. `more` means that it continues the run before it.
fn checkpoint_run(file: String, run: &Run, run_of_map: &SourceRun, more: bool) -> mr::CheckpointRun {
    let Extent { offset, stored, raw, records, block_max, crc } = run.extent;
    let (map, root, map_start) = run_of_map.map.clone().unwrap_or_default();
    let place = |place: RunPosition| {
        let RunPosition { block, raw, at, records, crc } = place;
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

/// Returns the run that an entry of a checkpoint describes.
fn run_of(entry: &mr::CheckpointRun, stored: Stored) -> Run {
    let mr::CheckpointRun { offset, stored: bytes, raw, records, block_max, crc, .. } = *entry;
    let extent = Extent { offset, stored: bytes, raw, records, block_max, crc };
    let name = [&entry.map, &entry.file].into_iter().find(|name| !name.is_empty());
    let name = name.map_or(MEMORY_FILE, String::as_str);
    Run { start: start_of(entry), ..Run::new(stored, extent, name.into()) }
}

fn start_of(run: &mr::CheckpointRun) -> Option<RunPosition> {
    let place = |place: mr::CheckpointPosition| {
        let mr::CheckpointPosition { block, raw, at, records, crc } = place;
        RunPosition { block, raw, at, records, crc }
    };
    run.start.map(place)
}
