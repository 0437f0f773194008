//! Slot use over time, in a bounded number of steps. When there are too many steps, their length is
//! doubled.

use crate::{
    phase::{PerPhase, Phase},
    time::{Span, Time},
};
use std::collections::BTreeMap;

/// Maximum number of steps.
const STEPS_MAX: usize = 512;

/// Slot use over time, by group of jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    step: Span,
    /// Slot-seconds in each step, by group.
    used: PerPhase<BTreeMap<String, Vec<f64>>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { step: Span::secs(1), used: PerPhase::default() }
    }
}

impl Timeline {
    /// Adds the use of a slot between two times.
    pub fn add(&mut self, group: &str, phase: Phase, from: Time, to: Time) {
        while to.0 >= self.step.0 * STEPS_MAX as u64 {
            self.double_step();
        }
        if !self.used[phase].contains_key(group) {
            self.used[phase].insert(group.to_owned(), Vec::new());
        }
        let Some(steps) = self.used[phase].get_mut(group) else { return };
        let (first, last) = ((from.0 / self.step.0) as usize, (to.0 / self.step.0) as usize);
        if steps.len() <= last {
            steps.resize(last + 1, 0.0);
        }
        for (at, used) in steps.iter_mut().enumerate().take(last + 1).skip(first) {
            let (start, end) = (at as u64 * self.step.0, (at as u64 + 1) * self.step.0);
            *used += to.0.min(end).saturating_sub(from.0.max(start)) as f64 / 1e6;
        }
    }

    fn double_step(&mut self) {
        self.step = Span(self.step.0 * 2);
        for phase in Phase::BOTH {
            for steps in self.used[phase].values_mut() {
                *steps = steps.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
        }
    }

    /// Returns the length of a step.
    pub fn step(&self) -> Span {
        self.step
    }

    /// Returns for each group the mean number of slots in use in each step.
    pub fn slots(&self, phase: Phase) -> impl Iterator<Item = (&str, Vec<f64>)> {
        let seconds = self.step.as_secs_f64();
        let groups = self.used[phase].iter();
        groups.map(move |(group, steps)| (group.as_str(), steps.iter().map(|used| used / seconds).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubling_the_step_keeps_the_sum_of_slot_seconds() {
        let mut timeline = Timeline::default();
        timeline.add("a", Phase::Map, Time(500_000), Time(2_500_000));
        let steps: Vec<_> = timeline.slots(Phase::Map).collect();
        assert_eq!(steps, [("a", vec![0.5, 1.0, 0.5])]);
        timeline.add("a", Phase::Map, Time(0), Time(5_000_000_000));
        let all: f64 = timeline.slots(Phase::Map).flat_map(|(_, steps)| steps).sum();
        assert!((all * timeline.step().as_secs_f64() - 5002.0).abs() < 1e-6);
    }
}
