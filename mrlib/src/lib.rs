//! What a job author uses ([`Mapper`], [`Reducer`], [`Job`]), and the engine that runs tasks.

pub mod api;
pub mod conf;
pub mod context;
pub mod error;
pub mod job;

pub use api::{Emit, KeyOrder, Mapper, Partitioner, Reducer, Values};
pub use conf::Conf;
pub use context::{Context, Counter};
pub use error::TaskError;
pub use job::{InputFormat, Job, OutputFormat};
