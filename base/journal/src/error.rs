//! Errors of a log. Every error about a damaged file contains its name and the byte offset.

use crate::Seq;
use std::{io, sync::Arc};

/// Why a log could not be opened, read or maintained.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system returned an error.
    #[error("cannot {action} {file}: {source}")]
    Io {
        /// Attempted operation.
        action: &'static str,
        /// File in the journal folder.
        file: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is shorter than its header.
    #[error("{file} ends within its header at offset {offset}: damaged")]
    ShortHeader {
        /// Name of the file.
        file: String,
        /// Length of the file.
        offset: u64,
    },
    /// The file does not start with a known magic number.
    #[error("{file} has a wrong magic number at offset 0: damaged, or not a journal file")]
    BadMagic {
        /// Name of the file.
        file: String,
    },
    /// Another version of Fermata wrote the file. The file is never dropped, not even by
    /// [`crate::Recovery::DropDamaged`].
    #[error("{file} has version {found} at offset 4, this build knows {known}: use the build that wrote it")]
    Version {
        /// Name of the file.
        file: String,
        /// Version of the file.
        found: u16,
        /// Newest version that this build reads.
        known: u16,
    },
    /// A group of masters wrote the file, and the log was opened for one master.
    #[error("{file} is of a group of masters: start this master as a member of its group")]
    OfGroup {
        /// Name of the file.
        file: String,
    },
    /// The bytes at `offset` are not those that were written.
    #[error("{file} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Name of the file.
        file: String,
        /// Where the damaged part begins.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Records are missing between files.
    #[error("records from {expected} on are missing: expected in {file}{}", found_text(*.found))]
    Gap {
        /// The file that should contain the record.
        file: String,
        /// The first missing record.
        expected: Seq,
        /// The next existing record, if any.
        found: Option<Seq>,
    },
    /// The commit point or a snapshot shows that acknowledged records are missing.
    #[error("records {from} to {upto} were acknowledged and are not in {file}: damaged")]
    Lost {
        /// The newest existing segment.
        file: String,
        /// The first missing record.
        from: Seq,
        /// The last acknowledged record.
        upto: Seq,
    },
    /// The file of the commit point is missing or has no valid slot.
    #[error("{file} {what}: damaged")]
    CommitPoint {
        /// Name of the file.
        file: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// The running log has failed.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}

fn found_text(found: Option<Seq>) -> String {
    found.map_or_else(String::new, |seq| format!(", the next record is {seq}"))
}

impl LogError {
    /// Returns whether [`crate::Recovery::DropDamaged`] can recover from this error.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::ShortHeader { .. }
                | Self::BadMagic { .. }
                | Self::Damaged { .. }
                | Self::Gap { .. }
                | Self::Lost { .. }
                | Self::CommitPoint { .. }
        )
    }

    /// Returns the offset in the file at which the damage begins; 0 if the whole file is affected.
    pub fn offset(&self) -> u64 {
        match self {
            Self::ShortHeader { offset, .. } | Self::Damaged { offset, .. } => *offset,
            Self::Version { .. } => 4,
            _ => 0,
        }
    }

    /// Returns a function for `map_err` that adds the operation and the file to an I/O error.
    pub(crate) fn io(action: &'static str, file: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, file: file.to_owned(), source }
    }
}

/// The log has failed permanently: a write or sync failed, so the contents of the disk are unknown.
/// No further record is acknowledged. The daemon stops, and reads the log again when it restarts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal has failed and takes no more records, restart the daemon: {reason}")]
pub struct LogFailed {
    /// What happened, and to which file.
    pub reason: Arc<str>,
}

/// Why a record was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// One record, or all records of one call together, are longer than the limit.
    #[error("record of {bytes} bytes is longer than the limit of {max}")]
    TooLarge {
        /// Length in bytes.
        bytes: usize,
        /// Limit in bytes.
        max: usize,
    },
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}
