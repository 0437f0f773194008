//! Saves a checkpoint.
//!
//! A file that belongs to one run gets a hard link, which costs nothing. The unread parts of runs
//! in memory, and small unread parts of larger files, are written. Everything is synced when
//! [`save`] returns.
//!
//! The JobTracker waits for the slot. So files are synced in parallel, and the runs can be written
//! before the rest of the state is complete ([`begin_save`]).

use super::{
    MEMORY_FILE, ReduceState, STATE_BYTES_MAX, STATE_FILE, SourceRun, checkpoint_run, direct::DirectFile,
    encode, remainder_of,
};
use crate::{
    scratch::disk_failed,
    segment::{Extent, Run, Stored},
};
use mrlib_api::TaskError;
use proto::mr;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// If less than 1 / `COPY_DIVISOR` of a file is unread, the unread part is copied instead of
/// linking the file.
const COPY_DIVISOR: u64 = 2;
/// Number of threads that sync files. File systems combine parallel syncs.
const SYNC_THREADS: usize = 8;

fn io_error(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> TaskError {
    TaskError::io(format!("{verb} {}", path.display()))
}

/// The result of [`begin_save`]: the runs that were saved and synced, or the error.
pub struct SavedRuns(Result<CheckpointWriter, TaskError>);

impl SavedRuns {
    /// Returns how many bytes of runs were in memory and had to be written.
    pub fn memory_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |writer| writer.memory.0)
    }

    /// Completes the checkpoint of `attempt` with `state`, to which these runs belong. Returns its
    /// size. If a disk is full, the others are tried. On an error no file is left.
    pub fn complete(
        self,
        dirs: &[PathBuf],
        attempt: &str,
        partition: u32,
        state: &ReduceState,
    ) -> Result<u64, TaskError> {
        let mut last = TaskError::Program("there is no folder for the checkpoint".into());
        let mut started = Some(self);
        for first in 0..dirs.len() {
            let SavedRuns(runs) = started.take().unwrap_or_else(|| begin_save(&dirs[first..], &state.runs));
            match runs.and_then(|writer| writer.save(attempt, partition, state)) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => last = error,
            }
            for dir in dirs {
                clear(dir);
            }
            if !disk_failed(&last) {
                break;
            }
        }
        Err(last)
    }
}

/// Saves the runs of a state in these folders, ideally one folder per disk. Folders are created if
/// necessary. [`SavedRuns::complete`] saves the rest of the state.
pub fn begin_save(dirs: &[PathBuf], runs: &[SourceRun]) -> SavedRuns {
    SavedRuns(CheckpointWriter::create(dirs).and_then(|writer| writer.save_runs(runs)))
}

/// Saves a checkpoint of `attempt`. Returns its size.
pub fn save(dirs: &[PathBuf], attempt: &str, partition: u32, state: &ReduceState) -> Result<u64, TaskError> {
    begin_save(dirs, &state.runs).complete(dirs, attempt, partition, state)
}

/// A checkpoint that is being written.
struct CheckpointWriter {
    /// The folders of the checkpoint that could be created.
    dirs: Vec<PathBuf>,
    /// Parents of new folders. They must be synced too, so that the new folders survive a crash.
    parents: Vec<PathBuf>,
    /// Files that are not synced yet.
    unsynced: Vec<PathBuf>,
    runs: Vec<mr::CheckpointRun>,
    /// Bytes of records that were read and are not saved.
    consumed_bytes: u64,
    /// Length and checksum of `memory`.
    memory: (u64, u32),
}

