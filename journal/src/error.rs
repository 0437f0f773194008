//! What can go wrong with a log. Every error about a file names it and the byte offset.

use crate::Seq;
use std::{io, sync::Arc};

/// Why a log could not be opened, read or maintained.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system refused.
    #[error("cannot {action} {file}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file of the folder.
        file: String,
        /// What it said.
        source: io::Error,
    },
    /// The file is shorter than its header.
    #[error("{file} is cut short in its header at offset {offset}: damaged")]
    ShortHeader {
        /// Which file.
        file: String,
        /// Where it ends.
        offset: u64,
    },
    /// The file does not start as one of ours does.
    #[error("{file} has a bad magic at offset 0: damaged, or not a journal file")]
    BadMagic {
        /// Which file.
        file: String,
    },
    /// Written by a newer Fermata. Never dropped, whatever the [`crate::Recovery`].
    #[error("{file} has version {found} at offset 4, this build knows {known}: use the build that wrote it")]
    Version {
        /// Which file.
        file: String,
        /// The version it has.
        found: u16,
        /// The newest version this build reads.
        known: u16,
    },
    /// The bytes at `offset` are not what was written.
    #[error("{file} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Which file.
        file: String,
        /// Where the unreadable part begins.
        offset: u64,
        /// What does not add up.
        what: &'static str,
    },
    /// Records are missing between files.
    #[error("records {expected} and after are missing: {file} was to hold them{}", found_text(*.found))]
    Gap {
        /// The file in which the record was looked for.
        file: String,
        /// The first missing record.
        expected: Seq,
        /// The next record there is, if any.
        found: Option<Seq>,
    },
    /// Acknowledged records are not there, and nothing else shows it.
    #[error("records {from} to {upto} were acknowledged and are not in {file}: damaged")]
    Lost {
        /// The newest segment there is.
        file: String,
        /// The first missing record.
        from: Seq,
        /// The last one that was acknowledged.
        upto: Seq,
    },
    /// The file of the commit point is gone or has no sound slot.
    #[error("{file} {what}: damaged")]
    CommitPoint {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The live log has failed.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}

fn found_text(found: Option<Seq>) -> String {
    found.map_or_else(String::new, |seq| format!(", the next there is is {seq}"))
}

impl LogError {
    /// Whether [`crate::Recovery::DropDamaged`] can get past this.
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

    /// Where in its file the trouble begins; 0 where that is the file as a whole.
    pub fn offset(&self) -> u64 {
        match self {
            Self::ShortHeader { offset, .. } | Self::Damaged { offset, .. } => *offset,
            Self::Version { .. } => 4,
            _ => 0,
        }
    }

    /// For `map_err` on a disk operation.
    pub(crate) fn io(action: &'static str, file: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, file: file.to_owned(), source }
    }
}

/// The log has failed for good: a write or sync did not succeed, so what is on disk is unknown. Nothing after
/// it is acknowledged; the owner stops and starts again from disk.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the journal has failed and takes no more records, restart the daemon: {reason}")]
pub struct LogFailed {
    /// What happened, and on which file.
    pub reason: Arc<str>,
}

/// Why a record was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// Longer than a record, or the records of one call together, may be.
    #[error("record of {bytes} bytes is longer than the limit of {max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}
