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
    /// The journal ends before an entry that was purged, or that is known to be committed.
    #[error("the journal ends before entry {claimed}, which was there: entries are lost")]
    Lost {
        /// Index of the newest entry that is known to have been there.
        claimed: u64,
    },
    /// There is a vote, and no entry and no snapshot.
    #[error("the file RAFT has a vote of this member, and its journal is gone")]
    JournalLost,
    /// The file `RAFT` is gone, and the journal is that of a group.
    #[error(
        "the journal is that of a group of masters, and the file RAFT with the vote of this member is missing"
    )]
    RaftFileLost,
    /// A member of which nothing is left.
    #[error("the folder has no journal any more")]
    NothingLeft,
    /// This member is not the only one of its group.
    #[error(
        "the folder belongs to a member of a group of {0} masters: remove the others from the group first"
    )]
    OthersVote(usize),
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

impl StoreError {
    /// Returns whether the member has lost entries or votes that it has acknowledged. Then it must
    /// never vote again with its ID.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Log(error) => error.is_damage(),
            Self::VoteLost
            | Self::Lost { .. }
            | Self::JournalLost
            | Self::RaftFileLost
            | Self::NothingLeft
            | Self::SnapshotUndecodable { .. }
            | Self::Undecodable { .. } => true,
            Self::OtherMember { .. } | Self::NoSnapshot | Self::OthersVote(_) | Self::State(_) => false,
        }
    }
}
