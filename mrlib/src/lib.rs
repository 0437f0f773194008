//! The library for job authors: [`Mapper`], [`Reducer`], the [`Job`] builder, [`typed`] keys and
//! values, and [`run()`], the main function of a job binary.
//!
//! The default feature `run` adds the task engine, because a job binary is also its task process.
//! Without it, the crate has only the types, which is enough for a library of mappers and reducers.

#![warn(missing_docs)]

pub mod typed;

#[cfg(feature = "run")]
pub use engine::{local, partition, run};
pub use mrlib_api::{
    Conf, Context, Counter, Emit, IdentityReducer, InputFormat, Job, KeyFields, KeyOrder, Mapper,
    OutputFormat, Pair, Partitioner, Reducer, StateBetweenKeys, TaskError, Values, error, settings,
    task_settings,
};
