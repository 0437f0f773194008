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
    pub(crate) recalls_too_late: u32,
    pub(crate) recalls_again: u32,
    pub(crate) recalls_after_end: u32,
    pub(crate) restarts_while_pausing: u32,
    pub(crate) pauses_untold: u32,
    pub(crate) replaced_after_pause: u32,
    pub(crate) tails_lost: u32,
    pub(crate) resumes_while_pausing: u32,
    pub(crate) twins_paused: u32,
    pub(crate) twins_resumed: u32,
    pub(crate) kills_after_pause: u32,
    pub(crate) refused: u32,
    pub(crate) less_far: u32,
    pub(crate) unreached: u32,
    pub(crate) kills_by_hand: u32,
    pub(crate) overdue: u32,
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
        self.recalls_too_late += other.recalls_too_late;
        self.recalls_again += other.recalls_again;
        self.recalls_after_end += other.recalls_after_end;
        self.restarts_while_pausing += other.restarts_while_pausing;
        self.pauses_untold += other.pauses_untold;
        self.replaced_after_pause += other.replaced_after_pause;
        self.tails_lost += other.tails_lost;
        self.resumes_while_pausing += other.resumes_while_pausing;
        self.twins_paused += other.twins_paused;
        self.twins_resumed += other.twins_resumed;
        self.kills_after_pause += other.kills_after_pause;
        self.refused += other.refused;
        self.less_far += other.less_far;
        self.unreached += other.unreached;
        self.kills_by_hand += other.kills_by_hand;
        self.overdue += other.overdue;
        self.refusals += other.refusals;
        self.idle.map += other.idle.map;
        self.idle.reduce += other.idle.reduce;
    }
}
