//! Shuffle: the list of map outputs of a job, and how far each reduce has fetched them.
//!
//! The list is the core's list of map events. All reduces read the same list, each up to the events
//! that its tracker has received. The list counts the bytes of complete map outputs; a reduce
//! fetches its share of them. Outputs are fetched in the order of the list. Outputs on unreachable
//! machines are skipped until the machine is reachable again.
//!
//! There is one network flow per reduce, not one per map and reduce. Its path has the machines that
//! the outputs are on.

use mrcore::ids::AttemptId;
use std::collections::BTreeMap;

/// A change in the list of map outputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// The output is available on this machine.
    Available { attempt: AttemptId, bytes: f64, node: u32 },
    /// The output is withdrawn. `end` is the position after its last byte in the list.
    Withdrawn { map: u32, bytes: f64, end: f64 },
    /// The output is on this machine now.
    Moved { attempt: AttemptId, node: u32 },
    /// The entry does not change anything for reduces.
    Unchanged,
}

/// An available output: its machine, and the position after its last byte in the list.
#[derive(Debug, Clone, Copy)]
struct Output {
    attempt: AttemptId,
    bytes: f64,
    end: f64,
    node: u32,
}

/// The list of map outputs of a job.
#[derive(Debug, Default)]
pub(super) struct MapLog {
    changes: Vec<Change>,
    /// For each prefix of the list: bytes made available, and number of entries that are not new
    /// outputs.
    prefix_sums: Vec<(f64, u32)>,
    /// Currently available outputs, by index of the map.
    current: BTreeMap<u32, Output>,
    /// Bytes of the available outputs on each machine.
    bytes_by_node: BTreeMap<u32, f64>,
}

impl MapLog {
    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns the machines with available outputs, and the bytes on each.
    pub(super) fn bytes_by_node(&self) -> &BTreeMap<u32, f64> {
        &self.bytes_by_node
    }

    /// Counts the bytes of an output on its machine; they are negative for an output that is gone.
    fn count_bytes(&mut self, node: u32, bytes: f64) {
        let on_node = self.bytes_by_node.entry(node).or_default();
        *on_node += bytes;
        if *on_node < 0.5 {
            self.bytes_by_node.remove(&node);
        }
    }

    /// Adds an output that became available, or a new location of a known output.
    pub(super) fn available(&mut self, attempt: AttemptId, bytes: f64, node: u32) {
        let index = attempt.task.index;
        if let Some(output) = self.current.get_mut(&index).filter(|output| output.attempt == attempt) {
            let (before, bytes) = (std::mem::replace(&mut output.node, node), output.bytes);
            self.count_bytes(before, -bytes);
            self.count_bytes(node, bytes);
            return self.push(Change::Moved { attempt, node }, 0.0);
        }
        let end = self.prefix_sums.last().map_or(0.0, |(sum, _)| *sum) + bytes;
        self.current.insert(index, Output { attempt, bytes, end, node });
        self.count_bytes(node, bytes);
        self.push(Change::Available { attempt, bytes, node }, bytes);
    }

    /// Withdraws an output that was lost.
    pub(super) fn withdrawn(&mut self, attempt: AttemptId) {
        let map = attempt.task.index;
        let change = match self.current.remove(&map) {
            Some(Output { bytes, end, node, .. }) => {
                self.count_bytes(node, -bytes);
                Change::Withdrawn { map, bytes, end }
            }
            None => Change::Unchanged,
        };
        self.push(change, 0.0);
    }

    fn push(&mut self, change: Change, bytes: f64) {
        let (sum, not_new_before) = self.prefix_sums.last().copied().unwrap_or_default();
        let not_new = !matches!(change, Change::Available { .. });
        self.prefix_sums.push((sum + bytes, not_new_before + u32::from(not_new)));
        self.changes.push(change);
    }

    /// Returns the bytes, and the number of entries that are not new outputs, of the first
    /// `changes` entries.
    fn sum(&self, changes: usize) -> (f64, u32) {
        changes.checked_sub(1).map_or((0.0, 0), |last| self.prefix_sums[last])
    }
}

/// An output on an unreachable machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Blocked {
    pub(super) attempt: AttemptId,
    pub(super) bytes: f64,
    pub(super) node: u32,
}

/// Progress of one reduce in the list.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Fetch {
    /// Bytes fetched.
    pub(super) fetched: f64,
    /// Bytes fetched, plus bytes that can be fetched now.
    pub(super) available: f64,
    /// Maps whose output is fetched or available.
    pub(super) maps: u32,
    /// Number of entries of the list that were processed.
    cursor: usize,
    /// Bytes of the processed entries that this reduce need not fetch, because the output was
    /// withdrawn or had been fetched from an earlier attempt.
    skipped: f64,
    /// Maps whose output was withdrawn after this reduce had fetched it, with the bytes.
    withdrawn_after_fetch: BTreeMap<u32, f64>,
    /// Outputs on unreachable machines.
    pub(super) blocked: Vec<Blocked>,
}

impl Fetch {
    /// Processes the list up to entry `upto`. `all` says that every machine is reachable.
    pub(super) fn follow(&mut self, log: &MapLog, upto: usize, reachable: impl Fn(u32) -> bool, all: bool) {
        let upto = upto.min(log.len());
        if upto <= self.cursor {
            return;
        }
        let ((before, odd_before), (after, odd_after)) = (log.sum(self.cursor), log.sum(upto));
        if all && self.withdrawn_after_fetch.is_empty() && odd_before == odd_after {
            self.available += after - before;
            self.maps += (upto - self.cursor) as u32;
        } else {
            for change in &log.changes[self.cursor..upto] {
                self.apply_change(*change, &reachable);
            }
        }
        self.cursor = upto;
    }

