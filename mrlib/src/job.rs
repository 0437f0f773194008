//! A job as its author describes it: what is read, mapped, sorted, reduced and written.

use crate::{
    api::{KeyOrder, Mapper, Partitioner, Reducer},
    conf::Conf,
    error::TaskError,
    settings::{Kind, Setting},
};
use std::{fmt, str::FromStr, sync::Arc};

/// How input files are cut into records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InputFormat {
    /// Lines: key = offset of the line (eight big-endian bytes), value = the line without its end (`\n` or `\r\n`).
    #[default]
    Lines,
    /// Lines cut at the first tab: key before it, value after it (empty if there is none).
    KeyValueLines,
    /// Records of a fixed length, whose first bytes are the key.
    Fixed {
        /// Bytes in a record.
        record: usize,
        /// Bytes of the key.
        key: usize,
    },
    /// Whole files: key = path, value = contents. Never split.
    WholeFile,
}

impl FromStr for InputFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fixed = || {
            let (record, key) = text.strip_prefix("fixed:")?.split_once(':')?;
            let (record, key) = (record.parse().ok()?, key.parse().ok()?);
            (record > 0 && key <= record).then_some(Self::Fixed { record, key })
        };
        match text {
            "lines" => Ok(Self::Lines),
            "keyvalue" => Ok(Self::KeyValueLines),
            "whole" => Ok(Self::WholeFile),
            _ => fixed().ok_or_else(|| "write lines, keyvalue, whole or fixed:RECORD:KEY (bytes)".into()),
        }
    }
}

impl fmt::Display for InputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lines => f.write_str("lines"),
            Self::KeyValueLines => f.write_str("keyvalue"),
            Self::WholeFile => f.write_str("whole"),
            Self::Fixed { record, key } => write!(f, "fixed:{record}:{key}"),
        }
    }
}

/// How output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputFormat {
    /// `key TAB value NEWLINE`; without the tab if the value is empty, without either if the key is.
    #[default]
    Text,
    /// For programs: length of the key and of the value as u32 little endian, then both.
    KeyValue,
    /// Key and value as they are, with nothing between.
    Raw,
}

type Make<T> = Arc<dyn Fn(&Conf) -> Result<Box<T>, TaskError> + Send + Sync>;

/// A job's program. Build it with [`Job::map`] and the methods that follow.
#[derive(Clone)]
pub struct Job {
    /// Makes a mapper for a task.
    pub mapper: Make<dyn Mapper>,
    /// Makes a combiner, if there is one.
    pub combiner: Option<Make<dyn Reducer>>,
    /// Makes a reducer; None for a map-only job.
    pub reducer: Option<Make<dyn Reducer>>,
    /// Chooses reduces; by hash if none is given.
    pub partitioner: Option<Make<dyn Partitioner>>,
    /// How keys are sorted.
    pub order: KeyOrder,
    /// How keys are grouped for the reducer; as sorted if none is given.
    pub grouping: Option<KeyOrder>,
    /// How input is read.
    pub input: InputFormat,
    /// How output is written.
    pub output: OutputFormat,
    /// Whether reduces get ranges of keys, found by sampling the input, so that parts in order are sorted as a whole.
    pub total_order: bool,
    /// Whether the values of a key come to the reducer in a fixed order (sorted by their bytes).
    pub sort_values: bool,
    /// Settings that the program takes besides those of the engine.
    pub settings: Vec<Setting>,
    /// Whether the mapper promises that its input may be divided at any record: see [`Mapper::divisible`].
    pub divisible: bool,
}

impl Job {
    /// A job with this mapper and no reducer.
    pub fn map<M: Mapper + 'static>(
        make: impl Fn(&Conf) -> Result<M, TaskError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            mapper: Arc::new(move |conf| Ok(Box::new(make(conf)?))),
            combiner: None,
            reducer: None,
            partitioner: None,
            order: KeyOrder::Bytes,
            grouping: None,
            input: InputFormat::Lines,
            output: OutputFormat::Text,
            total_order: false,
            sort_values: false,
            settings: Vec::new(),
            divisible: M::divisible(),
        }
    }

    /// Declares a setting of the program, so that `--conf NAME=VALUE` is accepted and misspelled names are refused at
    /// submission. Names that begin with `user.` need no declaration.
    #[must_use]
    pub fn declare_setting(mut self, name: impl Into<String>, kind: Kind, help: impl Into<String>) -> Self {
        let (name, help) = (name.into().into(), help.into().into());
        self.settings.push(Setting { name, kind, help });
        self
    }

    /// Adds a reducer.
    #[must_use]
    pub fn reduce<R: Reducer + 'static>(
        mut self,
        make: impl Fn(&Conf) -> Result<R, TaskError> + Send + Sync + 'static,
    ) -> Self {
        self.reducer = Some(Arc::new(move |conf| Ok(Box::new(make(conf)?))));
        self
    }

    /// Adds a combiner.
    #[must_use]
    pub fn combine<R: Reducer + 'static>(
        mut self,
        make: impl Fn(&Conf) -> Result<R, TaskError> + Send + Sync + 'static,
    ) -> Self {
        self.combiner = Some(Arc::new(move |conf| Ok(Box::new(make(conf)?))));
        self
    }

    /// Chooses reduces in its own way.
    #[must_use]
    pub fn partition<P: Partitioner + 'static>(
        mut self,
        make: impl Fn(&Conf) -> Result<P, TaskError> + Send + Sync + 'static,
    ) -> Self {
        self.partitioner = Some(Arc::new(move |conf| Ok(Box::new(make(conf)?))));
        self
    }

    /// Sorts keys in its own way.
    #[must_use]
    pub fn sort_by(mut self, order: KeyOrder) -> Self {
        self.order = order;
        self
    }

    /// Groups keys in its own way (secondary sort).
    #[must_use]
    pub fn group_by(mut self, grouping: KeyOrder) -> Self {
        self.grouping = Some(grouping);
        self
    }

    /// Reads in this format.
    #[must_use]
    pub fn read(mut self, input: InputFormat) -> Self {
        self.input = input;
        self
    }

    /// Writes in this format.
    #[must_use]
    pub fn write(mut self, output: OutputFormat) -> Self {
        self.output = output;
        self
    }

    /// Sorts as a whole: see [`Job::total_order`].
    #[must_use]
    pub fn totally_ordered(mut self) -> Self {
        self.total_order = true;
        self
    }

    /// Gives the reducer each key's values sorted by their bytes.
    #[must_use]
    pub fn sorted_values(mut self) -> Self {
        self.sort_values = true;
        self
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("combiner", &self.combiner.is_some())
            .field("reducer", &self.reducer.is_some())
            .field("input", &self.input)
            .field("output", &self.output)
            .finish_non_exhaustive()
    }
}
