//! Why a call to the JobTracker failed: it refused, or it was unreachable.

use dfs_client::ClientError;
use security::Role;
use std::path::PathBuf;
use tonic::{Code, Status};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of a call to a daemon.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no answer: the daemon is down or frozen, or the network is interrupted.
    #[error("the {daemon} at {addr} does not answer ({why}){}", advice_clause(advice))]
    Unreachable {
        /// The kind of daemon, for people.
        daemon: &'static str,
        /// The address of the daemon.
        addr: String,
        /// The error of the transport.
        why: String,
        /// What to do, or empty ([`crate::JobTracker::with_advice`]).
        advice: String,
    },
    /// There is an answer, but not from a JobTracker.
    #[error("the server at {addr} is not a Fermata JobTracker ({why})")]
    NotJobTracker {
        /// The address of the server.
        addr: String,
        /// The error in the answer of the server.
        why: String,
    },
    /// The JobTracker refused with a gRPC status.
    #[error("{message}")]
    Status {
        /// The kind of refusal.
        code: Code,
        /// The reason, for people.
        message: String,
    },
    /// A value of the caller is not valid, so that nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// A local file could not be uploaded.
    #[error("cannot upload {}", file.display())]
    Upload {
        /// The local file.
        file: PathBuf,
        /// The error of the file system.
        source: ClientError,
    },
    /// The file system refused, or it was unreachable.
    #[error("{0}")]
    Files(#[source] ClientError),
    /// A submission got no reply: the JobTracker may have accepted the job or not.
    #[error("no reply to the submission from the JobTracker at {addr}: {why}")]
    NoReply {
        /// The address of the JobTracker.
        addr: String,
        /// The error of the last attempt.
        why: String,
    },
    /// The JobTracker stayed unreachable while a job was followed. The job may still be running.
    #[error(
        "the JobTracker at {addr} has not answered for {seconds} s{}; {job} continues when it is up again",
        advice_clause(advice)
    )]
    ConnectionLost {
        /// The address of the JobTracker.
        addr: String,
        /// For how long the connection was retried.
        seconds: u64,
        /// What to do, or empty ([`crate::JobTracker::with_advice`]).
        advice: String,
        /// The ID of the job.
        job: String,
    },
    /// The tracker that has the log of an attempt does not answer.
    #[error("the logs of {attempt} are on {node}, whose TaskTracker at {addr} is unreachable")]
    LogsUnreachable {
        /// The ID of the attempt.
        attempt: String,
        /// The name of the tracker.
        node: String,
        /// The address of its log server.
        addr: String,
    },
}

impl Error {
    /// Returns the error for a status that a call to `addr` returned.
    pub(crate) fn of(addr: &str, status: &Status) -> Self {
        let other_server =
            status.code() == Code::Unimplemented || status.message().contains("HTTP status code");
        match std::error::Error::source(status) {
            Some(cause) => Self::unreachable(Role::JobTracker, addr, innermost(cause)),
            None if other_server => Self::NotJobTracker { addr: addr.into(), why: status.message().into() },
            None => Self::Status { code: status.code(), message: status.message().into() },
        }
    }

    /// Returns the error for a daemon whose connection failed or broke, or that has not answered in
    /// time.
    pub fn unreachable(daemon: Role, addr: &str, why: impl Into<String>) -> Self {
        let (addr, why, advice) = (addr.into(), why.into(), String::new());
        Self::Unreachable { daemon: daemon.title(), addr, why, advice }
    }

    /// Adds what to do if the daemon is unreachable.
    #[must_use]
    pub fn with_advice(mut self, make: impl FnOnce() -> String) -> Self {
        if let Self::Unreachable { advice, .. } = &mut self {
            *advice = make();
        }
        self
    }

    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NoReply { .. }
            | Self::ConnectionLost { .. }
            | Self::LogsUnreachable { .. } => true,
            Self::NotJobTracker { .. } | Self::Invalid(_) | Self::Upload { .. } | Self::Files(_) => false,
            Self::Status { code, .. } => {
                matches!(code, Code::Unavailable | Code::Cancelled | Code::Unknown)
            }
        }
    }

    /// Returns whether the request was invalid.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::Status { code: Code::InvalidArgument, .. })
    }
}

/// Formats the advice as the end of a message.
fn advice_clause(advice: &str) -> String {
    if advice.is_empty() { String::new() } else { format!("; {advice}") }
}

/// Returns the innermost cause, such as "connection refused" instead of "transport error".
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_without_an_answer_are_transient() {
        let refused = Error::of("h:1", &Status::invalid_argument("no such id"));
        assert!(refused.is_usage() && !refused.is_transient());
        assert_eq!(refused.to_string(), "no such id");
        assert!(Error::of("h:1", &Status::unavailable("not now")).is_transient());
        let other_server = Error::of("h:1", &Status::unimplemented("no such method"));
        assert!(!other_server.is_transient());
        assert!(other_server.to_string().contains("is not a Fermata JobTracker"));
        let silent = Error::unreachable(Role::NameNode, "h:1", "connection refused");
        assert!(silent.is_transient() && !silent.is_usage());
        assert_eq!(silent.to_string(), "the NameNode at h:1 does not answer (connection refused)");
        let text = silent.with_advice(|| "start it with `mrctl up`".into()).to_string();
        assert!(text.ends_with("(connection refused); start it with `mrctl up`"), "{text}");
        let lost = |advice: &str| {
            let (addr, advice, job) = ("h:1".into(), advice.into(), "job_1".into());
            Error::ConnectionLost { addr, seconds: 60, advice, job }.to_string()
        };
        let (start, end) =
            ("the JobTracker at h:1 has not answered for 60 s", "job_1 continues when it is up again");
        assert_eq!(lost(""), format!("{start}; {end}"));
        assert_eq!(lost("start it"), format!("{start}; start it; {end}"));
    }
}
