//! The NameNode: manages the namespace and knows where blocks are.
//!
//! [`op`] defines operations and their outcomes. The state machine is pure: time is a parameter.
//! The driver adds the clock, the edit log and the gRPC server.

#[cfg(test)]
mod crash_tests;
pub mod driver;
mod error;
mod group;
#[cfg(test)]
mod group_tests;
pub mod namespace;
pub mod op;
mod permit;
mod plan;
#[cfg(test)]
mod recovery_tests;
mod run;
mod server;
pub mod settings;
pub mod state;
pub mod storage;
pub mod view;
mod wire;

#[cfg(test)]
mod tests;

pub use error::NameNodeError;
pub use journal::Recovery;
pub use namespace::{ApplyError, Edit, Namespace, Record, SnapshotItem, SnapshotLoader};
pub use run::run;
pub use settings::Settings;
pub use state::{Entry, Handled, State};
pub use storage::StorageError;
