//! Why a JobTracker has not done what it was asked: it said no, or it said nothing.

use security::Role;
use tonic::{Code, Status};

/// What came back instead of an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Nothing: it is gone, frozen, or the network is.
    #[error("the {daemon} at {addr} does not answer ({why})")]
    Unreachable {
        /// Which daemon was asked.
        daemon: &'static str,
        /// Where it was asked.
        addr: String,
        /// What the transport says.
        why: String,
    },
    /// Words, but not a JobTracker's.
    #[error("what answers at {addr} is not a Fermata JobTracker ({why}): name another with --jobtracker")]
    NotJobTracker {
        /// Where.
        addr: String,
        /// What came back.
        why: String,
    },
    /// No, in its own words.
    #[error("{message}")]
    PaperFigures {
        /// What kind of no.
        code: Code,
        /// For people.
        message: String,
    },
}

impl Refusal {
    /// What a call to `addr` came back with.
    pub(super) fn of(addr: &str, status: &Status) -> Self {
        let stranger = status.code() == Code::Unimplemented || status.message().contains("HTTP status code");
        match std::error::Error::source(status) {
            Some(cause) => Self::unreachable(Role::JobTracker, addr, cause),
            None if stranger => Self::NotJobTracker { addr: addr.into(), why: status.message().into() },
            None => Self::PaperFigures { code: status.code(), message: status.message().into() },
        }
    }

    /// A connection to a daemon that could not be made, or broke.
    pub(super) fn unreachable(daemon: Role, addr: &str, cause: &dyn std::error::Error) -> Self {
        Self::Unreachable { daemon: daemon.title(), addr: addr.into(), why: innermost(cause) }
    }

    /// Whether asking again may help.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::NotJobTracker { .. } => false,
            Self::PaperFigures { code, .. } => {
                matches!(code, Code::Unavailable | Code::Cancelled | Code::Unknown)
            }
        }
    }

    /// Whether what was asked makes no sense.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::PaperFigures { code: Code::InvalidArgument, .. })
    }
}

/// "connection refused" rather than "transport error".
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
        let paper_figures = Refusal::of("h:1", &Status::invalid_argument("no such id"));
        assert!(paper_figures.is_usage() && !paper_figures.is_transient());
        assert_eq!(paper_figures.to_string(), "no such id");
        assert!(Refusal::of("h:1", &Status::unavailable("not now")).is_transient());
        let stranger = Refusal::of("h:1", &Status::unimplemented("no such method"));
        assert!(!stranger.is_transient() && stranger.to_string().contains("is not a Fermata JobTracker"));
        let silent =
            Refusal::unreachable(Role::NameNode, "h:1", &std::io::Error::other("connection refused"));
        assert!(silent.is_transient() && !silent.is_usage());
        assert_eq!(silent.to_string(), "the NameNode at h:1 does not answer (connection refused)");
    }
}
