//! What the NameNode refuses, in one list that both ends share.
//!
//! The server builds an `Error` (kind and words); it crosses the wire as a gRPC status whose metadata names
//! the kind; the client gets the same `Error` back and can act on the kind without reading the words.

use tonic::{Code, Status, metadata::MetadataValue};

/// The metadata key that carries the kind.
pub const ERROR_KEY: &str = "fermata-error";

/// What kind of refusal, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A malformed path, id, size or name.
    Invalid,
    /// No such file, folder, block, node.
    NotFound,
    /// Something is there already.
    Exists,
    /// A file where a folder is needed.
    NotDirectory,
    /// A folder where a file is needed.
    IsDirectory,
    /// A folder with entries, and no recursive flag.
    NotEmpty,
    /// The caller does not hold the file's lease (any more).
    LeaseLost,
    /// Another writer holds it.
    Busy,
    /// A quota would be exceeded.
    Quota,
    /// No or not enough DataNodes with room.
    NoNodes,
    /// A block of the file has no reported replica yet; ask again.
    NotYetReplicated,
    /// Safemode; ask again.
    Safemode,
    /// Safemode that only an operator ends; ask again when told to.
    ManualSafemode,
    /// An epoch older than the fence.
    Fenced,
    /// An operation that cannot be done on this object in this state.
    Refused,
    /// The caller may not.
    Denied,
    /// The server's disk failed or it is stopping; ask again.
    Unavailable,
    /// The NameNode runs from an older copy of its folder than the DataNode has seen.
    OlderNameNode,
}

/// A refusal: nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// For programs.
    pub kind: Kind,
    /// For people: what, where, why, what to do; one line.
    pub message: String,
}

const KINDS: [(Kind, &str, Code); 18] = [
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
];

impl Error {
    /// A refusal of `kind`, in `message`'s words.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Whether asking again later may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            Kind::NotYetReplicated | Kind::Safemode | Kind::ManualSafemode | Kind::Unavailable
        )
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (_, name, code) =
            KINDS.into_iter().find(|(kind, ..)| *kind == error.kind).expect("KINDS lists every kind");
        let mut status = Status::new(code, error.message);
        status.metadata_mut().insert(ERROR_KEY, MetadataValue::from_static(name));
        status
    }
}

/// The `Error` inside a status, if a NameNode put one there.
pub fn from_status(status: &Status) -> Option<Error> {
    let name = status.metadata().get(ERROR_KEY)?.to_str().ok()?;
    let (kind, ..) = KINDS.into_iter().find(|(_, known, _)| *known == name)?;
    Some(Error::new(kind, status.message()))
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
    fn every_kind_survives_the_wire() {
        for (kind, ..) in KINDS {
            let sent = Error::new(kind, "a message");
            assert_eq!(from_status(&Status::from(sent.clone())), Some(sent));
        }
        assert_eq!(from_status(&Status::internal("no kind")), None);
    }
}
