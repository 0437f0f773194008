//! The durable half of the NameNode: what the edit log and the snapshots hold, and nothing else.

mod edit;
mod snapshot;

pub use edit::{Edit, Record};
pub use snapshot::{Entry, SnapshotItem, SnapshotLoader};

/// Why a record or snapshot item does not fit: the log is damaged or another cluster's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ApplyError(pub String);

/// Folders, files, their blocks, and what else must outlive a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {}

impl Namespace {
    /// An empty one: only the root folder.
    pub fn new(_cluster_id: impl Into<String>) -> Self {
        todo!()
    }
    /// Takes one record of the log.
    pub fn apply(&mut self, _record: &Record) -> Result<(), ApplyError> {
        todo!()
    }
    /// The whole as a snapshot.
    pub fn items(&self) -> impl Iterator<Item = SnapshotItem> {
        std::iter::empty()
    }
    /// Records applied in its life.
    pub fn records(&self) -> u64 {
        todo!()
    }
    /// Which cluster.
    pub fn cluster_id(&self) -> &str {
        todo!()
    }
}
