//! Pending tasks of one job and phase, indexed by host.
//!
//! A task without preferred hosts (a reduce, or a map whose input has no known hosts) is only in
//! `all`.

use crate::ids::HostId;
use std::collections::{BTreeMap, BTreeSet};

/// The indexes of pending tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingTasks {
    all: BTreeSet<u32>,
    by_host: BTreeMap<HostId, BTreeSet<u32>>,
}

impl PendingTasks {
    pub(crate) fn insert(&mut self, index: u32, hosts: &[HostId]) {
        self.all.insert(index);
        for host in hosts {
            self.by_host.entry(*host).or_default().insert(index);
        }
    }

    pub(crate) fn remove(&mut self, index: u32, hosts: &[HostId]) {
        self.all.remove(&index);
        for host in hosts {
            if let Some(there) = self.by_host.get_mut(host) {
                there.remove(&index);
                if there.is_empty() {
                    self.by_host.remove(host);
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of pending tasks.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether no task is pending.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether the task with this index is pending.
    pub fn contains(&self, index: u32) -> bool {
        self.all.contains(&index)
    }

    /// Returns all pending tasks, ordered by index.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.iter().copied()
    }

    /// Returns the pending tasks with this index or a higher one.
    pub(crate) fn starting_at(&self, index: u32) -> impl Iterator<Item = u32> + use<'_> {
        self.all.range(index..).copied()
    }

    /// Returns the pending tasks whose input is on a host, ordered by index.
    pub fn on_host(&self, host: HostId) -> impl Iterator<Item = u32> + '_ {
        self.by_host.get(&host).into_iter().flatten().copied()
    }

    /// Returns the number of hosts that have input of a pending task.
    pub fn host_count(&self) -> usize {
        self.by_host.len()
    }

    /// Returns the hosts that have input of a pending task.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        self.by_host.keys().copied()
    }
}
