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
    bell: Condvar,
}

#[derive(Debug, Default)]
struct List {
    events: Vec<MapEvent>,
    maps: u32,
    rings: u64,
}

/// What came since the follower last looked.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) events: Vec<MapEvent>,
    pub(super) maps: u32,
    pub(super) rings: u64,
}

impl MapFeed {
    /// A list of nothing yet, of a job with this many maps.
    pub fn new(maps: u32) -> Self {
        Self { list: Mutex::new(List { maps, ..List::default() }), bell: Condvar::new() }
    }

    /// Takes news in. A gap is an error: entries between are not known and never will be.
    pub fn push(&self, news: TaskMapEvents) -> Result<(), TaskError> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let known = list.events.len() as u64;
        if news.first > known {
            return Err(TaskError::Program(format!(
                "the tracker sent map events from {} on, but only {known} are known: a bug of the tracker",
                news.first
            )));
        }
        let repeated = (known - news.first) as usize;
        list.events.extend(news.events.into_iter().skip(repeated));
        list.maps = list.maps.max(news.maps);
        list.rings += 1;
        self.bell.notify_all();
        Ok(())
    }

    /// Wakes the follower although there is no news of maps.
    pub fn ring(&self) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).rings += 1;
        self.bell.notify_all();
    }

    /// What is after entry `seen`; waits until the bell has rung since `rings`, or for `patience`.
    pub(super) fn wait(&self, seen: usize, rings: u64, patience: Duration) -> News {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |list: &mut List| list.rings == rings && list.events.len() == seen;
        let (list, _) =
            self.bell.wait_timeout_while(list, patience, quiet).unwrap_or_else(PoisonError::into_inner);
        News { events: list.events[seen..].to_vec(), maps: list.maps, rings: list.rings }
    }
}
