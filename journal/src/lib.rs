//! A durable append-only log with group commit, and snapshots beside it. The NameNode keeps its edits here and
//! the JobTracker its facts.
//!
//! A record is bytes; what it means is its owner's affair. Records have sequence numbers from 1 without gaps.
//!
//! - [`log`]: open, append, wait until durable, rotate; what an owner uses;
//! - [`replay`]: streaming the newest snapshot and the records after it;
//! - [`snapshot`]: writing a snapshot;
//! - [`codec`]: values to bytes and back;
//! - [`home`]: a daemon's folder around it, with `VERSION`;
//! - [`snapshot_policy`]: when snapshots are made;
//! - [`disk`]: the folder operations the log needs, on real files;
//! - [`crash`]: the same operations on an instrumented disk, for crash tests.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use fermata_journal::{disk::RealDisk, log::{Log, Recovery}, replay::Item};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Arc::new(RealDisk::open("edits")?);
//! let mut opened = Log::open(disk, Recovery::Refuse)?;
//! while let Some(item) = opened.replay.next()? {
//!     match item {
//!         Item::Snapshot(_bytes) => { /* a piece of the state */ }
//!         Item::Record { .. } => { /* apply it */ }
//!     }
//! }
//! let seq = opened.log.append(b"something happened")?;
//! opened.log.sync(seq)?; // or `wait_durable(seq).await`; only then is it acknowledged
//! # Ok(()) }
//! ```
//!
//! Deliberately absent: replication, compression, random access by sequence number, a lock on the folder (the
//! daemon that owns the folder holds it).

pub mod codec;
mod commit;
pub mod crash;
pub mod disk;
pub mod error;
mod format;
pub mod home;
pub mod log;
#[cfg(test)]
mod read_error_tests;
mod repair;
pub mod replay;
mod segment;
pub mod snapshot;
pub mod snapshot_policy;
mod source;
mod survey;
mod writer;

pub use error::{AppendError, LogError, LogFailed};
pub use home::{Home, HomeError, Owner, Recovering};
pub use log::{Log, Opened, Recovery};
pub use replay::{Item, Replay};
pub use snapshot::SnapshotWriter;
pub use snapshot_policy::SnapshotPolicy;

/// The number of a record: from 1, without gaps. 0 stands for "before the first".
pub type Seq = u64;
