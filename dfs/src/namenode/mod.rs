//! The NameNode: who is called what, and where the bytes are.
//!
//! [`op`] is the language: operations in, outcomes out. The state machine is pure (time is passed in); the
//! driver around it owns the clock, the edit log and the gRPC server.

pub mod namespace;
pub mod op;
pub mod placement;
mod plan;
pub mod settings;
pub mod state;
pub mod view;

#[cfg(test)]
mod tests;

pub use namespace::{ApplyError, Edit, Namespace, Record, SnapshotItem, SnapshotLoader};
pub use settings::Settings;
pub use state::{Handled, State};
