//! `streaming`: arbitrary executables as mapper, combiner and reducer, over stdin and stdout.
//!
//! The rules are those of Hadoop streaming. A mapper reads lines (`key TAB value` if the input
//! format has keys); its output lines are split at the first tab into key and value. A reducer
//! reads `key TAB value` lines, sorted by key. The lines of the reducer, or of the mapper if there
//! are no reduces, are the output of the job, unchanged. Settings give other separators, keys of
//! several fields, and the fields by which keys are partitioned and sorted. On stderr, the lines
//! `reporter:counter:GROUP,NAME,N` and `reporter:status:TEXT` set counters and the status; all
//! other lines go to the log. Settings are environment variables. Programs are started without a
//! shell, in the folder of the attempt.
//!
//! The combiner program runs inside the mapper, over sorted portions of the output of the mapper
//! program: one process per portion.
//!
//! Not supported: typed bytes.

mod aggregate;
mod combine;
mod command;
pub mod fields;
mod lines;
mod program;
mod report;
mod window;

#[cfg(test)]
mod tests;

pub use aggregate::AGGREGATE;
pub use command::split_command;

use crate::settings::record_bytes_max;
use aggregate::Aggregate;
use combine::PortionCombiner;
use fields::{LineFormat, OutputLines};
use lines::LineSplitter;
use mrlib_api::{
    Conf, Context, Emit, InputFormat, Job, Mapper, Reducer, StateBetweenKeys, TaskError, Values,
    settings::{Kind, Setting},
    task_settings,
};
use program::Program;

/// The setting with the command of the mapper.
pub const MAPPER: &str = "stream.mapper";
/// The setting with the command of the combiner.
pub const COMBINER: &str = "stream.combiner";
/// The setting with the command of the reducer.
pub const REDUCER: &str = "stream.reducer";
/// The setting that promises that the reducer has no state between keys. Then the reducer may be
/// ended between two keys, as at the end of its input, and a new process continues with the next
/// key.
pub const RESTARTABLE: &str = "stream.reducer.restartable";

/// The setting that promises that the input of the mapper may be divided at any line, between two
/// processes. Without it a streaming map is never split.
pub const DIVISIBLE: &str = "stream.mapper.divisible";

/// The setting with additional environment variables of the programs: a JSON object of texts.
pub const ENVIRONMENT: &str = "stream.environment";
/// The setting that decides whether a program that ends with another status than 0 fails the task.
pub const EXIT_STATUS: &str = "stream.non.zero.exit.is.failure";

const FIELDS: Kind = Kind::Count { min: 0, max: 1 << 20 };

/// The settings of streaming jobs.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new(MAPPER, Kind::Text, "command of the mapper (--mapper)"),
    Setting::new(COMBINER, Kind::Text, "command of the combiner (--combiner)"),
    Setting::new(REDUCER, Kind::Text, "command of the reducer (--reducer)"),
    Setting::new(DIVISIBLE, Kind::Flag, "true: the input of the mapper may be divided at any line"),
    Setting::new(RESTARTABLE, Kind::Flag, "true: the reducer has no state between keys"),
    Setting::new(EXIT_STATUS, Kind::Flag, "false: the exit status of programs is ignored"),
    Setting::new(ENVIRONMENT, Kind::Text, "environment of the programs, {\"NAME\": \"VALUE\"}"),
    Setting::new(fields::IGNORE_KEY, Kind::Flag, "true: the mapper gets only the values of records"),
    Setting::new(fields::MAP_INPUT_SEPARATOR, Kind::Text, "between key and value for the mapper"),
    Setting::new(fields::MAP_OUTPUT_SEPARATOR, Kind::Text, "between fields of the mapper's output"),
    Setting::new(fields::MAP_OUTPUT_FIELDS, FIELDS, "fields of the key in that output [default: 1]"),
    Setting::new(fields::REDUCE_INPUT_SEPARATOR, Kind::Text, "between key and value for the reducer"),
    Setting::new(fields::REDUCE_OUTPUT_SEPARATOR, Kind::Text, "between fields of the reducer's output"),
    Setting::new(fields::REDUCE_OUTPUT_FIELDS, FIELDS, "fields of the key in that output [default: 1]"),
    Setting::new(fields::OUTPUT_SEPARATOR, Kind::Text, "between key and value in the job's output"),
    Setting::new(fields::KEY_SEPARATOR, Kind::Text, "one byte between the fields of a key"),
    Setting::new(fields::PARTITION_FIELDS, Kind::Text, "fields that choose the reduce: -k1,2"),
    Setting::new(fields::SORT_FIELDS, Kind::Text, "fields by which keys are sorted: -k1,1 -k2,2nr"),
];

/// Creates the job from its settings.
pub fn job(conf: &Conf) -> Result<Job, TaskError> {
    if conf.get(MAPPER).is_none() {
        return Err(format!("streaming needs a mapper: use --mapper CMD (setting {MAPPER})").into());
    }
    for key in [MAPPER, COMBINER, REDUCER] {
        if let Some(command) = conf.get(key) {
            split_command(command)
                .map_err(|why| TaskError::Program(format!("{key} = {command:?}: {why}")))?;
        }
    }
    conf.parse(RESTARTABLE, false)?;
    program::environment(conf)?;
    for format in [LineFormat::of_map_output, LineFormat::of_combiner_output, LineFormat::of_reduce_output] {
        format(conf)?;
    }
    let mut job = fields::apply(conf, Job::map(StreamMapper::new))?;
    job.divisible = conf.parse(DIVISIBLE, false)?;
    Ok(match conf.get(REDUCER) {
        Some(AGGREGATE) => job.reduce(|_| Ok(Aggregate)),
        Some(_) => job.reduce(StreamReducer::new),
        None => job,
    })
}