impl CheckpointWriter {
    fn create(dirs: &[PathBuf]) -> Result<Self, TaskError> {
        let (mut made, mut with_new) = (Vec::with_capacity(dirs.len()), Vec::new());
        let mut failure = Err(TaskError::Program("there is no folder for the checkpoint".into()));
        for dir in dirs {
            let missing = dir.ancestors().take_while(|folder| !folder.exists());
            let parents: Vec<PathBuf> = missing.filter_map(|folder| Some(folder.parent()?.into())).collect();
            match fs::create_dir_all(dir).map_err(io_error("create", dir)) {
                Ok(()) => {
                    made.push(dir.clone());
                    with_new.extend(parents);
                }
                Err(error) => failure = Err(error),
            }
        }
        if made.is_empty() {
            return failure;
        }
        Ok(Self {
            dirs: made,
            parents: with_new,
            unsynced: Vec::new(),
            runs: Vec::new(),
            consumed_bytes: 0,
            memory: (0, 0),
        })
    }

    fn save_runs(mut self, runs: &[SourceRun]) -> Result<Self, TaskError> {
        let mut files = Files::default();
        for (_, part) in parts(runs) {
            if let Some(path) = path_of(part) {
                *files.unread_bytes.entry(path).or_default() += remainder_of(part).extent.stored;
            }
        }
        let mut in_memory = Vec::new();
        for (run_of_map, part) in parts(runs) {
            let (file, run) = if let Stored::Memory(bytes) = &part.stored {
                let mut rest = remainder_of(part);
                in_memory.push(bytes.slice(rest.extent.offset as usize..));
                let (length, crc) = self.memory;
                rest.extent.offset = length;
                // The checksum of each run is known, so combine them instead of reading all bytes
                // again.
                let crc = crc32c::crc32c_combine(crc, rest.extent.crc, rest.extent.stored as usize);
                self.memory = (length + rest.extent.stored, crc);
                (String::new(), rest)
            } else {
                self.save_file(&mut files, part)?
            };
            self.consumed_bytes +=
                part.start.map_or(0, |start| start.raw) - run.start.map_or(0, |start| start.raw);
            // The first part of a run is the run itself.
            self.runs.push(checkpoint_run(
                file,
                &run,
                run_of_map,
                !std::ptr::eq(part, &raw const run_of_map.run),
            ));
        }
        if self.memory.0 > 0 {
            self.write(MEMORY_FILE, &mut |file| in_memory.iter().try_for_each(|rest| file.write_all(rest)))?;
        }
        sync(&std::mem::take(&mut self.unsynced))?;
        Ok(self)
    }

