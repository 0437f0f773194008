//! Refused calls: counted by kind, and logged so that nobody can fill the disk with them.

use crate::identity::Identity;
use daemon::logging::RateLimit;
use parking_lot::Mutex;
use std::{net::SocketAddr, time::Duration};
use tonic::{Code, Status};

/// How often a refusal by what somebody may do is logged, and one by a limit.
const ACCESS_EVERY: Duration = Duration::from_secs(1);
const LIMIT_EVERY: Duration = Duration::from_secs(10);

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It shows no credential, or one that is not valid.
    Credential,
    /// Its caller may not do this.
    Permission,
    /// Its request is malformed.
    Request,
    /// No place for the connection.
    Connection,
    /// Too many calls of the identity.
    Identity,
    /// Too many calls in all.
    Calls,
    /// Too many health checks, or one that takes too long.
    Health,
    /// The request body is late or too long.
    Body,
    /// No memory left for request bodies.
    Bytes,
}

const KINDS: usize = Kind::Bytes as usize + 1;

/// The refusals of one server.
#[derive(Debug)]
pub(crate) struct Refusals {
    of: [Mutex<RateLimit>; KINDS],
}

impl Default for Refusals {
    fn default() -> Self {
        let every = |kind| if kind <= Kind::Request as usize { ACCESS_EVERY } else { LIMIT_EVERY };
        Self { of: std::array::from_fn(|kind| Mutex::new(RateLimit::new(every(kind)))) }
    }
}

impl Kind {
    /// The kind of what a service has refused by itself; None if it is no refusal of access.
    pub(crate) fn of_access(code: Code) -> Option<Self> {
        match code {
            Code::Unauthenticated => Some(Self::Credential),
            Code::PermissionDenied => Some(Self::Permission),
            _ => None,
        }
    }
}

impl Refusals {
    /// One more. The line says how many of its kind there were since the last.
    pub(crate) fn log(
        &self,
        kind: Kind,
        method: &str,
        identity: Option<&Identity>,
        address: Option<SocketAddr>,
        status: &Status,
    ) {
        let Some(times) = self.of[kind as usize].lock().due() else { return };
        let name = identity.map_or("", |identity| &*identity.name);
        let role = identity.and_then(|identity| identity.role).map_or("", |role| role.name());
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        // Names and paths are the caller's: quoted, so that they cannot pass for a line of ours.
        tracing::warn!(?kind, ?name, role, address, ?method, why = ?status.message(), times, "refused a call");
    }
}
