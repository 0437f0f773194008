//! The API for job authors ([`Mapper`], [`Reducer`], [`Job`]), and the engine that runs tasks.

pub mod api;
pub mod checkpoint;
pub mod conf;
pub mod context;
pub mod engine;
pub mod error;
pub mod fetch;
pub mod input;
pub mod job;
pub mod local;
pub mod merge;
pub mod output;
mod panics;
pub mod partition;
pub mod programs;
pub mod ranges;
pub mod registry;
pub mod run;
pub mod segment;
pub mod settings;
pub mod sort;
pub mod streaming;
pub mod task;
pub mod typed;

pub use api::{
    Emit, IdentityReducer, KeyOrder, Mapper, Pair, Partitioner, Reducer, StateBetweenKeys, Values,
};
pub use conf::Conf;
pub use context::{Context, Counter};
pub use error::TaskError;
pub use job::{InputFormat, Job, OutputFormat};
pub use run::run;
