//! Counts refused calls by kind, and logs them with a rate limit, so that callers cannot fill the
//! disk.

use crate::identity::Identity;
use daemon::logging::RateLimit;
use parking_lot::Mutex;
use std::{net::SocketAddr, time::Duration};
use tonic::{Code, Status};

/// Minimum interval of log lines about calls that access rules have refused.
const ACCESS_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval of log lines about calls that limits have refused.
const LIMIT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The call has no credential, or an invalid one.
    Credential,
    /// The caller has no permission.
    Permission,
    /// The request is malformed.
    Request,
    /// There is no slot for the connection.
    Connection,
    /// The identity has too many calls.
    Identity,
    /// There are too many calls in total.
    Calls,
    /// There are too many health checks, or one took too long.
    Health,
    /// The request body is late or too long.
    Body,
    /// There is no memory left for request bodies.
    Bytes,
}

const KINDS: usize = Kind::Bytes as usize + 1;

/// Counts the refused calls of one server.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// Rate limits of the log lines, by kind.
    by_kind: [Mutex<RateLimit>; KINDS],
}

impl Default for Refusals {
    fn default() -> Self {
        let every =
            |kind| if kind <= Kind::Request as usize { ACCESS_LOG_INTERVAL } else { LIMIT_LOG_INTERVAL };
        Self { by_kind: std::array::from_fn(|kind| Mutex::new(RateLimit::new(every(kind)))) }
    }
}

impl Kind {
    /// Returns the kind of a refusal by a service; `None` if the status is not a refusal of access.
    pub(crate) fn of_access(code: Code) -> Option<Self> {
        match code {
            Code::Unauthenticated => Some(Self::Credential),
            Code::PermissionDenied => Some(Self::Permission),
            _ => None,
        }
    }
}

impl Refusals {
    /// Counts a refusal, and logs it if the rate limit allows. The log line contains the number of
    /// refusals of this kind since the last line.
    pub(crate) fn log(
        &self,
        kind: Kind,
        method: &str,
        identity: Option<&Identity>,
        address: Option<SocketAddr>,
        status: &Status,
    ) {
        let Some(times) = self.by_kind[kind as usize].lock().count_event() else { return };
        let name = identity.map_or("", |identity| &*identity.name);
        let role = identity.and_then(|identity| identity.role).map_or("", |role| role.name());
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        // Names and paths come from the caller and are quoted, so that they cannot imitate log
        // lines.
        tracing::warn!(?kind, ?name, role, address, ?method, why = ?status.message(), times, "refused a call");
    }
}
