//! The list of map events from the tracker (map outputs that became available or were withdrawn),
//! and a channel that wakes the thread that follows the list.
//!
//! Entry `n` of the list never changes, so overlapping messages are merged by number.

use crossbeam::channel::{self, Receiver, Sender};
use mrlib_api::TaskError;
use proto::mr::{MapEvent, TaskMapEvents};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The growing list of map events of a job, with one follower.
#[derive(Debug)]
pub struct MapFeed {
    list: Mutex<List>,
    /// Has room for one wake-up, which is enough: the follower then sees all earlier changes.
    waker: Sender<()>,
    wakeups: Receiver<()>,
}

#[derive(Debug)]
struct List {
    events: Vec<MapEvent>,
    maps: u32,
}

/// Events since the last call of [`MapFeed::wait`].
#[derive(Debug, Default)]
pub(super) struct NewEvents {
    pub(super) events: Vec<MapEvent>,
    pub(super) maps: u32,
}

impl MapFeed {
    /// Creates an empty list for a job with this many maps.
    pub fn new(maps: u32) -> Self {
        let (waker, wakeups) = channel::bounded(1);
        Self { list: Mutex::new(List { events: Vec::new(), maps }), waker, wakeups }
    }

    /// Adds events. A gap is an error, because the missing events will never be sent.
    pub fn push(&self, new_events: TaskMapEvents) -> Result<(), TaskError> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let known = list.events.len() as u64;
        if new_events.first > known {
            return Err(TaskError::Program(format!(
                "the tracker sent map events from number {}, but only {known} are known: this is a bug in the TaskTracker",
                new_events.first
            )));
        }
        let repeated = (known - new_events.first) as usize;
        list.events.extend(new_events.events.into_iter().skip(repeated));
        list.maps = list.maps.max(new_events.maps);
        drop(list);
        self.wake();
        Ok(())
    }

    /// Wakes the follower, even if there are no new events.
    pub fn wake(&self) {
        // If the channel is full, the follower has not seen the last wake-up yet, so no other is
        // needed.
        let _ = self.waker.try_send(());
    }

    /// Waits until there was a wake-up since the last call, or until the timeout. Returns the
    /// events from entry `seen` on.
    pub(super) fn wait(&self, seen: usize, timeout: Duration) -> NewEvents {
        // After a timeout the list is read, too.
        let _ = self.wakeups.recv_timeout(timeout);
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        NewEvents { events: list.events[seen..].to_vec(), maps: list.maps }
    }
}
