//! What the JobTracker refuses, in one line for people and a kind for programs.

use dfs::{client::ClientError, error::Kind};
use tonic::{Code, Status};

/// A refusal: nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    code: Code,
    message: String,
}

impl Refusal {
    /// A malformed id, name, number or setting.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into() }
    }

    /// No such job, file or folder.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { code: Code::NotFound, message: message.into() }
    }

    /// Something is there already.
    pub(crate) fn exists(message: impl Into<String>) -> Self {
        Self { code: Code::AlreadyExists, message: message.into() }
    }

    /// It cannot be done as things stand.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { code: Code::FailedPrecondition, message: message.into() }
    }

    /// The caller may not.
    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self { code: Code::PermissionDenied, message: message.into() }
    }

    /// There is too much already: later.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self { code: Code::ResourceExhausted, message: message.into() }
    }

    /// Not now; ask again.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Code::Unavailable, message: message.into() }
    }

    /// The file system's words, with what was wanted of it in front.
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
