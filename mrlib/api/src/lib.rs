//! What job authors and the task engine share: the traits of a job, its builder, its settings and
//! errors, and the controls of a running task.
//!
//! Job authors use the crate `mrlib`, which re-exports what they need. This crate uses no files,
//! sockets or wire types.

#![warn(missing_docs)]

pub mod codec;
mod conf;
mod context;
mod control;
pub mod error;
mod format;
pub mod hadoop;
mod job;
mod key_fields;
pub mod limits;
mod liveness;
pub mod settings;
pub mod task_settings;
mod traits;

pub use conf::Conf;
pub use context::{Context, Counter};
pub use control::TaskControl;
pub use error::TaskError;
pub use format::{InputFormat, OutputFormat};
pub use job::Job;
pub use key_fields::KeyFields;
pub use liveness::Liveness;
pub use traits::{
    Emit, IdentityReducer, KeyOrder, Mapper, Pair, Partitioner, Reducer, StateBetweenKeys, Values,
};
pub use types::{PreemptKind, PreemptRefusal};
