//! The log of a group of masters.
//!
//! The members of a group are all NameNode or all JobTracker. A Raft group agrees on one log;
//! openraft decides, and this crate stores what it decides in the [`journal`], so that a group and
//! a single master have the same files, the same group commit and the same checks for damage
//! (ADR 0036).
//!
//! - [`types`]: entries, votes and members;
//! - [`codec`]: their encoding;
//! - [`raft_file`]: files with the vote and what else is not in the log;
//! - [`store`]: the log store of openraft;
//! - [`recovery`]: a member that has lost its log, or leaves its group;
//! - [`replay`]: reads the records of a journal, with and without a group;
//! - [`machine`]: the state machine of openraft, for any master;
//! - [`proposals`]: what a leader has appended, and what of it is committed;
//! - [`network`]: messages between members;
//! - [`member`]: a running member;
//! - [`memory`]: groups in one process, for tests;
//! - [`runtime`]: the runtime of openraft;
//! - [`master`]: the journal of a master, with and without a group;
//! - [`error`]: why the log of a group, or its state, cannot be used.

pub mod codec;
pub mod error;
pub mod machine;
pub mod master;
pub mod member;
pub mod memory;
pub mod network;
#[cfg(test)]
mod proposal_tests;
pub mod proposals;
pub mod raft_file;
pub mod recovery;
pub mod replay;
pub mod runtime;
pub mod store;
pub mod types;
mod watch;
