//! Bugs on purpose: the simulation of the control plane (`tests/world/`) puts each of them into its
//! thread and must find it. Without debug assertions, as in a release build, none exists.

use std::cell::Cell;

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Records are acknowledged without a sync of their file.
    SyncSkipped,
    /// A new segment is used without a sync of its name.
    FolderSyncSkipped,
    /// The commit point is written before its records are durable.
    CommitPointEarly,
    /// A member forgets its vote when it stops.
    VoteNotStored,
    /// A change is acknowledged before a quorum has it.
    AcknowledgedAtOnce,
    /// A read is answered at once.
    ReadNotConfirmed,
    /// A member leads before all earlier entries are applied.
    LeadsEarly,
    /// A deposed leader keeps changes that were not committed.
    UncommittedKept,
    /// A snapshot lacks the last entry that it claims to include.
    SnapshotTooOld,
    /// Entries that contradict the leader stay on disk.
    TruncationSkipped,
    /// A repeated request is executed again.
    RequestRepeated,
    /// A leader does not log the start of its leadership.
    StartNotLogged,
    /// The answer to a DataNode does not wait for the commit of what it contains.
    ReportAnsweredEarly,
    /// A follower forgets the replicas that heartbeats report.
    FollowerForgetsReplicas,
    /// A member that has lost its log continues with its ID.
    LostMemberKeepsId,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::SyncSkipped,
        Self::FolderSyncSkipped,
        Self::CommitPointEarly,
        Self::VoteNotStored,
        Self::AcknowledgedAtOnce,
        Self::ReadNotConfirmed,
        Self::LeadsEarly,
        Self::UncommittedKept,
        Self::SnapshotTooOld,
        Self::TruncationSkipped,
        Self::RequestRepeated,
        Self::StartNotLogged,
        Self::ReportAnsweredEarly,
        Self::FollowerForgetsReplicas,
        Self::LostMemberKeepsId,
    ];
}

thread_local! {
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Puts a bug into what runs in this thread.
pub fn set_in_thread(bug: Option<Bug>) {
    BUG.set(bug);
}

/// Returns whether this thread has the bug.
pub fn has(bug: Bug) -> bool {
    cfg!(debug_assertions) && BUG.get() == Some(bug)
}
