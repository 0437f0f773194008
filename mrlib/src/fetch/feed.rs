//! The list of map events as it comes from the tracker, and a bell for whoever follows it.
//!
//! Entry `n` of the list is always the same, so news that overlap what is known are merged by number.

use crate::error::TaskError;
use proto::mr::{MapEvent, TaskMapEvents};
use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

/// The live list of a job's map outputs.
#[derive(Debug, Default)]
pub struct MapFeed {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct List {
    events: Vec<MapEvent>,
    maps: u32,
    wakeups: u64,
}

/// What came since the follower last looked.
#[derive(Debug, Default)]
pub(super) struct NewEvents {
    pub(super) events: Vec<MapEvent>,
    pub(super) maps: u32,
    pub(super) wakeups: u64,
}

impl MapFeed {
    /// A list of nothing yet, of a job with this many maps.
    pub fn new(maps: u32) -> Self {
        Self { list: Mutex::new(List { maps, ..List::default() }), changed: Condvar::new() }
    }

    /// Takes news in. A gap is an error: entries between are not known and never will be.
    pub fn push(&self, new_events: TaskMapEvents) -> Result<(), TaskError> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let known = list.events.len() as u64;
        if new_events.first > known {
            return Err(TaskError::Program(format!(
                "the tracker sent map events from {} on, but only {known} are known: a bug of the tracker",
                new_events.first
            )));
        }
        let repeated = (known - new_events.first) as usize;
        list.events.extend(new_events.events.into_iter().skip(repeated));
        list.maps = list.maps.max(new_events.maps);
        list.wakeups += 1;
        self.changed.notify_all();
        Ok(())
    }

    /// Wakes the follower although there is no news of maps.
    pub fn wake(&self) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).wakeups += 1;
        self.changed.notify_all();
    }

    /// What is after entry `seen`; waits until the condition variable has rung since `wakeups`, or for `patience`.
    pub(super) fn wait(&self, seen: usize, wakeups: u64, patience: Duration) -> NewEvents {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |list: &mut List| list.wakeups == wakeups && list.events.len() == seen;
        let (list, _) =
            self.changed.wait_timeout_while(list, patience, quiet).unwrap_or_else(PoisonError::into_inner);
        NewEvents { events: list.events[seen..].to_vec(), maps: list.maps, wakeups: list.wakeups }
    }
}
