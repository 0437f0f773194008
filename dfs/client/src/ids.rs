//! ID types. Each kind of ID has its own type, so that a block ID cannot be used as a file ID.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The ID of a block. The bytes of a block never change after its replicas are finalised. An ID is
/// never reused, with one exception: a NameNode that is restored from an older copy of its folder
/// may assign IDs again that were assigned after the copy was made. A [`Nonce`] distinguishes
/// blocks with the same ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId(pub u64);

/// A random number that is assigned to a block. It is the same in the edit log, in the header of
/// the checksum file of each replica and in every message about the block. A replica with another
/// nonce contains other bytes, even if its block ID is the same (ADR 0022).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nonce(pub u64);

impl Nonce {
    /// Returns a new random nonce.
    pub fn random() -> Self {
        Self(RequestId::random().0 as u64)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The ID of a file or folder. It stays the same when the file is renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId(pub u64);

/// The ID of a DataNode. It is stored in the data folders and lasts as long as they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeUuid(pub uuid::Uuid);

/// Identifies one start of a DataNode. A later start has a higher number. Messages of an older
/// incarnation are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeIncarnation(pub u64);

/// Identifies one start of the NameNode or the JobTracker. The ID is random, because a master that
/// is restored from an older copy of its folder starts again with an epoch that was already used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StartId(pub u64);

/// One start of a daemon with a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The number of the start. It increases with every start of the same journal.
    pub epoch: u64,
    /// The random ID of the start.
    pub id: StartId,
}

impl StartId {
    /// Returns a new random ID.
    pub fn random() -> Self {
        Self(RequestId::random().0 as u64)
    }
}

/// The ID of a mutating request. The NameNode uses it to recognise a request that is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u128);

impl RequestId {
    /// Returns a new random ID.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().as_u128())
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blk_{}", self.0)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.0)
    }
}

impl fmt::Display for NodeUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
