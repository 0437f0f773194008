//! What can go wrong for a program that uses the file system, each with the words a person needs.

use crate::error::{Error, Kind};
use crate::ids::BlockId;
use crate::path::{DfsPath, PathError};
use std::path::PathBuf;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The NameNode refused; its words as they are.
    #[error(transparent)]
    Refused(#[from] Error),
    /// Not a path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A glob pattern that does not parse.
    #[error("pattern {pattern:?}: {reason}")]
    Pattern {
        /// As given.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Nobody answers at the NameNode's address.
    #[error("cannot reach the NameNode at {addr}: {reason}")]
    Unreachable {
        /// `host:port`.
        addr: String,
        /// What the last attempt said.
        reason: String,
    },
    /// A DataNode had to ask the NameNode, which did not answer it.
    #[error("the namenode does not answer the datanodes: {reason}")]
    NameNodeUnreachableFromNodes {
        /// What the DataNode said.
        reason: String,
    },
    /// It was retried until the deadline.
    #[error("{what} did not succeed within {seconds:.1} s: {last}")]
    Deadline {
        /// The operation.
        what: String,
        /// How long it was tried.
        seconds: f64,
        /// What the last attempt said.
        last: String,
        /// The last refusal's kind, if it was one.
        kind: Option<Kind>,
    },
    /// The NameNode answered with something this client cannot use.
    #[error("{what}: the NameNode's answer makes no sense: {reason}")]
    BadReply {
        /// The operation.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No replica of a block could be read.
    #[error("cannot read {path} at byte {offset}: no good replica of {block}: {tried}")]
    Read {
        /// The file.
        path: DfsPath,
        /// Where reading stopped.
        offset: u64,
        /// The block there.
        block: BlockId,
        /// Every host tried, and why not.
        tried: String,
    },
    /// A block could not be written.
    #[error("cannot write {path}: {block} on {node}: {reason}")]
    Write {
        /// The file.
        path: DfsPath,
        /// The block.
        block: BlockId,
        /// The node that failed last.
        node: String,
        /// Why.
        reason: String,
    },
    /// The writer cannot continue.
    #[error("cannot write {path}: the writer failed or was aborted before")]
    WriterFailed {
        /// The file.
        path: DfsPath,
    },
    /// This process has as many transfers open as it may or can.
    #[error("cannot start another transfer: {reason}: close some files first")]
    TooManyTransfers {
        /// Which limit.
        reason: String,
    },
    /// A local file failed.
    #[error("{path}: {reason}", path = .path.display())]
    Local {
        /// The local file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The stream given to `put` failed.
    #[error("reading the input for {path}: {source}")]
    Input {
        /// The file being written.
        path: DfsPath,
        /// Why.
        source: std::io::Error,
    },
}

impl ClientError {
    /// The NameNode's kind of refusal, if it was one (also behind a deadline).
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Refused(error) => Some(error.kind),
            Self::Path(_) | Self::Pattern { .. } => Some(Kind::Invalid),
            Self::Deadline { kind, .. } => *kind,
            _ => None,
        }
    }

    /// Whether the file system as a whole does not answer or is not ready: no fault of who asks, and it may pass.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NameNodeUnreachableFromNodes { .. } => true,
            Self::Deadline { kind, .. } => {
                matches!(kind, None | Some(Kind::Safemode | Kind::ManualSafemode | Kind::Unavailable))
            }
            _ => false,
        }
    }

    /// The same with `to` named where `hidden` was: people know nothing of the name a file has on its way.
    #[must_use]
    pub(super) fn naming(self, hidden: &DfsPath, to: &DfsPath) -> Self {
        let text = |text: String| text.replace(hidden.name(), to.name());
        let path = |path: DfsPath| if path == *hidden { to.clone() } else { path };
        match self {
            Self::Refused(Error { kind, message }) => Self::Refused(Error::new(kind, text(message))),
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

    /// Whether it is a refusal of `kind`.
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
        let refused = ClientError::Refused(Error::new(Kind::NoNodes, "no room for /a/.b.put-1"));
        assert_eq!(refused.naming(&hidden, &to).to_string(), "no room for /a/b");
        let failed = ClientError::WriterFailed { path: hidden.clone() };
        assert!(failed.naming(&hidden, &to).to_string().starts_with("cannot write /a/b:"));
    }
}
