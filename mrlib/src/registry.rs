//! The built-in programs, by name.

use crate::{
    api::{Emit, Mapper, Reducer, Values},
    conf::Conf,
    context::Context,
    error::TaskError,
    job::Job,
    streaming,
};

type MakeBuiltin = fn(&Conf) -> Result<Job, TaskError>;

/// Name, what it does in a few words, and how it is made.
const BUILTINS: [(&str, &str, MakeBuiltin); 3] = [
    ("identity", "puts out each line as it is, sorted if there are reduces", |_| Ok(identity())),
    ("streaming", "any executable as mapper, combiner and reducer", streaming::job),
    ("wordcount", "how often each word occurs", |_| Ok(wordcount())),
];

/// The job of a built-in program.
pub fn job(name: &str, conf: &Conf) -> Result<Job, TaskError> {
    let found = BUILTINS.iter().find(|(known, _, _)| *known == name);
    let Some((_, _, make)) = found else {
        let known: Vec<&str> = BUILTINS.iter().map(|(name, _, _)| *name).collect();
        return Err(format!("there is no built-in program {name:?}: there are {}", known.join(", ")).into());
    };
    make(conf)
}

/// Names of the built-in programs, with what each does.
pub fn builtins() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILTINS.iter().map(|(name, what, _)| (*name, *what))
}

/// Lines, as keys.
struct Lines;

impl Mapper for Lines {
    fn map(
        &mut self,
        _key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(value, b"")
    }
}

fn identity() -> Job {
    Job::map(|_| Ok(Lines))
}

/// Words between white space, each with a count of one (eight little-endian bytes).
struct Words;

impl Mapper for Words {
    fn map(
        &mut self,
        _key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        for word in value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            out.emit(word, &1_u64.to_le_bytes())?;
        }
        Ok(())
    }
}

fn count(value: &[u8]) -> Result<u64, TaskError> {
    let bytes = value.try_into().map_err(|_| TaskError::Program("a count is not of eight bytes".into()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn sum(values: &mut dyn Values) -> Result<u64, TaskError> {
    let mut sum = 0;
    while let Some(value) = values.next()? {
        sum += count(value)?;
    }
    Ok(sum)
}

/// Adds counts up; puts them out as they came in.
struct Add;

impl Reducer for Add {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(key, &sum(values)?.to_le_bytes())
    }

    #[inline]
    fn fold(&mut self, into: &mut [u8], value: &[u8]) -> bool {
        let (Ok(kept), Ok(more)) = (count(into), count(value)) else { return false };
        into.copy_from_slice(&(kept + more).to_le_bytes());
        true
    }
}

/// Adds counts up; puts them out for people.
struct Total;

impl Reducer for Total {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(key, sum(values)?.to_string().as_bytes())
    }
}

fn wordcount() -> Job {
    Job::map(|_| Ok(Words)).combine(|_| Ok(Add)).reduce(|_| Ok(Total))
}
