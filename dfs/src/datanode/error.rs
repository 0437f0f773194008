//! What can go wrong: for the whole node ([`DataNodeError`]) and for one transfer ([`Refusal`]).

use crate::{bulk::NAMENODE_UNAVAILABLE, ids::BlockId};
use std::{fmt, path::PathBuf};

/// Ends the DataNode.
#[derive(Debug, thiserror::Error)]
pub enum DataNodeError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] daemon::config::ConfigError),
    /// A folder is in use, or cannot be made.
    #[error(transparent)]
    Lock(#[from] daemon::lock::LockError),
    /// What it has to show or to ask for cannot be used.
    #[error(transparent)]
    Security(#[from] security::SecurityError),
    /// The address cannot be served on.
    #[error(transparent)]
    Listen(#[from] daemon::listen::ListenError),
    /// A file or folder of a data folder cannot be used.
    #[error("cannot {what} {path}: {source}")]
    Folder {
        /// What was tried, e.g. `read`.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A folder was written by another Fermata.
    #[error("folder {path} has layout {found}, this build knows {known}: run the Fermata that wrote it")]
    Layout {
        /// The folder.
        path: PathBuf,
        /// As its `VERSION` says.
        found: u32,
        /// What this build reads.
        known: u32,
    },
    /// A `VERSION` file cannot be read as one.
    #[error("{path} is damaged: {why}; restore it from another data folder of this node")]
    Version {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Blocks of nobody knows which cluster.
    #[error(
        "folder {path} holds blocks ({block}) but no VERSION file that says whose they are: restore VERSION from \
         another data folder of this node, or give an empty folder"
    )]
    NoVersion {
        /// The folder.
        path: PathBuf,
        /// One of its blocks.
        block: PathBuf,
    },
    /// Two folders do not belong together.
    #[error("folders {first} and {second} are not of one DataNode: {what} {first_has} and {second_has}")]
    Mismatch {
        /// One folder.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// In what they differ.
        what: &'static str,
        /// What the first says.
        first_has: String,
        /// What the other says.
        second_has: String,
    },
    /// The same folder is given twice.
    #[error("folder {0} is given twice")]
    Twice(PathBuf),
    /// Every folder has failed.
    #[error("no data folder is left: {0}")]
    NoFolders(String),
    /// The NameNode will not have it.
    #[error("namenode {namenode} refuses this datanode: {message}")]
    Refused {
        /// Where it is.
        namenode: String,
        /// Its words.
        message: String,
    },
    /// The NameNode's address is not one.
    #[error("namenode address {0:?} is not host:port")]
    NameNode(String),
    /// The address is bound but cannot be served on.
    #[error("cannot serve on {addr}: {source}")]
    Serve {
        /// As configured.
        addr: String,
        /// Why.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The ready file cannot be written.
    #[error("cannot write the ready file: {source}")]
    Ready {
        /// Why.
        source: std::io::Error,
    },
}

/// Why a request on the bulk port is not served. Crosses the wire as an `Error` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) kind: RefusalKind,
    pub(super) message: String,
}

/// For programs; the names are part of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusalKind {
    /// Too many connections: try another node, or later.
    Busy,
    /// No finalised replica, or no partial one to resume.
    NotFound,
    /// The replica is not what was written; it has been quarantined or reported.
    Damaged,
    /// A request that makes no sense.
    Invalid,
    /// No folder has room.
    NoSpace,
    /// A packet's bytes do not match its checksums.
    Checksum,
    /// A newer connection writes this block.
    Superseded,
    /// The caller may not.
    Denied,
    /// The NameNode, which must be asked, does not answer.
    NameNodeUnavailable,
    /// A disk failed, or the node stops.
    Failed,
}

impl RefusalKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::NotFound => "not-found",
            Self::Damaged => "damaged",
            Self::Invalid => "invalid",
            Self::NoSpace => "no-space",
            Self::Checksum => "checksum",
            Self::Superseded => "superseded",
            Self::Denied => "denied",
            Self::NameNodeUnavailable => NAMENODE_UNAVAILABLE,
            Self::Failed => "failed",
        }
    }
}

impl Refusal {
    pub(super) fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(super) fn not_found(block: BlockId) -> Self {
        Self::new(RefusalKind::NotFound, format!("no replica of {block} here"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
