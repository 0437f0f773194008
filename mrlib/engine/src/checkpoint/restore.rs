//! Restores a checkpoint from this node, or from the shuffle server of another node.
//!
//! A missing or damaged checkpoint is [`TaskError::CheckpointCorrupt`], and the reduce starts over.
//! Errors of this process, such as a full disk, fail the attempt.

use super::{
    FIRST_RUN_PART, MEMORY_FILE, MEMORY_PART, ReduceState, STATE_PART, SourceRun, Stage, decode, find, read,
    remainder_of, remaining_extent, run_of, stage_of,
};
use crate::{
    fetch::remote_checkpoint::RemoteCheckpoint,
    merge::OpenPass,
    scratch::{Scratch, ScratchFile},
    segment::{Run, Stored},
};
use bytes::Bytes;
use mrlib_api::TaskError;
use proto::mr;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// The location of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSource {
    /// The attempt that saved the checkpoint.
    pub attempt: String,
    /// The folders of the checkpoint, if it is on this node.
    pub dirs: Vec<PathBuf>,
    /// The address of the shuffle server that has the checkpoint, if it is on another node.
    pub addr: String,
}

fn corrupt_error(why: impl Into<String>) -> TaskError {
    TaskError::CheckpointCorrupt(why.into())
}

/// Turns an error into `CheckpointCorrupt` if the cause is the checkpoint and not this process.
fn as_corrupt(error: TaskError) -> TaskError {
    let is_corrupt = match &error {
        TaskError::Damaged { .. } => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    };
    if is_corrupt { corrupt_error(error.to_string()) } else { error }
}

/// Restores the checkpoint at `resume_from` for the reduce of `partition`. Files on this node are
/// read where they are and must stay until the reduce has ended; files from another node are copied
/// to `scratch`.
pub fn restore(
    resume_from: &CheckpointSource,
    partition: u32,
    scratch: &Scratch,
    remote: &mut RemoteCheckpoint<'_>,
) -> Result<ReduceState, TaskError> {
    let checkpoint = if resume_from.dirs.is_empty() {
        decode(&remote.fetch_whole(STATE_PART, super::STATE_BYTES_MAX)?, Path::new(super::STATE_FILE))
            .map_err(as_corrupt)?
    } else {
        read(&resume_from.dirs).map_err(as_corrupt)?
    };
    if checkpoint.attempt != resume_from.attempt || checkpoint.partition != partition {
        return Err(corrupt_error(format!(
            "it belongs to {}, not to {}",
            checkpoint.attempt, resume_from.attempt
        )));
    }
    let mut remote_runs =
        RemoteRuns { checkpoint: &checkpoint, memory: None, consumed_bytes: checkpoint.consumed_bytes };
    let mut runs: Vec<SourceRun> = Vec::with_capacity(checkpoint.runs.len());
    for (number, entry) in checkpoint.runs.iter().enumerate() {
        let run = if let Some(empty_run) = empty_run(entry) {
            empty_run
        } else if resume_from.dirs.is_empty() {
            remote_runs.copy_run(entry, FIRST_RUN_PART + number as u32, scratch, remote)?
        } else {
            local_run(entry, &resume_from.dirs)?
        };
        if let Some(whole) = runs.last_mut().filter(|_| entry.more) {
            whole.run.more.push(run);
            continue;
        }
        let map = Some(entry.map.clone()).filter(|map| !map.is_empty());
        runs.push(SourceRun { run, map: map.map(|map| (map, entry.root, entry.map_start)) });
    }
    let (output_run, inputs) = (checkpoint.open_made as usize, checkpoint.open_rest as usize);
    if inputs > 0 && output_run + inputs >= runs.len() {
        return Err(corrupt_error("it has fewer runs than its unfinished merge needs"));
    }
    Ok(ReduceState {
        consumed_bytes: remote_runs.consumed_bytes,
        open_pass: (inputs > 0).then_some(OpenPass { output_run, inputs }),
        is_resuming: checkpoint.stage == Stage::Reduce.name(),
        stage: stage_of(&checkpoint.stage).expect("checked by decode"),
        runs,
        counters: checkpoint.counters.into_iter().collect(),
        pieces: checkpoint.pieces,
        reducer: checkpoint.reducer,
    })
}

/// Returns the run if it is empty, because its map had no records for this reduce. Only an empty
/// run needs no file.
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
        return Err(corrupt_error(format!("{} is truncated", path.display())));
    }
    Ok(run_of(entry, Stored::File(path)))
}

/// Copies runs from another node.
struct RemoteRuns<'a> {
    checkpoint: &'a mr::Checkpoint,
    /// The copy of the part `memory`, after it was fetched.
    memory: Option<ScratchFile>,
    /// Bytes of records that earlier attempts have read and that are not copied.
    consumed_bytes: u64,
}

impl RemoteRuns<'_> {
    /// Copies the unread part of a run.
    fn copy_run(
        &mut self,
        entry: &mr::CheckpointRun,
        part: u32,
        scratch: &Scratch,
        remote: &mut RemoteCheckpoint<'_>,
    ) -> Result<Run, TaskError> {
        let mr::Checkpoint { memory_bytes, memory_crc, .. } = *self.checkpoint;
        if entry.file.is_empty() {
            if entry.offset.checked_add(entry.stored).is_none_or(|end| end > memory_bytes) {
                return Err(corrupt_error("a run extends beyond the end of the memory part"));
            }
            let memory = match self.memory.take() {
                Some(memory) => memory,
                None => fetch_part(MEMORY_PART, memory_bytes, memory_crc, scratch, remote)?,
            };
            self.memory = Some(memory.clone());
            return Ok(run_of(entry, Stored::Scratch(memory)));
        }
        let unread = remaining_extent(entry);
        let file = fetch_part(part, unread.stored, unread.crc, scratch, remote)?;
        let mut rest = remainder_of(&run_of(entry, Stored::Scratch(file)));
        rest.extent.offset = 0;
        self.consumed_bytes = self.consumed_bytes.saturating_add(entry.start.map_or(0, |start| start.raw));
        Ok(rest)
    }
}

/// Copies a part with this length and checksum to a scratch file.
fn fetch_part(
    part: u32,
    stored: u64,
    crc: u32,
    scratch: &Scratch,
    remote: &mut RemoteCheckpoint<'_>,
) -> Result<ScratchFile, TaskError> {
    let (file, ()) = scratch.create("checkpoint", |path| {
        let failed = |verb: &str| TaskError::io(format!("{verb} {}", path.display()));
        let file = File::create(path).map_err(failed("create"))?;
        remote
            .fetch(part, stored, crc, &mut |at, bytes| file.write_all_at(bytes, at).map_err(failed("write")))
    })?;
    Ok(file)
}
