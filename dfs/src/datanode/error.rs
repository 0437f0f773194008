//! Errors of the DataNode ([`DataNodeError`]) and refusals of single requests ([`Refusal`]).

use dfs_client::{bulk::NAMENODE_UNAVAILABLE, ids::BlockId};
use std::{fmt, path::PathBuf};

/// An error that ends the DataNode.
#[derive(Debug, thiserror::Error)]
pub enum DataNodeError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] daemon::config::ConfigError),
    /// A folder is in use by another process, or cannot be created.
    #[error(transparent)]
    Lock(#[from] daemon::lock::LockError),
    /// A credential, key or certificate cannot be used.
    #[error(transparent)]
    Security(#[from] security::SecurityError),
    /// The address cannot be bound.
    #[error(transparent)]
    Listen(#[from] daemon::listen::ListenError),
    /// A file or folder in a data folder cannot be used.
    #[error("cannot {what} {path}: {source}")]
    Folder {
        /// The operation that failed, for example `read`.
        what: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A folder has a layout that this build does not support.
    #[error(
        "folder {path} has layout {found}, this build supports {known}: use the version of Fermata that wrote it"
    )]
    Layout {
        path: PathBuf,
        /// The layout in its `VERSION` file.
        found: u32,
        /// The layout that this build supports.
        known: u32,
    },
    /// A `VERSION` file cannot be parsed.
    #[error("{path} is damaged: {why}; restore it from another data folder of this node")]
    Version {
        path: PathBuf,
        /// What is wrong with the file.
        why: String,
    },
    /// A folder contains blocks, but no `VERSION` file that identifies their cluster and node.
    #[error(
        "folder {path} contains blocks ({block}) but no VERSION file that identifies their node: restore VERSION from \
         another data folder of this node, or give an empty folder"
    )]
    NoVersion {
        path: PathBuf,
        /// The path of one of its blocks.
        block: PathBuf,
    },
    /// Two folders belong to different DataNodes or clusters.
    #[error(
        "folders {first} and {second} do not belong to the same DataNode: {what} {first_value} and {second_value}"
    )]
    Mismatch {
        /// The first folder.
        first: PathBuf,
        /// The second folder.
        second: PathBuf,
        /// The property in which they differ.
        what: &'static str,
        /// The value of the first folder.
        first_value: String,
        /// The value of the second folder.
        second_value: String,
    },
    /// The same folder is configured twice.
    #[error("folder {0} is configured twice")]
    Twice(PathBuf),
    /// All folders have failed.
    #[error("all data folders have failed: {0}")]
    NoFolders(String),
    /// The NameNode refuses this DataNode.
    #[error("the NameNode at {namenode} refuses this DataNode: {message}")]
    Refused {
        /// The address of the NameNode.
        namenode: String,
        /// The message of the NameNode.
        message: String,
    },
    /// The configured address of the NameNode is invalid.
    #[error("NameNode address {0:?} is not host:port")]
    NameNode(String),
    /// The address is bound, but the server cannot use the socket.
    #[error("cannot serve on {addr}: {source}")]
    Serve {
        /// The configured address.
        addr: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The ready file cannot be written.
    #[error("cannot write the ready file: {source}")]
    Ready {
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// The refusal of a request on the bulk port. It is sent to the peer as an `Error` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) kind: RefusalKind,
    pub(super) message: String,
}

/// The machine-readable kind of a refusal. The names are part of the bulk protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusalKind {
    /// Too many connections. The client should use another node or retry later.
    Busy,
    /// There is no finalised replica, or no partial replica to resume.
    NotFound,
    /// The replica is damaged. It has been quarantined or reported.
    Damaged,
    /// The request is invalid.
    Invalid,
    /// No data folder has enough free space.
    NoSpace,
    /// The data of a packet does not match its checksums.
    Checksum,
    /// A newer connection has taken over the writing of this block.
    Superseded,
    /// The caller has no permission.
    Denied,
    /// The DataNode must ask the NameNode, which does not answer.
    NameNodeUnavailable,
    /// A disk failed, or the node is stopping.
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
        Self::new(RefusalKind::NotFound, format!("this node has no replica of {block}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
