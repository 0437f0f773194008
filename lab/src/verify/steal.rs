//! CPU steal: the time that the processors of a virtual machine were ready to run, but its host ran
//! something else. It makes a real run slower than its simulation.

use std::fs;

/// The times of all processors since the start of the machine, in ticks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CpuTimes {
    steal: u64,
    /// With idle time.
    all: u64,
}

impl CpuTimes {
    /// Reads the times; they are zero where the kernel does not show them.
    pub(super) fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|text| Self::of(&text)).unwrap_or_default()
    }

    fn of(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // User, nice, system, idle, I/O wait, interrupts, soft interrupts, steal; those of guests,
        // which follow, are part of the first two.
        let times: Vec<u64> = line.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
        Some(Self { steal: *times.get(7)?, all: times.iter().sum() })
    }

    /// Returns the share of steal in the time since `before`; `None` if it is not known.
    pub(super) fn steal_since(self, before: &Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.steal.saturating_sub(before.steal) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_a_share_of_the_time_of_all_processors() {
        let at = |steal: u64| {
            let text = format!("cpu  100 0 50 800 10 0 40 {steal} 30 0\ncpu0 1 2 3\n");
            CpuTimes::of(&text).expect("a line of all processors")
        };
        let share = at(250).steal_since(&at(0)).expect("time has passed");
        assert!((share - 1.0).abs() < 1e-9, "{share}");
        assert!(at(5).steal_since(&at(5)).is_none(), "no time has passed");
        let later = CpuTimes { steal: 10, all: 1400 };
        assert!(later.steal_since(&at(0)).is_some_and(|share| (share - 0.025).abs() < 1e-9));
        assert!(CpuTimes::of("cpu0 1 2 3 4 5 6 7 8\n").is_none());
        assert!(CpuTimes::of("cpu 1 2 3 4\n").is_none(), "a kernel without steal");
    }
}
