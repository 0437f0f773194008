//! Errors of the client, with messages for the user.

use crate::error::{Error, Kind};
use crate::ids::BlockId;
use crate::path::{DfsPath, PathError};
use std::path::PathBuf;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The NameNode refused the request. The message is from the NameNode.
    #[error(transparent)]
    Refused(#[from] Error),
    /// A text is not a valid path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A glob pattern cannot be parsed.
    #[error("pattern {pattern:?}: {reason}")]
    Pattern {
        pattern: String,
        /// What is wrong with the pattern.
        reason: &'static str,
    },
    /// No server accepts connections at the address of the NameNode.
    #[error("the NameNode at {addr} does not answer ({reason})")]
    Unreachable {
        /// `host:port`.
        addr: String,
        /// The error of the last attempt.
        reason: String,
    },
    /// None of several NameNodes leads.
    #[error("no NameNode answers: {tried}")]
    NoLeader {
        /// What is wrong with each of them.
        tried: String,
    },
    /// A DataNode needed the NameNode, which did not answer.
    #[error("the NameNode does not answer the DataNodes: {reason}")]
    NameNodeUnreachableFromNodes {
        /// The message of the DataNode.
        reason: String,
    },
    /// The operation was retried until the deadline, without success.
    #[error("{what} did not succeed within {seconds:.1} s: {last}")]
    Deadline {
        /// The operation.
        what: String,
        /// For how long the operation was retried.
        seconds: f64,
        /// The error of the last attempt.
        last: String,
        /// The kind of the last refusal, if the last error was a refusal.
        kind: Option<Kind>,
    },
    /// The reply of the NameNode is invalid.
    #[error("{what}: invalid reply of the NameNode: {reason}")]
    BadReply {
        /// The operation.
        what: String,
        /// What is wrong with the reply.
        reason: String,
    },
    /// No replica of a block can be read.
    #[error("cannot read {path} at byte {offset}: no good replica of {block}: {tried}")]
    Read {
        path: DfsPath,
        /// The offset in the file where reading stopped.
        offset: u64,
        /// The block at that offset.
        block: BlockId,
        /// Every host that was tried, with the reason why it failed.
        tried: String,
    },
    /// A block cannot be written.
    #[error("cannot write {path}: {block} on {node}: {reason}")]
    Write {
        path: DfsPath,
        block: BlockId,
        /// The node that failed last.
        node: String,
        /// The reason of the failure.
        reason: String,
    },
    /// The writer failed earlier or was aborted.
    #[error("cannot write {path}: the writer has failed earlier or was aborted")]
    WriterFailed { path: DfsPath },
    /// This process has reached a limit on open transfers.
    #[error("cannot start another transfer: {reason}: close some files first")]
    TooManyTransfers {
        /// The limit that was reached.
        reason: String,
    },
    /// An operation on a local file failed.
    #[error("{path}: {reason}", path = .path.display())]
    Local {
        /// The local file.
        path: PathBuf,
        /// The reason of the failure.
        reason: String,
    },
    /// The input stream of `put` failed.
    #[error("cannot read the input for {path}: {source}")]
    Input {
        /// The file being written.
        path: DfsPath,
        /// The error of the stream.
        source: std::io::Error,
    },
}

impl ClientError {
    /// Returns the kind of the refusal, if the error is a refusal. Includes a refused call that was
    /// retried until the deadline.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Refused(error) => Some(error.kind),
            Self::Path(_) | Self::Pattern { .. } => Some(Kind::Invalid),
            Self::Deadline { kind, .. } => *kind,
            _ => None,
        }
    }

    /// Returns whether the file system does not answer or is not ready. This is not a fault of the
    /// request, and may be temporary.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoLeader { .. } | Self::NameNodeUnreachableFromNodes { .. } => {
                true
            }
            Self::Deadline { kind, .. } => {
                let kind = kind.unwrap_or(Kind::Unavailable);
                matches!(kind, Kind::Safemode | Kind::ManualSafemode | Kind::Unavailable | Kind::NotLeader)
            }
            _ => false,
        }
    }

    /// Replaces the temporary name `hidden` of a file in the message by its final name `to`, which
    /// the user knows.
    #[must_use]
    pub(super) fn with_final_name(self, hidden: &DfsPath, to: &DfsPath) -> Self {
        let text = |text: String| text.replace(hidden.name(), to.name());
        let path = |path: DfsPath| if path == *hidden { to.clone() } else { path };
        match self {
            Self::Refused(error) => Self::Refused(Error { message: text(error.message), ..error }),
            Self::Deadline { what, seconds, last, kind } => {
                Self::Deadline { what: text(what), seconds, last: text(last), kind }
            }
            Self::BadReply { what, reason } => Self::BadReply { what: text(what), reason: text(reason) },
            Self::Write { path: at, block, node, reason } => {
                Self::Write { path: path(at), block, node, reason: text(reason) }
            }
            Self::WriterFailed { path: at } => Self::WriterFailed { path: path(at) },
            other => other,
        }
    }

    /// Returns whether this is a refusal of `kind`.
    pub fn is(&self, kind: Kind) -> bool {
        self.kind() == Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_name_is_not_shown_in_errors() {
        let [hidden, to] = ["/a/.b.put-1", "/a/b"].map(|path| DfsPath::parse(path).unwrap());
        let refused = ClientError::Refused(Error::new(Kind::NoNodes, "no space for /a/.b.put-1"));
        assert_eq!(refused.with_final_name(&hidden, &to).to_string(), "no space for /a/b");
        let failed = ClientError::WriterFailed { path: hidden.clone() };
        assert!(failed.with_final_name(&hidden, &to).to_string().starts_with("cannot write /a/b:"));
    }
}
