//! The time that the core is told: wall clock when the process began, monotonic from there.
//!
//! Never before the newest entry of the journal, so that facts stay in order whatever was done to the wall clock
//! between two starts.

use mrcore::Time;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The process's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Time,
    started: Instant,
}

impl Clock {
    /// Starts now, or at the newest entry if that is later.
    pub(crate) fn start(newest: Time) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base: newest.max(Time(wall.as_micros() as u64)), started: Instant::now() }
    }

    /// The time.
    pub(crate) fn now(&self) -> Time {
        Time(self.base.0 + self.started.elapsed().as_micros() as u64)
    }

    /// How long until then; nothing if it is over.
    pub(crate) fn until(&self, then: Time) -> Duration {
        Duration::from_micros(then.since(self.now()).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_never_goes_behind_the_journal() {
        let far = Time(u64::MAX / 2);
        let clock = Clock::start(far);
        assert!(clock.now() >= far);
        assert!(Clock::start(Time(0)).now() > Time(1_600_000_000_000_000));
    }
}
