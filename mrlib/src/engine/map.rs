//! Runs a map: records, the mapper, and its output sorted or, without reduces, written as it is.

use super::{Meter, OutputSink, Progress, Pulse, Refusal, Settings, StopFlag, TaskIo, TaskOutcome, Wish};
use crate::{
    api::{Emit, Mapper},
    conf::Conf,
    context::Context,
    error::TaskError,
    input::{self, Flow, Record, RecordSource, SplitSpec},
    job::Job,
    merge::SortOrder,
    partition::{Partitioning, RangePartitioner},
    sort::{MapBuffer, SortSpec},
};
use std::{io, path::PathBuf};

/// From the word that it is to end until its output was there, over all splits.
const SPLIT_COUNTER: &str = "SPLIT_MILLISECONDS";

/// A map to run.
#[derive(Debug, Clone)]
pub struct MapTask {
    /// The file that is read.
    pub source: String,
    /// Its records that start in `start..end`.
    pub start: u64,
    /// See `start`.
    pub end: u64,
    /// The whole file, whatever `end` says (gzip, whole-file records).
    pub whole: bool,
    /// How many reduces there are; 0: map only.
    pub reduces: u32,
    /// Where the map output goes (the index beside it); not used by a map-only job.
    pub map_output: PathBuf,
    /// Where else it may go if the disk is full: best first.
    pub other_outputs: Vec<PathBuf>,
    /// The job's settings.
    pub conf: Conf,
}

/// Runs it to the end of its range, or to where it is cut short.
pub fn run_map(job: &Job, task: &MapTask, io: &mut dyn TaskIo) -> Result<TaskOutcome, TaskError> {
    let settings = Settings::new(job, &task.conf)?;
    let mut mapper = (job.mapper)(&task.conf)?;
    let mut output = open_output(job, task, &settings, io)?;
    let source = io.open_input(&task.source)?;
    let length = source.len();
    if !task.whole && length < task.end {
        let why = format!(
            "input is shorter than when the job was submitted: {length} bytes, of which {} were to be read",
            task.end
        );
        return Err(TaskError::io(task.source.as_str())(io::Error::new(io::ErrorKind::UnexpectedEof, why)));
    }
    let range = if task.whole { 0..length } else { task.start..task.end };
    let spec = SplitSpec {
        path: task.source.clone(),
        range: range.clone(),
        format: settings.input,
        record_bytes_max: settings.record_bytes_max,
        skip_bad: settings.skip_bad_records,
    };
    let gzip = input::is_gzip(&task.source);
    let mut reading = Reading {
        context: Context::new(io.pulse(), io.stop()),
        meter: Meter::new(settings.pace_map, true, io.pulse()),
        stop: io.stop(),
        pulse: io.pulse(),
        skip_bad: settings.skip_bad_records,
        start: range.start,
        span: range.end.saturating_sub(range.start),
        gzip,
        heeds: !gzip && job.divisible,
        records: 0,
        skipped: 0,
    };
    reading.context.set_source(&task.source, range.start);
    let mut records = input::open_split(spec, source)?;
    reading.run(&task.source, &mut *records, &mut *mapper, &mut output, io)?;
    let mut context = reading.context;
    mapper.finish(&mut output, &mut context)?;
    // A compressed file has been read as a whole, or not to its end for a good reason.
    let position = if gzip { range.end } else { records.position().max(range.start) };
    let mut outcome = output.finish(task, &mut context, io)?;
    let skipped = reading.skipped + records.skipped();
    for (name, value) in [
        ("MAP_INPUT_RECORDS", reading.records),
        ("MAP_INPUT_BYTES", position.saturating_sub(range.start)),
        ("SKIPPED_RECORDS", skipped),
    ] {
        context.count(name, value);
    }
    if let Some(asked) = io.stop().asked().filter(|_| position < range.end) {
        context.count(SPLIT_COUNTER, asked.elapsed().as_millis() as u64);
    }
    context.check()?;
    outcome.position = position;
    outcome.counters = context.counters();
    Ok(outcome)
}

/// The loop over records, and what it counts.
struct Reading {
    context: Context,
    meter: Meter,
    stop: StopFlag,
    pulse: Pulse,
    skip_bad: bool,
    start: u64,
    span: u64,
    gzip: bool,
    /// Whether it may end before the end of its range.
    heeds: bool,
    records: u64,
    skipped: u64,
}

impl Reading {
    fn run(
        &mut self,
        path: &str,
        records: &mut dyn RecordSource,
        mapper: &mut dyn Mapper,
        output: &mut MapOutput,
        io: &mut dyn TaskIo,
    ) -> Result<(), TaskError> {
        let mut read = 0;
        let mut short = false;
        while !short {
            let more = records.pump(&mut |record| {
                self.pulse.at_record(record.offset);
                if let Err(error) = mapper.map(record.key, record.value, output, &mut self.context) {
                    self.bad_record(path, record, error)?;
                }
                self.records += 1;
                if !self.gzip {
                    read = record.offset - self.start;
                }
                if self.meter.tick(read, &self.stop)? {
                    self.context.check()?;
                    self.tell(read, output, io);
                }
                short = self.stop.wish()? != Wish::GoOn && self.heeds;
                Ok(if short { Flow::Stop } else { Flow::Go })
            })?;
            if !more {
                break;
            }
            // A long line, or a file with few records, may bring none for a while.
            self.stop.check()?;
            self.pulse.beat();
            if self.gzip {
                read = records.consumed();
            }
        }
        self.pulse.past_records();
        self.meter.wait(if short { read } else { self.span }, &self.stop)
    }

