//! Takes a state up: where it lies, or from another node by way of its shuffle server.
//!
//! What is gone, damaged or another's is [`TaskError::Spoilt`]: the reduce begins anew. What cannot be read for want of
//! something here is this task's own error.

use super::{
    Held, MEMORY_FILE, MEMORY_PART, RUN_PARTS, STATE_PART, Stage, State, decode, find, read, rest_of, run_of,
    shipped,
};
use crate::{
    engine::{Scratch, ScratchFile},
    error::TaskError,
    fetch::ship::Ship,
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
pub struct Origin {
    /// Whose it is.
    pub attempt: String,
    /// In these folders of this node,
    pub dirs: Vec<PathBuf>,
    /// or, if there are none, with the shuffle server at this address.
    pub addr: String,
}

fn spoilt(why: impl Into<String>) -> TaskError {
    TaskError::Spoilt(why.into())
}

/// Whether it tells of the checkpoint, not of this process.
fn as_spoilt(error: TaskError) -> TaskError {
    let theirs = match &error {
        TaskError::Damaged { .. } => true,
        TaskError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    };
    if theirs { spoilt(error.to_string()) } else { error }
}

/// Takes up the state that `origin` put aside, for a reduce of `partition`. Files on this node stay where they are, and
/// must for as long as the state is used; what comes from another goes to `scratch`.
pub fn take_up(
    origin: &Origin,
    partition: u32,
    scratch: &Scratch,
    ship: &mut Ship<'_>,
) -> Result<State, TaskError> {
    let checkpoint = if origin.dirs.is_empty() {
        decode(&ship.whole(STATE_PART, super::BYTES_MAX)?, Path::new(super::STATE_FILE)).map_err(as_spoilt)?
    } else {
        read(&origin.dirs).map_err(as_spoilt)?
    };
    if checkpoint.attempt != origin.attempt || checkpoint.partition != partition {
        return Err(spoilt(format!("it is of {}, not of {}", checkpoint.attempt, origin.attempt)));
    }
    let mut coming = Coming { checkpoint: &checkpoint, memory: None, passed: checkpoint.passed };
    let mut runs: Vec<Held> = Vec::with_capacity(checkpoint.runs.len());
    for (number, kept) in checkpoint.runs.iter().enumerate() {
        let run = if let Some(nothing) = nothing(kept) {
            nothing
        } else if origin.dirs.is_empty() {
            coming.run(kept, RUN_PARTS + number as u32, scratch, ship)?
        } else {
            here(kept, &origin.dirs)?
        };
        if let Some(whole) = runs.last_mut().filter(|_| kept.more) {
            whole.run.more.push(run);
            continue;
        }
        let map = Some(kept.map.clone()).filter(|map| !map.is_empty());
        runs.push(Held { run, map: map.map(|map| (map, kept.root, kept.map_start)) });
    }
    let (made, rest) = (checkpoint.open_made as usize, checkpoint.open_rest as usize);
    if rest > 0 && made + rest >= runs.len() {
        return Err(spoilt("it has fewer runs than a merge was at"));
    }
    Ok(State {
        passed: coming.passed,
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
fn nothing(kept: &mr::KeptRun) -> Option<Run> {
    let mut run = run_of(kept, Stored::Memory(Bytes::new()));
    run.extent.offset = 0;
    (kept.file.is_empty() && kept.stored == 0).then_some(run)
}

fn here(kept: &mr::KeptRun, dirs: &[PathBuf]) -> Result<Run, TaskError> {
    let path = find(dirs, if kept.file.is_empty() { MEMORY_FILE } else { &kept.file })?;
    let found = fs::metadata(&path).map_err(TaskError::io(format!("read {}", path.display())));
    let length = found.map_err(as_spoilt)?.len();
    if kept.offset.checked_add(kept.stored).is_none_or(|end| end > length) {
        return Err(spoilt(format!("{} is cut off", path.display())));
    }
    Ok(run_of(kept, Stored::File(path)))
}

/// What comes from another node.
struct Coming<'a> {
    checkpoint: &'a mr::Checkpoint,
    /// What was in memory there, once it is here.
    memory: Option<ScratchFile>,
    /// Bytes of records that are read and do not come.
    passed: u64,
}

impl Coming<'_> {
    /// Only what is still to be read is shipped.
    fn run(
        &mut self,
        kept: &mr::KeptRun,
        part: u32,
        scratch: &Scratch,
        ship: &mut Ship<'_>,
    ) -> Result<Run, TaskError> {
        let mr::Checkpoint { memory_bytes, memory_crc, .. } = *self.checkpoint;
        if kept.file.is_empty() {
            if kept.offset.checked_add(kept.stored).is_none_or(|end| end > memory_bytes) {
                return Err(spoilt("a run does not lie where it should"));
            }
            let memory = match self.memory.take() {
                Some(memory) => memory,
                None => fetch(MEMORY_PART, memory_bytes, memory_crc, scratch, ship)?,
            };
            self.memory = Some(memory.clone());
            return Ok(run_of(kept, Stored::Scratch(memory)));
        }
        let coming = shipped(kept);
        let file = fetch(part, coming.stored, coming.crc, scratch, ship)?;
        let mut rest = rest_of(&run_of(kept, Stored::Scratch(file)));
        rest.extent.offset = 0;
        self.passed = self.passed.saturating_add(kept.start.map_or(0, |start| start.raw));
        Ok(rest)
    }
}

/// A part of so many bytes with this checksum, as a file.
fn fetch(
    part: u32,
    stored: u64,
    crc: u32,
    scratch: &Scratch,
    ship: &mut Ship<'_>,
) -> Result<ScratchFile, TaskError> {
    let (file, ()) = scratch.create("shipped", |path| {
        let failed = |verb: &str| TaskError::io(format!("{verb} {}", path.display()));
        let file = File::create(path).map_err(failed("create"))?;
        ship.fetch(part, stored, crc, &mut |at, bytes| file.write_all_at(bytes, at).map_err(failed("write")))
    })?;
    Ok(file)
}
