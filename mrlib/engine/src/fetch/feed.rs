//! The list of map events from the tracker, and a condition variable for the thread that follows
//! it.
//!
//! Entry `n` of the list never changes, so overlapping messages are merged by number.

use mrlib_api::TaskError;
use proto::mr::{MapEvent, TaskMapEvents};
use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

/// The growing list of map events of a job.
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

/// Events since the last call of [`MapFeed::wait`].
#[derive(Debug, Default)]
pub(super) struct NewEvents {
    pub(super) events: Vec<MapEvent>,
    pub(super) maps: u32,
    pub(super) wakeups: u64,
}

impl MapFeed {
    /// An empty list for a job with this many maps.
    pub fn new(maps: u32) -> Self {
        Self { list: Mutex::new(List { maps, ..List::default() }), changed: Condvar::new() }
    }

    /// Adds events. A gap is an error, because the missing events will never be sent.
    pub fn push(&self, new_events: TaskMapEvents) -> Result<(), TaskError> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let known = list.events.len() as u64;
        if new_events.first > known {
            return Err(TaskError::Program(format!(
                "the tracker sent map events from number {}, but only {known} are known: this is a bug of the tracker",
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

    /// Wakes the follower without new events.
    pub fn wake(&self) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).wakeups += 1;
        self.changed.notify_all();
    }

    /// The events after entry `seen`. Waits until there are some, until `wake` was called after
    /// `wakeups`, or until the timeout.
    pub(super) fn wait(&self, seen: usize, wakeups: u64, timeout: Duration) -> NewEvents {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |list: &mut List| list.wakeups == wakeups && list.events.len() == seen;
        let (list, _) =
            self.changed.wait_timeout_while(list, timeout, quiet).unwrap_or_else(PoisonError::into_inner);
        NewEvents { events: list.events[seen..].to_vec(), maps: list.maps, wakeups: list.wakeups }
    }
}
