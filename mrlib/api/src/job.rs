//! A job as its author defines it: input, map, sort, reduce and output.

use crate::{
    conf::Conf,
    error::TaskError,
    format::{InputFormat, OutputFormat},
    settings::{Kind, Setting},
    traits::{KeyOrder, Mapper, Partitioner, Reducer},
};
use std::sync::Arc;

type Make<T> = Arc<dyn Fn(&Conf) -> Result<Box<T>, TaskError> + Send + Sync>;

/// The program of a job. Create it with [`Job::map`] and the builder methods.
#[derive(Clone)]
pub struct Job {
    /// Creates the mapper of a task.
    pub mapper: Make<dyn Mapper>,
    /// Creates the combiner, if there is one.
    pub combiner: Option<Make<dyn Reducer>>,
    /// Creates the reducer; None for a map-only job.
    pub reducer: Option<Make<dyn Reducer>>,
    /// Creates the partitioner; None to partition by hash.
    pub partitioner: Option<Make<dyn Partitioner>>,
    /// The sort order of keys.
    pub order: KeyOrder,
    /// The order that defines key groups for the reducer; None for the sort order.
    pub grouping: Option<KeyOrder>,
    /// The input format.
    pub input: InputFormat,
    /// The output format.
    pub output: OutputFormat,
    /// Whether reduces get ranges of keys, found by sampling the input, so that all parts together
    /// are sorted (total order).
    pub total_order: bool,
    /// Whether the reducer gets the values of a key sorted by their bytes.
    pub sort_values: bool,
    /// Settings that the program declares, in addition to those of the engine.
    pub settings: Vec<Setting>,
    /// Whether the input may be divided at any record: see [`Mapper::divisible`].
    pub divisible: bool,
}

impl Job {
    /// Creates a job with this mapper and no reducer.
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

    /// Declares a setting of the program. Then `--conf NAME=VALUE` is accepted and misspelled names
    /// are refused at submission. Names that begin with `user.` need no declaration.
    #[must_use]
    pub fn declare_setting(mut self, name: impl Into<String>, kind: Kind, help: impl Into<String>) -> Self {
        let (name, help) = (name.into().into(), help.into().into());
        self.settings.push(Setting { name, kind, help });
        self
    }

    /// Sets the reducer.
    #[must_use]
    pub fn reduce<R: Reducer + 'static>(
        mut self,
        make: impl Fn(&Conf) -> Result<R, TaskError> + Send + Sync + 'static,
    ) -> Self {
        self.reducer = Some(Arc::new(move |conf| Ok(Box::new(make(conf)?))));
        self
    }

    /// Sets the combiner.
    #[must_use]
    pub fn combine<R: Reducer + 'static>(
        mut self,
        make: impl Fn(&Conf) -> Result<R, TaskError> + Send + Sync + 'static,
    ) -> Self {
        self.combiner = Some(Arc::new(move |conf| Ok(Box::new(make(conf)?))));
        self
    }

    /// Sets the partitioner.
    #[must_use]
    pub fn partition<P: Partitioner + 'static>(
        mut self,
        make: impl Fn(&Conf) -> Result<P, TaskError> + Send + Sync + 'static,
    ) -> Self {
        self.partitioner = Some(Arc::new(move |conf| Ok(Box::new(make(conf)?))));
        self
    }

    /// Sets the sort order of keys.
    #[must_use]
    pub fn sort_by(mut self, order: KeyOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets the order that defines key groups (secondary sort).
    #[must_use]
    pub fn group_by(mut self, grouping: KeyOrder) -> Self {
        self.grouping = Some(grouping);
        self
    }

    /// Sets the input format.
    #[must_use]
    pub fn read(mut self, input: InputFormat) -> Self {
        self.input = input;
        self
    }

    /// Sets the output format.
    #[must_use]
    pub fn write(mut self, output: OutputFormat) -> Self {
        self.output = output;
        self
    }

    /// Requests a total order: see [`Job::total_order`].
    #[must_use]
    pub fn totally_ordered(mut self) -> Self {
        self.total_order = true;
        self
    }

    /// Passes the values of each key to the reducer sorted by their bytes.
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
