//! Limits and timeouts of the state machine.

use crate::time::Span;

/// Limits and timeouts. The `jobtracker.*` settings of the daemon set most of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// A tracker without a heartbeat for this long is suspect.
    pub suspect_after: Span,
    /// A tracker without a heartbeat for this long is lost.
    pub lost_after: Span,
    /// A tracker that has been lost for this long is forgotten.
    pub forget_after: Span,
    /// If no event arrives for this long, not even a tick, the JobTracker itself must have been
    /// paused.
    pub absence: Span,
    /// An attempt fails if its tracker has not reported it for this long after its launch.
    pub launch_timeout: Span,
    /// An attempt without progress for this long fails.
    pub task_timeout: Span,
    /// After this many failures of a job on a tracker, the job may blacklist the tracker.
    pub blacklist_after: u32,
    /// The maximum fraction of the trackers that one job may blacklist.
    pub blacklist_share: f64,
    /// A task that has run for less than this is not a straggler.
    pub straggler_after: Span,
    /// A task is a straggler if it has run this many times longer than expected.
    pub straggler_factor: f64,
    /// The maximum fraction of the running attempts of a job that may be speculative.
    pub speculative_share: f64,
    /// An attempt that a policy has preempted by a split or a pause is killed if it still holds its
    /// slot after this time.
    pub preemption_timeout: Span,
    /// A reservation lapses this long after `preemption_timeout`. By then the preempted slot is
    /// free, and the tracker has reported it.
    pub reserve_for: Span,
    /// Maximum number of trackers whose free slots are offered at once when work arrives. The slots
    /// of other trackers are offered with their next heartbeat.
    pub offers_max: usize,
    /// Maximum number of launches, and of other events, that `mrctl why` shows for each job.
    pub events_max: usize,
    /// Maximum number of reduces of a job.
    pub reduces_max: u32,
    /// Maximum number of maps of a job.
    pub maps_max: u32,
    /// Maximum number of active jobs of all users.
    pub jobs_max: usize,
    /// Maximum number of active jobs of one user.
    pub user_jobs_max: usize,
    /// Maximum number of tasks in the active jobs of one user. It does not apply to the only job of
    /// a user.
    pub user_tasks_max: u64,
    /// Free space to keep on the disk of the journal. Below a quarter of it no attempt is launched.
    pub disk_reserve_bytes: u64,
    /// Maximum number of finished jobs that stay in memory. Older jobs are only in the history.
    pub jobs_kept: usize,
    /// Maximum number of tasks of finished jobs that stay in memory, over all jobs.
    pub tasks_kept: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            suspect_after: Span::secs(3),
            lost_after: Span::secs(10),
            forget_after: Span::secs(24 * 3600),
            absence: Span::secs(5),
            launch_timeout: Span::secs(30),
            task_timeout: Span::secs(600),
            blacklist_after: 3,
            blacklist_share: 0.25,
            straggler_after: Span::secs(15),
            straggler_factor: 1.5,
            speculative_share: 0.1,
            reserve_for: Span::secs(30),
            preemption_timeout: Span::secs(60),
            offers_max: 64,
            events_max: 32,
            reduces_max: 10_000,
            maps_max: 1_000_000,
            jobs_max: usize::MAX,
            user_jobs_max: usize::MAX,
            user_tasks_max: u64::MAX,
            disk_reserve_bytes: 256 << 20,
            jobs_kept: 1000,
            tasks_kept: 1_000_000,
        }
    }
}
