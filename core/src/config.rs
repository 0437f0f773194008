//! The numbers the core goes by.

use crate::time::Span;

/// Limits and periods.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// A tracker no heartbeat for this long is suspect.
    pub suspect_after: Span,
    /// A tracker no heartbeat for this long is lost.
    pub lost_after: Span,
    /// A tracker that has been lost for this long is forgotten.
    pub forget_after: Span,
    /// If nothing at all happened for this long, not even a tick, the JobTracker itself stood still.
    pub absence: Span,
    /// An attempt that its tracker has not reported for this long after it was told never started.
    pub launch_timeout: Span,
    /// An attempt that has not come further for this long is stuck.
    pub task_timeout: Span,
    /// Failures of one job on one tracker before the job leaves it alone.
    pub blacklist_after: u32,
    /// Part of the trackers that one job may blacklist.
    pub blacklist_share: f64,
    /// A task is not called a straggler before it has run this long.
    pub straggler_after: Span,
    /// A straggler has run this many times the mean of its kind.
    pub straggler_factor: f64,
    /// Part of a job's running attempts that may be duplicates.
    pub speculative_share: f64,
    /// A policy that has asked an attempt for its slot, without loss, waits this long for it; then the attempt is killed.
    pub preemption_timeout: Span,
    /// A slot that was taken back for a task is kept for it this long after `preemption_timeout`: until then it must have
    /// come, and been heard of.
    pub reserve_for: Span,
    /// Launches and other events of each job that `why` can tell of, each.
    pub events_max: usize,
    /// Most reduces a job may ask for.
    pub reduces_max: u32,
    /// Most maps a job may have.
    pub maps_max: u32,
    /// Finished jobs remembered; older ones live on in history alone.
    pub jobs_kept: usize,
    /// Tasks of finished jobs remembered, over all of them.
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
            events_max: 32,
            reduces_max: 10_000,
            maps_max: 1_000_000,
            jobs_kept: 1000,
            tasks_kept: 1_000_000,
        }
    }
}
