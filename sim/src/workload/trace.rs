//! Code that the trace readers share: plain or compressed input, limits, and errors with line
//! numbers.

use super::{JobPlan, MapPlan, ReducePlan};
use flate2::read::GzDecoder;
use std::{
    cell::Cell,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
    rc::Rc,
};

/// Why a trace cannot be used, with the line if known.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{path}: {source}")]
    Unreadable { path: String, source: io::Error },
    #[error("{path}: no jobs in it: give a trace with jobs, or a history (.jsonl) or a folder of histories")]
    Empty { path: String },
    #[error("{path}: no job in it has ended: {what}")]
    NoneEnded { path: String, what: String },
    #[error(
        "{path}: the run that wrote this folder has not ended, or was interrupted: repeat it, and give the folder that it was given"
    )]
    Partial { path: String },
    #[error("{path}:{line}: {what}")]
    Bad { path: String, line: u64, what: String },
    #[error(
        "{path}:{line}: {what}; the file is damaged, not complete or of another format: get it again and compare its SHA-256, or correct the line"
    )]
    Damaged { path: String, line: u64, what: String },
}

/// Describes an error of JSON without its line, which the error of the file has.
pub(super) fn describe_json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // The parser reads a number of more than 64 bits as a fraction, where a whole number is expected.
    let number = text.split('`').nth(1).and_then(|number| number.parse::<f64>().ok());
    if number.is_some_and(|number| number.abs() >= i64::MAX as f64) {
        return format!("a number is too large at column {}", error.column());
    }
    match text.rsplit_once(" at line ") {
        Some((what, _)) if error.line() > 0 => format!("{what} at column {}", error.column()),
        _ => text,
    }
}

/// Maximum bytes of a line. The line of a job with a million splits has a few hundred MiB.
const LINE_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of jobs in a trace, limited by the memory of a simulation.
const JOBS_MAX: u64 = 1_000_000;
/// Maximum number of tasks in a trace, limited by the memory of a simulation.
const TASKS_MAX: u64 = 20_000_000;
/// Maximum number of tasks of a job, as in the core.
const TASKS_OF_A_JOB_MAX: f64 = 1_000_000.0;

/// Maximum seconds from the start of a trace to its last job: ten years.
const LENGTH_MAX_S: f64 = 3.2e8;

/// Checks that a job is submitted within the time that can be simulated.
pub(crate) fn check_time_range(at_s: f64) -> Result<(), String> {
    if at_s <= LENGTH_MAX_S {
        return Ok(());
    }
    Err(format!("submitted {at_s:.0} s after the beginning: the maximum is {LENGTH_MAX_S:.0} s, ten years"))
}

/// Default bytes per second of one reader of a disk.
const DISK_BYTES_PER_S: f64 = 80e6;

/// Formats a whole number: in scientific notation if it has more than 15 digits, which no reader counts.
fn readable(number: f64) -> String {
    if number.abs() < 1e15 { format!("{number:.0}") } else { format!("{number:.3e}") }
}

/// Checks that no task takes longer than can be simulated. A trace with times or bytes in a wrong
/// unit would practically never end.
pub(super) fn check_task_times(job: &JobPlan) -> Result<(), String> {
    let shuffled = job.maps.iter().map(|map| map.bytes as f64).sum::<f64>() * job.map_out;
    let map = |map: &MapPlan| f64::from(map.work_s) + map.bytes as f64 / DISK_BYTES_PER_S;
    let reduce = |reduce: &ReducePlan| {
        let bytes = shuffled * f64::from(reduce.share);
        let each = 1.0 / DISK_BYTES_PER_S + 1.0 / job.merge_rate + f64::from(reduce.factor) / job.reduce_rate;
        f64::from(reduce.fixed_s) + bytes * each
    };
    let mut tasks = job.maps.iter().map(map).chain(job.reduces.iter().map(reduce));
    match tasks.find(|seconds| seconds.is_nan() || *seconds > LENGTH_MAX_S) {
        None => Ok(()),
        Some(seconds) => Err(format!(
            "a task takes {} s according to its times or bytes: the maximum is {LENGTH_MAX_S:.0} s (ten years); check the units",
            readable(seconds)
        )),
    }
}

/// Counts jobs and tasks, so that a trace that is too large is rejected before it uses all memory.
#[derive(Debug, Default)]
pub(super) struct SizeLimit {
    jobs: u64,
    tasks: u64,
}

