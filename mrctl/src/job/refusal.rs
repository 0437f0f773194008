//! Why a call to the JobTracker failed: it refused, or it was unreachable.

use security::Role;
use tonic::{Code, Status};

/// The failure of a call to a daemon.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// No answer: the daemon is down or frozen, or the network is interrupted.
    #[error("the {daemon} at {addr} does not answer ({why})")]
    Unreachable {
        daemon: &'static str,
        addr: String,
        /// The error of the transport.
        why: String,
    },
    /// An answer, but not from a JobTracker.
    #[error("the server at {addr} is not a Fermata JobTracker ({why}): name another with --jobtracker")]
    NotJobTracker {
        addr: String,
        /// The error in its answer.
        why: String,
    },
    /// The JobTracker refused with a gRPC status.
    #[error("{message}")]
    Status { code: Code, message: String },
}

impl Refusal {
    /// The failure for a status that a call to `addr` returned.
    pub(super) fn of(addr: &str, status: &Status) -> Self {
        let other_server =
            status.code() == Code::Unimplemented || status.message().contains("HTTP status code");
        match std::error::Error::source(status) {
            Some(cause) => Self::unreachable(Role::JobTracker, addr, cause),
            None if other_server => Self::NotJobTracker { addr: addr.into(), why: status.message().into() },
            None => Self::Status { code: status.code(), message: status.message().into() },
        }
    }

    /// A connection to a daemon failed or broke.
    pub(super) fn unreachable(daemon: Role, addr: &str, cause: &dyn std::error::Error) -> Self {
        Self::Unreachable { daemon: daemon.title(), addr: addr.into(), why: innermost(cause) }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::NotJobTracker { .. } => false,
            Self::Status { code, .. } => {
                matches!(code, Code::Unavailable | Code::Cancelled | Code::Unknown)
            }
        }
    }

    /// Whether the request was invalid.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Status { code: Code::InvalidArgument, .. })
    }
}

/// The innermost cause, such as "connection refused" instead of "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
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
    fn refusal_differs_from_no_reply() {
        let refused = Refusal::of("h:1", &Status::invalid_argument("no such id"));
        assert!(refused.is_usage() && !refused.is_transient());
        assert_eq!(refused.to_string(), "no such id");
        assert!(Refusal::of("h:1", &Status::unavailable("not now")).is_transient());
        let other_server = Refusal::of("h:1", &Status::unimplemented("no such method"));
        assert!(!other_server.is_transient());
        assert!(other_server.to_string().contains("is not a Fermata JobTracker"));
        let silent =
            Refusal::unreachable(Role::NameNode, "h:1", &std::io::Error::other("connection refused"));
        assert!(silent.is_transient() && !silent.is_usage());
        assert_eq!(silent.to_string(), "the NameNode at h:1 does not answer (connection refused)");
    }
}
