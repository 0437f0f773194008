//! Every scheduling policy, pure and small: a cluster and its history in, decisions out.
//!
//! A policy is one file here and one line in [`make`]. Read [`fifo`] first.

pub mod fifo;

use mrcore::Scheduler;

/// A name that is not a policy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheduler {name:?}: choose one of {}", NAMES.join(", "))]
pub struct UnknownScheduler {
    name: String,
}

/// The policies, by name.
pub const NAMES: [&str; 1] = ["fifo"];

/// The policy of this name.
pub fn make(name: &str) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    match name {
        "fifo" => Ok(Box::new(fifo::Fifo::default())),
        _ => Err(UnknownScheduler { name: name.to_owned() }),
    }
}
