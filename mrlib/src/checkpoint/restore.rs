//! Restores a checkpoint: where it lies, or from another node by way of its shuffle server.
//!
//! What is gone, damaged or another's is [`TaskError::CheckpointCorrupt`]: the reduce starts over. What cannot be read for want of
//! something here is this task's own error.

use super::{
    MEMORY_DIVISOR, MEMORY_FILE, RUN_PARTS, ReduceState, STATE_PART, SourceRun, Stage, decode, find, read,
    remainder_of, remaining_extent, run_of,
};
use crate::{
    engine::{Scratch, ScratchFile},
    error::TaskError,
    fetch::remote_checkpoint::RemoteCheckpoint,
    merge::OpenPass,
    segment::{Run, Stored},
};
use bytes::Bytes;
use proto::mr;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Where a checkpoint lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSource {
    /// Whose it is.
    pub attempt: String,
    /// In these folders of this node,
    pub dirs: Vec<PathBuf>,
    /// or, if there are none, with the shuffle server at this address.
    pub addr: String,
}

fn corrupt(why: impl Into<String>) -> TaskError {
    TaskError::CheckpointCorrupt(why.into())
}

/// Whether it reports the checkpoint, not of this process.
fn as_corrupt(error: TaskError) -> TaskError {
    let remote_error = match &error {
        TaskError::Damaged { .. } => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    };
    if remote_error { corrupt(error.to_string()) } else { error }
}

/// Takes up the state that `origin` checkpointed, for a reduce of `partition`. Files on this node stay where they are, and
/// must for as long as the state is used; what comes from another goes to `scratch`.
pub fn restore(
    origin: &CheckpointSource,
    partition: u32,
    scratch: &Scratch,
    ship: &mut RemoteCheckpoint<'_>,
) -> Result<ReduceState, TaskError> {
    let checkpoint = if origin.dirs.is_empty() {
        decode(&ship.fetch_whole(STATE_PART, super::BYTES_MAX)?, Path::new(super::STATE_FILE))
            .map_err(as_corrupt)?
    } else {
        read(&origin.dirs).map_err(as_corrupt)?
    };
    if checkpoint.attempt != origin.attempt || checkpoint.partition != partition {
        return Err(corrupt(format!("it is of {}, not of {}", checkpoint.attempt, origin.attempt)));
    }
    let mut coming =
        RemoteRuns { checkpoint: &checkpoint, memory: None, consumed_bytes: checkpoint.consumed_bytes };
    let mut runs: Vec<SourceRun> = Vec::with_capacity(checkpoint.runs.len());
    for (number, entry) in checkpoint.runs.iter().enumerate() {
        let run = if let Some(empty_run) = empty_run(entry) {
            empty_run
        } else if origin.dirs.is_empty() {
            coming.run(entry, RUN_PARTS + number as u32, scratch, ship)?
        } else {
            local_run(entry, &origin.dirs)?
        };
        if let Some(whole) = runs.last_mut().filter(|_| entry.more) {
            whole.run.more.push(run);
            continue;
        }
        let map = Some(entry.map.clone()).filter(|map| !map.is_empty());
        runs.push(SourceRun { run, map: map.map(|map| (map, entry.root, entry.map_start)) });
    }
    let (made, rest) = (checkpoint.open_made as usize, checkpoint.open_rest as usize);
    if rest > 0 && made + rest >= runs.len() {
        return Err(corrupt("it has fewer runs than a merge was at"));
    }
    Ok(ReduceState {
        consumed_bytes: coming.consumed_bytes,
        open: (rest > 0).then_some(OpenPass { made, rest }),
        is_resuming: checkpoint.stage == Stage::Reduce.name(),
        stage: Stage::of(&checkpoint.stage).expect("checked when it was decoded"),
        runs,
        counters: checkpoint.counters.into_iter().collect(),
        pieces: checkpoint.pieces,
        reducer: checkpoint.reducer,
    })
}

/// A run without a byte, of a map that had nothing for this reduce: of these alone there is no file.
fn empty_run(entry: &mr::CheckpointRun) -> Option<Run> {
    let mut run = run_of(entry, Stored::Memory(Bytes::new()));
    run.extent.offset = 0;
    (entry.file.is_empty() && entry.stored == 0).then_some(run)
}

fn local_run(entry: &mr::CheckpointRun, dirs: &[PathBuf]) -> Result<Run, TaskError> {
    let path = find(dirs, if entry.file.is_empty() { MEMORY_FILE } else { &entry.file })?;
    let found = fs::metadata(&path).map_err(TaskError::io(format!("read {}", path.display())));
    let length = found.map_err(as_corrupt)?.len();
    if entry.offset.checked_add(entry.stored).is_none_or(|end| end > length) {
        return Err(corrupt(format!("{} is cut off", path.display())));
    }
    Ok(run_of(entry, Stored::File(path)))
}

/// What comes from another node.
struct RemoteRuns<'a> {
    checkpoint: &'a mr::Checkpoint,
    /// What was in memory there, once it is here.
    memory: Option<ScratchFile>,
    /// Bytes of records that are read and do not come.
    consumed_bytes: u64,
}

impl RemoteRuns<'_> {
    /// Only what is still to be read is shipped.
    fn run(
        &mut self,
        entry: &mr::CheckpointRun,
        part: u32,
        scratch: &Scratch,
        ship: &mut RemoteCheckpoint<'_>,
    ) -> Result<Run, TaskError> {
        let mr::Checkpoint { memory_bytes, memory_crc, .. } = *self.checkpoint;
        if entry.file.is_empty() {
            if entry.offset.checked_add(entry.stored).is_none_or(|end| end > memory_bytes) {
                return Err(corrupt("a run does not lie where it should"));
            }
            let memory = match self.memory.take() {
                Some(memory) => memory,
                None => fetch(MEMORY_DIVISOR, memory_bytes, memory_crc, scratch, ship)?,
            };
            self.memory = Some(memory.clone());
            return Ok(run_of(entry, Stored::Scratch(memory)));
        }
        let coming = remaining_extent(entry);
        let file = fetch(part, coming.stored, coming.crc, scratch, ship)?;
        let mut rest = remainder_of(&run_of(entry, Stored::Scratch(file)));
        rest.extent.offset = 0;
        self.consumed_bytes = self.consumed_bytes.saturating_add(entry.start.map_or(0, |start| start.raw));
        Ok(rest)
    }
}

/// A part of so many bytes with this checksum, as a file.
fn fetch(
    part: u32,
    stored: u64,
    crc: u32,
    scratch: &Scratch,
    ship: &mut RemoteCheckpoint<'_>,
) -> Result<ScratchFile, TaskError> {
    let (file, ()) = scratch.create("shipped", |path| {
        let failed = |verb: &str| TaskError::io(format!("{verb} {}", path.display()));
        let file = File::create(path).map_err(failed("create"))?;
        ship.fetch(part, stored, crc, &mut |at, bytes| file.write_all_at(bytes, at).map_err(failed("write")))
    })?;
    Ok(file)
}
