//! Why the log of a group, or its state, cannot be used.

use journal::{LogError, Seq};

/// Why a master could not use a record.
pub type StateError = Box<dyn std::error::Error + Send + Sync>;

/// Why a log could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal or the file `RAFT` is damaged or unreadable.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The folder is of another member of the group.
    #[error("the folder belongs to member {found} of its group, and this is member {expected}")]
    OtherMember {
        /// The member to which the folder belongs.
        found: u64,
        /// The member that was to be opened.
        expected: u64,
    },
    /// There are entries, and no vote.
    #[error("the journal has entries, and the file RAFT with the vote of this member is missing")]
    VoteLost,
    /// The journal ends before the entries that were purged.
    #[error(
        "the journal ends with entry {last}, and entry {purged} was there and was purged: entries are lost"
    )]
    Lost {
        /// Index of the last entry.
        last: u64,
        /// Index of the newest entry that was purged.
        purged: u64,
    },
    /// There is no snapshot.
    #[error("there is no snapshot: one master must make one before it becomes the first of a group")]
    NoSnapshot,
    /// A snapshot does not begin with its place in the log.
    #[error("the snapshot at record {seq} does not begin with its place in the log")]
    SnapshotUndecodable {
        /// The last record that the snapshot includes.
        seq: Seq,
    },
    /// The master could not use the records.
    #[error("the state of the master: {0}")]
    State(StateError),
    /// A record of the journal is not an entry.
    #[error("record {seq} of the journal is not an entry of a group of masters")]
    Undecodable {
        /// Sequence number of the record.
        seq: Seq,
    },
}
