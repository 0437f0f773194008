//! Runs a map: reads records, calls the mapper, and sorts its output or, without reduces, writes it
//! directly.

use super::{
    MapTask, Meter, OutputSink, Progress, TaskIo, TaskOutcome,
    skip::{self, SkippedRecords},
};
use crate::{
    input::{Flow, Record, RecordSource},
    merge::SortOrder,
    panics,
    partition::{Partitioning, RangePartitioner},
    settings::Settings,
    sort::{MapBuffer, SortSpec},
    streaming,
};
use mrlib_api::{
    Context, Emit, Job, Liveness, Mapper, PreemptRefusal, TaskControl, TaskError, codec::Coding,
};
use std::ops::Range;
use types::Stage;

/// The counter of milliseconds from the request to split until the output was complete, over all
/// splits.
const SPLIT_COUNTER: &str = "SPLIT_MILLISECONDS";
/// Maximum number of skipped records whose error in the log shows the line number.
const LINES_NAMED_MAX: u64 = 10;

/// Runs a map to the end of its range, or to the record at which it is split. With
/// `skip.bad.records`, it starts again without each record that makes the mapper panic or crash.
pub fn run_map(job: &Job, task: &MapTask, io: &mut dyn TaskIo) -> Result<TaskOutcome, TaskError> {
    let settings = Settings::new(job, &task.conf)?;
    let mut skipped_records = SkippedRecords::new(settings.skip_records);
    loop {
        let failed = match run_once(job, task, &settings, &skipped_records, io) {
            Ok(outcome) => return Ok(outcome),
            Err(failed) => failed,
        };
        let error = match failed.error {
            TaskError::Crashed { program, how, stderr }
                if skipped_records.max > 0 && program.starts_with(streaming::MAPPER) =>
            {
                io.control().check()?;
                let found =
                    skip::find_crash(job, task, &settings, &skipped_records, failed.records_read, io)?;
                let Some((offset, reason)) = found else {
                    let how = format!("{how} (no single record causes the failure, so none was skipped)");
                    return Err(TaskError::Crashed { program, how, stderr });
                };
                record_error(&task.source, offset, reason)
            }
            error @ TaskError::Record { .. } if failed.panicked && skipped_records.max > 0 => error,
            error => return Err(skip::with_line(error, task, &settings, io)),
        };
        let error = skip::with_line(error, task, &settings, io);
        let TaskError::Record { offset, .. } = &error else { return Err(error) };
        if !skipped_records.add(*offset, &error) {
            return Err(too_many_bad_records(skipped_records.max, &error));
        }
    }
}

fn too_many_bad_records(max: u64, last: &TaskError) -> TaskError {
    TaskError::Program(format!("more bad records than skip.bad.records = {max} allows; the last: {last}"))
}

/// Returns an error of the mapper at a record.
fn record_error(source: &str, offset: u64, why: String) -> TaskError {
    TaskError::Record { source_path: source.to_owned(), offset, line: None, why, unreadable: false }
}

/// A failed execution of a map.
struct FailedRun {
    error: TaskError,
    /// Number of records that the mapper got.
    records_read: u64,
    panicked: bool,
}

impl From<TaskError> for FailedRun {
    fn from(error: TaskError) -> Self {
        Self { error, records_read: 0, panicked: false }
    }
}

