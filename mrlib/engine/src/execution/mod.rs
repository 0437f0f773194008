//! Runs tasks. [`TaskIo`] is what a task needs from its environment: a task process or local mode.

mod map;
mod meter;
pub(crate) mod reduce;
mod sample;
mod skip;

#[cfg(test)]
mod tests;

pub use map::run_map;
pub use meter::Meter;
pub(crate) use reduce::CPU_COUNTER;
pub use reduce::{ReduceEnd, ReduceTask, run_reduce};
pub use sample::{OpenInput, sample_keys};

use crate::{
    input::{ByteSource, Pin},
    scratch::Scratch,
};
use mrlib_api::{Conf, Liveness, OutputFormat, TaskControl, TaskError};
use security::Connector;
use std::{collections::BTreeMap, path::PathBuf};
use types::Stage;

/// The progress of a task, reported about five times per second.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Progress {
    /// The fraction of the work that is done, from 0 to 1.
    pub done: f64,
    /// The current stage. A map has only one.
    pub stage: Stage,
    /// Bytes read so far.
    pub bytes_in: u64,
    /// Bytes emitted so far.
    pub bytes_out: u64,
    /// The status line of the program, if it has changed.
    pub status: Option<String>,
}

/// Writes the output of a reduce, or of a map in a map-only job, to pieces (output files of the
/// attempt).
pub trait OutputSink {
    /// Writes one pair.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError>;

    /// Returns the bytes written so far, without pieces of earlier attempts.
    fn bytes(&self) -> u64;

    /// Closes the last piece. Returns the paths of all pieces, in order.
    fn finish(self: Box<Self>) -> Result<Vec<String>, TaskError>;
}

/// The environment of a task.
pub trait TaskIo {
    /// Reports progress, which is also a sign of life. Must not block.
    fn progress(&mut self, progress: &Progress);

    /// Returns the counts of signs of life other than progress. All calls return the same counts.
    fn liveness(&self) -> Liveness;

    /// Returns the control that kills or preempts the task. The task checks it at every record.
    fn control(&self) -> TaskControl;

    /// Returns the folders for spills and merged runs. All calls return the same value, so that
    /// file names are unique.
    fn scratch(&self) -> Scratch;

    /// Returns the memory for the sort buffer and for merges.
    fn memory_bytes(&self) -> u64;

    /// Opens an input file.
    fn open_input(&mut self, path: &str) -> Result<Box<dyn ByteSource>, TaskError>;

    /// Opens the input file of a map. Fails if it is not the file that `pin` identifies.
    fn open_split(&mut self, path: &str, _pin: Option<Pin>) -> Result<Box<dyn ByteSource>, TaskError> {
        self.open_input(path)
    }

    /// Opens the output of this task, for reduces and maps of map-only jobs. The output continues
    /// after `earlier_pieces`, the files that earlier attempts have written.
    fn open_output(
        &mut self,
        format: OutputFormat,
        earlier_pieces: Vec<String>,
    ) -> Result<Box<dyn OutputSink>, TaskError>;

    /// Returns the connector for shuffle servers, which uses TLS if configured.
    fn connector(&self) -> Connector {
        Connector::default()
    }

    /// Returns the CPU time of the task; 0 if it is not measured.
    fn cpu_milliseconds(&self) -> u64 {
        0
    }
}

/// A map to run.
#[derive(Debug, Clone)]
pub struct MapTask {
    /// The input file.
    pub source: String,
    /// The map reads the records that start in `start..end`.
    pub start: u64,
    /// The end of the range: see `start`.
    pub end: u64,
    /// Whether the map reads the whole file, whatever `end` is (gzip, or whole files as records).
    pub whole_file: bool,
    /// The identity of the file at submission, if known.
    pub pin: Option<Pin>,
    /// Number of reduces; 0 for a map-only job.
    pub reduces: u32,
    /// The path of the map output; the index is next to it. Not used by a map-only job.
    pub map_output: PathBuf,
    /// Paths for the map output if the disk of `map_output` is full, best first.
    pub fallback_outputs: Vec<PathBuf>,
    /// The settings of the job.
    pub conf: Conf,
}

/// The result of a successful task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskOutcome {
    /// All counters that are not zero.
    pub counters: BTreeMap<String, u64>,
    /// Paths of the output files, in order.
    pub pieces: Vec<String>,
    /// Bytes of output: of the map output file, or of the pieces.
    pub bytes_out: u64,
    /// The offset at which the input of a map ended: the end of its range, or where it was split.
    pub position: u64,
}
