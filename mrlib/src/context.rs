//! What a task can tell: counters and a status line.

use std::collections::BTreeMap;

/// A counter, looked up once and added to cheaply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter(usize);

/// A running task's side of its conversation with the user.
#[derive(Debug, Default)]
pub struct Context {
    names: Vec<String>,
    values: Vec<u64>,
    status: Option<String>,
    source: String,
    start: u64,
}

impl Context {
    /// The counter of this name, made if it is new.
    pub fn counter(&mut self, name: &str) -> Counter {
        let known = self.names.iter().position(|known| known == name);
        Counter(known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.values.push(0);
            self.names.len() - 1
        }))
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        self.values[counter.0] += n;
    }

    /// The file that a map's records come from; empty in a reduce.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Where in that file the map's range begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Told by the engine when a map begins.
    pub fn set_source(&mut self, source: impl Into<String>, start: u64) {
        self.source = source.into();
        self.start = start;
    }

    /// Says in a few words what the task is doing.
    pub fn set_status(&mut self, status: impl Into<String>) {
        self.status = Some(status.into());
    }

    /// The status line, if it has changed since it was last taken.
    pub fn take_status(&mut self) -> Option<String> {
        self.status.take()
    }

    /// All counters that are not zero.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let named = self.names.iter().cloned().zip(self.values.iter().copied());
        named.filter(|(_, value)| *value > 0).collect()
    }
}