fn run_once(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    skipped_records: &SkippedRecords,
    io: &mut dyn TaskIo,
) -> Result<TaskOutcome, FailedRun> {
    let mut mapper = (job.mapper)(&task.conf)?;
    let mut output = open_output(job, task, settings, io)?;
    let (mut records, range) = skip::open_records(task, settings, io)?;
    let gzip = settings.codec.coding_by_name(&task.source).is_ok_and(|coding| coding == Coding::Gzip);
    let mut run = MapRun {
        context: Context::new(io.liveness(), io.control()),
        meter: Meter::new(settings.pace_map, true, io.liveness()),
        control: io.control(),
        liveness: io.liveness(),
        task,
        settings,
        skipped_records,
        start: range.start,
        span: range.end.saturating_sub(range.start),
        gzip,
        preemptible: !gzip && job.divisible,
        records: 0,
        records_read: 0,
        skipped: 0,
    };
    run.context.set_source(&task.source, range.start);
    if !run.preemptible {
        let text = "the mapper is not divisible, or the input is compressed";
        run.control.refuse_all(PreemptRefusal::MapperNotDivisible, text);
    }
    let ran = panics::catch(|| {
        run.read_records(&mut *records, &mut *mapper, &mut output, io)?;
        mapper.finish(&mut output, &mut run.context)
    });
    let records_read = run.records_read;
    match ran {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(FailedRun { error, records_read, panicked: false }),
        Err(why) => {
            // A panic in the combiner or partitioner is not the fault of the current record.
            let error = match run.liveness.record().filter(|_| !output.emitting) {
                Some(offset) => record_error(&task.source, offset, why),
                None => TaskError::Program(why),
            };
            return Err(FailedRun { error, records_read, panicked: true });
        }
    }
    Ok(finish(run, &*records, output, &range, io)?)
}

/// Returns the outcome of a map that has read its range, or was split.
fn finish(
    run: MapRun<'_>,
    records: &dyn RecordSource,
    output: MapOutput,
    range: &Range<u64>,
    io: &mut dyn TaskIo,
) -> Result<TaskOutcome, TaskError> {
    let mut context = run.context;
    // A compressed file was read completely.
    let position = if run.gzip { range.end } else { records.position().max(range.start) };
    let mut outcome = output.finish(run.task, &mut context, io)?;
    for (name, value) in [
        ("MAP_INPUT_RECORDS", run.records),
        ("MAP_INPUT_BYTES", position.saturating_sub(range.start)),
        ("SKIPPED_RECORDS", run.skipped + records.unreadable().records),
    ] {
        context.count(name, value);
    }
    if let Some(requested_at) = io.control().requested_at().filter(|_| position < range.end) {
        context.count(SPLIT_COUNTER, requested_at.elapsed().as_millis() as u64);
    }
    context.check()?;
    outcome.position = position;
    outcome.counters = context.counters();
    Ok(outcome)
}

/// The loop over records, with its counts.
struct MapRun<'a> {
    context: Context,
    meter: Meter,
    control: TaskControl,
    liveness: Liveness,
    task: &'a MapTask,
    settings: &'a Settings,
    skipped_records: &'a SkippedRecords,
    /// The offset in the input file at which the range begins.
    start: u64,
    /// The length of the range, in bytes.
    span: u64,
    gzip: bool,
    /// Whether the map may end before the end of its range.
    preemptible: bool,
    /// Number of records in the range so far, including the skipped records.
    records: u64,
    /// Number of records that the mapper got, without the skipped records.
    records_read: u64,
    skipped: u64,
}

