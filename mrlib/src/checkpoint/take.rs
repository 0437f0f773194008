//! Takes a state up: where it lies, or from another node by way of its shuffle server.
//!
//! What is gone, damaged or another's is [`TaskError::Spoilt`]: the reduce begins anew. What cannot be read for want of
//! something here is this task's own error.

use super::{
    Held, MEMORY_FILE, MEMORY_PART, RUN_PARTS, STATE_PART, Stage, State, decode, extent_of, find, read,
    shipped, start_of,
};
use crate::{
    engine::Scratch,
    error::TaskError,
    fetch::ship::Ship,
    merge::OpenPass,
    segment::{Extent, Run, Stored},
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
    let (checkpoint, memory) = if origin.dirs.is_empty() {
        let bytes = ship.whole(STATE_PART, super::BYTES_MAX)?;
        let checkpoint = decode(&bytes, Path::new(super::STATE_FILE)).map_err(as_spoilt)?;
        let most = checkpoint.memory_bytes;
        let memory = if most > 0 { ship.whole(MEMORY_PART, most)? } else { Vec::new() };
        (checkpoint, memory)
    } else {
        let checkpoint = read(&origin.dirs).map_err(as_spoilt)?;
        let memory = if checkpoint.memory_bytes > 0 { read_memory(&origin.dirs)? } else { Vec::new() };
        (checkpoint, memory)
    };
    let mr::Checkpoint { attempt, memory_bytes, memory_crc, .. } = &checkpoint;
    if *attempt != origin.attempt || checkpoint.partition != partition {
        return Err(spoilt(format!("it is of {attempt}, not of {}", origin.attempt)));
    }
    if memory.len() as u64 != *memory_bytes || crc32c::crc32c(&memory) != *memory_crc {
        return Err(spoilt(format!("what {attempt} had in memory is damaged")));
    }
    let memory = spread(&checkpoint, &memory)?;
    let mut runs: Vec<Held> = Vec::with_capacity(checkpoint.runs.len());
    for (number, kept) in checkpoint.runs.iter().enumerate() {
        let run = match (kept.file.is_empty(), origin.dirs.is_empty()) {
            (true, _) => in_memory(kept, &memory)?,
            (false, false) => here(kept, &origin.dirs)?,
            (false, true) => there(kept, RUN_PARTS + number as u32, scratch, ship)?,
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
        open: (rest > 0).then_some(OpenPass { made, rest }),
        stage: Stage::of(&checkpoint.stage).expect("checked when it was decoded"),
        runs,
        counters: checkpoint.counters.into_iter().collect(),
        pieces: checkpoint.pieces,
        reducer: checkpoint.reducer,
    })
}

fn read_memory(dirs: &[PathBuf]) -> Result<Vec<u8>, TaskError> {
    let path = find(dirs, MEMORY_FILE)?;
    fs::read(&path).map_err(|error| as_spoilt(TaskError::io(format!("read {}", path.display()))(error)))
}

/// Puts what is to be read of each run where it was, and leaves holes, which take no memory, before it.
fn spread(checkpoint: &mr::Checkpoint, rests: &[u8]) -> Result<Bytes, TaskError> {
    let astray = || spoilt("what was in memory does not lie where it should");
    let in_memory = || checkpoint.runs.iter().filter(|run| run.file.is_empty());
    let whole = in_memory().try_fold(0u64, |sum, run| sum.checked_add(run.stored)).ok_or_else(astray)?;
    if whole == rests.len() as u64 {
        return Ok(Bytes::copy_from_slice(rests));
    }
    let mut spread = vec![0; usize::try_from(whole).map_err(|_| astray())?];
    let mut rests = rests;
    for run in in_memory() {
        let coming = shipped(run);
        let (rest, later) = rests.split_at_checked(coming.stored as usize).ok_or_else(astray)?;
        let place = spread.get_mut(coming.offset as usize..).and_then(|from| from.get_mut(..rest.len()));
        place.ok_or_else(astray)?.copy_from_slice(rest);
        rests = later;
    }
    Ok(Bytes::from(spread))
}

fn in_memory(kept: &mr::KeptRun, memory: &Bytes) -> Result<Run, TaskError> {
    let extent = extent_of(kept);
    let end = extent.offset.checked_add(extent.stored).filter(|end| *end <= memory.len() as u64);
    let end = end.ok_or_else(|| spoilt("a run does not lie where it should"))?;
    let bytes = memory.slice(extent.offset as usize..end as usize);
    // The checksum of all of them has been found right.
    let run = Run::in_memory(&kept.map, bytes, extent);
    Ok(Run { verified: true, start: start_of(kept), ..run })
}

fn here(kept: &mr::KeptRun, dirs: &[PathBuf]) -> Result<Run, TaskError> {
    let (path, extent) = (find(dirs, &kept.file)?, extent_of(kept));
    let found = fs::metadata(&path).map_err(TaskError::io(format!("read {}", path.display())));
    let length = found.map_err(as_spoilt)?.len();
    if extent.offset.checked_add(extent.stored).is_none_or(|end| end > length) {
        return Err(spoilt(format!("{} is cut off", path.display())));
    }
    Ok(run(kept, Stored::File(path), extent))
}

fn run(kept: &mr::KeptRun, stored: Stored, extent: Extent) -> Run {
    let name = if kept.map.is_empty() { &kept.file } else { &kept.map };
    Run { start: start_of(kept), ..Run::new(stored, extent, name.as_str().into()) }
}

/// Only what is still to be read is shipped: before it the file has a hole.
fn there(kept: &mr::KeptRun, part: u32, scratch: &Scratch, ship: &mut Ship<'_>) -> Result<Run, TaskError> {
    let (extent, coming) = (extent_of(kept), shipped(kept));
    let hole = extent.stored - coming.stored;
    let (file, ()) = scratch.create("shipped", |path| {
        let failed = |verb: &str| TaskError::io(format!("{verb} {}", path.display()));
        let file = File::create(path).map_err(failed("create"))?;
        ship.fetch(part, coming.stored, coming.crc, &mut |at, bytes| {
            file.write_all_at(bytes, hole + at).map_err(failed("write"))
        })
    })?;
    Ok(run(kept, Stored::Scratch(file), Extent { offset: 0, ..extent }))
}
