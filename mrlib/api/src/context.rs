//! What a running task reports: counters, a status line, and that it is alive.
//!
//! Methods that only the engine calls are not in the documentation.

use crate::{control::TaskControl, error::TaskError, limits, liveness::Liveness};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// Maximum number of counters that a program may create. The engine needs the rest of
/// `COUNTERS_MAX`.
const PROGRAM_COUNTERS_MAX: usize = limits::COUNTERS_MAX - 40;

/// A handle to a counter, so that its name is looked up only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter(usize);

/// Passed to mappers and reducers, to report counters, a status line and signs of life.
#[derive(Debug, Default)]
pub struct Context {
    /// The index in `values` of each counter.
    names: HashMap<String, usize>,
    values: Vec<u64>,
    status: Option<String>,
    /// The input file of a map; empty in a reduce.
    source: String,
    /// The offset in `source` at which the range of the map begins.
    start: u64,
    /// The error of the first invalid counter. The task fails with it.
    fault: Option<String>,
    liveness: Liveness,
    control: TaskControl,
    /// Records and bytes that the mapper emitted before it combined them, if it combines its own
    /// output.
    map_output: Option<(u64, u64)>,
}

impl Context {
    /// Creates the context of a task.
    pub fn new(liveness: Liveness, control: TaskControl) -> Self {
        Self { liveness, control, ..Self::default() }
    }

    /// Returns the counter with this name, created if it is new. The task fails if it has too many
    /// counters or a name is too long.
    pub fn counter(&mut self, name: &str) -> Counter {
        if let Some(&known) = self.names.get(name) {
            return Counter(known);
        }
        let fault = match limits::check_counter_name(name) {
            Ok(()) if self.names.len() < PROGRAM_COUNTERS_MAX => return self.add_counter(name),
            Ok(()) => limits::too_many_counters(),
            Err(fault) => fault,
        };
        self.fault.get_or_insert(fault);
        // Additions to this counter are ignored, because the task fails anyway.
        self.add_counter("")
    }

    fn add_counter(&mut self, name: &str) -> Counter {
        let next = self.values.len();
        let at = *self.names.entry_ref(name).or_insert(next);
        if at == next {
            self.values.push(0);
        }
        Counter(at)
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        self.values[counter.0] = self.values[counter.0].saturating_add(n);
    }

    /// Adds to a counter of the engine.
    #[doc(hidden)]
    pub fn count(&mut self, name: &str, n: u64) {
        let counter = self.add_counter(name);
        self.add(counter, n);
    }

    /// Counts pairs that a mapper emitted before it combined its own output.
    #[doc(hidden)]
    pub fn add_map_output(&mut self, records: u64, bytes: u64) {
        let (all_records, all_bytes) = self.map_output.get_or_insert_default();
        *all_records += records;
        *all_bytes += bytes;
    }

    /// Returns the records and bytes that a mapper emitted before it combined its own output.
    #[doc(hidden)]
    pub fn map_output(&self) -> Option<(u64, u64)> {
        self.map_output
    }

    /// Returns the input file of a map; empty in a reduce.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the offset in the input file at which the range of the map begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Sets the input file and the start of the range. The engine calls it when a map starts.
    #[doc(hidden)]
    pub fn set_source(&mut self, source: impl Into<String>, start: u64) {
        self.source = source.into();
        self.start = start;
    }

    /// Sets a short text that describes what the task is doing. Also marks the task as alive.
    pub fn set_status(&mut self, status: impl Into<String>) {
        self.status = Some(limits::truncate_status(status.into()));
        self.liveness.mark_alive();
    }

    /// Marks the task as alive. Call it while one record takes long.
    pub fn mark_alive(&self) {
        self.liveness.mark_alive();
    }

    /// Returns the status line if it has changed since the last call.
    #[doc(hidden)]
    pub fn take_status(&mut self) -> Option<String> {
        self.status.take()
    }

    /// Fails if the task was killed or has an invalid counter.
    #[doc(hidden)]
    #[inline]
    pub fn check(&self) -> Result<(), TaskError> {
        match &self.fault {
            Some(fault) => Err(TaskError::Program(fault.clone())),
            None => self.control.check(),
        }
    }

    /// Returns all counters that are not zero.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let named = self.names.iter().map(|(name, at)| (name.clone(), self.values[*at]));
        named.filter(|(_, value)| *value > 0).collect()
    }

    /// Returns the values of all counters, for `restore_values`.
    #[doc(hidden)]
    pub fn values(&self) -> Vec<u64> {
        self.values.clone()
    }

    /// Resets the counters to earlier values before work is repeated.
    #[doc(hidden)]
    pub fn restore_values(&mut self, values: &[u64]) {
        for (at, value) in self.values.iter_mut().enumerate() {
            *value = values.get(at).copied().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name_and_too_many_fail_the_task() {
        let mut context = Context::default();
        for n in 0..PROGRAM_COUNTERS_MAX {
            let counter = context.counter(&format!("c{n}"));
            context.add(counter, 1);
        }
        let again = context.counter("c7");
        context.add(again, u64::MAX);
        context.check().expect("the maximum number is allowed");
        assert_eq!(context.counters().len(), PROGRAM_COUNTERS_MAX);
        assert_eq!(context.counters()["c7"], u64::MAX);
        for n in 0..5000 {
            let counter = context.counter(&format!("more{n}"));
            context.add(counter, 1);
        }
        assert!(context.check().expect_err("too many").to_string().contains("counters"));
        assert!(
            context.counters().len() <= PROGRAM_COUNTERS_MAX + 1,
            "the number of counters is not bounded"
        );
        context.count("ENGINE", 3);
        assert_eq!(context.counters()["ENGINE"], 3);
    }

    #[test]
    fn long_counter_name_fails_the_task_and_a_status_marks_it_alive() {
        let mut context = Context::default();
        context.counter(&"x".repeat(limits::COUNTER_NAME_BYTES_MAX + 1));
        assert!(context.check().is_err());
        let before = context.liveness.count();
        context.set_status("x".repeat(10 << 20));
        assert!(context.liveness.count() > before);
        assert_eq!(context.take_status().map(|status| status.len()), Some(limits::STATUS_BYTES_MAX));
    }

    #[test]
    fn repeated_work_counts_once_after_restore_values() {
        let mut context = Context::default();
        context.count("A", 5);
        let values = context.values();
        context.count("A", 2);
        context.count("B", 1);
        context.restore_values(&values);
        context.count("A", 2);
        assert_eq!(context.counters(), BTreeMap::from([("A".to_owned(), 7)]));
    }
}
