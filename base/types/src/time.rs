//! Points in time and durations. Callers provide the current time: no code here reads a clock.

use serde::{Deserialize, Serialize};
use std::{fmt, ops};

/// A point in time, in microseconds since an origin that the driver chooses: the Unix epoch in the
/// JobTracker, the start of the process in a TaskTracker. Differences come from a monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Time(pub u64);

/// A duration, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Span(pub u64);

impl Span {
    /// Returns a duration of `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }
    /// Returns a duration of `n` milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(n.saturating_mul(1000))
    }
    /// Returns the duration in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Time {
    /// Returns the duration since `earlier`; 0 if `earlier` is after `self`.
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl ops::Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl ops::Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Span(self.0).fmt(f)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}s", self.0 / 1_000_000, self.0 / 1000 % 1000)
    }
}
