//! Writing a snapshot.
use crate::{LogError, Seq};

/// Writes one snapshot. Nothing is visible before `finish`; dropped without it, it leaves at most a temporary
/// file that the next open removes.
pub struct SnapshotWriter {}

impl SnapshotWriter {
    /// Adds a record; what it means is the owner's affair.
    pub fn push(&mut self, _record: &[u8]) -> Result<(), LogError> {
        todo!()
    }
    /// Makes the snapshot durable under its name. Follow with `Log::snapshot_done`. Returns its bytes.
    pub fn finish(self) -> Result<u64, LogError> {
        todo!()
    }
    /// The last record the snapshot contains.
    pub fn seq(&self) -> Seq {
        todo!()
    }
}
