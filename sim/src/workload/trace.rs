//! What trace readers share: opening, plain or compressed, and saying where a trace is bad.

use super::{JobPlan, MapPlan, ReducePlan};
use flate2::read::GzDecoder;
use std::{
    cell::Cell,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
    rc::Rc,
};

/// A trace that cannot be used, and the line at which that shows.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TraceError {
    #[error("{path}: {source}")]
    Unreadable { path: String, source: io::Error },
    #[error("{path}: no jobs in it")]
    Empty { path: String },
    #[error("{path}: no job in it has ended: {what}")]
    NoneEnded { path: String, what: String },
    #[error("{path}:{line}: {what}")]
    Bad { path: String, line: u64, what: String },
}

/// Bytes of a line: a job of ours with a million splits has a line of some hundred MiB.
const LINE_MAX: u64 = 512 << 20;
/// Jobs, and tasks of all of them: more would not fit into memory while they run.
const JOBS_MAX: u64 = 1_000_000;
const TASKS_MAX: u64 = 20_000_000;
/// Tasks of one job, as the core has it.
const TASKS_OF_A_JOB_MAX: f64 = 1_000_000.0;

/// Seconds from a trace's beginning to its last job: ten years. Simulated time has an end, and so has patience.
const LENGTH_MAX_S: f64 = 3.2e8;

/// Whether a job comes within the time that can be simulated.
pub(super) fn check_time_range(at_s: f64) -> Result<(), String> {
    if at_s <= LENGTH_MAX_S {
        return Ok(());
    }
    Err(format!("submitted {at_s:.0} s after the beginning: {LENGTH_MAX_S:.0} s, ten years, are the most"))
}

/// Bytes a second of one reader, as machines have it unless they are said to be others.
const DISK: f64 = 80e6;

/// Whether no task of a job takes longer than can be simulated: times or bytes in another unit than they are taken for would have a
/// world go on forever without anything that is amiss.
pub(super) fn check_task_times(job: &JobPlan) -> Result<(), String> {
    let shuffled = job.maps.iter().map(|map| map.bytes as f64).sum::<f64>() * job.map_out;
    let map = |map: &MapPlan| f64::from(map.work_s) + map.bytes as f64 / DISK;
    let reduce = |reduce: &ReducePlan| {
        let bytes = shuffled * f64::from(reduce.share);
        let each = 1.0 / DISK + 1.0 / job.merge_rate + f64::from(reduce.factor) / job.reduce_rate;
        f64::from(reduce.fixed_s) + bytes * each
    };
    let mut tasks = job.maps.iter().map(map).chain(job.reduces.iter().map(reduce));
    match tasks.find(|seconds| seconds.is_nan() || *seconds > LENGTH_MAX_S) {
        None => Ok(()),
        Some(seconds) => Err(format!(
            "a task of {seconds:.0} s, for its times or its bytes: {LENGTH_MAX_S:.0} s, ten years, are the most; are they in another unit?"
        )),
    }
}

/// How much has been read: a trace that is too large is refused before it takes all memory.
#[derive(Debug, Default)]
pub(super) struct SizeLimit {
    jobs: u64,
    tasks: u64,
}

impl SizeLimit {
    /// One job more, of so many tasks.
    pub(super) fn take(&mut self, tasks: f64) -> Result<(), String> {
        if tasks > TASKS_OF_A_JOB_MAX {
            return Err(format!(
                "a job of {tasks:.0} tasks: {TASKS_OF_A_JOB_MAX:.0} is the most; scale its bytes down"
            ));
        }
        self.jobs += 1;
        self.tasks += tasks as u64;
        if self.jobs > JOBS_MAX || self.tasks > TASKS_MAX {
            return Err(format!(
                "{} jobs and {} tasks up to here: {JOBS_MAX} and {TASKS_MAX} are the most; cut the trace",
                self.jobs, self.tasks
            ));
        }
        Ok(())
    }
}

/// A trace being read.
pub(super) struct Source {
    path: String,
    /// Lines taken from it so far.
    line: Rc<Cell<u64>>,
}

/// Counts the lines that are taken through it, byte by byte.
pub(super) struct Counted {
    inner: Box<dyn Read>,
    line: Rc<Cell<u64>>,
    /// Bytes of the line so far.
    length: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for byte in &buffer[..read] {
            self.length += 1;
            if *byte == b'\n' {
                self.line.set(self.line.get() + 1);
                self.length = 0;
            }
        }
        if self.length > LINE_MAX {
            let what = format!("a line of more than {} MiB: this is no trace", LINE_MAX >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(read)
    }
}

impl Source {
    /// Opens a file; one that ends in `.gz` is unpacked on the way. It is read as a stream, however large.
    pub(super) fn open(path: &Path) -> Result<(Self, Counted), TraceError> {
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
        Ok((Self { path: name, line: line.clone() }, Counted { inner, line, length: 0 }))
    }

    /// Something that is at hand already.
    pub(super) fn named(name: &str) -> Self {
        Self { path: name.to_owned(), line: Rc::new(Cell::new(0)) }
    }

    /// The trace is bad at a line.
    pub(super) fn bad(&self, line: u64, what: impl Into<String>) -> TraceError {
        TraceError::Bad { path: self.path.clone(), line, what: what.into() }
    }

    /// The trace is bad where it has been read to.
    pub(super) fn error_here(&self, what: impl Into<String>) -> TraceError {
        self.bad(self.line.get() + 1, what)
    }

    /// It could not be read further: the disk's fault, or that of what is at this line.
    pub(super) fn unreadable(&self, line: u64, source: io::Error) -> TraceError {
        if source.kind() == io::ErrorKind::InvalidData {
            return self.bad(line, format!("not text: {source}"));
        }
        TraceError::Unreadable { path: self.path.clone(), source }
    }

    /// There is nothing in it.
    pub(super) fn empty(&self) -> TraceError {
        TraceError::Empty { path: self.path.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_memory() {
        let line = Rc::new(Cell::new(0));
        let mut endless = Counted { inner: Box::new(io::repeat(b'x')), line, length: 0 };
        let mut buffer = vec![0; 1 << 20];
        let refused = (0..=LINE_MAX >> 20).find_map(|_| endless.read(&mut buffer).err());
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
    }
}