/// What the lines of a program become.
#[derive(Debug)]
enum Lines {
    /// Lines of the output of the job. They are not divided into key and value, because joining
    /// them again would lose empty keys or values.
    Output(OutputLines),
    Pairs(LineFormat),
}

impl Lines {
    fn put(&mut self, line: &[u8], out: &mut dyn Emit) -> Result<(), TaskError> {
        match self {
            Self::Output(lines) => out.emit(lines.line(line), b""),
            Self::Pairs(format) => {
                let (key, value) = format.split(line);
                out.emit(key, value)
            }
        }
    }
}

/// Passes records to a program and emits its output.
struct StreamMapper {
    program: Program,
    lines: LineSplitter,
    /// The separator after the keys of records, if the program gets them.
    key_separator: Option<Vec<u8>>,
    /// Without reduces, the lines of the program are the output of the job.
    output: Lines,
    combiner: Option<PortionCombiner>,
}

impl StreamMapper {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        let keyed = conf.parse("input.format", InputFormat::Lines)? != InputFormat::Lines
            && !conf.parse(fields::IGNORE_KEY, false)?;
        let key_separator =
            keyed.then(|| fields::separator(conf, fields::MAP_INPUT_SEPARATOR)).transpose()?;
        let is_job_output = conf.get(task_settings::JOB_REDUCES) == Some("0");
        let format = LineFormat::of_map_output(conf)?;
        let combiner = conf
            .get(COMBINER)
            .filter(|_| !is_job_output)
            .map(|_| PortionCombiner::new(conf.clone(), format.clone()));
        let output =
            if is_job_output { Lines::Output(OutputLines::new(format, conf)?) } else { Lines::Pairs(format) };
        let lines = LineSplitter::new(record_bytes_max(conf)?);
        Ok(Self { program: Program::start(MAPPER, conf)?, lines, key_separator, output, combiner })
    }

    fn exchange(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines, combiner, output, .. } = self;
        program.exchange(all, context, &mut |bytes, context| {
            lines.push_chunk(bytes, &mut |line| emit(line, output, combiner.as_mut(), out, context))
        })
    }
}

/// Emits one line of the mapper program, through the combiner if there is one.
fn emit(
    line: &[u8],
    output: &mut Lines,
    combiner: Option<&mut PortionCombiner>,
    out: &mut dyn Emit,
    context: &mut Context,
) -> Result<(), TaskError> {
    match combiner {
        Some(combiner) => combiner.add(line, out, context),
        None => output.put(line, out),
    }
}

impl Mapper for StreamMapper {
    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        match &self.key_separator {
            Some(separator) => self.program.add_input(&[key, separator, value, b"\n"]),
            None => self.program.add_input(&[value, b"\n"]),
        }
        if self.program.needs_exchange() { self.exchange(false, out, context) } else { Ok(()) }
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        self.exchange(true, out, context)?;
        let Self { lines, combiner, output, .. } = self;
        lines.finish(&mut |line| emit(line, output, combiner.as_mut(), out, context))?;
        match combiner {
            Some(combiner) => combiner.flush(out, context),
            None => Ok(()),
        }
    }
}

/// Passes sorted pairs to a program and emits its output.
pub(super) struct StreamReducer {
    program: Program,
    lines: LineSplitter,
    /// The separator between key and value.
    separator: Vec<u8>,
    /// The lines of a combiner are pairs, those of the reducer the output of the job.
    output: Lines,
    restartable: bool,
}

impl StreamReducer {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        Self::of(REDUCER, conf)
    }

    fn of(setting: &'static str, conf: &Conf) -> Result<Self, TaskError> {
        let lines = LineSplitter::new(record_bytes_max(conf)?);
        let restartable = conf.parse(RESTARTABLE, false)?;
        let separator = fields::separator(conf, fields::REDUCE_INPUT_SEPARATOR)?;
        let output = if setting == REDUCER {
            Lines::Output(OutputLines::new(LineFormat::of_reduce_output(conf)?, conf)?)
        } else {
            Lines::Pairs(LineFormat::of_combiner_output(conf)?)
        };
        Ok(Self { program: Program::start(setting, conf)?, lines, separator, output, restartable })
    }

    fn exchange(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines, output, .. } = self;
        program.exchange(all, context, &mut |bytes, _| {
            lines.push_chunk(bytes, &mut |line| output.put(line, out))
        })
    }

    fn add(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        self.program.add_input(&[key, &self.separator, value, b"\n"]);
        if self.program.needs_exchange() { self.exchange(false, out, context) } else { Ok(()) }
    }
}

impl Reducer for StreamReducer {
    fn reduce(
        &mut self,
        _key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        // Keys of one group may differ in fields that are not compared.
        while let Some((key, value)) = values.next_pair()? {
            self.add(key, value, out, context)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        self.exchange(true, out, context)?;
        let Self { lines, output, .. } = self;
        lines.finish(&mut |line| output.put(line, out))
    }

    fn state_between_keys(&self) -> StateBetweenKeys {
        if self.restartable {
            return StateBetweenKeys::Savable;
        }
        StateBetweenKeys::NotSavable(
            "the reducer program may have state between keys (stream.reducer.restartable is not true)",
        )
    }

    /// Ends the program after the keys that it got, and emits its output. There is no other state.
    fn save(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<Vec<u8>, TaskError> {
        self.finish(out, context)?;
        Ok(Vec::new())
    }
}
