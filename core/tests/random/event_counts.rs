//! Counts of events in a random run.

use mrcore::PerPhase;

/// How often each rare case occurred: a case that never occurs is not tested.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventCounts {
    pub(crate) jobs: u32,
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
    pub(crate) zombies: u32,
    pub(crate) duplicates: u32,
    pub(crate) outputs_lost: u32,
    pub(crate) unfetched: u32,
    pub(crate) blacklisted: u32,
    pub(crate) trackers_lost: u32,
    pub(crate) restarts: u32,
    pub(crate) late_reports: u32,
    pub(crate) forgotten: u32,
    pub(crate) cleaned: u32,
    pub(crate) splits: u32,
    pub(crate) splits_of_remainders: u32,
    pub(crate) pauses: u32,
    pub(crate) pauses_again: u32,
    pub(crate) resumes: u32,
    pub(crate) released: u32,
    pub(crate) checkpoints_lost: u32,
    pub(crate) dropped: u32,
    pub(crate) drains: u32,
    pub(crate) outputs_copied: u32,
    pub(crate) checkpoints_copied: u32,
    pub(crate) preemptions_too_late: u32,
    pub(crate) preemptions_repeated: u32,
    pub(crate) preemptions_after_end: u32,
    pub(crate) restarts_while_pausing: u32,
    pub(crate) pauses_unreported: u32,
    pub(crate) replaced_after_pause: u32,
    pub(crate) remainders_lost: u32,
    pub(crate) resumes_while_pausing: u32,
    pub(crate) duplicates_paused: u32,
    pub(crate) duplicates_resumed: u32,
    pub(crate) kills_after_pause: u32,
    pub(crate) refused: u32,
    pub(crate) behind_other_checkpoint: u32,
    pub(crate) unreachable: u32,
    pub(crate) kills_by_user: u32,
    pub(crate) overdue: u32,
    /// Decisions that the plan refused.
    pub(crate) refusals: u32,
    /// Heartbeats after which a slot was free that a pending task could have used.
    pub(crate) idle: PerPhase<u32>,
}

impl std::ops::AddAssign for EventCounts {
    fn add_assign(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.zombies += other.zombies;
        self.duplicates += other.duplicates;
        self.outputs_lost += other.outputs_lost;
        self.unfetched += other.unfetched;
        self.blacklisted += other.blacklisted;
        self.trackers_lost += other.trackers_lost;
        self.restarts += other.restarts;
        self.late_reports += other.late_reports;
        self.forgotten += other.forgotten;
        self.cleaned += other.cleaned;
        self.splits += other.splits;
        self.splits_of_remainders += other.splits_of_remainders;
        self.pauses += other.pauses;
        self.pauses_again += other.pauses_again;
        self.resumes += other.resumes;
        self.released += other.released;
        self.checkpoints_lost += other.checkpoints_lost;
        self.dropped += other.dropped;
        self.drains += other.drains;
        self.outputs_copied += other.outputs_copied;
        self.checkpoints_copied += other.checkpoints_copied;
        self.preemptions_too_late += other.preemptions_too_late;
        self.preemptions_repeated += other.preemptions_repeated;
        self.preemptions_after_end += other.preemptions_after_end;
        self.restarts_while_pausing += other.restarts_while_pausing;
        self.pauses_unreported += other.pauses_unreported;
        self.replaced_after_pause += other.replaced_after_pause;
        self.remainders_lost += other.remainders_lost;
        self.resumes_while_pausing += other.resumes_while_pausing;
        self.duplicates_paused += other.duplicates_paused;
        self.duplicates_resumed += other.duplicates_resumed;
        self.kills_after_pause += other.kills_after_pause;
        self.refused += other.refused;
        self.behind_other_checkpoint += other.behind_other_checkpoint;
        self.unreachable += other.unreachable;
        self.kills_by_user += other.kills_by_user;
        self.overdue += other.overdue;
        self.refusals += other.refusals;
        self.idle.map += other.idle.map;
        self.idle.reduce += other.idle.reduce;
    }
}
