//! Skip mode: a map continues without the records that its mapper cannot process.
//!
//! A record that cannot be read, or for which the mapper returns an error, is skipped at once.
//! After a panic the map starts again with a new mapper, without that record. If a streaming
//! program crashes, the record is unknown: the range is bisected by running parts of it in new
//! processes, whose output is discarded. All of this happens within one attempt and does not use up
//! attempts of the task. `skip.bad.records` limits the number of skipped records of a task.
//!
//! A mapper that ends the whole task process (abort, stack overflow, out of memory) still fails the
//! attempt, because no process is left to count records.

use super::{MapTask, TaskIo};
use crate::{
    input::{self, Flow, Gunzip, RecordSource, SplitSpec},
    settings::Settings,
};
use mrlib_api::{
    Context, Emit, InputFormat, Job, TaskError,
    codec::{Coding, MAGIC_BYTES},
};
use std::{
    collections::BTreeSet,
    ops::Range,
    time::{Duration, Instant},
};

/// Number of records in the first range that [`find_crash`] tries.
const FIRST_RANGE_RECORDS: u64 = 16;
/// Each further range has this many times the records of the range before.
const RANGE_GROWTH: u64 = 8;
/// Lines are counted only up to this offset in the file.
const LINES_BYTES_MAX: u64 = 256 << 20;
/// Time limit for counting lines.
const LINES_TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum number of skipped records that the log of a task lists.
const LOGGED_MAX: u64 = 1000;

/// The records that a map skips, by the offset of their first byte.
#[derive(Debug)]
pub(super) struct SkippedRecords {
    /// Maximum number of records to skip.
    pub(super) max: u64,
    /// The offsets of the records.
    pub(super) records: BTreeSet<u64>,
}

impl SkippedRecords {
    pub(super) fn new(max: u64) -> Self {
        Self { max, records: BTreeSet::new() }
    }

    /// Returns whether the record at this offset is skipped.
    #[inline]
    pub(super) fn contains(&self, offset: u64) -> bool {
        !self.records.is_empty() && self.records.contains(&offset)
    }

    /// Adds a record to skip because of `why`. Returns false if the limit is reached or the record
    /// is already skipped.
    pub(super) fn add(&mut self, offset: u64, why: &TaskError) -> bool {
        let below_max = (self.records.len() as u64) < self.max;
        if !below_max || !self.records.insert(offset) {
            return false;
        }
        log_skipped(self.records.len() as u64, self.max, why);
        true
    }
}

/// Lists a skipped record in the log of the task.
pub(super) fn log_skipped(number: u64, max: u64, why: &TaskError) {
    if number <= LOGGED_MAX {
        eprintln!("skipped bad record {number} of at most {max}: {why}");
    }
}

