//! Puts a state aside.
//!
//! What lies on a disk gets another name there, which costs nothing; what is in memory is written. Everything is on the
//! disks for good before `state` gets its name, and its name before this returns. Somebody waits for the slot: what can
//! be synced at the same time is.

use super::{Held, MEMORY_FILE, STATE_FILE, State, encode, kept};
use crate::{
    engine::disk_failed,
    error::TaskError,
    segment::{Run, Stored},
};
use proto::mr;
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Copied at a time, where a file cannot have another name.
const CHUNK_BYTES: usize = 1 << 20;
/// Files synced at a time: file systems take them together.
const SYNCERS: usize = 8;

fn failed(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> TaskError {
    TaskError::io(format!("{verb} {}", path.display()))
}

/// Puts `state` aside as the checkpoint of `attempt`, in these folders, which are best one a disk and need not exist;
/// how long it is. If it cannot be, nothing is left of it. A full disk is done without, if there is another.
pub fn keep(dirs: &[PathBuf], attempt: &str, partition: u32, state: &State) -> Result<u64, TaskError> {
    let mut last = TaskError::Program("there is no folder to put its state aside in".into());
    for first in 0..dirs.len() {
        let kept = Folder::make(&dirs[first..]).and_then(|folder| folder.keep(attempt, partition, state));
        match kept {
            Ok(bytes) => return Ok(bytes),
            Err(error) => last = error,
        }
        for dir in dirs {
            // Without `state` it is none, and the tracker clears it away in the end.
            let _ = fs::remove_dir_all(dir);
        }
        if !disk_failed(&last) {
            break;
        }
    }
    Err(last)
}

struct Folder {
    /// Those that could be made.
    dirs: Vec<PathBuf>,
    /// Files that are not yet on their disks for good.
    unsynced: Vec<PathBuf>,
}

impl Folder {
    fn make(dirs: &[PathBuf]) -> Result<Self, TaskError> {
        let mut made = Vec::with_capacity(dirs.len());
        let mut trouble = Err(TaskError::Program("there is no folder to put its state aside in".into()));
        for dir in dirs {
            match fs::create_dir_all(dir).map_err(failed("create", dir)) {
                Ok(()) => made.push(dir.clone()),
                Err(error) => trouble = Err(error),
            }
        }
        if made.is_empty() { trouble } else { Ok(Self { dirs: made, unsynced: Vec::new() }) }
    }

    fn keep(mut self, attempt: &str, partition: u32, state: &State) -> Result<u64, TaskError> {
        let State { stage, runs, counters, pieces, reducer, open } = state;
        let (memory_bytes, memory_crc) = self.keep_memory(runs)?;
        let mut in_memory = 0;
        let mut all = Vec::with_capacity(runs.len());
        for (held, part) in parts(runs) {
            all.push(match &part.stored {
                Stored::Memory(bytes) => {
                    let offset = in_memory;
                    in_memory += bytes.len() as u64;
                    kept(String::new(), offset, part, held)
                }
                _ => self.keep_file(&format!("run-{}", all.len()), part, held)?,
            });
        }
        let checkpoint = mr::Checkpoint {
            attempt: attempt.into(),
            partition,
            stage: stage.name().into(),
            runs: all,
            counters: counters.clone().into_iter().collect(),
            pieces: pieces.clone(),
            reducer: reducer.clone(),
            memory_bytes,
            memory_crc,
            open_made: open.map_or(0, |open| open.made as u32),
            open_rest: open.map_or(0, |open| open.rest as u32),
        };
        let unnamed = format!("{STATE_FILE}.tmp");
        let unnamed = self.write(&unnamed, &mut |file| file.write_all(&encode(&checkpoint)))?;
        sync(&self.unsynced)?;
        // It tells of the others, and they are there.
        fs::rename(&unnamed, unnamed.with_file_name(STATE_FILE)).map_err(failed("rename", &unnamed))?;
        sync(&self.dirs)?;
        Ok(super::bytes(&checkpoint))
    }

    /// All runs that are in memory, one behind the other in one file.
    fn keep_memory(&mut self, runs: &[Held]) -> Result<(u64, u32), TaskError> {
        let bytes = || {
            parts(runs).filter_map(|(_, part)| match &part.stored {
                Stored::Memory(bytes) => Some(bytes),
                _ => None,
            })
        };
        let (mut length, mut crc) = (0, 0);
        for part in bytes() {
            length += part.len() as u64;
            crc = crc32c::crc32c_append(crc, part);
        }
        if length > 0 {
            self.write(MEMORY_FILE, &mut |file| bytes().try_for_each(|part| file.write_all(part)))?;
        }
        Ok((length, crc))
    }

    /// A whole file, on the first disk that has room; to be synced with the others.
    fn write(
        &mut self,
        name: &str,
        fill: &mut dyn FnMut(&mut File) -> io::Result<()>,
    ) -> Result<PathBuf, TaskError> {
        let mut last = None;
        for dir in &self.dirs {
            let path = dir.join(name);
            let written =
                File::create(&path).and_then(|mut file| fill(&mut file)).map_err(failed("write", &path));
            match written {
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
        Err(last.expect("there is a folder, and it failed"))
    }

    fn keep_file(&mut self, name: &str, part: &Run, held: &Held) -> Result<mr::KeptRun, TaskError> {
        let extent = part.extent;
        let path = match &part.stored {
            Stored::File(path) => path.as_path(),
            Stored::Scratch(file) => file.path(),
            // Never those of a reduce.
            Stored::Open(_) | Stored::Memory(_) => {
                return Err(TaskError::Program(format!("{name} has no path to be kept by: a bug")));
            }
        };
        for dir in &self.dirs {
            let link = dir.join(name);
            // Only on its own disk.
            if fs::hard_link(path, &link).is_ok() {
                self.unsynced.push(link);
                return Ok(kept(name.into(), extent.offset, part, held));
            }
        }
        let from = File::open(path).map_err(failed("open", path))?;
        let start = part.start.map_or(0, |start| start.block);
        self.write(name, &mut |file| copy(&from, file, extent.offset, start..extent.stored))?;
        Ok(kept(name.into(), 0, part, held))
    }
}

/// Syncs files or folders, some at a time; the first trouble.
fn sync(paths: &[PathBuf]) -> Result<(), TaskError> {
    let (next, trouble) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) =
                File::open(path).and_then(|file| file.sync_all()).map_err(failed("sync", path))
            {
                trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..paths.len().min(SYNCERS) {
            // Where there is no thread to be had, the others do it.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    trouble.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Every part of every run, with what it is part of.
fn parts(runs: &[Held]) -> impl Iterator<Item = (&Held, &Run)> {
    runs.iter().flat_map(|held| held.run.parts().map(move |part| (held, part)))
}

/// Bytes `range` of the run that is at `offset` of `from`, to the same places of a file that holds just the run.
fn copy(from: &File, to: &File, offset: u64, range: std::ops::Range<u64>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = range.start;
    while at < range.end {
        let length = buffer.len().min((range.end - at) as usize);
        from.read_exact_at(&mut buffer[..length], offset + at)?;
        to.write_all_at(&buffer[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
