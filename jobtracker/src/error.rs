//! Refusals of requests: a one-line message for people, and a gRPC status code for programs.

use dfs_client::{
    ClientError,
    error::{Error, Kind, Leader},
};
use mrcore::event::JobRefusal;
use security::Role;
use tonic::{Code, Status};

/// A refused request. It has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    code: Code,
    message: String,
    /// The refusal with the address of the leader, if this JobTracker does not lead.
    not_leader: Option<Box<Error>>,
}

impl Refusal {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), not_leader: None }
    }

    /// Refuses because this JobTracker does not lead its group.
    pub(crate) fn not_leader(leader: Option<Leader>) -> Self {
        let error = Error::not_leader(Role::JobTracker, leader);
        Self { not_leader: Some(Box::new(error.clone())), ..Self::unavailable(error.message) }
    }

    /// Returns whether another member of the group leads.
    pub(crate) fn is_not_leader(&self) -> bool {
        self.not_leader.is_some()
    }

    /// Refuses a malformed ID, name, number or setting.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// Refuses because the job, file or folder does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// Refuses because no tracker has this name.
    pub(crate) fn unknown_node(name: &str) -> Self {
        Self::not_found(format!("there is no TaskTracker {name}: `mrctl nodes` lists the nodes"))
    }

    /// Refuses because the file, folder or output already exists.
    pub(crate) fn exists(message: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, message)
    }

    /// Refuses because the current state does not allow the request.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// Refuses because the caller has no permission.
    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self::new(Code::PermissionDenied, message)
    }

    /// Refuses because a limit is reached. The caller may try again later.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(Code::ResourceExhausted, message)
    }

    /// Refuses because the request is not possible at the moment. The caller may try again.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
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
        match refusal.not_leader {
            Some(error) => (*error).into(),
            None => Self::new(refusal.code, refusal.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs_client::error::from_status;

    #[test]
    fn refusal_names_the_leader() {
        let leader = Leader { addr: "b:9500".into(), epoch: 7 };
        let status = Status::from(Refusal::not_leader(Some(leader.clone())));
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(from_status(&status), Some(Error::not_leader(Role::JobTracker, Some(leader))));
        assert_eq!(from_status(&Status::from(Refusal::unavailable("not now"))), None);
    }
}
