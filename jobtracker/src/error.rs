//! Refused requests: a message of one line, and a status code for programs.

use dfs_client::{ClientError, error::Kind};
use tonic::{Code, Status};

/// A refused request. It has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    code: Code,
    message: String,
}

impl Refusal {
    /// A malformed ID, name, number or setting.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into() }
    }

    /// No such job, file or folder.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { code: Code::NotFound, message: message.into() }
    }

    /// No tracker has this name.
    pub(crate) fn unknown_node(name: &str) -> Self {
        Self::not_found(format!("there is no node {name}: `mrctl nodes` lists the nodes"))
    }

    /// The file, folder or output exists already.
    pub(crate) fn exists(message: impl Into<String>) -> Self {
        Self { code: Code::AlreadyExists, message: message.into() }
    }

    /// The current state does not allow the request.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { code: Code::FailedPrecondition, message: message.into() }
    }

    /// The caller has no permission.
    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self { code: Code::PermissionDenied, message: message.into() }
    }

    /// A limit is reached; the caller may try later.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self { code: Code::ResourceExhausted, message: message.into() }
    }

    /// Temporarily not possible; the caller may try again.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Code::Unavailable, message: message.into() }
    }

    /// An error of the file system. `what` is the operation that failed.
    pub(crate) fn dfs(what: &str, error: &ClientError) -> Self {
        let message = format!("{what}: {error}");
        match error.kind() {
            Some(Kind::NotFound) => Self::not_found(message),
            Some(Kind::Invalid) => Self::invalid(message),
            Some(Kind::Denied) => Self::denied(message),
            Some(_) => Self::refused(message),
            None => Self::unavailable(message),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, refusal.message)
    }
}
