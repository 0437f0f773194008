//! `streaming`: any executable as mapper, combiner and reducer, over stdin and stdout.
//!
//! The rules are Hadoop streaming's. A mapper reads lines (`key TAB value` where the input has keys of its own); what
//! it writes is cut at the first tab into key and value. A reducer reads `key TAB value` lines, sorted by key. What it
//! writes, or a mapper without reduces, is the output, line by line as it is. Lines
//! `reporter:counter:GROUP,NAME,N` and `reporter:status:TEXT` on stderr are for us, the rest goes to the log. Settings
//! are in the environment. Programs are started without a shell, in the attempt's folder.
//!
//! A combiner is run here, inside the mapper, over sorted portions of what the map program writes: one process a
//! portion, as a combiner of the engine would be asked key by key.
//!
//! Deliberately absent: separators other than the tab, typed bytes.

mod combine;
mod command;
mod lines;
mod program;
mod report;

#[cfg(test)]
mod tests;

pub use command::split_command;

use crate::{
    api::{Emit, Mapper, Reducer, StateBetweenKeys, Values},
    conf::Conf,
    context::Context,
    engine::record_bytes_max,
    error::TaskError,
    job::Job,
    settings::{Kind, Setting},
    task,
};
use combine::Combining;
use lines::{Lines, cut};
use program::Program;

/// The setting that holds the mapper's command.
pub const MAPPER: &str = "stream.mapper";
/// The setting that holds the combiner's command.
pub const COMBINER: &str = "stream.combiner";
/// The setting that holds the reducer's command.
pub const REDUCER: &str = "stream.reducer";
/// The setting that says that the reducer keeps nothing from key to key: it may then be ended between two, as by the end
/// of its input, and another one continues with the next key.
pub const RESTARTABLE: &str = "stream.reducer.restartable";

/// The setting that promises that the mapper's input may be divided at any line, between two runs of its program. Without
/// it a streaming map is never split.
pub const DIVISIBLE: &str = "stream.mapper.divisible";

/// The settings of streaming jobs.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new(MAPPER, Kind::Text, "the mapper's command (--mapper)"),
    Setting::new(COMBINER, Kind::Text, "the combiner's command (--combiner)"),
    Setting::new(REDUCER, Kind::Text, "the reducer's command (--reducer)"),
    Setting::new(DIVISIBLE, Kind::Flag, "whether the mapper's input may be divided at any line"),
    Setting::new(RESTARTABLE, Kind::Flag, "true: the reducer keeps nothing from key to key"),
];

/// The job, by its settings.
pub fn job(conf: &Conf) -> Result<Job, TaskError> {
    if conf.get(MAPPER).is_none() {
        return Err(format!("streaming needs a mapper: give --mapper CMD (setting {MAPPER})").into());
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

/// Feeds records to a program and puts out what it writes.
struct StreamMapper {
    program: Program,
    lines: Lines,
    /// Whether records have keys that the program should see.
    keyed: bool,
    /// Whether its lines are the job's output.
    last: bool,
    combining: Option<Combining>,
}

impl StreamMapper {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        let keyed = conf.get("input.format").is_some_and(|format| format != "lines");
        let last = conf.get(task::JOB_REDUCES) == Some("0");
        let combining = conf.get(COMBINER).filter(|_| !last).map(|_| Combining::new(conf.clone()));
        let lines = Lines::new(record_bytes_max(conf)?);
        Ok(Self { program: Program::start(MAPPER, conf)?, lines, keyed, last, combining })
    }

    fn exchange(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines, combining, last, .. } = self;
        program.exchange(all, context, &mut |bytes, context| {
            lines.feed(bytes, &mut |line| emit(line, *last, combining.as_mut(), out, context))
        })
    }
}

/// Puts out one line of the map program, by way of the combiner if there is one.
fn emit(
    line: &[u8],
    last: bool,
    combining: Option<&mut Combining>,
    out: &mut dyn Emit,
    context: &mut Context,
) -> Result<(), TaskError> {
    match combining {
        Some(combining) => {
            let (key, value) = cut(line);
            combining.add(key, value, out, context)
        }
        None => put(line, last, out),
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
            self.program.feed(&[key, b"\t", value, b"\n"]);
        } else {
            self.program.feed(&[value, b"\n"]);
        }
        if self.program.needs_exchange() { self.exchange(false, out, context) } else { Ok(()) }
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        self.exchange(true, out, context)?;
        let Self { lines, combining, last, .. } = self;
        lines.end(&mut |line| emit(line, *last, combining.as_mut(), out, context))?;
        match combining {
            Some(combining) => combining.flush(out, context),
            None => Ok(()),
        }
    }
}

/// Feeds sorted pairs to a program and puts out what it writes.
pub(super) struct StreamReducer {
    program: Program,
    lines: Lines,
    /// Whether its lines are the job's output; a combiner's are pairs.
    last: bool,
    restartable: bool,
}

impl StreamReducer {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        Self::of(REDUCER, conf)
    }

    fn of(setting: &'static str, conf: &Conf) -> Result<Self, TaskError> {
        let lines = Lines::new(record_bytes_max(conf)?);
        let restartable = conf.parse(RESTARTABLE, false)?;
        Ok(Self { program: Program::start(setting, conf)?, lines, last: setting == REDUCER, restartable })
    }

    fn exchange(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines, last, .. } = self;
        program.exchange(all, context, &mut |bytes, _| lines.feed(bytes, &mut |line| put(line, *last, out)))
    }

    fn add(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        self.program.feed(&[key, b"\t", value, b"\n"]);
        if self.program.needs_exchange() { self.exchange(false, out, context) } else { Ok(()) }
    }
}

/// A line that is the job's output goes out as it is: cut and put together again it would lose empty ends.
fn put(line: &[u8], last: bool, out: &mut dyn Emit) -> Result<(), TaskError> {
    let (key, value) = if last { (line, &[][..]) } else { cut(line) };
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
        let last = self.last;
        self.lines.end(&mut |line| put(line, last, out))
    }

    fn state_between_keys(&self) -> StateBetweenKeys {
        if self.restartable {
            return StateBetweenKeys::Savable;
        }
        StateBetweenKeys::NotSavable(
            "its program may keep something from key to key (stream.reducer.restartable is not true)",
        )
    }

    /// All that the program has to say to the keys that it was given; it keeps nothing else.
    fn save(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<Vec<u8>, TaskError> {
        self.finish(out, context)?;
        Ok(Vec::new())
    }
}
