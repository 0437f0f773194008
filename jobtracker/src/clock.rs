//! The time that the driver passes to the core: the wall clock at the start of the process, then
//! monotonic.
//!
//! The time is never before the newest entry of the journal. Facts stay in order even if the wall
//! clock was set back between two starts.

use mrcore::Time;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Time,
    started: Instant,
}

impl Clock {
    /// Starts at the wall clock, or at the time of the newest journal entry if that is later.
    pub(crate) fn start(newest_entry: Time) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base: newest_entry.max(Time(wall.as_micros() as u64)), started: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.base.0 + self.started.elapsed().as_micros() as u64)
    }

    /// Returns how long it is from now to `then`; zero if `then` has passed.
    pub(crate) fn time_until(&self, then: Time) -> Duration {
        Duration::from_micros(then.since(self.now()).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_starts_at_the_later_of_wall_clock_and_newest_journal_entry() {
        let far_future = Time(u64::MAX / 2);
        let clock = Clock::start(far_future);
        assert!(clock.now() >= far_future);
        assert!(Clock::start(Time(0)).now() > Time(1_600_000_000_000_000));
    }
}