    /// A record that the mapper would not take.
    #[cold]
    fn bad_record(&mut self, path: &str, record: Record<'_>, error: TaskError) -> Result<(), TaskError> {
        match error {
            TaskError::Program(_) | TaskError::Record { .. } if self.skip_bad => {
                self.skipped += 1;
                Ok(())
            }
            TaskError::Program(why) => {
                Err(TaskError::Record { source_path: path.to_owned(), offset: record.offset, why })
            }
            other => Err(other),
        }
    }

    #[cold]
    fn tell(&mut self, read: u64, output: &MapOutput, io: &mut dyn TaskIo) {
        if !self.heeds && self.stop.asked().is_some() {
            eprintln!("told to end before the end of its range, and goes on: its input may not be divided");
            self.stop.refuse(Refusal::Undivided);
        }
        io.progress(&Progress {
            done: read as f64 / self.span.max(1) as f64,
            stage: "map",
            bytes_in: read,
            bytes_out: output.bytes(),
            status: self.context.take_status(),
        });
    }
}

/// Where a mapper's pairs go.
enum MapOutput {
    Sorted(Box<MapBuffer>),
    Straight { sink: Box<dyn OutputSink>, records: u64, pulse: Pulse },
}

impl Emit for MapOutput {
    #[inline]
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        match self {
            Self::Sorted(buffer) => buffer.emit(key, value),
            Self::Straight { sink, records, pulse } => {
                *records += 1;
                pulse.emitted(*records);
                sink.write(key, value)
            }
        }
    }
}

fn open_output(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> Result<MapOutput, TaskError> {
    if task.reduces == 0 {
        return Ok(MapOutput::Straight {
            sink: io.open_output(job.output, Vec::new())?,
            records: 0,
            pulse: io.pulse(),
        });
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
    Ok(MapOutput::Sorted(Box::new(MapBuffer::new(spec, partitioning, combiner, io.scratch(), io.pulse()))))
}

fn partitioning(
    job: &Job,
    task: &MapTask,
    settings: &Settings,
    io: &mut dyn TaskIo,
) -> Result<Partitioning, TaskError> {
    if let Some(make) = &job.partitioner {
        return Ok(Partitioning::Own(make(&task.conf)?));
    }
    if !job.total_order || task.reduces == 1 {
        return Ok(Partitioning::Hash);
    }
    let Some(path) = &settings.total_order_splits else {
        let words =
            "total.order.splits is not set: a job that is sorted as a whole needs its file of split keys";
        return Err(TaskError::Program(words.into()));
    };
    let mut source = io.open_input(path)?;
    let mut bytes = Vec::new();
    loop {
        let stretch = source.next()?;
        if stretch.is_empty() {
            break;
        }
        bytes.extend_from_slice(stretch);
    }
    let ranges = RangePartitioner::decode(&bytes, job.order)?;
    if ranges.partitions() != task.reduces {
        let words =
            format!("{path} splits keys for {} reduces, the job has {}", ranges.partitions(), task.reduces);
        return Err(TaskError::Program(words));
    }
    Ok(Partitioning::Ranges(ranges))
}

impl MapOutput {
    fn bytes(&self) -> u64 {
        match self {
            Self::Sorted(buffer) => buffer.bytes(),
            Self::Straight { sink, .. } => sink.bytes(),
        }
    }

    fn finish(
        self,
        task: &MapTask,
        context: &mut Context,
        io: &mut dyn TaskIo,
    ) -> Result<TaskOutcome, TaskError> {
        let mut outcome = TaskOutcome::default();
        let (stop, pulse, mut meter) = (io.stop(), io.pulse(), Meter::new(None, false, io.pulse()));
        match self {
            Self::Straight { sink, records, .. } => {
                outcome.bytes_out = sink.bytes();
                outcome.pieces = sink.finish()?;
                context.count("MAP_OUTPUT_RECORDS", records);
                context.count("OUTPUT_BYTES", outcome.bytes_out);
            }
            Self::Sorted(mut buffer) => {
                if stop.wish()? != Wish::GoOn {
                    buffer.hurry();
                }
                let bytes_out = buffer.bytes();
                let mut step = || {
                    if meter.tick(0, &stop)? {
                        let status = context.take_status();
                        io.progress(&Progress { done: 1.0, stage: "sort", bytes_in: 0, bytes_out, status });
                    }
                    pulse.beat();
                    stop.check()
                };
                let places = [std::slice::from_ref(&task.map_output), &task.other_outputs].concat();
                let (index, counts) = buffer.finish(&places, &mut step)?;
                outcome.bytes_out = index.stored();
                for (name, value) in [
                    ("MAP_OUTPUT_RECORDS", counts.records),
                    ("MAP_OUTPUT_BYTES", counts.bytes),
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
