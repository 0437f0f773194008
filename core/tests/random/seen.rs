//! What happened in a life, for the proof that something did.

use mrcore::PerPhase;

/// How often each rare case was hit: what never happens is not tested.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
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
    pub(crate) late_words: u32,
    pub(crate) forgotten: u32,
    pub(crate) cleaned: u32,
    pub(crate) splits: u32,
    pub(crate) splits_of_tails: u32,
    pub(crate) pauses: u32,
    pub(crate) pauses_again: u32,
    pub(crate) resumes: u32,
    pub(crate) released: u32,
    pub(crate) checkpoints_lost: u32,
    pub(crate) dropped: u32,
    pub(crate) drains: u32,
    pub(crate) outputs_taken: u32,
    pub(crate) checkpoints_taken: u32,
    /// Decisions that the plan refused.
    pub(crate) refusals: u32,
    /// Heartbeats after which a slot was free that a waiting task could have used.
    pub(crate) idle: PerPhase<u32>,
}

impl std::ops::AddAssign for Seen {
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
        self.late_words += other.late_words;
        self.forgotten += other.forgotten;
        self.cleaned += other.cleaned;
        self.splits += other.splits;
        self.splits_of_tails += other.splits_of_tails;
        self.pauses += other.pauses;
        self.pauses_again += other.pauses_again;
        self.resumes += other.resumes;
        self.released += other.released;
        self.checkpoints_lost += other.checkpoints_lost;
        self.dropped += other.dropped;
        self.drains += other.drains;
        self.outputs_taken += other.outputs_taken;
        self.checkpoints_taken += other.checkpoints_taken;
        self.refusals += other.refusals;
        self.idle.map += other.idle.map;
        self.idle.reduce += other.idle.reduce;
    }
}