    /// Processes one change of the list.
    fn apply_change(&mut self, change: Change, reachable: &impl Fn(u32) -> bool) {
        match change {
            Change::Available { attempt, bytes, node } => {
                if self.withdrawn_after_fetch.remove(&attempt.task.index).is_some() {
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
                } else if self.has_fetched_up_to(end) {
                    self.withdrawn_after_fetch.insert(map, bytes);
                } else {
                    self.maps -= 1;
                    self.available = (self.available - bytes).max(self.fetched);
                    self.skipped += bytes;
                }
            }
            Change::Moved { attempt, node } => {
                if let Some(at) = self.blocked.iter().position(|blocked| blocked.attempt == attempt) {
                    self.blocked[at].node = node;
                    if reachable(node) {
                        self.available += self.blocked.remove(at).bytes;
                    }
                }
            }
            Change::Unchanged => {}
        }
    }

    /// Returns whether the output that ends at this position of the list has been fetched.
    fn has_fetched_up_to(&self, end: f64) -> bool {
        self.fetched >= self.available - 0.5 || self.fetched + self.skipped >= end - 0.5
    }

    /// Blocks the outputs on a machine that became unreachable and are not fetched yet.
    pub(super) fn block(&mut self, log: &MapLog, gone: u32) {
        let upto = self.cursor.min(log.len());
        let mut sum = 0.0;
        for change in &log.changes[..upto] {
            let Change::Available { attempt, bytes, .. } = *change else { continue };
            sum += bytes;
            let output = log.current.get(&attempt.task.index).filter(|output| output.attempt == attempt);
            let there = output.is_some_and(|output| output.node == gone);
            let is_known = self.blocked.iter().any(|blocked| blocked.attempt == attempt)
                || self.withdrawn_after_fetch.contains_key(&attempt.task.index);
            if there && !is_known && !self.has_fetched_up_to(sum) {
                self.available = (self.available - bytes).max(self.fetched);
                self.blocked.push(Blocked { attempt, bytes, node: gone });
            }
        }
    }

    /// Unblocks the outputs on a machine that is reachable again.
    pub(super) fn unblock(&mut self, back: u32) {
        let freed: f64 =
            self.blocked.iter().filter(|blocked| blocked.node == back).map(|blocked| blocked.bytes).sum();
        self.blocked.retain(|blocked| blocked.node != back);
        self.available += freed;
    }

    /// Counts this number of bytes as fetched.
    pub(super) fn add_fetched(&mut self, bytes: f64) {
        self.fetched = (self.fetched + bytes).min(self.available);
    }

    /// Returns the bytes that can be fetched now.
    pub(super) fn backlog(&self) -> f64 {
        (self.available - self.fetched).max(0.0)
    }

    /// Whether all that can be fetched now is fetched. Less than half a byte is a rounding error.
    pub(super) fn is_caught_up(&self) -> bool {
        self.backlog() < 0.5
    }

    /// Whether all maps are known and none is blocked.
    pub(super) fn knows_all_maps(&self, maps: u32) -> bool {
        self.maps >= maps && self.blocked.is_empty()
    }

    /// Whether all map outputs are fetched.
    pub(super) fn has_all(&self, maps: u32) -> bool {
        self.knows_all_maps(maps) && self.is_caught_up()
    }

    /// Returns the fraction of the maps whose output is fetched.
    pub(super) fn fraction(&self, maps: u32) -> f64 {
        let known = f64::from(self.maps) / f64::from(maps.max(1));
        let got = if self.available > 0.0 { self.fetched / self.available } else { 1.0 };
        (known * got).clamp(0.0, 1.0)
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
        fetch.add_fetched(1000.0);
        assert!(!fetch.has_all(4));
        fetch.follow(&log, 9, |_| true, true);
        assert!(fetch.backlog() > 99.0 && fetch.knows_all_maps(4));
        fetch.add_fetched(100.0);
        assert!(fetch.has_all(4));
    }

    #[test]
    fn fetched_outputs_survive_withdrawal() {
        let (mut log, mut fetch) = (log(), Fetch::default());
        fetch.follow(&log, 4, |_| true, true);
        fetch.add_fetched(150.0);
        log.withdrawn(map(0, 0));
        log.withdrawn(map(3, 0));
        fetch.follow(&log, 6, |_| true, true);
        assert_eq!((fetch.available, fetch.maps), (300.0, 3), "map 0 was fetched, map 3 was not");
        log.available(map(0, 1), 100.0, 2);
        log.available(map(3, 1), 100.0, 2);
        fetch.follow(&log, 8, |_| true, true);
        assert_eq!((fetch.available, fetch.maps), (400.0, 4));
        fetch.add_fetched(250.0);
        assert!(fetch.has_all(4));
    }

    #[test]
    fn unreachable_machines_block_only_their_outputs() {
        let (mut log, mut fetch) = (log(), Fetch::default());
        fetch.follow(&log, 4, |_| true, true);
        fetch.add_fetched(100.0);
        fetch.block(&log, 0);
        fetch.block(&log, 2);
        assert_eq!(fetch.blocked.len(), 1, "map 0 was fetched before");
        fetch.add_fetched(1000.0);
        assert!(!fetch.has_all(4) && fetch.backlog() < 0.5);
        log.withdrawn(map(2, 0));
        log.available(map(2, 1), 100.0, 1);
        fetch.follow(&log, 6, |node| node != 2, false);
        assert_eq!((fetch.blocked.len(), fetch.maps), (0, 4));
        fetch.add_fetched(100.0);
        assert!(fetch.has_all(4));
        fetch.unblock(2);
        assert!(fetch.has_all(4));
    }
}