impl MapRun<'_> {
    /// Reads records and calls the mapper, to the end of the range or until the map is split.
    fn read_records(
        &mut self,
        records: &mut dyn RecordSource,
        mapper: &mut dyn Mapper,
        output: &mut MapOutput,
        io: &mut dyn TaskIo,
    ) -> Result<(), TaskError> {
        let mut read = 0;
        let mut short = false;
        while !short {
            let more = records.pump(&mut |record| {
                if self.skipped_records.contains(record.offset) {
                    if self.skipped >= self.skipped_records.max {
                        let why = "the mapper panicked or crashed at this record".into();
                        return Err(too_many_bad_records(
                            self.skipped_records.max,
                            &self.record_error(record.offset, why),
                        ));
                    }
                    self.skipped += 1;
                } else {
                    self.records_read += 1;
                    self.liveness.set_record(record.offset);
                    if let Err(error) = mapper.map(record.key, record.value, output, &mut self.context) {
                        if output.emitting {
                            return Err(error);
                        }
                        self.bad_record(record, error, io)?;
                    }
                }
                self.records += 1;
                if !self.gzip {
                    read = record.offset - self.start;
                }
                if self.meter.tick(read, &self.control)? {
                    self.context.check()?;
                    self.report(read, output, io);
                }
                short = self.control.preempt_request()?.is_some() && self.preemptible;
                Ok(if short { Flow::Stop } else { Flow::Go })
            })?;
            let unreadable = records.unreadable();
            if let Some((offset, why)) = &unreadable.last
                && self.skipped + unreadable.records > self.skipped_records.max
            {
                let last = self.record_error(*offset, why.clone());
                return Err(too_many_bad_records(
                    self.skipped_records.max,
                    &skip::with_line(last, self.task, self.settings, io),
                ));
            }
            if !more {
                break;
            }
            // A long line, or a file with few records, may give no record for a while.
            self.control.check()?;
            self.liveness.mark_alive();
            if self.gzip {
                read = records.consumed();
            }
        }
        self.liveness.clear_record();
        self.meter.wait(if short { read } else { self.span }, &self.control)
    }

    /// Handles a record for which the mapper returned an error.
    #[cold]
    fn bad_record(
        &mut self,
        record: Record<'_>,
        error: TaskError,
        io: &mut dyn TaskIo,
    ) -> Result<(), TaskError> {
        let error = match error {
            TaskError::Program(why) => self.record_error(record.offset, why),
            error @ TaskError::Record { .. } => error,
            other => return Err(other),
        };
        if self.skipped_records.max == 0 {
            return Err(error);
        }
        // Counting lines takes time, so only the first errors show the line number.
        let few = self.skipped < LINES_NAMED_MAX || self.skipped >= self.skipped_records.max;
        let error = if few { skip::with_line(error, self.task, self.settings, io) } else { error };
        if self.skipped >= self.skipped_records.max {
            return Err(too_many_bad_records(self.skipped_records.max, &error));
        }
        self.skipped += 1;
        skip::log_skipped(self.skipped, self.skipped_records.max, &error);
        Ok(())
    }

    fn record_error(&self, offset: u64, why: String) -> TaskError {
        record_error(&self.task.source, offset, why)
    }

    #[cold]
    fn report(&mut self, read: u64, output: &MapOutput, io: &mut dyn TaskIo) {
        io.progress(&Progress {
            done: read as f64 / self.span.max(1) as f64,
            stage: Stage::Map,
            bytes_in: read,
            bytes_out: output.bytes(),
            status: self.context.take_status(),
        });
    }
}

/// Receives the pairs of the mapper.
struct MapOutput {
    kind: MapOutputKind,
    /// Set while a pair is accepted, and stays set if that fails. Then the combiner, the
    /// partitioner or the disk is at fault, not the mapper.
    emitting: bool,
}

enum MapOutputKind {
    Sorted(Box<MapBuffer>),
    Direct { sink: Box<dyn OutputSink>, records: u64, liveness: Liveness },
}

impl Emit for MapOutput {
    #[inline]
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        self.emitting = true;
        match &mut self.kind {
            MapOutputKind::Sorted(buffer) => buffer.emit(key, value)?,
            MapOutputKind::Direct { sink, records, liveness } => {
                *records += 1;
                liveness.set_emitted(*records);
                sink.write(key, value)?;
            }
        }
        self.emitting = false;
        Ok(())
    }
}