    fn save(mut self, attempt: &str, partition: u32, state: &ReduceState) -> Result<u64, TaskError> {
        let ReduceState {
            stage,
            runs: _,
            counters,
            pieces,
            reducer,
            open_pass,
            consumed_bytes,
            is_resuming: _,
        } = state;
        let (memory_bytes, memory_crc) = self.memory;
        let checkpoint = mr::Checkpoint {
            attempt: attempt.into(),
            partition,
            stage: stage.name().into(),
            runs: std::mem::take(&mut self.runs),
            counters: counters.clone().into_iter().collect(),
            pieces: pieces.clone(),
            reducer: reducer.clone(),
            memory_bytes,
            memory_crc,
            consumed_bytes: consumed_bytes + self.consumed_bytes,
            open_made: open_pass.map_or(0, |pass| pass.output_run as u32),
            open_rest: open_pass.map_or(0, |pass| pass.inputs as u32),
        };
        let encoded = encode(&checkpoint);
        if encoded.len() as u64 > STATE_BYTES_MAX {
            let why = format!(
                "{} bytes, of which {} are the state of the reducer",
                encoded.len(),
                state.reducer.len()
            );
            let error = io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("{why}; the maximum is {STATE_BYTES_MAX}"),
            );
            return Err(io_error("write", Path::new(STATE_FILE))(error));
        }
        self.write(STATE_FILE, &mut |file| file.write_all(&encoded))?;
        // All files and folders are synced together. A `state` that a power failure has truncated
        // is detected by its checksum.
        self.unsynced.extend_from_slice(&self.dirs);
        self.unsynced.append(&mut self.parents);
        sync(&self.unsynced)?;
        Ok(super::stored_bytes(&checkpoint))
    }

    /// Writes a file to the first disk that has enough space. The file is synced later with the
    /// others.
    fn write(
        &mut self,
        name: &str,
        fill: &mut dyn FnMut(&mut DirectFile) -> io::Result<()>,
    ) -> Result<PathBuf, TaskError> {
        let mut last = None;
        for dir in &self.dirs {
            let path = dir.join(name);
            let mut write = || {
                let mut file = DirectFile::create(&path)?;
                fill(&mut file)?;
                file.finish()
            };
            match write().map_err(io_error("write", &path)) {
                Ok(()) => {
                    self.unsynced.push(path.clone());
                    return Ok(path);
                }
                Err(error) if disk_failed(&error) => {
                    let _ = fs::remove_file(&path);
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("there is at least one folder"))
    }

    /// Saves the part of a run that is in a file. Returns the name of the file in the checkpoint,
    /// and the run.
    fn save_file<'a>(&mut self, files: &mut Files<'a>, part: &'a Run) -> Result<(String, Run), TaskError> {
        let name = format!("run-{}", self.runs.len());
        // All runs of a reduce have a path.
        let path =
            path_of(part).ok_or_else(|| TaskError::Program(format!("{name} has no path: this is a bug")))?;
        let whole = Run { more: Vec::new(), ..part.clone() };
        if let Some(name) = files.link_names.get(path) {
            return Ok((name.clone(), whole));
        }
        let from = File::open(path).map_err(io_error("open", path))?;
        let length = from.metadata().map_err(io_error("read", path))?.len();
        let unread = files.unread_bytes.get(path).copied().unwrap_or(0);
        // A linked file is synced as a whole and stays on disk. If most of it was read, a copy of
        // the remainder is cheaper.
        let links = if unread * COPY_DIVISOR < length { &[][..] } else { &self.dirs[..] };
        for dir in links {
            let link = dir.join(&name);
            // Hard links work only within one file system.
            if fs::hard_link(path, &link).is_ok() {
                self.unsynced.push(link);
                files.link_names.insert(path, name.clone());
                return Ok((name, whole));
            }
        }
        let mut rest = remainder_of(part);
        let Extent { offset, stored, .. } = rest.extent;
        self.write(&name, &mut |file| file.copy(&from, offset..offset + stored))?;
        rest.extent.offset = 0;
        Ok((name, rest))
    }
}

/// Deletes all files in a folder. The folder stays, because the confined task could not create it
/// again.
fn clear(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        // Errors are ignored: without `state` this is not a checkpoint, and the tracker deletes it
        // later.
        let _ = fs::remove_file(entry.path());
    }
}

/// The files that contain runs.
#[derive(Default)]
struct Files<'a> {
    /// Unread bytes of each file.
    unread_bytes: BTreeMap<&'a Path, u64>,
    /// The name of the hard link to each file that has one.
    link_names: BTreeMap<&'a Path, String>,
}

fn path_of(part: &Run) -> Option<&Path> {
    match &part.stored {
        Stored::File(path) => Some(path),
        Stored::Scratch(file) => Some(file.path()),
        Stored::Open(_) | Stored::Memory(_) => None,
    }
}

/// Syncs files or folders in parallel. Returns the first error.
pub fn sync(paths: &[PathBuf]) -> Result<(), TaskError> {
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) =
                File::open(path).and_then(|file| file.sync_all()).map_err(io_error("sync", path))
            {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..paths.len().min(SYNC_THREADS) {
            // If no thread can be started, the others do the work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Returns every part of every run, with the run that it belongs to.
fn parts(runs: &[SourceRun]) -> impl Iterator<Item = (&SourceRun, &Run)> {
    runs.iter().flat_map(|run_of_map| run_of_map.run.parts().map(move |part| (run_of_map, part)))
}
