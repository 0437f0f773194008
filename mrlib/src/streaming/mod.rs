//! `streaming`: any executable as mapper, combiner and reducer, over stdin and stdout.
//!
//! The rules are Hadoop streaming's. A mapper reads lines (`key TAB value` where the input has keys of its own); what
//! it writes is cut at the first tab into key and value. A reducer reads `key TAB value` lines, sorted by key. Lines
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

pub use command::words;

use crate::{
    api::{Emit, Mapper, Reducer, Values},
    conf::Conf,
    context::Context,
    error::TaskError,
    job::Job,
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

/// The job, by its settings.
pub fn job(conf: &Conf) -> Result<Job, TaskError> {
    if conf.get(MAPPER).is_none() {
        return Err(format!("streaming needs a mapper: give --mapper CMD (setting {MAPPER})").into());
    }
    for key in [MAPPER, COMBINER, REDUCER] {
        if let Some(command) = conf.get(key) {
            words(command).map_err(|why| TaskError::Program(format!("{key} = {command:?}: {why}")))?;
        }
    }
    let job = Job::map(StreamMapper::new);
    Ok(if conf.get(REDUCER).is_some() { job.reduce(StreamReducer::new) } else { job })
}

/// Feeds records to a program and puts out what it writes.
struct StreamMapper {
    program: Program,
    lines: Lines,
    /// Whether records have keys that the program should see.
    keyed: bool,
    combining: Option<Combining>,
}

impl StreamMapper {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        let keyed = conf.get("input.format").is_some_and(|format| format != "lines");
        let combining = conf.get(COMBINER).map(|_| Combining::new(conf.clone()));
        Ok(Self { program: Program::start(MAPPER, conf)?, lines: Lines::default(), keyed, combining })
    }

    fn pump(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines, combining, .. } = self;
        program.pump(all, context, &mut |bytes, context| {
            lines.take(bytes, &mut |line| emit(line, combining.as_mut(), out, context))
        })
    }
}

/// Puts out one line of the map program, by way of the combiner if there is one.
fn emit(
    line: &[u8],
    combining: Option<&mut Combining>,
    out: &mut dyn Emit,
    context: &mut Context,
) -> Result<(), TaskError> {
    let (key, value) = cut(line);
    match combining {
        Some(combining) => combining.add(key, value, out, context),
        None => out.emit(key, value),
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
        if self.program.wants_pumping() { self.pump(false, out, context) } else { Ok(()) }
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        self.pump(true, out, context)?;
        let Self { lines, combining, .. } = self;
        lines.end(&mut |line| emit(line, combining.as_mut(), out, context))?;
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
}

impl StreamReducer {
    fn new(conf: &Conf) -> Result<Self, TaskError> {
        Self::of(REDUCER, conf)
    }

    fn of(setting: &'static str, conf: &Conf) -> Result<Self, TaskError> {
        Ok(Self { program: Program::start(setting, conf)?, lines: Lines::default() })
    }

    fn pump(&mut self, all: bool, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let Self { program, lines } = self;
        program.pump(all, context, &mut |bytes, _| lines.take(bytes, &mut |line| put(line, out)))
    }

    fn add(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        self.program.feed(&[key, b"\t", value, b"\n"]);
        if self.program.wants_pumping() { self.pump(false, out, context) } else { Ok(()) }
    }
}

fn put(line: &[u8], out: &mut dyn Emit) -> Result<(), TaskError> {
    let (key, value) = cut(line);
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
        self.pump(true, out, context)?;
        self.lines.end(&mut |line| put(line, out))
    }
}
