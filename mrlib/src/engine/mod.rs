//! Runs tasks. What a task needs from whoever runs it (a task process, or local mode) is [`TaskIo`].

mod map;
mod meter;
mod reduce;
mod sample;
mod scratch;
mod settings;

#[cfg(test)]
mod tests;

pub use map::{MapTask, run_map};
pub use meter::Meter;
pub use reduce::{Identity, ReduceTask, run_reduce};
pub use sample::{OpenInput, sample_keys};
pub use scratch::{Scratch, ScratchFile};
pub use settings::Settings;

use crate::{error::TaskError, input::ByteSource, job::OutputFormat};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

/// How far a task is, told about five times a second.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Progress {
    /// From 0 to 1.
    pub done: f64,
    /// map, sort, shuffle, merge, reduce.
    pub stage: &'static str,
    /// Read so far.
    pub bytes_in: u64,
    /// Put out so far.
    pub bytes_out: u64,
    /// The task's own words, if they have changed.
    pub status: Option<String>,
}

/// Set from another thread: the task ends at the next record, for nothing or with what it has done so far.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<Stop>);

#[derive(Debug, Default)]
struct Stop {
    /// `RUN`, `SHORT` or `STOP`; only ever grows.
    state: AtomicU8,
    why: OnceLock<String>,
}

const SHORT: u8 = 1;
const STOP: u8 = 2;

impl StopFlag {
    /// Says stop: the task fails. The first reason stands.
    pub fn set(&self, why: impl Into<String>) {
        let _ = self.0.why.set(why.into());
        self.0.state.fetch_max(STOP, Ordering::Release);
    }

    /// Says: a map ends at its next record, with the output of what it has read; [`TaskOutcome::position`] tells where.
    pub fn cut_short(&self) {
        self.0.state.fetch_max(SHORT, Ordering::Release);
    }

    /// Whether `set` has been called.
    pub fn is_set(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) == STOP
    }

    /// Whether a map shall end at this record; an error once `set` has been called.
    #[inline]
    pub fn check(&self) -> Result<bool, TaskError> {
        match self.0.state.load(Ordering::Relaxed) {
            STOP => Err(self.stopped()),
            state => Ok(state == SHORT),
        }
    }

    #[cold]
    fn stopped(&self) -> TaskError {
        TaskError::Stopped(self.0.why.get().cloned().unwrap_or_default())
    }
}

/// Where a reduce, or a map of a map-only job, writes: formats pairs and keeps them in pieces.
pub trait OutputSink {
    /// One pair.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError>;

    /// Bytes written so far.
    fn bytes(&self) -> u64;

    /// Closes the last piece; the paths of all, in order.
    fn finish(self: Box<Self>) -> Result<Vec<String>, TaskError>;
}

/// What a task needs from whoever runs it.
pub trait TaskIo {
    /// Tells how far the task is. Must not block.
    fn progress(&mut self, progress: &Progress);

    /// Checked at every record.
    fn stop(&self) -> StopFlag;

    /// For spills and merged runs: always the same, so that no two files get one name.
    fn scratch(&self) -> Scratch;

    /// For the sort buffer and merges.
    fn memory_bytes(&self) -> u64;

    /// Opens an input file.
    fn open_input(&mut self, path: &str) -> Result<Box<dyn ByteSource>, TaskError>;

    /// Opens this task's output (reduces, and maps of map-only jobs).
    fn open_output(&mut self, format: OutputFormat) -> Result<Box<dyn OutputSink>, TaskError>;
}

/// A task's good end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskOutcome {
    /// All that are not zero.
    pub counters: BTreeMap<String, u64>,
    /// Output files, in order.
    pub pieces: Vec<String>,
    /// Output bytes: of the map output file, or of the pieces.
    pub bytes_out: u64,
    /// Where a map's input ended: the end of its range, or the place where it was told to stop short.
    pub position: u64,
}
