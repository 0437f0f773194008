//! What reduces fetch: the list of a job's map outputs, and how far along it one reduce is.
//!
//! The list is the core's own list of map events, so every reduce reads the same one, each up to what its tracker has
//! been told. Bytes are those of whole map outputs; a reduce's own part is its share of them. Outputs are fetched in
//! the order of the list, but those on machines that cannot be reached are left out until they can.
//! Deliberately absent: one flow for each map and reduce. Fifty million of them would say no more than one for each
//! reduce.

use mrcore::ids::AttemptId;
use std::collections::BTreeMap;

/// One change of the list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// This output can be fetched from that machine.
    Available { attempt: AttemptId, bytes: f64, node: u32 },
    /// This one cannot any more; it ended there in the list of bytes.
    Withdrawn { map: u32, bytes: f64, end: f64 },
    /// It is where it was.
    Same,
}

/// The list of a job.
#[derive(Debug, Default)]
pub(super) struct MapLog {
    changes: Vec<Change>,
    /// Bytes made available by the first so many changes, and how many of these took something back.
    sums: Vec<(f64, u32)>,
    /// What is available now, by index of the map.
    now: BTreeMap<u32, (AttemptId, f64, f64)>,
}

impl MapLog {
    /// How many changes are known.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// An output became available, or is somewhere else now.
    pub(super) fn available(&mut self, attempt: AttemptId, bytes: f64, node: u32) {
        let index = attempt.task.index;
        if self.now.get(&index).is_some_and(|(jobs_known, ..)| *jobs_known == attempt) {
            return self.push(Change::Same, 0.0);
        }
        let end = self.sums.last().map_or(0.0, |(sum, _)| *sum) + bytes;
        self.now.insert(index, (attempt, bytes, end));
        self.push(Change::Available { attempt, bytes, node }, bytes);
    }

    /// An output is gone.
    pub(super) fn withdrawn(&mut self, attempt: AttemptId) {
        let map = attempt.task.index;
        let change = match self.now.remove(&map) {
            Some((_, bytes, end)) => Change::Withdrawn { map, bytes, end },
            None => Change::Same,
        };
        self.push(change, 0.0);
    }

    fn push(&mut self, change: Change, bytes: f64) {
        let (sum, taken_back) = self.sums.last().copied().unwrap_or_default();
        let not_new = !matches!(change, Change::Available { .. });
        self.sums.push((sum + bytes, taken_back + u32::from(not_new)));
        self.changes.push(change);
    }

    /// Bytes, and changes that are not new outputs, among the first so many.
    fn sum(&self, changes: usize) -> (f64, u32) {
        changes.checked_sub(1).map_or((0.0, 0), |last| self.sums[last])
    }
}

/// An output that cannot be reached for now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Blocked {
    pub(super) attempt: AttemptId,
    pub(super) bytes: f64,
    pub(super) node: u32,
}

/// How far one reduce is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fetch {
    /// Bytes it has.
    pub(super) got: f64,
    /// Bytes it could have.
    pub(super) available: f64,
    /// Maps whose output it has or could have.
    pub(super) maps: u32,
    /// Changes of the list that it has taken in.
    cursor: usize,
    /// Bytes before where it stands in the list that it need not fetch.
    skipped: f64,
    /// Maps whose output is gone, but it has it.
    obtained: BTreeMap<u32, f64>,
    /// Outputs that cannot be reached for now.
    pub(super) blocked: Vec<Blocked>,
}

impl Fetch {
    /// Takes the list in up to `upto`.
    pub(super) fn follow(&mut self, log: &MapLog, upto: usize, reachable: impl Fn(u32) -> bool, all: bool) {
        let upto = upto.min(log.len());
        if upto <= self.cursor {
            return;
        }
        let ((before, odd_before), (after, odd_after)) = (log.sum(self.cursor), log.sum(upto));
        if all && self.obtained.is_empty() && odd_before == odd_after {
            self.available += after - before;
            self.maps += (upto - self.cursor) as u32;
        } else {
            for change in &log.changes[self.cursor..upto] {
                self.take(*change, &reachable);
            }
        }
        self.cursor = upto;
    }

    fn take(&mut self, change: Change, reachable: &impl Fn(u32) -> bool) {
        match change {
            Change::Available { attempt, bytes, node } => {
                if self.obtained.remove(&attempt.task.index).is_some() {
                    self.skipped += bytes;
                    return;
                }
                self.maps += 1;
                if reachable(node) {
                    self.available += bytes;
                } else {
                    self.blocked.push(Blocked { attempt, bytes, node });
                }
            }
            Change::Withdrawn { map, bytes, end } => {
                let blocked = self.blocked.iter().position(|blocked| blocked.attempt.task.index == map);
                if let Some(at) = blocked {
                    self.blocked.remove(at);
                    self.maps -= 1;
                    self.skipped += bytes;
                } else if self.has(end) {
                    self.obtained.insert(map, bytes);
                } else {
                    self.maps -= 1;
                    self.available = (self.available - bytes).max(self.got);
                    self.skipped += bytes;
                }
            }
            Change::Same => {}
        }
    }

