//! Skip mode: a map goes on without the records that its mapper cannot process.
//!
//! A record that cannot be read, or that the mapper returns an error for, is skipped where it is. After a panic the map
//! starts over with a new mapper, without that record. A streaming program that ends with a failure does not say at which
//! record: the range is bisected by giving parts of it to new processes, whose output is dropped. All of this happens
//! within one attempt and uses up no attempts of the task; `skip.bad.records` bounds the records a task may skip.
//!
//! Deliberately absent: mappers that take the whole task process with them (abort, stack overflow, out of memory). Nobody
//! is left to count.

use super::{MapTask, Settings, TaskIo};
use crate::{
    api::Emit,
    context::Context,
    error::TaskError,
    input::{self, Coding, Flow, Gunzip, MAGIC_BYTES, RecordSource, SplitSpec},
    job::{InputFormat, Job},
};
use std::{
    collections::BTreeSet,
    ops::Range,
    time::{Duration, Instant},
};

/// Records given to the first part that is tried; the next are larger.
const FIRST_BATCH: u64 = 16;
const GROWTH: u64 = 8;
/// Lines are counted up to this place in a file, and for this long.
const LINES_BYTES_MAX: u64 = 256 << 20;
const LINES_TIME_MAX: Duration = Duration::from_secs(3);
/// Skipped records that are named in a task's log.
const NAMED_MAX: u64 = 1000;

/// The records that a map leaves out, by the offset of their first byte.
#[derive(Debug)]
pub(super) struct Skipping {
    pub(super) max: u64,
    pub(super) records: BTreeSet<u64>,
}

impl Skipping {
    pub(super) fn new(max: u64) -> Self {
        Self { max, records: BTreeSet::new() }
    }

    /// Whether this record is left out.
    #[inline]
    pub(super) fn has(&self, offset: u64) -> bool {
        !self.records.is_empty() && self.records.contains(&offset)
    }

    /// Leaves out one more, because of `why`; false if that would be too many, or if it is left out already.
    pub(super) fn add(&mut self, offset: u64, why: &TaskError) -> bool {
        let room = (self.records.len() as u64) < self.max;
        if !room || !self.records.insert(offset) {
            return false;
        }
        name_skipped(self.records.len() as u64, self.max, why);
        true
    }
}

/// Names a skipped record in the task's log.
pub(super) fn name_skipped(number: u64, max: u64, why: &TaskError) {
    if number <= NAMED_MAX {
        eprintln!("skipped bad record {number} of at most {max}: {why}");
    }
}

/// Opens the records of a map. `start` of the range is that of the task, however often it is read.
pub(super) fn open_records(
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> Result<(Box<dyn RecordSource>, Range<u64>), TaskError> {
    let mut source = io.open_split(&task.source, task.pin)?;
    let length = source.len();
    if task.start == 0 {
        // Only the map that reads a file's start can tell what it is. If that map fails, so does the job.
        let first = source.next()?;
        let first = &first[..first.len().min(MAGIC_BYTES)];
        let checked = settings.codec.check_start(&task.source, settings.input, first);
        checked.map_err(|error| TaskError::Fatal(error.to_string()))?;
        source.seek(0)?;
    }
    if !task.whole && length < task.end {
        return Err(TaskError::Fatal(format!(
            "input {} is shorter than when the job was submitted: {length} bytes, of which {} were to be read",
            task.source, task.end
        )));
    }
    let range = if task.whole { 0..length } else { task.start..task.end };
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

/// The record that a streaming program ends at, of the first `records_read` that are not left out: its offset, and how the
/// program ended. None if no single record makes it fail.
pub(super) fn find_crash(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    skipping: &Skipping,
    records_read: u64,
    io: &mut dyn TaskIo,
) -> Result<Option<(u64, String)>, TaskError> {
    let mut crashes = |part: Range<u64>| probe(job, task, settings, skipping, part, io);
    // The program may have read ahead, but hardly far: the last records are tried first.
    let (mut high, mut width) = (records_read, FIRST_BATCH);
    let mut low = loop {
        let low = high.saturating_sub(width);
        if crashes(low..high)?.is_some() {
            break low;
        }
        if low == 0 {
            return Ok(None);
        }
        (high, width) = (low, width.saturating_mul(GROWTH));
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

/// Gives a part of the records to a new mapper, and drops what it puts out. If its program crashes: the offset of the
/// first of these records, and how it ended.
fn probe(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    skipping: &Skipping,
    part: Range<u64>,
    io: &mut dyn TaskIo,
) -> Result<Option<(u64, String)>, TaskError> {
    let (liveness, stop) = (io.liveness(), io.stop());
    let (mut records, range) = open_records(task, settings, io)?;
    let mut mapper = (job.mapper)(&task.conf)?;
    let mut context = Context::new(liveness.clone(), stop.clone());
    context.set_source(&task.source, range.start);
    let (mut index, mut first, mut over) = (0, None, false);
    let mut run = || {
        while !over
            && records.pump(&mut |record| {
                if skipping.has(record.offset) {
                    return Ok(Flow::Go);
                }
                let at = index;
                index += 1;
                over = index >= part.end;
                if at >= part.start {
                    first.get_or_insert(record.offset);
                    match mapper.map(record.key, record.value, &mut Dropped, &mut context) {
                        Err(TaskError::Program(_) | TaskError::Record { .. }) => {}
                        mapped => mapped?,
                    }
                }
                Ok(if over { Flow::Stop } else { Flow::Go })
            })?
        {
            stop.check()?;
            liveness.mark_alive();
        }
        mapper.finish(&mut Dropped, &mut context)
    };
    match run() {
        Ok(()) => Ok(None),
        Err(TaskError::Crashed { program, why }) => Ok(first.map(|at| (at, format!("{program}: {why}")))),
        Err(error) => Err(error),
    }
}

struct Dropped;

impl Emit for Dropped {
    fn emit(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), TaskError> {
        Ok(())
    }
}

/// Gives the line of a bad record instead of its offset, where the input has lines and counting them takes little.
pub(super) fn with_line(
    error: TaskError,
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> TaskError {
    match error {
        TaskError::Record { source_path, offset, line: None, why }
            if matches!(settings.input, InputFormat::Lines | InputFormat::KeyValueLines) =>
        {
            // Without its line the error is still the one to tell.
            let line = line_of(task, settings, offset, io).ok().flatten();
            TaskError::Record { source_path, offset, line, why }
        }
        other => other,
    }
}

fn line_of(
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
    if settings.codec.by_name(&task.source).is_ok_and(|coding| coding == Coding::Gzip) {
        source = Box::new(Gunzip::new(source, &task.source));
    }
    let (mut at, mut line) = (0, 1);
    while at < offset {
        let stretch = source.next()?;
        if stretch.is_empty() || started.elapsed() > LINES_TIME_MAX {
            return Ok(None);
        }
        let part = &stretch[..stretch.len().min((offset - at) as usize)];
        line += memchr::memchr_iter(b'\n', part).count() as u64;
        at += part.len() as u64;
        liveness.mark_alive();
    }
    Ok(Some(line))
}