fn open_output(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> Result<MapOutput, TaskError> {
    if task.reduces == 0 {
        let sink = io.open_output(job.output, Vec::new())?;
        let kind = MapOutputKind::Direct { sink, records: 0, liveness: io.liveness() };
        return Ok(MapOutput { kind, emitting: false });
    }
    let spec = SortSpec {
        partitions: task.reduces,
        order: SortOrder { keys: job.order, values: job.sort_values },
        memory_bytes: settings.sort_memory.unwrap_or_else(|| io.memory_bytes()),
        merge_factor: settings.merge_factor,
        compress: settings.compress,
    };
    let partitioning = partitioning(job, task, settings, io)?;
    let combiner = job.combiner.as_ref().map(|make| make(&task.conf)).transpose()?;
    let buffer = MapBuffer::new(spec, partitioning, combiner, io.scratch(), io.liveness());
    Ok(MapOutput { kind: MapOutputKind::Sorted(Box::new(buffer)), emitting: false })
}

fn partitioning(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> Result<Partitioning, TaskError> {
    if let Some(make) = &job.partitioner {
        return Ok(Partitioning::Custom(make(&task.conf)?));
    }
    if !job.total_order || task.reduces == 1 {
        return Ok(Partitioning::Hash);
    }
    let Some(path) = &settings.total_order_splits else {
        let text = "total.order.splits is not set: a job with total order needs a file of split keys";
        return Err(TaskError::Program(text.into()));
    };
    let mut source = io.open_input(path)?;
    let mut bytes = Vec::new();
    loop {
        let chunk = source.next()?;
        if chunk.is_empty() {
            break;
        }
        bytes.extend_from_slice(chunk);
    }
    let ranges = RangePartitioner::decode(&bytes, job.order)?;
    if ranges.partitions() != task.reduces {
        let splits = daemon::count(ranges.partitions().into(), "reduce");
        let text = format!(
            "total.order.splits: {path} has split keys for {splits}, but the job has {}",
            task.reduces
        );
        return Err(TaskError::Program(text));
    }
    Ok(Partitioning::Ranges(ranges))
}

impl MapOutput {
    fn bytes(&self) -> u64 {
        match &self.kind {
            MapOutputKind::Sorted(buffer) => buffer.bytes(),
            MapOutputKind::Direct { sink, .. } => sink.bytes(),
        }
    }

    fn finish(
        self,
        task: &MapTask,
        context: &mut Context,
        io: &mut dyn TaskIo,
    ) -> Result<TaskOutcome, TaskError> {
        let mut outcome = TaskOutcome::default();
        let (control, liveness, mut meter) =
            (io.control(), io.liveness(), Meter::new(None, false, io.liveness()));
        match self.kind {
            MapOutputKind::Direct { sink, records, .. } => {
                outcome.bytes_out = sink.bytes();
                outcome.pieces = sink.finish()?;
                context.count("MAP_OUTPUT_RECORDS", records);
                context.count("OUTPUT_BYTES", outcome.bytes_out);
            }
            MapOutputKind::Sorted(mut buffer) => {
                if control.preempt_request()?.is_some() {
                    buffer.allow_second_thread();
                }
                let bytes_out = buffer.bytes();
                let mut step = || {
                    if meter.tick(0, &control)? {
                        let status = context.take_status();
                        io.progress(&Progress {
                            done: 1.0,
                            stage: Stage::Map,
                            bytes_in: 0,
                            bytes_out,
                            status,
                        });
                    }
                    liveness.mark_alive();
                    control.check()
                };
                let places = [std::slice::from_ref(&task.map_output), &task.fallback_outputs].concat();
                let (index, counts) = buffer.finish(&places, &mut step)?;
                outcome.bytes_out = index.stored();
                let (records, bytes) = context.map_output().unwrap_or((counts.records, counts.bytes));
                for (name, value) in [
                    ("MAP_OUTPUT_RECORDS", records),
                    ("MAP_OUTPUT_BYTES", bytes),
                    ("COMBINE_INPUT_RECORDS", counts.combine_in),
                    ("COMBINE_OUTPUT_RECORDS", counts.combine_out),
                    ("SPILLED_RECORDS", counts.spilled),
                ] {
                    context.count(name, value);
                }
                counts.combiner.check()?;
                for (name, value) in counts.combiner.counters() {
                    let counter = context.counter(&name);
                    context.add(counter, value);
                }
            }
        }
        Ok(outcome)
    }
}