/// Opens the records of a map. Also returns the range that is read.
pub(super) fn open_records(
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> Result<(Box<dyn RecordSource>, Range<u64>), TaskError> {
    let mut source = io.open_split(&task.source, task.pin)?;
    let length = source.len();
    if task.start == 0 {
        // Only the map at the start of a file can recognise its format. Its failure is fatal for
        // the job.
        let first = source.next()?;
        let first = &first[..first.len().min(MAGIC_BYTES)];
        let checked = settings.codec.check_start(&task.source, settings.input, first);
        checked.map_err(|error| TaskError::Fatal(error.to_string()))?;
        source.seek(0)?;
    }
    if !task.whole_file && length < task.end {
        return Err(TaskError::Fatal(format!(
            "input {} is shorter than when the job was submitted: it has {length} bytes, but the map reads up to byte {}",
            task.source, task.end
        )));
    }
    let range = if task.whole_file { 0..length } else { task.start..task.end };
    let spec = SplitSpec {
        path: task.source.clone(),
        range: range.clone(),
        format: settings.input,
        codec: settings.codec,
        record_bytes_max: settings.record_bytes_max,
        skip_bad: settings.skip_records > 0,
    };
    Ok((input::open_split(spec, source)?, range))
}

/// Finds the record that makes a streaming program crash, among the first `records_read` that are
/// not skipped. Returns its offset and how the program ended, or None if no single record causes
/// the crash.
pub(super) fn find_crash(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    skipped_records: &SkippedRecords,
    records_read: u64,
    io: &mut dyn TaskIo,
) -> Result<Option<(u64, String)>, TaskError> {
    let mut crashes = |part: Range<u64>| probe(job, task, settings, skipped_records, part, io);
    // Programs read ahead only a little, so the last records are tried first.
    let (mut high, mut width) = (records_read, FIRST_RANGE_RECORDS);
    let mut low = loop {
        let low = high.saturating_sub(width);
        if crashes(low..high)?.is_some() {
            break low;
        }
        if low == 0 {
            return Ok(None);
        }
        (high, width) = (low, width.saturating_mul(RANGE_GROWTH));
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if crashes(low..middle)?.is_some() {
            high = middle;
        } else {
            low = middle;
        }
    }
    crashes(low..high)
}

/// Runs a new mapper on a range of the records and discards its output. If the program crashes,
/// returns the offset of the first record in the range and how the program ended.
fn probe(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    skipped_records: &SkippedRecords,
    part: Range<u64>,
    io: &mut dyn TaskIo,
) -> Result<Option<(u64, String)>, TaskError> {
    let (liveness, control) = (io.liveness(), io.control());
    let (mut records, range) = open_records(task, settings, io)?;
    let mut mapper = (job.mapper)(&task.conf)?;
    let mut context = Context::new(liveness.clone(), control.clone());
    context.set_source(&task.source, range.start);
    let (mut index, mut first, mut over) = (0, None, false);
    let mut run = || {
        while !over
            && records.pump(&mut |record| {
                if skipped_records.contains(record.offset) {
                    return Ok(Flow::Go);
                }
                let at = index;
                index += 1;
                over = index >= part.end;
                if at >= part.start {
                    first.get_or_insert(record.offset);
                    match mapper.map(record.key, record.value, &mut DiscardedOutput, &mut context) {
                        Err(TaskError::Program(_) | TaskError::Record { .. }) => {}
                        mapped => mapped?,
                    }
                }
                Ok(if over { Flow::Stop } else { Flow::Go })
            })?
        {
            control.check()?;
            liveness.mark_alive();
        }
        mapper.finish(&mut DiscardedOutput, &mut context)
    };
    match run() {
        Ok(()) => Ok(None),
        Err(error @ TaskError::Crashed { .. }) => Ok(first.map(|at| (at, error.to_string()))),
        Err(error) => Err(error),
    }
}

struct DiscardedOutput;

impl Emit for DiscardedOutput {
    fn emit(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), TaskError> {
        Ok(())
    }
}

/// Adds the line number of a bad record if the input has lines and counting them is fast enough.
pub(super) fn with_line(
    error: TaskError,
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> TaskError {
    match error {
        TaskError::Record { source_path, offset, line: None, why, unreadable }
            if matches!(settings.input, InputFormat::Lines | InputFormat::KeyValueLines) =>
        {
            // If the lines cannot be counted, the error shows the offset.
            let line = line_number_of(task, settings, offset, io).ok().flatten();
            TaskError::Record { source_path, offset, line, why, unreadable }
        }
        other => other,
    }
}

fn line_number_of(
    task: &MapTask,
    settings: &Settings,
    offset: u64,
    io: &mut dyn TaskIo,
) -> Result<Option<u64>, TaskError> {
    if offset > LINES_BYTES_MAX {
        return Ok(None);
    }
    let (liveness, started) = (io.liveness(), Instant::now());
    let mut source = io.open_split(&task.source, task.pin)?;
    if settings.codec.coding_by_name(&task.source).is_ok_and(|coding| coding == Coding::Gzip) {
        source = Box::new(Gunzip::new(source, &task.source));
    }
    let (mut at, mut line) = (0, 1);
    while at < offset {
        let chunk = source.next()?;
        if chunk.is_empty() || started.elapsed() > LINES_TIME_MAX {
            return Ok(None);
        }
        let part = &chunk[..chunk.len().min((offset - at) as usize)];
        line += memchr::memchr_iter(b'\n', part).count() as u64;
        at += part.len() as u64;
        liveness.mark_alive();
    }
    Ok(Some(line))
}