impl SizeLimit {
    /// Counts a job with this number of tasks. Returns an error if a limit is exceeded.
    pub(super) fn add_job(&mut self, tasks: f64) -> Result<(), String> {
        if tasks > TASKS_OF_A_JOB_MAX {
            return Err(format!(
                "a job of {} tasks: the maximum is {TASKS_OF_A_JOB_MAX:.0}; scale the bytes down",
                readable(tasks)
            ));
        }
        self.jobs += 1;
        self.tasks += tasks as u64;
        if self.jobs > JOBS_MAX || self.tasks > TASKS_MAX {
            return Err(format!(
                "{} jobs and {} tasks up to here: the maximum is {JOBS_MAX} jobs and {TASKS_MAX} tasks; shorten the trace",
                self.jobs, self.tasks
            ));
        }
        Ok(())
    }
}

/// A trace that is being read.
pub(super) struct Source {
    path: String,
    /// Number of lines read so far.
    line: Rc<Cell<u64>>,
}

/// A reader that counts lines, and fails on a line that is too long.
pub(super) struct LineCounter {
    inner: Box<dyn Read>,
    line: Rc<Cell<u64>>,
    /// Bytes of the current line so far.
    length: u64,
}

impl Read for LineCounter {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for byte in &buffer[..read] {
            self.length += 1;
            if *byte == b'\n' {
                self.line.set(self.line.get() + 1);
                self.length = 0;
            }
        }
        if self.length > LINE_BYTES_MAX {
            let what = format!("a line of more than {} MiB: this is not a trace", LINE_BYTES_MAX >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(read)
    }
}

impl Source {
    /// Opens a file. A file that ends in `.gz` is decompressed. The file is read as a stream.
    pub(super) fn open(path: &Path) -> Result<(Self, LineCounter), TraceError> {
        let name = path.display().to_string();
        let file =
            File::open(path).map_err(|source| TraceError::Unreadable { path: name.clone(), source })?;
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        let buffered = BufReader::with_capacity(1 << 16, file);
        let inner: Box<dyn Read> = if packed {
            Box::new(BufReader::with_capacity(1 << 16, GzDecoder::new(buffered)))
        } else {
            Box::new(buffered)
        };
        let line = Rc::new(Cell::new(0));
        Ok((Self { path: name, line: line.clone() }, LineCounter { inner, line, length: 0 }))
    }

    /// Creates a source for text that is already in memory.
    pub(super) fn named(name: &str) -> Self {
        Self { path: name.to_owned(), line: Rc::new(Cell::new(0)) }
    }

    /// Returns an error at a line.
    pub(super) fn bad(&self, line: u64, what: impl Into<String>) -> TraceError {
        TraceError::Bad { path: self.path.clone(), line, what: what.into() }
    }

    /// Returns the error for a line that no tool writes.
    pub(super) fn damaged(&self, line: u64, what: impl Into<String>) -> TraceError {
        TraceError::Damaged { path: self.path.clone(), line, what: what.into() }
    }

    /// Returns an error at the current line.
    pub(super) fn error_here(&self, what: impl Into<String>) -> TraceError {
        self.bad(self.line_here(), what)
    }

    /// Returns the number of the current line.
    pub(super) fn line_here(&self) -> u64 {
        self.line.get() + 1
    }

    /// Returns the error for a line that is not text, cannot be decompressed, or could not be read from
    /// disk.
    pub(super) fn unreadable(&self, line: u64, source: io::Error) -> TraceError {
        match source.kind() {
            io::ErrorKind::InvalidData => self.damaged(line, format!("not text: {source}")),
            // The errors of compressed files.
            io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                self.damaged(line, format!("cannot be decompressed: {source}"))
            }
            _ => TraceError::Unreadable { path: self.path.clone(), source },
        }
    }

    /// Returns the error for a trace without jobs.
    pub(super) fn empty(&self) -> TraceError {
        TraceError::Empty { path: self.path.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_line_is_rejected_before_it_fills_memory() {
        let line = Rc::new(Cell::new(0));
        let mut endless = LineCounter { inner: Box::new(io::repeat(b'x')), line, length: 0 };
        let mut buffer = vec![0; 1 << 20];
        let refused = (0..=LINE_BYTES_MAX >> 20).find_map(|_| endless.read(&mut buffer).err());
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
    }

    #[test]
    fn numbers_of_many_digits_are_shortened() {
        let why = SizeLimit::default().add_job(1e300).expect_err("too many tasks");
        assert!(why.starts_with("a job of 1.000e300 tasks: the maximum is "), "{why}");
        assert_eq!(readable(123_456.0), "123456");
    }
}
