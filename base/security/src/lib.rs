//! Authentication and authorisation: credentials, the gate before every server, TLS on every
//! connection.
//!
//! ```text
//! client ─ Credentials ─► TLS ─► gate (rules: method → roles) ─► Identity in request ─► service
//! reader ─ block token ─► TLS ─► DataNode            reduce ─ shuffle token ─► TLS ─► TaskTracker
//! ```
//!
//! A cluster is *open* or *closed*. A daemon of an open cluster has no keys and listens only on
//! loopback (unless `--insecure` is set). It believes the name that a caller claims, and allows
//! everything. In a closed cluster a caller proves its identity by a certificate of the cluster's
//! authority or by a token signed with a key of the cluster; methods that are not in the table of
//! rules are refused. The services decide what a caller may do with a file or a job, depending on
//! its owner.
//!
//! The feature `server` (default) adds everything that only a daemon needs: the gate, limits,
//! revocation and the cluster's authority. Clients and jobs are built without it.
//!
//! This crate knows files, jobs and tasks only by their IDs.

#[cfg(feature = "server")]
mod authority;
#[cfg(feature = "server")]
mod body;
#[cfg(feature = "server")]
mod connection_limiter;
mod credentials;
#[cfg(feature = "server")]
mod gate;
#[cfg(feature = "server")]
mod guard;
#[cfg(feature = "server")]
mod health;
mod identity;
#[cfg(feature = "server")]
mod incoming;
#[cfg(feature = "server")]
mod jobs;
mod keys;
#[cfg(feature = "server")]
mod limits;
mod mismatch;
mod peer;
#[cfg(feature = "server")]
mod refusals;
#[cfg(feature = "server")]
mod revoked;
#[cfg(feature = "server")]
mod rules;
#[cfg(feature = "server")]
mod share;
mod stream;
mod tls;
mod token;

#[cfg(feature = "server")]
pub use authority::{Authority, AuthorityError};
#[cfg(feature = "server")]
pub use body::{RequestBody, ResponseBody};
#[cfg(feature = "server")]
pub use connection_limiter::{ConnectionLimiter, ConnectionSlot, UNAUTHENTICATED_TIMEOUT};
pub use credentials::{Connector, Credentials};
#[cfg(feature = "server")]
pub use gate::{Gate, Gated, GatedFuture};
#[cfg(feature = "server")]
pub use guard::{Guard, Layered};
pub use identity::{Identity, NameError, Role, USER_KEY, check_name, request_id_of};
#[cfg(feature = "server")]
pub use incoming::{Caller, CallerInfo, Incoming};
#[cfg(feature = "server")]
pub use jobs::{ActiveJobs, Jobs};
pub use keys::{Key, Keyring, Purpose, digest, read_private, write_private};
#[cfg(feature = "server")]
pub use limits::MESSAGE_BYTES_MAX;
pub use mismatch::{call_failure, connection_failure, tls_mismatch};
pub use peer::{Endpoint, TRUST_VAR, trusted_owner};
#[cfg(feature = "server")]
pub use revoked::{REVOKED_FILE, Revocations, fingerprint_of_file};
#[cfg(feature = "server")]
pub use rules::{RULES, Rule, rule_of};
pub use stream::Stream;
pub use token::{
    Access, BlockKey, BlockToken, TOKEN_KEY, Token, TokenError, is_partition_token_valid, job_name_of,
    partition_token,
};

use std::{io, path::PathBuf};

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Other accounts can read a secret file.
    #[error("{path} is a secret and others can read it (mode {mode:o}): chmod 600 {path}")]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file has invalid contents.
    #[error("{path}: {why}")]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Something that this role requires is missing.
    #[error("{0}")]
    Missing(String),
}
