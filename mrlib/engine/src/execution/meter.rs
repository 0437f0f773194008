//! The clock of a task: decides when to report progress, and delays a task whose read rate is
//! limited (`pace.map`, `pace.reduce`).

use mrlib_api::{Liveness, TaskControl, TaskError};
use std::time::{Duration, Instant};

/// Time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Approximate time between two reads of the clock: rare enough to be cheap, often enough for slow
/// records.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum number of records between two reads of the clock.
const RECORDS_MAX: u32 = 4096;
/// Approximate time between two reads of the clock by a paced task, which waits at each read and
/// runs ahead in between.
const CHECK_INTERVAL_PACED: Duration = Duration::from_millis(50);
/// Interval at which a waiting task marks itself as alive.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// Decides at each record whether to wait and whether to report progress.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    checked_at: Instant,
    reported_at: Instant,
    /// Number of records between two reads of the clock.
    records: u32,
    /// Number of records until the next read of the clock.
    records_left: u32,
    /// Maximum read rate, in bytes per second.
    pace: Option<u64>,
    /// Whether a preemption request ends a wait. A kill always does.
    preemptible: bool,
    liveness: Liveness,
}

impl Meter {
    /// Starts now. `pace` is in bytes per second. If `preemptible`, a preemption request ends a
    /// wait.
    pub fn new(pace: Option<u64>, preemptible: bool, liveness: Liveness) -> Self {
        let now = Instant::now();
        Self {
            started: now,
            checked_at: now,
            reported_at: now,
            records: 1,
            records_left: 1,
            pace,
            preemptible,
            liveness,
        }
    }

    /// Waits if the task is ahead of its pace. Called at each record, when `bytes` of the input
    /// were read. Returns true if it is time to report progress.
    #[inline]
    pub fn tick(&mut self, bytes: u64, control: &TaskControl) -> Result<bool, TaskError> {
        self.records_left -= 1;
        if self.records_left > 0 { Ok(false) } else { self.check(bytes, control) }
    }

    fn check(&mut self, bytes: u64, control: &TaskControl) -> Result<bool, TaskError> {
        let every = if self.pace.is_some() { CHECK_INTERVAL_PACED } else { CHECK_INTERVAL };
        let taken = self.checked_at.elapsed();
        self.records =
            if taken < every { (self.records * 2).min(RECORDS_MAX) } else { self.records / 2 }.max(1);
        self.records_left = self.records;
        // The wait counts as time for the next records, because at this pace they take that long.
        self.checked_at = Instant::now();
        self.wait(bytes, control)?;
        let now = Instant::now();
        let report = now - self.reported_at >= REPORT_INTERVAL;
        if report {
            self.reported_at = now;
        }
        Ok(report)
    }

    /// Waits until reading `bytes` in total does not exceed the maximum read rate.
    pub fn wait(&mut self, bytes: u64, control: &TaskControl) -> Result<(), TaskError> {
        let Some(pace) = self.pace else { return Ok(()) };
        let due = Duration::from_secs_f64(bytes as f64 / pace as f64);
        while let Some(early) = due.checked_sub(self.started.elapsed()).filter(|early| !early.is_zero()) {
            if control.preempt_request()?.is_some() && self.preemptible {
                break;
            }
            control.sleep(early.min(ALIVE_INTERVAL), self.preemptible);
            self.liveness.mark_alive();
        }
        Ok(())
    }
}
