//! `streaming`: arbitrary executables as mapper, combiner and reducer, over stdin and stdout.
//!
//! The rules are those of Hadoop streaming. A mapper reads lines (`key TAB value` if the input
//! format has keys); its output lines are split at the first tab into key and value. A reducer
//! reads `key TAB value` lines, sorted by key. The lines of the reducer, or of the mapper if there
//! are no reduces, are the output of the job, unchanged. On stderr, the lines
//! `reporter:counter:GROUP,NAME,N` and `reporter:status:TEXT` set counters and the status; all
//! other lines go to the log. Settings are environment variables. Programs are started without a
//! shell, in the folder of the attempt.
//!
//! The combiner program runs inside the mapper, over sorted portions of the output of the mapper
//! program: one process per portion.
//!
//! Not supported: separators other than the tab, typed bytes.

mod combine;
mod command;
mod lines;
mod program;
mod report;
mod window;

#[cfg(test)]
mod tests;

pub use command::split_command;

use crate::settings::record_bytes_max;
use combine::PortionCombiner;
use lines::{LineSplitter, split_pair};
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

/// The settings of streaming jobs.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new(MAPPER, Kind::Text, "command of the mapper (--mapper)"),
    Setting::new(COMBINER, Kind::Text, "command of the combiner (--combiner)"),
    Setting::new(REDUCER, Kind::Text, "command of the reducer (--reducer)"),
    Setting::new(DIVISIBLE, Kind::Flag, "true: the input of the mapper may be divided at any line"),
    Setting::new(RESTARTABLE, Kind::Flag, "true: the reducer has no state between keys"),
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
    let mut job = Job::map(StreamMapper::new);
    job.divisible = conf.parse(DIVISIBLE, false)?;
    Ok(if conf.get(REDUCER).is_some() { job.reduce(StreamReducer::new) } else { job })
}

/// Passes records to a program and emits its output.
struct StreamMapper {
    program: Program,
    lines: LineSplitter,
    /// Whether the program gets the keys of records.
    keyed: bool,
    /// Whether the lines of the program are the output of the job, because there are no reduces.
    is_job_output: bool,
    combiner: Option<PortionCombiner>,
}

impl StreamMapper {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        let keyed = conf.parse("input.format", InputFormat::Lines)? != InputFormat::Lines;
        let is_job_output = conf.get(task_settings::JOB_REDUCES) == Some("0");
        let combiner =
            conf.get(COMBINER).filter(|_| !is_job_output).map(|_| PortionCombiner::new(conf.clone()));
        let lines = LineSplitter::new(record_bytes_max(conf)?);
        Ok(Self { program: Program::start(MAPPER, conf)?, lines, keyed, is_job_output, combiner })
    }

    fn exchange(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines, combiner, is_job_output, .. } = self;
        program.exchange(all, context, &mut |bytes, context| {
            lines.push_chunk(bytes, &mut |line| emit(line, *is_job_output, combiner.as_mut(), out, context))
        })
    }
}

/// Emits one line of the mapper program, through the combiner if there is one.
fn emit(
    line: &[u8],
    is_job_output: bool,
    combiner: Option<&mut PortionCombiner>,
    out: &mut dyn Emit,
    context: &mut Context,
) -> Result<(), TaskError> {
    match combiner {
        Some(combiner) => {
            let (key, value) = split_pair(line);
            combiner.add(key, value, out, context)
        }
        None => put(line, is_job_output, out),
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
        if self.keyed {
            self.program.add_input(&[key, b"\t", value, b"\n"]);
        } else {
            self.program.add_input(&[value, b"\n"]);
        }
        if self.program.needs_exchange() { self.exchange(false, out, context) } else { Ok(()) }
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        self.exchange(true, out, context)?;
        let Self { lines, combiner, is_job_output, .. } = self;
        lines.finish(&mut |line| emit(line, *is_job_output, combiner.as_mut(), out, context))?;
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
    /// Whether the lines of the program are the output of the job. The lines of a combiner are
    /// pairs.
    is_job_output: bool,
    restartable: bool,
}

impl StreamReducer {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        Self::of(REDUCER, conf)
    }

    fn of(setting: &'static str, conf: &Conf) -> Result<Self, TaskError> {
        let lines = LineSplitter::new(record_bytes_max(conf)?);
        let restartable = conf.parse(RESTARTABLE, false)?;
        Ok(Self {
            program: Program::start(setting, conf)?,
            lines,
            is_job_output: setting == REDUCER,
            restartable,
        })
    }

    fn exchange(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines, is_job_output, .. } = self;
        program.exchange(all, context, &mut |bytes, _| {
            lines.push_chunk(bytes, &mut |line| put(line, *is_job_output, out))
        })
    }

    fn add(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        self.program.add_input(&[key, b"\t", value, b"\n"]);
        if self.program.needs_exchange() { self.exchange(false, out, context) } else { Ok(()) }
    }
}

/// Emits a line. A line of the job output is not split into key and value, because joining it again
/// would lose empty keys or values.
fn put(line: &[u8], is_job_output: bool, out: &mut dyn Emit) -> Result<(), TaskError> {
    let (key, value) = if is_job_output { (line, &[][..]) } else { split_pair(line) };
    out.emit(key, value)
}

impl Reducer for StreamReducer {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        while let Some(value) = values.next()? {
            self.add(key, value, out, context)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        self.exchange(true, out, context)?;
        let is_job_output = self.is_job_output;
        self.lines.finish(&mut |line| put(line, is_job_output, out))
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
