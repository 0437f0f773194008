//! Errors of calls to the JobTracker, the TaskTrackers and the file system.

use dfs_client::ClientError;
use security::Role;
use std::path::PathBuf;
use tonic::{Code, Status};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call to a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon does not answer: it is down or frozen, or the network is interrupted.
    #[error("the {daemon} at {addr} does not answer ({why}){}", advice_clause(advice))]
    Unreachable {
        /// The kind of daemon, such as `JobTracker`.
        daemon: &'static str,
        /// The address of the daemon.
        addr: String,
        /// The transport error.
        why: String,
        /// What the user can do; empty without advice ([`crate::JobTracker::with_advice`]).
        advice: String,
    },
    /// None of several masters leads: they are down, or have no majority.
    #[error("no {daemon} answers: {tried}{}", advice_clause(advice))]
    NoLeader {
        /// The kind of daemon, such as `JobTracker`.
        daemon: &'static str,
        /// What is wrong with each of them.
        tried: String,
        /// What the user can do; empty without advice ([`crate::JobTracker::with_advice`]).
        advice: String,
    },
    /// The server that answered is not a JobTracker.
    #[error("the server at {addr} is not a Fermata JobTracker ({why})")]
    NotJobTracker {
        /// The address of the server.
        addr: String,
        /// The error that the server returned.
        why: String,
    },
    /// The JobTracker refused with a gRPC status.
    #[error("{message}")]
    Status {
        /// The gRPC status code.
        code: Code,
        /// The human-readable reason.
        message: String,
    },
    /// A value from the caller is invalid. Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The file is not an executable that is built on mrlib and runs on this machine.
    #[error("{0}")]
    NotAJob(String),
    /// The input of a job with total order could not be sampled.
    #[error("{0}")]
    Sample(String),
    /// A local file could not be uploaded.
    #[error("cannot upload {}", file.display())]
    Upload {
        /// The local file.
        file: PathBuf,
        /// The error from the file system.
        source: ClientError,
    },
    /// A call to the file system failed.
    #[error("{0}")]
    Files(#[source] ClientError),
    /// A request got no reply although it was repeated. The JobTracker may have carried it out.
    #[error(
        "the JobTracker at {addr} has not answered {what} for {seconds} s ({why}){}; it may have been carried out",
        advice_clause(advice)
    )]
    NoReply {
        /// The address of the JobTracker.
        addr: String,
        /// The request, such as `the request to kill job_1`.
        what: String,
        /// How long the client repeated the request.
        seconds: u64,
        /// The error of the last retry.
        why: String,
        /// What the user can do; empty without advice ([`crate::JobTracker::with_advice`]).
        advice: String,
    },
    /// The JobTracker stayed unreachable while a job was followed. The job may still be running.
    #[error(
        "the JobTracker at {addr} has not answered for {seconds} s{}; {job} continues when it is up again",
        advice_clause(advice)
    )]
    ConnectionLost {
        /// The address of the JobTracker.
        addr: String,
        /// How long the client tried to reconnect.
        seconds: u64,
        /// What the user can do; empty without advice ([`crate::JobTracker::with_advice`]).
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
    /// Converts the status of a failed call to the JobTracker at `addr`.
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

    /// Returns the error for several daemons of which none leads.
    pub(crate) fn no_leader(daemon: Role, tried: String) -> Self {
        Self::NoLeader { daemon: daemon.title(), tried, advice: String::new() }
    }

    /// Adds advice to [`Error::Unreachable`] and [`Error::NoLeader`]. Other errors are not changed.
    #[must_use]
    pub fn with_advice(mut self, make: impl FnOnce() -> String) -> Self {
        if let Self::Unreachable { advice, .. } | Self::NoLeader { advice, .. } = &mut self {
            *advice = make();
        }
        self
    }

    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NoLeader { .. }
            | Self::NoReply { .. }
            | Self::ConnectionLost { .. }
            | Self::LogsUnreachable { .. } => true,
            Self::NotJobTracker { .. }
            | Self::Invalid(_)
            | Self::NotAJob(_)
            | Self::Sample(_)
            | Self::Upload { .. }
            | Self::Files(_) => false,
            Self::Status { code, .. } => {
                matches!(code, Code::Unavailable | Code::Cancelled | Code::Unknown)
            }
        }
    }

    /// Returns whether the request was invalid.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::NotAJob(_) | Self::Status { code: Code::InvalidArgument, .. })
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