    fn has(&self, end: f64) -> bool {
        self.got >= self.available - 0.5 || self.got + self.skipped >= end - 0.5
    }

    /// A machine cannot be reached any more: what it has and this reduce has not must wait.
    pub(super) fn block(&mut self, log: &MapLog, gone: u32) {
        let upto = self.cursor.min(log.len());
        let mut sum = 0.0;
        for change in &log.changes[..upto] {
            let Change::Available { attempt, bytes, node } = *change else { continue };
            sum += bytes;
            let current =
                log.now.get(&attempt.task.index).is_some_and(|(jobs_known, ..)| *jobs_known == attempt);
            let jobs_known = self.blocked.iter().any(|blocked| blocked.attempt == attempt)
                || self.obtained.contains_key(&attempt.task.index);
            if node == gone && current && !jobs_known && !self.has(sum) {
                self.available = (self.available - bytes).max(self.got);
                self.blocked.push(Blocked { attempt, bytes, node });
            }
        }
    }

    /// A machine can be reached again.
    pub(super) fn unblock(&mut self, back: u32) {
        let freed: f64 =
            self.blocked.iter().filter(|blocked| blocked.node == back).map(|blocked| blocked.bytes).sum();
        self.blocked.retain(|blocked| blocked.node != back);
        self.available += freed;
    }

    /// Fetches for a while.
    pub(super) fn run(&mut self, bytes: f64) {
        self.got = (self.got + bytes).min(self.available);
    }

    /// Bytes that it could fetch now.
    pub(super) fn backlog(&self) -> f64 {
        (self.available - self.got).max(0.0)
    }

    /// Whether it knows of all maps, and all of them can be reached.
    pub(super) fn knows_all_maps(&self, maps: u32) -> bool {
        self.maps >= maps && self.blocked.is_empty()
    }

    /// Whether it has all.
    pub(super) fn has_all(&self, maps: u32) -> bool {
        self.knows_all_maps(maps) && self.backlog() < 0.5
    }

    /// Part of the maps whose output it has.
    pub(super) fn fraction(&self, maps: u32) -> f64 {
        let jobs_known = f64::from(self.maps) / f64::from(maps.max(1));
        let got = if self.available > 0.0 { self.got / self.available } else { 1.0 };
        (jobs_known * got).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::{
        Phase,
        ids::{JobId, TaskId},
    };

    fn map(index: u32, number: u32) -> AttemptId {
        TaskId { job: JobId(1), phase: Phase::Map, index }.attempt(number)
    }

    fn log() -> MapLog {
        let mut log = MapLog::default();
        (0..4).for_each(|index| log.available(map(index, 0), 100.0, index));
        log
    }

    #[test]
    fn fetch_follows_map_events() {
        let (log, mut fetch) = (log(), Fetch::default());
        fetch.follow(&log, 3, |_| true, true);
        assert_eq!((fetch.available, fetch.maps), (300.0, 3));
        fetch.run(1000.0);
        assert!(!fetch.has_all(4));
        fetch.follow(&log, 9, |_| true, true);
        assert!(fetch.backlog() > 99.0 && fetch.knows_all_maps(4));
        fetch.run(100.0);
        assert!(fetch.has_all(4));
    }

    #[test]
    fn fetched_outputs_survive_withdrawal() {
        let (mut log, mut fetch) = (log(), Fetch::default());
        fetch.follow(&log, 4, |_| true, true);
        fetch.run(150.0);
        log.withdrawn(map(0, 0));
        log.withdrawn(map(3, 0));
        fetch.follow(&log, 6, |_| true, true);
        assert_eq!((fetch.available, fetch.maps), (300.0, 3), "map 0 was fetched, map 3 was not");
        log.available(map(0, 1), 100.0, 2);
        log.available(map(3, 1), 100.0, 2);
        fetch.follow(&log, 8, |_| true, true);
        assert_eq!((fetch.available, fetch.maps), (400.0, 4));
        fetch.run(250.0);
        assert!(fetch.has_all(4));
    }

    #[test]
    fn unreachable_machines_block_only_their_outputs() {
        let (mut log, mut fetch) = (log(), Fetch::default());
        fetch.follow(&log, 4, |_| true, true);
        fetch.run(100.0);
        fetch.block(&log, 0);
        fetch.block(&log, 2);
        assert_eq!(fetch.blocked.len(), 1, "map 0 was fetched before");
        fetch.run(1000.0);
        assert!(!fetch.has_all(4) && fetch.backlog() < 0.5);
        log.withdrawn(map(2, 0));
        log.available(map(2, 1), 100.0, 1);
        fetch.follow(&log, 6, |node| node != 2, false);
        assert_eq!((fetch.blocked.len(), fetch.maps), (0, 4));
        fetch.run(100.0);
        assert!(fetch.has_all(4));
        fetch.unblock(2);
        assert!(fetch.has_all(4));
    }
}
