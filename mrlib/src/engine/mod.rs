//! Runs tasks. What a task needs from whoever runs it (a task process, or local mode) is [`TaskIo`].

mod liveness;
mod map;
mod meter;
pub(crate) mod reduce;
mod sample;
mod scratch;
mod settings;
mod skip;
mod stop;

#[cfg(test)]
mod tests;

pub use liveness::Liveness;
pub use map::{MapTask, run_map};
pub use meter::Meter;
pub(crate) use reduce::{CPU_COUNTER, RECORDS_COUNTER, SHUFFLE_COUNTER};
pub use reduce::{Paused, ReduceEnd, ReduceTask, run_reduce};
pub use sample::{OpenInput, sample_keys};
pub(crate) use scratch::disk_failed;
pub use scratch::{Scratch, ScratchFile};
pub use settings::Settings;
pub(crate) use settings::{output_replication, record_bytes_max};
pub use stop::{PreemptRefusal, PreemptRequest, TaskControl};

use crate::{
    error::TaskError,
    input::{ByteSource, Pin},
    job::OutputFormat,
};
use security::Connector;
use std::collections::BTreeMap;

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

/// Where a reduce, or a map of a map-only job, writes: formats pairs and keeps them in pieces.
pub trait OutputSink {
    /// One pair.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError>;

    /// Bytes written so far, those of pieces before not counted.
    fn bytes(&self) -> u64;

    /// Closes the last piece; the paths of all, in order.
    fn finish(self: Box<Self>) -> Result<Vec<String>, TaskError>;
}

/// What a task needs from whoever runs it.
pub trait TaskIo {
    /// Tells how far the task is, and is a sign of life. Must not block.
    fn progress(&mut self, progress: &Progress);

    /// Where other signs of life go: always the same pulse.
    fn liveness(&self) -> Liveness;

    /// Checked at every record.
    fn stop(&self) -> TaskControl;

    /// For spills and merged runs: always the same, so that no two files get one name.
    fn scratch(&self) -> Scratch;

    /// For the sort buffer and merges.
    fn memory_bytes(&self) -> u64;

    /// Opens an input file.
    fn open_input(&mut self, path: &str) -> Result<Box<dyn ByteSource>, TaskError>;

    /// Opens the file of a map's split; an error if it is not the one that was pinned.
    fn open_split(&mut self, path: &str, _pin: Option<Pin>) -> Result<Box<dyn ByteSource>, TaskError> {
        self.open_input(path)
    }

    /// Opens this task's output (reduces, and maps of map-only jobs), to continue behind the pieces that an attempt before
    /// it has closed.
    fn open_output(
        &mut self,
        format: OutputFormat,
        behind: Vec<String>,
    ) -> Result<Box<dyn OutputSink>, TaskError>;

    /// What turns connections to shuffle servers into streams.
    fn connector(&self) -> Connector {
        Connector::default()
    }

    /// CPU time that the task has taken; 0 where nobody counts it.
    fn cpu_milliseconds(&self) -> u64 {
        0
    }
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
    /// Where a map's input ended: the end of its range, or the place where it was asked to stop short.
    pub position: u64,
}
