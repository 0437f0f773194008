//! A durable append-only log with group commit and snapshots. The NameNode stores its edits in it,
//! the JobTracker its facts.
//!
//! A record is a byte string; only the owner of the log knows its meaning. Records have consecutive
//! sequence numbers from 1.
//!
//! - [`log`]: open, append, wait until durable, rotate; the interface for owners;
//! - [`replay`]: reads the newest snapshot and the records after it;
//! - [`snapshot`]: writes a snapshot;
//! - [`codec`]: encodes values as records;
//! - [`slots`]: a small value in a file that is written in place;
//! - [`home`]: the folder of a daemon with its journal and `VERSION`;
//! - [`backup`]: the files of a backup, and a journal that is made from one;
//! - [`snapshot_policy`]: decides when snapshots are made;
//! - [`disk`]: the folder operations that the log needs, on real files;
//! - [`executor`]: where the work runs that waits for a disk;
//! - [`bugs`]: bugs on purpose, to test tests;
//! - [`crash`]: the same operations on an instrumented disk, for crash tests of this crate and of
//!   the masters. It is not behind a feature, because cargo would then compile this crate, and all
//!   that use it, once with and once without it.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use fermata_journal::{disk::RealDisk, log::{Content, Log, Recovery}, replay::Item};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Arc::new(RealDisk::open("edits")?);
//! let mut opened = Log::open(disk, Content::Records, Recovery::Refuse)?;
//! while let Some(item) = opened.replay.next()? {
//!     match item {
//!         Item::Snapshot(_bytes) => { /* a snapshot record: restore a part of the state */ }
//!         Item::Record { .. } => { /* a record of the log: apply it to the state */ }
//!         Item::Entry { .. } => unreachable!("only in a log that was opened for entries"),
//!     }
//! }
//! let seq = opened.log.append(b"something happened")?;
//! opened.log.sync(seq)?; // or `wait_durable(seq).await`; only then is it acknowledged
//! # Ok(()) }
//! ```
//!
//! Not provided: replication and compression. The daemon locks the folder.

pub mod backup;
pub mod bugs;
pub mod codec;
mod commit;
pub mod crash;
pub mod disk;
pub mod error;
pub mod executor;
mod format;
pub mod home;
pub mod log;
#[cfg(test)]
mod read_error_tests;
mod repair;
pub mod replay;
mod segment;
pub mod slots;
pub mod snapshot;
pub mod snapshot_policy;
mod source;
mod survey;
mod truncate;
mod writer;

pub use error::{AppendError, LogError, LogFailed};
pub use home::{DataFolder, DataFolderError, Owner, Recovering};
pub use log::{Content, Log, Opened, Recovery};
pub use replay::{Item, Replay};
pub use snapshot::{SnapshotFile, SnapshotReceiver, SnapshotWriter};
pub use snapshot_policy::SnapshotPolicy;

/// The sequence number of a record, from 1 without gaps. 0 means "before the first record".
pub type Seq = u64;
