//! Refusals of requests: a one-line message for people, and a gRPC status code for programs.

use dfs_client::{ClientError, error::Kind};
use mrcore::event::JobRefusal;
use tonic::{Code, Status};

/// A refused request. It has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    code: Code,
    message: String,
}

impl Refusal {
    /// Refuses a malformed ID, name, number or setting.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into() }
    }

    /// Refuses because the job, file or folder does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { code: Code::NotFound, message: message.into() }
    }

    /// Refuses because no tracker has this name.
    pub(crate) fn unknown_node(name: &str) -> Self {
        Self::not_found(format!("there is no TaskTracker {name}: `mrctl nodes` lists the nodes"))
    }

    /// Refuses because the file, folder or output already exists.
    pub(crate) fn exists(message: impl Into<String>) -> Self {
        Self { code: Code::AlreadyExists, message: message.into() }
    }

    /// Refuses because the current state does not allow the request.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { code: Code::FailedPrecondition, message: message.into() }
    }

    /// Refuses because the caller has no permission.
    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self { code: Code::PermissionDenied, message: message.into() }
    }

    /// Refuses because a limit is reached. The caller may try again later.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self { code: Code::ResourceExhausted, message: message.into() }
    }

    /// Refuses because the request is not possible at the moment. The caller may try again.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Code::Unavailable, message: message.into() }
    }

    /// Refuses because of an error of the file system. `what` is the operation that failed.
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

impl From<JobRefusal> for Refusal {
    fn from(refusal: JobRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            JobRefusal::Overloaded(_) => Self::overloaded(message),
            JobRefusal::OutputInUse { .. } => Self::exists(message),
            JobRefusal::Invalid(_) => Self::refused(message),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, refusal.message)
    }
}
