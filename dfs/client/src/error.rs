//! The refusals of the NameNode, shared by server and client. [`Kind::NotLeader`] is also a refusal of
//! the JobTracker.
//!
//! The server creates an `Error` with a kind and a message. The error is sent as a gRPC status
//! whose metadata contains the kind. The client decodes the same `Error` and can act on the kind
//! without parsing the message.

use security::Role;
use tonic::{Code, Status, metadata::MetadataValue};

/// The gRPC metadata key of the [`Kind`].
pub const ERROR_KEY: &str = "fermata-error";
/// The gRPC metadata key of the address of the leader, in refusals of [`Kind::NotLeader`].
const LEADER_KEY: &str = "fermata-leader";
/// The gRPC metadata key of the epoch of the leader.
const LEADER_EPOCH_KEY: &str = "fermata-leader-epoch";

/// The machine-readable kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A malformed path, ID, size or name.
    Invalid,
    /// The file, folder, block or node does not exist.
    NotFound,
    /// The file or folder already exists.
    Exists,
    /// The path is a file, but the operation needs a folder.
    NotDirectory,
    /// The path is a folder, but the operation needs a file.
    IsDirectory,
    /// The folder has entries, and the request is not recursive.
    NotEmpty,
    /// The caller does not have the lease of the file, or no longer has it.
    LeaseLost,
    /// Another client has the lease of the file.
    Busy,
    /// The operation would exceed a quota.
    Quota,
    /// There are not enough DataNodes with free space.
    NoNodes,
    /// No DataNode has reported a replica of a block of the file yet. The client may retry.
    NotYetReplicated,
    /// The NameNode is in safemode. The client may retry.
    Safemode,
    /// The NameNode is in a safemode that only an operator can end. A retry succeeds only after
    /// that.
    ManualSafemode,
    /// The epoch of the request is lower than the fence of its scope, or the same with another
    /// start ID.
    Fenced,
    /// The file, folder, block or node is in a state that does not allow the operation.
    Refused,
    /// The caller has no permission.
    Denied,
    /// The disk of the server failed, or the server is stopping. The client may retry.
    Unavailable,
    /// The NameNode runs from an older copy of its folder: the DataNode has already registered with
    /// a later start of the NameNode.
    OlderNameNode,
    /// The master does not lead its group. The client sends the same request to the leader. Also
    /// the JobTracker answers this.
    NotLeader,
}

/// The leader of a group of masters, as another member knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its address, `host:port`, as clients are configured with it.
    pub addr: String,
    /// The epoch of its leadership.
    pub epoch: u64,
}

/// A refusal. The operation has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The machine-readable kind.
    pub kind: Kind,
    /// The message for the user, in one line: what failed, where, why, and what to do.
    pub message: String,
    /// The leader, if the kind is [`Kind::NotLeader`] and the leader is known.
    pub leader: Option<Leader>,
}

const KINDS: [(Kind, &str, Code); 19] = [
    (Kind::Invalid, "invalid", Code::InvalidArgument),
    (Kind::NotFound, "not-found", Code::NotFound),
    (Kind::Exists, "exists", Code::AlreadyExists),
    (Kind::NotDirectory, "not-directory", Code::FailedPrecondition),
    (Kind::IsDirectory, "is-directory", Code::FailedPrecondition),
    (Kind::NotEmpty, "not-empty", Code::FailedPrecondition),
    (Kind::LeaseLost, "lease-lost", Code::FailedPrecondition),
    (Kind::Busy, "busy", Code::FailedPrecondition),
    (Kind::Quota, "quota", Code::ResourceExhausted),
    (Kind::NoNodes, "no-nodes", Code::ResourceExhausted),
    (Kind::NotYetReplicated, "not-yet-replicated", Code::Unavailable),
    (Kind::Safemode, "safemode", Code::Unavailable),
    (Kind::ManualSafemode, "manual-safemode", Code::Unavailable),
    (Kind::Fenced, "fenced", Code::FailedPrecondition),
    (Kind::Refused, "refused", Code::FailedPrecondition),
    (Kind::Denied, "denied", Code::PermissionDenied),
    (Kind::Unavailable, "unavailable", Code::Unavailable),
    (Kind::OlderNameNode, "older-namenode", Code::FailedPrecondition),
    (Kind::NotLeader, "not-leader", Code::Unavailable),
];

impl Error {
    /// Creates a refusal.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), leader: None }
    }

    /// Creates the refusal of a master that does not lead.
    pub fn not_leader(master: Role, leader: Option<Leader>) -> Self {
        let known = match &leader {
            Some(leader) => format!("{} leads", leader.addr),
            None => "no leader is known yet".into(),
        };
        let (title, name) = (master.title(), master.name());
        let message = format!(
            "this {title} does not lead: {known}; clients need the addresses of all in cluster.{name}"
        );
        Self { kind: Kind::NotLeader, message, leader }
    }

    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            Kind::NotYetReplicated
                | Kind::Safemode
                | Kind::ManualSafemode
                | Kind::Unavailable
                | Kind::NotLeader
        )
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (_, name, code) =
            KINDS.into_iter().find(|(kind, ..)| *kind == error.kind).expect("KINDS lists every kind");
        let mut status = Status::new(code, error.message);
        let metadata = status.metadata_mut();
        metadata.insert(ERROR_KEY, MetadataValue::from_static(name));
        if let Some(Leader { addr, epoch }) = error.leader
            && let Ok(addr) = addr.parse()
        {
            metadata.insert(LEADER_KEY, addr);
            metadata.insert(LEADER_EPOCH_KEY, epoch.into());
        }
        status
    }
}

/// Returns the `Error` that a master has stored in a status, or `None`.
pub fn from_status(status: &Status) -> Option<Error> {
    let value = |key| status.metadata().get(key)?.to_str().ok();
    let name = value(ERROR_KEY)?;
    let (kind, ..) = KINDS.into_iter().find(|(_, known, _)| *known == name)?;
    let leader = || {
        let (addr, epoch) = (value(LEADER_KEY)?.to_owned(), value(LEADER_EPOCH_KEY)?.parse().ok()?);
        Some(Leader { addr, epoch })
    };
    Some(Error { leader: leader(), ..Error::new(kind, status.message()) })
}

impl From<crate::path::PathError> for Error {
    fn from(error: crate::path::PathError) -> Self {
        Self::new(Kind::Invalid, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_decoded_from_its_status() {
        for (kind, ..) in KINDS {
            let sent = Error::new(kind, "a message");
            assert_eq!(from_status(&Status::from(sent.clone())), Some(sent));
        }
        assert_eq!(from_status(&Status::internal("no kind")), None);
    }

    #[test]
    fn leader_is_decoded_from_the_status() {
        let known = Leader { addr: "b:9400".into(), epoch: u64::MAX };
        for leader in [Some(known), None] {
            let sent = Error::not_leader(Role::NameNode, leader);
            let status = Status::from(sent.clone());
            assert_eq!((status.code(), from_status(&status)), (Code::Unavailable, Some(sent)));
        }
        let mut invalid = Status::from(Error::new(Kind::NotLeader, "a message"));
        invalid.metadata_mut().insert(LEADER_KEY, MetadataValue::from_static("b:9400"));
        invalid.metadata_mut().insert(LEADER_EPOCH_KEY, MetadataValue::from_static("-1"));
        assert_eq!(from_status(&invalid).unwrap().leader, None);
    }
}
