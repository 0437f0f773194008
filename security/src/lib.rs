//! Who may do what: credentials, the gate before every server, TLS on every connection.
//!
//! ```text
//! client ─ Credentials ─► TLS ─► gate (rules: method → roles) ─► Identity in the request ─► the service
//! reader ─ block token ─► TLS ─► DataNode            reduce ─ shuffle token ─► TLS ─► TaskTracker
//! ```
//!
//! A daemon is *open* or *closed*. Open: it has no keys, listens on loopback only (or was told otherwise in as many
//! words), believes the name that a caller gives, and lets everybody do everything. Closed: a caller proves who it
//! is by a certificate of the cluster's own authority or by a token signed with one of the cluster's keys; what is
//! not in the table of rules is refused. What a caller may do with a file or a job is for its owner to say, and is
//! decided where the file or the job is.
//!
//! Deliberately absent: any knowledge of files, jobs and tasks beyond their ids.

mod authority;
mod body;
mod connection_limiter;
mod credentials;
mod gate;
mod guard;
mod health;
mod identity;
mod incoming;
mod jobs;
mod keys;
mod limits;
mod mismatch;
mod peer;
mod refusals;
mod revoked;
mod rules;
mod stream;
mod tls;
mod token;

pub use authority::{Authority, AuthorityError};
pub use body::{RequestBody, ResponseBody};
pub use connection_limiter::{ConnectionLimiter, ConnectionSlot, UNAUTHENTICATED_TIMEOUT};
pub use credentials::{Connector, Credentials};
pub use gate::{Gate, Gated, GatedFuture};
pub use guard::{Guard, Layered};
pub use identity::{Identity, NameError, Role, USER_KEY, check_name, request_of};
pub use incoming::{Caller, CallerInfo, Incoming};
pub use jobs::{ActiveJobs, Jobs, job_name_of};
pub use keys::{Key, Keyring, Purpose, digest, read_private, write_private};
pub use mismatch::{call_failure, tls_mismatch, why};
pub use peer::{Endpoint, TRUST_VAR, trusted_owner};
pub use revoked::{REVOKED_FILE, Revocations, fingerprint_of_file};
pub use rules::{RULES, Rule, rule_of};
pub use stream::Stream;
pub use token::{Access, BlockKey, BlockToken, Refused, TOKEN_KEY, Token, opens_partition, partition_token};

use std::{io, path::PathBuf};

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read it.
    #[error("{path} is a secret and others can read it (mode {mode:o}): chmod 600 {path}")]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file does not hold what it should.
    #[error("{path}: {why}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Something that this role cannot do without is missing.
    #[error("{0}")]
    Missing(String),
}
